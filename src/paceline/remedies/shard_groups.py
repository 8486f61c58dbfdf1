"""Groups of ranks that share one copy of the parameters in a recorded job, and their nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import NotApplicableError
from paceline.graph import Measured, StepGraph
from paceline.graph.families import joined_sets
from paceline.remedies.ring import Ring, measured_node_speedup
from paceline.trace import OpKind

Ints = npt.NDArray[np.int64]
K = OpKind

#: A scatter that takes longer than this number of gathers may be an all-reduce.
TWICE = 1.5

#: Collectives in which the members of a shard group meet.
SHARDED = (K.PARAMS_ALL_GATHER, K.GRADS_REDUCE_SCATTER)


@dataclass(frozen=True)
class ShardGroups:
    """The sharding of a job's parameters.

    Attributes:
        world: [replica] index of its world: the ranks that shard or replicate groups connect.
        place: [replica] its index in its world, by rank.
        node: [replica, pp] number of its node.
        shard: the groups that share one copy at present.
        replicate: the groups of ranks that hold the same shard; groups of one rank if there is one
            copy.
        scatter_s: typical seconds of a unit's reduction in its shard group.
        all_reduce_s: typical seconds of the reduction between the copies; NaN without one.
        fastest_s: typical seconds of the fastest gather or scatter.
        scatter_passes: possible rounds of a scatter's bytes through its ring. Usually one; if the
            scatter takes as long as two gathers, two are possible, too. Then its numbers are larger
            than the parameters, or it is an all-reduce (gloo).
    """

    world: Ints
    place: Ints
    node: Ints
    shard: Ring
    replicate: Ring
    scatter_s: float
    all_reduce_s: float
    fastest_s: float
    scatter_passes: tuple[int, ...] = (1,)

    @property
    def ranks(self) -> int:
        """Ranks that hold the same parameters between them."""
        return int(self.place.max()) + 1

    @property
    def most_hop_s(self) -> float:
        """Upper bound of the seconds of a ring's hop: even the fastest collective has all hops."""
        hops = self.fastest_s / (self.shard.ranks - 1)
        if self.replicate.ranks == 1:
            return hops
        return min(hops, self.all_reduce_s / (2 * (self.replicate.ranks - 1)))

    def node_speedup(self, hop_s: float, passes: int) -> float | None:
        """Speed of a link within a node over that of a network adapter.

        None if the trace does not show both. A hop of a ring takes ``hop_s`` besides the bytes, and
        the bytes of a scatter pass the ring ``passes`` times.
        """
        if self.shard.crosses or self.replicate.ranks == 1 or self.replicate.per_node > 1:
            return None
        return measured_node_speedup(
            self.scatter_s / passes - (self.shard.ranks - 1) * hop_s,
            self.all_reduce_s - 2 * (self.replicate.ranks - 1) * hop_s,
            self.shard,
            self.replicate,
        )

    def partitions(self, size: int) -> Ints:
        """[2, replica] shard groups of a size, and groups of ranks that hold the same shard."""
        n_copies = self.ranks // size
        shard = self.world * n_copies + self.place // size
        return np.stack([shard, self.world * size + self.place % size])

    def rings(self, size: int) -> tuple[Ring, Ring]:
        """Shard and replicate groups of some size.

        Raises:
            NotApplicableError: the groups lie unevenly over the nodes.
        """
        shard, replicate = (ring_of(sets, self.node) for sets in self.partitions(size))
        return shard, replicate

    def fits(self, size: int) -> bool:
        """Whether groups of some size are spread evenly over the nodes."""
        try:
            self.rings(size)
        except NotApplicableError:
            return False
        return True

    def across(self, size: int) -> bool:
        """Whether any group, at present or of ``size``, spans nodes."""
        return any(ring.crosses for ring in (self.shard, self.replicate, *self.rings(size)))


