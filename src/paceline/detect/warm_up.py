"""The end of a job's warm-up, at its begin and after a restart.

Compiled with the kernel (:mod:`paceline.detect.levels`): arrays and loops only.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from paceline.robust import SIGMA_OF_MAD

Floats = npt.NDArray[np.float64]

#: Least number of samples of a level, and number of samples in a block compared with it.
LEAST, BLOCK = 15, 5
#: Least share of a warm-up's samples that are clearly above the next level, and least excess of
#: their median. Real jobs that swing by 12% in their first 50 samples do not warm up.
APART, HIGH = 0.9, 0.2
#: Number of samples examined for a fall, and its least size as a share and in standard errors.
#: Each half has at least the last share of the fall; otherwise it was a step, which is over.
FALLING, FALL, FALL_SPREADS, EACH_HALF = 48, 0.02, 3.0, 0.15
#: Least share of a fall that makes it a step.
STEP = 0.5
#: Samples after a restart: the fewest for a verdict, and the fewest if they are slow. The most
#: that a trend delays it, and the most that a clear fall delays it.
SETTLED, SLOW_SETTLED, SETTLE_MOST, FALL_MOST = 6, 12, 24, 256
#: Standard errors of a fall that delays the verdict on slow samples, up to SETTLE_MOST.
HINT_SPREADS = 1.0


def is_falling(y: Floats, n: int, spreads: float) -> bool:
    """Whether the newest samples fall steadily, by at least ``spreads`` standard errors.

    ``y[0]`` is the newest of ``n`` samples.
    """
    third = min(n, FALLING) // 3
    if third < 3:
        return False
    late, middle = np.median(y[:third]), np.median(y[third : 2 * third])
    early = np.median(y[2 * third : 3 * third])
    off = np.abs(y[: 3 * third] - middle)
    off[:third] = np.abs(y[:third] - late)
    off[2 * third :] = np.abs(y[2 * third : 3 * third] - early)
    # Standard error of the difference between two medians.
    error = 1.25 * SIGMA_OF_MAD * np.median(off) * math.sqrt(2.0 / third)
    fall = early - late
    return bool(
        fall > max(FALL * late, spreads * error)
        and min(early - middle, middle - late) > EACH_HALF * fall
    )


def level_samples(y: Floats, n: int, threshold: float) -> int:
    """Number of newest samples on a job's first level: all, or those after its warm-up.

    0 while the job warms up.
    """
    if n <= LEAST:
        return n
    late = np.median(y[:LEAST])
    spread = SIGMA_OF_MAD * np.median(np.abs(y[:LEAST] - late)) / late
    share = max(threshold, 3 * spread)
    count = LEAST
    while count < n and np.median(y[count : min(count + BLOCK, n)]) <= late * (1 + share):
        count += BLOCK
    if count >= n or np.median(y[count:n]) < late * (1 + HIGH):
        return n
    if np.mean(y[count:n] > late * (1 + share / 2)) < APART:
        return n
    return 0 if count == LEAST or is_falling(y, count, FALL_SPREADS) else count


def is_gradual(y: Floats, n: int, count: int) -> bool:
    """Whether the samples fell gradually, without a step ``count`` samples ago."""
    late, early = np.median(y[: min(LEAST, count)]), np.median(y[max(0, n - LEAST) : n])
    if count >= n:
        return False
    jump = np.median(y[count : min(count + BLOCK, n)]) - np.median(y[max(0, count - BLOCK) : count])
    return bool(jump < STEP * (early - late))


def is_settled(y: Floats, samples: int, stray: float, high_s: float) -> bool:
    """Whether a job has settled, ``samples`` samples after a restart.

    Above ``high_s`` it may still warm up, so more samples without a fall are needed.
    """
    if samples < SETTLED:
        return False
    late, early = np.median(y[:3]), np.median(y[3:SETTLED])
    trend, least = late / early - 1, max(0.02, 3 * stray)
    if abs(trend) > least and samples < SETTLE_MOST:
        return False
    spreads = FALL_SPREADS
    if samples < SETTLE_MOST and np.median(y[:SETTLED]) > high_s:
        if samples < SLOW_SETTLED:
            return False
        spreads = HINT_SPREADS
    return samples >= FALL_MOST or not (trend < -least or is_falling(y, samples, spreads))


def settled_samples(y: Floats, samples: int, share: float) -> int:
    """Number of samples since a restart that are on the newest samples' level."""
    late = np.median(y[:SETTLED])
    count = SETTLED
    while count + 3 <= samples and abs(np.median(y[count : count + 3]) / late - 1) <= share:
        count += 3
    return count
