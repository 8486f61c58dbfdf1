"""The detectors of all jobs: fed in the background, saved, and resumed after a restart."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Engine

from paceline.detect.event import Event
from paceline.detect.job import MERGE_STEPS, JobEvent, job_events
from paceline.monitor.bus import Bus
from paceline.monitor.log import log
from paceline.monitor.refusal import Refusal
from paceline.monitor.step_files import Batch, StepFiles
from paceline.monitor.step_series import append_rows, last_row, read_series, sync_rows
from paceline.monitor.store import events as event_rows
from paceline.monitor.store.jobs import JobKey, update_live
from paceline.monitor.stream import SNAPSHOT, Anew, Closed, Stream, load_stream

#: Samples that wait for the detectors; beyond, pushes are answered 429.
MOST_WAITING = 5_000_000
#: For so long a stop works on what waits.
STOP_S = 10.0
#: How often rows of the store follow, and due steps are closed.
TICK_S = 1.0
#: A stream is saved after so many samples, and when it has been idle for so long.
_SAVE_SAMPLES, _IDLE_S = 1_000_000, 600.0
#: Batches that come at the same time may be taken in another order than they are stored.
_MARGIN_S = 60.0
#: Memory of the streams; beyond, those idle longest are saved and let go.
_MOST_BYTES = 512 << 20
#: Steps whose median is a job's step time.
_LATEST = 15


@dataclass(eq=False)
class _Live:
    """A job's stream and what is to be told of it."""

    job: JobKey
    stream: Stream
    used_at: float
    unsaved: int = 0
    start: int = 0  # of the job
    changed: bool = False
    latest_s: list[float] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)  # rows that are not stored yet
    groups: dict[str, list[Event]] = field(default_factory=dict)  # kind -> events, by rank

    @property
    def may_be_saved(self) -> bool:
        """Whether no event waits, nor one that more ranks may join: a restart finds those anew."""
        last = self.stream.last_step - MERGE_STEPS
        waits = self.events or not self.stream.may_be_saved
        return not waits and all(group[0].step < last for group in self.groups.values())

    def save(self, folder: Path) -> None:
        """Go on from here after a restart."""
        sync_rows(folder)
        self.stream.save(folder)
        self.unsaved = 0


