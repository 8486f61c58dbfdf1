"""Noise of a rank: the spread of each window's median around the level, and the bar above it.

Part of the kernel :mod:`paceline.detect.levels`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.columns import (
    AGE,
    INITIAL,
    LEVEL_S,
    MIDDLE_S,
    ON_RAMP,
    QUANTUM_S,
    SEEN,
    SLOW,
    STRAY,
    WINDOWS,
)
from paceline.robust import SIGMA_OF_MAD, SIGMA_OF_MEAN_DEVIATION

Floats = npt.NDArray[np.float64]

#: Per window: standard deviations of its median that are added to the threshold. Short windows give
#: more independent tests, so they need larger margins.
SURE = (2.2, 2.0, 1.8, 1.4, 0.8, 0.8, 0.8, 0.8)
#: Per window: least change in standard deviations of its median. It counts where the noise is large
#: relative to the threshold.
STRAYS = (6.0, 5.8, 5.7, 5.4, 4.1, 2.4, 0.0, 0.0)
#: Samples over which noise is averaged, and samples between estimates of its centre, a median.
NOISE_STEPS, MIDDLE_EVERY = 400, 64
#: Number of samples below which an episode's level is uncertain, so that its bar is higher.
YOUNG = 128


def bar(i: int, threshold: float, f: Any, w: Any) -> float:
    """Least relative difference between a window's median and the level that counts."""
    stray = float(f[STRAY + i])
    if np.isnan(stray):
        return np.inf
    window = WINDOWS[i]
    # Rounding has a standard deviation of 0.29 units; a median of more samples varies less.
    rounding = 0.29 * f[QUANTUM_S] / f[LEVEL_S] * math.sqrt(5.0 / window)
    stray = max(stray, rounding)
    above = float(max(threshold + SURE[i] * stray, STRAYS[i] * stray))
    if w[INITIAL] != 1 and w[AGE] < YOUNG and w[SLOW]:
        above += f[STRAY] * math.sqrt(5.0 / max(5, w[AGE]))
    return above


def learn_noise(y: Floats, n: int, is_first: bool, f: Any, w: Any) -> None:
    """Update the spread of each window's median around the level's median."""
    seen, age = w[SEEN], w[AGE]
    if seen % MIDDLE_EVERY == 0 and age >= MIDDLE_EVERY and w[INITIAL] != ON_RAMP:
        f[MIDDLE_S] = np.median(y[: min(n, age)])
    for i in range(len(WINDOWS)):
        window = WINDOWS[i]
        if n < window + 10 or (seen % window and not is_first):
            continue
        if np.isnan(f[STRAY + i]):
            if age < window + 10:  # a change of level is no noise
                continue
            first_noise(i, y, min(n, age), f)
        if w[SLOW] or age < window:
            continue
        off = abs(np.median(y[:window]) / f[MIDDLE_S] - 1)
        off = min(off, 3 * f[STRAY + i] + 0.002)
        share = min(1.0, max(window / NOISE_STEPS, window / seen))
        f[STRAY + i] += share * (SIGMA_OF_MEAN_DEVIATION * off - f[STRAY + i])


def first_noise(i: int, y: Floats, n: int, f: Any) -> None:
    """Estimate a window's spread for the first time, from half-overlapping stretches of samples."""
    window = WINDOWS[i]
    every = max(1, window // 2)
    count = (n - window) // every + 1
    off = np.empty(count)
    for j in range(count):
        off[j] = np.median(y[j * every : j * every + window]) / f[LEVEL_S] - 1
    f[STRAY + i] = SIGMA_OF_MAD * np.median(np.abs(off)) + 0.25 * np.std(off)
