"""Two modes of a time over the steps: a fast one and a slow one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: Least number of values; least number and least share of a mode's values, as fewer are outliers.
MIN_VALUES, MIN_MODE, MIN_SHARE = 4, 2, 0.06

#: Least ratio of the slow mode to the fast one.
MIN_RATIO = 1.1

#: Least distance of two modes: ``APART + APART_FEW / n**2`` standard deviations for n values. The
#: best split of a single mode exceeds it in under 1% of draws. These were normal, lognormal,
#: uniform, exponential, Student t with 3 degrees of freedom and AR(1) 0.9 (benchmarks/modes.py).
APART, APART_FEW = 5.5, 420.0

#: Of steps of two lengths: least share of the longer ones, and least distance of the lengths in
#: standard deviations of the one that varies more. Fewer or uneven longer steps are noise.
STEP_SHARE, STEP_APART = 0.2, 4.0

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TwoModes:
    """Values in two modes.

    Attributes:
        slow: [value] whether it belongs to the slow mode.
        ratio: median of the slow mode over that of the fast one.
    """

    slow: npt.NDArray[np.bool_]
    ratio: float

    @property
    def share(self) -> float:
        """Share of the values in the slow mode."""
        return float(self.slow.mean())


def two_modes(values: Array) -> TwoModes | None:
    """The two modes of some positive times; None for a single mode.

    The split of the logarithms has the least sum of squares within the modes.
    """
    n = len(values)
    if n < MIN_VALUES or not (values > 0).all():
        return None
    logs = np.log(values)
    ranked = np.sort(logs)
    least = max(MIN_MODE, math.ceil(MIN_SHARE * n))
    sizes = np.arange(least, n - least + 1)
    total, squares = np.cumsum(ranked), np.cumsum(ranked**2)
    low, high = total[sizes - 1], total[-1] - total[sizes - 1]
    within = squares[-1] - low**2 / sizes - high**2 / (n - sizes)
    best = int(np.argmin(within))
    size = int(sizes[best])
    fast, slow = ranked[:size], ranked[size:]
    spread = float(np.sqrt(max(within[best], 0.0) / (n - 2)))
    ratio = float(np.exp(np.median(slow) - np.median(fast)))
    if ratio < MIN_RATIO or slow.mean() - fast.mean() < spread * (APART + APART_FEW / n**2):
        return None
    return TwoModes(logs > (fast[-1] + slow[0]) / 2, ratio)


def step_modes(step_s: Array) -> TwoModes | None:
    """The two lengths of steps; None if longer steps are few or differ among themselves.

    On a busy machine, single steps of a job take longer by different amounts. The best split of
    their times is then an arbitrary one.
    """
    modes = two_modes(step_s)
    if modes is None or modes.share < STEP_SHARE:
        return None
    logs = np.log(step_s)
    slow, fast = logs[modes.slow], logs[~modes.slow]
    spread = max(float(slow.std(ddof=1)), float(fast.std(ddof=1)))
    return modes if slow.mean() - fast.mean() >= STEP_APART * spread else None
