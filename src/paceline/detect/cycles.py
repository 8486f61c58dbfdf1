"""Step times that repeat every few steps, as with gradient accumulation or rotating work.

Compiled with the kernel (:mod:`paceline.detect.levels`): arrays and loops only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Shortest and longest cycle. Pairs of odd and even steps have a rule of their own.
MIN_PERIOD, MAX_PERIOD = 3, 10
#: Samples in which a cycle shows, and how many of each of its places at least.
CYCLE_SAMPLES, REPETITIONS = 64, 4
#: A cycle leaves at most this share of the spread that a shorter one leaves. Noise alone leaves
#: 0.8. A known one is dropped once it leaves more than the second share.
CLEARER, STILL_CLEAR = 0.5, 0.75
#: Least spread that is worth a cycle, and the share of the residuals that count: a change of level
#: or a pause is in the others.
_SMALL, _KEPT = 0.01, 0.8


def find_cycle(v: Floats, count: int, newest: int, known: int, shares: Floats) -> int:
    """Period of the cycle that the samples show; 0 = none.

    Args:
        v: logarithms of the samples, the newest first.
        count: number of samples, of consecutive steps.
        newest: step of the newest one.
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
        newest: step of the newest one.
        period: of the cycle.
        out: the cycle, written unless ``is_given``.
        is_given: whether ``out`` holds the cycle.
    """
    half = period // 2
    n = count - 2 * half
    rest = np.empty(n)
    for k in range(n):
        around = np.sum(v[k : k + 2 * half + 1])
        if period % 2 == 0:  # both ends are the same place of the cycle
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
    """Write the logarithms of the newest samples of consecutive steps to ``v``; their count."""
    size = len(ring)
    newest = number[(seen - 1) % size]
    for k in range(min(len(v), n)):
        row = (seen - 1 - k) % size
        if number[row] != newest - k or ring[row] <= 0:
            return k
        v[k] = np.log(float(ring[row]))
    return min(len(v), n)
