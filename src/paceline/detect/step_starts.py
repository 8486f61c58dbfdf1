"""Where in the calls of one rank each step begins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Calls by which the start of a damaged step may lie off.
_DRIFT = 8
#: Calls compared on each side of a start, and what each counts of the one nearer to it.
_COMPARED, _FADE = 32, 0.85
#: Share of them that must agree: less is no step but an evaluation, a checkpoint, a gap.
_MIN_AGREEMENT = 0.6
#: Share of what agrees that must lie behind the start, unless that is the right call itself.
_FOLLOWS = 0.2
#: Share added by a pause of at least half the usual length before a call, and by being the call
#: that steps begin with.
_PAUSE_COUNTS, _FIRST_COUNTS = 0.25, 0.1


def starts_of_steps(names: Ints, time_s: Floats, calls: int, reference: Floats | None) -> Floats:
    """[step] when each step of one rank began, seconds.

    A step begins after the longest pause of the period, or, with a reference, at the call that is
    most often nearest to it. From an undamaged step on, each next begin is looked for a period
    further, by the calls around it. Where that fails, at the next undamaged step.

    Args:
        names: [call] equal numbers for equal calls.
        time_s: [call] seconds.
        calls: the period.
        reference: when the steps of another rank began.
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
    # A step whose first call is missing began before its first call that is there.
    follows = begins[begins + 1 < len(names)]
    second_s = float(np.median(time_s[follows + 1] - time_s[follows]))
    return time_s[begins] - np.where(names[begins] == template[0], 0.0, second_s)


def _first_whole(names: Ints, calls: int) -> int:
    """The first place from which the calls of one period are those of the next, if any."""
    equal = np.append(0, np.cumsum(names[calls:] == names[:-calls]))
    n_equal: Ints = equal[calls:] - equal[:-calls] if len(equal) > calls else np.zeros(1, np.int64)
    return int(np.argmax(n_equal))


def _phase(begins: Ints, time_s: Floats, calls: int, reference: Floats | None) -> int:
    """The call, counted from the places, that a step begins with."""
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
    """Places at which a step begins, found from a known one on, forwards and backwards."""
    score = _agreement(names, template) + bonus
    forward = _walk(names, template, start, score, 1)
    backward = _walk(names, template, start, score, -1)
    return np.array([*backward[:0:-1], *forward], dtype=np.int64)


def _agreement(names: Ints, template: Ints) -> Floats:
    """[place] share of the calls around it that are as around the begin of a step."""
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
    # A log may begin or end within a step: the calls at its ends alone say too little.
    first = names == template[0]
    ends = min(reach, _DRIFT)
    share[:ends] *= first[:ends]
    share[len(names) - ends :] *= first[len(names) - ends :]
    # Where nothing of a step follows, one ends, but none begins.
    share[~first & (after < _FOLLOWS * agree)] = 0.0
    return np.where(first, share + _FIRST_COUNTS, share)


def _walk(names: Ints, template: Ints, start: int, score: Floats, direction: int) -> list[int]:
    """Begins from a known one on, each a period and a few calls at most from the last."""
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
    """The next place with a whole undamaged step; -1 where none follows."""
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
    """Begins of steps that are too damaged to be seen, where the calls between are theirs."""
    steps = round(abs(resumed - last) / len(template))
    counts = np.bincount(
        names[min(last, resumed) : max(last, resumed)], minlength=int(names.max()) + 1
    )
    expected = steps * np.bincount(template, minlength=len(counts))
    if np.abs(counts - expected).sum() > (1 - _MIN_AGREEMENT) * expected.sum():
        return []
    return [last + round(step * (resumed - last) / steps) for step in range(1, steps)]
