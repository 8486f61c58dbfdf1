"""The kernel of the detector: one step of all ranks against their levels.

Each rank has a healthy level and a current one, which differ in an episode. Windows of the last w
samples are tested both ways against the current level. A change sets a new one, so that the next
change is tested against that. The rules and their rates: docs/detect.md, docs/measured.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.columns import (
    AGE,
    BURST_AT,
    BURST_LEN,
    BURSTS,
    HEALTHY_S,
    HOLD,
    INITIAL,
    LEVEL_S,
    LOST_S,
    MEAN,
    MIDDLE_S,
    MISSING,
    OUT_BEFORE,
    OUT_BURSTS,
    OUT_EVERY,
    OUT_FACTOR,
    OUT_HEALTHY,
    OUT_KIND,
    OUT_LOST,
    OUT_RANK,
    OUT_SINCE,
    PAUSED,
    QUANTUM_S,
    RING,
    RISEN,
    RISEN_AT,
    RISEN_FROM_S,
    SEEN,
    SETTLE,
    SINCE,
    SINCE_STEP,
    SLOW,
    SPENT_S,
    STRAY,
    SWING,
    SWING_AT,
    SWING_LEN,
    SWINGS,
    WINDOWS,
)
from paceline.detect.cycles import MAX_PERIOD, cycle_spread, find_cycle, logarithms
from paceline.detect.limits import PAUSE, SILENT_AFTER
from paceline.detect.repeats import cycled_median, learn_cycle, learn_pairs, places
from paceline.detect.samples import FEWEST, beat, is_ramp, middle_mean, quantum
from paceline.detect.warm_up import (
    APART,
    is_falling,
    is_gradual,
    is_settled,
    level_samples,
    settled_samples,
)
from paceline.jit import compiled
from paceline.robust import SIGMA_OF_MAD, SIGMA_OF_MEAN_DEVIATION

Floats = npt.NDArray[np.float64]

#: Interpreted, a sample takes 0.5 ms. Behind this number compiled code is worth its import (0.3 s)
#: and, once on each machine, the 7 s in which it is compiled.
INTERPRETED_SAMPLES = 2_000

#: Samples that are a healthy level at least where the rank becomes slow within its warm-up. The
#: first steps of a job may be fast, as long as its input is prefetched.
EARLY = 15

#: Standard deviations of each window's median on top of the threshold: a level of 8% is not taken
#: for one of 10%. Short windows are looked at more often, so they must be surer than long ones.
SURE = (2.2, 2.0, 1.8, 1.4, 0.8, 0.8, 0.8, 0.8)
#: Spreads that a level differs by in any case: noise above the threshold is no change.
STRAYS = (6.0, 5.8, 5.7, 5.4, 4.1, 2.4, 0.0, 0.0)
#: Samples after which a level is estimated anew, and the share by which it moves with each sample
#: later on: 10% in 10,000 samples.
LEVEL_EVERY, DRIFT = 16, 1e-5
#: Samples after a pause in which the job warms up again.
AFTER_PAUSE = 5
#: Of the last 9 samples, how many must lie below before a level is left downwards.
LOW_OF, LOW = 9, 7
#: A level at most this share above the healthy level is healthy again.
HEALTHY = 0.05
#: Memory of the estimates of noise, in samples; samples between medians it is measured around.
NOISE_STEPS, MIDDLE_EVERY = 400, 64
#: Episodes up to this many samples are bursts. After a few of them, only those count that are
#: longer by more than the third number, until for the last number of samples none has come.
BURST, FEW_BURSTS, BURST_LONGER, BURST_MEMORY = 8, 2, 2, 2000
#: A level up to this share higher that goes back within these samples is a swing. After one, no
#: level up to 1.3 times as high counts before it has lasted longer than the longest did.
SWING_SHARE, SWING_STEPS, SWING_MEMORY = 0.14, 96, 10_000
SWING_WIDER, SWING_LONGER, SWING_BACK = 1.3, 8, 0.04
#: The fewest samples of a new level lie within this share of their excess.
AGREE = 0.5
#: Samples without a rise that end a ramp.
RAMP_OVER = 20
#: Samples of a level up to which it is young, and its bar wider.
YOUNG = 128

ONSET, WORSENING, PARTIAL, RELIEF, FASTER, SILENT = range(6)
#: INITIAL's answer for a level that goes up a ramp; MIDDLE_S is then the level last told.
ON_RAMP = 2


def advance(
    step: int,
    x: Floats,
    missing: Any,
    scale: float,
    threshold: float,
    warm_up: int,
    ring: Any,
    number: Any,
    evidence: Any,
    floats: Floats,
    wholes: Any,
    out: Floats,
) -> int:
    """Take a step; write the events to ``out`` and return how many there are.

    Args:
        step: its number.
        x: [rank] seconds over the expected ones of the step.
        missing: [rank] whether there is no sample.
        scale: expected time of the step, over that of the first.
        threshold: share that counts as a change.
        warm_up: samples before anything is said.
        ring: [rank, RING] samples.
        number: [rank, RING] their steps.
        evidence: [rank, RING] whether they count.
        floats: [rank, column] seconds and shares of the state.
        wholes: [rank, column] counts and flags of the state.
        out: [row, N_OUT] events.
    """
    n_out = 0
    y = np.empty(RING)
    ok = np.empty(RING, dtype=np.uint8)
    place = np.empty(MAX_PERIOD)
    for rank in range(len(x)):
        f, w = floats[rank], wholes[rank]
        if missing[rank]:
            w[MISSING] += 1
            if w[MISSING] == SILENT_AFTER:
                write(out, n_out, SILENT, rank, step, np.nan, np.nan, f)
                n_out += 1
            continue
        w[MISSING] = 0
        at = w[SEEN] % RING
        ring[rank, at], number[rank, at], evidence[rank, at] = x[rank], step, 0
        w[SEEN] += 1
        w[AGE] += 1
        n = min(w[SEEN], RING)
        is_evidence = judged(float(ring[rank, at]), f, w)
        evidence[rank, at] = is_evidence
        if w[SEEN] < warm_up:
            continue
        is_first = bool(np.isnan(f[LEVEL_S]))
        if is_first:  # a restart before there is a level needs no rule of its own
            w[SETTLE] = 0
        if w[SEEN] == warm_up or (w[SEEN] % LEVEL_EVERY == 0 and w[SEEN] > warm_up):
            learn_pairs(ring[rank], number[rank], n, w[SEEN], f)
            learn_cycle(ring[rank], number[rank], n, f, w)
        period = places(f, w, place)
        for k in range(n):  # y[0] is the newest
            row = (w[SEEN] - 1 - k) % RING
            y[k] = float(ring[rank, row]) * place[number[rank, row] % period]
            ok[k] = evidence[rank, row]
        if is_first:
            count = level_samples(y, n, threshold)
            if count == 0 and n < RING:
                continue
            n = w[AGE] = max(count, min(n, EARLY))
        if w[SETTLE] > 0:
            w[SETTLE] += 1
            stray = f[STRAY] if f[STRAY] == f[STRAY] else 0.0
            if is_settled(y, w[SETTLE] - 1, stray, f[HEALTHY_S] * (1 + threshold)):
                count = settled_samples(y, min(n, w[SETTLE] - 1), threshold / 2)
                w[SETTLE] = 0
                for k in range(count):
                    row = (w[SEEN] - 1 - k) % RING
                    evidence[rank, row] = ok[k] = 1
                w[AGE] = min(w[AGE], count)  # what came before it settled is no level
                if w[INITIAL] == 1:  # the level is that from before the restart, not these samples
                    w[INITIAL] = 0
            else:
                continue
        follow_level(y, n, is_first, is_evidence, f, w)
        if is_first:
            f[MEAN] = mean_share(y[: n // 2], f[LEVEL_S])
        elif y[0] <= PAUSE * f[LEVEL_S]:
            if w[SLOW]:
                f[LOST_S] += (y[0] - f[HEALTHY_S] * f[MEAN]) * scale
                f[SPENT_S] += f[HEALTHY_S] * f[MEAN] * scale
            else:
                f[MEAN] += (y[0] / f[MIDDLE_S] - f[MEAN]) / n
        window = early_rise(y, n, threshold, f, w) if is_first else 0
        if not is_first or window != 0:
            if not is_first:
                window = changed(y, ok, n, threshold, f, w)
            kind = -1
            if window != 0:
                was_slow = w[SLOW]
                kind, since, factor, before = change(
                    window, y, n, w[SEEN] - warm_up, threshold, scale, number[rank], f, w
                )
                if kind == WORSENING and is_ramp(y, n, w[AGE]):  # told once, when it is over
                    f[MIDDLE_S] = f[LEVEL_S] / before
                    kind, w[INITIAL] = -1, ON_RAMP
                if kind == FASTER and not was_slow and was_warm_up(y, n, warm_up, w):
                    kind = -1
                    f[STRAY : STRAY + len(WINDOWS)] = np.nan
            elif w[INITIAL] == ON_RAMP and w[AGE] >= RAMP_OVER and not is_ramp(y, n, 0):
                kind, since = WORSENING, number[rank, (w[SEEN] - w[AGE]) % RING]
                factor, before = f[LEVEL_S] / f[HEALTHY_S], f[LEVEL_S] / f[MIDDLE_S]
                f[MIDDLE_S], w[INITIAL] = f[LEVEL_S], 0
            elif w[SLOW] and w[AGE] >= 33 and f[LEVEL_S] < f[HEALTHY_S] * (1 + HEALTHY):
                kind, since = RELIEF, w[SINCE_STEP]
                before = f[HEALTHY_S] / f[LEVEL_S]
                factor = 1 + f[LOST_S] / max(f[SPENT_S], 1e-300)
                w[SLOW] = 0
            if kind >= 0:
                write(out, n_out, kind, rank, since, factor, before, f)
                out[n_out, OUT_HEALTHY] *= scale
                if kind == RELIEF:
                    every, longest, _ = beat(y, n, False, f[LEVEL_S] * (1 + threshold))
                    if w[BURST_AT] == w[SEEN] and w[BURSTS] >= FEW_BURSTS:
                        every, longest = 0, w[BURST_LEN]
                    if longest > 0:
                        out[n_out, OUT_BURSTS] = longest + BURST_LONGER
                        out[n_out, OUT_EVERY] = every
                n_out += 1
                if not w[SLOW]:
                    f[LOST_S] = f[SPENT_S] = 0.0
        learn_noise(y, n, is_first, f, w)
    return n_out


def write(
    out: Floats, row: int, kind: int, rank: int, since: int, factor: float, before: float, f: Any
) -> None:
    """An event's row."""
    out[row, OUT_KIND], out[row, OUT_RANK], out[row, OUT_SINCE] = kind, rank, since
    out[row, OUT_FACTOR], out[row, OUT_BEFORE] = factor, before
    out[row, OUT_LOST], out[row, OUT_HEALTHY] = f[LOST_S], f[HEALTHY_S]
    out[row, OUT_BURSTS] = out[row, OUT_EVERY] = 0.0


