"""A job with incoming step times: its stream of steps and their news."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.event import Event
from paceline.detect.job import MERGE_STEPS, JobEvent, job_events
from paceline.detect.limits import WARM_UP
from paceline.detect.slow_start import SlowStart
from paceline.monitor.rank_file import save_rank_map
from paceline.monitor.rank_map import RankMap
from paceline.monitor.snapshot import save_stream
from paceline.monitor.step_series import sync_rows
from paceline.monitor.step_stream import Closed, Ending, Stream
from paceline.monitor.store.jobs import JobKey
from paceline.units import moment

#: Number of steps whose median is a job's step time. A step is the median of its ranks, as the
#: healthy step time is.
LATEST = 15


@dataclass(eq=False)
class LiveJob:
    """A job's stream and its news."""

    job: JobKey
    stream: Stream
    used_at: float
    rank_map: RankMap = field(default_factory=RankMap)
    unsaved: int = 0
    saved_at: float = 0.0
    start: int = 0  # of the job
    under_way: bool = False  # a batch is partly processed: neither save nor unload
    changed: bool = False
    latest_s: list[float] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)  # rows to store
    groups: dict[str, list[Event]] = field(default_factory=dict)  # kind -> events, by rank
    replayed_to: tuple[int, int] | None = None  # (start, step) up to which steps were read again
    level_changed: bool = True  # since ``event_factor`` was read
    event_factor: float | None = None  # of the current fail-slow, by the stored events

    @property
    def may_be_saved(self) -> bool:
        """Whether no event is pending or may get more ranks; a restart finds these again."""
        last = self.stream.last_step - MERGE_STEPS
        waits = self.under_way or self.events or not self.stream.may_be_saved
        return not waits and all(group[0].step < last for group in self.groups.values())

    def is_replayed(self, event: Mapping[str, Any]) -> bool:
        """Whether an earlier detector has seen the event's step, too."""
        place = int(event["start"]), int(event["step"])
        return self.replayed_to is not None and place <= self.replayed_to

    @property
    def n_bytes(self) -> int:
        """Approximate memory in bytes."""
        return self.stream.n_bytes + self.rank_map.n_bytes

    @property
    def slow_factor(self) -> float | None:
        """Step time over the healthy one in the current fail-slow; None without one."""
        if self.stream.slow_since is None:
            return None
        return self.stream.slow_factor or self.event_factor

    def save(self, folder: Path, keep_from: float = 0.0) -> None:
        """Continue from here after a restart; forget older parts of the ranks' history."""
        sync_rows(folder)
        self.rank_map.drop_before(keep_from)
        save_rank_map(self.rank_map, folder)  # first: it may be ahead of the stream, never behind
        save_stream(self.stream, folder)

    def take(self, step: Closed, last: Any) -> list[Any]:
        """Add a step's events; returns its row, unless the series up to ``known`` has it."""
        row, rows = step.row, list[Any]()
        self.rank_map.add(row, step.ranks, step.durations_s)
        if self.start != int(row["start"]):
            self.start = int(row["start"])
            self.groups.clear()
        place = int(row["start"]), int(row["step"])
        if last is None or place > (int(last["start"]), int(last["step"])):
            rows.append(row)
            if row["samples"]:
                self.latest_s = [*self.latest_s[1 - LATEST :], float(row["median_s"])]
        self.changed, at = True, float(row["at"])
        lost_by = f"by {moment(at)} UTC"
        self.events += [  # a later session may name the cause: web/event_who.py
            self._event_row(event, at, self.start, event.explain(lost_by, says_unknown=False))
            for event in self._merge_events(step.events)
        ]
        return rows

    def note_ending(self, ending: Ending) -> None:
        """Add the end of a fail-slow."""
        self.events.append(self._event_row(ending.event, ending.at, ending.start, ending.text))

    def note_hang(self, now: float) -> None:
        """Add a step that does not end."""
        hang = self.stream.take_hang(now)
        if hang is not None:
            self.events.append(self._event_row(hang, now, self.start, hang.explain()))

    def note_slow_start(self, slow: SlowStart, rows: npt.NDArray[Any]) -> None:
        """Add an event that the first steps took longer than in earlier runs."""
        last, nan = rows[WARM_UP - 1], float("nan")
        lost_s = (1 - 1 / slow.factor) * float(np.nansum(rows["median_s"][:WARM_UP]))
        first, ranks = int(rows["step"][0]), tuple(self.stream.ranks.tolist())
        event = JobEvent(
            "slow-start", int(last["step"]), first, ranks, len(ranks), slow.factor, lost_s, nan
        )
        self.events.append(self._event_row(event, float(last["at"]), 0, slow.explain()))

    def accept(self, now: float) -> None:
        """Accept the current level as healthy."""
        ending = self.stream.accept(now)
        if ending is not None:
            self.note_ending(ending)
            self.groups.clear()
            self.changed = True

    def row(self) -> dict[str, Any]:
        """Step times for the job's row in the store."""
        return {
            "job_id": self.job.id,
            "seen_at": self.stream.seen_at,
            "is_live": self.stream.is_live,
            "last_step": self.stream.last_step,
            "step_s": float(np.median(self.latest_s)) if self.latest_s else None,
            "healthy_s": _finite(self.stream.healthy_s),
            "slow_since_step": self.stream.slow_since,
            "slow_factor": self.slow_factor,
        }

    def _merge_events(self, events: tuple[Event, ...]) -> list[JobEvent]:
        """Events of the job; events of several ranks close in time are merged."""
        changed = {}
        ranks = self.stream.ranks
        for event in (replace(event, rank=int(ranks[event.rank])) for event in events):
            group = self.groups.get(event.kind)
            if (
                group is None
                or event.step - group[0].step > MERGE_STEPS
                or any(event.rank == member.rank for member in group)
            ):
                group = self.groups[event.kind] = []
            group.append(event)
            changed[id(group)] = group
        return [job_events(group, len(ranks))[0] for group in changed.values()]

    def _event_row(self, event: JobEvent, at: float, start: int, text: str) -> dict[str, Any]:
        return {
            "job_id": self.job.id,
            "at": at,
            "start": start,
            "kind": event.kind,
            "step": event.step,
            "since_step": event.since_step,
            "factor": _finite(event.factor),
            "lost_s": _finite(event.lost_s),
            "ranks": list(event.ranks),
            "text": text,
        }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
