"""Two modes of a time: steps in which something is fast, and steps in which it is slow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: Fewer values show no modes. A mode with fewer values, or with a lesser share, is outliers.
MIN_VALUES, MIN_MODE, MIN_SHARE = 4, 2, 0.06

#: The slow mode takes at least this many times as long as the fast one.
MIN_RATIO = 1.1

#: Modes lie apart if their distance is ``APART + APART_FEW / n**2`` of their standard deviations.
#: With n values of one mode, the best split exceeds it in under 1% of draws. Draws were normal,
#: lognormal, uniform, exponential, Student t with 3 degrees of freedom and AR(1) 0.9
#: (benchmarks/modes.py).
APART, APART_FEW = 5.5, 420.0

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
    """The two modes of some positive times; None where there is one.

    It splits the logarithms with the least sum of squares, and demands that the modes lie apart.
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
