"""The detectors of all jobs: fed in the background, saved, and resumed after a restart."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Engine

from paceline.detect.event import LEVEL_KINDS
from paceline.detect.limits import WARM_UP
from paceline.errors import StateError
from paceline.monitor.bus import Bus
from paceline.monitor.clock_jumps import LEAST_S
from paceline.monitor.earlier_runs import find_earlier_runs, slow_start_of
from paceline.monitor.keeper import Keeper, OneProcess
from paceline.monitor.levels import LevelChanges
from paceline.monitor.live_job import LATEST, LiveJob
from paceline.monitor.log import log
from paceline.monitor.ongoing import find_ongoing
from paceline.monitor.rank_file import restore_rank_map
from paceline.monitor.rank_map import RankMap, Ratios
from paceline.monitor.refusal import Refusal
from paceline.monitor.replay import SAME_STEPS, replay
from paceline.monitor.snapshot import SNAPSHOT, load_stream
from paceline.monitor.step_files import MARGIN_S, Batch, StepFile, StepFiles, not_ahead
from paceline.monitor.step_series import append_rows, last_row, read_rows
from paceline.monitor.step_stream import Closed, Ending, Stream
from paceline.monitor.store import events as event_rows
from paceline.monitor.store import jobs
from paceline.monitor.store.jobs import JobKey, is_running, update_live
from paceline.monitor.store.leases import LeaseLost
from paceline.monitor.turns import Turns, Work

#: Most samples that wait for the detectors, shared by projects; with more, pushes get 429.
MAX_WAITING = 5_000_000
#: Seconds for which a stop still processes waiting samples.
STOP_S = 10.0
#: Seconds between updates of the store's rows, when due steps are closed, too.
TICK_S = 1.0
#: After a tick, batches get at least this multiple of the tick's duration.
_REST = 4.0
#: Number of samples, and seconds of idleness, after which a stream is saved.
_SAVE_SAMPLES, _IDLE_S = 1_000_000, 600.0
#: Seconds after which this thread was paused, with the whole service perhaps.
_AWAY_S = 10.0
#: Most jobs taken up at once: each has a segment in memory and an open file.
_MAX_LOADS = 8
#: Memory limit of the streams; beyond it, the longest idle ones are saved and unloaded.
_MAX_BYTES = 512 << 20


#: Seconds until the next attempt for a job that failed; doubled each time.
_RETRY_S, _MAX_RETRY_S = 2.0, 300.0

#: In place of a batch: accept the job's current level as healthy.
_ACCEPT = "accept"
#: In place of a batch: the job is removed.
_FORGET = "forget"
#: In place of a batch: rebuild something of the job.
_RESTORE = "restore"
_News = Batch | str | None


class _Failed(NamedTuple):
    """A job with unprocessed step times, because of a full disk or an unreachable database."""

    job: JobKey
    wait_s: float
    due_at: float


class Detectors:
    """Processes batches that are already on disk; after :meth:`start`, jobs take turns.

    Args:
        engine: the database.
        files: step times on disk.
        bus: gets news of steps and events.
        clock: seconds since 1970.
        on_event: called with (job, event) numbers once an event is stored.
        keep_s: seconds for which ranks' step times are kept; 0 = always.
        keeper: further place of saved detectors.
        jump_s: seconds by which the clock has jumped since the last call, usually 0.
    """

    def __init__(
        self,
        engine: Engine,
        files: StepFiles,
        bus: Bus,
        clock: Callable[[], float],
        on_event: Callable[[int, int], None],
        keep_s: float = 0.0,
        keeper: Keeper | None = None,
        jump_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._engine, self._files, self._bus, self._clock = engine, files, bus, clock
        self._on_event, self._keep_s = on_event, keep_s
        self._keeper: Keeper = keeper or OneProcess()
        self._jump_s = jump_s
        self._queue: queue.SimpleQueue[tuple[JobKey, _News] | None] = queue.SimpleQueue()
        self._count_lock = threading.Lock()
        self._waiting: Counter[str] = Counter()  # waiting samples of each project
        self._live: dict[int, LiveJob] = {}
        self._failed: dict[int, _Failed] = {}
        self._turns = Turns()
        self._n_loading = 0
        self._thread: threading.Thread | None = None
        self._stop_at = math.inf

    def start(self) -> None:
        """Start processing batches."""
        self._thread = threading.Thread(target=self._run, name="paceline-detectors", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Process waiting batches for some seconds, and save; the next start reads the rest."""
        self._stop_at = time.monotonic() + STOP_S
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def check_room(self, project: str) -> None:
        """Refuse samples of a project that has too many waiting.

        Projects with waiting samples share the limit, so that a flood from one does not block
        others.
        """
        with self._count_lock:
            sharing = len(self._waiting.keys() | {project})
            is_full = self._waiting[project] > MAX_WAITING / sharing
        if is_full:
            raise Refusal(
                429, "too many samples of this project are waiting; try again later", retry_s=5
            )

    @property
    def n_waiting(self) -> int:
        """Number of waiting samples."""
        with self._count_lock:
            return self._waiting.total()

    def _count(self, job: JobKey, samples: int) -> None:
        """Change the number of waiting samples."""
        with self._count_lock:
            self._waiting[job.project] += samples
            if self._waiting[job.project] <= 0:
                del self._waiting[job.project]

    def feed(self, job: JobKey, batch: Batch) -> None:
        """Take a stored batch."""
        self._count(job, len(batch.steps))
        self._queue.put((job, batch))

    def accept(self, job: JobKey) -> None:
        """Accept a job's current level as healthy, after waiting batches."""
        self._queue.put((job, _ACCEPT))

    def forget(self, job: JobKey) -> None:
        """Unload a removed job."""
        self._queue.put((job, _FORGET))

    def ratios(self, job: JobKey, first: int | None = None, last: int | None = None) -> Ratios:
        """Rank comparison of a job from step ``first`` to ``last``, current or as saved."""
        live = self._live.get(job.id)
        try:
            folder = self._files.path(job.id)
            rank_map = live.rank_map if live else self._keeper.rank_map(job.id, folder)
        except StateError:  # reported when it is rebuilt
            rank_map = None
            self._queue.put((job, _RESTORE))
        return (rank_map or RankMap()).read(first, last)

    def resume(self, jobs: Iterable[JobKey]) -> None:
        """Read the files of these jobs beyond the saved state."""
        for job in jobs:
            self._queue.put((job, None))

    def _run(self) -> None:
        ticked, rests_until, goes_on = 0.0, 0.0, True
        was_here = time.monotonic()
        while time.monotonic() < self._stop_at and (goes_on or self._turns):
            goes_on = goes_on and self._sort(wait=not self._turns)
            jump_s = self._jump_s()
            now = self._clock()
            if jump_s:
                self._shift(jump_s, now)
            began = time.monotonic()
            if began - was_here > _AWAY_S:  # paused: nobody could send a batch
                for live in self._live.values():
                    live.stream.pulse.listen(now)
            was_here = began
            if began >= rests_until and not 0 <= now - ticked < TICK_S:
                ticked = now
                self._tick(now)
                # On a busy machine a tick takes long, but batches get most of the time.
                rests_until = time.monotonic() + _REST * (time.monotonic() - began)
            if self._turns:
                self._turns.take()
        self._forget_waiting()
        self._tick(self._clock(), stopping=True)

    def _shift(self, jump_s: float, now: float) -> None:
        """The clock has jumped."""
        for live in self._live.values():
            live.stream.shift(jump_s)
            live.stream.not_after(now)
            live.used_at, live.saved_at = live.used_at + jump_s, live.saved_at + jump_s
        for failed in list(self._failed.values()):
            due_at = failed.due_at + jump_s
            self._failed[failed.job.id] = failed._replace(due_at=due_at)
        try:
            jobs.not_after(self._engine, now)
        except Exception as error:
            _say("times of the jobs", error)

    def _sort(self, *, wait: bool) -> bool:
        """Queue new batches for the turns of their jobs; False once the service stops."""
        try:
            item = self._queue.get(wait, TICK_S)
            while item is not None:
                self._turns.add(item[0].id, self._work(*item))
                item = self._queue.get_nowait()
        except queue.Empty:
            return True
        return False

    def _forget_waiting(self) -> None:
        """Leave jobs with waiting batches in their saved state; the next start continues."""
        while not self._sort(wait=False):  # including batches after the stop message
            pass
        for job_id in self._turns.drop():
            self._live.pop(job_id, None)

    def _work(self, job: JobKey, batch: _News) -> Work:
        """Process a batch, or the content of the job's file, to its end."""
        try:
            live = self._live.get(job.id)
            if batch == _FORGET:
                self._live.pop(job.id, None)
                self._failed.pop(job.id, None)
            elif batch == _RESTORE:
                if live is None:
                    yield from self._load(job)
            elif isinstance(batch, str):
                yield from self._accept(job, live)
            elif live is None:
                if batch is not None or not self._is_saved(job):
                    yield from self._load(job)  # the batch is in the file
            elif batch is not None:
                now = self._clock()
                if batch.at > now + LEAST_S:  # the clock was ahead
                    batch = replace(batch, at=now)
                yield from self._digest_batch(live, batch)
                live.changed |= live.stream.last_step >= 0  # a live batch: the job is not silent
                if live.unsaved >= _SAVE_SAMPLES:
                    self._save(live)
        except Exception as error:
            self._fail(job, error)
        finally:
            if isinstance(batch, Batch):
                self._count(job, -len(batch.steps))

    def _accept(self, job: JobKey, live: LiveJob | None) -> Work:
        if live is None:
            yield from self._load(job)
            live = self._live[job.id]
        live.accept(self._clock())
        self._store_events(live)
        live.unsaved = _SAVE_SAMPLES  # saved soon, so that a restart knows it

    def _work_due(self, live: LiveJob, now: float) -> Work:
        """Close steps that waited long enough, and store pending events."""
        if self._live.get(live.job.id) is not live:  # unloaded meanwhile
            return
        used_at = live.used_at
        try:
            yield from self._digest(live, live.stream.close_due(now))
            if live.stream.hangs(now) and is_running(self._engine, live.job):
                live.note_hang(now)
                self._store_events(live)
        except Exception as error:
            self._fail(live.job, error)
        live.used_at = used_at

    def _fail(self, job: JobKey, error: Exception) -> None:
        """Unload a job to take it up again from the disk, which may have all its samples."""
        self._live.pop(job.id, None)
        _say("step times", error)
        self._keeper.forget(job.id)
        if not isinstance(error, LeaseLost):
            wait_s = min(
                2 * self._failed[job.id].wait_s if job.id in self._failed else _RETRY_S,
                _MAX_RETRY_S,
            )
            self._failed[job.id] = _Failed(job, wait_s, self._clock() + wait_s)

    def _retry(self, now: float) -> None:
        """Take up failed jobs again after a while."""
        for failed in list(self._failed.values()):
            if now >= failed.due_at and failed.job.id not in self._turns:
                self._turns.add(failed.job.id, self._work(failed.job, _RESTORE))

    def _is_saved(self, job: JobKey) -> bool:
        """Whether the job is unchanged since it was saved."""
        try:
            saved_at = (self._files.path(job.id) / SNAPSHOT).stat().st_mtime
        except FileNotFoundError:
            saved_at = 0.0
        return self._files.written_at(job.id) <= max(0.0, saved_at - MARGIN_S)

    def _load(self, job: JobKey) -> Work:
        """Take up a job from its saved state, with all later batches."""
        while self._n_loading >= _MAX_LOADS:
            yield
        folder = self._files.path(job.id)
        self._n_loading += 1
        try:
            self._keeper.take_up(job.id, folder)
            live, is_unfit = self._restore(job)
            live.start = live.stream.start
            saved_to = None if is_unfit else (live.stream.start, live.stream.last_step)
            live.stream.earlier = find_earlier_runs(self._engine, job, self._files.rows)
            with self._files.of(job.id) as file:
                yield from self._restore_rank_map(live, file, saved_to)
                last = last_row(folder)
                latest = read_rows(folder)[-LATEST:]
                latest = latest[latest["start"] == latest["start"][-1:]]
                live.latest_s = latest["max_s"].tolist()
                if is_unfit and last is not None:
                    live.replayed_to = int(last["start"]), int(last["step"])
                batches = self._batches_behind(live, file, is_unfit=is_unfit)
                known = min(live.stream.replayed_to, self._clock()) or self._clock()
                for batch in not_ahead(batches, self._clock, known):
                    yield from self._digest_batch(live, batch, last)
                    if self._turns.is_over():
                        yield
        finally:
            self._n_loading -= 1
        live.saved_at = self._clock()
        live.stream.not_after(live.saved_at)  # the clock may have been ahead
        live.stream.pulse.listen(live.saved_at)
        # Some of them wait in the queue, too.
        live.stream.replayed_to = live.stream.seen_at
        live.stream.replayed_end = live.stream.taken_end
        self._live[job.id] = live
        self._failed.pop(job.id, None)

    def _batches_behind(self, live: LiveJob, file: StepFile, *, is_unfit: bool) -> Iterator[Batch]:
        """Samples since the stream was saved, or all, with a new stream, if those do not fit."""
        if not is_unfit:
            return file.read_behind(min(live.stream.seen_at, self._clock()))
        return replay(file, live.stream, lambda: self._look_for_ongoing(live))

    def _look_for_ongoing(self, live: LiveJob) -> None:
        """A fail-slow in the store may have begun before the kept batches."""
        row, stream = jobs.by_id(self._engine, live.job.id), live.stream
        since = row["slow_since_step"] if row is not None else None
        if since is not None and stream.slow_since is None:
            folder = self._files.path(live.job.id)
            stream.ongoing = find_ongoing(folder, stream.start, int(since))

    def _restore(self, job: JobKey) -> tuple[LiveJob, bool]:
        """The saved job or a new one, and whether the saved state did not fit."""
        try:
            stream = load_stream(self._files.path(job.id))
        except StateError as error:
            message = {"job": job.name, "job_id": job.id, "reason": str(error)}
            log(logging.WARNING, "detector rebuilt from step files", **message)
            # Saved soon, so that this is not repeated at each restart.
            return LiveJob(job, Stream(), self._clock(), unsaved=_SAVE_SAMPLES), True
        return LiveJob(job, stream or Stream(), self._clock()), False

    def _restore_rank_map(
        self, live: LiveJob, file: StepFile, saved_to: tuple[int, int] | None
    ) -> Work:
        live.rank_map, reason = yield from restore_rank_map(file, saved_to, self._turns.is_over)
        if reason:
            message = {"job": live.job.name, "job_id": live.job.id, "reason": reason}
            log(logging.WARNING, "rank map rebuilt from step files", **message)
            live.unsaved = _SAVE_SAMPLES

    def _digest_batch(self, live: LiveJob, batch: Batch, last: Any = None) -> Work:
        live.unsaved += len(batch.steps)
        live.under_way = True
        yield from self._digest(live, live.stream.take(batch), last)
        live.under_way = False

    def _digest(
        self, live: LiveJob, closed: Iterator[Closed | Ending | None], last: Any = None
    ) -> Work:
        """Store rows and events of closed steps; the series already has rows up to ``known``."""
        while not self._digest_some(live, closed, last):
            yield

    def _digest_some(
        self, live: LiveJob, closed: Iterator[Closed | Ending | None], last: Any
    ) -> bool:
        """Store rows of the steps closed in this turn, and after the last turn the events.

        Returns whether this was the last turn.
        """
        rows: list[Any] = []
        are_all = True
        live.used_at = self._clock()
        for step in closed:
            if isinstance(step, Closed):
                rows += live.take(step, last)
            elif step is not None:
                live.note_ending(step)
            if self._turns.is_over():
                are_all = False
                break
        if rows:
            folder = self._files.path(live.job.id)
            append_rows(folder, np.array(rows))
            self._keeper.add_rows(live.job.id, np.array(rows))
            self._look_at_first_steps(live, folder, len(rows))
        if are_all:  # nobody hears of the begin of a fail-slow that the batch ends
            self._store_events(live)
        return are_all

    def _look_at_first_steps(self, live: LiveJob, folder: Path, new: int) -> None:
        """Compare a job's first steps with earlier runs, once there are enough steps."""
        series = read_rows(folder)
        if len(series) - new < WARM_UP <= len(series):
            slow = slow_start_of(series, live.stream.earlier)
            if slow is not None:
                live.note_slow_start(slow, series)

    def _store_events(self, live: LiveJob) -> None:
        """Store events in order, then tell them; those that fail now wait for the next tick."""
        new: list[int] = []
        while live.events:
            row = live.events[0]
            try:
                if live.is_replayed(row) and self._is_stored(row):
                    del live.events[0]
                    continue
                number, is_new = event_rows.add(self._engine, row, self._keeper.held)
            except Exception as error:
                _say("an event", error)
                break
            del live.events[0]
            live.level_changed |= row["kind"] in LEVEL_KINDS
            if is_new:
                message = {"job": live.job.name, "job_id": live.job.id, "id": number}
                message |= {"kind": row["kind"], "text": row["text"]}
                self._bus.publish(live.job.project, "event", message)
                new.append(number)
        for number in new:
            self._on_event(live.job.id, number)

    def _is_stored(self, row: dict[str, Any]) -> bool:
        """Whether an earlier detector found the same onset or relief at another step."""
        if row["kind"] not in LEVEL_KINDS:
            return False
        if event_rows.has_near(self._engine, row, SAME_STEPS):
            return True
        # A detector rebuilt within a fail-slow sees its relief as a job that becomes faster.
        relief = {**row, "kind": "relief", "step": -1}
        return row["kind"] == "faster" and event_rows.has_near(self._engine, relief, SAME_STEPS)

    def _tick(self, now: float, stopping: bool = False) -> None:
        if not stopping:
            self._retry(now)
        for live in list(self._live.values()):
            waits = stopping or live.job.id in self._turns
            is_due = live.events or live.stream.is_due(now) or live.stream.hangs(now)
            if not waits and is_due:
                self._turns.add(live.job.id, self._work_due(live, now))
                continue
            idle = now - live.used_at > _IDLE_S and not waits
            late = now - live.saved_at >= self._keeper.save_every_s
            if live.unsaved >= _SAVE_SAMPLES or (live.unsaved and (idle or stopping or late)):
                self._save(live)
            if idle and not live.events:
                self._live.pop(live.job.id, None)
        self._let_go()
        try:
            self._keeper.flush()
        except Exception as error:
            _say("series of the jobs", error)
        self._tell()

    def _save(self, live: LiveJob) -> None:
        """Save the job now if possible, otherwise later."""
        try:
            if live.may_be_saved:
                folder, now = self._files.path(live.job.id), self._clock()
                live.save(folder, now - self._keep_s if self._keep_s else 0.0)
                self._keeper.saved(live.job.id, folder, live.stream.covered_to)
                live.unsaved, live.saved_at = 0, now
        except Exception as error:
            _say(f"step times of {live.job.name}", error)

    def _let_go(self) -> None:
        """Keep the memory of the streams within its limit."""
        size = sum(live.n_bytes for live in self._live.values())
        for live in sorted(self._live.values(), key=lambda job: job.used_at)[:-1]:
            if size <= _MAX_BYTES:
                return
            size -= live.n_bytes
            if not (live.events or live.under_way):
                self._save(live)
                del self._live[live.job.id]

    def _tell(self) -> None:
        """Update the rows of the jobs."""
        changed = [live for live in self._live.values() if live.changed]
        try:
            self._read_factors([live for live in changed if live.level_changed])
            rows = [live.row() for live in changed]
            update_live(self._engine, rows, self._keeper.held)
        except Exception as error:
            _say("rows of the jobs", error)
            return
        for live, row in zip(changed, rows, strict=True):
            live.changed = False
            message = {name: row[name] for name in ("job_id", "last_step", "step_s")}
            self._bus.publish(live.job.project, "steps", {"job": live.job.name, **message})

    def _read_factors(self, lives: Sequence[LiveJob]) -> None:
        """Read from the events the factors of fail-slows whose level no detector knows."""
        numbers = [live.job.id for live in lives if live.stream.ongoing is not None]
        levels: dict[int, list[dict[str, Any]]] = {}
        if numbers:
            with self._engine.connect() as connection:
                levels = dict(event_rows.level_events_of(connection, numbers))
        for live in lives:
            level = LevelChanges.of(levels.get(live.job.id, ())).level
            live.event_factor = None if level is None else level["factor"]
            live.level_changed = bool(live.events)  # those could not be stored


def _say(subject: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    log(logging.ERROR, "failed", what=subject, reason=reason)