def judged(x: float, f: Any, w: Any) -> bool:
    """Whether a sample is evidence: no pause, nor one of the samples after it."""
    level = f[LEVEL_S]
    if np.isnan(level):
        return True
    is_pause = x > PAUSE * level
    if is_pause and not w[PAUSED] and w[HOLD] == 0:
        w[HOLD] = AFTER_PAUSE + 1
    w[PAUSED] = is_pause or (w[PAUSED] and x > PAUSE / 2 * level)
    if w[HOLD] > 0:
        w[HOLD] -= 1
        return False
    return True


def follow_level(y: Floats, n: int, is_first: bool, is_evidence: bool, f: Any, w: Any) -> None:
    """The level: the median of its first samples, later a slow drift."""
    age, seen = w[AGE], w[SEEN]
    if is_first:
        f[LEVEL_S] = f[HEALTHY_S] = f[MIDDLE_S] = np.median(y[:n])
        f[QUANTUM_S] = quantum(y[:n])
        w[INITIAL] = 1
        return
    young = age <= LEVEL_EVERY and not w[INITIAL]
    if w[AGE] <= RING and (young or seen % LEVEL_EVERY == 0):
        if w[INITIAL] or w[SLOW] or age >= MIDDLE_EVERY:
            f[LEVEL_S] = np.median(y[: min(n, age)])
    elif w[AGE] > RING and is_evidence:
        f[LEVEL_S] += DRIFT * np.sign(y[0] - f[LEVEL_S]) * f[LEVEL_S]
    if not w[SLOW] and (w[INITIAL] or age >= RING):
        f[HEALTHY_S] = f[LEVEL_S]


