"""The period of a sequence of calls: after how many calls all of it repeats.

Falcon (4.2) takes the first lag at which the autocorrelation of the calls' numeric codes reaches
0.95. Its sum over L - k products is divided by one over L, so that a period found needs 20
repetitions. Codes are compared as numbers though they are names. One missing call spoils a whole
period of products. And a step of many equal layers correlates by 0.95 at the length of a layer.

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

#: Missing, extra or exchanged calls for each call that a period may have: the paper's ACF >= 0.95.
MAX_EDITS = 0.05
#: The longest period looked for, in calls.
MAX_CALLS = 2000
#: Calls looked at, in longest periods.
_REPETITIONS = 6
#: How far missing or extra calls may move a lag.
_DRIFT = 8
#: Repetitions that make up for one missing call in however short a log, confidence below 0.95.
_FEW = 3.5
#: Edits after which a comparison is given up, on top of what its calls so far may need. So is a lag
#: that needs this multiple of another's edits.
_GRACE, _BEATEN = 8, 4.0
#: Parts of the best lag that are tried, stretches tried as the step, how many repetitions it has to
#: explain. And how many edits more than the fewest are as good.
_PARTS, _STRETCHES, _EXPLAINED, _AS_GOOD = 24, 8, 12, 1.3
#: Calls to compare below which plain Python is faster than the import of numba.
_WORTH_COMPILING = 2_000


@dataclass(frozen=True)
class Period:
    """A sequence repeats.

    Attributes:
        calls: after how many calls.
        confidence: share of the calls that are neither missing, extra nor exchanged. It is 0.95 to
            1, less with one such call in a very short log.
        repetitions: how often the period fits into the sequence.
    """

    calls: int
    confidence: float
    repetitions: float


def find_period(codes: npt.ArrayLike, *, longest: int = MAX_CALLS) -> Period | None:
    """The smallest lag at which the whole sequence repeats; None where none does.

    A few missing, extra or exchanged calls do not matter. At least two repetitions are needed, and
    three to tell a missing call from the end of a step. Of a long sequence its middle is taken.

    Args:
        codes: [call] equal numbers for equal calls; their order and distance mean nothing.
        longest: the longest period to look for, in calls.
    """
    everything = np.asarray(codes)
    window = _REPETITIONS * longest
    first = max(0, (len(everything) - window) // 2)
    x = _without_head(np.unique(everything[first:][:window], return_inverse=True)[1])
    n = len(x)
    # A bit longer than asked for: the best is looked for around a lag.
    lags = np.arange(1, min(longest + _DRIFT, n // 2) + 1)
    edits = _lag_edits(x, lags)
    if not np.isfinite(edits).any():
        return None
    lags = _candidates(lags, edits / (n - lags))
    x = x[: _EXPLAINED * lags[-1]]
    damage = np.array([_damage(x, lag) for lag in lags.tolist()])
    share = damage / (len(x) - lags)
    smallest = lags[np.argmax(share <= _AS_GOOD * share.min())]
    at = int(np.argmin(np.where(_near(lags, smallest), damage, np.inf)))
    calls, needed = int(lags[at]), float(damage[at])
    few = 1.0 if len(x) >= _FEW * calls else 0.0
    if calls > longest or needed > max(MAX_EDITS * len(x), few):
        return None
    return Period(calls, 1 - needed / len(x), len(everything) / calls)


def _candidates(lags: Ints, rate: Floats) -> Ints:
    """The best lag and its parts, ascending, and those near them that are about as good."""
    best = lags[np.argmin(rate)]
    good = np.zeros(len(lags), dtype=bool)
    for parts in range(1, _PARTS + 1):
        near = _near(lags, best / parts) & np.isfinite(rate)
        good |= near & (rate <= 2 * np.min(rate, initial=np.inf, where=near))
    return lags[good]


def _near(lags: Ints, lag: float) -> npt.NDArray[np.bool_]:
    near: npt.NDArray[np.bool_] = np.abs(lags - lag) <= min(_DRIFT, lag / 2)
    return near


def _lag_edits(x: Ints, lags: Ints) -> Floats:
    """[lag] edits between the sequence and itself so much later; infinite where too many."""
    banded_edits = _kernel(len(x) * len(lags))
    edits = np.full(len(lags), np.inf)
    least = np.inf
    # The most promising first: what they need bounds what the others may.
    equal = [np.count_nonzero(x[lag:] == x[:-lag]) / (len(x) - lag) for lag in lags.tolist()]
    for at in np.argsort(-np.array(equal), kind="stable").tolist():
        lag = int(lags[at])
        # Of a pair equal calls apart, a missing call is the later once and the earlier once.
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


def _damage(x: Ints, calls: int) -> float:
    """The fewest edits that turn a sequence into repetitions of a stretch of that length."""
    n = len(x)
    banded_edits = _kernel(n * _STRETCHES)
    least = n
    for begin in np.unique(np.linspace(0, n - calls, _STRETCHES).astype(np.int64)):
        drift = min(_DRIFT, calls // 2)
        repeated = x[begin + (np.arange(n + drift) - begin) % calls]
        row = banded_edits(x, repeated, drift, least, 0.0)
        least = min(least, int(row.min()))
    return least


def _without_head(x: Ints) -> Ints:
    """Without the calls before the loop: in the first quarter, up to the last that never returns.

    (No further: a call that is there once by mistake must not cut the loop in half.)
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
