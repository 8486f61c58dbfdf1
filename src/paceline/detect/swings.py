"""Swings: small rises that go back soon, and that belong to the job.

Part of the kernel :mod:`paceline.detect.levels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.detect.columns import (
    RISEN,
    RISEN_AT,
    RISEN_FROM_S,
    SEEN,
    SMALL_RISEN,
    SMALL_RISEN_AT,
    SWING,
    SWING_AT,
    SWING_LEN,
    SWINGS,
)

#: A swing is a rise of up to SWING_SHARE that goes back within SWING_STEPS samples. For the next
#: SWING_MEMORY samples, similar rises must last longer than it. Similar rises have up to
#: SWING_WIDER times its height, and longer means by more than SWING_LONGER samples. A rise goes
#: back if it ends within the share SWING_BACK of the level before it.
SWING_SHARE, SWING_STEPS, SWING_MEMORY = 0.14, 96, 10_000
SWING_WIDER, SWING_LONGER, SWING_BACK = 1.3, 8, 0.04
#: A median of nine samples (``levels.LOW_OF``) above the first share shows a small rise that is no
#: event. It is over when one is below the second share. A longer one than the steps is no swing:
#: while similar rises wait for as long, they would raise the level.
SMALL_RISE, SMALL_RISE_OVER, SMALL_RISE_STEPS = 0.05, 0.025, 64


def is_swing(new: float, level: float, count: int, f: Any, w: Any) -> bool:
    """Whether a rise is like this rank's earlier swings, and has not lasted longer.

    Args:
        new: level of the rise.
        level: level before it.
        count: number of samples since then.
        f: the rank's row of ``floats``.
        w: the rank's row of ``wholes``.
    """
    if w[SWINGS] == 0 or w[SEEN] - w[SWING_AT] > SWING_MEMORY:
        return False
    is_high = new >= level * (1 + SWING_WIDER * f[SWING])
    return bool(not is_high and count <= w[SWING_LEN] + SWING_LONGER)


def learn_swing(is_up: bool, level: float, new: float, count: int, f: Any, w: Any) -> None:
    """Record the height and length of a small rise that went back soon."""
    at = w[SEEN] - count
    f[SMALL_RISEN] = np.nan
    if is_up:
        f[RISEN_FROM_S], f[RISEN], w[RISEN_AT] = level, new / level - 1, at
        return
    length = at - w[RISEN_AT]
    is_back = abs(new / f[RISEN_FROM_S] - 1) <= SWING_BACK  # False (nan) without a rise
    if is_back:
        record_swing(f[RISEN], length, at, f, w)


def learn_small_rise(height: float, f: Any, w: Any) -> None:
    """Record a swing that was too small or too uncertain for an event.

    Args:
        height: of the last LOW_OF samples above the level, as a share of it.
        f: the rank's row of ``floats``.
        w: the rank's row of ``wholes``.
    """
    is_risen = f[SMALL_RISEN] == f[SMALL_RISEN]
    if height > SMALL_RISE:
        if not is_risen:
            f[SMALL_RISEN], w[SMALL_RISEN_AT] = height, w[SEEN]
        f[SMALL_RISEN] = max(f[SMALL_RISEN], height)
    elif height < SMALL_RISE_OVER and is_risen:
        length = w[SEEN] - w[SMALL_RISEN_AT]
        if length <= SMALL_RISE_STEPS:
            record_swing(f[SMALL_RISEN], length, w[SEEN], f, w)
        f[SMALL_RISEN] = np.nan


def record_swing(height: float, length: int, at: int, f: Any, w: Any) -> None:
    """Record a rise that went back at sample ``at``, unless it was high or long."""
    if height > SWING_SHARE or length > SWING_STEPS:
        return
    if w[SWINGS] == 0 or at - w[SWING_AT] > SWING_MEMORY:
        w[SWINGS], w[SWING_LEN], f[SWING] = 0, 0, 0.0
    w[SWINGS] += 1
    w[SWING_LEN], w[SWING_AT] = max(w[SWING_LEN], length), at
    f[SWING] = max(f[SWING], height)
