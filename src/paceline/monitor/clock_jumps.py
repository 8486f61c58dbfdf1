"""Jumps of a clock, for those who compare times of it."""

from __future__ import annotations

import time
from collections.abc import Callable

#: A smaller jump is a correction that no wait here notices.
LEAST_S = 5.0


class ClockWatch:
    """Compares a clock with one that does not jump.

    Args:
        clock: seconds since 1970.
        steady: seconds since any moment.
    """

    def __init__(
        self, clock: Callable[[], float], steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._steady = clock, steady
        self._ahead_s = clock() - steady()

    def jump_s(self) -> float:
        """Seconds by which the clock has jumped since the last call, usually 0."""
        ahead_s = self._clock() - self._steady()
        jump_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        return jump_s if abs(jump_s) >= LEAST_S else 0.0
