"""A continuing fail-slow whose detector is rebuilt within it.

If the step files begin within an episode, a new detector takes its level as healthy. The series
still has the earlier healthy level. The job as a whole is compared with that level until it returns
to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paceline.detect.detector import THRESHOLD
from paceline.monitor.step_series import read_rows

#: Number of steps whose median is compared, and the share above the healthy level that means it
#: continues: half of an onset's threshold.
_STEPS, _ABOVE = 15, THRESHOLD / 2


@dataclass(eq=False)
class Ongoing:
    """A fail-slow known from before.

    Attributes:
        since_step: step of its begin.
        healthy_s: step time before it, median of the ranks, seconds.
    """

    since_step: int
    healthy_s: float
    _latest: list[float] = field(default_factory=list)

    def is_over(self, median_s: float) -> bool:
        """Whether it has ended, after one more step (seconds, median of the ranks; nan = none)."""
        if math.isfinite(median_s):
            self._latest = [*self._latest[1 - _STEPS :], median_s]
        if len(self._latest) < _STEPS:
            return False
        return float(np.median(self._latest)) <= self.healthy_s * (1 + _ABOVE)


def find_ongoing(folder: Path, start: int, since_step: int) -> Ongoing | None:
    """The fail-slow since a step, if the series of that start shows that it goes on; else None."""
    rows = read_rows(folder)
    rows = rows[rows["start"] == start]
    healthy_s = rows["healthy_s"][rows["step"] < since_step]
    healthy_s = healthy_s[np.isfinite(healthy_s)]
    latest = rows["median_s"][-_STEPS:]
    latest = latest[np.isfinite(latest)]
    if not len(healthy_s) or not len(latest):
        return None
    ongoing = Ongoing(since_step, float(healthy_s[-1]))
    return ongoing if np.median(latest) > ongoing.healthy_s * (1 + _ABOVE) else None
