"""Logs of collective calls: rank, operation and time of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError


@dataclass(frozen=True, eq=False)
class CallLog:
    """Collective calls of one or more ranks, in the order of each rank's calls.

    Rows of several ranks may be interleaved; :meth:`of_ranks` separates them.

    Attributes:
        rank: [call] the rank that called, from 0.
        time_s: [call] time of the call, in seconds on any clock; never decreasing within a rank.
        op: [call] index into ``ops``.
        size: [call] bytes, at least 0 (or elements, if all calls count these).
        communicator: [call] index into ``communicators``.
        ops: names of the operations.
        communicators: names of the communicators; they need not agree between ranks.
        duration_s: [call] seconds of the call; None if the log has none.
        step: [call] number of the step that begins with this call, -1 for other calls. It ascends
            within a rank and is the same on all ranks of the call's communicator. None if the log
            has no steps. An incomplete step may lack all its other calls.
        is_whole: [call] whether that step is complete; None if ``step`` is None.

    Raises:
        TraceError: columns differ in length, there are no calls, or values are out of range.
    """

    rank: npt.NDArray[np.int64]
    time_s: npt.NDArray[np.float64]
    op: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    communicator: npt.NDArray[np.int64]
    ops: tuple[str, ...]
    communicators: tuple[str, ...]
    duration_s: npt.NDArray[np.float64] | None = None
    step: npt.NDArray[np.int64] | None = None
    is_whole: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in (*_COLUMNS, *_OPTIONAL)}
        lengths = {name: len(column) for name, column in given.items() if column is not None}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise TraceError(f"the columns of a call log differ in length: {told}")
        if not len(self.rank):
            raise TraceError("the call log has no calls")
        self._refuse(self.rank < 0, "rank", self.rank, "ranks count from 0")
        self._refuse(~np.isfinite(self.time_s), "time", self.time_s, "give seconds")
        self._refuse(self.size < 0, "size", self.size, "give bytes, from 0")
        for name, values, known in (
            ("op", self.op, len(self.ops)),
            ("communicator", self.communicator, len(self.communicators)),
        ):
            wrong = (values < 0) | (values >= known)
            self._refuse(wrong, name, values, f"there are {known} names")
        if self.duration_s is not None:
            wrong = ~(np.isfinite(self.duration_s) & (self.duration_s >= 0))
            self._refuse(wrong, "duration", self.duration_s, "give seconds, from 0")
        order = self.order
        back = (np.diff(self.rank[order]) == 0) & (np.diff(self.time_s[order]) < 0)
        if back.any():
            at = int(np.argmax(back))
            before, row = order[at], order[at + 1]
            raise TraceError(
                f"call {row} (rank {self.rank[row]}) is at {self.time_s[row]:.6f} s, before the "
                f"rank's call {before} at {self.time_s[before]:.6f} s; sort the calls by time"
            )

    def _refuse(
        self, wrong: npt.NDArray[np.bool_], name: str, values: npt.NDArray[np.generic], do: str
    ) -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            raise TraceError(f"call {row} has the {name} {values[row]}; {do}")

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def order(self) -> npt.NDArray[np.int64]:
        """[call] rows sorted by rank; each rank's rows keep the order of the log."""
        order: npt.NDArray[np.int64] = np.argsort(self.rank, kind="stable")
        return order

    def of_ranks(self) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """The pairs (rank, its rows in the order of its calls), ranks ascending."""
        order = self.order
        ranks, first = np.unique(self.rank[order], return_index=True)
        return [
            (int(rank), rows) for rank, rows in zip(ranks, np.split(order, first[1:]), strict=True)
        ]

    def codes(self) -> npt.NDArray[np.int64]:
        """[call] a number for its (op, size, communicator), equal for equal calls."""
        _, size = np.unique(self.size, return_inverse=True)
        pair = self.op * len(self.communicators) + self.communicator
        _, codes = np.unique(pair * (int(size.max()) + 1) + size, return_inverse=True)
        named: npt.NDArray[np.int64] = codes.astype(np.int64)
        return named


_COLUMNS = ("rank", "time_s", "op", "size", "communicator")
_OPTIONAL = ("duration_s", "step", "is_whole")