def bar(i: int, threshold: float, f: Any, w: Any) -> float:
    """Share by which a window's median differs from the level that counts."""
    stray = float(f[STRAY + i])
    if np.isnan(stray):
        return np.inf
    window = WINDOWS[i]
    rounding = 0.29 * f[QUANTUM_S] / f[LEVEL_S] * math.sqrt(5.0 / window)
    stray = max(stray, rounding)
    above = float(max(threshold + SURE[i] * stray, STRAYS[i] * stray))
    if w[INITIAL] != 1 and w[AGE] < YOUNG and w[SLOW]:
        above += f[STRAY] * math.sqrt(5.0 / max(5, w[AGE]))
    return above


def changed(y: Floats, ok: Any, n: int, threshold: float, f: Any, w: Any) -> int:
    """The shortest window whose median has left the level: > 0 upwards, < 0 downwards; or 0."""
    level, age = f[LEVEL_S], min(n, w[AGE])
    for i in range(len(WINDOWS)):
        share = bar(i, threshold, f, w)
        up, down = level * (1 + share), level / (1 + share)
        if w[SLOW] and i == 2:
            down = max(down, f[HEALTHY_S] * (1 + max(HEALTHY, (level / f[HEALTHY_S] - 1) / 2)))
        above = below = 0
        window = WINDOWS[i]
        for k in range(min(window, age)):
            if ok[k]:
                above += y[k] > up
                below += y[k] < down
        half = (window + 1) // 2
        if above >= half and y[0] > (level + up) / 2 and is_sure(window, y, n, threshold, up, f, w):
            return window
        is_low = (i == 2 and below >= LOW) or (i > 2 and below >= half)
        count = first_of(False, window, y, age, threshold, level) if is_low else 0
        if count >= LOW_OF // 2:
            return -window
    return 0


