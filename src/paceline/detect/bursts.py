"""Bursts among the episodes of a file: most samples after their onset are healthy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from paceline.detect.event import LEVEL_KINDS, Event
from paceline.detect.job import JobEvent
from paceline.detect.levels import HEALTHY


def ranks_of(event: Event | JobEvent) -> tuple[int, ...]:
    """Ranks of an event."""
    return (event.rank,) if isinstance(event, Event) else event.ranks


def changes_of(events: Sequence[Event | JobEvent]) -> dict[int, list[int]]:
    """Rank -> places of its level changes among the events."""
    changes: dict[int, list[int]] = defaultdict(list)
    for place, event in enumerate(events):
        if event.kind in LEVEL_KINDS:
            for rank in ranks_of(event):
                changes[rank].append(place)
    return changes


def bursts_of(events: Sequence[Event | JobEvent]) -> set[int]:
    """Places of onsets with a later relief, or a faster level, and a healthy median of samples.

    Args:
        events: events with final factors (:class:`paceline.detect.refinement.Refinement`).
    """
    behind = defaultdict(set)  # place -> kinds of the next changes of its ranks
    for places in changes_of(events).values():
        for place, after in zip(places, [*places[1:], None], strict=True):
            behind[place].add(None if after is None else events[after].kind)
    return {
        place
        for place, kinds in behind.items()
        if events[place].kind == "onset" and kinds <= {"relief", "faster"}
        if (refined := events[place].refined) is not None and refined.factor < 1 + HEALTHY
    }
