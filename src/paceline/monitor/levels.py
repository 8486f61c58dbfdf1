"""Changes of a job's step times, reduced to its present fail-slow.

A job with many ranks may have many large events. The result is kept until an event changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from paceline.detect.event import LEVEL_KINDS, SLOW_KINDS
from paceline.monitor.store.events import Mark, level_events_of, level_marks

Row = dict[str, Any]

#: Most onsets in one text, the latest ones, if several ranks are slow at once.
_TEXTS = 3
#: Jobs whose result is kept.
_MAX_KEPT = 20_000


@dataclass(frozen=True)
class LevelChanges:
    """The state that a job's onsets and reliefs leave.

    Attributes:
        latest_at: time of the latest event; -inf without one.
        relieved_at: time of the latest relief; -inf without one.
        onset: the latest event that left a rank slow; None without one.
        slow: all slow ranks, with the texts of their latest onsets; None if all are relieved. It
            has ``main_step`` and ``main_at`` if an earlier event made the job slow for the most
            part, ``first_step`` if the first slow step is an earlier one, and ``peak`` if its
            factor was larger before. It has ``began_step`` and ``began_at`` if the first rank
            became slow at an earlier event.
        last: ``slow``, otherwise the latest fail-slow as it was before its relief, with
            ``relieved`` true. Its loss is that of the relief. None without one.
    """

    latest_at: float = -math.inf
    relieved_at: float = -math.inf
    onset: Row | None = None
    slow: Row | None = None
    last: Row | None = None

    @classmethod
    def of(cls, events: Sequence[Mapping[str, Any]]) -> LevelChanges:
        """The result of a job's events, the latest first; other kinds of events change nothing."""
        changes = [event for event in events if event["kind"] in LEVEL_KINDS]
        onsets = [event for event in changes if event["kind"] in SLOW_KINDS]
        reliefs = [event["at"] for event in changes if event["kind"] not in SLOW_KINDS]
        slow, last = _slow_ranks(changes)
        return cls(
            changes[0]["at"] if changes else -math.inf,
            max(reliefs, default=-math.inf),
            dict(onsets[0]) if onsets else None,
            slow,
            last,
        )

    def going_on(self, job: Mapping[str, Any], *, settled: bool) -> Row | None:
        """The present fail-slow of a job: all slow ranks, with the texts of the latest onsets.

        Args:
            job: its row.
            settled: whether ``slow_since_step`` of the row has followed the events.
        """
        if self.onset is None or job["status"] == "ended":
            return None
        if settled and job["slow_since_step"] is None:
            return None
        return self.level if settled else self.slow

    @property
    def level(self) -> Row | None:
        """The fail-slow of a job whose row is slow: its ranks may be those that no event names."""
        return self.onset if self.slow is None else self.slow


def _slow_ranks(changes: Sequence[Mapping[str, Any]]) -> tuple[Row | None, Row | None]:
    """``slow`` and ``last`` of :class:`LevelChanges`."""
    slow: dict[int, Mapping[str, Any]] = {}
    main: Mapping[str, Any] | None = None  # the event with the largest rise since all were healthy
    first: Mapping[str, Any] | None = None  # the first event since all were healthy
    largest_rise = peak = 0.0
    lost_s: float | None = None  # each event has the loss since its rank's onset
    last: Row | None = None
    for event in reversed(changes):  # a new start of the job is a relief of all ranks
        before, was_slow = _factor(slow.values()), dict(slow)
        if (slow or event["kind"] in SLOW_KINDS) and event.get("lost_s") is not None:
            lost_s = max(lost_s or 0.0, event["lost_s"])
        if event["kind"] in SLOW_KINDS:
            first = first or event
            for rank in event["ranks"]:  # the latest event comes last
                slow.pop(rank, None)
                slow[rank] = event
            peak = max(peak, _factor(slow.values()))
            rise = _factor(slow.values()) - before
            if rise > largest_rise:
                main, largest_rise = event, rise
        else:
            for rank in event["ranks"]:
                slow.pop(rank, None)
        if not slow:
            if was_slow:
                last = {**_merged(was_slow, main, first, peak, lost_s), "relieved": True}
            main, first, largest_rise, peak, lost_s = None, None, 0.0, 0.0, None
    row = _merged(slow, main, first, peak, lost_s) if slow else None
    return row, row or last


def _merged(
    slow: Mapping[int, Mapping[str, Any]],
    main: Mapping[str, Any] | None,
    first: Mapping[str, Any] | None,
    peak: float,
    lost_s: float | None,
) -> Row:
    """One row for all slow ranks, each with its latest event; the latest event comes last."""
    event_of_text = {event["text"]: event for event in slow.values()}
    events = list(event_of_text.values())
    factors = [event["factor"] for event in events if event["factor"] is not None]
    latest = events[-1]
    row = {
        **latest,
        "ranks": sorted(slow),
        "factor": max(factors, default=None),
        "text": "; ".join(list(event_of_text)[-_TEXTS:]),
    }
    if lost_s is not None:
        row["lost_s"] = lost_s
    slowest = next((event for event in events if event["factor"] == row["factor"]), latest)
    if "since_step" in slowest:
        row["since_step"] = slowest["since_step"]
    if main is not None and main is not slowest:
        row["main_step"] = main["since_step"]
    if first is not None and first is not slowest and "since_step" in first:
        row["first_step"] = first["since_step"]
    if main is not None and main is not latest:
        row["main_at"] = main["at"]
    if first is not None and first is not latest and "since_step" in first:
        row |= {"began_step": first["since_step"], "began_at": first["at"]}
    if row["factor"] is not None and peak > row["factor"]:
        row["peak"] = peak
    return row


def _factor(events: Iterable[Mapping[str, Any]]) -> float:
    """The largest factor of events; 1 without any."""
    return max((event["factor"] for event in events if event["factor"] is not None), default=1.0)


class Levels:
    """The level changes of jobs, read again only where an event has changed."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Mark, LevelChanges]] = {}

    def of(
        self, connection: Connection, job_ids: Collection[int] | None = None
    ) -> dict[int, LevelChanges]:
        """Job -> its changes, for jobs with any.

        Args:
            connection: connection to the store.
            job_ids: these jobs; None: all slow jobs.
        """
        marks = level_marks(connection, job_ids)
        kept = {job_id: self._kept.get(job_id) for job_id in marks}
        changed = [job_id for job_id, mark in marks.items() if (kept[job_id] or ("",))[0] != mark]
        if len(self._kept) + len(changed) > _MAX_KEPT:
            self._kept.clear()
        result = {job_id: entry[1] for job_id, entry in kept.items() if entry is not None}
        for job_id, events in level_events_of(connection, changed):
            result[job_id] = LevelChanges.of(events)
            self._kept[job_id] = marks[job_id], result[job_id]
        return result
