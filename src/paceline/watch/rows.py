"""Assembly of ranks' step times, which arrive at different times, into rows of steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Largest lag of a rank, in steps, before others continue without it.
_PATIENCE_STEPS = 50


class Rows:
    """The rows of a start of a job.

    Args:
        ranks: number of the job's ranks.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._open: dict[int, Array] = {}
        self._newest: dict[int, int] = {}
        self._closed = -1

    def add(self, rank: int, times: Iterable[tuple[int, float]]) -> None:
        """Add (step, seconds) of a rank; closed steps are left out."""
        for step, seconds in times:
            if step > self._closed and 0 <= rank < self.ranks:
                row = self._open.setdefault(step, np.full(self.ranks, np.nan))
                row[rank] = seconds
                self._newest[rank] = max(step, self._newest.get(rank, -1))

    def close(self) -> Iterator[tuple[int, Array]]:
        """(step, [rank] seconds) of steps that all ranks have reported or passed."""
        newest = max(self._newest.values(), default=-1)
        present = [n for n in self._newest.values() if newest - n <= _PATIENCE_STEPS]
        is_whole = len(present) == self.ranks
        until = min(present, default=-1) if is_whole else newest - _PATIENCE_STEPS
        for step in sorted(step for step in self._open if step <= until):
            self._closed = step
            yield step, self._open.pop(step)

    def newest(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Array]:
        """The newest reported step: [1] its number, [rank] numbers, and [1, rank] seconds.

        Seconds are 0 for ranks with a report, else nan.
        """
        step = max(self._newest.values(), default=0)
        told = np.array([self._newest.get(rank, -1) >= step for rank in range(self.ranks)])
        return np.array([step]), np.arange(self.ranks), np.where(told, 0.0, np.nan)[None]
