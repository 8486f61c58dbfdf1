"""Statistics of recent samples: ramps, periodic bursts, robust means and rounding.

Compiled with the kernel (:mod:`paceline.detect.levels`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.detect.limits import PAUSE

Floats = npt.NDArray[np.float64]

#: Least number of samples of a new level.
FEWEST = 3
#: Number of samples examined for a ramp, the least share that it rises in them, and the least part
#: of the rise in each half.
RAMP, RISE, EACH_PART = 24, 0.04, 0.25


def is_ramp(y: Floats, n: int, count: int) -> bool:
    """Whether the last samples rise steadily, instead of by a step ``count`` samples ago.

    Both halves of a ramp rise. A step in the middle gives similar medians of the thirds, so the
    samples next to the step are compared, too. ``count`` is 0 without a step.
    """
    if n < RAMP:
        return False
    third = RAMP // 3
    late, middle = np.median(y[:third]), np.median(y[third : 2 * third])
    early = np.median(y[2 * third : RAMP])
    rise = late - early
    if count > 0 and is_step(y, n, count, early):
        return False
    return bool(rise > RISE * early and min(late - middle, middle - early) > EACH_PART * rise)


def is_step(y: Floats, n: int, count: int, early: float) -> bool:
    """Whether more than half of the rise from ``early`` came ``count`` samples ago."""
    if count > n - FEWEST:
        return False
    jump = np.median(y[max(0, count - FEWEST) : count]) - np.median(y[count : count + FEWEST])
    return bool(jump > 0.5 * (np.median(y[:FEWEST]) - early))


def mean_share(y: Floats, raw: Floats, level: float) -> float:
    """Mean of the ``raw`` samples relative to their level, without pauses.

    ``y`` are the same on a common level: a long step of a cycle is no pause.
    """
    return float(np.mean(raw[y <= PAUSE * level]) / level)


def burst_period(y: Floats, n: int, is_running: bool, bar: float) -> tuple[int, int, int]:
    """Find periodic bursts: (period, longest length, length of the newest run) in samples.

    The last three runs of high samples must have similar lengths and distances, and fill at most a
    third of the period; otherwise period and longest length are 0. If ``is_running``, the newest
    run is not over and comes after the three, at the same distance.
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
    """The mean of the middle half, so that spikes have no effect."""
    ordered = np.sort(y)
    out = max(len(y) // 4, int(len(y) > 2))
    return float(np.mean(ordered[out : len(y) - out]))


def quantum(y: Floats) -> float:
    """0.001 if all samples are whole milliseconds, else 0."""
    for value in y:
        ms = value * 1e3
        if abs(ms - np.rint(ms)) > 1e-4 * max(1.0, ms * 1e-2):
            return 0.0
    return 1e-3