def ring_of(sets: Ints, node: Ints) -> Ring:
    """The shape that all groups have.

    Args:
        sets: [replica] number of its set.
        node: [replica, pp] number of its node.

    Raises:
        NotApplicableError: sets differ in size, or lie unevenly over nodes.
    """
    n_stages = node.shape[1]
    stage = np.broadcast_to(np.arange(n_stages), node.shape)
    cells = np.stack([np.broadcast_to(sets[:, None], node.shape), stage, node]).reshape(3, -1)
    _, per_node = np.unique(cells, axis=1, return_counts=True)
    _, size = np.unique(sets, return_counts=True)
    if np.ptp(size) or np.ptp(per_node):
        raise NotApplicableError("groups of ranks that share parameters lie unevenly over nodes")
    return Ring(int(size[0]), int(per_node[0]))


def recorded_groups(measured: Measured, ranks_per_node: int) -> ShardGroups:
    """The groups of a recorded job.

    Raises:
        NotApplicableError: nothing is sharded, parts are sharded differently, or ranks are not
            known.
    """
    graph = measured.graph
    shard = _sets(graph, SHARDED)
    for kind in SHARDED:
        if shard is None or not (graph.kind == kind).any():
            raise NotApplicableError(f"the trace has no {kind.label} of sharded parameters")
    assert shard is not None
    if graph.n_variants > 1:
        raise NotApplicableError(
            "replicas have different programs, so their groups cannot be changed"
        )
    if (measured.rank < 0).any():
        raise NotApplicableError("the trace does not record the ranks of workers")
    replicate = _sets(graph, (K.SEPARATE_GRADS_ALL_REDUCE,))
    partitions = [shard] if replicate is None else [shard, replicate]
    world = np.unique(joined_sets(partitions), return_inverse=True)[1].reshape(-1)
    place = np.empty_like(world)
    order = np.lexsort((measured.rank[:, 0], world))
    first = np.searchsorted(world[order], world[order])
    place[order] = np.arange(len(world)) - first
    node = measured.rank // ranks_per_node
    rings = ring_of(shard, node), Ring(1, 1) if replicate is None else ring_of(replicate, node)
    if rings[0].ranks * rings[1].ranks != int(place.max()) + 1:
        raise NotApplicableError(
            "gradients are reduced once more, but not between ranks that hold the same shard"
        )
    if rings[0].ranks == 1:
        raise NotApplicableError("each rank holds all parameters: nothing is sharded")
    scatters = _typical_s(measured, K.GRADS_REDUCE_SCATTER)
    all_reduces = _typical_s(measured, K.SEPARATE_GRADS_ALL_REDUCE)
    gathers = _typical_s(measured, K.PARAMS_ALL_GATHER)
    fastest_s = min([*scatters, *gathers])
    scatter_s = float(np.median(scatters))
    all_reduce_s = float(np.median(all_reduces)) if all_reduces else np.nan
    passes = (1, 2) if scatter_s > TWICE * float(np.median(gathers)) else (1,)
    times = (scatter_s, all_reduce_s, fastest_s)
    return ShardGroups(world, place, node, *rings, *times, passes)


def _sets(graph: StepGraph, kinds: tuple[OpKind, ...]) -> Ints | None:
    """[replica] the group of all collectives of some kinds; None without such collectives."""
    partitions = {
        tuple(np.unique(graph.sets_of(int(op)), return_inverse=True)[1].tolist())
        for op in np.flatnonzero(np.isin(graph.kind, [int(kind) for kind in kinds]))
    }
    if len(partitions) > 1:
        names = " and ".join(kind.label for kind in kinds)
        raise NotApplicableError(f"{names} join different groups of ranks")
    return np.array(partitions.pop()) if partitions else None


def _typical_s(measured: Measured, *kinds: OpKind) -> list[float]:
    """Typical seconds of each op of some kinds."""
    ops = np.flatnonzero(np.isin(measured.graph.kind, [int(kind) for kind in kinds]))
    return [float(np.median(measured.durations.row(op))) for op in ops.tolist()]
