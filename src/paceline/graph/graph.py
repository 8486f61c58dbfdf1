"""The core arrays: the dependencies of one step (StepGraph), and the duration of each op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from paceline.errors import SimulationError
from paceline.graph.order import slots, topological
from paceline.trace.job import place_name, place_of
from paceline.trace.kinds import LOCAL_KINDS, OpKind, kind_name

_CHUNK_VALUES = 1 << 18  # values gathered at once where a gather would otherwise double the memory

#: Kinds with durations that are never negative: an op that depends on another ends after it.
_LASTING = (
    OpKind.FORWARD_COMPUTE,
    OpKind.BACKWARD_COMPUTE,
    OpKind.WEIGHT_COMPUTE,
    OpKind.OPTIMIZER,
)


class _Sets(NamedTuple):
    """Sets of the ranks of a variant, for ``reduceat``.

    Attributes:
        of_dp: [dp] number of the rank's set.
        order: [dp] ranks, set by set.
        first: [set] where it begins in ``order``.
        numbers: [set] its number.
    """

    of_dp: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]

    @classmethod
    def of(cls, of_dp: npt.NDArray[np.int64]) -> _Sets:
        """The sets of ranks with these set numbers."""
        order = np.argsort(of_dp, kind="stable")
        numbers, first = np.unique(of_dp[order], return_index=True)
        return cls(of_dp, order, first, numbers)


@dataclass(frozen=True)
class StepGraph:
    """Operations of one step of one model replica, and their dependencies.

    Every step and data-parallel rank repeats the graph. Replicas may differ in structure, by their
    numbers of microbatches. The graph is then the union of one graph per *variant*, and the ops of
    a variant are contiguous. Variants meet only in groups that span the data-parallel ranks.

    Attributes:
        kind: [op] :class:`OpKind`.
        pp: [op] stage.
        seq: [op] number among its kind on its stage.
        chunk: [op] model chunk on the stage, -1 = not applicable.
        microbatch: [op] microbatch, -1 = not applicable.
        dep_ptr: [op + 1] where an op's dependencies start in ``dep``.
        dep: [edge] ops that must have ended; they have the same variant.
        group: [op] transfer the op is a member of (a send/recv pair or a collective), -1 = none.
            No member's transfer starts before all members are launched.
        spans_dp: [group] whether members of several data-parallel ranks belong to it.
        families: [family, dp] a partition of the data-parallel ranks: ranks with one number meet.
            Family 0 is all of them. Two may be equal: collectives of one do not wait for the other.
        family: [group] the family whose sets of ranks meet in it; 0 within a replica.
        noop: [op] a send or recv that moves nothing (the ends of a virtual pipeline).
        part: [op] place within its pass (compute), its unit or bucket (communication); 0 where
            passes are whole.
        programmed: whether the dependencies come from launches and waits of the workers' programs.
        variant_ptr: [variant + 1] where a variant's ops start.
        replica_variant: [dp] the variant of each data-parallel rank.
        order: [op] a topological order with the members of a group next to each other.
        node_ptr: [node + 1] where a node (an op alone, or a whole group) starts in ``order``.
        peers: replicas of one data-parallel rank (:attr:`paceline.trace.Job.peers`).
        paired: [op] whether it shares its worker with another compute (``overlaps``); None: no op.
    """

    kind: npt.NDArray[np.int8]
    pp: npt.NDArray[np.int32]
    seq: npt.NDArray[np.int32]
    chunk: npt.NDArray[np.int32]
    microbatch: npt.NDArray[np.int32]
    dep_ptr: npt.NDArray[np.int64]
    dep: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    spans_dp: npt.NDArray[np.bool_]
    families: npt.NDArray[np.int64]
    family: npt.NDArray[np.int64]
    noop: npt.NDArray[np.bool_]
    part: npt.NDArray[np.int32]
    programmed: bool
    variant_ptr: npt.NDArray[np.int64]
    replica_variant: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    node_ptr: npt.NDArray[np.int64]
    peers: int = 1
    paired: npt.NDArray[np.bool_] | None = None

    def worker_name(self, replica: int, pp: int) -> str:
        """Name of a worker in messages: ``dp 3, stage 0``, or ``dp 3, stage 0, peer 1``."""
        return place_name(place_of(replica, pp, self.peers))

    def kind_name(self, label: str) -> str:
        """Name of a kind in texts for people."""
        return kind_name(label, self.all_reduces)

    @property
    def all_reduces(self) -> bool:
        """Whether the gradients are reduced to all ranks, as in DDP.

        Their buckets are launched within the backward, and no parameter is gathered afterwards. In
        recordings that do not see the inside of passes, the optimizer may gather parameters.
        """
        cut = (self.pass_of != np.arange(self.n_ops)) & (self.kind == OpKind.BACKWARD_COMPUTE)
        return bool(cut.any()) and not bool((self.kind == OpKind.PARAMS_ALL_GATHER).any())

    @property
    def of_whole_passes(self) -> bool:
        """Whether all dependencies follow the rules of pipelines; these may build another one."""
        return not self.programmed and self.paired is None

    @property
    def n_ops(self) -> int:
        """Ops of all variants together."""
        return len(self.kind)

    @property
    def n_dp(self) -> int:
        """Data-parallel ranks."""
        return len(self.replica_variant)

    @property
    def n_pp(self) -> int:
        """Stages."""
        return int(self.pp.max()) + 1

    @property
    def n_variants(self) -> int:
        """Distinct replica structures."""
        return len(self.variant_ptr) - 1

    @cached_property
    def variant(self) -> npt.NDArray[np.int64]:
        """[op] the variant it belongs to."""
        return np.repeat(np.arange(self.n_variants), np.diff(self.variant_ptr))

    @cached_property
    def variant_dps(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Data-parallel ranks of each variant, ascending."""
        return tuple(np.flatnonzero(self.replica_variant == v) for v in range(self.n_variants))

    @cached_property
    def dp_index(self) -> npt.NDArray[np.int64]:
        """[dp] the rank's place among the ranks of its variant."""
        index = np.empty(self.n_dp, dtype=np.int64)
        for dps in self.variant_dps:
            index[dps] = np.arange(len(dps))
        return index

    @cached_property
    def pairs(self) -> npt.NDArray[np.int64]:
        """[pair, 2] members of the groups that stay within a replica (sends and recvs)."""
        return self._members(spans_dp=False).reshape(-1, 2)

    def _members(self, spans_dp: bool) -> npt.NDArray[np.int64]:
        """Ops of the groups that span the data-parallel ranks, or do not, group by group."""
        members = np.flatnonzero(self.group >= 0)
        members = members[self.spans_dp[self.group[members]] == spans_dp]
        by_group: npt.NDArray[np.int64] = members[np.argsort(self.group[members], kind="stable")]
        return by_group

    @cached_property
    def dp_groups(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Members, of all variants, of each group that spans the data-parallel ranks."""
        members = self._members(spans_dp=True)
        cuts = np.flatnonzero(np.diff(self.group[members])) + 1
        return tuple(np.split(members, cuts)) if len(members) else ()

    @property
    def has_families(self) -> bool:
        """Whether some collectives join only some of the data-parallel ranks."""
        return len(self.families) > 1

    def sets_of(self, member: int) -> npt.NDArray[np.int64]:
        """[dp] number of its set in an op's collective; ranks with one number meet."""
        sets: npt.NDArray[np.int64] = self.families[self.family[self.group[member]]]
        return sets

    def latest_of_peers(
        self, members: npt.NDArray[np.int64], rows: Sequence[npt.NDArray[np.float64]]
    ) -> list[npt.NDArray[np.float64]]:
        """Per member of a collective the largest value among the ranks that it meets.

        Args:
            members: ops, of all variants.
            rows: [step, dp of its variant] values of each member.

        Returns:
            [step, 1] for each member, or [step, dp of its variant] where only some ranks meet.
        """
        family = int(self.family[self.group[members[0]]])
        if not self.families[family].any():
            latest = np.max([row.max(axis=1) for row in rows], axis=0)[:, None]
            return [latest] * len(rows)
        sets = [self._sets[family][int(self.variant[op])] for op in members.tolist()]
        of_set = np.full((len(rows[0]), int(self.families[family].max()) + 1), -np.inf)
        for row, own in zip(rows, sets, strict=True):
            largest = np.maximum.reduceat(row[:, own.order], own.first, axis=1)
            of_set[:, own.numbers] = np.maximum(of_set[:, own.numbers], largest)
        return [of_set[:, own.of_dp] for own in sets]

    @cached_property
    def _sets(self) -> tuple[tuple[_Sets, ...], ...]:
        """[family][variant] the sets of the family's ranks."""
        return tuple(
            tuple(_Sets.of(sets[dps]) for dps in self.variant_dps) for sets in self.families
        )

    @cached_property
    def dp_groups_of(self) -> dict[int, npt.NDArray[np.int64]]:
        """Group -> its members of all variants, for groups that span the data-parallel ranks."""
        return {int(self.group[members[0]]): members for members in self.dp_groups}

    @cached_property
    def queued_behind(self) -> npt.NDArray[np.int64]:
        """[op] the collective before it in the queue of its kind, stage and family, -1 = none.

        Only programs have queues; in a pipeline of whole passes the recorded start decides.
        """
        behind = np.full(self.n_ops, -1, dtype=np.int64)
        if not self.programmed:
            return behind
        after = np.repeat(np.arange(self.n_ops), np.diff(self.dep_ptr))
        wide = self.group >= 0
        wide[wide] = self.spans_dp[self.group[wide]]
        queued = wide[after] & wide[self.dep] & (self.kind[after] == self.kind[self.dep])
        queued[queued] = (
            self.family[self.group[after[queued]]] == self.family[self.group[self.dep[queued]]]
        )
        position = np.empty(self.n_ops, dtype=np.int64)
        position[self.order] = np.arange(self.n_ops)
        # The program may have waited for another one before, too: the last one in the queue counts.
        edges = np.flatnonzero(queued)
        edges = edges[np.argsort(position[self.dep[edges]], kind="stable")]
        behind[after[edges]] = self.dep[edges]
        return behind

    @cached_property
    def queues(self) -> tuple[list[int], ...]:
        """Queues of collectives of the first variant, each op behind the one before it."""
        behind = self.queued_behind[: self.variant_ptr[1]]
        follower = {int(before): op for op, before in enumerate(behind.tolist()) if before >= 0}
        queues = []
        for op in sorted(set(follower) - set(follower.values())):
            queue = [op]
            while queue[-1] in follower:
                queue.append(follower[queue[-1]])
            queues.append(queue)
        return tuple(queues)

    @cached_property
    def pass_of(self) -> npt.NDArray[np.int64]:
        """[op] the first part of the compute's pass; the op itself where passes are whole.

        The gradient of the weights is the last part of the backward that it completes.
        """
        own = np.arange(self.n_ops)
        split = (self.kind == OpKind.WEIGHT_COMPUTE) & (self.microbatch >= 0)
        if not self.part.any() and not split.any():
            return own
        parted = np.flatnonzero(np.isin(self.kind, [int(kind) for kind in LOCAL_KINDS]))
        kind = np.where(split, OpKind.BACKWARD_COMPUTE, self.kind)
        fields = (self.variant, kind, self.pp, self.chunk, self.microbatch)
        keys = np.stack([values[parted] for values in fields])
        order = np.lexsort((self.part[parted], self.kind[parted], *keys))
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (np.diff(keys[:, order], axis=1) != 0).any(axis=0)
        own[parted[order]] = parted[order][begins][np.cumsum(begins) - 1]
        return own

    @property
    def has_parts(self) -> bool:
        """Whether some pass consists of several parts."""
        return bool((self.pass_of != np.arange(self.n_ops)).any())

    @cached_property
    def sources(self) -> npt.NDArray[np.bool_]:
        """[op] whether it has no dependencies: it is launched when the step starts."""
        sources: npt.NDArray[np.bool_] = np.diff(self.dep_ptr) == 0
        return sources

    @cached_property
    def tracked(self) -> npt.NDArray[np.bool_]:
        """[op] whether it may be the last of the step: no op of a lasting kind depends on it."""
        followed = np.zeros(self.n_ops, dtype=bool)
        edge_to = np.repeat(np.arange(self.n_ops), np.diff(self.dep_ptr))
        followed[self.dep[np.isin(self.kind[edge_to], _LASTING)]] = True
        return ~followed

    @cached_property
    def slots(self) -> tuple[npt.NDArray[np.int64], int]:
        """[op] the row for its end, shared with ops whose end is no longer needed; number of rows.

        A few hundred rows instead of one per op keep a block of lanes inside the CPU's cache.
        """
        return slots(self.order, self.node_ptr, self.dep_ptr, self.dep)

    def variant_ops(self, variant: int) -> slice:
        """The ops of a variant."""
        return slice(int(self.variant_ptr[variant]), int(self.variant_ptr[variant + 1]))

    def variant_pairs(self, variant: int) -> npt.NDArray[np.int64]:
        """[pair, 2] the pairs of a variant, ops counted from its first."""
        ops = self.variant_ops(variant)
        inside = (self.pairs[:, 0] >= ops.start) & (self.pairs[:, 0] < ops.stop)
        pairs: npt.NDArray[np.int64] = self.pairs[inside] - ops.start
        return pairs

    def describe(self, op: int) -> str:
        """An op in words, for messages."""
        text = f"{OpKind(int(self.kind[op])).label} {self.seq[op]} of stage {self.pp[op]}"
        return text if self.microbatch[op] < 0 else f"{text} (microbatch {self.microbatch[op]})"

    def latest_dependency_ends(
        self, variant: int, end: npt.NDArray[np.float64]
    ) -> Iterator[tuple[slice, npt.NDArray[np.float64]]]:
        """The latest end among each op's dependencies, 0 if it has none; yields some ops at a time.

        Args:
            variant: which replica structure.
            end: [op of the variant, ...] ends, seconds.

        Yields:
            ops of the variant (counted from its first), and their [op, ...] latest ends.
        """
        ops = self.variant_ops(variant)
        ptr = self.dep_ptr[ops.start : ops.stop + 1]
        chunk = max(1, _CHUNK_VALUES // max(1, end[0].size))
        for low in range(0, len(ptr) - 1, chunk):
            high = min(low + chunk, len(ptr) - 1)
            degree = np.diff(ptr[low : high + 1])
            latest = np.zeros((high - low, *end.shape[1:]))
            for nth in range(int(degree.max(initial=0))):
                rows = np.flatnonzero(degree > nth)
                ends = end[self.dep[ptr[low + rows] + nth] - ops.start]
                latest[rows] = ends if nth == 0 else np.maximum(latest[rows], ends)
            yield slice(low, high), latest


def make_graph(
    *,
    kind: npt.NDArray[Any],
    pp: npt.NDArray[Any],
    seq: npt.NDArray[Any],
    chunk: npt.NDArray[Any],
    microbatch: npt.NDArray[Any],
    edges: npt.NDArray[np.int64],
    group: npt.NDArray[np.int64],
    spans_dp: npt.NDArray[np.bool_],
    noop: npt.NDArray[np.bool_],
    variant_ptr: npt.NDArray[np.int64],
    replica_variant: npt.NDArray[np.int64],
    part: npt.NDArray[Any] | None = None,
    families: npt.NDArray[np.int64] | None = None,
    family: npt.NDArray[np.int64] | None = None,
) -> StepGraph:
    """A StepGraph from its ops and ``edges`` [edge, 2] (before, after); ``part``: programs only.

    Raises:
        GraphError: the dependencies form a cycle; the message names its ops.
    """
    n_ops = len(kind)
    edges = edges[np.lexsort((edges[:, 0], edges[:, 1]))]
    if len(edges):
        edges = edges[np.append(True, (np.diff(edges, axis=0) != 0).any(axis=1))]
    dep_ptr = np.zeros(n_ops + 1, dtype=np.int64)
    np.cumsum(np.bincount(edges[:, 1], minlength=n_ops), out=dep_ptr[1:])

    def name(op: int) -> str:
        return f"{OpKind(int(kind[op])).label} {seq[op]} of stage {pp[op]}"

    no_families = np.zeros((1, len(replica_variant)), dtype=np.int64)
    order, node_ptr = topological(n_ops, edges, group, name)
    return StepGraph(
        kind=kind.astype(np.int8),
        pp=pp.astype(np.int32),
        seq=seq.astype(np.int32),
        chunk=chunk.astype(np.int32),
        microbatch=microbatch.astype(np.int32),
        dep_ptr=dep_ptr,
        dep=np.ascontiguousarray(edges[:, 0]),
        group=group,
        spans_dp=spans_dp,
        families=no_families if families is None else families,
        family=np.zeros(len(spans_dp), dtype=np.int64) if family is None else family,
        noop=noop,
        part=np.zeros(n_ops, dtype=np.int32) if part is None else part.astype(np.int32),
        programmed=part is not None,
        variant_ptr=variant_ptr,
        replica_variant=replica_variant,
        order=order,
        node_ptr=node_ptr,
    )


def with_edges(graph: StepGraph, edges: npt.NDArray[np.int64]) -> StepGraph:
    """The graph with further edges [edge, 2] (before, after).

    Raises:
        GraphError: the dependencies form a cycle.
    """
    after = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    tied = make_graph(
        kind=graph.kind,
        pp=graph.pp,
        seq=graph.seq,
        chunk=graph.chunk,
        microbatch=graph.microbatch,
        edges=np.concatenate([np.stack([graph.dep, after], axis=1), edges]),
        group=graph.group,
        spans_dp=graph.spans_dp,
        noop=graph.noop,
        variant_ptr=graph.variant_ptr,
        replica_variant=graph.replica_variant,
        part=graph.part if graph.programmed else None,
        families=graph.families,
        family=graph.family,
    )
    return replace(tied, peers=graph.peers, paired=graph.paired)


class Rows(Protocol):
    """Rows of durations for the kernel: the place in ``values`` of each op's row."""

    @property
    def graph(self) -> StepGraph:
        """The ops."""

    @property
    def n_steps(self) -> int:
        """Number of steps."""

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """Seconds."""

    @property
    def row_ptr(self) -> npt.NDArray[np.int64]:
        """[op, ...] where an op's row [step, dp of its variant] starts in ``values``."""


@dataclass(frozen=True, eq=False)
class SharedRows:
    """Durations that share the rows of others in another order, without a copy.

    Attributes:
        graph: the ops.
        n_steps: number of steps.
        values: seconds of the other durations; must not be written to.
        row_ptr: [op] where an op's row [step, dp of its variant] starts in ``values``.
    """

    graph: StepGraph
    n_steps: int
    values: npt.NDArray[np.float64]
    row_ptr: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Durations:
    """Seconds per op, step and data-parallel rank: the OpDuration tensor (what-if paper, 3.2).

    For compute it is the duration; for communication, the transfer time (end minus the latest start
    among its peers). Replicas of one variant form one block ``[op, step, dp of the variant]``. The
    blocks lie one after another in ``values``.

    Attributes:
        graph: the ops.
        n_steps: number of steps.
        values: [all] seconds, the blocks one after another.
    """

    graph: StepGraph
    n_steps: int
    values: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.values.shape != (int(self.row_ptr[-1]),):
            raise SimulationError(
                f"durations hold {self.values.shape} values, the graph with {self.n_steps} steps "
                f"needs ({self.row_ptr[-1]},)"
            )

    @cached_property
    def row_ptr(self) -> npt.NDArray[np.int64]:
        """[op + 1] where an op's row [step, dp of its variant] starts in ``values``."""
        per_variant = np.array([len(dps) * self.n_steps for dps in self.graph.variant_dps])
        return np.append(0, np.cumsum(per_variant[self.graph.variant]))

    def block(self, variant: int) -> npt.NDArray[np.float64]:
        """[op, step, dp] view of one variant's durations."""
        ops = self.graph.variant_ops(variant)
        flat = self.values[self.row_ptr[ops.start] : self.row_ptr[ops.stop]]
        return flat.reshape(ops.stop - ops.start, self.n_steps, -1)

    def row(self, op: int) -> npt.NDArray[np.float64]:
        """[step, dp of its variant] view of one op's durations."""
        flat = self.values[self.row_ptr[op] : self.row_ptr[op + 1]]
        return flat.reshape(self.n_steps, -1)

    def of_steps(self, index: npt.NDArray[np.int64]) -> Durations:
        """A copy for some steps, given by index."""
        part = Durations.empty(self.graph, len(index))
        for v in range(self.graph.n_variants):
            part.block(v)[:] = self.block(v)[:, index]
        return part

    @property
    def blocks(self) -> tuple[npt.NDArray[np.float64], ...]:
        """The views of all variants."""
        return tuple(self.block(v) for v in range(self.graph.n_variants))

    @property
    def array(self) -> npt.NDArray[np.float64]:
        """[op, step, dp] durations; raises SimulationError if replicas differ in structure."""
        if self.graph.n_variants != 1:
            raise SimulationError("replicas differ in structure: use blocks, one per variant")
        return self.block(0)

    @classmethod
    def empty(cls, graph: StepGraph, n_steps: int) -> Durations:
        """Durations of 0 s, to be filled through ``block``."""
        per_variant = [len(dps) for dps in graph.variant_dps]
        size = sum(int(n) * d for n, d in zip(np.diff(graph.variant_ptr), per_variant, strict=True))
        return cls(graph, n_steps, np.zeros(size * n_steps))
