"""Time of a ring collective in a group of another size, or over other links.

A ring passes a share of the data from member to member. Per GPU a link within a node carries
``node_speedup`` times the bytes of its network adapter. A group with k members on each node has k
adapters. So it crosses nodes k times as fast as a group with a single member per node. NCCL's rings
work like this; see bus bandwidth in PERFORMANCE.md of nccl-tests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ring:
    """A group whose members are spread evenly over nodes.

    Attributes:
        ranks: members.
        per_node: members on each node.
    """

    ranks: int
    per_node: int

    @property
    def crosses(self) -> bool:
        """Whether it spans nodes."""
        return self.per_node < self.ranks

    def speed(self, node_speedup: float) -> float:
        """Bandwidth per member, as a multiple of one network adapter's."""
        return min(node_speedup, float(self.per_node)) if self.crosses else node_speedup


def sharded_share(ring: Ring, node_speedup: float) -> float:
    """Time to gather or scatter a unit's bytes, in units that all groups share."""
    return (ring.ranks - 1) / ring.ranks / ring.speed(node_speedup)


def replicated_share(ring: Ring, n_shards: int, node_speedup: float) -> float:
    """Time to reduce the bytes of one shard of a unit to all, in the same units."""
    return 2 * (ring.ranks - 1) / ring.ranks / n_shards / ring.speed(node_speedup)


def measured_node_speedup(
    scatter_s: float, all_reduce_s: float, shard: Ring, replicate: Ring
) -> float:
    """Speed of links within a node over that of adapters, from HSDP's two reductions of a unit.

    Args:
        scatter_s: seconds to reduce the unit's bytes within a shard group, inside a node.
        all_reduce_s: seconds to reduce a shard's bytes between groups, one member on each node.
        shard: the group of ``scatter_s``.
        replicate: the group of ``all_reduce_s``.
    """
    between = all_reduce_s / replicated_share(replicate, shard.ranks, 1.0)
    within = scatter_s / sharded_share(shard, 1.0)
    return max(1.0, between / max(within, 1e-12))
