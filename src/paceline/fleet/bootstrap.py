"""Intervals of a fleet's numbers: what they would be, had other jobs of the same kind run.

A bootstrap resamples the jobs. Where its distribution has a closed form, that is drawn instead of
resampling a million jobs a thousand times: the same numbers, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Fewer jobs say nothing of others.
LEAST = 20
LEVEL = 0.95
_DRAWS = 4000
#: Up to as many jobs, a ratio is resampled; above, its linear approximation is exact enough.
_RESAMPLED = 5000
_RESAMPLES = 1000
#: Jobs that are drawn at once.
_BLOCK = 20_000


class Estimate(NamedTuple):
    """A number of a fleet.

    Attributes:
        value: of these jobs; None without any.
        low, high: 95% bootstrap interval over the jobs; None under 20 of them.
        n: jobs.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int


def share(hits: int, n: int) -> Estimate:
    """Share of jobs. A resample has a binomial number of hits.

    Where all are alike, resamples are, too, and say nothing: then the exact bound (Clopper and
    Pearson 1934) of the open side.
    """
    if not n:
        return Estimate(None, None, None, 0)
    estimate = _estimate(hits / n, _rng().binomial(n, hits / n, _DRAWS) / n, n)
    if estimate.low is None or 0 < hits < n:
        return estimate
    bound = 1 - ((1 - LEVEL) / 2) ** (1 / n)
    return estimate._replace(low=1 - bound) if hits else estimate._replace(high=bound)


def quantile(ascending: Array, q: float) -> Estimate:
    """Quantile of jobs' values.

    Of n values resampled, the k-th smallest is the one at the k-th smallest of n uniform places:
    a beta distribution (k, n - k + 1).

    Args:
        ascending: the values, sorted.
        q: 0 to 1.
    """
    n = len(ascending)
    if not n:
        return Estimate(None, None, None, 0)
    k = max(1, int(np.ceil(q * n)))
    places = np.minimum((_rng().beta(k, n - k + 1, _DRAWS) * n).astype(np.int64), n - 1)
    return _estimate(float(np.quantile(ascending, q)), ascending[places], n)


def mean(values: Array) -> Estimate:
    """Mean over jobs."""
    return weighted(values, np.ones(len(values)))


def weighted(values: Array, weights: Array) -> Estimate:
    """Mean over what jobs weigh, such as their GPU-hours."""
    n, whole = len(values), float(weights.sum())
    if not n or not whole > 0:
        return Estimate(None, None, None, n)
    value = float((values * weights).sum()) / whole
    if n <= _RESAMPLED:
        draws = np.concatenate(list(_resampled(values, weights)))
    else:
        error = float(np.sqrt(((weights * (values - value)) ** 2).sum())) / whole
        draws = value + error * _rng().standard_normal(_DRAWS)
    return _estimate(value, draws, n)


def _resampled(values: Array, weights: Array) -> Iterator[Array]:
    """Weighted means of resampled jobs, in blocks that fit into a cache."""
    rng, n = _rng(), len(values)
    rows = max(1, _BLOCK // n)
    for start in range(0, _RESAMPLES, rows):
        picked = rng.integers(0, n, (min(rows, _RESAMPLES - start), n))
        drawn = weights[picked]
        yield (values[picked] * drawn).sum(axis=1) / np.maximum(drawn.sum(axis=1), 1e-300)


def _rng() -> np.random.Generator:
    """The same draws each time: a study's report does not change without its jobs."""
    return np.random.default_rng(0)


def _estimate(value: float, draws: Array, n: int) -> Estimate:
    if n < LEAST:
        return Estimate(value, None, None, n)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high), n)
