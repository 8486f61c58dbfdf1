"""The trace: one row per operation of the job, validated and in canonical order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.trace.job import Job
from paceline.trace.kinds import OpKind

N_KINDS = len(OpKind)

#: From this length on, numbers in a row are a range that a user wrote. Two may be named singly.
MIN_RANGE = 3


@dataclass(frozen=True, eq=False)
class Program:
    """The place of each op in its worker's program (of the host or of the compute stream).

    The program launches computes and communication, and waits for communication. A compute ends at
    a launch or a wait of its stream, so a pass consists of parts.

    Attributes:
        part: [row] number of a compute within its pass; unit or bucket of communication.
        issued: [row] position of the launch, unique per worker and step.
        awaited: [row] position of the last op launched before the program waited for this one, -1 =
            it never waited. All ops launched later run after this op's end.
        group: [row] for collectives, a number shared by their data-parallel ranks; -1 = all ranks
            of the stage. None: every collective has all ranks.
    """

    part: npt.NDArray[np.int32]
    issued: npt.NDArray[np.int32]
    awaited: npt.NDArray[np.int32]
    group: npt.NDArray[np.int32] | None = None

    def take(self, rows: npt.NDArray[Any] | slice) -> Program:
        """The program of some rows (indices, a mask, or a slice that copies nothing)."""
        group = None if self.group is None else self.group[rows]
        return Program(self.part[rows], self.issued[rows], self.awaited[rows], group)


@dataclass(frozen=True, eq=False)
class Periods:
    """Times from step to step of a run's steps, with operations or without.

    Attributes:
        steps: [step] step numbers, ascending.
        seconds: [step] seconds from the end of the step before to the step's own end.
    """

    steps: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]

    def within(self, steps: npt.NDArray[np.int64]) -> Periods:
        """Those of the steps behind the first of some ascending numbers, up to the last one."""
        inside = (self.steps > steps[0]) & (self.steps <= steps[-1])
        return Periods(self.steps[inside], self.seconds[inside])


@dataclass(frozen=True)
class Trace:
    """Operations of some steps of one job, sorted by (step, replica, pp, kind, start).

    ``counts`` determines the worker of each row. So five of the nine columns are derived on demand
    (``step``, ``dp``, ``pp``, ``kind``, ``seq``). A row takes 22 bytes. The function
    :func:`paceline.trace.arrange` makes a trace and checks everything once; later code trusts it.

    Attributes:
        job: degrees of parallelism.
        steps: [step] step numbers, ascending.
        counts: [step, replica, pp, kind] number of ops; replicas are data-parallel ranks, or pairs
            of data-parallel rank and peer (:attr:`Job.peers`).
        chunk: [row] model chunk on the stage (virtual stage), -1 = not applicable.
        microbatch: [row] microbatch (compute only), -1 = not applicable.
        start: [row] seconds since the step's first start.
        end: [row] seconds since the step's first start.
        step_start_s: [step] absolute start of the step in seconds, NaN = unknown.
        previous_end_s: [step, replica, pp] absolute end of each worker's step before, as recorded
            beside the operations, NaN = unknown. None: unknown for all steps.
        data_wait_s: [step, replica, pp] seconds in which each worker waited for its data loader
            since the step before, NaN = unknown. None: unknown for all steps.
        rank: [replica, pp] global rank recorded for the worker, -1 = unknown.
        warnings: warnings of the reader.
        left_out: step number -> reason why the trace lacks it.
        program: the place of each op in its worker's program. None: not recorded, so the order of
            ops follows the rules of pipelines (what-if paper, 3.2).
        late: [row] whether the end is an upper bound: the op ended before any wait for it. None: no
            end is a bound.
        truth: the injected causes of a synthesised trace; None for a real one.
        places: rank -> (host, GPU) for ranks with a known place; "" is an unknown GPU.
        periods: times from step to step of the steps with operations and of those between them, as
            recorded beside the operations. None: unknown.
    """

    job: Job
    steps: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int32]
    chunk: npt.NDArray[np.int16]
    microbatch: npt.NDArray[np.int32]
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    step_start_s: npt.NDArray[np.float64]
    rank: npt.NDArray[np.int64]
    warnings: tuple[str, ...] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)
    program: Program | None = None
    late: npt.NDArray[np.bool_] | None = None
    truth: Mapping[str, Any] | None = None
    previous_end_s: npt.NDArray[np.float64] | None = None
    data_wait_s: npt.NDArray[np.float64] | None = None
    places: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    periods: Periods | None = None

    def __len__(self) -> int:
        return len(self.start)

    @property
    def n_steps(self) -> int:
        """Number of steps in the trace."""
        return len(self.steps)

    def _per_row(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.repeat(np.broadcast_to(values, self.counts.shape).ravel(), self.counts.ravel())

    @property
    def step(self) -> npt.NDArray[np.int64]:
        """[row] step number."""
        return self._per_row(self.steps[:, None, None, None])

    @property
    def replica(self) -> npt.NDArray[np.int32]:
        """[row] replica: dp * peers + peer; the data-parallel rank if peers are not apart."""
        return self._per_row(np.arange(self.job.replicas, dtype=np.int32)[:, None, None])

    @property
    def dp(self) -> npt.NDArray[np.int32]:
        """[row] data-parallel rank."""
        return self.replica // np.int32(self.job.peers)

    @property
    def pp(self) -> npt.NDArray[np.int32]:
        """[row] pipeline stage."""
        return self._per_row(np.arange(self.job.pp_size, dtype=np.int32)[:, None])

    @property
    def kind(self) -> npt.NDArray[np.int8]:
        """[row] :class:`OpKind`."""
        return self._per_row(np.arange(N_KINDS, dtype=np.int8))

    @property
    def seq(self) -> npt.NDArray[np.int32]:
        """[row] number of the op within its kind, worker and step, by start."""
        counts = self.counts.ravel()
        first = np.cumsum(counts, dtype=np.int64) - counts
        return (np.arange(len(self), dtype=np.int64) - np.repeat(first, counts)).astype(np.int32)

    @property
    def gmc(self) -> npt.NDArray[np.int32]:
        """[row] the chunk's place in the model: chunk * pp_size + pp; -1 without microbatch."""
        place = self.chunk.astype(np.int32) * np.int32(self.job.pp_size) + self.pp
        return np.where(self.microbatch >= 0, place, -1).astype(np.int32)

    def lane_rows(self) -> npt.NDArray[np.int64]:
        """[step, replica] the first row of each lane, whose rows are contiguous."""
        per_lane = self.counts.sum(axis=(2, 3), dtype=np.int64)
        ends = np.cumsum(per_lane.ravel()).reshape(per_lane.shape)
        first: npt.NDArray[np.int64] = ends - per_lane
        return first

    def time_rows(self) -> npt.NDArray[np.int64]:
        """[step, dp] the first row of each lane in ``start``, ``end`` and ``late``."""
        return self.lane_rows()

    def release(self) -> None:
        """Free memory that can be read again; no effect if all data is in memory."""

    def traced_step_s(self) -> npt.NDArray[np.float64]:
        """[step] last end minus first start, seconds."""
        first = self.lane_rows()[:, 0]
        return np.maximum.reduceat(self.end, first) - np.minimum.reduceat(self.start, first)

    def step_range(self, first: int, last: int) -> Trace:
        """The steps at the positions from ``first`` to ``last`` - 1; copies no row."""
        ends = np.append(0, np.cumsum(self.counts.sum(axis=(1, 2, 3), dtype=np.int64)))
        rows = slice(int(ends[first]), int(ends[last]))
        return replace(
            self,
            steps=self.steps[first:last],
            counts=self.counts[first:last],
            chunk=self.chunk[rows],
            microbatch=self.microbatch[rows],
            start=self.start[rows],
            end=self.end[rows],
            step_start_s=self.step_start_s[first:last],
            previous_end_s=_part(self.previous_end_s, slice(first, last)),
            data_wait_s=_part(self.data_wait_s, slice(first, last)),
            program=None if self.program is None else self.program.take(rows),
            late=None if self.late is None else self.late[rows],
        )

    def select_steps(self, wanted: Iterable[int]) -> Trace:
        """The trace with only the steps in ``wanted``.

        Raises:
            TraceError: none of the steps is in the trace.
        """
        numbers = set(wanted)
        keep = np.array([step in numbers for step in self.steps.tolist()], dtype=bool)
        if not keep.any():
            have = f"{self.steps[0]} to {self.steps[-1]}" if len(self.steps) else "none"
            raise TraceError(f"none of the {len(numbers)} steps asked for is in the trace ({have})")
        rows = np.repeat(keep, self.counts.sum(axis=(1, 2, 3)))
        selection = replace(
            self,
            steps=self.steps[keep],
            counts=self.counts[keep],
            chunk=self.chunk[rows],
            microbatch=self.microbatch[rows],
            start=self.start[rows],
            end=self.end[rows],
            step_start_s=self.step_start_s[keep],
            previous_end_s=_part(self.previous_end_s, keep),
            data_wait_s=_part(self.data_wait_s, keep),
            program=None if self.program is None else self.program.take(rows),
            late=None if self.late is None else self.late[rows],
        )
        return selection.for_request(numbers)

    def for_request(self, wanted: Collection[int]) -> Self:
        """The trace of the steps asked for, with notes on these steps and no others.

        A range asks for the steps within it. So its numbers are missed only if it has no step.

        Args:
            wanted: the steps asked for.
        """
        left_out = {step: reason for step, reason in self.left_out.items() if step in wanted}
        present = {*self.steps.tolist(), *left_out}
        absent = [
            step
            for run in _runs(wanted)
            if len(run) < MIN_RANGE or present.isdisjoint(run)
            for step in run
            if step not in present
        ]
        warnings = self.warnings
        if absent:
            shown = ", ".join(map(str, absent[:5])) + (", ..." if len(absent) > 5 else "")
            warnings += (f"{len(absent)} of the steps asked for are not in the trace: {shown}",)
        return replace(self, warnings=warnings, left_out=left_out)


def _part(
    values: npt.NDArray[np.float64] | None, which: slice | npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64] | None:
    return None if values is None else values[which]


def _runs(numbers: Collection[int]) -> Iterator[range]:
    """The numbers as ranges, ascending."""
    ordered = sorted(numbers)
    first = 0
    for i, number in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != number + 1:
            yield range(ordered[first], number + 1)
            first = i + 1


def absolute_starts(first_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[step] first starts as recorded; NaN if starts count from their step's first start.

    Absolute starts ascend over steps, and at most one of them is about 0.
    """
    near_zero = np.count_nonzero(np.abs(first_s) < 1e-3)
    relative = near_zero > (len(first_s) > 1) or bool((np.diff(first_s) <= 0).any())
    return np.full(len(first_s), np.nan) if relative else first_s
