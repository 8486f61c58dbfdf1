"""What a row of samples shows by itself: a ramp, its middle, its rounding.

Compiled with the kernel (:mod:`paceline.detect.levels`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Samples of a new level at least.
FEWEST = 3
#: Samples in which a ramp shows, and the share that it rises in them.
RAMP, RISE = 24, 0.04


def is_ramp(y: Floats, n: int, count: int) -> bool:
    """Whether the last samples rise steadily, not by a step ``count`` samples ago (0: none).

    A step lies in one of the thirds; where it lies at the edge of one, samples next to it tell.
    """
    if n < RAMP:
        return False
    third = RAMP // 3
    late, middle = np.median(y[:third]), np.median(y[third : 2 * third])
    early = np.median(y[2 * third : RAMP])
    rise = late - early
    if 0 < count <= n - FEWEST:
        jump = np.median(y[max(0, count - FEWEST) : count]) - np.median(y[count : count + FEWEST])
        if jump > 0.5 * (np.median(y[:FEWEST]) - early):
            return False
    return bool(rise > RISE * early and min(late - middle, middle - early) > 0.25 * rise)


def middle_mean(y: Floats) -> float:
    """The mean of the middle half: as good as a mean in noise, and no spike moves it."""
    ordered = np.sort(y)
    out = max(len(y) // 4, int(len(y) > 2))
    return float(np.mean(ordered[out : len(y) - out]))


def quantum(y: Floats) -> float:
    """Seconds that all samples are whole multiples of: a millisecond, or 0."""
    for value in y:
        ms = value * 1e3
        if abs(ms - np.rint(ms)) > 1e-4 * max(1.0, ms * 1e-2):
            return 0.0
    return 1e-3
