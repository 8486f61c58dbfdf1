"""How long a ring collective takes in a group of another size, or over other links.

A ring passes a share of the data from member to member. Per GPU a link within a node carries
``node_speedup`` times what its network adapter carries; a group with k members on each node has k
adapters, so that it crosses nodes k times as fast as one with a single member (NCCL's rings; see
its PERFORMANCE.md for bus bandwidth).
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


@dataclass(frozen=True)
class Reading:
    """What a trace may leave open of its network.

    Attributes:
        latency: collectives take a time per hop of the ring; else their bytes over the bandwidth.
        node_speedup: how many times as fast as a network adapter a link within a node is.
    """

    latency: bool
    node_speedup: float

    def sharded(self, ring: Ring) -> float:
        """Time of a gather or scatter of a unit, in units that all groups share."""
        if self.latency:
            return ring.ranks - 1.0
        return (ring.ranks - 1) / ring.ranks / ring.speed(self.node_speedup)

    def replicated(self, ring: Ring, n_shards: int) -> float:
        """Time of the all-reduce of one shard of a unit, in the same units."""
        if self.latency:
            return 2.0 * (ring.ranks - 1)
        wire = 2 * (ring.ranks - 1) / ring.ranks / n_shards
        return wire / ring.speed(self.node_speedup)


def measured_node_speedup(
    scatter_s: float, all_reduce_s: float, shard: Ring, replicate: Ring
) -> float:
    """How many times as fast links within a node are, from HSDP's two collectives of a unit.

    Args:
        scatter_s: seconds of the reduction within a shard group, which does not cross nodes.
        all_reduce_s: seconds of the all-reduce between them, one member on each node.
        shard: the group of the first.
        replicate: the group of the second.
    """
    one = Reading(latency=False, node_speedup=1.0)
    ratio = all_reduce_s / one.replicated(replicate, shard.ranks)
    return max(1.0, ratio / max(scatter_s / one.sharded(shard), 1e-12))
