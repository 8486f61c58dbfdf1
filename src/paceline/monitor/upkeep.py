"""Requests by users: analyse a session again, remove a session or a job."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, delete, select, update

from paceline.monitor.blobs import RESULTS, BlobsAway, result_key, trace_key
from paceline.monitor.log import log
from paceline.monitor.refusal import Refusal
from paceline.monitor.store import retained, sessions
from paceline.monitor.store.audit import Actor, note, record
from paceline.monitor.store.jobs import JobKey
from paceline.monitor.store.tables import jobs, stores
from paceline.monitor.store.tables import sessions as session_rows

if TYPE_CHECKING:
    from paceline.monitor.service import Service


def analyse_again(service: Service, job: JobKey, session_id: int, sha256: str, by: Actor) -> None:
    """Queue a finished session again; a queued or running one is unchanged.

    Raises:
        Refusal: its trace was removed.
    """
    if not service.blobs.exists(trace_key(sha256)):
        raise Refusal(409, "its trace was removed; push it again")
    if sessions.requeue(service.engine, session_id):
        subject, now = f"{session_id} of {job.name}", service.clock()
        note(service.engine, by, "session-queued", subject, project=job.project, at=now)
        service.tell_session(job, session_id)


def remove_session(service: Service, job: JobKey, session_id: int, by: Actor) -> None:
    """Remove a session with its results, and its trace if no other session has it."""
    rows = _held(service, session_rows.c.id == session_id)
    subject, now = f"{session_id} of {job.name}", service.clock()
    with service.engine.begin() as connection:
        retained.remove_in(connection, [session_id])
        record(connection, by, "session-removed", subject, project=job.project, at=now)
    log(logging.INFO, "session removed", session=session_id, job=job.name, who=by.name)
    _remove_blobs(service, rows)
    message = {"job": job.name, "job_id": job.id, "id": session_id, "status": "removed"}
    service.bus.publish(job.project, "session", message)


def remove_job(service: Service, job: JobKey, by: Actor) -> None:
    """Remove a job: sessions, events, alerts, step times. Its number is not reused."""
    rows = _held(service, session_rows.c.job_id == job.id)
    with service.engine.begin() as connection:
        largest = (stores.c.last_job < job.id) | stores.c.last_job.is_(None)
        connection.execute(update(stores).where(largest).values(last_job=job.id))
        connection.execute(delete(jobs).where(jobs.c.id == job.id))
        now = service.clock()
        record(connection, by, "job-removed", job.name, project=job.project, at=now)
    names = {"job": job.name, "project": job.project, "job_id": job.id, "who": by.name}
    log(logging.INFO, "job removed", **names)
    service.detectors.forget(job)
    service.steps.remove(job.id)
    _remove_blobs(service, rows)
    message = {"job": job.name, "job_id": job.id, "status": "removed"}
    service.bus.publish(job.project, "job", message)


def _held(service: Service, condition: ColumnElement[bool]) -> list[retained.Held]:
    columns = (session_rows.c.id, session_rows.c.sha256, session_rows.c.created_at)
    with service.engine.connect() as connection:
        query = select(*columns).where(condition)
        return [retained.Held(*row) for row in connection.execute(query)]


def _remove_blobs(service: Service, rows: Sequence[retained.Held]) -> None:
    try:
        for row in rows:
            keys = [result_key(row.id, name) for name in RESULTS]
            if not retained.has_trace(service.engine, row.sha256):
                keys.append(trace_key(row.sha256))
            for key in keys:
                service.blobs.delete(key)
    except BlobsAway as away:  # `paceline admin gc` removes orphaned files
        log(logging.WARNING, "blobs left behind", sessions=len(rows), reason=str(away))
