"""Columns of a rank's state in the kernel of the detector (:mod:`paceline.detect.levels`)."""

from __future__ import annotations

from paceline.detect.cycles import MAX_PERIOD
from paceline.detect.limits import ANCHOR_STEPS

#: Lengths of the windows in samples, all odd.
WINDOWS = (5, 7, 9, 17, 33, 65, 129, 257)
#: Number of samples kept for each rank.
RING = ANCHOR_STEPS

# Columns of ``floats``, in seconds if the name ends in _S:
# HEALTHY_S, LEVEL_S: the healthy level and the current one; of a cycle, those of its median place.
# MIDDLE_S: recent median of the current level, or on a ramp the level of the last event.
# LOST_S, SPENT_S: lost seconds of the episode, and its seconds at the healthy level.
# ODD: logarithm of the ratio of odd steps to even ones.
# QUANTUM_S: unit of rounded samples, 0 if they are not rounded.
# RISEN_FROM_S, RISEN: the level before the last rise, and the relative height of the rise.
# SWING: relative height of the highest swing.
# STRAY: the first of a column for each window: relative spread of its median.
# CYCLE: the first of MAX_PERIOD columns: logarithms of the cycle's places.
# MEAN: mean of the healthy samples as they are, relative to the level.
# SMALL_RISEN: relative height of a rise that gave no event and is not over, nan without one.
(
    HEALTHY_S, LEVEL_S, MIDDLE_S, LOST_S, SPENT_S, ODD, QUANTUM_S, RISEN_FROM_S, RISEN, SWING,
    STRAY,
) = range(11)  # fmt: skip
CYCLE = STRAY + len(WINDOWS)
MEAN = CYCLE + MAX_PERIOD
SMALL_RISEN = MEAN + 1
N_FLOATS = SMALL_RISEN + 1
# Columns of ``wholes``:
# SEEN, MISSING: number of samples, and of steps without one since the last.
# HOLD, PAUSED: number of samples after a pause that do not count yet; whether a pause lasts.
# SLOW: whether the rank is in an episode.
# AGE: number of samples on the current level.
# INITIAL: 1 on the first level, 2 on a ramp (ON_RAMP), 3 after "faster" (ON_TRIAL) until that level
# is the healthy one, then 1; else 0.
# SINCE, SINCE_STEP: SEEN and the step number at the begin of the last episode.
# SETTLE: 1 plus the number of samples since a restart, until the job has settled; then 0.
# BURSTS, BURST_LEN, BURST_AT: number of bursts, the longest in samples, and SEEN at the last.
# RISEN_AT: SEEN at the last rise.
# SWINGS, SWING_LEN, SWING_AT: number of swings, the longest in samples, and SEEN at the last.
# PERIOD: length of the cycle in steps, 0 = none.
# SMALL_RISEN_AT: SEEN at the begin of the small rise.
(
    SEEN, MISSING, HOLD, PAUSED, SLOW, AGE, INITIAL, SINCE, SINCE_STEP, SETTLE, BURSTS, BURST_LEN,
    BURST_AT, RISEN_AT, SWINGS, SWING_LEN, SWING_AT, PERIOD, SMALL_RISEN_AT,
) = range(19)  # fmt: skip
N_WHOLES = SMALL_RISEN_AT + 1
#: Values of INITIAL. On a ramp, MIDDLE_S is the level of the last event. After "faster", HEALTHY_S
#: is the former one until the level has lasted as long as the warm-up.
ON_RAMP, ON_TRIAL = 2, 3
# Columns of ``out``, as in paceline.detect.event.Event.
(
    OUT_KIND, OUT_RANK, OUT_SINCE, OUT_FACTOR, OUT_BEFORE, OUT_LOST, OUT_HEALTHY, OUT_BURSTS,
    OUT_EVERY,
) = range(9)  # fmt: skip
N_OUT = OUT_EVERY + 1
