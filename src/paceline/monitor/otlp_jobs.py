"""Spans of running jobs: kept per job in a file of requests, cut into sessions of whole steps.

A request is on disk when :meth:`SpanFiles.append` returns. A session is cut when a job is quiet for
a while or has sent much. The cut consists of repeatable steps, so a restart can complete it. First
the plan is written. Then the spans become a session, which is identified by its content and so
created only once. Finally the file keeps only the spans of incomplete steps.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import PacelineError
from paceline.files import sync
from paceline.monitor.log import log
from paceline.monitor.otlp_steps import behind, steps_of
from paceline.monitor.request_file import RequestFile
from paceline.monitor.store.jobs import JobKey

#: A session is cut after this silence, at this size, or at this age.
QUIET_S, CUT_BYTES, CUT_S = 30.0, 32 << 20, 300.0
#: At this size, bytes without a complete step become a session, which reports why it fails.
MAX_BYTES = 128 << 20
#: Longest delay of a step's operations after its end, while spans keep arriving.
LATE_NS = 15_000_000_000
#: Number of requests of a job that are recognised when repeated.
_MAX_DIGESTS = 20_000

FILE, PLAN = "requests.jsonl", "plan.json"
#: Version of a plan; plans without a version have this one. A plan exists while a session is made.
PLAN_VERSION = 1

_PLAN_KEYS = {"size", "sha256", "late_ns", "meta"}

#: (job, file of spans, its meta) -> a session.
Adopt = Callable[[JobKey, Path, Mapping[str, Any]], None]


class Spans(Protocol):
    """The spans of all jobs until they are sessions."""

    def start(self, now: float) -> None:
        """Continue work that the last stop interrupted."""

    def stop(self) -> None:
        """End."""

    def append(self, job: JobKey, line: bytes, now: float) -> bool:
        """Store a request, one line of JSON; False if already stored."""

    def tick(self, now: float) -> None:
        """Make due sessions."""

    def remove_older(self, before: float) -> int:
        """Remove spans without complete steps of jobs quiet since ``before``; returns bytes."""


@dataclass(eq=False)
class _Spans:
    """One job's requests without a session."""

    job: JobKey
    folder: Path
    file: RequestFile
    begun_at: float = 0.0  # first request after the last cut
    touched_at: float = 0.0
    fresh: bool = False  # new requests since the last check of its steps
    lock: threading.Lock = field(default_factory=threading.Lock)
    digests: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def remember(self, line: bytes) -> bool:
        """Whether the request is new."""
        key = hashlib.blake2b(line, digest_size=12).digest()
        if key in self.digests:
            return False
        self.digests[key] = None
        if len(self.digests) > _MAX_DIGESTS:
            self.digests.popitem(last=False)
        return True

    def forget(self, line: bytes) -> None:
        """Undo: the request was not stored."""
        self.digests.pop(hashlib.blake2b(line, digest_size=12).digest(), None)


