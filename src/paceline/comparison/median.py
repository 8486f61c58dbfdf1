"""The median step: a few odd steps decide the mean, and so the price, but not the median."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from paceline.comparison.interval import MIN_STEPS, Array, Means, means_of

#: The order statistics that enclose the median with this probability give the standard error. See
#: McKean & Schrader, "A comparison of methods for studentizing the sample median", 1984.
_SURE = 0.95


def median_of(values: Array) -> Means:
    """The median of [step] values, and its variance with as many steps as they are worth."""
    n = len(values)
    mean, median = means_of(values), np.array(float(np.median(values)))
    if n < MIN_STEPS:
        return replace(mean, mean=median)
    z = NormalDist().inv_cdf((1 + _SURE) / 2)
    # How far from the middle the two order statistics lie; autocorrelation moves them apart.
    spread = z * math.sqrt(n / 4) * math.sqrt(n / float(mean.effective))
    low = max(0, math.floor((n - 1) / 2 - spread))
    ordered = np.sort(values)
    error = (ordered[n - 1 - low] - ordered[low]) / (2 * z)
    return replace(mean, mean=median, variance=np.array(float(error) ** 2))
