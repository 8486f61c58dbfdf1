"""Analyses of sessions in a bounded pool of processes, each with limits of memory and time."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from paceline.monitor.analysis_process import SETTINGS, SUMMARY, UNWRITABLE
from paceline.monitor.blobs import RESULTS, Blobs, BlobsAway, result_key, trace_key
from paceline.monitor.bus import Bus
from paceline.monitor.config import DAY_S, MIB, Config
from paceline.monitor.log import log
from paceline.monitor.loss_range import loss_range
from paceline.monitor.store import jobs, leases, sessions

#: Number of attempts of an analysis that could not run, with pauses; unlimited while the disk is
#: full or the store away.
_ATTEMPTS, _PAUSE_S = 5, 5.0
#: Most doublings of a session's pause.
_MOST_DOUBLED = 7
#: Seconds between checks of an idle worker, in case a wake-up call is lost.
_LOOK_S = 5.0
#: Longest time that a session represents: the time since the previous session, up to this.
_MOST_S = DAY_S
#: Threads per process: the pool has several processes.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "ARROW_IO_THREADS")

_COLUMNS = (
    *("first_step", "last_step", "step_s", "slowdown", "waste", "cause", "headline", "best_gain"),
    *("slowdown_lasting", "slowdown_healthy", "place", "cause_gain", "data_loading"),
)


class Failed(Exception):  # noqa: N818 (the trace failed, not we)
    """A trace could not be analysed, with the reason."""


class _Stopping(Exception):  # noqa: N818 (nothing is wrong)
    """The service is stopping; the session waits for its next start."""


class Analyses:
    """Takes queued sessions, newest first, and stores their results.

    Args:
        config: limits.
        engine: the database.
        blobs: traces and results.
        bus: gets news of sessions.
        clock: seconds since 1970.
        on_done: called with (job, session) numbers once a result is stored.
        worker: number of the instance, if several take sessions from one queue.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        blobs: Blobs,
        bus: Bus,
        clock: Callable[[], float],
        on_done: Callable[[int, int], None],
        worker: str | None = None,
    ) -> None:
        self._config, self._engine, self._blobs, self._bus = config, engine, blobs, bus
        self._clock, self._on_done, self._worker = clock, on_done, worker
        self._looked_at = -math.inf
        self._stop = threading.Event()
        self._work = threading.Condition()
        self._taking = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._busy: set[int] = set()  # sessions in work
        self._tried: Counter[int] = Counter()  # session -> number of failed attempts
        self._unsure = True  # whether the store may have running sessions without a worker
        self.folder = config.data / "analyses"

    def start(self) -> None:
        """Queue interrupted sessions again, and start."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in range(self._config.analysis_processes):
            thread = threading.Thread(target=self._run, name=f"paceline-analysis-{number}")
            thread.daemon = True
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End the processes; their sessions wait for the next start."""
        self._stop.set()
        self.wake()
        for process in list(self._processes):
            process.kill()
        for thread in self._threads:
            thread.join()

    def wake(self) -> None:
        """Wake a worker for a new session."""
        with self._work:
            self._work.notify_all()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                row = self._take()
                if row is not None:
                    try:
                        self._session(row)
                    finally:
                        self._busy.discard(row["id"])
                    continue
            except Exception as error:
                self._unsure = True  # the commit may have succeeded although its answer was lost
                log(logging.ERROR, "failed", what="an analysis", reason=_reason(error))
                self._stop.wait(_PAUSE_S)
                continue
            with self._work:
                if not self._stop.is_set():
                    self._work.wait(_LOOK_S)

    def _take(self) -> Mapping[str, Any] | None:
        """The session to be analysed next."""
        with self._taking:
            if self._unsure:
                sessions.requeue_running(self._engine, but=self._busy, worker=self._worker)
                self._unsure = False
            if self._worker is not None and time.monotonic() - self._looked_at >= _LOOK_S:
                sessions.requeue_of_dead(self._engine, leases.living(self._engine))
                self._looked_at = time.monotonic()
            row = sessions.start_next(self._engine, self._clock(), self._worker)
            if row is not None:
                self._busy.add(row["id"])
            return row

    def _session(self, row: Mapping[str, Any]) -> None:
        job = jobs.by_id(self._engine, row["job_id"])
        if job is None:
            return
        self._tell(row, job, "running")
        try:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                summary = self._analyse(row, Path(folder))
                for name in RESULTS:
                    if (Path(folder) / name).exists():
                        self._blobs.take(Path(folder) / name, result_key(row["id"], name))
            values = {name: summary[name] for name in _COLUMNS}
            low, high = self._gpu_hours_lost(row, job, summary)
            self._learn(job, summary)
            values |= {"status": "done", "gpu_hours_lost": low, "reason": None}
            values["gpu_hours_lost_most"] = high
            if not self._finish(row, values, summary["facts"]):
                return
        except _Stopping:
            sessions.put_back(self._engine, row)
            return
        except Failed as failed:
            self._fail(row, job, str(failed))
            return
        except Exception as error:  # not caused by the trace: a full disk, for example
            self._tried[row["id"]] += 1
            passes = isinstance(error, OSError | SQLAlchemyError | BlobsAway)
            if self._tried[row["id"]] < _ATTEMPTS or (
                passes and not isinstance(error, FileNotFoundError)
            ):
                pause_s = _PAUSE_S * 2 ** min(self._tried[row["id"]] - 1, _MOST_DOUBLED)
                sessions.try_later(self._engine, dict(row), self._clock() + pause_s)
                raise
            self._fail(row, job, f"the analysis could not be run: {_reason(error)}")
            return
        self._tell(row, job, "done")
        self._on_done(row["job_id"], row["id"])

    def _fail(self, row: Mapping[str, Any], job: Mapping[str, Any], reason: str) -> None:
        log(logging.WARNING, "analysis failed", session=row["id"], reason=reason)
        with contextlib.suppress(_Stopping):
            if self._finish(row, {"status": "failed", "reason": reason}):
                self._tell(row, job, "failed")

    def _finish(
        self,
        row: Mapping[str, Any],
        values: Mapping[str, Any],
        facts: Mapping[str, Any] | None = None,
    ) -> bool:
        """Store the outcome, waiting for the database; False: another worker has the session."""
        while True:
            try:
                now = self._clock()
                done = {**values, "finished_at": now}
                return sessions.finish(self._engine, row["id"], done, facts, row)
            except Exception as error:
                log(logging.ERROR, "failed", what="storing an analysis", reason=_reason(error))
                if self._stop.wait(1.0):
                    raise _Stopping from None

    def _analyse(self, row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Run the process; returns its summary."""
        settings = {
            "memory_bytes": self._config.analysis_memory_mib * MIB,
            "meta": row["meta"],
        }
        key = trace_key(row["sha256"])
        if not self._blobs.exists(key):
            raise Failed("the trace was removed before the analysis")
        with self._blobs.local(key) as trace:
            module = "paceline.monitor.analysis_process"
            command = [sys.executable, "-m", module, str(trace), str(folder)]
            # In a file, for process arguments are limited in length.
            (folder / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
            try:
                return self._outcome(command, folder)
            except Failed as failed:  # its pusher uses another name
                raise Failed(str(failed).replace(str(trace), row["file_name"])) from None

    def _outcome(self, command: list[str], folder: Path) -> dict[str, Any]:
        env = os.environ | dict.fromkeys(_ONE_THREAD, "1") | {"ARROW_DEFAULT_MEMORY_POOL": "system"}
        errors = folder / "stderr"
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, env=env
            )
        self._processes.add(process)
        if self._stop.is_set():  # it started after the others were ended
            process.kill()
        try:
            code = process.wait(self._config.analysis_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failed(
                f"the analysis took more than {self._config.analysis_seconds:g} s "
                "(analysis_seconds)"
            ) from None
        finally:
            self._processes.discard(process)
        if self._stop.is_set() and code < 0:
            raise _Stopping
        silent = code > 0 and not errors.stat().st_size  # not even its message could be written
        if code == UNWRITABLE or silent:
            raise OSError(f"the results cannot be written: {_last_line(errors)}")
        if code:
            raise Failed(self._reason(code, errors))
        summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        return summary

    def _reason(self, code: int, errors: Path) -> str:
        last = _last_line(errors)
        if code == 2:
            return last
        if code == 3 or "MemoryError" in last or "bad_alloc" in last or "malloc" in last:
            mib = self._config.analysis_memory_mib
            return f"the analysis needs more than {mib} MiB of memory (analysis_memory_mib)"
        if code < 0:
            return f"the analysis was killed by {signal.Signals(-code).name}: {last}"
        return f"the analysis failed unexpectedly: {last}"

    def _gpu_hours_lost(
        self, row: Mapping[str, Any], job: Mapping[str, Any], summary: Mapping[str, Any]
    ) -> tuple[float, float]:
        """Wasted GPU-hours in the time that the session represents, and at most."""
        # Of the steps between the first and the last, not all need be profiled.
        n_steps = summary["last_step"] - summary["first_step"] + 1
        stands_s = max(summary["steps_s"], min(n_steps * summary["step_s"], _MOST_S))
        if job["status"] != "new":  # it ran between the sessions
            since = sessions.before(self._engine, row["job_id"], row["created_at"])
            since = job["created_at"] if since is None else since
            stands_s = min(max(row["created_at"] - since, stands_s), _MOST_S)
        gpus = job["gpus"] or summary["gpus"]
        low, high = loss_range(summary)
        return low * gpus * stands_s / 3600, high * gpus * stands_s / 3600

    def _learn(self, job: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Fields from the trace that the job's pusher did not send."""
        if not job["gpus"] or not job["degrees"]:
            gpus, degrees = job["gpus"] or summary["gpus"], job["degrees"] or summary["degrees"]
            jobs.learn(self._engine, job["id"], gpus, degrees)

    def _tell(self, row: Mapping[str, Any], job: Mapping[str, Any], status: str) -> None:
        news = {"job": job["name"], "job_id": job["id"], "id": row["id"], "status": status}
        self._bus.publish(job["project"], "session", news)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def _last_line(errors: Path) -> str:
    lines = errors.read_bytes()[-20_000:].decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "no message on stderr"
