"""Jumps of a series of times, periods of other times, and the spans between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paceline import robust

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: A jump or a period changes the step time by at least MIN_JUMP and has MIN_STEPS steps on either
#: side. Its chance without a real change is at most MAX_CHANCE.
MIN_JUMP, MAX_CHANCE, MIN_STEPS = 0.03, 0.001, 4

_TINY_S = 1e-9

#: Places at which a jump is sought first; then at all places within _BESIDE of their distances.
_PLACES, _BESIDE = 500, 10

#: A period may be as short as this share of the steps.
_FEW = 0.05


@dataclass(frozen=True)
class Jump:
    """One jump of step times.

    Attributes:
        at: index of the first step behind it.
        before_s, after_s: median step times, or a worker's times over those of its peers.
        p_value: chance of such times without a jump.
        test: the test used: "Pettitt" by ranks, or "Student" where the sides do not overlap. A
            dozen steps are too few for a rank test.
    """

    at: int
    before_s: float
    after_s: float
    p_value: float
    test: str


@dataclass(frozen=True)
class Period:
    """Steps within a trace whose times differ from those before and behind them.

    Attributes:
        first, end: indices of its first step and of the first step behind it.
        inside_s, outside_s: median step times, or a worker's times over those of its peers.
        p_value: chance of such times without a change.
        test: the test used: "Kuiper" by ranks, or "Student" where the times inside and outside do
            not overlap.
    """

    first: int
    end: int
    inside_s: float
    outside_s: float
    p_value: float
    test: str

    def inside(self, n_steps: int) -> Mask:
        """[step] whether a step is inside."""
        return _between(self.first, self.end, n_steps)


def jump_of(times: Array, n_tests: int = 1) -> Jump | None:
    """The jump of [step] times, one of ``n_tests`` series; None if none passes the thresholds."""
    if len(times) < 2 * MIN_STEPS:
        return None
    jump = find_jump(times)
    large = abs(jump.after_s - jump.before_s) >= MIN_JUMP * jump.before_s
    apart = MIN_STEPS <= jump.at <= len(times) - MIN_STEPS
    return jump if large and apart and n_tests * jump.p_value <= MAX_CHANCE else None


def period_of(times: Array, n_tests: int = 1) -> Period | None:
    """The period of other [step] times, in one of ``n_tests`` series.

    None if none passes the thresholds, or if one jump describes the times as well.
    """
    if len(times) < 3 * MIN_STEPS:
        return None
    period = find_period(times)
    large = abs(period.inside_s - period.outside_s) >= MIN_JUMP * period.outside_s
    lengths = (period.first, period.end - period.first, len(times) - period.end)
    if not large or min(lengths) < MIN_STEPS or n_tests * period.p_value > MAX_CHANCE:
        return None
    fitted = np.where(period.inside(len(times)), period.inside_s, period.outside_s)
    jump = find_jump(times)
    jumped = np.repeat([jump.before_s, jump.after_s], [jump.at, len(times) - jump.at])
    of_jump, of_period = (float(np.abs(times - fit).sum()) for fit in (jumped, fitted))
    # The second place must earn its freedom (Schwarz 1978, with errors of Laplace).
    is_better = len(times) * math.log(max(of_jump, _TINY_S) / max(of_period, _TINY_S))
    return period if is_better >= math.log(len(times)) else None


def slower_steps(times: Array, n_tests: int = 1) -> Mask | None:
    """Mask of the steps on the slower side of a jump, or of those in or around a period.

    None if the [step] times, one of ``n_tests`` series, have neither.
    """
    period = period_of(times, n_tests)
    if period is not None:
        inside = period.inside(len(times))
        return inside if period.inside_s > period.outside_s else ~inside
    jump = jump_of(times, n_tests)
    if jump is None:
        return None
    behind = _between(jump.at, len(times), len(times))
    return behind if jump.after_s > jump.before_s else ~behind


def spans(times: Array, least: int, n_tests: int = 1) -> list[tuple[int, int]]:
    """(first, end) indices of the parts of [step] times between jumps.

    Args:
        times: one of ``n_tests`` series.
        least: least length of a part.
        n_tests: number of series of which the likeliest to jump was chosen.
    """
    found, open_spans = [], [(0, len(times))]
    while open_spans:
        first, end = open_spans.pop()
        places = _places(times[first:end], least, n_tests)
        if places:
            bounds = [first, *(first + place for place in places), end]
            open_spans += reversed(list(pairwise(bounds)))
        else:
            found.append((first, end))
    return found


def _places(times: Array, least: int, n_tests: int) -> list[int]:
    """Indices that part [step] times at a period or at a jump; none if a part is too short."""
    if len(times) < 2 * least:
        return []
    period, jump = period_of(times, n_tests), jump_of(times, n_tests)
    choices = [[period.first, period.end]] if period else []
    choices += [[jump.at]] if jump else []
    for places in choices:
        if min(b - a for a, b in pairwise([0, *places, len(times)])) >= least:
            return places
    return []


def find_jump(times: Array) -> Jump:
    """The likeliest jump in [step] times, at the place with the least absolute error."""
    n = len(times)
    stride = max(1, n // _PLACES)
    near = min(range(stride, n, stride), key=lambda at: _error_at(times, at))
    places = range(max(1, near - _BESIDE * stride), min(n, near + _BESIDE * stride + 1))
    at = min(places, key=lambda place: _error_at(times, place))
    logs = np.log(np.maximum(times, _TINY_S))  # slow steps are late by some factor
    chance, test = _pettitt(times), "Pettitt"
    if chance > MAX_CHANCE and (by_size := _student(logs[:at], logs[at:], n - 1)) < chance:
        chance, test = by_size, "Student"
    before_s, after_s = float(np.median(times[:at])), float(np.median(times[at:]))
    return Jump(at, before_s, after_s, chance, test)


def _error_at(times: Array, at: int) -> float:
    """Absolute error of [step] times beside their medians on the two sides of a place."""
    return sum(float(np.abs(part - np.median(part)).sum()) for part in (times[:at], times[at:]))


def find_period(times: Array) -> Period:
    """The likeliest period in [step] times, at the place with the least absolute error.

    The search begins with the levels on either side of the extremes of the sums of ranks, and with
    the level of the longest and of the shortest steps. The latter find a short period.
    """
    n = len(times)
    ranks = np.argsort(np.argsort(times)) - (n - 1) / 2
    sums = np.concatenate([[0.0], np.cumsum(ranks)])
    first, end = sorted((int(sums.argmin()), int(sums.argmax())))
    usual_s = float(np.median(times))
    starts = [_levels(times, _between(first, end, n))]
    starts += [(float(np.quantile(times, at)), usual_s) for at in (_FEW, 1 - _FEW)]
    _, first, end = min(_place(times, *levels) for levels in starts)
    inside = _between(first, end, n)
    chance, test = _kuiper(float(np.ptp(sums)), n), "Kuiper"
    if chance > MAX_CHANCE:
        logs = np.log(np.maximum(times, _TINY_S))
        by_size = _student(logs[inside], logs[~inside], n * (n - 1) // 2)
        chance, test = min((chance, test), (by_size, "Student"))
    return Period(first, end, *_levels(times, inside), chance, test)


def _between(first: int, end: int, n: int) -> Mask:
    step = np.arange(n)
    between: Mask = (step >= first) & (step < end)
    return between


def _place(times: Array, inside_s: float, outside_s: float) -> tuple[float, int, int]:
    """Absolute error, first index and end of the period that begins a search with two levels."""
    first, end = _least_sum(np.abs(times - inside_s) - np.abs(times - outside_s))
    inside = _between(first, end, len(times))
    inside_s, outside_s = _levels(times, inside)
    return float(np.abs(times - np.where(inside, inside_s, outside_s)).sum()), first, end


def _levels(times: Array, inside: Mask) -> tuple[float, float]:
    """Median [step] times inside and outside a period; both are the same if one has no step."""
    levels = [float(np.median(times[part])) for part in (inside, ~inside) if part.any()]
    return levels[0], levels[-1]


def _least_sum(values: Array) -> tuple[int, int]:
    """(first, end) indices of the adjacent values with the least sum."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    above = np.maximum.accumulate(sums) - sums
    end = int(above.argmax())
    return int(sums[: end + 1].argmax()), end


