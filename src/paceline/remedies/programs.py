"""Edits of recorded programs: launches and waits are moved, removed or added.

The builder of the recorded programs then makes the graph of the edited ones. An op that stays keeps
its duration in every step and replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.fit import PAUSE_SIGMAS
from paceline.errors import NotApplicableError
from paceline.graph import Durations, Measured, ReplicaOps, StepGraph, build_graph
from paceline.graph.graph import Rows, SharedRows, with_edges
from paceline.graph.program_steps import (
    REDUCTIONS,
    Pass,
    needed_by,
    pass_of,
    program_steps,
    unit_of,
)
from paceline.occurrence import count_in_runs, occurrence
from paceline.trace.kinds import LOCAL_KINDS, OpKind

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
K = OpKind


@dataclass(frozen=True)
class Added:
    """An op that is added to a recorded program.

    Attributes:
        like: the recorded op whose kind, chunk, microbatch and group it has.
        part: its unit or bucket.
        terms: (recorded op, weight): its seconds are the weighted sum of their seconds ...
        plus_s: ... plus this.
        own: number of pieces that the op belongs to. Each piece varies independently: it takes
            another step's deviation from the mean. 0: it varies like its terms.
        nth: index of the piece.
        kind: its kind; None: the kind of ``like``.
        family: its family of groups; None: the family of ``like``.
    """

    like: int
    part: int
    terms: tuple[tuple[int, float], ...]
    plus_s: float = 0.0
    own: int = 0
    nth: int = 0
    kind: OpKind | None = None
    family: int | None = None


@dataclass(frozen=True)
class Changed:
    """The job with edited programs.

    Attributes:
        durations: of its ops, seconds.
        delays: launch delays in the same layout; None if none were given.
    """

    durations: Rows
    delays: Rows | None


@dataclass(frozen=True)
class Replica:
    """The programs of one replica, as lists that may be edited.

    Attributes:
        ops: the recorded ops.
        seconds: [op, step, dp] of the recorded ops.
        steps: [stage] the actions of its program, in order: ``op`` launches an op, ``~op`` waits
            for it. Ops from ``len(ops.kind)`` on are in ``added``.
        added: the new ops.
        heirs: removed op -> the op that is launched next, which meets pauses of the host before the
            removed one.
    """

    ops: ReplicaOps
    seconds: Array
    steps: list[list[int]]
    added: list[Added]
    heirs: dict[int, int]

    @classmethod
    def of(cls, ops: ReplicaOps, seconds: Array) -> Replica:
        """The programs as recorded, with the seconds [op, step, dp] of their ops."""
        stages = range(int(ops.pp.max()) + 1)
        return cls(ops, seconds, [program_steps(ops, s) for s in stages], [], {})

    @cached_property
    def typical_s(self) -> Array:
        """[op] mean seconds of the recorded ops."""
        mean: Array = self.seconds.mean(axis=(1, 2))
        return mean

    @cached_property
    def n_recorded(self) -> int:
        """Number of recorded ops."""
        return len(self.ops.kind)

    @cached_property
    def _kinds(self) -> list[OpKind]:
        """[recorded op] its kind."""
        members = list(OpKind)
        return [members[kind] for kind in self.ops.kind.tolist()]

    def kind(self, op: int) -> OpKind:
        """The kind of an op."""
        if op < self.n_recorded:
            return self._kinds[op]
        added = self.added_as(op)
        return self._kinds[added.like] if added.kind is None else added.kind

    def like(self, op: int) -> int:
        """The op itself if it was recorded, otherwise the recorded op in its field ``like``."""
        return op if op < self.n_recorded else self.added_as(op).like

    def add(self, op: Added) -> int:
        """Add an op; the caller must still launch it somewhere. Returns its number."""
        self.added.append(op)
        return self.n_recorded + len(self.added) - 1

    def is_local(self, op: int) -> bool:
        """Whether an op is a compute."""
        return self.kind(op) in LOCAL_KINDS

    def pass_of(self, op: int) -> Pass:
        """The pass of a compute."""
        return pass_of(self.ops, self.like(op))

    def unit(self, op: int) -> tuple[int, int]:
        """(chunk, part) that a collective serves."""
        chunk, part = unit_of(self.ops, self.like(op))
        return (chunk, part) if op < self.n_recorded else (chunk, self.added_as(op).part)

    def added_as(self, op: int) -> Added:
        """Index of an op that was not recorded."""
        return self.added[op - self.n_recorded]

    def finished(self) -> tuple[ReplicaOps, Ints]:
        """The ops of the edited programs, and [new op] its number in this replica."""
        old, added = self.ops, self.added
        assert old.part is not None
        n_ops = self.n_recorded + len(added)
        like = _joined(np.arange(self.n_recorded), [new.like for new in added])
        kind = _joined(old.kind, [self.kind(op) for op in range(self.n_recorded, n_ops)])
        part = _joined(old.part, [new.part for new in added])
        awaited = np.full(n_ops, -1, dtype=np.int64)
        issued = np.full(n_ops, -1, dtype=np.int64)
        stage = np.zeros(n_ops, dtype=np.int64)
        for number, program in enumerate(self.steps):
            steps = np.array(program, dtype=np.int64)
            launched = steps >= 0
            position = np.cumsum(launched) - 1
            issued[steps[launched]] = position[launched]
            stage[steps[launched]] = number
            awaited[~steps[~launched]] = position[~launched]
        op = np.flatnonzero(issued >= 0)
        op = op[np.lexsort((issued[op], kind[op], stage[op]))]
        seq = count_in_runs((stage[op], kind[op]))
        local = np.flatnonzero(np.isin(kind[op], [int(k) for k in LOCAL_KINDS]))
        # Computes are numbered within their pass, and some passes may have new cuts.
        part[op[local]] = self._places(stage[op[local]], issued[op[local]], like[op[local]])
        new = ReplicaOps(
            kind=kind[op],
            pp=stage[op],
            seq=seq,
            chunk=old.chunk[like[op]],
            microbatch=old.microbatch[like[op]],
            rank=issued[op],
            part=part[op],
            awaited=awaited[op],
            family=self._families(op, like[op]),
        )
        return new, op

    def _places(self, stage: Ints, issued: Ints, like: Ints) -> Ints:
        """[compute] its number among the computes of its pass, in the order of their launches."""
        ops = self.ops
        keys = (stage, ops.kind[like], ops.microbatch[like], ops.chunk[like])
        return occurrence(keys, np.lexsort((issued, *keys)))

    def _families(self, ops: Ints, like: Ints) -> Ints | None:
        """[new op] its family of groups."""
        told = {
            op: added.family
            for op, added in enumerate(self.added, self.n_recorded)
            if added.family is not None
        }
        if self.ops.family is None and not told:
            return None
        usual = np.zeros(self.n_recorded) if self.ops.family is None else self.ops.family
        families: Ints = usual[like].astype(np.int64)
        for place in np.flatnonzero(np.isin(ops, list(told))).tolist():
            families[place] = told[int(ops[place])]
        return families


def _joined(recorded: npt.NDArray[Any], added: Sequence[int]) -> Ints:
    """[op] numbers of the recorded ops, then of the added ones."""
    return np.concatenate([recorded.astype(np.int64), np.array(added, dtype=np.int64)])


def changed_job(
    measured: Measured,
    edit: Callable[[Replica], None],
    delays: Durations | None = None,
    *,
    one_network: bool = False,
    families: Ints | None = None,
) -> Changed:
    """The job with edited programs: :func:`regraphed` of the result of :func:`edited`."""
    replicas = edited(measured, edit)
    return regraphed(measured, replicas, delays, one_network=one_network, families=families)


def edited(measured: Measured, edit: Callable[[Replica], None]) -> list[Replica]:
    """[variant] the recorded programs, after ``edit`` has changed them in place."""
    old = measured.durations
    replicas = [Replica.of(ops, old.block(v)) for v, ops in enumerate(measured.programs)]
    for replica in replicas:
        edit(replica)
    return replicas


def regraphed(
    measured: Measured,
    replicas: Sequence[Replica],
    delays: Durations | None = None,
    *,
    one_network: bool = False,
    families: Ints | None = None,
) -> Changed:
    """The job with edited programs, on the graph that they make.

    Args:
        measured: the job as traced, with programs.
        replicas: [variant] its programs, edited.
        delays: launch delays of the trace's ops, which are kept; None: no delays. A removed op
            takes its usual delay with it. A longer one is a pause of the host and stays.
        one_network: put gathers and reductions of a stage into one queue, as if each needed the
            whole network.
        families: [family, replica] groups of the changed job; None: the trace's groups.

    Raises:
        GraphError: the programs block each other.
    """
    old = measured.durations
    finished = [replica.finished() for replica in replicas]
    graph = build_graph(
        [ops for ops, _ in finished],
        old.graph.replica_variant,
        measured.job,
        old.graph.families if families is None else families,
    )
    if one_network:
        queues = [
            _queue(ops) + int(first)
            for (ops, _), first in zip(finished, graph.variant_ptr, strict=False)
        ]
        graph = with_edges(graph, np.concatenate(queues))
    ops = [op for _, op in finished]
    if any(replica.added or (replica.heirs and delays is not None) for replica in replicas):
        new = _with_added(graph, old, ops, replicas)
        return Changed(new, None if delays is None else _delays(graph, delays, ops, replicas))
    starts = [
        old.row_ptr[op + first] for op, first in zip(ops, old.graph.variant_ptr, strict=False)
    ]

    def shared(rows: Durations) -> SharedRows:
        return SharedRows(graph, rows.n_steps, rows.values, np.concatenate(starts))

    return Changed(shared(old), None if delays is None else shared(delays))


def _with_added(
    graph: StepGraph, old: Durations, ops: Sequence[Ints], replicas: Sequence[Replica]
) -> Durations:
    """Durations of programs with new ops; ``ops``: [variant] [new op] its number before."""
    new = Durations.empty(graph, old.n_steps)
    for v, (op, replica) in enumerate(zip(ops, replicas, strict=True)):
        _fill(new.block(v), old.block(v), op, replica)
    return new


def _delays(
    graph: StepGraph, old: Durations, ops: Sequence[Ints], replicas: Sequence[Replica]
) -> Durations:
    """Launch delays of the new programs; 0 for new ops, if no removed op leaves them a pause."""
    new = Durations.empty(graph, old.n_steps)
    for v, (op, replica) in enumerate(zip(ops, replicas, strict=True)):
        block = old.block(v)
        np.take(block, op, axis=0, out=new.block(v), mode="clip")  # "raise" would copy
        new.block(v)[op >= len(block)] = 0.0
        place = {number: place for place, number in enumerate(op.tolist())}
        for gone, heir in replica.heirs.items():
            while heir in replica.heirs:
                heir = replica.heirs[heir]
            more_s = block[gone] - np.median(block[gone], axis=0)
            is_pause = more_s > PAUSE_SIGMAS * robust.spread(block[gone], 0)
            new.block(v)[place[heir]] += np.where(is_pause, more_s, 0.0)
    return new


def _queue(ops: ReplicaOps) -> Ints:
    """[edge, 2] dependencies that put the gathers and reductions of each stage into one queue."""
    kinds = [int(kind) for kind in (K.PARAMS_ALL_GATHER, *REDUCTIONS)]
    edges = [np.empty((0, 2), dtype=np.int64)]
    for stage in range(int(ops.pp.max()) + 1):
        mine = np.flatnonzero((ops.pp == stage) & np.isin(ops.kind, kinds))
        mine = mine[np.argsort(ops.rank[mine], kind="stable")]
        edges.append(np.stack([mine[:-1], mine[1:]], axis=1))
    return np.concatenate(edges)


def _fill(new: Array, old: Array, op: Ints, replica: Replica) -> None:
    """Seconds [op, step, dp] of the new ops, in place."""
    np.take(old, op, axis=0, out=new, mode="clip")  # "raise" would copy
    for place in np.flatnonzero(op >= replica.n_recorded).tolist():
        added = replica.added_as(int(op[place]))
        seconds = sum((weight * old[one] for one, weight in added.terms), np.zeros(old.shape[1:]))
        if added.own:
            mean = seconds.mean(axis=0, keepdims=True)
            seconds = mean + np.sqrt(added.own) * np.roll(seconds - mean, added.nth, axis=0)
        np.maximum(seconds + added.plus_s, 0.0, out=new[place])


def needed_gathers(replica: Replica, stage: int) -> dict[int, Pass]:
    """Gather of a stage's recorded program -> the pass that first needs it.

    Raises:
        NotApplicableError: the trace does not show which pass needs a gather.
    """
    steps = replica.steps[stage]
    passes = needed_by(replica.ops, steps)
    for step in steps:
        if step >= 0 and replica.kind(step) == K.PARAMS_ALL_GATHER and step not in passes:
            raise NotApplicableError(
                f"params-all-gather {replica.ops.seq[step]} of stage {stage} is not waited for "
                "before any pass, so the pass that needs it is not known"
            )
    return passes


def without(replica: Replica, stage: int, gone: Sequence[int]) -> None:
    """Remove the ops ``gone``, and the waits for them, from a stage's program."""
    vanished = {*gone, *(~op for op in gone)}
    heir = None
    for op in reversed(replica.steps[stage]):
        if op in vanished:
            if op >= 0 and heir is not None:
                replica.heirs[op] = heir
        elif op >= 0:
            heir = op
    replica.steps[stage][:] = [step for step in replica.steps[stage] if step not in vanished]
