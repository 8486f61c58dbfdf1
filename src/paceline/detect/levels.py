"""The kernel of the detector: compares each step of all ranks with the ranks' levels.

Each rank has a healthy level and a current level, which differ during an episode. Windows of the
last w samples are tested for a rise and a fall from the current level. A change replaces the
current level. docs/detect.md has the rules, docs/measured.md their rates of errors.
"""

from __future__ import annotations

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
    ON_RAMP,
    ON_TRIAL,
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
    PERIOD,
    QUANTUM_S,
    RING,
    SEEN,
    SETTLE,
    SINCE,
    SINCE_STEP,
    SLOW,
    SPENT_S,
    STRAY,
    WINDOWS,
)
from paceline.detect.cycles import MAX_PERIOD, cycle_spread, find_cycle, logarithms
from paceline.detect.limits import PAUSE, SILENT_AFTER
from paceline.detect.losses import begin_loss, end_loss
from paceline.detect.noise import MIDDLE_EVERY, STRAYS, SURE, bar, first_noise, learn_noise
from paceline.detect.repeats import cycled_median, learn_cycle, learn_pairs, places
from paceline.detect.samples import (
    FEWEST,
    burst_period,
    is_ramp,
    is_step,
    mean_share,
    middle_mean,
    quantum,
)
from paceline.detect.slow_ramp import early_ramp, find_ramp, goes_on, hinge, is_steady, trend
from paceline.detect.swings import is_swing, learn_small_rise, learn_swing, record_swing
from paceline.detect.warm_up import (
    APART,
    is_falling,
    is_gradual,
    is_settled,
    level_samples,
    settled_samples,
)
from paceline.jit import compiled
from paceline.robust import SIGMA_OF_MAD

Floats = npt.NDArray[np.float64]

#: Number of samples above which compiled code is faster in total. Interpreted, a sample takes
#: 0.5 ms. The import of numba takes 0.3 s; the first compilation on a machine takes 7 s.
INTERPRETED_SAMPLES = 2_000

#: Share of the threshold that a window's median must differ by. The rest is left for the error of a
#: level under a few percent of noise. The new level itself must exceed the whole threshold.
EVIDENCE = 0.9

#: Least number of healthy samples before a slowdown within the warm-up. The first steps of a job
#: may be fast only because their input was prefetched.
EARLY = 15

#: Samples between estimates of a level's median. On an older level, the share by which each sample
#: moves it, at most 10% in 10,000 samples.
LEVEL_EVERY, DRIFT = 16, 1e-5
#: Samples after a pause that do not count, as the job warms up again.
AFTER_PAUSE = 5
#: A fall needs LOW of the last LOW_OF samples below the level; longer windows need half of theirs.
LOW_OF, LOW = 9, 7
#: A level at most this share above the healthy level is healthy again.
HEALTHY = 0.05
#: An episode of up to BURST samples is a burst. After it, a rise must last more than BURST_LONGER
#: samples longer than the longest. This ends BURST_MEMORY samples after the last.
BURST, BURST_LONGER, BURST_MEMORY = 8, 2, 2000
#: Largest range of a new level's first FEWEST samples, as a share of the change.
AGREE = 0.5
#: Least number of samples on a level before its ramp can be over.
RAMP_OVER = 20
#: Least number of samples on a level before it may have melted away.
MELTED = 33

