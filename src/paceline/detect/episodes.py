"""Episodes of a file: the events from an onset until all its ranks are healthy again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline.detect.bursts import ranks_of
from paceline.detect.event import LEVEL_KINDS, SLOW_KINDS, Event
from paceline.detect.job import JobEvent, factor_of
from paceline.detect.levels import HEALTHY
from paceline.detect.limits import PAUSE

Array = npt.NDArray[np.float64]

#: Least excess of the fastest rank in slow steps, as a share of that of the slowest, from which on
#: all ranks became slow together. Ranks that wait have about 1, ranks that do not wait about 0.
#: Likewise the least share of a change of some ranks that all others have, too.
TOGETHER = 0.75
#: Fail-slows of fewer steps are not judged beside longer ones.
_LONG = 20
#: Steps before a fail-slow that show the usual time of each rank.
_USUAL = 128


@dataclass(frozen=True)
class Episode:
    """Events that belong together, by their places in the list of events.

    Attributes:
        places: [event] the first one is the onset, unless the episode is a single other event.
        is_over: whether the last event is the relief of the last slow rank.
    """

    places: tuple[int, ...]
    is_over: bool

    @property
    def changes(self) -> tuple[int, ...]:
        """Places of the events between the onset and the last relief."""
        return self.places[1:-1] if self.is_over else self.places[1:]


def episodes_of(events: Sequence[Event | JobEvent]) -> list[Episode]:
    """Episodes in the order of their first events; any other event is one of its own.

    Events of single ranks (:class:`Event`) make an episode per rank.
    """
    places: dict[int, list[int]] = {}  # key of the open episode -> its places
    slow: dict[int, set[int]] = {}
    done: list[Episode] = []
    for place, event in enumerate(events):
        if event.kind not in LEVEL_KINDS:
            done.append(Episode((place,), False))
            continue
        key = event.rank if isinstance(event, Event) else -1
        ranks = slow.setdefault(key, set())
        was_slow = bool(ranks)
        ranks.update(ranks_of(event))
        if event.kind not in SLOW_KINDS:
            ranks.difference_update(ranks_of(event))
        if not was_slow and event.kind != "onset":  # such as "faster", or a relief after a restart
            done.append(Episode((place,), False))
            ranks.clear()
            continue
        places.setdefault(key, []).append(place)
        if not ranks:
            done.append(Episode(tuple(places.pop(key)), True))
    done += [Episode(tuple(of_key), False) for of_key in places.values()]
    return sorted(done, key=lambda episode: episode.places[0])


class ReliefDates:
    """Dates reliefs behind the last change of their rank.

    A level that melts away to health ends its fail-slow without a step of its own. The detector
    dates such a relief to the onset. After further changes it begins with the last of them.
    """

    def __init__(self) -> None:
        self._since: dict[int, int] = {}  # rank -> begin of its last level

    def apply(self, events: Sequence[Event]) -> list[Event]:
        """The events, in the order of their steps."""
        dated = []
        for event in events:
            if event.kind in SLOW_KINDS:
                self._since[event.rank] = event.since_step
            elif event.kind == "relief":
                last = self._since.pop(event.rank, event.since_step)
                event = replace(event, since_step=max(event.since_step, last))
            dated.append(event)
        return dated


def without_short_levels(events: Sequence[Event]) -> list[Event]:
    """The events of a finished file, without faster levels that did not last.

    Such a level ends by a rise to health, or the median of all its samples is healthy. One that
    ended a fail-slow is the relief of it.
    """
    kept: list[Event] = []
    for event in events:
        if event.kind == "faster" and factor_of(event) > 1 / (1 + HEALTHY):
            kept = _without_last_faster([*kept, event], _healthy_again(event))
        elif event.kind == "relief" and event.before_factor > 1:
            kept = _without_last_faster(kept, event)
        else:
            kept.append(event)
    return kept


def _healthy_again(faster: Event) -> Event:
    """The return to the healthy level before a faster level."""
    before = 1 / faster.before_factor
    healthy_s = faster.healthy_s / faster.factor
    return replace(faster, kind="relief", factor=np.nan, healthy_s=healthy_s, before_factor=before)


def _without_last_faster(events: list[Event], back: Event) -> list[Event]:
    """The events without a rank's last faster levels, which left the healthy level of ``back``."""
    own = [place for place, event in enumerate(events) if event.rank == back.rank]
    levels = [place for place in own if events[place].kind in LEVEL_KINDS]
    kept: list[Event | None] = list(events)
    while levels and events[levels[-1]].kind == "faster":
        place = levels.pop()
        event = events[place]
        if abs(event.healthy_s / event.factor / back.healthy_s - 1) > HEALTHY:
            break
        was_slow = bool(levels) and events[levels[-1]].kind in SLOW_KINDS
        end = replace(event, kind="relief", factor=np.nan, healthy_s=back.healthy_s)
        end = replace(end, estimate=None, refined=None)
        kept[place] = end if was_slow else None
    return [event for event in kept if event is not None]


