"""Jumps of a series of times, and the spans between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline import robust

Array = npt.NDArray[np.float64]

#: A jump changes the step time by at least MIN_JUMP and has MIN_STEPS steps on either side. Its
#: chance without a real change is at most MAX_CHANCE.
MIN_JUMP, MAX_CHANCE, MIN_STEPS = 0.03, 0.001, 4

_TINY_S = 1e-9


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


def jump_of(times: Array, n_tests: int = 1) -> Jump | None:
    """The jump of [step] times, one of ``n_tests`` series; None if none passes the thresholds."""
    if len(times) < 2 * MIN_STEPS:
        return None
    jump = find_jump(times)
    large = abs(jump.after_s - jump.before_s) >= MIN_JUMP * jump.before_s
    apart = MIN_STEPS <= jump.at <= len(times) - MIN_STEPS
    return jump if large and apart and n_tests * jump.p_value <= MAX_CHANCE else None


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
        jump = jump_of(times[first:end], n_tests) if end - first >= 2 * least else None
        if jump is None or not least <= jump.at <= end - first - least:
            found.append((first, end))
        else:
            open_spans += [(first + jump.at, end), (first, first + jump.at)]
    return found


def find_jump(times: Array) -> Jump:
    """The likeliest jump in [step] times, at the place with the least absolute error."""
    n = len(times)
    levels = [(np.median(times[:at]), np.median(times[at:])) for at in range(1, n)]
    errors = [
        np.abs(times[:at] - before).sum() + np.abs(times[at:] - after).sum()
        for at, (before, after) in enumerate(levels, start=1)
    ]
    at = int(np.argmin(errors)) + 1
    before, after = levels[at - 1]
    logs = np.log(np.maximum(times, _TINY_S))  # slow steps are late by some factor
    chance, test = _pettitt(times), "Pettitt"
    if chance > MAX_CHANCE and (by_size := _student(logs[:at], logs[at:])) < chance:
        chance, test = by_size, "Student"
    return Jump(at, float(before), float(after), chance, test)


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


def _student(before: Array, after: Array) -> float:
    """Chance of such a distance of the sides at any place; 1 if sides overlap or are short."""
    low, high = sorted((before, after), key=lambda side: float(np.median(side)))
    n = len(before) + len(after)
    if low.max() >= high.min() or min(len(low), len(high)) < MIN_STEPS:
        return 1.0
    squares = sum(float(np.square(side - side.mean()).sum()) for side in (low, high))
    error = math.sqrt(squares / (n - 2) * (1 / len(low) + 1 / len(high)))
    t = np.array(float(high.mean() - low.mean()) / max(error, 1e-12))
    return min(1.0, 2 * (n - 1) * float(robust.student_chance(t, n - 1)))
