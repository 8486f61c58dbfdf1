"""The result of an importer, and the way from its ops to a trace.

An importer is a module with ``matches(path) -> bool`` (by content) and ``read(paths, job, steps) ->
Imported``. ``read`` adds recognised ops to an :class:`OpTable` and calls its method ``finish``. It
refuses ranks that disagree: the analysis of a trace with missing ops would be silently wrong.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.occurrence import count_in_runs
from paceline.sources.order import number_by_order
from paceline.sources.peers import ADVICE, check_peers
from paceline.trace import Columns, Job, OpKind, Trace, arrange

#: No whole number in a trace is larger; a larger number means a corrupt file.
MAX_NUMBER = 2**31 - 1

#: No step takes longer than a day.
MAX_STEP_S = 86_400.0


@dataclass(frozen=True)
class Imported:
    """A trace from another tool's files.

    Attributes:
        trace: the trace.
        matched: number of events that became operations.
        unplaced: reason -> number of events that look like operations but could not be placed.
            Other events (host functions, kernels inside a compute) are not counted.
        confidence: 0 to 1: the share of matched events times the certainty of their places. Places
            are step, microbatch and worker; the certainty is 1 if the file has them.
        notes: notes on inferred facts, and on the limits of the format.
    """

    trace: Trace
    matched: int
    unplaced: Mapping[str, int]
    confidence: float
    notes: tuple[str, ...]

    def to_mapping(self) -> dict[str, Any]:
        """The report in the form of JSON, with the trace's size in place of the trace."""
        return {
            "matched": self.matched,
            "unplaced": dict(self.unplaced),
            "confidence": round(self.confidence, 4),
            "notes": [*self.notes, *self.trace.warnings],
            "steps": self.trace.steps.tolist(),
            "job": self.trace.job.to_mapping(),
        }


