"""Robust statistics: spreads and errors from medians, and the chance of a count."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Ratios for a normal distribution. Standard deviation over median absolute deviation; over mean
#: absolute deviation; standard error of a median over that of a mean.
SIGMA_OF_MAD, SIGMA_OF_MEAN_DEVIATION, MEDIAN_ERROR = 1.4826, 1.2533, 1.2533

#: Standard deviations of a normal distribution between its 10% and 90% quantiles.
OF_MIDDLE_80 = 2.5631


def median(values: Array, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """The values of ``np.median``, faster: that takes 0.1 ms beside the work on a small array."""
    along = 0 if axis is None else axis
    flat = values.ravel() if axis is None else values
    n = flat.shape[along]
    if not n:
        return np.median(values, axis=axis, keepdims=keepdims)
    high = n // 2
    low = high if n % 2 else high - 1
    # NaN sort last.
    ordered = np.partition(flat, (low, high, n - 1), axis=along)
    if np.isnan(ordered.take(n - 1, along)).any():
        return np.median(values, axis=axis, keepdims=keepdims)
    middle = ordered.take(high, along)
    if low != high:
        middle = (ordered.take(low, along) + middle) / 2
    if not keepdims:
        return middle
    return middle.reshape((1,) * values.ndim) if axis is None else np.expand_dims(middle, axis)


def spread(values: Array, axis: int | tuple[int, ...] | None = None) -> Any:
    """The standard deviation, from the median absolute deviation."""
    if isinstance(axis, tuple):
        middle = np.median(values, axis=axis, keepdims=True)
        return SIGMA_OF_MAD * np.median(np.abs(values - middle), axis=axis)
    middle = median(values, axis, keepdims=True)
    return SIGMA_OF_MAD * median(np.abs(values - middle), axis)


def wide_spread(values: Array) -> float:
    """The standard deviation, from the middle 80% of all values.

    For long-tailed values, such as sequence lengths, the median absolute deviation is too small.
    """
    low, high = np.quantile(values, [0.1, 0.9])
    return float(high - low) / OF_MIDDLE_80


def median_error(values: Array, axis: int = 0) -> Any:
    """The standard error of the median along an axis, of independent values."""
    return MEDIAN_ERROR * spread(values, axis) / math.sqrt(values.shape[axis])


def chance_of_count(count: int, n: int, share: float) -> float:
    """Chernoff's bound on the chance of ``count`` or more among ``n``, if ``share`` is usual."""
    observed = count / n
    if observed <= share:
        return 1.0
    if share <= 0.0:
        return 0.0
    divergence = observed * math.log(observed / share)
    if observed < 1.0:
        divergence += (1 - observed) * math.log((1 - observed) / (1 - share))
    return math.exp(-n * divergence)


#: Fewer values in a row show no autocorrelation.
MIN_ROW = 8

#: Largest autocorrelation that an error is widened for.
MAX_AUTOCORRELATION = 0.9


def error_over_time(values: Array) -> Any:
    """The standard error of the median along the first axis, of values in a row.

    Neighbouring values of a drifting machine agree by chance. With an autocorrelation of r a row of
    n tells as much as n (1 - r) / (1 + r) independent values (Bartlett 1935).

    Args:
        values: [step, ...].
    """
    error = median_error(values)
    if len(values) < MIN_ROW:
        return error
    centred = values - np.median(values, axis=0)
    scale = np.maximum(np.median(np.abs(centred), axis=0), 1e-300)
    # Signs, so that one odd step does not decide.
    signs = np.clip(centred / scale, -1.0, 1.0)
    lagged = (signs[1:] * signs[:-1]).mean(axis=0) / np.maximum((signs**2).mean(axis=0), 1e-300)
    correlation = np.clip(lagged, 0.0, MAX_AUTOCORRELATION)
    return error * np.sqrt((1 + correlation) / (1 - correlation))


def student_chance(t: Array, n: int) -> Array:
    """One-sided chance of a Student t of n - 1 degrees of freedom being ``t`` or more.

    Wallace's approximation (1959), within 20% of the chance up to t = 8.
    """
    dof = max(n - 1, 1)
    ratio = (8 * dof + 1) / (8 * dof + 3)
    normal = ratio * np.sqrt(dof * np.log1p(np.square(t) / dof)) * np.sign(t)
    chance: Array = 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(normal / math.sqrt(2))
    return chance


def t_quantile(misses: float, freedom: Array) -> Array:
    """The size that Student's t exceeds with probability ``misses`` (two-sided).

    Hill, "Algorithm 396: Student's t-quantiles", 1970: to 4 digits from 2 degrees of freedom on.
    """
    n = np.minimum(np.asarray(freedom, dtype=np.float64), 1e9)  # as good as infinitely many
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * np.sqrt(a * math.pi / 2) * n
    y = (d * misses) ** (2 / n)
    normal = _near_normal(misses, n, b, c, d) * a
    heavy = (
        (1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1
    ) * (n + 1) / (n + 2) + 1 / y
    squared = np.where(y > 0.05 + a, np.expm1(np.minimum(normal, 700.0)), heavy)
    out = np.sqrt(np.maximum(n * squared, 0.0))
    two_degrees = math.sqrt(2 / (misses * (2 - misses)) - 2)
    return np.where(np.abs(n - 2) < 1e-9, two_degrees, out)


def _near_normal(misses: float, n: Array, b: Array, c: Array, d: Array) -> Array:
    """Hill's expansion around the normal quantile, squared."""
    x = NormalDist().inv_cdf(misses / 2)
    c = np.where(n < 5, c + 0.3 * (n - 4.5) * (x + 0.6), c)
    c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
    y = x * x
    y_n = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
    return np.asarray(y_n**2)