ONSET, WORSENING, PARTIAL, RELIEF, FASTER, SILENT = range(6)


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
    """Judge one step; write its events to ``out`` and return their number.

    Args:
        step: step number.
        x: [rank] seconds divided by ``scale``.
        missing: [rank] whether the rank has no valid sample.
        scale: expected time of the step relative to a typical one.
        threshold: least relative change of a window's median (EVIDENCE).
        warm_up: least number of a rank's samples before its first level.
        ring: [rank, RING] the latest samples.
        number: [rank, RING] their step numbers.
        evidence: [rank, RING] whether they count (:func:`judged`).
        floats: [rank, column] seconds and shares of the state.
        wholes: [rank, column] counts and flags of the state.
        out: [row, N_OUT] events.
    """
    n_out = 0
    y, raw = np.empty(RING), np.empty(RING)
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
        if is_first:  # without a level, a restart is like the job's begin
            w[SETTLE] = 0
        if w[SEEN] == warm_up or (w[SEEN] % LEVEL_EVERY == 0 and w[SEEN] > warm_up):
            learn_pairs(ring[rank], number[rank], n, w[SEEN], f)
            learn_cycle(ring[rank], number[rank], n, f, w)
        period = places(f, w, place)
        for k in range(n):  # y[0] is the newest
            row = (w[SEEN] - 1 - k) % RING
            raw[k] = float(ring[rank, row])
            y[k] = raw[k] * place[number[rank, row] % period]
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
                w[AGE] = min(w[AGE], count)  # earlier samples belong to the second warm-up
                if w[INITIAL] == 1:  # keep the level from before the restart
                    w[INITIAL] = 0
            else:
                continue
        if w[INITIAL] == ON_TRIAL and w[AGE] >= warm_up:
            f[HEALTHY_S], w[INITIAL] = f[LEVEL_S], 1
        follow_level(y, n, is_first, is_evidence, f, w)
        if is_first:
            f[MEAN] = mean_share(y[: n // 2], raw[: n // 2], f[LEVEL_S])
        elif w[SLOW] and y[0] <= PAUSE * f[LEVEL_S]:
            f[LOST_S] += (raw[0] - f[HEALTHY_S] * f[MEAN]) * scale
            f[SPENT_S] += f[HEALTHY_S] * f[MEAN] * scale
        window = early_rise(y, raw, n, threshold, f, w) if is_first else 0
        if not is_first or window != 0:
            kind, was_ramp = -1, w[INITIAL] == ON_RAMP
            if not is_first:
                window = changed(y, ok, n, threshold, f, w)
            if not is_first and (w[SEEN] % LEVEL_EVERY == 0 or (window > 0 and not w[SLOW])):
                factor, before = find_ramp(
                    y, raw, n, threshold, threshold / EVIDENCE, scale, number[rank], f, w
                )
                if factor > 0:
                    kind, since, window = ONSET, w[SINCE_STEP], 0
            if window != 0:
                was_slow = w[SLOW]
                kind, since, factor, before = change(
                    window, y, raw, n, threshold, scale, number[rank], f, w
                )
                is_rise = is_ramp(y, n, w[AGE]) or (was_ramp and goes_on(y, n, w[AGE], w))
                if kind == WORSENING and is_rise:  # one event, at the ramp's end
                    f[MIDDLE_S] = f[LEVEL_S] / before
                    kind, w[INITIAL] = -1, ON_RAMP
                if kind == FASTER and not was_slow and was_warm_up(y, n, warm_up, w):
                    kind, f[HEALTHY_S], w[INITIAL] = -1, f[LEVEL_S], 1
                    f[STRAY : STRAY + len(WINDOWS)] = np.nan
            elif (
                w[INITIAL] == ON_RAMP
                and w[AGE] >= RAMP_OVER
                and not (is_ramp(y, n, 0) or goes_on(y, n, 0, w))
            ):
                kind, since = WORSENING, number[rank, (w[SEEN] - w[AGE]) % RING]
                factor, before = f[LEVEL_S] / f[HEALTHY_S], f[LEVEL_S] / f[MIDDLE_S]
                f[MIDDLE_S], w[INITIAL] = f[LEVEL_S], 0
            elif w[SLOW] and w[AGE] >= MELTED and f[LEVEL_S] < f[HEALTHY_S] * (1 + HEALTHY):
                kind, since = RELIEF, w[SINCE_STEP]
                before = f[HEALTHY_S] / f[LEVEL_S]
                factor = 1 + f[LOST_S] / max(f[SPENT_S], 1e-300)
                w[SLOW] = 0
            elif has_melted(threshold, f, w):
                middle, count = (f[LEVEL_S] + f[MIDDLE_S]) / 2, 1
                while count < w[AGE] and y[count] < middle:
                    count += 1
                kind, since = PARTIAL, number[rank, (w[SEEN] - count) % RING]
                factor, before = f[LEVEL_S] / f[HEALTHY_S], f[LEVEL_S] / f[MIDDLE_S]
                f[MIDDLE_S] = f[LEVEL_S]
            if kind >= 0:
                write(out, n_out, kind, rank, since, factor, before, f)
                if kind == FASTER:
                    out[n_out, OUT_HEALTHY] = f[LEVEL_S]
                out[n_out, OUT_HEALTHY] *= scale
                if kind == RELIEF and factor == factor:
                    every, longest, _ = burst_period(y, n, False, f[LEVEL_S] * (1 + threshold))
                    if w[BURST_AT] == w[SEEN] and w[BURSTS] > 0:
                        every, longest = 0, w[BURST_LEN]
                    if longest > 0:
                        out[n_out, OUT_BURSTS] = longest + BURST_LONGER
                        out[n_out, OUT_EVERY] = every
                n_out += 1
                if not w[SLOW]:
                    f[LOST_S] = f[SPENT_S] = 0.0
        learn_noise(y, n, is_first, f, w)
        if w[SEEN] % LOW_OF == 0 and w[AGE] >= LOW_OF and not w[SLOW]:
            learn_small_rise(np.median(y[:LOW_OF]) / f[MIDDLE_S] - 1, f, w)
    return n_out


def write(
    out: Floats, row: int, kind: int, rank: int, since: int, factor: float, before: float, f: Any
) -> None:
    """Write an event to a row of ``out``."""
    out[row, OUT_KIND], out[row, OUT_RANK], out[row, OUT_SINCE] = kind, rank, since
    out[row, OUT_FACTOR], out[row, OUT_BEFORE] = factor, before
    out[row, OUT_LOST], out[row, OUT_HEALTHY] = f[LOST_S], f[HEALTHY_S]
    out[row, OUT_BURSTS] = out[row, OUT_EVERY] = 0.0


def judged(x: float, f: Any, w: Any) -> bool:
    """Whether a sample counts: it neither is a pause nor comes shortly after one."""
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
    """Update the level: the median of its samples, on an older level a slow drift."""
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
    if not w[SLOW] and (w[INITIAL] == 1 or age >= RING):
        f[HEALTHY_S] = f[LEVEL_S]


def changed(y: Floats, ok: Any, n: int, threshold: float, f: Any, w: Any) -> int:
    """Length of the shortest window that shows a change, negative for a fall; 0 without any."""
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
        if count >= LOW_OF // 2 and is_sure_fall(fallen(y[:count], w), threshold, f, w):
            return -window
    return 0


def is_sure_fall(new: float, threshold: float, f: Any, w: Any) -> bool:
    """Whether a fall ends the episode, or is as large as a rise must be."""
    ends = w[SLOW] and new <= f[HEALTHY_S] * (1 + near_healthy(threshold, f))
    return bool(ends or new <= f[LEVEL_S] / (1 + threshold / EVIDENCE))


def fallen(y: Floats, w: Any) -> float:
    """The level of the samples behind a fall.

    A cycle that was learned on a slow level takes too little off the long steps behind it.
    """
    return float(np.median(y)) if w[PERIOD] > 0 else middle_mean(y)


def near_healthy(threshold: float, f: Any) -> float:
    """Share above the healthy level up to which a new level is healthy again."""
    fresh = f[STRAY + 2] if f[STRAY + 2] == f[STRAY + 2] else 0.0
    return float(min(max(HEALTHY, 0.04 + 1.5 * fresh), threshold))


def has_melted(threshold: float, f: Any, w: Any) -> bool:
    """Whether the level has fallen since its event, as after a burst within an episode.

    The samples of a burst are soon fewer than half of the level's, so that its median falls with no
    change being seen. MIDDLE_S is the level that the event told, until MIDDLE_EVERY samples.
    """
    is_due = w[SLOW] and w[INITIAL] != ON_RAMP and MELTED <= w[AGE] < MIDDLE_EVERY
    return bool(is_due and f[LEVEL_S] < f[MIDDLE_S] / (1 + threshold))


def early_rise(y: Floats, raw: Floats, n: int, threshold: float, f: Any, w: Any) -> int:
    """Number of samples since a certain slowdown within the warm-up; 0 without any.

    The samples before the slowdown then give the healthy level and its noise.
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
    f[MEAN] = mean_share(y[count:n], raw[count:n], early)
    w[AGE] = n - count
    learn_noise(y[count:n], n - count, True, f, w)
    w[AGE] = n
    return count


def is_sure(window: int, y: Floats, n: int, threshold: float, up: float, f: Any, w: Any) -> bool:
    """Whether a rise is certain: no outlier, no burst and no swing.

    A slow sample that a fast one makes up for is an outlier. Rises of the length of this rank's
    earlier bursts or swings are not certain.
    """
    level = f[LEVEL_S]
    count = first_of(True, window, y, min(n, w[AGE]), threshold, level)
    if count < FEWEST or (window <= LOW_OF and np.mean(y[:count]) < (up + level) / 2):
        return False
    new = middle_mean(y[:count])
    if new < level * (1 + threshold / EVIDENCE):
        return False
    if count == FEWEST and np.max(y[:count]) - np.min(y[:count]) > AGREE * (new - level):
        return False
    recent = w[BURSTS] > 0 and w[SEEN] - w[BURST_AT] <= BURST_MEMORY
    if recent and count <= w[BURST_LEN] + BURST_LONGER:
        w[BURST_AT] = w[SEEN]  # bursts that continue belong to the job
        return False
    every, longest, running = burst_period(y, n, True, level * (1 + threshold))
    if every > 0 and running <= longest + BURST_LONGER:
        return False
    return not is_swing(new, level, count, f, w)


def change(
    window: int,
    y: Floats,
    raw: Floats,
    n: int,
    threshold: float,
    scale: float,
    number: Any,
    f: Any,
    w: Any,
) -> tuple[int, int, float, float]:
    """Replace the level, and return the event.

    Args:
        window: length of the window, negative for a fall.
        y: samples on a common level, the newest first.
        raw: the same as they are.
        n: number of samples.
        threshold: least relative change of a level.
        scale: relative expected time of the step.
        number: step numbers of the rank's ring.
        f: the rank's row of ``floats``.
        w: the rank's row of ``wholes``.

    Returns:
        kind, first step of the new level, and its ratios to the healthy and to the previous level.
        The kind is -1 without an event. A relief from a short faster level has no factor.
    """
    is_up = window > 0
    length = abs(window)
    level, healthy, age = f[LEVEL_S], f[HEALTHY_S], min(n, w[AGE])
    count = first_of(is_up, length, y, age, threshold, level)
    since = number[(w[SEEN] - count) % RING]
    new = middle_mean(y[:count]) if is_up else fallen(y[:count], w)
    # On a ramp, the previous level is that of the last event.
    before = new / (f[MIDDLE_S] if w[INITIAL] == ON_RAMP else level)
    is_initial, is_trial = w[INITIAL] == 1, w[INITIAL] == ON_TRIAL
    w[AGE], w[INITIAL] = count, 0
    f[LEVEL_S] = f[MIDDLE_S] = new
    learn_swing(is_up, level, new, count, f, w)
    if is_up and is_trial and new < healthy * (1 + threshold / EVIDENCE):
        if new <= healthy / (1 + threshold):
            w[INITIAL] = ON_TRIAL
            return -1, since, new / healthy, before
        f[LEVEL_S] = f[MIDDLE_S] = healthy
        w[AGE] = min(count, LOW)
        return RELIEF, since, np.nan, before
    if is_up:
        kind = WORSENING if w[SLOW] else ONSET
        if not w[SLOW]:
            w[SINCE], w[SINCE_STEP] = w[SEEN] - count, since
            n_healthy = age - count
            if is_initial and n_healthy >= 2 * EARLY:
                n_healthy -= EARLY  # the warm-up of the job
            if n_healthy > 0 and (is_initial or n_healthy >= MIDDLE_EVERY):
                if w[PERIOD] > 0 and n_healthy > w[PERIOD]:
                    n_healthy -= n_healthy % w[PERIOD]  # whole cycles
                end = count + n_healthy
                f[MEAN] = mean_share(y[count:end], raw[count:end], level)
            begin_loss(y[:count], raw[:count], new, scale, f)
        w[SLOW] = 1
        return kind, since, new / healthy, before
    if w[SLOW] and new > healthy * (1 + near_healthy(threshold, f)):
        return PARTIAL, since, new / healthy, before
    was_slow, w[SLOW] = w[SLOW], 0
    if was_slow and w[SEEN] - count - w[SINCE] <= BURST:
        w[BURST_LEN] = max(w[BURST_LEN] if w[BURSTS] else 0, w[SEEN] - count - w[SINCE])
        w[BURSTS] += 1
        w[BURST_AT] = w[SEEN]
    if was_slow and new > healthy / (1 + threshold):
        f[LEVEL_S] = f[MIDDLE_S] = healthy
        w[AGE] = min(count, LOW)
        end_loss(y[:count], raw[:count], level, scale, f)
        return RELIEF, since, 1 + f[LOST_S] / max(f[SPENT_S], 1e-300), before
    if was_slow:
        end_loss(y[:count], raw[:count], level, scale, f)
    w[INITIAL] = ON_TRIAL
    return FASTER, since, new / healthy, before


def was_warm_up(y: Floats, n: int, warm_up: int, w: Any) -> bool:
    """Whether the fall to the new level ended the job's warm-up."""
    begin = w[SEEN] - w[AGE]
    return bool(begin <= warm_up or (begin < RING and is_gradual(y, n, w[AGE])))


def first_of(is_up: bool, window: int, y: Floats, age: int, threshold: float, level: float) -> int:
    """Number of samples since the change.

    It maximises their summed distance from the middle between both levels. Each distance is
    bounded, so that a spike cannot decide.
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


@cache
def compiled_advance() -> Callable[..., int]:
    """Compile :func:`advance` and the functions that it calls."""
    from numba.extending import register_jitable

    for helper in (
        *(logarithms, cycle_spread, find_cycle, places, cycled_median, learn_cycle),
        *(is_falling, is_gradual, is_settled, level_samples, settled_samples),
        was_warm_up,
        *(write, judged, learn_pairs, follow_level, quantum, bar, changed, is_sure, is_swing),
        *(
            mean_share,
            has_melted,
            fallen,
            is_sure_fall,
            near_healthy,
            early_rise,
            is_ramp,
            burst_period,
            middle_mean,
            change,
            learn_swing,
            learn_small_rise,
            record_swing,
            begin_loss,
            end_loss,
            first_of,
        ),
        *(learn_noise, first_noise),
        *(trend, is_steady, hinge, is_step, early_ramp, find_ramp, goes_on),
    ):
        register_jitable(error_model="numpy")(helper)
    kernel: Callable[..., int] = compiled(advance)
    return kernel