class OpTable:
    """Operations, added in any order; about 60 bytes each."""

    def __init__(self) -> None:
        self._integers = {name: array("i") for name in _WHOLE}
        self._start_s, self._end_s = array("d"), array("d")

    def __len__(self) -> int:
        return len(self._start_s)

    def degrees(self) -> tuple[int, int]:
        """Data-parallel ranks and stages, by the highest numbers among the ops; at least 1."""
        dp, pp = (max(self._integers[name], default=0) + 1 for name in ("dp", "pp"))
        return dp, pp

    def add(
        self,
        *,
        rank: int,
        dp: int,
        pp: int,
        step: int,
        kind: OpKind,
        start_s: float,
        end_s: float,
        chunk: int = -1,
        microbatch: int = -1,
        part: int = -1,
        issued: int = -1,
        awaited: int = -1,
        group: int = -1,
    ) -> None:
        """Add an op.

        Args:
            rank: global rank that recorded it.
            dp: data-parallel rank.
            pp: pipeline stage.
            step: step number.
            kind: its kind.
            start_s: start (of communication: launch), seconds on a clock that all ranks share.
            end_s: end, seconds.
            chunk: model chunk on the stage; computes and DP collectives only.
            microbatch: computes only.
            part: place of a compute in its pass; bucket or unit of a collective.
            issued: place in its worker's program; all ops of a table have one, or none.
            awaited: place in the program behind which the worker waited for the op.
            group: a number shared by the ranks of its collective; -1 if they are the whole stage.

        Raises:
            TraceError: a number is negative (-1 means none where that is allowed) or too large.
        """
        values = (rank, dp, pp, step, kind, chunk, microbatch, part, issued, awaited, group)
        _check_numbers(dict(zip(_WHOLE, values, strict=True)))
        for name, value in zip(_WHOLE, values, strict=True):
            self._integers[name].append(value)
        self._start_s.append(start_s)
        self._end_s.append(end_s)

    def add_all(
        self,
        *,
        rank: int,
        dp: int,
        pp: int,
        step: npt.NDArray[np.int64],
        kind: OpKind,
        start_s: npt.NDArray[np.float64],
        end_s: npt.NDArray[np.float64],
    ) -> None:
        """Add ops of one kind of one rank; the arguments are those of :meth:`add`.

        Raises:
            TraceError: a number is negative or too large.
        """
        numbers = {"rank": rank, "dp": dp, "pp": pp, "kind": kind}
        for extreme in (step.min(), step.max()) if len(step) else ():
            _check_numbers({**numbers, "step": int(extreme)})
        for name, values in self._integers.items():
            if name == "step":
                values.frombytes(step.astype(np.int32).tobytes())
            else:
                values.extend(array("i", [numbers.get(name, -1)]) * len(step))
        self._start_s.frombytes(start_s.tobytes())
        self._end_s.frombytes(end_s.tobytes())

    def whole(self, name: str) -> npt.NDArray[np.int32]:
        """[op] one of the whole numbers, in the table's own memory; add no op while it is held."""
        return np.frombuffer(self._integers[name], np.int32)

    def times(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """[op] start and end in s, in the table's own memory; add no op while they are held."""
        return np.frombuffer(self._start_s), np.frombuffer(self._end_s)

    def finish(
        self,
        job: Job | None,
        where: str,
        *,
        steps: frozenset[int] | None = None,
        unplaced: Mapping[str, int] | None = None,
        certainty: float = 1.0,
        notes: tuple[str, ...] = (),
        by_order: bool = False,
    ) -> Imported:
        """The ops as a trace, checked.

        Args:
            job: degrees of parallelism; None takes dp, pp and vpp from the ops.
            where: the name of the source, for messages.
            steps: step numbers to keep; None keeps all.
            unplaced: reason -> number of events that could not be placed.
            certainty: 0 to 1: certainty of step, microbatch and place; 1 = the files have them.
            notes: notes on inferred facts, and on the limits of the format.
            by_order: give computes without a microbatch one by order of start.

        Raises:
            TraceError: there are no ops, a rank is missing, clocks differ, or an op is there twice.
                Or counts do not match between peers, or ``arrange`` refuses the ops.
        """
        unplaced = {reason: n for reason, n in (unplaced or {}).items() if n}
        matched = len(self)
        if not matched:
            reasons = "; ".join(f"{n} {reason}" for reason, n in unplaced.items())
            raise TraceError(
                f"{where} has no operation that could be placed{f' ({reasons})' if reasons else ''}"
            )
        columns = self._columns(steps, where)
        _check_places(columns, where)
        _check_clocks(columns, where)
        if by_order:
            pp_size = job.pp_size if job else int(columns.pp.max()) + 1
            columns = number_by_order(columns, pp_size, job.vpp_size if job else 1, where)
        _check_microbatches(columns, where)
        trace = arrange(columns, job, where)
        if trace.left_out:
            number, reason = next(iter(trace.left_out.items()))
            raise TraceError(f"{where}, step {number}: {reason}; {ADVICE}")
        check_peers(trace, where)
        confidence = certainty * (matched / (matched + sum(unplaced.values())))
        return Imported(trace, matched, unplaced, confidence, notes)

    def _columns(self, steps: frozenset[int] | None, where: str) -> Columns:
        """The ops as columns, numbered by start within (rank, step, kind)."""
        integers = {
            name: np.frombuffer(values, np.int32) for name, values in self._integers.items()
        }
        start, end = np.frombuffer(self._start_s), np.frombuffer(self._end_s)
        if steps is not None:
            in_steps = np.isin(integers["step"], [step for step in steps if step <= MAX_NUMBER])
            if not in_steps.any():
                have = np.unique(integers["step"])
                raise TraceError(
                    f"{where} has none of the steps asked for; it has {have[0]} to {have[-1]}"
                )
            integers = {name: values[in_steps] for name, values in integers.items()}
            start, end = start[in_steps], end[in_steps]
        if not (np.isfinite(start) & np.isfinite(end)).all():
            raise TraceError(f"{where} has times that are no finite number")
        order = np.lexsort((end, start, integers["kind"], integers["rank"], integers["step"]))
        cells = np.stack([integers[name][order] for name in ("step", "rank", "kind", "dp", "pp")])
        same_cell = (np.diff(cells) == 0).all(axis=0)
        _check_twice(integers, start, end, order, same_cell, where)
        seq = np.empty(len(order), dtype=np.int32)
        seq[order] = count_in_runs(list(cells))
        kind = integers.pop("kind").astype(np.int8)
        if (integers["issued"] < 0).all():
            for name in _PROGRAM:
                del integers[name]
        return Columns(kind=kind, start=start, duration=end - start, seq=seq, **integers)


#: Columns that every op has; in the others -1 means none.
_ALWAYS = ("rank", "dp", "pp", "step", "kind")
_PROGRAM = ("part", "issued", "awaited", "group")
_WHOLE = (*_ALWAYS, "chunk", "microbatch", *_PROGRAM)


def _check_numbers(numbers: Mapping[str, int]) -> None:
    for name, value in numbers.items():
        if not (0 if name in _ALWAYS else -1) <= value <= MAX_NUMBER:
            kind, rank = OpKind(numbers["kind"]).label, numbers["rank"]
            raise TraceError(f"{kind} of rank {rank}: {name} {value} is out of range")


def _check_twice(
    integers: Mapping[str, npt.NDArray[np.int32]],
    start: npt.NDArray[np.float64],
    end: npt.NDArray[np.float64],
    order: npt.NDArray[np.int64],
    same_cell: npt.NDArray[np.bool_],
    where: str,
) -> None:
    """Refuse duplicated ops; ops that take no time (no-ops) may coincide."""
    start, end = start[order], end[order]
    twice = same_cell & (np.diff(start) == 0) & (np.diff(end) == 0) & (end > start)[1:]
    if twice.any():
        row = int(order[int(np.argmax(twice))])
        raise TraceError(
            f"{where} has {int(twice.sum())} ops twice, the first is a "
            f"{OpKind(int(integers['kind'][row])).label} of rank {integers['rank'][row]} in step "
            f"{integers['step'][row]}; was a file given twice, or appended to itself?"
        )


def _check_places(columns: Columns, where: str) -> None:
    """Check that each rank has one place in the job."""
    order = np.argsort(columns.rank, kind="stable")
    rank, dp, pp = (values[order] for values in (columns.rank, columns.dp, columns.pp))
    contradicts = (np.diff(rank) == 0) & ((np.diff(dp) != 0) | (np.diff(pp) != 0))
    for row in np.flatnonzero(contradicts)[:1]:
        raise TraceError(
            f"{where}: rank {rank[row]} is dp {dp[row]}, stage {pp[row]} in one place and dp "
            f"{dp[row + 1]}, stage {pp[row + 1]} in another; give files of one run"
        )


def _check_clocks(columns: Columns, where: str) -> None:
    """Check that all ranks overlap in each step: they meet in collectives, unless clocks differ."""
    order = np.lexsort((columns.rank, columns.step))
    step, rank = columns.step[order], columns.rank[order]
    first = np.flatnonzero(np.append(True, (np.diff(step) != 0) | (np.diff(rank) != 0)))
    begin = np.minimum.reduceat(columns.start[order], first)
    until = np.maximum.reduceat((columns.start + columns.duration)[order], first)
    step, rank = step[first], rank[first]
    of_step = np.flatnonzero(np.append(True, np.diff(step) != 0))
    disjoint = np.maximum.reduceat(begin, of_step) > np.minimum.reduceat(until, of_step)
    if not disjoint.any():
        _check_lengths(step, rank, begin, until, where)
        return
    number = step[of_step[int(np.argmax(disjoint))]]
    rows = np.flatnonzero(step == number)
    latest, earliest = rows[int(np.argmax(begin[rows]))], rows[int(np.argmin(until[rows]))]
    raise TraceError(
        f"{where}: in step {number} rank {rank[latest]} works from {begin[latest]:.6f} to "
        f"{until[latest]:.6f} s, rank {rank[earliest]} from {begin[earliest]:.6f} to "
        f"{until[earliest]:.6f} s; they never meet, so their clocks or step numbers differ: "
        "give files of one run, with clocks that are synchronised"
    )


def _check_lengths(
    step: npt.NDArray[np.int32],
    rank: npt.NDArray[np.int32],
    begin: npt.NDArray[np.float64],
    until: npt.NDArray[np.float64],
    where: str,
) -> None:
    """Refuse a rank's step of several days: one of its ops has a wrong time."""
    for row in np.flatnonzero(until - begin > MAX_STEP_S)[:1]:
        raise TraceError(
            f"{where}: rank {rank[row]} works on step {step[row]} from {begin[row]:.6f} to "
            f"{until[row]:.6f} s, more than a day, so one of its times is wrong; copy the file "
            "again, or leave the step out with --steps"
        )


def _check_microbatches(columns: Columns, where: str) -> None:
    """Check that a microbatch passes each chunk of the model once each way in a step."""
    rows = np.flatnonzero(columns.microbatch >= 0)
    names = ("microbatch", "chunk", "kind", "rank", "step")
    cells = np.stack([getattr(columns, name)[rows] for name in names])
    if columns.part is not None:
        cells = np.concatenate([columns.part[None, rows], cells])
    cells = cells[:, np.lexsort(cells)]
    repeated = (np.diff(cells) == 0).all(axis=0)
    for microbatch, _, kind, rank, step in cells[-5:, 1:].T[repeated][:1]:
        raise TraceError(
            f"{where}: rank {rank} ran the {OpKind(int(kind)).label} of microbatch {microbatch} "
            f"more than once in step {step}; are the numbers of its microbatches right?"
        )