def are_together(duration_s: Array, steps: Sequence[int], events: Sequence[Event]) -> bool:
    """Whether all ranks became slow together in each fail-slow, as ranks do that wait.

    Then step times cannot tell the slow rank from those that wait.

    Args:
        duration_s: [step, rank] step times.
        steps: [step] numbers.
        events: the events of the ranks.
    """
    if duration_s.shape[1] < 2:
        return False
    numbers = np.asarray(steps)
    is_slow = np.zeros(len(numbers), dtype=bool)
    since: dict[int, int] = {}
    for event in events:
        if event.kind == "onset":
            since[event.rank] = event.since_step
        elif event.kind == "relief" and event.rank in since:
            is_slow |= (numbers >= since.pop(event.rank)) & (numbers < event.since_step)
    for begin in since.values():
        is_slow |= numbers >= begin
    known = np.asarray(np.isfinite(duration_s).all(axis=1))
    healthy = duration_s[~is_slow & known]
    if not len(healthy):
        return False
    usual_s = np.median(healthy, axis=0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_slow, [False]]).astype(int)))
    rows = [np.arange(begin, end) for begin, end in edges.reshape(-1, 2).tolist()]
    longest = max((len(of_one) for of_one in rows), default=0)
    judged = [
        _rose_together(duration_s[of_one[known[of_one]]], usual_s)
        for of_one in rows
        if len(of_one) >= min(_LONG, longest)
    ]
    return bool(judged) and all(judged)


def are_shared(
    duration_s: Array, steps: Sequence[int], ranks: Sequence[int], events: Sequence[JobEvent]
) -> bool:
    """Whether changes of only some ranks are changes of all ranks, which wait for each other.

    A rank that changes alone gains or loses its whole change on the others. Ranks that wait cannot
    drift apart: noise brings one of them above the detector's bar, and another not.

    Args:
        duration_s: [step, rank] step times.
        steps: [step] numbers.
        ranks: [rank] numbers.
        events: events of the job.
    """
    numbers, known = np.asarray(steps), np.isfinite(duration_s).all(axis=1)
    changed_s = apart_s = 0.0
    for place, event in enumerate(events):
        if event.kind not in (*SLOW_KINDS, "faster") or len(event.ranks) == len(ranks):
            continue
        later = (o for o in events[place + 1 :] if not set(o.ranks).isdisjoint(event.ranks))
        end = next((o.since_step for o in later if o.kind in LEVEL_KINDS), numbers[-1] + 1)
        level = known & (numbers >= event.since_step) & (numbers < end)
        before = np.flatnonzero(known & (numbers < event.since_step))[-_USUAL:]
        is_own = np.isin(ranks, event.ranks)
        if not level.any() or not len(before) or is_own.all():
            continue
        lead_s = duration_s[:, is_own].mean(axis=1, keepdims=True) - duration_s[:, ~is_own]
        usual_s = np.median(lead_s[before], axis=0)
        after_s = event.healthy_s * (1.0 if event.kind == "faster" else event.factor)
        changed_s += abs(after_s - after_s / event.before_factor) * float(level.sum())
        apart_s += float(np.abs((lead_s[level] - usual_s).sum(axis=0)).max())
    return changed_s > 0 and apart_s <= (1 - TOGETHER) * changed_s


def with_together(
    events: Sequence[JobEvent], duration_s: Array, steps: Sequence[int]
) -> list[JobEvent]:
    """The events of a job in which a rank alone was slow, too: onsets of all ranks that wait.

    Args:
        events: events of the job.
        duration_s: [step, rank] step times.
        steps: [step] numbers.
    """
    numbers, marked = np.asarray(steps), []
    known = np.isfinite(duration_s).all(axis=1)
    for place, event in enumerate(events):
        if event.kind == "onset" and len(event.ranks) == event.of > 1:
            later = (other for other in events[place + 1 :] if other.kind in ("relief", "faster"))
            end = next((other.since_step for other in later), numbers[-1] + 1)
            slow = known & (numbers >= event.since_step) & (numbers < end)
            before = np.flatnonzero(known & (numbers < event.since_step))[-_USUAL:]
            together = len(before) > 0 and _rose_together(
                duration_s[slow], np.median(duration_s[before], axis=0)
            )
            event = replace(event, together=together)
        marked.append(event)
    return marked


def _rose_together(slow: Array, usual_s: Array) -> bool:
    """Whether all ranks rose alike in the steps of one fail-slow; pauses do not count."""
    if not len(slow):
        return False
    slow = slow[(slow <= PAUSE * np.median(slow, axis=0)).all(axis=1)]
    excess = slow.mean(axis=0) / usual_s - 1
    return bool(excess.min() > 0 and excess.min() >= TOGETHER * excess.max())