def _kuiper(span: float, n: int) -> float:
    """Chance of such a span of the sums of ranks in any order (Kuiper 1960)."""
    size = span / math.sqrt(n * (n * n - 1) / 12)
    terms = [(4 * (k * size) ** 2 - 1) * math.exp(-2 * (k * size) ** 2) for k in range(1, 101)]
    return min(1.0, max(0.0, 2 * sum(terms))) if size > 0.4 else 1.0


def _pettitt(times: Array) -> float:
    """Chance of such ranks if there is no jump (Pettitt 1979)."""
    n = len(times)
    return min(1.0, 2 * math.exp(-6 * jump_score(times) ** 2 / (n**3 + n**2)))


def jump_score(times: Array) -> float:
    """Pettitt's statistic of [step] times: largest for the clearest jump."""
    n = len(times)
    rank = np.argsort(np.argsort(times)) + 1
    score = 2 * np.cumsum(rank)[:-1] - np.arange(1, n) * (n + 1)
    return float(np.abs(score).max())


def _student(one: Array, other: Array, n_places: int) -> float:
    """Chance of such a distance of the sides at any place; 1 if sides overlap or are short."""
    n = len(one) + len(other)
    if min(len(one), len(other)) < MIN_STEPS:
        return 1.0
    low, high = sorted((one, other), key=lambda side: float(np.median(side)))
    if low.max() >= high.min():
        return 1.0
    squares = sum(float(np.square(side - side.mean()).sum()) for side in (low, high))
    error = math.sqrt(squares / (n - 2) * (1 / len(low) + 1 / len(high)))
    t = np.array(float(high.mean() - low.mean()) / max(error, 1e-12))
    return min(1.0, 2 * n_places * float(robust.student_chance(t, n - 1)))