class Detectors:
    """Takes batches that are on disk already; :meth:`start` begins to work on them.

    Args:
        engine: the database.
        files: step times on disk.
        bus: told of steps and events.
        clock: seconds since 1970.
        on_event: called with (job, event) numbers once an event is stored.
    """

    def __init__(
        self,
        engine: Engine,
        files: StepFiles,
        bus: Bus,
        clock: Callable[[], float],
        on_event: Callable[[int, int], None],
    ) -> None:
        self._engine, self._files, self._bus, self._clock = engine, files, bus, clock
        self._on_event = on_event
        self._queue: queue.SimpleQueue[tuple[JobKey, Batch | None] | None] = queue.SimpleQueue()
        self._count_lock = threading.Lock()
        self._n_waiting = 0
        self._live: dict[int, _Live] = {}
        self._thread: threading.Thread | None = None
        self._stop_at = math.inf

    def start(self) -> None:
        """Work on what comes."""
        self._thread = threading.Thread(target=self._run, name="paceline-detectors", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, for some seconds, and save; the next start reads the rest in files."""
        self._stop_at = time.monotonic() + STOP_S
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def check_room(self) -> None:
        """Refuse more samples while too many wait."""
        if self._n_waiting > MOST_WAITING:
            raise Refusal(429, "too many samples wait; come again", retry_s=5)

    @property
    def n_waiting(self) -> int:
        """Samples that wait."""
        return self._n_waiting

    def feed(self, job: JobKey, batch: Batch) -> None:
        """Take a batch that is stored."""
        with self._count_lock:
            self._n_waiting += len(batch.steps)
        self._queue.put((job, batch))

    def resume(self, jobs: Iterable[JobKey]) -> None:
        """Look at what these jobs' files hold beyond what was saved."""
        for job in jobs:
            self._queue.put((job, None))

    def _run(self) -> None:
        ticked = 0.0
        while time.monotonic() < self._stop_at:
            try:
                item = self._queue.get(timeout=TICK_S)
                if item is None:
                    break
                self._work(*item)
            except queue.Empty:
                pass
            except Exception as error:
                _say("step times", error)
            now = self._clock()
            if not 0 <= now - ticked < TICK_S:
                ticked = now
                self._tick(now)
        self._forget_waiting()
        self._tick(self._clock(), stopping=True)

    def _forget_waiting(self) -> None:
        """Leave jobs of which batches wait as they were saved last: the next start reads on."""
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None and item[1] is not None:
                    self._live.pop(item[0].id, None)

    def _work(self, job: JobKey, batch: Batch | None) -> None:
        try:
            live = self._live.get(job.id)
            if live is None:
                if batch is not None or not self._is_saved(job):
                    self._load(job)  # the batch is in the file
            elif batch is not None:
                live.unsaved += len(batch.steps)
                self._digest(live, live.stream.take(batch))
                live.changed |= live.stream.last_step >= 0  # of each batch: the job is not silent
        except Exception:
            self._live.pop(job.id, None)  # to be taken up again from what is on disk
            raise
        finally:
            if batch is not None:
                with self._count_lock:
                    self._n_waiting -= len(batch.steps)

    def _is_saved(self, job: JobKey) -> bool:
        """Whether nothing has come since the job was saved."""
        try:
            saved_at = (self._files.path(job.id) / SNAPSHOT).stat().st_mtime
        except FileNotFoundError:
            saved_at = 0.0
        return self._files.written_at(job.id) <= max(0.0, saved_at - _MARGIN_S)

    def _load(self, job: JobKey) -> None:
        """Take up a job where it was saved, with all that came since."""
        folder = self._files.path(job.id)
        live = _Live(job, load_stream(folder), self._clock())
        live.start = live.stream.start
        with self._files.of(job.id) as file:
            known = last_row(folder)
            live.latest_s = read_series(folder, points=0).max_s[-_LATEST:].tolist()
            for batch in file.read(since=live.stream.seen_at - _MARGIN_S):
                live.unsaved += len(batch.steps)
                self._digest(live, live.stream.take(batch), known)
        live.stream.replayed_to = live.stream.seen_at  # some of them wait in the queue, too
        self._live[job.id] = live

    def _digest(self, live: _Live, closed: Iterable[Closed | Anew], known: Any = None) -> None:
        """Store what the closed steps say; rows up to ``known`` are in the series already."""
        rows = []
        live.used_at = self._clock()
        for step in closed:
            if isinstance(step, Anew):
                live.events.append(_event_row(live.job, step.event, step.at, step.text))
                continue
            row = step.row
            if live.start != int(row["start"]):
                live.start = int(row["start"])
                live.groups.clear()
            place = int(row["start"]), int(row["step"])
            if known is None or place > (int(known["start"]), int(known["step"])):
                rows.append(row)
                if row["samples"]:
                    live.latest_s = [*live.latest_s[1 - _LATEST :], float(row["max_s"])]
            live.changed = True
            live.events += [
                _event_row(live.job, event, float(row["at"]), event.explain())
                for event in self._merged(live, step.events)
            ]
        if rows:
            append_rows(self._files.path(live.job.id), np.array(rows))
        self._store_events(live)

    def _merged(self, live: _Live, events: tuple[Event, ...]) -> list[JobEvent]:
        """Events of the job: those of ranks close in time are one, which grows as ranks join."""
        changed = {}
        ranks = live.stream.ranks
        for event in (replace(event, rank=int(ranks[event.rank])) for event in events):
            group = live.groups.get(event.kind)
            if (
                group is None
                or event.step - group[0].step > MERGE_STEPS
                or any(event.rank == other.rank for other in group)
            ):
                group = live.groups[event.kind] = []
            group.append(event)
            changed[id(group)] = group
        return [job_events(group, len(ranks))[0] for group in changed.values()]

    def _store_events(self, live: _Live) -> None:
        """Store events in their order; what the store does not take now waits for the next tick."""
        while live.events:
            row = live.events[0]
            try:
                number, new = event_rows.add(self._engine, row)
            except Exception as error:
                _say("an event", error)
                return
            del live.events[0]
            if new:
                told = {"job": live.job.name, "job_id": live.job.id, "id": number}
                told |= {"kind": row["kind"], "text": row["text"]}
                self._bus.publish(live.job.project, "event", told)
                self._on_event(live.job.id, number)

    def _tick(self, now: float, stopping: bool = False) -> None:
        for live in list(self._live.values()):
            try:
                if self._queue.empty():
                    self._digest_due(live, now)
                idle = now - live.used_at > _IDLE_S
                due = live.unsaved >= _SAVE_SAMPLES or (live.unsaved and (idle or stopping))
                if due and live.may_be_saved:
                    live.save(self._files.path(live.job.id))
                if idle and not live.events:
                    self._live.pop(live.job.id, None)
            except Exception as error:
                _say(f"step times of {live.job.name}", error)
        self._let_go()
        self._tell()

    def _digest_due(self, live: _Live, now: float) -> None:
        used_at = live.used_at
        self._digest(live, live.stream.close_due(now))
        live.used_at = used_at

    def _let_go(self) -> None:
        """Keep the memory of the streams within bounds."""
        size = sum(live.stream.n_bytes for live in self._live.values())
        for live in sorted(self._live.values(), key=lambda each: each.used_at)[:-1]:
            if size <= _MOST_BYTES:
                return
            size -= live.stream.n_bytes
            if not live.events:
                if live.may_be_saved:
                    live.save(self._files.path(live.job.id))
                del self._live[live.job.id]

    def _tell(self) -> None:
        """Bring the rows of the jobs up to date."""
        changed = [live for live in self._live.values() if live.changed]
        rows = [
            {
                "job_id": live.job.id,
                "seen_at": live.stream.seen_at,
                "last_step": live.stream.last_step,
                "step_s": float(np.median(live.latest_s)) if live.latest_s else None,
                "healthy_s": _finite(live.stream.healthy_s),
                "slow_since_step": live.stream.slow_since,
            }
            for live in changed
        ]
        try:
            update_live(self._engine, rows)
        except Exception as error:
            _say("rows of the jobs", error)
            return
        for live, row in zip(changed, rows, strict=True):
            live.changed = False
            told = {name: row[name] for name in ("job_id", "last_step", "step_s")}
            self._bus.publish(live.job.project, "steps", {"job": live.job.name, **told})


def _event_row(job: JobKey, event: JobEvent, at: float, text: str) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "at": at,
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


def _say(what: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    log(logging.ERROR, "failed", what=what, reason=reason)
