"""Changes of a job's step times, reduced to its present fail-slow.

A job with many ranks may have many large events. The result is kept until an event changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
            part, and ``peak`` if its factor was larger before. It has ``began_step`` and
            ``began_at`` if the first rank became slow at an earlier event. ``levels`` are its least
            and largest factor, if they differ.
        episodes: all fail-slows in order, ``slow`` as the last one. The others are as they were
            before their relief, with ``relieved`` true, ``relieved_at``, and the loss of the
            relief. ``mean`` is their mean factor, if the relief has it. ``relieved_step`` is the
            first healthy step. Where a restart or an accepted level ended the fail-slow, it is
            ``left_step``.
    """

    latest_at: float = -math.inf
    relieved_at: float = -math.inf
    onset: Row | None = None
    slow: Row | None = None
    episodes: tuple[Row, ...] = ()

    @classmethod
    def of(cls, events: Sequence[Mapping[str, Any]]) -> LevelChanges:
        """The result of a job's events, the latest first; other kinds of events change nothing."""
        changes = [event for event in events if event["kind"] in LEVEL_KINDS]
        onsets = [event for event in changes if event["kind"] in SLOW_KINDS]
        reliefs = [event["at"] for event in changes if event["kind"] not in SLOW_KINDS]
        slow, episodes = _episodes(changes)
        return cls(
            changes[0]["at"] if changes else -math.inf,
            max(reliefs, default=-math.inf),
            dict(onsets[0]) if onsets else None,
            slow,
            episodes,
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
        row = self.level if settled else self.slow
        return None if row is None else with_factor_of(job, row)

    @property
    def level(self) -> Row | None:
        """The fail-slow of a job whose row is slow: its ranks may be those that no event names."""
        return self.onset if self.slow is None else self.slow


def _episodes(changes: Sequence[Mapping[str, Any]]) -> tuple[Row | None, tuple[Row, ...]]:
    """``slow`` and ``episodes`` of :class:`LevelChanges`."""
    slow: dict[int, Mapping[str, Any]] = {}
    episode = _Episode()
    ended: list[Row] = []
    for event in reversed(changes):  # a new start of the job is a relief of all ranks
        before, was_slow = _factor(slow.values()), dict(slow)
        if slow or event["kind"] in SLOW_KINDS:
            episode.add_loss(event)
        for rank in event["ranks"]:  # the latest event comes last
            slow.pop(rank, None)
            if event["kind"] in SLOW_KINDS:
                slow[rank] = event
        if slow:
            episode.add(event, before, _factor(slow.values()))
        else:
            if was_slow:
                ended.append(_merged(was_slow, episode) | episode.end(event))
            episode = _Episode()
    if not slow:
        return None, tuple(ended)
    row = _merged(slow, episode)
    return row, (*ended, row)


@dataclass
class _Rise:
    """A rise of the level.

    Attributes:
        event: its event.
        before: the factor before it.
        size: by which the factor rose.
        left: the part that later levels left.
        least: the least part that they left.
        balance: steps since then above the middle of the rise, minus those below.
    """

    event: Mapping[str, Any]
    before: float
    size: float
    left: float
    least: float
    balance: int = 0

    def follow(self, steps: int, level: float, factor: float) -> None:
        """Follow a level that lasted some steps, and the next one.

        A dip that passes takes nothing from a rise. A rise that passed does not come back.
        """
        self.balance += steps if level > self.before + self.size / 2 else -steps
        now = min(self.size, max(0.0, factor - self.before))
        self.least = min(self.least, now)
        self.left = now if self.balance >= 0 else self.least


@dataclass
class _Episode:
    """The events of a fail-slow so far.

    Attributes:
        first: its first event.
        rises: its rises.
        levels: the factor after each event.
        step: first step of the latest level.
        costliest: the event with the largest loss; each has the loss since its rank's onset.
    """

    first: Mapping[str, Any] | None = None
    rises: list[_Rise] = field(default_factory=list)
    levels: list[float] = field(default_factory=list)
    step: int = 0
    costliest: Mapping[str, Any] | None = None

    @property
    def main(self) -> Mapping[str, Any] | None:
        """The event with the largest rise, the first one of equal rises."""
        rise = max(self.rises, key=lambda rise: rise.left, default=None)
        return None if rise is None else rise.event

    def add_loss(self, event: Mapping[str, Any]) -> None:
        lost_s, most = event.get("lost_s"), self.costliest
        if lost_s is not None and (most is None or lost_s >= most["lost_s"]):
            self.costliest = event

    def add(self, event: Mapping[str, Any], before: float, factor: float) -> None:
        """An event after which some ranks are slow."""
        if event["kind"] in SLOW_KINDS:
            self.first = self.first or event
        step = max(self.step, int(event.get("since_step", self.step)))
        for rise in self.rises:
            rise.follow(step - self.step, before, factor)
        if factor > before:
            size = factor - before
            self.rises.append(_Rise(event, before, size, left=size, least=size))
        self.step = step
        self.levels.append(factor)

    def end(self, event: Mapping[str, Any]) -> Row:
        """Fields that the event that ended the fail-slow adds to its row."""
        row: Row = {"relieved": True, "relieved_at": event["at"]}
        # Without a factor no healthy step was seen: a restart, or an accepted level.
        is_healthy = event["kind"] == "faster" or event["factor"] is not None
        if "since_step" in event:
            row["relieved_step" if is_healthy else "left_step"] = int(event["since_step"])
        if event["kind"] == "relief" and event["factor"] is not None:
            row["mean"] = event["factor"]
        return row


def _merged(slow: Mapping[int, Mapping[str, Any]], episode: _Episode) -> Row:
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
    most = episode.costliest
    if most is not None:
        row["lost_s"] = most["lost_s"]
        if most is not latest:
            row |= {"lost_step": most.get("step"), "lost_at": most["at"]}
    slowest = next((event for event in events if event["factor"] == row["factor"]), latest)
    if "since_step" in slowest:
        row["since_step"] = slowest["since_step"]
    main, first = episode.main, episode.first
    if main is not None and main is not slowest:
        row["main_step"] = main["since_step"]
    if main is not None and main is not latest:
        row["main_at"] = main["at"]
    if first is not None and first is not latest and "since_step" in first:
        row |= {"began_step": first["since_step"], "began_at": first["at"]}
    peak = max(episode.levels)
    if peak > min(episode.levels):
        row["levels"] = min(episode.levels), peak
    if row["factor"] is not None and peak > row["factor"]:
        row["peak"] = peak
    return row


def _factor(events: Iterable[Mapping[str, Any]]) -> float:
    """The largest factor of events; 1 without any."""
    return max((event["factor"] for event in events if event["factor"] is not None), default=1.0)


def with_factor_of(job: Mapping[str, Any], onset: Mapping[str, Any]) -> Row:
    """A fail-slow with the factor that the job's row has, where that has followed its last event.

    The factor of an event rests on its first steps, that of the row on all steps of the level. The
    result then has ``of_level``.
    """
    factor, last_step = job.get("slow_factor"), job.get("last_step")
    if factor is None or last_step is None or last_step < onset["step"]:
        return dict(onset)
    return {**onset, "factor": max(1.0, float(factor)), "of_level": True}


def began_step(onset: Mapping[str, Any], job: Mapping[str, Any]) -> int:
    """First step of a fail-slow, whose level may have changed later.

    It is that of the first event. Only where this is removed, the job's row may know an earlier
    step: the median of the ranks that are slow now.

    Args:
        onset: the fail-slow.
        job: row of its job.
    """
    step = int(onset.get("began_step", onset["since_step"]))
    since = job.get("slow_since_step")
    is_whole = onset["kind"] == "onset" or "began_step" in onset or onset.get("relieved")
    return step if is_whole or since is None else min(step, int(since))


def with_first_step(job: Mapping[str, Any], changes: LevelChanges | None) -> Row:
    """A job's row whose ``slow_since_step`` is the first step of its present fail-slow by events.

    The detector's own value follows the ranks that are slow at the moment. It stays where events
    tell no present fail-slow.
    """
    onset = None
    if changes is not None and changes.slow is not None:
        onset = changes.going_on(job, settled=True)
    return dict(job) if onset is None else {**job, "slow_since_step": began_step(onset, job)}


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
