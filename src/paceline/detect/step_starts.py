"""Search for the begin of each step in the calls of a rank."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Largest error of a damaged step's start, in calls.
_DRIFT = 8
#: Calls compared on each side of a start, and the weight of each relative to the nearer one.
_COMPARED, _FADE = 32, 0.85
#: Least share of agreement; below, it is an evaluation, a checkpoint or a gap.
_MIN_AGREEMENT = 0.6
#: Least share of the agreement after the start, unless the first call itself agrees.
_FOLLOWS = 0.2
#: Bonus of a call after a pause of at least half the usual length, and of the usual first call.
_PAUSE_COUNTS, _FIRST_COUNTS = 0.25, 0.1


def starts_of_steps(names: Ints, time_s: Floats, calls: int, reference: Floats | None) -> Floats:
    """[step] begin of each step of a rank, seconds.

    A step begins after the longest pause of the period, or, with a reference, at the call most
    often nearest to the reference. From an undamaged step on, the next begin is searched one period
    later by the surrounding calls. If that fails, the search continues at the next undamaged step.

    Args:
        names: [call] equal numbers for equal calls.
        time_s: [call] seconds.
        calls: calls per period.
        reference: begins of another rank's steps.
    """
    first_whole = _first_whole(names, calls)
    template = names[first_whole : first_whole + calls]
    pause_s = np.append(0.0, np.diff(time_s))
    begins = _begins(names, template, first_whole, np.zeros(len(names)))
    phase = _phase(begins, time_s, calls, reference)
    template = np.roll(template, -phase)
    usual_s = np.median(pause_s[np.minimum(begins + phase, len(names) - 1)])
    paused = _PAUSE_COUNTS * (pause_s >= usual_s / 2)
    if first_whole + phase + calls > len(names):
        phase -= calls
    begins = _begins(names, template, first_whole + phase, paused)
    # A step without its first call began before the first call present.
    follows = begins[begins + 1 < len(names)]
    second_s = float(np.median(time_s[follows + 1] - time_s[follows]))
    return time_s[begins] - np.where(names[begins] == template[0], 0.0, second_s)


def _first_whole(names: Ints, calls: int) -> int:
    """The first place from which one period of calls equals the next, if any."""
    equal = np.append(0, np.cumsum(names[calls:] == names[:-calls]))
    n_equal: Ints = equal[calls:] - equal[:-calls] if len(equal) > calls else np.zeros(1, np.int64)
    return int(np.argmax(n_equal))


def _phase(begins: Ints, time_s: Floats, calls: int, reference: Floats | None) -> int:
    """Offset from the places to the call that begins a step."""
    regular = begins[:-1][np.diff(begins) == calls]
    if not len(regular):
        regular = begins[:1]
    if reference is None:
        at = np.minimum(regular[:, None] + np.arange(calls + 1), len(time_s) - 1)
        pause_s = np.median(np.diff(time_s[at], axis=1), axis=0)
        return (int(np.argmax(pause_s)) + 1) % calls
    places = nearest(time_s, reference[(reference >= time_s[0]) & (reference <= time_s[-1])])
    of = np.searchsorted(regular, places, side="right") - 1
    phase = places[of >= 0] - regular[of[of >= 0]]
    phase = phase[phase < calls]
    return int(np.argmax(np.bincount(phase))) if len(phase) else 0


def nearest(sorted_s: Floats, times_s: Floats) -> Ints:
    """Index of the nearest of some sorted times, for each of others."""
    after = np.clip(np.searchsorted(sorted_s, times_s), 1, len(sorted_s) - 1)
    nearest: Ints = after - (times_s - sorted_s[after - 1] < sorted_s[after] - times_s)
    return nearest


def _begins(names: Ints, template: Ints, start: int, bonus: Floats) -> Ints:
    """Places of step begins, searched forwards and backwards from a known one."""
    score = _agreement(names, template) + bonus
    forward = _walk(names, template, start, score, 1)
    backward = _walk(names, template, start, score, -1)
    return np.array([*backward[:0:-1], *forward], dtype=np.int64)


def _agreement(names: Ints, template: Ints) -> Floats:
    """[place] agreement of the surrounding calls with those around a step's begin."""
    calls = len(template)
    reach = min(calls // 2, _COMPARED)
    agree, weight, after = (np.zeros(len(names)) for _ in range(3))
    for offset in range(-reach, reach):
        here = slice(max(0, -offset), len(names) - max(0, offset))
        there = slice(max(0, offset), len(names) - max(0, -offset))
        counts = _FADE ** abs(offset + 0.5)
        as_template = counts * (names[there] == template[offset % calls])
        agree[here] += as_template
        weight[here] += counts
        if offset >= 0:
            after[here] += as_template
    share = agree / np.maximum(weight, 1e-9)
    # A log may begin or end within a step, so the calls at its ends are insufficient.
    first = names == template[0]
    ends = min(reach, _DRIFT)
    share[:ends] *= first[:ends]
    share[len(names) - ends :] *= first[len(names) - ends :]
    # Without calls of a step after it, a place is an end but no begin.
    share[~first & (after < _FOLLOWS * agree)] = 0.0
    return np.where(first, share + _FIRST_COUNTS, share)


def _walk(names: Ints, template: Ints, start: int, score: Floats, direction: int) -> list[int]:
    """Begins after a known one, each about one period from the last."""
    calls, n = len(template), len(names)
    drift = min(_DRIFT, (calls - 1) // 2)
    begins = [start]
    at = start + direction * calls
    while 0 <= at < n:
        low, high = max(0, at - drift), min(n, at + drift + 1)
        off = np.abs(np.arange(low, high) - at)
        best = low + int(np.argmax(score[low:high] - 1e-3 * off))
        if score[best] < _MIN_AGREEMENT:
            best = _resume(names, template, at, direction)
            if best < 0:
                break
            begins += _begins_between(begins[-1], best, names, template)
        begins.append(best)
        at = best + direction * calls
    return begins


def _resume(names: Ints, template: Ints, at: int, direction: int) -> int:
    """The next place with an undamaged step; -1 without any."""
    calls = len(template)
    low, high = (at, len(names)) if direction > 0 else (0, at + calls)
    ahead = names[low:high]
    if len(ahead) < calls:
        return -1
    places = np.flatnonzero(ahead[: len(ahead) - calls + 1] == template[0])
    for place in places[::direction].tolist():
        if np.array_equal(ahead[place : place + calls], template):
            return low + int(place)
    return -1


def _begins_between(last: int, resumed: int, names: Ints, template: Ints) -> list[int]:
    """Estimated begins of damaged steps, if the calls between belong to them."""
    steps = round(abs(resumed - last) / len(template))
    counts = np.bincount(
        names[min(last, resumed) : max(last, resumed)], minlength=int(names.max()) + 1
    )
    expected = steps * np.bincount(template, minlength=len(counts))
    if np.abs(counts - expected).sum() > (1 - _MIN_AGREEMENT) * expected.sum():
        return []
    return [last + round(step * (resumed - last) / steps) for step in range(1, steps)]
