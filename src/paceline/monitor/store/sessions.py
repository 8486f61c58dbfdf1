"""Sessions: queued once their trace has arrived, then analysed, newest first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Engine, delete, desc, func, insert, select, update

from paceline.monitor.store.due import due
from paceline.monitor.store.inserts import insert_new
from paceline.monitor.store.jobs import summarise
from paceline.monitor.store.tables import IS_DONE, jobs, session_facts, sessions, uploads

Row = dict[str, Any]
#: Values of a session that is to be analysed as if it were new.
_WAITS = {"status": "queued", "attempts": 0, "reason": None, "next_at": None}


def find(engine: Engine, job_id: int, sha256: str) -> tuple[int, str] | None:
    """(number, status) of the session of a job with that trace."""
    query = select(sessions.c.id, sessions.c.status).where(_of(job_id, sha256))
    with engine.connect() as connection:
        row = connection.execute(query).first()
    return None if row is None else (int(row[0]), row[1])


def enqueue(engine: Engine, job_id: int, trace: Mapping[str, Any], now: float) -> int:
    """Create a session for a stored trace, and end the trace's uploads.

    Args:
        engine: the database.
        job_id: number of the job.
        trace: ``sha256``, ``size_bytes``, ``file_name`` and ``meta``.
        now: time.
    """
    with engine.begin() as connection:
        return enqueue_in(engine, connection, job_id, trace, now)


def enqueue_in(
    engine: Engine, connection: Connection, job_id: int, trace: Mapping[str, Any], now: float
) -> int:
    """:func:`enqueue` within a transaction."""
    sha256 = trace["sha256"]
    columns = ("sha256", "size_bytes", "file_name", "meta")
    connection.execute(
        insert_new(engine, sessions).values(
            **{name: trace[name] for name in columns}, job_id=job_id, created_at=now
        )
    )
    # A failed session has its trace again.
    again = update(sessions).where(_of(job_id, sha256) & (sessions.c.status == "failed"))
    connection.execute(again.values(**_WAITS))
    number = connection.execute(select(sessions.c.id).where(_of(job_id, sha256))).scalar_one()
    connection.execute(
        delete(uploads).where((uploads.c.job_id == job_id) & (uploads.c.sha256 == sha256))
    )
    # A trace is no step, so that a silent job with earlier steps stays silent.
    stepless = (jobs.c.id == job_id) & jobs.c.last_step.is_(None)
    connection.execute(update(jobs).where(stepless).values(seen_at=now))
    summarise(connection, job_id)
    return int(number)


def waiting(engine: Engine) -> int:
    """Number of queued sessions."""
    query = select(func.count()).select_from(sessions).where(sessions.c.status == "queued")
    with engine.connect() as connection:
        return int(connection.execute(query).scalar_one())


def requeue(engine: Engine, session_id: int) -> bool:
    """Queue a finished session again; False if it is queued or running."""
    over = (sessions.c.id == session_id) & sessions.c.status.in_(("done", "failed"))
    with engine.begin() as connection:
        return bool(connection.execute(update(sessions).where(over).values(**_WAITS)).rowcount)


def requeue_of_dead(engine: Engine, living: Collection[str]) -> int:
    """Queue the sessions of lost workers again; returns their number."""
    dead = sessions.c.worker.is_not(None) & sessions.c.worker.not_in(list(living))
    statement = update(sessions).where((sessions.c.status == "running") & dead)
    with engine.begin() as connection:
        return int(connection.execute(statement.values(status="queued")).rowcount)


def requeue_running(engine: Engine, but: Collection[int] = (), worker: str | None = None) -> int:
    """Queue interrupted sessions again: all running ones of a worker ``but`` these."""
    running = (sessions.c.status == "running") & sessions.c.id.not_in(list(but))
    if worker is not None:
        running &= sessions.c.worker == worker
    with engine.begin() as connection:
        statement = update(sessions).where(running).values(status="queued")
        return int(connection.execute(statement).rowcount)


def start_next(engine: Engine, now: float, worker: str | None = None) -> Row | None:
    """Take the newest queued session, those tried before last; None without any.

    Concurrent workers get different sessions. The number of attempts in the row identifies the
    worker that may store the outcome.
    """
    waits = (sessions.c.status == "queued") & due(sessions.c.next_at, now)
    newest = (
        select(sessions.c.id)
        .where(waits)
        .order_by(sessions.c.attempts, desc(sessions.c.created_at), desc(sessions.c.id))
        .limit(1)
        .with_for_update(skip_locked=True)  # SQLite knows neither, and has one process
    )
    with engine.begin() as connection:
        number = connection.execute(newest).scalar_one_or_none()
        if number is None:
            return None
        attempts = sessions.c.attempts + 1
        result = connection.execute(
            update(sessions)
            .where((sessions.c.id == number) & (sessions.c.status == "queued"))
            .values(status="running", started_at=now, attempts=attempts, worker=worker)
        )
        if not result.rowcount:
            return None
        query = select(sessions).where(sessions.c.id == number)
        return dict(connection.execute(query).mappings().one())


def try_later(engine: Engine, row: Row, next_at: float) -> None:
    """Let a session that could not be analysed wait until a time."""
    with engine.begin() as connection:
        statement = update(sessions).where(_mine(row))
        connection.execute(statement.values(status="queued", next_at=next_at))


def _mine(row: Mapping[str, Any]) -> Any:
    """The condition that no other worker has the session."""
    if row["worker"] is None:
        return sessions.c.id == row["id"]
    return (
        (sessions.c.id == row["id"])
        & (sessions.c.status == "running")
        & (sessions.c.worker == row["worker"])
        & (sessions.c.attempts == row["attempts"])
    )


def finish(
    engine: Engine,
    session_id: int,
    values: Mapping[str, Any],
    facts: Mapping[str, Any] | None = None,
    taken: Mapping[str, Any] | None = None,
) -> bool:
    """Write the outcome (``status`` done or failed), and its facts about the job and fleet.

    Args:
        engine: the database.
        session_id: number of the session.
        values: columns to write.
        facts: for the fleet.
        taken: the worker's row from :func:`start_next`; None skips the check of ownership.

    Returns:
        whether the session was still the worker's.
    """
    with engine.begin() as connection:
        statement = (
            update(sessions)
            .where(sessions.c.id == session_id if taken is None else _mine(taken))
            .values(**values)
            .returning(sessions.c.job_id)
        )
        job_id = connection.execute(statement).scalar_one_or_none()
        if job_id is not None:
            stale = session_facts.c.session_id == session_id
            connection.execute(delete(session_facts).where(stale))
            if facts is not None:
                row = {"session_id": session_id, "facts": dict(facts)}
                connection.execute(insert(session_facts).values(row))
            summarise(connection, job_id)
        return job_id is not None


def put_back(engine: Engine, row: Mapping[str, Any]) -> None:
    """Queue the session again, as the service is stopping."""
    with engine.begin() as connection:
        connection.execute(
            update(sessions)
            .where(_mine(row) & (sessions.c.status == "running"))
            .values(status="queued", attempts=sessions.c.attempts - 1)
        )


def before(engine: Engine, job_id: int, created_at: float) -> float | None:
    """Creation time of the session before that time."""
    query = select(func.max(sessions.c.created_at)).where(
        (sessions.c.job_id == job_id) & (sessions.c.created_at < created_at)
    )
    with engine.connect() as connection:
        return connection.execute(query).scalar_one_or_none()


def by_id(engine: Engine, session_id: int, project: str) -> Row | None:
    """A session's row with its job's name and project; None if it is another project's."""
    query = (
        select(sessions, jobs.c.name.label("job"), jobs.c.project)
        .join(jobs)
        .where(sessions.c.id == session_id)
    )
    if project != "*":
        query = query.where(jobs.c.project == project)
    with engine.connect() as connection:
        row = connection.execute(query).mappings().first()
    return dict(row) if row else None


