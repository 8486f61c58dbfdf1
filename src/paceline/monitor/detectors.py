"""The detectors of all jobs: fed in the background, saved, and resumed after a restart."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Engine

from paceline.detect import levels
from paceline.detect.event import LEVEL_KINDS
from paceline.detect.limits import WARM_UP
from paceline.errors import StateError
from paceline.monitor.bus import Bus
from paceline.monitor.earlier_runs import find_earlier_runs, slow_start_of
from paceline.monitor.keeper import Keeper, OneProcess
from paceline.monitor.live_job import LATEST, LiveJob
from paceline.monitor.log import log
from paceline.monitor.ongoing import find_ongoing
from paceline.monitor.rank_file import restore_rank_map
from paceline.monitor.rank_map import RankMap, Ratios
from paceline.monitor.refusal import Refusal
from paceline.monitor.replay import SAME_STEPS, replay
from paceline.monitor.snapshot import SNAPSHOT, load_stream
from paceline.monitor.step_files import MARGIN_S, Batch, StepFile, StepFiles
from paceline.monitor.step_series import append_rows, last_row, read_rows
from paceline.monitor.step_stream import Closed, Ending, Stream
from paceline.monitor.store import events as event_rows
from paceline.monitor.store import jobs
from paceline.monitor.store.jobs import JobKey, is_running, update_live
from paceline.monitor.store.leases import LeaseLost
from paceline.monitor.turns import Turns, Work

#: Samples that wait for the detectors, shared by projects; beyond, pushes are answered 429.
MAX_WAITING = 5_000_000
#: How long a stop works on what waits.
STOP_S = 10.0
#: How often rows of the store follow, and due steps are closed.
TICK_S = 1.0
#: After a tick batches have their turns for this multiple of the time that it took.
_REST = 4.0
#: Samples after which a stream is saved, and how long it is idle before it is saved anyway.
_SAVE_SAMPLES, _IDLE_S = 1_000_000, 600.0
#: Jobs taken up at a time: each has a segment of its file in memory, and the file open.
_MAX_LOADS = 8
#: Memory of the streams; beyond, those idle longest are saved and let go.
_MAX_BYTES = 512 << 20


#: A job whose step times could not be taken is taken up again after this time, then after twice it.
_RETRY_S, _MAX_RETRY_S = 2.0, 300.0

#: In place of a batch: the job's current level is healthy.
_ACCEPT = "accept"
#: In place of a batch: the job is removed.
_FORGET = "forget"
#: In place of a batch: something of the job is to be made anew.
_RESTORE = "restore"
_News = Batch | str | None


class _Failed(NamedTuple):
    """A job whose step times could not be taken (a full disk, a database that is away)."""

    job: JobKey
    wait_s: float
    due_at: float


class Detectors:
    """Takes batches that are on disk already; :meth:`start` begins to work on them, jobs in turns.

    Args:
        engine: the database.
        files: step times on disk.
        bus: told of steps and events.
        clock: seconds since 1970.
        on_event: called with (job, event) numbers once an event is stored.
        keep_s: how long ranks' step times are kept; 0 = always.
        keeper: where detectors are kept beside the files.
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
    ) -> None:
        self._engine, self._files, self._bus, self._clock = engine, files, bus, clock
        self._on_event, self._keep_s = on_event, keep_s
        self._keeper: Keeper = keeper or OneProcess()
        self._queue: queue.SimpleQueue[tuple[JobKey, _News] | None] = queue.SimpleQueue()
        self._count_lock = threading.Lock()
        self._waiting: Counter[str] = Counter()  # samples of each project
        self._live: dict[int, LiveJob] = {}
        self._failed: dict[int, _Failed] = {}
        self._turns = Turns()
        self._n_loading = 0
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

    def check_room(self, project: str) -> None:
        """Refuse more samples of a project while too many of its own wait.

        The room is shared by the projects that have some waiting: a flood of one does not have the
        others' refused.
        """
        with self._count_lock:
            sharing = len(self._waiting.keys() | {project})
            is_full = self._waiting[project] > MAX_WAITING / sharing
        if is_full:
            raise Refusal(429, "too many samples of this project wait; come again", retry_s=5)

    @property
    def n_waiting(self) -> int:
        """Samples that wait."""
        with self._count_lock:
            return self._waiting.total()

    def _count(self, job: JobKey, samples: int) -> None:
        """Add to what waits, or take from it."""
        with self._count_lock:
            self._waiting[job.project] += samples
            if self._waiting[job.project] <= 0:
                del self._waiting[job.project]

    def feed(self, job: JobKey, batch: Batch) -> None:
        """Take a batch that is stored."""
        self._count(job, len(batch.steps))
        self._queue.put((job, batch))

    def accept(self, job: JobKey) -> None:
        """Call a job's current level healthy, once what waits is taken."""
        self._queue.put((job, _ACCEPT))

    def forget(self, job: JobKey) -> None:
        """Let go of a job that is removed."""
        self._queue.put((job, _FORGET))

    def ratios(self, job: JobKey, first: int | None = None, last: int | None = None) -> Ratios:
        """How the ranks of a job compared, from step ``first`` to ``last``: of now, or as saved."""
        live = self._live.get(job.id)
        try:
            folder = self._files.path(job.id)
            rank_map = live.rank_map if live else self._keeper.rank_map(job.id, folder)
        except StateError:  # told when it is made anew
            rank_map = None
            self._queue.put((job, _RESTORE))
        return (rank_map or RankMap()).read(first, last)

    def resume(self, jobs: Iterable[JobKey]) -> None:
        """Look at what these jobs' files hold beyond what was saved."""
        for job in jobs:
            self._queue.put((job, None))

    def _run(self) -> None:
        ticked, rests_until, goes_on = 0.0, 0.0, True
        while time.monotonic() < self._stop_at and (goes_on or self._turns):
            goes_on = goes_on and self._sort(wait=not self._turns)
            now = self._clock()
            began = time.monotonic()
            if began >= rests_until and not 0 <= now - ticked < TICK_S:
                ticked = now
                self._tick(now)
                # On a machine that is too busy a tick takes long: most of the time is for batches.
                rests_until = time.monotonic() + _REST * (time.monotonic() - began)
            if self._turns:
                self._turns.take()
        self._forget_waiting()
        self._tick(self._clock(), stopping=True)

    def _sort(self, *, wait: bool) -> bool:
        """Let what came wait for the turns of its jobs; False once the service stops."""
        try:
            item = self._queue.get(wait, TICK_S)
            while item is not None:
                self._turns.add(item[0].id, self._work(*item))
                item = self._queue.get_nowait()
        except queue.Empty:
            return True
        return False

    def _forget_waiting(self) -> None:
        """Leave jobs of which batches wait as they were saved last: the next start reads on."""
        while not self._sort(wait=False):  # also what came behind the word to stop
            pass
        for job_id in self._turns.drop():
            self._live.pop(job_id, None)

    def _work(self, job: JobKey, batch: _News) -> Work:
        """Look at a batch, or at what the job's file holds, until it is done."""
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
                yield from self._digest_batch(live, batch)
                live.changed |= live.stream.last_step >= 0  # of each batch: the job is not silent
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
        live.unsaved = _SAVE_SAMPLES  # saved as soon as it may be, so that a restart knows of it

    def _work_due(self, live: LiveJob, now: float) -> Work:
        """Close the steps that have been waited for, and store events that were not taken."""
        if self._live.get(live.job.id) is not live:  # let go meanwhile
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
        """Let go of a job, to take it up again from the disk: its samples may all be there."""
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
        """Take up jobs again that failed a while ago."""
        for failed in list(self._failed.values()):
            if now >= failed.due_at and failed.job.id not in self._turns:
                self._turns.add(failed.job.id, self._work(failed.job, _RESTORE))

    def _is_saved(self, job: JobKey) -> bool:
        """Whether nothing has come since the job was saved."""
        try:
            saved_at = (self._files.path(job.id) / SNAPSHOT).stat().st_mtime
        except FileNotFoundError:
            saved_at = 0.0
        return self._files.written_at(job.id) <= max(0.0, saved_at - MARGIN_S)

    def _load(self, job: JobKey) -> Work:
        """Take up a job where it was saved, with all that came since."""
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
                for batch in self._batches_behind(live, file, is_unfit=is_unfit):
                    yield from self._digest_batch(live, batch, last)
                    if self._turns.is_over():
                        yield
        finally:
            self._n_loading -= 1
        live.saved_at = self._clock()
        live.stream.pulse.listen(live.saved_at)
        live.stream.replayed_to = live.stream.seen_at  # some of them wait in the queue, too
        self._live[job.id] = live
        self._failed.pop(job.id, None)

    def _batches_behind(self, live: LiveJob, file: StepFile, *, is_unfit: bool) -> Iterator[Batch]:
        """Samples since the stream was saved; if they do not fit, all those behind a new one."""
        if not is_unfit:
            return file.read_behind(min(live.stream.seen_at, self._clock()))
        return replay(file, live.stream, lambda: self._look_for_ongoing(live))

    def _look_for_ongoing(self, live: LiveJob) -> None:
        """A fail-slow that the store knows may have begun before the batches that are left."""
        row, stream = jobs.by_id(self._engine, live.job.id), live.stream
        since = row["slow_since_step"] if row is not None else None
        if since is not None and stream.slow_since is None:
            folder = self._files.path(live.job.id)
            stream.ongoing = find_ongoing(folder, stream.start, int(since))

    def _restore(self, job: JobKey) -> tuple[LiveJob, bool]:
        """The job as it was saved, or a new one; and whether what was saved does not fit."""
        try:
            stream = load_stream(self._files.path(job.id))
        except StateError as error:
            message = {"job": job.name, "job_id": job.id, "reason": str(error)}
            log(logging.WARNING, "detector made anew from step files", **message)
            # Saved as soon as it may be, so that this is not done at each restart.
            return LiveJob(job, Stream(), self._clock(), unsaved=_SAVE_SAMPLES), True
        return LiveJob(job, stream or Stream(), self._clock()), False

    def _restore_rank_map(
        self, live: LiveJob, file: StepFile, saved_to: tuple[int, int] | None
    ) -> Work:
        live.rank_map, reason = yield from restore_rank_map(file, saved_to, self._turns.is_over)
        if reason:
            message = {"job": live.job.name, "job_id": live.job.id, "reason": reason}
            log(logging.WARNING, "rank map made anew from step files", **message)
            live.unsaved = _SAVE_SAMPLES

    def _digest_batch(self, live: LiveJob, batch: Batch, last: Any = None) -> Work:
        live.unsaved += len(batch.steps)
        live.under_way = True
        if live.stream.detector is not None and levels.is_compiled():
            # Machine code was made for another job: it costs no more, and a tenth of the time.
            live.stream.detector.expected_steps = levels.INTERPRETED_SAMPLES + 1
        yield from self._digest(live, live.stream.take(batch), last)
        live.under_way = False

    def _digest(
        self, live: LiveJob, closed: Iterator[Closed | Ending | None], last: Any = None
    ) -> Work:
        """Store what the closed steps say; rows up to ``known`` are in the series already."""
        while not self._digest_some(live, closed, last):
            yield

    def _digest_some(
        self, live: LiveJob, closed: Iterator[Closed | Ending | None], last: Any
    ) -> bool:
        """Store what the steps closed in this turn say; True if these are all."""
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
        self._store_events(live)
        return are_all

    def _look_at_first_steps(self, live: LiveJob, folder: Path, new: int) -> None:
        """Compare a job's first steps with earlier runs, once there are enough of them."""
        series = read_rows(folder)
        if len(series) - new < WARM_UP <= len(series):
            slow = slow_start_of(series, live.stream.earlier)
            if slow is not None:
                live.note_slow_start(slow, series)

    def _store_events(self, live: LiveJob) -> None:
        """Store events in their order; what the store does not take now waits for the next tick."""
        while live.events:
            row = live.events[0]
            try:
                if live.is_replayed(row) and self._is_stored(row):
                    del live.events[0]
                    continue
                number, new = event_rows.add(self._engine, row, self._keeper.held)
            except Exception as error:
                _say("an event", error)
                return
            del live.events[0]
            if new:
                message = {"job": live.job.name, "job_id": live.job.id, "id": number}
                message |= {"kind": row["kind"], "text": row["text"]}
                self._bus.publish(live.job.project, "event", message)
                self._on_event(live.job.id, number)

    def _is_stored(self, row: dict[str, Any]) -> bool:
        """Whether an earlier detector was sure of the same onset or relief at another step."""
        if row["kind"] not in LEVEL_KINDS:
            return False
        if event_rows.has_near(self._engine, row, SAME_STEPS):
            return True
        # To a detector made anew within the fail-slow, its relief is a job that becomes faster.
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
        """Save it if it may be; else later."""
        try:
            if live.may_be_saved:
                folder, now = self._files.path(live.job.id), self._clock()
                live.save(folder, now - self._keep_s if self._keep_s else 0.0)
                self._keeper.saved(live.job.id, folder, live.stream.covered_to)
                live.unsaved, live.saved_at = 0, now
        except Exception as error:
            _say(f"step times of {live.job.name}", error)

    def _let_go(self) -> None:
        """Keep the memory of the streams within bounds."""
        size = sum(live.n_bytes for live in self._live.values())
        for live in sorted(self._live.values(), key=lambda job: job.used_at)[:-1]:
            if size <= _MAX_BYTES:
                return
            size -= live.n_bytes
            if not (live.events or live.under_way):
                self._save(live)
                del self._live[live.job.id]

    def _tell(self) -> None:
        """Bring the rows of the jobs up to date."""
        changed = [live for live in self._live.values() if live.changed]
        rows = [live.row() for live in changed]
        try:
            update_live(self._engine, rows, self._keeper.held)
        except Exception as error:
            _say("rows of the jobs", error)
            return
        for live, row in zip(changed, rows, strict=True):
            live.changed = False
            message = {name: row[name] for name in ("job_id", "last_step", "step_s")}
            self._bus.publish(live.job.project, "steps", {"job": live.job.name, **message})


def _say(subject: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    log(logging.ERROR, "failed", what=subject, reason=reason)
