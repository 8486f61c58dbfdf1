"""Seconds that an episode loses, and those of its steps at the healthy level.

Compiled with the kernel (:mod:`paceline.detect.levels`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.columns import HEALTHY_S, LOST_S, MEAN, SPENT_S
from paceline.detect.limits import PAUSE

Floats = npt.NDArray[np.float64]


def begin_loss(slow: Floats, raw: Floats, level: float, scale: float, f: Any) -> None:
    """Begin an episode with the samples that are slow already; a pause counts in part.

    Args:
        slow: these samples, on a common level.
        raw: the same as they are.
        level: their level.
        scale: relative expected time of the step.
        f: the rank's row of ``floats``.
    """
    mean_s = f[HEALTHY_S] * f[MEAN]
    f[LOST_S] = f[SPENT_S] = 0.0
    for k in range(len(slow)):
        value = raw[k] if slow[k] <= PAUSE * level else PAUSE * level
        f[LOST_S] += (value - mean_s) * scale
        f[SPENT_S] += mean_s * scale


def end_loss(after: Floats, raw: Floats, level: float, scale: float, f: Any) -> None:
    """Take the samples ``after`` the end of an episode, as :func:`begin_loss`, out of its loss.

    Fast steps make no slow ones good.
    """
    lost, spent = f[LOST_S], f[SPENT_S]
    mean_s = f[HEALTHY_S] * f[MEAN]
    for k in range(len(after)):
        if after[k] <= PAUSE * level:
            lost -= (raw[k] - mean_s) * scale
            spent -= mean_s * scale
    if spent >= mean_s * scale / 2:  # steps of different scale cannot be subtracted
        f[LOST_S], f[SPENT_S] = lost, spent
