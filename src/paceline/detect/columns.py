"""Columns of a rank's state in the kernel of the detector (:mod:`paceline.detect.levels`)."""

from __future__ import annotations

from paceline.detect.cycles import MAX_PERIOD
from paceline.detect.limits import ANCHOR_STEPS

#: Steps of the windows (odd).
WINDOWS = (5, 7, 9, 17, 33, 65, 129, 257)
#: Samples that are remembered, and of which the median is the level at most.
RING = ANCHOR_STEPS

# Columns of ``floats``: seconds, and shares.
(
    HEALTHY_S, LEVEL_S, MIDDLE_S, LOST_S, SPENT_S, ODD, QUANTUM_S, RISEN_FROM_S, RISEN, SWING,
    STRAY,
) = range(11)  # fmt: skip
CYCLE = STRAY + len(WINDOWS)
MEAN = CYCLE + MAX_PERIOD
N_FLOATS = MEAN + 1
# Columns of ``wholes``.
(
    SEEN, MISSING, HOLD, PAUSED, SLOW, AGE, INITIAL, SINCE, SINCE_STEP, SETTLE, BURSTS, BURST_LEN,
    BURST_AT, RISEN_AT, SWINGS, SWING_LEN, SWING_AT, PERIOD,
) = range(18)  # fmt: skip
N_WHOLES = PERIOD + 1
# Columns of ``out``.
(
    OUT_KIND, OUT_RANK, OUT_SINCE, OUT_FACTOR, OUT_BEFORE, OUT_LOST, OUT_HEALTHY, OUT_BURSTS,
    OUT_EVERY,
) = range(9)  # fmt: skip
N_OUT = OUT_EVERY + 1
