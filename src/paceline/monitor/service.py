"""The service without its web: store, blobs, step times, detectors, analyses, alerts, retention."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.files import make_folder
from paceline.monitor.alerts.engine import Alerts
from paceline.monitor.analysis_pool import Analyses
from paceline.monitor.blobs import Blobs
from paceline.monitor.bucket import open_blobs
from paceline.monitor.bus import Bus
from paceline.monitor.clock_jumps import ClockWatch
from paceline.monitor.config import DAY_S, Config
from paceline.monitor.detectors import Detectors
from paceline.monitor.identity import StoreIdentity
from paceline.monitor.log import log
from paceline.monitor.otlp_jobs import SpanFiles, Spans
from paceline.monitor.otlp_steps import step_times
from paceline.monitor.projects import load_projects
from paceline.monitor.refusal import Refusal
from paceline.monitor.retention import Retention
from paceline.monitor.step_files import Batch, StepFiles
from paceline.monitor.store import events as event_rows
from paceline.monitor.store import jobs, sessions
from paceline.monitor.store.audit import SERVICE, Actor, note
from paceline.monitor.store.database import open_database
from paceline.monitor.store.jobs import JobKey
from paceline.monitor.store.lock import StoreLock, lock_file
from paceline.monitor.under_way import UnderWay
from paceline.monitor.uploads import SPARE_BYTES, SPARE_SHARE, Uploads

#: Seconds between checks of silent jobs and alerts, and between checks of old data.
TICK_S, RETENTION_S = 5.0, 600.0
#: Age of results that alerts judge again after a start, in case one was missed.
_AGAIN_S = 900.0


class Service:
    """Everything behind the pages and the API; only one process uses store and data folder.

    (:class:`~paceline.monitor.instances.instance.Instance` is one of several.)

    Attributes:
        config: the settings.
        clock: seconds since 1970.
        engine: the database.
        blobs: traces and results.
        steps: step times on disk.
        bus: news for open pages.
        spans: spans of OpenTelemetry that will become sessions.
        uploads: uploads of traces.
        detectors: detectors of the step times.
        analyses: analyses of sessions.
        retention: removes old data.
        alerts: gets sessions and events.
        projects: limits of projects.
        started_at: time of the start.
    """

    _several = False  # processes that share the store
    blobs: Blobs
    steps: StepFiles
    uploads: Uploads
    detectors: Detectors
    analyses: Analyses

    def __init__(self, config: Config, clock: Callable[[], float] | None = None) -> None:
        """Open the store and the data folder.

        Raises:
            MonitorError: the store cannot be used, another service uses it or the data folder, or
                they belong to different stores.
            OutputError: the data folder cannot be written.
        """
        self.config, self.clock = config, clock or time.time
        self._may_jump = clock is None or self._several  # a test's clock passes as that likes
        self.projects = load_projects(config.projects, config.keep_days)
        make_folder(config.data)
        self._lock = lock_file(config.data / "lock", str(config.data))
        try:
            self.blobs = self._open_blobs()
            self.engine = open_database(config.store_url)
            try:
                self._store_lock = StoreLock(self.engine, several=self._several)
            except BaseException:
                self.engine.dispose()
                raise
        except BaseException:
            os.close(self._lock)
            raise
        self.bus = Bus()
        self._under_way = UnderWay()
        try:
            self._open()
        except BaseException:
            self._release()
            raise
        self.spans = self._open_spans()
        self.alerts = Alerts(self)
        self.retention = Retention(
            config,
            self.engine,
            self.blobs,
            self.steps,
            self.uploads,
            self.spans,
            self.projects,
        )
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("paceline-service", self._run), ("paceline-retention", self._clear))
        ]
        self._problems: list[str] = []
        self._has_cleared = False
        self.running = False
        self.started_at = self.clock()

    def _open_blobs(self) -> Blobs:
        return open_blobs(self.config.blobs, self.config.data)

    def _open_spans(self) -> Spans:
        return SpanFiles(
            self.config.data / "otlp", self._adopt, lambda number: jobs.key_of(self.engine, number)
        )

    def _open(self) -> None:
        """Open the parts that only the store's owner uses."""
        config = self.config
        self.steps = StepFiles(config.data / "steps")
        self.identity = StoreIdentity(self.engine, config.data, self.steps)
        self.identity.claim(self.clock())
        self.blobs.claim(self.identity.name)
        self.uploads = Uploads(config, self.engine, self.blobs)
        keep_s = self.projects.longest_days * DAY_S
        self.detectors = Detectors(
            self.engine,
            self.steps,
            self.bus,
            self.clock,
            self._event,
            keep_s,
            jump_s=self._watch_clock(),
        )
        self.analyses = Analyses(
            config, self.engine, self.blobs, self.bus, self.clock, self._session
        )

    def start(self) -> None:
        """Continue interrupted work, and start."""
        self.started_at = self.clock()
        jobs.not_after(self.engine, self.started_at)  # the clock may have been ahead
        self._jump_s = self._watch_clock()
        self.uploads.remove_strays()
        self.blobs.start()
        self.alerts.begin()
        self.detectors.start()
        self._begin()
        self.analyses.start()
        for thread in self._threads:
            thread.start()
        self.running = True

    def _begin(self) -> None:
        """Take up the jobs, and judge results that were missed."""
        self.alerts.start()
        self.detectors.resume(jobs.seen_since(self.engine, self.clock() - DAY_S))
        self._safely("spans", self.spans.start, self.clock())
        self._judge_done(self.clock() - _AGAIN_S)

    def _judge_done(self, since: float) -> None:
        for job_id, session_id in sessions.recently_done(self.engine, since):
            self._session(job_id, session_id)

    def stop(self) -> None:
        """Finish acknowledged work, save, and release store and data folder."""
        if self.running:
            log(logging.INFO, "stopping")
        self.running = False
        self._stop.set()
        self.bus.close()
        self.blobs.stop()
        if self._threads[0].ident is not None:
            self._threads[0].join()
            self.analyses.stop()
            self._end()
        self.spans.stop()
        self.steps.close()
        self._release()
        log(logging.INFO, "stopped")

    def _end(self) -> None:
        """Save the detectors, and stop the alerts."""
        self.detectors.stop()
        self.alerts.end()
        self.alerts.stop()

    def _release(self) -> None:
        """Release the store and the data folder."""
        self.engine.dispose()
        self._store_lock.close()
        os.close(self._lock)

    def take_steps(self, job: JobKey, batch: Batch) -> bool:
        """Store step times and pass them to the detector; False if already stored.

        Raises:
            OutputError: they cannot be written; send them again.
        """
        # A client that repeats a batch and learns that it is stored sends the next one. The
        # detector must have the first batch by then, for it takes steps in order.
        with self._under_way.alone((job.id, batch.key())):
            end = self.steps.append(job.id, batch)
            if end is not None:
                self.detectors.feed(job, replace(batch, end=end))
        return end is not None

    def take_many(self, batches: Sequence[tuple[JobKey, Batch]]) -> list[bool | Exception]:
        """Store the step times of several jobs; per batch, whether it is new, or the error.

        Repeating the request, wholly or in part, is safe.
        """
        return [_outcome(self.take_steps, job, batch) for job, batch in batches]

    def end_job(self, job: JobKey) -> None:
        """Mark a job as ended: it is not silent, and its alerts end."""
        now = self.clock()
        jobs.end(self.engine, job.id, now)
        self._safely("alerts", self.alerts.judge, job.id, now)

    def may_send(self) -> None:
        """This process sends the alerts, for it is the only one."""

    def accept_level(self, job: JobKey, by: Actor = SERVICE) -> None:
        """Accept a job's current step times as healthy.

        Raises:
            Refusal: the job is not slow.
        """
        row = jobs.by_id(self.engine, job.id)
        if row is None or row["slow_since_step"] is None:
            raise Refusal(409, f"{job.name} is not slow; there is no level to accept")
        self.detectors.accept(job)
        now = self.clock()
        note(self.engine, by, "level-accepted", job.name, project=job.project, at=now)

    def tell_event(
        self, job: JobKey, kind: str, step: int, at: float, text: str, ranks: Sequence[int]
    ) -> int:
        """Store a watch's event about a pause; repetitions have no effect. Returns its number."""
        row = {"job_id": job.id, "at": at, "kind": kind, "start": 0, "step": step}
        row |= {"since_step": step, "factor": None, "lost_s": None}
        row |= {"ranks": list(ranks), "text": text}
        number, is_new = event_rows.add(self.engine, row)
        if is_new:
            message = {"job": job.name, "job_id": job.id, "id": number, "kind": kind, "text": text}
            self.bus.publish(job.project, "event", message)
        return number

    def take_spans(self, job: JobKey, request: Mapping[str, Any]) -> None:
        """Store a checked request of spans, and its step times.

        Raises:
            TraceError: a span of Megatron-LM lacks something.
            OutputError: they cannot be written; send them again.
        """
        line = json.dumps(request, separators=(",", ":")).encode()
        samples, now = step_times(request), self.clock()
        self.spans.append(job, line, now)
        if samples:
            steps, ranks, seconds = (np.array(column) for column in zip(*samples, strict=True))
            number = hashlib.blake2b(line, digest_size=12).hexdigest()
            ranks, seconds = ranks.astype(np.int32), seconds.astype(np.float32)
            self.take_steps(job, Batch("otlp", number, now, steps, ranks, seconds))

    def tell_session(self, job: JobKey, session_id: int) -> None:
        """Start the analysis of a queued session, and inform the pages."""
        self.analyses.wake()
        message = {"job": job.name, "job_id": job.id, "id": session_id, "status": "queued"}
        self.bus.publish(job.project, "session", message)

    def _adopt(self, job: JobKey, path: Path, meta: Mapping[str, Any]) -> None:
        number = self.uploads.adopt(job.id, path, "spans.jsonl", dict(meta), self.clock())
        self.tell_session(job, number)

    @property
    def problems(self) -> list[str]:
        """Present problems that end by themselves, after waiting or once there is disk space."""
        problems = (
            [f"traces and results are unavailable: {away}"] if (away := self.blobs.problem) else []
        )
        disk = shutil.disk_usage(self.config.data)
        if disk.free < min(SPARE_BYTES, SPARE_SHARE * disk.total):
            problems.append(f"the disk of the data folder is full: {disk.free / 1e6:,.0f} MB free")
        return problems

    def _clear(self) -> None:
        """Remove old data in a separate thread, for a bucket may be slow."""
        while not self._stop.wait(RETENTION_S if self._has_cleared else TICK_S):
            self._has_cleared = True
            self._safely("retention", self._keep_tidy, self.clock())

    def _keep_tidy(self, now: float) -> None:
        self.retention.run(now)

    def _tell_problems(self) -> None:
        problems = self.problems
        if problems != self._problems:
            self._problems = problems
            level = logging.ERROR if problems else logging.INFO
            log(
                level, "problems" if problems else "no problem any more", reason="; ".join(problems)
            )

    def _watch_clock(self) -> Callable[[], float]:
        """Seconds by which the clock has jumped since the last call."""
        return ClockWatch(self.clock).jump_s if self._may_jump else lambda: 0.0

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            now, jump_s = self.clock(), self._jump_s()
            if jump_s:
                log(logging.WARNING, "the clock has jumped", seconds=round(jump_s))
                self.started_at = now  # nobody is silent since a time of another clock
            self._safely("the store's lock", self._store_lock.keep)
            self._tick(now)
            self._safely("disk and bucket", self._tell_problems)

    def _tick(self, now: float) -> None:
        """Do the periodic work of the owner, every few seconds."""
        self._safely("the store's name", self.identity.beat, now)
        self._safely("silent jobs", self._find_silent, now)
        self._safely("alerts", self.alerts.tick, now)
        self._safely("spans", self.spans.tick, now)

    def _find_silent(self, now: float) -> None:
        quiet_s = self.config.silent_after_s
        # No job could send news while the service was down.
        if quiet_s and now - self.started_at >= quiet_s:
            for job in jobs.silence_quiet(self.engine, now - quiet_s):
                message = {"job": job.name, "job_id": job.id, "status": "silent"}
                self.bus.publish(job.project, "job", message)

    def _event(self, job_id: int, event_id: int) -> None:
        self._safely("alerts", self.alerts.event, job_id, event_id)

    def _session(self, job_id: int, session_id: int) -> None:
        self._safely("alerts", self.alerts.session_done, job_id, session_id)

    def _safely(self, subject: str, work: Callable[..., Any], *args: Any) -> None:
        """Run periodic work; an error is logged and the work repeated next time."""
        try:
            work(*args)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            log(logging.ERROR, "failed", what=subject, reason=reason)


def _outcome(work: Callable[..., bool], *args: Any) -> bool | Exception:
    try:
        return work(*args)
    except Exception as error:
        return error
