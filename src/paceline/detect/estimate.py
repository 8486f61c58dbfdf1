"""Intervals around the factors of events, at first and once more samples of a level are there.

The first factor of an event rests on a few samples. Its level's median is taken anew as samples
come. So the factor of an episode that lasts is better known than that of its first moment.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from paceline.detect import columns
from paceline.detect.event import Estimate

Floats = npt.NDArray[np.float64]

#: Of an interval that holds the factor in 95% of the cases. It has spreads of a level's median, and
#: a share that noise of another kind than medians brings. Chosen on real noise (half ``develop``,
#: seed 21); docs/measured.md has what they reach on the other half.
_SPREADS, _OTHER = 2.2, 0.005
#: Samples of the healthy level that count for its error.
_HEALTHY_SAMPLES = 129


def estimate(floats: Floats, wholes: npt.NDArray[np.int64], factor: float) -> Estimate:
    """A factor with its interval.

    Args:
        floats: [column] seconds and shares of a rank, as of :mod:`paceline.detect.levels`.
        wholes: [column] its counts and flags.
        factor: of its level to its healthy one.
    """
    samples = int(min(wholes[columns.AGE], columns.RING))
    stray = floats[columns.STRAY : columns.CYCLE]
    error = math.hypot(_stray(stray, samples), _stray(stray, _HEALTHY_SAMPLES), _OTHER)
    wide = math.exp(_SPREADS * error)
    return Estimate(factor, factor / wide, factor * wide, samples)


def _stray(stray: Floats, samples: int) -> float:
    """Spread of a median of as many samples, as a share: that of the next smaller window's."""
    below = [
        (window, float(value))
        for window, value in zip(columns.WINDOWS, stray, strict=True)
        if not math.isnan(value)
    ]
    if not below:
        return math.inf
    window, value = max((row for row in below if row[0] <= samples), default=below[0])
    return value * math.sqrt(max(1.0, window / samples))
