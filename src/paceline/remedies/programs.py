"""Recorded programs, changed: launches and waits moved, taken out or added, and the job rebuilt.

The graph of the new programs is made by the same builder as that of the recorded ones; an op that
stays keeps its duration in every step and replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paceline.errors import NotApplicableError
from paceline.graph import Durations, Measured, ReplicaOps, build_graph
from paceline.graph.graph import with_edges
from paceline.graph.program_steps import (
    REDUCTIONS,
    Pass,
    needed_by,
    pass_of,
    program_steps,
    unit_of,
)
from paceline.remedies.regraph import Regraphed
from paceline.trace.kinds import LOCAL_KINDS, OpKind

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
K = OpKind


@dataclass(frozen=True)
class Added:
    """An op that the recorded program does not have.

    Attributes:
        like: the old op whose kind, chunk, microbatch and group it has.
        part: its unit or bucket.
        terms: (old op, weight): its seconds are the weighted sum of theirs ...
        plus_s: ... and this.
        own: the number of pieces it is one of. Each piece varies on its own: it takes what another
            step has beyond the mean. 0: it varies as its terms do.
        nth: which of the pieces.
        kind: its kind; None: that of ``like``.
        family: the family in which it meets others; None: that of ``like``.
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
class Replica:
    """The programs of one replica, as lists that may be edited.

    Attributes:
        ops: what was recorded.
        typical_s: [op] mean seconds of the recorded ops.
        steps: [stage] what its program does, in order: the op that it launches, or ``~op`` where
            it waits for one. Ops from ``len(ops.kind)`` on are in ``added``.
        added: ops that are new.
    """

    ops: ReplicaOps
    typical_s: Array
    steps: list[list[int]]
    added: list[Added]

    @classmethod
    def of(cls, ops: ReplicaOps, seconds: Array) -> Replica:
        """The programs as recorded, with the seconds [op, step, dp] of their ops."""
        stages = range(int(ops.pp.max()) + 1)
        return cls(ops, seconds.mean(axis=(1, 2)), [program_steps(ops, s) for s in stages], [])

    @cached_property
    def n_recorded(self) -> int:
        """Ops that were recorded."""
        return len(self.ops.kind)

    def kind(self, op: int) -> OpKind:
        """The kind of an op."""
        own = None if op < self.n_recorded else self.added_as(op).kind
        return OpKind(int(self.ops.kind[self.like(op)])) if own is None else own

    def like(self, op: int) -> int:
        """The recorded op that an op is or is like."""
        return op if op < self.n_recorded else self.added_as(op).like

    def add(self, op: Added) -> int:
        """A new op; it still has to be launched somewhere."""
        self.added.append(op)
        return self.n_recorded + len(self.added) - 1

    def is_local(self, op: int) -> bool:
        """Whether an op is a compute."""
        return self.kind(op) in LOCAL_KINDS

    def pass_of(self, op: int) -> Pass:
        """The pass of a compute."""
        return pass_of(self.ops, self.like(op))

    def unit(self, op: int) -> tuple[int, int]:
        """(chunk, part) that a collective is for."""
        chunk, part = unit_of(self.ops, self.like(op))
        return (chunk, part) if op < self.n_recorded else (chunk, self.added_as(op).part)

    def added_as(self, op: int) -> Added:
        """What an op is that was not recorded."""
        return self.added[op - self.n_recorded]

    def finished(self) -> tuple[ReplicaOps, Ints]:
        """The ops of the edited programs, and [new op] the op that each one was."""
        rows: list[tuple[int, ...]] = []  # stage, kind, number, position, part, op
        awaited: dict[int, int] = {}
        for stage, steps in enumerate(self.steps):
            counts: dict[tuple[int, ...], int] = {}
            issued = 0
            for step in steps:
                if step < 0:
                    awaited[~step] = issued - 1
                    continue
                kind = int(self.kind(step))
                # Computes are numbered within their pass, of which some may be cut anew.
                of_pass = self.pass_of(step) if self.is_local(step) else None
                number = _count(counts, (kind,))
                part = self.unit(step)[1] if of_pass is None else _count(counts, of_pass)
                rows.append((stage, kind, number, issued, part, step))
                issued += 1
        table = np.array(sorted(rows), dtype=np.int64)
        op, old = table[:, 5], self.ops
        like = np.array([self.like(one) for one in op.tolist()], dtype=np.int64)
        new = ReplicaOps(
            kind=table[:, 1],
            pp=table[:, 0],
            seq=table[:, 2],
            chunk=old.chunk[like],
            microbatch=old.microbatch[like],
            rank=table[:, 3],
            part=table[:, 4],
            awaited=np.array([awaited.get(one, -1) for one in op.tolist()], dtype=np.int64),
            family=self._families(op, like),
        )
        return new, op

    def _families(self, ops: Ints, like: Ints) -> Ints | None:
        """[new op] the family in which it meets others."""
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


