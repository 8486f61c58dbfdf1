"""A fail-slow that goes on while the detector is made anew within it.

Where the step files begin within an episode, a new detector takes its level for the healthy one and
would call the job healthy. The series still has the healthy level from before: against that the job
is judged, as a whole, until it is back there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paceline.detect.detector import THRESHOLD
from paceline.monitor.step_series import read_rows

#: Steps whose median tells whether it goes on, and the share above the healthy level that says so:
#: half of what makes an onset.
_STEPS, _ABOVE = 15, THRESHOLD / 2


@dataclass(eq=False)
class Ongoing:
    """A fail-slow known from before.

    Attributes:
        since_step: the step in which it began.
        healthy_s: what a step took before it, median of the ranks, seconds.
    """

    since_step: int
    healthy_s: float
    _latest: list[float] = field(default_factory=list)

    def is_over(self, median_s: float) -> bool:
        """Whether it is, after one more step (seconds, median of the ranks; nan = none)."""
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
