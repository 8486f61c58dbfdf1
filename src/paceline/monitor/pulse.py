"""Arrival times of a job's step times, to find an overdue step that does not end."""

from __future__ import annotations

import statistics

from paceline.detect.hang import is_overdue

#: Number of intervals between batches for the usual interval (their median), and least number.
_GAPS, _LEAST_GAPS = 10, 3


class Pulse:
    """Tracks the batches of one job."""

    def __init__(self) -> None:
        self._at, self._told = 0.0, False
        self._gaps_s: list[float] = []

    def beat(self, at: float) -> None:
        """A batch arrived, at seconds since 1970."""
        if 0 < self._at < at:
            self._gaps_s = [*self._gaps_s[1 - _GAPS :], at - self._at]
        self._at, self._told = max(at, self._at), False

    def listen(self, now: float) -> None:
        """The service started; earlier batches are unknown."""
        self._at = max(now, self._at)

    def shift(self, jump_s: float) -> None:
        """The clock has jumped by that."""
        self._at += jump_s if self._at else 0.0

    def not_after(self, now: float) -> None:
        """No batch has come later than now."""
        self._at = min(self._at, now)

    def overdue_s(self, now: float, step_s: float) -> float | None:
        """Seconds since the last batch, reported once if too long; otherwise None.

        Args:
            now: seconds since 1970.
            step_s: seconds of a step; nan if unknown.
        """
        if self._told or len(self._gaps_s) < _LEAST_GAPS:
            return None
        waited_s = now - self._at
        usual_s = statistics.median(self._gaps_s)
        return waited_s if is_overdue(waited_s, usual_s, step_s) else None

    def tell(self) -> None:
        """The overdue job was reported; it is not reported again before the next batch."""
        self._told = True