def _count(counts: dict[tuple[int, ...], int], key: tuple[int, ...]) -> int:
    """How many there were of this key before."""
    counts[key] = counts.get(key, -1) + 1
    return counts[key]


def changed_job(
    measured: Measured,
    edit: Callable[[Replica], None],
    delays: Durations | None = None,
    *,
    one_network: bool = False,
    families: Ints | None = None,
) -> Regraphed:
    """The job with edited programs.

    Args:
        measured: the job as traced, with programs.
        edit: changes the programs of one replica, in place.
        delays: launch delays of the trace's ops, to go along; None: none.
        one_network: gathers and reductions of a stage stand in one queue, as if each needed the
            whole network.
        families: [family, replica] groups of the changed job; None: those of the trace.

    Raises:
        GraphError: the programs block each other.
    """
    old = measured.durations
    replicas = [Replica.of(ops, old.block(v)) for v, ops in enumerate(measured.programs)]
    for replica in replicas:
        edit(replica)
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
    new = Durations.empty(graph, old.n_steps)
    new_delays = None if delays is None else Durations.empty(graph, old.n_steps)
    for v, (replica, (_, op)) in enumerate(zip(replicas, finished, strict=True)):
        _fill(new.block(v), old.block(v), op, replica)
        if delays is not None and new_delays is not None:
            recorded = op < replica.n_recorded
            new_delays.block(v)[recorded] = delays.block(v)[op[recorded]]
    return Regraphed(new, new_delays)


def _queue(ops: ReplicaOps) -> Ints:
    """[edge, 2] collectives of gathers and reductions of each stage, one behind the other."""
    kinds = [int(kind) for kind in (K.PARAMS_ALL_GATHER, *REDUCTIONS)]
    edges = [np.empty((0, 2), dtype=np.int64)]
    for stage in range(int(ops.pp.max()) + 1):
        mine = np.flatnonzero((ops.pp == stage) & np.isin(ops.kind, kinds))
        mine = mine[np.argsort(ops.rank[mine], kind="stable")]
        edges.append(np.stack([mine[:-1], mine[1:]], axis=1))
    return np.concatenate(edges)


def _fill(new: Array, old: Array, op: Ints, replica: Replica) -> None:
    """Seconds [op, step, dp] of the new ops, in place."""
    recorded = op < replica.n_recorded
    new[recorded] = old[op[recorded]]
    for place in np.flatnonzero(~recorded).tolist():
        added = replica.added_as(int(op[place]))
        seconds = sum((weight * old[one] for one, weight in added.terms), np.zeros(old.shape[1:]))
        if added.own:
            mean = seconds.mean(axis=0, keepdims=True)
            seconds = mean + np.sqrt(added.own) * np.roll(seconds - mean, added.nth, axis=0)
        np.maximum(seconds + added.plus_s, 0.0, out=new[place])


def needed_gathers(replica: Replica, stage: int) -> dict[int, Pass]:
    """Gather of a stage's recorded program -> the pass that first needs it.

    Raises:
        NotApplicableError: what needs a gather is not known.
    """
    steps = replica.steps[stage]
    passes = needed_by(replica.ops, steps)
    for step in steps:
        if step >= 0 and replica.kind(step) == K.PARAMS_ALL_GATHER and step not in passes:
            raise NotApplicableError(
                f"params-all-gather {replica.ops.seq[step]} of stage {stage} is not waited for "
                "before any pass, so what needs it is not known"
            )
    return passes


def without(replica: Replica, stage: int, gone: Sequence[int]) -> None:
    """Take ops and the waits for them out of a stage's program."""
    vanished = {*gone, *(~op for op in gone)}
    replica.steps[stage][:] = [step for step in replica.steps[stage] if step not in vanished]