def mean_share(y: Floats, level: float) -> float:
    """The mean of samples over their level, without pauses."""
    return float(np.mean(y[y <= PAUSE * level]) / level)


def early_rise(y: Floats, n: int, threshold: float, f: Any, w: Any) -> int:
    """Samples since the rank became slow within its warm-up; 0 = it did not, or it is not sure.

    The samples before are then the healthy level and its noise.
    """
    least, count = np.inf, 0
    for k in range(LOW_OF, n - EARLY + 1):
        off = np.sum(np.abs(y[:k] - np.median(y[:k])))
        off += np.sum(np.abs(y[k:n] - np.median(y[k:n])))
        if off < least:
            least, count = off, k
    if count == 0:
        return 0
    late, early = np.median(y[:count]), np.median(y[count:n])
    off_late, off_early = np.abs(y[:count] / late - 1), np.abs(y[count:n] / early - 1)
    stray = SIGMA_OF_MAD * max(np.median(off_late), np.median(off_early))
    middle = (late + early) / 2
    is_apart = np.mean(y[:count] > middle) >= APART and np.mean(y[count:n] < middle) >= APART
    if not is_apart or late < early * (1 + max(threshold + SURE[0] * stray, STRAYS[0] * stray)):
        return 0
    f[LEVEL_S] = f[HEALTHY_S] = f[MIDDLE_S] = early
    f[MEAN] = mean_share(y[count:n], early)
    w[AGE] = n - count
    learn_noise(y[count:n], n - count, True, f, w)
    w[AGE] = n
    return count


def is_sure(window: int, y: Floats, n: int, threshold: float, up: float, f: Any, w: Any) -> bool:
    """Whether samples above the level are more than one that a faster one makes good, or a burst.

    A burst is no longer than the bursts of this rank were.
    """
    level = f[LEVEL_S]
    count = first_of(True, window, y, min(n, w[AGE]), threshold, level)
    if count < FEWEST or (window <= LOW_OF and np.mean(y[:count]) < (up + level) / 2):
        return False
    new = middle_mean(y[:count])
    if new < level * (1 + threshold):
        return False
    if count == FEWEST and np.max(y[:count]) - np.min(y[:count]) > AGREE * (new - level):
        return False
    recent = w[BURSTS] >= FEW_BURSTS and w[SEEN] - w[BURST_AT] <= BURST_MEMORY
    if recent and count <= w[BURST_LEN] + BURST_LONGER:
        w[BURST_AT] = w[SEEN]  # as long as bursts come they belong to the job
        return False
    every, longest, running = beat(y, n, True, level * (1 + threshold))
    if every > 0 and running <= longest + BURST_LONGER:
        return False
    swings = w[SWINGS] >= 1 and w[SEEN] - w[SWING_AT] <= SWING_MEMORY
    usual = swings and new < level * (1 + SWING_WIDER * f[SWING])
    return not usual or count > w[SWING_LEN] + SWING_LONGER


