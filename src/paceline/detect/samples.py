"""Statistics of a row of samples: ramps, means of the middle half, rounding.

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


def beat(y: Floats, n: int, is_running: bool, bar: float) -> tuple[int, int, int]:
    """Period and greatest length of the last three runs of high samples, or 0, 0; the newest run's.

    The three are alike in length, as far apart, and at most a third of that long. ``is_running``:
    the newest samples are a run that is not over; it is then in its place behind the three.
    """
    begins, lengths = np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64)
    first = int(is_running)
    runs = length = 0
    for k in range(n - 2):
        if np.median(y[k : k + FEWEST]) > bar:
            length += 1
        elif length > 0:
            begins[runs], lengths[runs] = k - 1, length
            length, runs = 0, runs + 1
            if runs == 3 + first:
                break
    if runs < 3 + first:
        return 0, 0, int(lengths[0])
    longest = np.max(lengths[first:runs])
    gaps = np.diff(begins[:runs])
    period = np.median(gaps)
    is_alike = longest - np.min(lengths[first:runs]) <= max(2.0, 0.1 * longest)
    is_even = np.max(np.abs(gaps - period)) <= max(2.0, 0.02 * period)
    if is_alike and is_even and longest <= period / 3:
        return int(period), int(longest), int(lengths[0])
    return 0, 0, int(lengths[0])


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
