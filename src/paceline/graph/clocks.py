"""Clock offsets between workers, from transfers whose members end together.

A member that ends its transfers late looks like a clock that is ahead. Offsets are taken off only
if the evidence points to clocks. That is: times that are impossible without offsets, or agreement
of all kinds of transfer of a worker.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.graph.graph import Durations, StepGraph
from paceline.trace.kinds import P2P_KINDS, PEER_KINDS, OpKind

Array = npt.NDArray[np.float64]

#: Ends of this many ops per link show its offset well enough; more would only cost time.
MAX_SAMPLES = 64

#: At most this many pairs of a replica are searched for impossible times.
MAX_PAIRS = 512

#: Offsets matter if their standard deviation over the workers exceeds SPREAD_S. So does a single
#: clock further off than ONE_OFF_S: the standard deviation of a large job would hide it.
SPREAD_S, ONE_OFF_S = 0.002, 0.005

#: Clocks explain the ends of a kind of transfer if at most ENDS_LEFT of the differences remain.
#: They explain impossible times if at most IMPOSSIBLE_LEFT of their seconds remain.
ENDS_LEFT, IMPOSSIBLE_LEFT = 0.6, 0.2

#: A transfer is impossible if it ends this long before all its members have started. Clocks are
#: read to about a microsecond, and recorders stamp within tens of microseconds.
IMPOSSIBLE_S = 0.0005

#: Rounds of reweighting, and the misfit (seconds) below which an observation keeps its full weight.
ROUNDS, TOLERANCE_S = 5, 1e-4


@dataclass(frozen=True)
class ClockOffsets:
    """How far each worker's clock is ahead of the mean of all.

    Attributes:
        offset_s: [dp, pp] seconds that the worker's clock is ahead.
        std_s: standard deviation of the offsets.
        corrected: whether the offsets were taken off the times.
        reason: why they were, or were not; empty where they are too small to matter.
    """

    offset_s: Array
    std_s: float
    corrected: bool = False
    reason: str = ""

    @property
    def furthest_s(self) -> float:
        """The largest offset, seconds."""
        return float(np.abs(self.offset_s).max())

    @property
    def matter(self) -> bool:
        """Whether offsets of this size would change an analysis."""
        return self.std_s > SPREAD_S or self.furthest_s > ONE_OFF_S

    @property
    def doubt_s(self) -> float:
        """Seconds by which times of different workers may disagree."""
        return self.furthest_s if self.matter and not self.corrected else 0.0


@dataclass(frozen=True)
class _Group:
    """Groups of workers that take part in one kind of transfer.

    Attributes:
        kind: of the transfer (of a send and recv: that of the send).
        workers: [group, member] dp * n_pp + pp.
        ahead: [group, member] the member's end after the members' mean, median over the steps, s.
    """

    kind: OpKind
    workers: npt.NDArray[np.int64]
    ahead: Array


def estimate_offsets(graph: StepGraph, start: Durations, end: Durations) -> ClockOffsets:
    """Each worker's constant clock offset, by least squares over all transfers.

    The members of one transfer end together, so recorded ends that differ show how the clocks
    differ. Each group of workers that transfer to each other yields one observation per member. It
    is the median, over steps and ops, of the member's end less the group's mean. The offsets should
    reproduce it. ``corrected`` tells whether the evidence allows the caller to take them off.

    Args:
        graph: the ops.
        start: recorded starts in the layout of the durations.
        end: recorded ends in the same layout.
    """
    n_dp, n_pp = graph.n_dp, graph.n_pp
    groups = [*_pair_groups(graph, end), *_collective_groups(graph, end)]
    offset = _fit(n_dp * n_pp, groups).reshape(n_dp, n_pp)
    clocks = ClockOffsets(offset, float(offset.std()))
    if not clocks.matter:
        return clocks
    corrected, reason = _judge(graph, start, end, groups, offset)
    return ClockOffsets(offset, clocks.std_s, corrected, reason)


def _judge(
    graph: StepGraph, start: Durations, end: Durations, groups: list[_Group], offset: Array
) -> tuple[bool, str]:
    """Whether the offsets come from clocks, and why."""
    before = impossible_s(graph, start, end, np.zeros_like(offset))
    after = impossible_s(graph, start, end, offset)
    if before > 0 and after <= IMPOSSIBLE_LEFT * before:
        return True, "transfers would end before all members have started"
    contradicted = _contradicted(groups, offset.ravel())
    if contradicted:
        return False, (
            f"ends of {contradicted[0].label} do not show it: members that end late, not clocks"
        )
    if not any(group.kind in P2P_KINDS for group in groups):
        return False, "with collectives only, a clock that is ahead and a late member look alike"
    return True, "all kinds of transfer agree"


def _contradicted(groups: list[_Group], offset: Array) -> list[OpKind]:
    """Kinds of transfer whose ends the offsets do not explain."""
    off = np.abs(offset) > SPREAD_S
    before: dict[OpKind, float] = {}
    after: dict[OpKind, float] = {}
    for group in groups:
        shown = off[group.workers]
        ones = np.ones_like(group.ahead)
        left = _centred(group.ahead - offset[group.workers], ones)
        before[group.kind] = before.get(group.kind, 0.0) + float(np.abs(group.ahead)[shown].sum())
        after[group.kind] = after.get(group.kind, 0.0) + float(np.abs(left)[shown].sum())
    return [kind for kind in before if after[kind] > ENDS_LEFT * before[kind]]


def impossible_s(graph: StepGraph, start: Durations, end: Durations, offset: Array) -> float:
    """Seconds by which transfers end before their last member has started.

    Args:
        graph: the ops.
        start: recorded starts.
        end: recorded ends.
        offset: [dp, pp] clock offsets to take off first, seconds.
    """
    total = 0.0
    for v, dps in enumerate(graph.variant_dps):
        pairs, pp = graph.variant_pairs(v), graph.pp[graph.variant_ops(v)]
        few = pairs[np.linspace(0, len(pairs) - 1, min(len(pairs), MAX_PAIRS)).astype(int)]
        one, other = few[:, 0], few[:, 1]
        shift = offset[dps].T  # [pp, dp]
        first, last = start.block(v), end.block(v)
        latest = np.maximum(
            first[one] - shift[pp[one], None], first[other] - shift[pp[other], None]
        )
        for side in (one, other):
            total += _before(last[side] - shift[pp[side], None] - latest)
    for members in graph.dp_groups:
        launches, ends = [], []
        for op in members.tolist():
            shift = offset[graph.variant_dps[int(graph.variant[op])], graph.pp[op]]
            launches.append(start.row(op) - shift)
            ends.append(end.row(op) - shift)
        latest = graph.latest_of_peers(members, launches)
        total += sum(_before(row - at) for row, at in zip(ends, latest, strict=True))
    return total


def _before(transfer: Array) -> float:
    """Seconds by which transfer times are impossible."""
    return float(np.where(transfer < -IMPOSSIBLE_S, -transfer, 0.0).sum())


def _pair_groups(graph: StepGraph, end: Durations) -> list[_Group]:
    """For each kind of pair and two stages, one group per data-parallel rank."""
    groups: list[_Group] = []
    for v, dps in enumerate(graph.variant_dps):
        span = graph.variant_ops(v)
        pp, kind = graph.pp[span], graph.kind[span]
        pairs = graph.variant_pairs(v)
        stages = np.sort(pp[pairs], axis=1)
        keys = np.concatenate([stages, kind[pairs[:, :1]]], axis=1)
        block = end.block(v)
        for low, high, which in np.unique(keys, axis=0).tolist():
            if low == high:
                continue
            link = pairs[(keys == (low, high, which)).all(axis=1)]
            link = link[np.linspace(0, len(link) - 1, min(len(link), MAX_SAMPLES)).astype(int)]
            sign = np.where(pp[link[:, 0]] == low, 1.0, -1.0)
            apart = (block[link[:, 0]] - block[link[:, 1]]) * sign[:, None, None]
            half = np.median(apart, axis=(0, 1)) / 2  # [dp]
            workers = np.stack([dps * graph.n_pp + low, dps * graph.n_pp + high], axis=1)
            groups.append(_Group(OpKind(which), workers, np.stack([half, -half], axis=1)))
    return groups


def _collective_groups(graph: StepGraph, end: Durations) -> list[_Group]:
    """One group per collective that spans the replicas; those within passes by stage and family."""
    groups: list[_Group] = []
    within: dict[tuple[int, int, int], list[int]] = {}
    of_peers = np.isin(graph.kind, [int(kind) for kind in PEER_KINDS])
    for members in graph.dp_groups:
        first = int(members[0])
        if of_peers[first] and len(members) == 1:
            family = int(graph.family[graph.group[first]])
            key = int(graph.kind[first]), int(graph.pp[first]), family
            within.setdefault(key, []).append(first)
            continue
        workers, ends = [], []
        for op in members.tolist():
            v = int(graph.variant[op])
            dps = graph.variant_dps[v]
            workers.append(dps * graph.n_pp + graph.pp[op])
            ends.append(end.block(v)[op - graph.variant_ptr[v]])  # [step, dp]
        table = np.concatenate(ends, axis=1)
        kind = OpKind(int(graph.kind[first]))
        own = np.concatenate(workers)
        groups += _groups_of_sets(kind, own, graph.sets_of(first)[own // graph.n_pp], table)
    for (which, stage, _), ops in within.items():
        # Each layer has one such collective: a sample of them shows as much as all.
        sample = np.array(ops)[np.linspace(0, len(ops) - 1, min(len(ops), MAX_SAMPLES)).astype(int)]
        table = end.block(0)[sample].reshape(-1, graph.n_dp)
        own = np.arange(graph.n_dp) * graph.n_pp + stage
        groups += _groups_of_sets(OpKind(which), own, graph.sets_of(int(sample[0])), table)
    return groups


def _groups_of_sets(
    kind: OpKind, workers: npt.NDArray[np.int64], sets: npt.NDArray[np.int64], ends: Array
) -> list[_Group]:
    """The sets of ranks that meet, sets of one size together.

    Args:
        kind: kind of the collective.
        workers: [member] dp * n_pp + pp.
        sets: [member] number of its set; members of one set meet.
        ends: [sample, member] seconds.
    """
    groups = []
    _, number, size = np.unique(sets, return_inverse=True, return_counts=True)
    for n in np.unique(size[size > 1]).tolist():
        order = np.argsort(number, kind="stable")
        members = order[size[number[order]] == n].reshape(-1, n)  # [set, member]
        own = ends[:, members]
        ahead = np.median(own - own.mean(axis=2, keepdims=True), axis=0)
        groups.append(_Group(kind, workers[members], ahead))
    return groups


def _fit(n_workers: int, groups: list[_Group]) -> Array:
    """Offsets x, mean 0, that fit best: least squares, then again with outliers weighing less.

    A slow NIC may make a rank end one collective late in every step. That is no clock that is
    ahead: the rank's other transfers disagree.
    """
    weights = [np.ones_like(group.ahead) for group in groups]
    x = _least_squares(n_workers, groups, weights)
    for _ in range(ROUNDS):
        weights = [
            1 / np.maximum(np.abs(_centred(group.ahead - x[group.workers], weight)), TOLERANCE_S)
            for group, weight in zip(groups, weights, strict=True)
        ]
        x = _least_squares(n_workers, groups, weights)
    return x


def _centred(values: Array, weight: Array) -> Array:
    """[group, member] deviations from each group's weighted mean."""
    mean = (values * weight).sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
    deviations: Array = values - mean
    return deviations


def _least_squares(n_workers: int, groups: list[_Group], weights: list[Array]) -> Array:
    """Offsets x, mean 0, whose deviations from each group's mean fit the observed ones best.

    The normal equations are those of a graph Laplacian. Conjugate gradients need only its product
    with a vector, whose cost is the number of members of the groups.
    """

    def scatter(parts: list[Array]) -> Array:
        total = np.zeros(n_workers)
        for group, part, weight in zip(groups, parts, weights, strict=True):
            np.add.at(total, group.workers, _centred(part, weight) * weight)
        return total

    x = np.zeros(n_workers)
    residual = scatter([group.ahead for group in groups])
    direction = residual.copy()
    norm = start_norm = float(residual @ residual)
    for _ in range(4 * n_workers):
        if norm <= 1e-24 * start_norm or norm < 1e-30:
            break
        image = scatter([direction[group.workers] for group in groups])
        step = norm / float(direction @ image)
        x += step * direction
        residual -= step * image
        previous, norm = norm, float(residual @ residual)
        direction = residual + (norm / previous) * direction
    x -= x.mean()
    return x
