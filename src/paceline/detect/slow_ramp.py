"""Ramps that begin with the job: its samples rise steadily, so that no level is healthy.

Part of the kernel :mod:`paceline.detect.levels`: arrays and loops only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.columns import (
    AGE,
    HEALTHY_S,
    INITIAL,
    LEVEL_S,
    MEAN,
    MIDDLE_S,
    ON_RAMP,
    SEEN,
    SINCE,
    SINCE_STEP,
    SLOW,
    STRAY,
    WINDOWS,
)
from paceline.detect.losses import begin_loss
from paceline.detect.noise import learn_noise
from paceline.detect.samples import EACH_PART, RAMP, RISE, is_step, mean_share, middle_mean
from paceline.robust import SIGMA_OF_MEAN_DEVIATION

Floats = npt.NDArray[np.float64]

#: First samples of a level that do not count, as the job may warm up.
FIRST = 5
#: Number of blocks whose medians show the trend, and the least number of samples in a block.
BLOCKS, LEAST = 12, 3
#: Least rise from the first third to the last one in thresholds. Of 200 made-up jobs that wander by
#: 5% over 100 steps, 16 rise steadily by 10%, and two by 15%.
CLEAR = 1.5
#: Least slope of a line through the blocks' medians in standard errors. Three recorded ramps have 7
#: to 20, a healthy job that wanders by 15% on a busy host has 3.4.
ERRORS = 5.5
#: Standard errors from which on a rise may be a fail-slow, though it is not certain.
UNSURE_ERRORS = 2.0
#: Number of first samples that give the healthy level, if the ramp begins before their end.
HEALTHY_SAMPLES = 15
#: Number of newest samples that are the level on the ramp.
NEWEST = 16
#: A ramp is fast if the samples of :func:`is_ramp` must rise by this many times its least rise.
#: That function then sees the end. With 2.0 a short plateau of a recorded ramp was its end.
FAST = 3.0


def trend(y: Floats, n: int) -> tuple[float, float, float]:
    """How ``n`` samples, the newest first, rise.

    Returns:
        The rise from the first third to the last one as a share of the first; the least part of it
        in a half; the slope of a line through medians of blocks in standard errors. All are 0 if
        there are too few samples.
    """
    size = n // BLOCKS
    if size < LEAST:
        return 0.0, 0.0, 0.0
    medians, slope = np.empty(BLOCKS), 0.0
    for i in range(BLOCKS):
        begin = (BLOCKS - 1 - i) * size
        medians[i] = np.median(y[begin : begin + size])
        slope += (i - (BLOCKS - 1) / 2) * medians[i]
    squares = BLOCKS * (BLOCKS**2 - 1) / 12
    slope /= squares
    off = 0.0
    for i in range(BLOCKS):
        off += abs(medians[i] - np.mean(medians) - slope * (i - (BLOCKS - 1) / 2))
    error = SIGMA_OF_MEAN_DEVIATION * off / (BLOCKS - 2) / math.sqrt(squares)
    third = BLOCKS // 3
    early, late = np.median(medians[:third]), np.median(medians[2 * third :])
    middle = np.median(medians[third : 2 * third])
    rise = late - early
    part = min(middle - early, late - middle) / rise if rise > 0 else 0.0
    return rise / early, part, slope / max(error, 1e-300)


def is_steady(y: Floats, n: int, threshold: float) -> bool:
    """Whether ``n`` samples rise steadily, clearly and well beyond their noise."""
    rise, part, errors = trend(y, n)
    return bool(rise > CLEAR * threshold and part > EACH_PART and errors > ERRORS)


def hinge(y: Floats, n: int) -> tuple[int, float, float]:
    """The level, then a ramp, that fit ``n`` samples best; the newest sample comes first.

    Returns:
        number of samples before the ramp, their level, and the rise per sample.
    """
    third = n // 3
    top, at_top = np.median(y[:third]), n - 1 - (third - 1) / 2
    at = np.arange(n - 1, -1, -1).astype(np.float64)
    least, best, level_s, slope_s = np.inf, 0, 0.0, 0.0
    for k in range(n // 2 + 1):
        count = max(k, HEALTHY_SAMPLES)
        base = np.median(y[n - count : n])
        # Mean number of samples that the ramp has lasted in the first ones.
        within = (count - k) ** 2 / (2.0 * count)
        slope = (top - base) / (at_top - k - within)
        base -= slope * within
        off = np.sum(np.abs(y[:n] - base - slope * np.maximum(at - k, 0.0)))
        if off < least and base > 0:
            least, best, level_s, slope_s = off, k, base, slope
    return best, level_s, slope_s


def find_ramp(
    y: Floats,
    raw: Floats,
    n: int,
    threshold: float,
    least: float,
    scale: float,
    number: Any,
    f: Any,
    w: Any,
) -> tuple[float, float]:
    """Look for a steady rise of the samples of a level, and follow it.

    On the first level it begins an episode; on the level of an episode it is no event.

    Args:
        y: samples on a common level, the newest first.
        raw: the same as they are.
        n: number of samples.
        threshold: least relative change of a window's median.
        least: least relative change of a level.
        scale: relative expected time of the step.
        number: step numbers of the rank's ring.
        f: the rank's row of ``floats``.
        w: the rank's row of ``wholes``.

    Returns:
        ratios of the mean since the begin of an episode to the healthy level and to the previous
        level; zeros if none begins.
    """
    if w[AGE] > len(number) or w[INITIAL] == ON_RAMP:
        return 0.0, 0.0
    if w[SLOW]:
        if is_steady(y, min(n, w[AGE]), threshold):
            w[INITIAL], w[AGE] = ON_RAMP, NEWEST
            f[LEVEL_S] = np.median(y[:NEWEST])
        return 0.0, 0.0
    n = min(n, w[AGE]) - FIRST
    if w[INITIAL] != 1 or not is_steady(y, n, threshold):
        return 0.0, 0.0
    return early_ramp(y, raw, n, least, scale, number, f, w)


def early_ramp(
    y: Floats, raw: Floats, n: int, least: float, scale: float, number: Any, f: Any, w: Any
) -> tuple[float, float]:
    """Begin an episode with the ramp of ``n`` samples on the first level, as :func:`find_ramp`.

    The samples before it give the healthy level; their distances from the ramp give the noise.
    """
    before, healthy, slope = hinge(y, n)
    count = n - before
    new = middle_mean(y[:count])
    if healthy <= 0 or new < healthy * (1 + least):
        return 0.0, 0.0
    previous = f[LEVEL_S]
    f[LEVEL_S] = f[HEALTHY_S] = f[MIDDLE_S] = healthy
    at = np.arange(n - 1, -1, -1).astype(np.float64)
    flat = healthy / (healthy + slope * np.maximum(at - before, 0.0))
    level = y[:n] * flat
    f[STRAY : STRAY + len(WINDOWS)] = np.nan
    f[MEAN] = mean_share(level, raw[:n] * flat, healthy)
    w[AGE] = n
    learn_noise(level, n, True, f, w)
    begin_loss(y[:count], raw[:count], new, scale, f)
    w[SINCE], w[SINCE_STEP] = w[SEEN] - count, number[(w[SEEN] - count) % len(number)]
    w[SLOW], w[INITIAL], w[AGE] = 1, ON_RAMP, NEWEST
    f[LEVEL_S], f[MIDDLE_S] = np.median(y[:NEWEST]), new
    return new / healthy, new / previous


def goes_on(y: Floats, n: int, count: int, w: Any) -> bool:
    """Whether a ramp goes on that is too slow for its newest samples to show it.

    Its last third is above the one before, or its newer half still rises. A step ``count`` samples
    ago is none, as in :func:`is_ramp`; 0 without a step.
    """
    length = min(n, w[SEEN] - w[SINCE])
    third, part = length // 3, length // 6
    if length < 2 * RAMP:
        return False
    late, middle = np.median(y[:third]), np.median(y[third : 2 * third])
    early = np.median(y[2 * third : length])
    rise = late - early
    if rise <= RISE * early or rise * RAMP > FAST * RISE * early * length:
        return False
    if count > 0 and is_step(y, n, count, early):
        return False
    if count == 0 and w[AGE] < length // 2:
        return True
    newer = np.median(y[:part]) - np.median(y[2 * part : 3 * part])
    return bool(max(late - middle, newer) > EACH_PART * rise)
