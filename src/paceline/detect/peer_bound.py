"""The bound above which a GPU counts as slow among its peers, by Student's t.

Each GPU, the slowest first, is compared with the mean and deviation of the faster ones, so that
several slow GPUs do not hide each other. This is a one-sided generalised extreme Studentized
deviate test (Rosner, "Percentage points for a generalized ESD many-outlier procedure", 1983). For
one candidate among GPUs that differ normally, no test with the same rate of false names finds more.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from paceline.robust import t_quantile

#: Probabilities of errors for normally distributed healthy GPUs; the smaller one counts. The first
#: is for calling a healthy GPU slow, the second for such an error in a whole fleet.
_MISSES, _FLEET_MISSES = 0.0009, 0.3


def student_bound(values: Sequence[float], floor: float) -> float:
    """Bound for healthy GPUs, from the times of at least two GPUs of a kind.

    Args:
        values: times, or ratios.
        floor: share above the low median that never counts as slow.
    """
    usual, n = statistics.median_low(values), len(values)
    fastest = np.sort(values)
    count = np.arange(1, n + 1)
    mean = np.cumsum(fastest) / count
    # Squares around the median: differences of large numbers would lose digits.
    squares = np.cumsum((fastest - usual) ** 2) - count * (mean - usual) ** 2
    deviation = np.sqrt(np.maximum(squares, 0.0) / np.maximum(count - 1, 1))
    misses = min(_MISSES, _FLEET_MISSES / n)
    error = deviation * np.sqrt(1 + 1 / count)
    bound = mean + t_quantile(2 * misses, np.maximum(count - 1, 1)) * error
    # Test the slowest of ``rest`` peers, assuming that at least half of all are healthy.
    rest = np.arange(n // 2 + 1, n)
    slow = rest[fastest[rest] > bound[rest - 1]]
    healthy = int(slow[0]) if len(slow) else n
    return max(usual * (1 + floor), float(bound[healthy - 1]))
