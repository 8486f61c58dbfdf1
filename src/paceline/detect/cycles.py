"""Step times that repeat every few steps, as with gradient accumulation or rotating work.

Compiled with the kernel (:mod:`paceline.detect.levels`): arrays and loops only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Shortest and longest cycle. Another rule handles pairs of odd and even steps.
MIN_PERIOD, MAX_PERIOD = 3, 10
#: Samples for finding a cycle, and the least number for each of its places.
CYCLE_SAMPLES, REPETITIONS = 64, 4
#: Largest ratio of the spread after removing a cycle to that of a shorter one. Noise alone gives
#: 0.8. A known cycle is dropped above the second share.
CLEARER, STILL_CLEAR = 0.5, 0.75
#: Least spread for a cycle, and the share of the residuals that count; the others hold level
#: changes and pauses.
_SMALL, _KEPT = 0.01, 0.8


def find_cycle(v: Floats, count: int, newest: int, known: int, shares: Floats) -> int:
    """Period of the cycle in the samples; 0 = none.

    Args:
        v: logarithms of the samples, the newest first.
        count: number of samples, of consecutive steps.
        newest: step of the newest sample.
        known: period of the cycle known before, 0 = none.
        shares: [MAX_PERIOD] the known cycle's logarithms by step modulo period; those of the cycle
            that is returned are written to it. Their mean is 0.
    """
    out = np.zeros(MAX_PERIOD)
    if count < (REPETITIONS + 1) * MIN_PERIOD:
        return known
    least = plain = cycle_spread(v, count, newest, 2, out, False)
    if plain < _SMALL:
        return 0
    period = 0
    for candidate in range(MIN_PERIOD, MAX_PERIOD + 1):
        if count < (REPETITIONS + 1) * candidate:
            break
        spread = cycle_spread(v, count, newest, candidate, out, False)
        if spread < CLEARER * least:
            least, period = spread, candidate
            shares[:] = out
    if period == 0 and known > 0:
        out[:] = shares
        spread = cycle_spread(v, count, newest, known, out, True)
        if spread < STILL_CLEAR * plain:
            period = known
    return period


def cycle_spread(
    v: Floats, count: int, newest: int, period: int, out: Floats, is_given: bool
) -> float:
    """Mean deviation of samples from a cycle around their moving mean.

    Args:
        v: logarithms, the newest first.
        count: number of samples.
        newest: step of the newest sample.
        period: of the cycle.
        out: the cycle, written unless ``is_given``.
        is_given: whether ``out`` holds the cycle.
    """
    half = period // 2
    n = count - 2 * half
    rest = np.empty(n)
    for k in range(n):
        around = np.sum(v[k : k + 2 * half + 1])
        if period % 2 == 0:  # both ends have the same place in the cycle
            around -= (v[k] + v[k + 2 * half]) / 2
        rest[k] = v[k + half] - around / period
    place = np.empty(n, dtype=np.int64)
    for k in range(n):
        place[k] = (newest - half - k) % period
    if not is_given:
        out[:] = 0.0
        for j in range(period):
            out[j] = np.median(rest[place == j])
        out[:period] -= np.mean(out[:period])
    for k in range(n):
        rest[k] = abs(rest[k] - out[place[k]])
    return float(np.mean(np.sort(rest)[: max(1, int(_KEPT * n))]))


def logarithms(ring: Any, number: Any, n: int, seen: int, v: Floats) -> int:
    """Write logarithms of the newest samples of consecutive steps to ``v``; returns the count."""
    size = len(ring)
    newest = number[(seen - 1) % size]
    for k in range(min(len(v), n)):
        row = (seen - 1 - k) % size
        if number[row] != newest - k or ring[row] <= 0:
            return k
        v[k] = np.log(float(ring[row]))
    return min(len(v), n)