def change(
    window: int,
    y: Floats,
    n: int,
    learned: int,
    threshold: float,
    scale: float,
    number: Any,
    f: Any,
    w: Any,
) -> tuple[int, int, float, float]:
    """Leave the level: (kind, first step of the new one, its factor, factor to the one before).

    ``learned`` is the number of samples since the warm-up.
    """
    is_up = window > 0
    length = abs(window)
    level, healthy, middle = f[LEVEL_S], f[HEALTHY_S], f[MIDDLE_S]
    count = first_of(is_up, length, y, min(n, w[AGE]), threshold, level)
    since = number[(w[SEEN] - count) % RING]
    new = middle_mean(y[:count])
    # On a ramp the level before is the last one told.
    before = new / (f[MIDDLE_S] if w[INITIAL] == ON_RAMP else level)
    w[AGE], w[INITIAL] = count, 0
    f[LEVEL_S] = f[MIDDLE_S] = new
    learn_swing(is_up, level, new, count, f, w)
    if is_up:
        kind = WORSENING if w[SLOW] else ONSET
        if not w[SLOW]:
            w[SINCE], w[SINCE_STEP] = w[SEEN] - count, since
            for k in range(min(count, learned)):  # they were taken for healthy ones
                if y[k] <= PAUSE * level:
                    share = 1 / min(RING, w[SEEN] - k)
                    f[MEAN] = (f[MEAN] - share * y[k] / middle) / (1 - share)
            mean_s = healthy * f[MEAN]
            f[LOST_S], f[SPENT_S] = 0.0, 0.0
            for k in range(count):
                f[LOST_S] += (min(y[k], PAUSE * new) - mean_s) * scale
                f[SPENT_S] += mean_s * scale
        w[SLOW] = 1
        return kind, since, new / healthy, before
    fresh = f[STRAY + 2] if f[STRAY + 2] == f[STRAY + 2] else 0.0
    near = min(max(HEALTHY, 0.04 + 1.5 * fresh), threshold)
    if w[SLOW] and new > healthy * (1 + near):
        return PARTIAL, since, new / healthy, before
    was_slow, w[SLOW] = w[SLOW], 0
    if was_slow and w[SEEN] - count - w[SINCE] <= BURST:
        w[BURST_LEN] = max(w[BURST_LEN] if w[BURSTS] else 0, w[SEEN] - count - w[SINCE])
        w[BURSTS] += 1
        w[BURST_AT] = w[SEEN]
    if was_slow and new > healthy / (1 + threshold):
        f[LEVEL_S] = f[MIDDLE_S] = healthy
        w[AGE] = min(count, LOW)
        return RELIEF, since, episode_factor(y[:count], level, scale, f), before
    f[HEALTHY_S] = new
    w[INITIAL] = 1
    return FASTER, since, new / healthy, before


def was_warm_up(y: Floats, n: int, warm_up: int, w: Any) -> bool:
    """Whether a fall to the level that has just begun ended the job's warm-up."""
    begin = w[SEEN] - w[AGE]
    return bool(begin <= warm_up or (begin < RING and is_gradual(y, n, w[AGE])))


