"""Learn which steps of a rank repeat: odd and even ones, and cycles of 3 to 10 steps.

Compiled with the kernel (:mod:`paceline.detect.levels`): arrays and loops only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.columns import (
    CYCLE,
    HEALTHY_S,
    LEVEL_S,
    MEAN,
    MIDDLE_S,
    ODD,
    PERIOD,
    RING,
    RISEN_FROM_S,
    SEEN,
    SLOW,
    STRAY,
    WINDOWS,
)
from paceline.detect.cycles import CYCLE_SAMPLES, MAX_PERIOD, find_cycle, logarithms
from paceline.robust import SIGMA_OF_MAD

Floats = npt.NDArray[np.float64]

#: Pairs of samples that odd and even steps are compared in, and the difference that counts.
PAIR_SAMPLES, PAIR_SHARE = 48, 0.02


def learn_pairs(ring: Any, number: Any, n: int, seen: int, f: Any) -> None:
    """Logarithm of how much longer odd steps take than even ones, where they alternate.

    Neighbours are compared, so that a change of level does not matter.
    """
    up, down = np.empty(PAIR_SAMPLES), np.empty(PAIR_SAMPLES)
    n_up = n_down = 0
    for k in range(min(PAIR_SAMPLES, n - 1)):
        a, b = (seen - 1 - k) % RING, (seen - 2 - k) % RING
        if number[a] != number[b] + 1 or ring[a] <= 0 or ring[b] <= 0:
            continue
        ratio = math.log(float(ring[a]) / float(ring[b]))
        if number[a] & 1:
            up[n_up] = ratio
            n_up += 1
        else:
            down[n_down] = -ratio
            n_down += 1
    if n_up < PAIR_SAMPLES // 4 or n_down < PAIR_SAMPLES // 4:
        return
    rise, fall = np.median(up[:n_up]), np.median(down[:n_down])
    odd = float((rise + fall) / 2)
    spread = SIGMA_OF_MAD * max(
        np.median(np.abs(up[:n_up] - rise)), np.median(np.abs(down[:n_down] - fall))
    )
    if abs(odd) < PAIR_SHARE + spread or abs(rise - fall) > abs(odd):
        odd = 0.0
    if abs(odd - f[ODD]) > PAIR_SHARE:
        f[ODD] = odd
    else:
        f[ODD] += 0.2 * (odd - f[ODD])


def learn_cycle(ring: Any, number: Any, n: int, f: Any, w: Any) -> None:
    """Learn which steps of a cycle take longer; the levels go on as the new cycle has them."""
    v = np.empty(CYCLE_SAMPLES)
    count = logarithms(ring, number, n, w[SEEN], v)
    shares = f[CYCLE : CYCLE + MAX_PERIOD].copy()
    period = find_cycle(v, count, number[(w[SEEN] - 1) % RING], w[PERIOD], shares)
    is_other = period != w[PERIOD]
    before = cycled_median(ring, number, count, f, w) if is_other else 1.0
    w[PERIOD] = period
    f[CYCLE : CYCLE + MAX_PERIOD] = shares
    if not is_other or np.isnan(f[LEVEL_S]):
        return
    ratio = cycled_median(ring, number, count, f, w) / before
    for column in (HEALTHY_S, LEVEL_S, MIDDLE_S, RISEN_FROM_S):
        f[column] *= ratio
    f[MEAN] /= ratio
    if not w[SLOW]:
        f[STRAY : STRAY + len(WINDOWS)] = np.nan


def cycled_median(ring: Any, number: Any, count: int, f: Any, w: Any) -> float:
    """The median of the newest samples on one level."""
    place = np.empty(MAX_PERIOD)
    period = places(f, w, place)
    y = np.empty(max(1, count))
    for k in range(len(y)):
        row = (w[SEEN] - 1 - k) % RING
        y[k] = float(ring[row]) * place[number[row] % period]
    return float(np.median(y))


def places(f: Any, w: Any, place: Floats) -> int:
    """Write what brings a step to the common level, by its number modulo the period returned.

    The level of a cycle is that of its median place. Its mean place would move with a level: a
    place that takes 200 ms longer is a smaller share of longer steps.
    """
    if w[PERIOD] > 0:
        middle = np.median(f[CYCLE : CYCLE + w[PERIOD]])
        for j in range(w[PERIOD]):
            place[j] = math.exp(middle - f[CYCLE + j])
        return int(w[PERIOD])
    place[0], place[1] = math.exp(f[ODD] / 2), math.exp(-f[ODD] / 2)
    return 2
