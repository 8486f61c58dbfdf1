"""Intervals of the factors of events.

An event's first factor rests on a few samples. Further samples refine the level, so its interval
becomes narrower.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from paceline.detect import columns
from paceline.detect.event import Estimate

Floats = npt.NDArray[np.float64]

#: Half width of a 95% interval in standard errors, and the part of the error that the spread of
#: medians does not show. They were chosen on real noise (half ``develop``, seed 21).
#: docs/measured.md has their coverage on the other half.
_SPREADS, _OTHER = 2.2, 0.005
#: Larger exponents, as of damaged times, tell nothing, and e to their power is no float.
_MOST = 700.0
#: Assumed number of samples of the healthy level.
_HEALTHY_SAMPLES = 129


def estimate(floats: Floats, wholes: npt.NDArray[np.int64], factor: float) -> Estimate:
    """A factor with its 95% interval.

    Args:
        floats: [column] a rank's ``floats`` in :mod:`paceline.detect.columns`.
        wholes: [column] the rank's ``wholes``.
        factor: the current level over the healthy level.
    """
    samples = int(min(wholes[columns.AGE], columns.RING))
    stray = floats[columns.STRAY : columns.CYCLE]
    error = math.hypot(_stray(stray, samples), _stray(stray, _HEALTHY_SAMPLES), _OTHER)
    exponent = _SPREADS * error
    wide = math.exp(exponent) if exponent < _MOST else math.inf
    return Estimate(factor, factor / wide, factor * wide, samples)


def _stray(stray: Floats, samples: int) -> float:
    """Relative spread of a median of some samples: that of the longest window within them.

    Below the shortest window, it grows with the root of the ratio of the lengths.
    """
    below = [
        (window, float(value))
        for window, value in zip(columns.WINDOWS, stray, strict=True)
        if not math.isnan(value)
    ]
    if not below:
        return math.inf
    window, value = max((row for row in below if row[0] <= samples), default=below[0])
    return value * math.sqrt(max(1.0, window / samples))
