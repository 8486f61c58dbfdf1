"""Certainty of a difference of means: steps are the samples, and they may be autocorrelated.

The variance of a mean of n steps is s^2 / n only if the steps are independent. With a lag-1
autocorrelation r they are worth fewer (Bayley & Hammersley, "The 'effective' number of independent
observations in an autocorrelated time series", 1946). In short series the estimate of r is too low
by (1 + 3 r) / n, which is corrected. The source is Marriott & Pope, "Bias in the estimation of
autocorrelations", 1954. Differences take Student's t with the degrees of freedom of Welch (1947). A
block bootstrap was tried and is worse in short series: ``docs/compare.md`` has the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline.robust import t_quantile

Array = npt.NDArray[np.float64]

#: Fewer steps do not show how much they vary.
MIN_STEPS = 4

#: All intervals are of 90%.
MISSES = 0.10

#: Stands for infinitely many degrees of freedom.
_MANY = 1e9


#: Least degrees of freedom of the variance of dependent steps. With 1 degree of freedom an interval
#: would be wider than all measured values.
MIN_FREEDOM = 2.0


@dataclass(frozen=True)
class Means:
    """Means over the steps of one job, of one quantity or of all rows of a table.

    Attributes:
        mean: [...].
        variance: [...] of the mean; NaN where it cannot be known.
        effective: [...] number of independent steps that these are worth.
        n_steps: number of steps.
    """

    mean: Array
    variance: Array
    effective: Array
    n_steps: int

    def scaled(self, factor: float) -> Means:
        """The means of ``factor`` times the quantities."""
        return replace(self, mean=self.mean * factor, variance=self.variance * factor**2)

    def row(self, index: int) -> Means:
        """One row of a table."""
        mean, variance, effective = (
            np.asarray(rows[index]) for rows in (self.mean, self.variance, self.effective)
        )
        return Means(mean, variance, effective, self.n_steps)


def certain(mean: Array) -> Means:
    """Values without an error."""
    return Means(mean, np.zeros_like(mean), np.full_like(mean, _MANY), int(_MANY))


def means_of(values: Array) -> Means:
    """Means of [step, ...] over the steps, in their order in time.

    The rows of a table share steps, and so their couplings. A row counts as at least as
    autocorrelated as the rows are on average. Otherwise, of many rows, one whose autocorrelation is
    underestimated by chance would stand out.
    """
    n = len(values)
    mean = values.mean(axis=0)
    deviation = values - mean
    squares = (deviation**2).sum(axis=0)
    if n < MIN_STEPS:
        return Means(mean, np.full_like(mean, np.nan), np.full_like(mean, float(n)), n)
    # The spread of equal values is rounding, and has no autocorrelation.
    flat = squares <= n * (1e-12 * np.abs(mean)) ** 2
    products = (deviation[1:] * deviation[:-1]).sum(axis=0)
    rho = _unbiased(products / np.where(flat, 1.0, squares), n)
    if (~flat).any():
        rho = np.maximum(rho, rho[~flat].mean())
    rho = np.where(flat, 0.0, np.clip(rho, 0.0, 1 - 1 / n))
    worth = _inflation(rho, n)
    variance = np.where(flat, 0.0, squares / np.maximum(n - worth, 1.0) * worth / n)
    return Means(mean, variance, n / worth, n)


def ratio_means(values: Array, units: Array) -> Means:
    """Means of [step] ``values`` per unit: their sums divided, as users pay (delta method)."""
    ratio = values.sum() / units.sum()
    return means_of(ratio + (values - ratio * units) / units.mean())


def _unbiased(lag_1: Array, n: int) -> Array:
    """The autocorrelation without the bias of short series."""
    return (n * lag_1 + 1) / (n - 3) if n > MIN_STEPS else lag_1 + (1 + 3 * lag_1) / n


def _inflation(rho: Array, n: int) -> Array:
    """1 + 2 sum over k of (1 - k / n) rho^k: number of steps that equal one independent step."""
    correction = (1 - rho**n) / (n * (1 - rho))
    return 1 + 2 * rho / (1 - rho) * (1 - correction)


def difference(before: Means, after: Means, n_rows: int = 1) -> tuple[Array, Array, Array]:
    """``after`` - ``before``, and the low and high end of its 90% interval (NaN where unknown).

    With ``n_rows`` quantities the intervals hold for all of them at once: the largest of many
    changes is otherwise mostly noise. They are widened by the factor by which Bonferroni's
    correction widens those of independent steps.
    """
    variance = before.variance + after.variance
    half = _quantile(before, after, n_rows) * np.sqrt(variance)
    change = after.mean - before.mean
    return change, change - half, change + half


def relative_difference(before: Means, after: Means) -> tuple[float, float, float]:
    """``after`` / ``before`` - 1 of one quantity, and its 90% interval, from the logarithms."""
    log_before, log_after = (
        replace(side, variance=side.variance / side.mean**2) for side in (before, after)
    )
    ratio = float(after.mean / before.mean)
    half = float(
        _quantile(log_before, log_after, 1) * np.sqrt(log_before.variance + log_after.variance)
    )
    half = min(half, 20.0)  # so wide that it says nothing; and the exponential must not overflow
    return ratio - 1, ratio * math.exp(-half) - 1, ratio * math.exp(half) - 1


def _quantile(before: Means, after: Means, n_rows: int) -> Array:
    """Number of standard errors that an interval of a difference reaches to either side."""
    quantile = t_quantile(MISSES, _freedom(before, after, *_effective(before, after)))
    if n_rows == 1:
        return quantile
    independent = _freedom(before, after, np.array(before.n_steps), np.array(after.n_steps))
    return quantile * t_quantile(MISSES / n_rows, independent) / t_quantile(MISSES, independent)


def _effective(before: Means, after: Means) -> list[Array]:
    return [np.maximum(side.effective, MIN_FREEDOM + 1) for side in (before, after)]


def _freedom(before: Means, after: Means, n_before: Array, n_after: Array) -> Array:
    """Degrees of freedom of the variance of a difference (Welch)."""
    sides = ((before.variance, n_before), (after.variance, n_after))
    squares = sum(variance**2 / np.maximum(n - 1, 1) for variance, n in sides)
    variance = before.variance + after.variance
    exact = ~(squares > 0)  # also where the variance is unknown
    return np.asarray(np.where(exact, MIN_FREEDOM, variance**2 / np.where(exact, 1.0, squares)))
