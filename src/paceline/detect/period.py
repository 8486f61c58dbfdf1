"""The period of a sequence of calls: the number of calls after which it repeats.

Falcon (4.2) takes the first lag at which the autocorrelation of the calls' numeric codes reaches
0.95. Its sum over L - k products is divided by one over L, so that a period found needs 20
repetitions. Codes are compared as numbers, although they are names. One missing call spoils a whole
period of products. A step of many equal layers correlates by 0.95 at the length of a layer.

Here two calls are equal or not, and a lag is judged by the edit distance between the sequence and
itself, shifted by the lag. That counts a missing call at every multiple of the period. The period
is the smallest part of the best lag whose repetition explains the sequence as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.jit import compiled

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Largest share of missing, extra or exchanged calls in a period: the paper's ACF >= 0.95.
MAX_EDITS = 0.05
#: Longest period, in calls.
MAX_CALLS = 2000
#: Examined calls, as a multiple of the longest period.
_REPETITIONS = 6
#: Largest shift of a lag by missing or extra calls.
_DRIFT = 8
#: Repetitions that make up for one missing call even in a short log, with confidence below 0.95.
_FEW = 3.5
#: Edits beyond the expected ones after which a comparison stops. A lag that needs this multiple of
#: another's edits is dropped, too.
_GRACE, _BEATEN = 8, 4.0
#: Parts of the best lag of which nearby lags are tried, too; tried stretches of the step, and the
#: repetitions it must explain; then the ratio to the fewest edits that counts as equally good.
_PARTS, _STRETCHES, _EXPLAINED, _AS_GOOD = 24, 8, 12, 1.3
#: Calls to compare below which plain Python is faster than the import of numba.
_WORTH_COMPILING = 2_000


@dataclass(frozen=True)
class Period:
    """The repetition of a sequence.

    Attributes:
        calls: number of calls of the period.
        confidence: share of the calls that are not missing, extra or exchanged. It is 0.95 to 1, or
            less with one such call in a very short log.
        repetitions: length of the sequence in periods.
    """

    calls: int
    confidence: float
    repetitions: float


def find_period(codes: npt.ArrayLike, *, longest: int = MAX_CALLS) -> Period | None:
    """The smallest lag at which the whole sequence repeats; None without any.

    A few missing, extra or exchanged calls are tolerated. At least two repetitions are needed, and
    three to distinguish a missing call from the end of a step. The middle of a long sequence is
    used.

    Args:
        codes: [call] equal numbers for equal calls; their order and distance mean nothing.
        longest: longest period, in calls.
    """
    everything = np.asarray(codes)
    window = _REPETITIONS * longest
    first = max(0, (len(everything) - window) // 2)
    x = _without_head(np.unique(everything[first:][:window], return_inverse=True)[1])
    n = len(x)
    # Slightly longer than requested, as the best lag is searched nearby.
    lags = np.arange(1, min(longest + _DRIFT, n // 2) + 1)
    edits = _lag_edits(x, lags)
    if not np.isfinite(edits).any():
        return None
    lags = _candidates(lags, edits / (n - lags))
    x = x[: _EXPLAINED * lags[-1]]
    damage = _damages(x, lags)
    share = damage / (len(x) - lags)
    smallest = lags[np.argmax(share <= _AS_GOOD * share.min())]
    at = int(np.argmin(np.where(_near(lags, smallest), damage, np.inf)))
    calls, needed = int(lags[at]), float(damage[at])
    few = 1.0 if len(x) >= _FEW * calls else 0.0
    if calls > longest or needed > max(MAX_EDITS * len(x), few):
        return None
    return Period(calls, 1 - needed / len(x), len(everything) / calls)


def _candidates(lags: Ints, rate: Floats) -> Ints:
    """The best lag, its parts and nearby lags that are about as good, ascending."""
    best = lags[np.argmin(rate)]
    good = np.zeros(len(lags), dtype=bool)
    for parts in range(1, int(best) + 1):
        near = _near(lags, best / parts) & np.isfinite(rate)
        least = np.min(rate, initial=np.inf, where=near)
        good |= near & (rate <= (2 * least if parts <= _PARTS else least))
    return lags[good]


def _near(lags: Ints, lag: float) -> npt.NDArray[np.bool_]:
    near: npt.NDArray[np.bool_] = np.abs(lags - lag) <= min(_DRIFT, lag / 2)
    return near


def _lag_edits(x: Ints, lags: Ints) -> Floats:
    """[lag] edits between the sequence and its shifted copy; infinite if too many."""
    banded_edits = _kernel(len(x) * len(lags))
    edits = np.full(len(lags), np.inf)
    least = np.inf
    # The most promising first, as their edits bound those of the others.
    equal = [np.count_nonzero(x[lag:] == x[:-lag]) / (len(x) - lag) for lag in lags.tolist()]
    for at in np.argsort(-np.array(equal), kind="stable").tolist():
        lag = int(lags[at])
        # A missing call counts twice: once as the later and once as the earlier of a pair.
        most, rate = 2 * (MAX_EDITS * len(x) + 1), 2 * MAX_EDITS
        first = most - rate * (len(x) - lag) + _GRACE
        if _BEATEN * least + _GRACE < most:
            first, rate = _BEATEN * least + _GRACE, 0.0
        drift = min(_DRIFT, lag // 2)
        row = banded_edits(x[:-lag], x[lag:], drift, first, rate)
        if row[drift] <= most:
            edits[at] = row[drift]
            least = min(least, edits[at])
    return edits


def _damages(x: Ints, lags: Ints) -> Floats:
    """[lag] fewest edits that turn the sequence into repetitions of a stretch of that length.

    More than ``_AS_GOOD`` times another's, each as a share of ``len(x) - lag``, may be more yet.
    """
    damage, least = np.empty(len(lags)), 1.0
    # The longest first: the best lag is among them.
    for at in range(len(lags) - 1, -1, -1):
        calls = int(lags[at])
        compared = len(x) - calls
        damage[at] = _damage(x, calls, int(np.ceil(_AS_GOOD * least * compared)) + 1)
        least = min(least, damage[at] / compared)
    return damage


def _damage(x: Ints, calls: int, most: int) -> float:
    """Fewest edits that turn the sequence into repetitions of a stretch of that length.

    ``most`` or the number of calls, if they are more.
    """
    n = len(x)
    banded_edits = _kernel(n * _STRETCHES)
    least = min(n, most)
    for begin in np.unique(np.linspace(0, n - calls, _STRETCHES).astype(np.int64)):
        drift = min(_DRIFT, calls // 2)
        repeated = x[begin + (np.arange(n + drift) - begin) % calls]
        row = banded_edits(x, repeated, drift, least, 0.0)
        least = min(least, int(row.min()))
    return least


def _without_head(x: Ints) -> Ints:
    """Remove calls before the loop: in the first quarter, up to the last that never recurs.

    (Not beyond, as a call that occurs once by mistake must not cut the loop in half.)
    """
    once = np.flatnonzero(~np.isin(x[: len(x) // 4], x[len(x) // 2 :]))
    return x[once[-1] + 1 :] if len(once) else x


def _kernel(work: int) -> Callable[..., Ints]:
    return compiled(_banded_edits) if work > _WORTH_COMPILING else _banded_edits


def _banded_edits(a: Ints, b: Ints, drift: int, allowance: float, rate: float) -> Ints:
    """Last row of the table of edit distances of two sequences.

    Returns:
        [diagonal] edits between all of a and the first len(a) + diagonal - drift calls of b; no
        other places of a row are computed. More than ``allowance + rate * i`` edits after i calls
        give len(a) + 1.
    """
    n, m = len(a), len(b)
    unreachable = n + 1
    row = np.full(2 * drift + 1, unreachable)
    for diagonal in range(drift, min(2 * drift, m + drift) + 1):
        row[diagonal] = diagonal - drift
    for i in range(1, n + 1):
        lowest = left_cost = unreachable
        for diagonal in range(2 * drift + 1):
            j = i + diagonal - drift
            cost = unreachable
            if 0 < j <= m:
                cost = min(row[diagonal] + (a[i - 1] != b[j - 1]), left_cost + 1)
            if 0 <= j <= m and diagonal < 2 * drift:
                cost = min(cost, row[diagonal + 1] + 1)
            row[diagonal] = left_cost = cost
            lowest = min(lowest, cost)
        if lowest > allowance + rate * i:
            row[:] = unreachable
            break
    return row
