"""Spans sent to any instance: stored in the database, made into sessions by the job's owner."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from paceline.errors import PacelineError
from paceline.monitor.blobs import Blobs, trace_key
from paceline.monitor.instances.membership import Membership
from paceline.monitor.log import log
from paceline.monitor.otlp_jobs import CUT_BYTES, CUT_S, LATE_NS, MAX_BYTES, QUIET_S
from paceline.monitor.otlp_steps import behind, steps_of
from paceline.monitor.refusal import JobGone, Refusal
from paceline.monitor.store import jobs, sessions, span_log
from paceline.monitor.store.jobs import JobKey
from paceline.monitor.store.leases import LeaseLost
from paceline.monitor.store.span_log import Waiting

#: Seconds for which repetitions of a request in a finished session are recognised.
KNOWN_S = 3600.0
#: Seconds until many bytes without a complete step are checked again.
AGAIN_S = 30.0


class SharedSpans:
    """The spans of all jobs; spans of owned shards become sessions here.

    One transaction, with the lease locked, stores a session, its leftover spans and the end of its
    requests. So no crash can put a span into two sessions.

    Args:
        engine: the database.
        members: leases of this instance.
        blobs: store of the sessions' spans.
        folder: scratch folder.
        tell: called with a new session.
    """

    def __init__(
        self,
        engine: Engine,
        members: Membership,
        blobs: Blobs,
        folder: Path,
        tell: Callable[[JobKey, int], None],
    ) -> None:
        self._engine, self._members, self._blobs = engine, members, blobs
        self._folder, self._tell = folder, tell
        #: Job -> (newest request, time, whether quiet) at the last check without a complete step.
        self._looked: dict[int, tuple[int, float, bool]] = {}

    def start(self, now: float) -> None:
        """Nothing: waiting spans are in the database."""

    def stop(self) -> None:
        """Nothing is open."""

    def append(self, job: JobKey, line: bytes, now: float) -> bool:
        """Store a request, one line of JSON; False if already stored.

        Raises:
            JobGone: the job was removed.
            SQLAlchemyError: it cannot be written; send it again.
        """
        key = hashlib.blake2b(line, digest_size=12).digest()
        try:
            return span_log.append(self._engine, job.id, key, line)
        except IntegrityError:
            raise JobGone from None

    def tick(self, now: float) -> None:
        """Make due sessions of owned jobs; call it every few seconds."""
        waiting = span_log.waiting(self._engine, self._members.shards)
        ids = {one.job_id for one in waiting}
        self._looked = {job: look for job, look in self._looked.items() if job in ids}
        for one in waiting:
            if not self._is_due(one, now):
                continue
            try:
                self._cut(one, now)
            except LeaseLost:
                continue
            except (PacelineError, Refusal, OSError) as error:  # repeated at the next tick
                log(logging.ERROR, "failed", what="a session of spans", reason=str(error))

    def _is_due(self, one: Waiting, now: float) -> bool:
        newest, looked_at, was_quiet = self._looked.get(one.job_id, (0, 0.0, False))
        is_quiet = _is_quiet(one, now)
        if one.newest == newest and (was_quiet or not is_quiet):  # no new requests
            return False
        is_old = now - max(one.first_at, looked_at) >= CUT_S
        return is_quiet or is_old or (one.size >= CUT_BYTES and now - looked_at >= AGAIN_S)

    def _cut(self, one: Waiting, now: float) -> None:
        self._members.fence_of(one.job_id)
        job = jobs.key_of(self._engine, one.job_id)
        rows = span_log.lines_of(self._engine, one.job_id, MAX_BYTES)
        if job is None or not rows:
            return
        lines = [line for _, line in rows]
        size = sum(len(line) for line in lines)
        is_quiet = _is_quiet(one, now)
        steps = steps_of(lines, 0 if is_quiet else LATE_NS)
        if not steps.whole and size < MAX_BYTES:
            self._looked[one.job_id] = (one.newest, now, is_quiet)
            return
        data = b"".join(line + b"\n" for line in lines)
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._folder / f"spans-{one.job_id}.jsonl"
        try:
            path.write_bytes(data)
            self._blobs.take(path, trace_key(sha256))
        finally:
            path.unlink(missing_ok=True)
        hosts = {str(rank): list(place) for rank, place in steps.hosts.items()}
        meta = {"steps": list(steps.whole), **({"hosts": hosts} if hosts else {})}
        trace = {"sha256": sha256, "size_bytes": len(data), "file_name": "spans.jsonl"}
        rest = behind(lines, steps.until) if steps.whole else []
        with self._engine.begin() as connection:
            if not self._members.held(connection, [one.job_id]):
                raise LeaseLost(f"job {one.job_id} belongs to another instance")
            number = sessions.enqueue_in(
                self._engine, connection, one.job_id, {**trace, "meta": meta}, now
            )
            span_log.spend(connection, one.job_id, [seq for seq, _ in rows])
            keyed = [(_key_of_rest(sha256, place), line) for place, line in enumerate(rest)]
            span_log.add_rest(connection, one.job_id, keyed)
        self._tell(job, number)

    def remove_older(self, before: float) -> int:
        """Remove older spans without complete steps; returns bytes."""
        return span_log.remove_older(self._engine, before)

    def forget_spent(self, now: float) -> None:
        """Forget requests of old sessions."""
        span_log.forget_spent(self._engine, now - KNOWN_S)


def _is_quiet(one: Waiting, now: float) -> bool:
    return now - one.last_at >= QUIET_S


def _key_of_rest(sha256: str, place: int) -> bytes:
    """A key for leftover spans, which no request has."""
    return hashlib.blake2b(f"{sha256} {place}".encode(), digest_size=12).digest()
