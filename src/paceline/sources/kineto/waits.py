"""Waits of a program on the host for its communication; no event of a profile shows them.

A waiting thread is idle until the transfer has ended, on every rank and in every step. So the wait
does not lie before a moment that some rank passed while the transfer still ran. The wait is at the
earliest remaining moment, if some thread was idle there until the end. If no thread ever was, the
transfer is hidden on all ranks, and a rule gives the latest place where it is needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from paceline.sources.kineto.events import OPERATOR
from paceline.sources.kineto.marks import HostStep, Mark
from paceline.trace import OpKind

#: Events may begin this much before a recorded end that they waited for.
TOLERANCE_S: Final = 20e-6

#: A thread waited for an end if it goes on within PROMPT_S plus PROMPT_SHARE of its wait. Inside an
#: operator, which may compute, most ranks and steps must do so.
PROMPT_S, PROMPT_SHARE = 0.2e-3, 0.1

#: Gloo's thread may be delayed between the end of a transfer and its record. Where most ranks and
#: steps waited, EARLY_SHARE may seem to go on too early: by at most EARLY_S plus
#: PROMPT_SHARE of their idle time.
EARLY_S, EARLY_SHARE = 1e-3, 0.25

#: Outside of operators, other threads may use the core: a thread may go on later, within AWAKE_S
#: plus its wait. At least BLOCKED_SHARE of ranks and steps must have waited.
AWAKE_S, BLOCKED_SHARE = 1e-3, 0.1

Place = tuple[int, int]


class _EndView(NamedTuple):
    """One rank's view of one transfer's end in a step.

    Attributes:
        place: place of the first bound behind the end.
        waited_s: idle time of the thread at the end; 0 or less if it was not idle.
        back_s: time from the end to that bound.
        computing: whether the idle time is inside an operator, which may compute.
    """

    place: Place
    waited_s: float
    back_s: float
    computing: bool


def wait_places(steps: Sequence[HostStep]) -> list[Place | None]:
    """[launch] the bound before which the program waits; None if it does not wait in its step.

    Args:
        steps: steps of one signature, of any rank.
    """
    usual = _usual_sizes(steps)
    marks = steps[0].marks
    places: list[Place | None] = []
    for number in range(len(steps[0].launches)):
        views = [_end_view(step, number, usual) for step in steps]
        seen = [one for one in views if one is not None]
        if 2 * len(seen) < len(steps):
            places.append(None)
            continue
        place = _seen_place(seen)
        if place is None:
            place = _place_before_late_records(steps, number, views)
        places.append(place if place is not None else _needed_at(steps, number, marks))
    return places


def _place_before_late_records(
    steps: Sequence[HostStep], launch: int, views: Sequence[_EndView | None]
) -> Place | None:
    """The place where most threads waited until the end, except for ends recorded late."""
    seen = [(step, one) for step, one in zip(steps, views, strict=True) if one is not None]
    for place in sorted({one.place for _, one in seen}, reverse=True):
        until = [one for _, one in seen if one.place <= place]
        passed = [step for step, one in seen if one.place > place]
        blocked = sum(one.place == place and one.waited_s > 0 for one in until)
        if len(passed) > EARLY_SHARE * len(seen):
            return None
        if 2 * blocked >= len(seen) and all(
            _was_recorded_late(step, launch, place) for step in passed
        ):
            return _seen_place(until)
    return None


def _was_recorded_late(step: HostStep, launch: int, place: Place) -> bool:
    """Whether a step went on from a place only shortly before a transfer's recorded end."""
    rows, bound_s = step.bounds_of(place[0]), step.host.bound_s
    if not 0 <= place[1] < len(rows):
        return False
    row = rows[place[1]]
    idle_s = float(bound_s[row] - bound_s[row - 1])
    early_s = step.launches[launch].end_s - float(bound_s[row])
    return early_s <= EARLY_S + PROMPT_SHARE * idle_s


def _usual_sizes(steps: Sequence[HostStep]) -> Counter[int]:
    """Mark -> the usual number of bounds behind it."""
    return Counter(
        {
            mark: Counter(len(step.bounds_of(mark)) for step in steps).most_common(1)[0][0]
            for mark in range(-1, len(steps[0].marks))
        }
    )


def _end_view(step: HostStep, launch: int, usual: Counter[int]) -> _EndView | None:
    host, item = step.host, step.launches[launch]
    row = int(np.searchsorted(host.bound_s, item.end_s - TOLERANCE_S))
    row = max(row, int(np.searchsorted(host.bound_s, item.launch_s, "right")))
    if row >= step.bounds.stop:
        return None
    mark, number = step.place[row - step.bounds.start].tolist()
    if len(step.bounds_of(mark)) != usual[mark]:
        number = -1  # other events than usual: their number says nothing
    return _EndView(
        (mark, number),
        item.end_s - float(host.bound_s[row - 1]),
        float(host.bound_s[row]) - item.end_s,
        bool(host.inside[row] == OPERATOR),
    )


def _seen_place(seen: Sequence[_EndView]) -> Place | None:
    """The place where some thread waited until the end; None if no thread did."""
    place = max(one.place for one in seen)
    blocked = [one for one in seen if one.place == place and one.waited_s > 0]
    if not blocked or place[1] < 0:
        return None
    back_s = median(one.back_s for one in blocked)
    waited_s = median(one.waited_s for one in blocked)
    if any(one.computing for one in blocked):
        prompt = back_s <= PROMPT_S + PROMPT_SHARE * waited_s
        return place if prompt and 2 * len(blocked) >= len(seen) else None
    enough = len(blocked) >= BLOCKED_SHARE * len(seen)
    return place if enough and back_s <= AWAKE_S + waited_s else None


def _needed_at(steps: Sequence[HostStep], launch: int, marks: Sequence[Mark]) -> Place:
    """The latest place where a hidden transfer is needed.

    FSDP takes gathered parameters at a known place. Other transfers are needed at the end of the
    pass that launched them, where DDP waits for its buckets. A transfer outside of passes is needed
    at once.
    """
    at = next(n for n, mark in enumerate(marks) if mark.launch == launch)
    if marks[at].kind == OpKind.PARAMS_ALL_GATHER:
        copied = [_copied(step, launch) for step in steps]
        votes = Counter(place for place in copied if place is not None)
        if votes:
            return votes.most_common(1)[0][0]
    for number in range(at + 1, len(marks)):
        if marks[number].what == "begin":
            break
        if marks[number].what == "end":
            return number, 0
    return at, 0


def _copied(step: HostStep, launch: int) -> Place | None:
    """The bound before which FSDP first copies the parameters of a gather."""
    begun_s, unit = step.launches[launch].launch_s, step.units[launch]
    copies = step.host.copies
    for item in copies[bisect_right(copies, begun_s, key=lambda item: item.start_s) :]:
        if item.unit == unit and unit:
            row = int(np.searchsorted(step.host.bound_s, item.start_s))
            if row >= step.bounds.stop:
                return None
            mark, number = step.place[row - step.bounds.start].tolist()
            return mark, number
    return None