class SpanFiles:
    """The spans of all jobs.

    Args:
        folder: folder of the files.
        adopt: makes a session of a file and takes the file; called again after a restart.
        job_of: the job of a number; None if it was removed.
    """

    def __init__(self, folder: Path, adopt: Adopt, job_of: Callable[[int], JobKey | None]) -> None:
        self._folder, self._adopt, self._job_of = folder, adopt, job_of
        self._lock = threading.Lock()
        self._open: dict[int, _Spans] = {}

    def start(self, now: float) -> None:
        """Continue work that the last stop interrupted."""
        for folder in self._folder.glob("*"):
            job = self._job_of(int(folder.name)) if folder.name.isdecimal() else None
            if job is not None:
                spans = self._of(job)
                spans.begun_at = spans.touched_at = now
                spans.fresh = True
                self._finish_plan(spans)

    def stop(self) -> None:
        """Close the files."""
        with self._lock:
            for spans in self._open.values():
                with spans.lock:
                    spans.file.close()
            self._open.clear()

    def append(self, job: JobKey, line: bytes, now: float) -> bool:
        """Store a request, one line of JSON; False if already stored.

        Raises:
            OutputError: it cannot be written; send it again.
        """
        spans = self._of(job)
        with spans.lock:
            if not spans.remember(line):
                return False
            try:
                spans.file.append(line)
            except BaseException:
                spans.forget(line)
                raise
            spans.begun_at = spans.begun_at or now
            spans.touched_at, spans.fresh = now, True
        return True

    def tick(self, now: float) -> None:
        """Cut due sessions; call it every few seconds."""
        with self._lock:
            waiting = [spans for spans in self._open.values() if spans.fresh]
        for spans in waiting:
            quiet = now - spans.touched_at >= QUIET_S
            try:
                size = spans.file.path.stat().st_size
                if quiet or size >= CUT_BYTES or now - spans.begun_at >= CUT_S:
                    self._cut(spans, 0 if quiet else LATE_NS)
            except (PacelineError, OSError) as error:
                spans.fresh = True  # to be repeated
                log(logging.ERROR, "failed", what="a session of spans", reason=str(error))

    def remove_older(self, before: float) -> int:
        """Remove spans without complete steps of jobs quiet since ``before``; returns bytes."""
        freed = 0
        with self._lock:
            for path in self._folder.glob(f"*/{FILE}"):
                stat = path.stat()
                if stat.st_mtime < before:
                    spans = self._open.pop(int(path.parent.name), None)
                    if spans is not None:
                        with spans.lock:
                            spans.file.close()
                    path.unlink()
                    freed += stat.st_size
        return freed

    def _of(self, job: JobKey) -> _Spans:
        with self._lock:
            spans = self._open.get(job.id)
            if spans is None:
                folder = self._folder / str(job.id)
                spans = _Spans(job, folder, RequestFile(folder / FILE))
                for line in spans.file.path.read_bytes().splitlines():
                    spans.remember(line)
                self._open[job.id] = spans
        return spans

    def _finish_plan(self, spans: _Spans) -> None:
        """Complete plans that a crash or a full disk interrupted."""
        path = spans.folder / PLAN
        if not path.is_file():
            return
        try:
            plan = json.loads(path.read_text(encoding="utf-8"))
            usable = plan.get("version", PLAN_VERSION) == PLAN_VERSION and set(plan) >= _PLAN_KEYS
        except (ValueError, AttributeError):
            usable = False
        if usable:
            self._carry_out(spans, plan)
        else:  # the file still has all spans, so they are cut again
            log(logging.WARNING, "plan of spans left out", job=spans.job.name, reason="no fit")
            path.unlink(missing_ok=True)

    def _cut(self, spans: _Spans, late_ns: int) -> None:
        self._finish_plan(spans)
        with spans.lock:
            spans.fresh = False
            data = spans.file.path.read_bytes()
        steps = steps_of(data.splitlines(), late_ns)
        if not steps.whole and len(data) < MAX_BYTES:
            with spans.lock:  # check again after the same time
                spans.begun_at = 0.0
            return
        hosts = {str(rank): list(place) for rank, place in steps.hosts.items()}
        plan = {
            "version": PLAN_VERSION,
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "late_ns": late_ns,
            "meta": {"steps": list(steps.whole), **({"hosts": hosts} if hosts else {})},
        }
        plan_path = spans.folder / PLAN
        _put(_write_beside(plan_path, json.dumps(plan).encode()), plan_path)
        self._carry_out(spans, plan)

    def _carry_out(self, spans: _Spans, plan: Mapping[str, Any]) -> None:
        """Make the session, and keep the rest in the file."""
        with spans.file.path.open("rb") as file:
            data = file.read(int(plan["size"]))
        if (
            hashlib.sha256(data).hexdigest() == plan["sha256"]
        ):  # otherwise everything was done before
            session = spans.folder / "session.jsonl"
            session.write_bytes(data)
            self._adopt(spans.job, session, plan["meta"])
            lines = data.splitlines()
            steps = steps_of(lines, int(plan["late_ns"]))
            remaining_lines = behind(lines, steps.until) if steps.whole else []
            with spans.lock:
                path = spans.file.path
                with path.open("rb") as file:
                    file.seek(len(data))
                    later = file.read()
                partial = _write_beside(
                    path, b"".join(line + b"\n" for line in remaining_lines) + later
                )
                spans.file.close()
                _put(partial, path)
                spans.file = RequestFile(path)
                spans.begun_at = spans.touched_at if later or remaining_lines else 0.0
        (spans.folder / PLAN).unlink(missing_ok=True)


def _write_beside(path: Path, data: bytes) -> Path:
    """A temporary file beside ``path``, synced to disk, to replace it."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return partial


def _put(partial: Path, path: Path) -> None:
    """Replace a file; its name is on disk on return."""
    partial.replace(path)
    sync(path.parent)
