"""Logs with few samples behind the warm-up: a slowdown within it, and whether one may be hidden.

The detector takes the level of the warm-up as healthy. In a log that has no more samples behind the
warm-up than in it, a slowdown in the warm-up lasts for most of the log.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from paceline.detect.levels import EARLY
from paceline.detect.limits import SAMPLED_WARM_UP
from paceline.robust import MEDIAN_ERROR, SIGMA_OF_MAD

Array = npt.NDArray[np.float64]

#: Least number of samples before a slowdown where a sample stands for several steps, and behind it.
#: Ten such samples are 50 steps or more, so their input was not prefetched.
_LEAST_SAMPLED, _LEAST_BEHIND = 10, 8
#: Standard errors of a rank sum with a chance of 1 in 10,000: the largest of eleven such sums
#: exceeds it by chance in 1 of 1,000 logs.
_CLEAR = 3.72
#: Least share of the samples that lie on their side of the middle between both levels.
_APART = 0.85
#: Standard errors by which a rise may be larger than the measured one.
_ERRORS = 2.0


def warm_up_before_rise(seconds: Array, warm_up: int, threshold: float) -> int:
    """The number of samples before any event: ``warm_up``, or those before a clear rise in it.

    The rise is tested by the rank sum of the samples before it (Mann and Whitney), at each place.

    Args:
        seconds: [sample] step times of the log; nan is left out.
        warm_up: the usual number of samples.
        threshold: least relative rise.
    """
    x = _early(seconds, warm_up)
    places = _places(len(x), warm_up)
    if not len(places):
        return warm_up
    n = len(x)
    ranks = np.empty(n)
    ranks[np.argsort(x, kind="stable")] = np.arange(1, n + 1)
    sums = np.cumsum(ranks)[places - 1]
    expected = places * (n + 1) / 2
    z = (expected - sums) / np.sqrt(places * (n - places) * (n + 1) / 12)
    best = int(places[np.argmax(z)])
    early, late = float(np.median(x[:best])), float(np.median(x[best:]))
    middle = (early + late) / 2
    is_apart = min(np.mean(x[:best] < middle), np.mean(x[best:] > middle)) >= _APART
    return best if z.max() > _CLEAR and is_apart and late > early * (1 + threshold) else warm_up


def may_hide_rise(seconds: Array, warm_up: int, threshold: float) -> bool:
    """Whether a rise within the warm-up may be hidden in the noise of a log with few samples.

    False for a log with more than twice as many samples as the warm-up has.

    Args:
        seconds: [sample] step times of the log; nan is left out.
        warm_up: number of samples before any event.
        threshold: relative rise that must not be hidden.
    """
    if np.isfinite(seconds).sum() > enough(warm_up):
        return False
    x = np.log(_early(seconds, warm_up))
    places = _places(len(x), warm_up)
    spread = SIGMA_OF_MAD * float(np.median(np.abs(np.diff(x)))) / math.sqrt(2)
    rises = [float(np.median(x[k:]) - np.median(x[:k])) for k in places]
    errors = MEDIAN_ERROR * spread * np.sqrt(1 / places + 1 / (len(x) - places))
    return bool(len(places) and np.max(rises + _ERRORS * errors) > math.log1p(threshold))


def enough(warm_up: int) -> int:
    """Number of samples above which most of them lie behind the warm-up."""
    return 2 * warm_up


def _early(seconds: Array, warm_up: int) -> Array:
    usable: Array = seconds[np.isfinite(seconds) & (seconds > 0)]
    return usable[: enough(warm_up)]


def _places(samples: int, warm_up: int) -> npt.NDArray[np.int64]:
    """Numbers of samples before a rise that are tested."""
    least = _LEAST_SAMPLED if warm_up == SAMPLED_WARM_UP else EARLY
    return np.arange(least, min(warm_up, samples - _LEAST_BEHIND) + 1)
