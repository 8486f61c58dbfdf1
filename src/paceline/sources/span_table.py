"""Spans of many ranks, stored compactly, and the step of each span."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError

Ints = npt.NDArray[np.int64]

_STEP_WIDTH, _OP_WIDTH = 4, 6
#: Columns of an operation that are equal if one span was sent twice.
_COMPARED = [0, 1, 3, 4, 5]


@dataclass(frozen=True, eq=False)
class SpanOps:
    """Operations of all ranks, by rank.

    Attributes:
        rank: [op] the rank.
        step: [op] the step of the rank in which it starts; -1 if there is none.
        kind: [op] its kind, as added.
        microbatch: [op] its number; -1 if it is not known.
        start_ns, end_ns: [op] times since 1970.
    """

    rank: Ints
    step: Ints
    kind: Ints
    microbatch: Ints
    start_ns: Ints
    end_ns: Ints

    def __len__(self) -> int:
        return len(self.rank)

    def rows(self, which: Ints) -> Iterator[tuple[int, int, int, int, float, float]]:
        """(rank, step, kind, microbatch, start in s, end in s) of some operations, by index."""
        columns = (self.rank, self.step, self.kind, self.microbatch)
        whole = (column[which].tolist() for column in columns)
        times = ((column[which] * 1e-9).tolist() for column in (self.start_ns, self.end_ns))
        return zip(*whole, *times, strict=True)


class SpanTable:
    """Train steps and operations of all ranks, in any order; 48 bytes an operation.

    Attributes:
        repeated: number of duplicated operations; known once :meth:`ops` has run.
    """

    def __init__(self) -> None:
        self.repeated = 0
        # Rows of (rank, number, start, end) and (rank, kind, microbatch, start, end, id).
        self._steps, self._ops = array("q"), array("q")

    def __len__(self) -> int:
        return len(self._steps) // _STEP_WIDTH + len(self._ops) // _OP_WIDTH

    def add_step(self, rank: int, number: int, start_ns: int, end_ns: int) -> None:
        """Add a whole step of a rank."""
        self._steps.extend((rank, number, start_ns, end_ns))

    def add_op(
        self,
        rank: int,
        kind: int,
        microbatch: int | None,
        start_ns: int,
        end_ns: int,
        ids: tuple[str, str],
    ) -> None:
        """Add an operation; ``ids`` are the ids of its trace and of its span."""
        number = -1 if microbatch is None else microbatch
        self._ops.extend((rank, kind, number, start_ns, end_ns, hash((rank, *ids))))

    def steps(self) -> Ints:
        """[4, step of a rank] rank, number, start and end in ns; by rank, then by start."""
        rows = np.unique(np.array(self._steps, np.int64).reshape(-1, _STEP_WIDTH), axis=0).T
        ordered: Ints = rows[:, np.lexsort((rows[2], rows[0]))]
        return ordered

    def ops(self, where: str) -> SpanOps:
        """The operations, by rank. Call it once: the table has none afterwards.

        Raises:
            TraceError: a rank has no step, has one twice, or its steps overlap.
        """
        rank, kind, microbatch, start, end, _ = self._distinct()
        return SpanOps(rank, self._step_of(rank, start, where), kind, microbatch, start, end)

    def _distinct(self) -> Ints:
        """[column, op] operations by rank, without duplicates."""
        rows = np.frombuffer(self._ops, np.int64).reshape(-1, _OP_WIDTH)
        self._ops = array("q")  # so that sorting frees the unsorted rows
        rank, kind, _, start, end, key = rows.T
        rows = rows[np.lexsort((key, kind, end, start, rank))]
        repeated = np.zeros(len(rows), dtype=bool)
        repeated[1:] = (rows[1:, _COMPARED] == rows[:-1, _COMPARED]).all(axis=1)
        self.repeated = int(repeated.sum())
        return rows.T if not self.repeated else rows[~repeated].T

    def _step_of(self, rank: Ints, start: Ints, where: str) -> Ints:
        """[op] the step in which it starts, -1 = none; ``rank`` ascends."""
        steps = self.steps()
        step = np.full(len(rank), -1, dtype=np.int64)
        for number in np.union1d(rank, steps[0]).tolist():
            low, high = np.searchsorted(rank, [number, number + 1])
            _, name, begin, until = steps[
                :, slice(*np.searchsorted(steps[0], [number, number + 1]))
            ]
            if not len(begin):
                raise TraceError(
                    f"{where}: rank {number} has {high - low} operations but no whole "
                    "megatron.train.iteration; is its part cut off?"
                )
            _check_steps(number, name, begin, until, where)
            at = np.searchsorted(begin, start[low:high], side="right") - 1
            inside = (at >= 0) & (start[low:high] <= until[at])
            step[low:high] = np.where(inside, name[at], -1)
        return step


def _check_steps(rank: int, number: Ints, begin: Ints, until: Ints, where: str) -> None:
    numbers, times = np.unique(number, return_counts=True)
    if (times > 1).any():
        raise TraceError(
            f"{where}: rank {rank} has step {numbers[np.argmax(times > 1)]} more than once; was "
            "the job started again? Give each run its own files"
        )
    crossed = np.flatnonzero(begin[1:] < until[:-1])
    if len(crossed):
        at = crossed[0]
        raise TraceError(
            f"{where}: steps {number[at]} and {number[at + 1]} of rank {rank} overlap in time; "
            "are there two processes with this rank, or was its clock set?"
        )
