"""When a job's step times come, and whether they are overdue: a step that does not end."""

from __future__ import annotations

import statistics

from paceline.detect.hang import is_overdue

#: Times between batches whose median is usual, and how many are needed to say.
_GAPS, _LEAST_GAPS = 10, 3


class Pulse:
    """Listens to one job."""

    def __init__(self) -> None:
        self._at, self._told = 0.0, False
        self._gaps_s: list[float] = []

    def beat(self, at: float) -> None:
        """A batch came, seconds since 1970."""
        if 0 < self._at < at:
            self._gaps_s = [*self._gaps_s[1 - _GAPS :], at - self._at]
        self._at, self._told = max(at, self._at), False

    def listen(self, now: float) -> None:
        """The service began to listen: nobody could be heard before."""
        self._at = max(now, self._at)

    def overdue_s(self, now: float, step_s: float) -> float | None:
        """Seconds since the last batch, once and only where they are too many; else None.

        Args:
            now: seconds since 1970.
            step_s: what a step takes; nan where it is not known.
        """
        if self._told or len(self._gaps_s) < _LEAST_GAPS:
            return None
        waited_s = now - self._at
        usual_s = statistics.median(self._gaps_s)
        return waited_s if is_overdue(waited_s, usual_s, step_s) else None

    def tell(self) -> None:
        """An overdue job was reported; it is not told again until a batch comes."""
        self._told = True
