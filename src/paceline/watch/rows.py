"""Step times of ranks whose files grow at different moments -> rows of steps, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Steps that a rank may be behind before the others go on without it.
_PATIENCE_STEPS = 50


class Rows:
    """One start of a job.

    Args:
        ranks: of the job.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._open: dict[int, Array] = {}
        self._newest: dict[int, int] = {}
        self._closed = -1

    def add(self, rank: int, times: Iterable[tuple[int, float]]) -> None:
        """Take (step, seconds) of a rank; steps that are closed are left out."""
        for step, seconds in times:
            if step > self._closed and 0 <= rank < self.ranks:
                row = self._open.setdefault(step, np.full(self.ranks, np.nan))
                row[rank] = seconds
                self._newest[rank] = max(step, self._newest.get(rank, -1))

    def close(self) -> Iterator[tuple[int, Array]]:
        """(step, [rank] seconds) of the steps that all ranks have told, or gone past."""
        newest = max(self._newest.values(), default=-1)
        present = [n for n in self._newest.values() if newest - n <= _PATIENCE_STEPS]
        is_whole = len(present) == self.ranks
        until = min(present, default=-1) if is_whole else newest - _PATIENCE_STEPS
        for step in sorted(step for step in self._open if step <= until):
            self._closed = step
            yield step, self._open.pop(step)

    def newest(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Array]:
        """The newest step that a rank has told, [rank] numbers, and [step, rank] seconds of it.

        Seconds are nan for ranks that have not told it; of a step that is closed they are 0.
        """
        step = max(self._newest.values(), default=0)
        told = np.array([self._newest.get(rank, -1) >= step for rank in range(self.ranks)])
        return np.array([step]), np.arange(self.ranks), np.where(told, 0.0, np.nan)[None]