def list_sessions(engine: Engine, job_id: int, before_id: int | None, limit: int) -> list[Row]:
    """A job's sessions before ``before_id``, the newest first."""
    query = select(sessions).where(sessions.c.job_id == job_id).limit(limit)
    if before_id is not None:
        query = query.where(sessions.c.id < before_id)
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(desc(sessions.c.id))).mappings()
        return [dict(row) for row in rows]


def latest_done(engine: Engine, job_id: int) -> Row | None:
    """The newest analysed session of a job, which the job's row describes."""
    query = (
        select(sessions)
        .where((sessions.c.job_id == job_id) & IS_DONE)
        .order_by(desc(sessions.c.created_at), desc(sessions.c.id))
        .limit(1)
    )
    with engine.connect() as connection:
        row = connection.execute(query).mappings().first()
    return dict(row) if row else None


def recently_done(engine: Engine, since: float) -> list[tuple[int, int]]:
    """(job, newest session) of jobs with a session analysed since then."""
    query = (
        select(sessions.c.job_id, func.max(sessions.c.id))
        .where((sessions.c.status == "done") & (sessions.c.finished_at >= since))
        .group_by(sessions.c.job_id)
    )
    with engine.connect() as connection:
        return [(row[0], row[1]) for row in connection.execute(query)]


def _of(job_id: int, sha256: str) -> Any:
    return (sessions.c.job_id == job_id) & (sessions.c.sha256 == sha256)