def learn_swing(is_up: bool, level: float, new: float, count: int, f: Any, w: Any) -> None:
    """Note a small rise that went back soon: how high it was, and how long."""
    at = w[SEEN] - count
    if is_up:
        f[RISEN_FROM_S], f[RISEN], w[RISEN_AT] = level, new / level - 1, at
        return
    length = at - w[RISEN_AT]
    is_back = abs(new / f[RISEN_FROM_S] - 1) <= SWING_BACK  # False where nothing has risen
    if not is_back or f[RISEN] > SWING_SHARE or length > SWING_STEPS:
        return
    if w[SWINGS] == 0 or at - w[SWING_AT] > SWING_MEMORY:
        w[SWINGS], w[SWING_LEN], f[SWING] = 0, 0, 0.0
    w[SWINGS] += 1
    w[SWING_LEN], w[SWING_AT] = max(w[SWING_LEN], length), at
    f[SWING] = max(f[SWING], f[RISEN])


def episode_factor(after: Floats, level: float, scale: float, f: Any) -> float:
    """The mean factor of an episode, without the samples after it that made its end sure."""
    lost, spent = f[LOST_S], f[SPENT_S]
    mean_s = f[HEALTHY_S] * f[MEAN]
    for value in after:
        if value <= PAUSE * level:
            lost -= (value - mean_s) * scale
            spent -= mean_s * scale
    if spent < mean_s * scale / 2:  # the work of these steps differed
        lost, spent = f[LOST_S], f[SPENT_S]
    return float(1 + lost / max(spent, 1e-300))


def first_of(is_up: bool, window: int, y: Floats, age: int, threshold: float, level: float) -> int:
    """Samples since the change: where the sum beyond the middle is largest.

    Each sample's share is bounded, so that a spike cannot move it.
    """
    n = min(age, RING, 2 * window + 9)
    new = np.median(y[: (window + 1) // 2])
    gap = max(abs(new - level), (threshold if is_up else threshold / 8) * level)
    sign = 1.0 if is_up else -1.0
    best = -np.inf
    total = 0.0
    count = 1
    for k in range(n):
        value = level if is_up and y[k] > PAUSE * max(new, level) else y[k]
        excess = sign * (value - level) - gap / 2
        total += min(max(excess, -gap), gap)
        if total > best:
            best, count = total, k + 1
    return count


def learn_noise(y: Floats, n: int, is_first: bool, f: Any, w: Any) -> None:
    """How far medians of w samples stray from the median of the last samples of the level."""
    seen, age = w[SEEN], w[AGE]
    if seen % MIDDLE_EVERY == 0 and age >= MIDDLE_EVERY:
        f[MIDDLE_S] = np.median(y[: min(n, age)])
    for i in range(len(WINDOWS)):
        window = WINDOWS[i]
        if n < window + 10 or (seen % window and not is_first):
            continue
        if np.isnan(f[STRAY + i]):
            if age < window + 10:  # samples of another level are no noise
                continue
            first_noise(i, y, min(n, age), f)
        if w[SLOW] or age < window:
            continue
        off = abs(np.median(y[:window]) / f[MIDDLE_S] - 1)
        off = min(off, 3 * f[STRAY + i] + 0.002)
        share = min(1.0, max(window / NOISE_STEPS, window / seen))
        f[STRAY + i] += share * (SIGMA_OF_MEAN_DEVIATION * off - f[STRAY + i])


def first_noise(i: int, y: Floats, n: int, f: Any) -> None:
    """From the windows so far, half overlapping."""
    window = WINDOWS[i]
    every = max(1, window // 2)
    count = (n - window) // every + 1
    off = np.empty(count)
    for j in range(count):
        off[j] = np.median(y[j * every : j * every + window]) / f[LEVEL_S] - 1
    f[STRAY + i] = SIGMA_OF_MAD * np.median(np.abs(off)) + 0.25 * np.std(off)


@cache
def compiled_advance() -> Callable[..., int]:
    """:func:`advance` as machine code."""
    from numba.extending import register_jitable

    for helper in (
        *(logarithms, cycle_spread, find_cycle, places, cycled_median, learn_cycle),
        *(is_falling, is_gradual, is_settled, level_samples, settled_samples),
        was_warm_up,
        *(write, judged, learn_pairs, follow_level, quantum, bar, changed, is_sure),
        *(
            mean_share,
            early_rise,
            is_ramp,
            beat,
            middle_mean,
            change,
            learn_swing,
            episode_factor,
            first_of,
        ),
        *(learn_noise, first_noise),
    ):
        register_jitable(error_model="numpy")(helper)
    kernel: Callable[..., int] = compiled(advance)
    return kernel
