"""Sessions and their blobs, for retention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Engine, delete, func, select, true, tuple_

from paceline.monitor.store.jobs import summarise
from paceline.monitor.store.tables import jobs, sessions, uploads

_OVER = sessions.c.status.in_(("done", "failed"))


@dataclass(frozen=True)
class Held:
    """A session that may have blobs."""

    id: int
    sha256: str
    created_at: float


def projects(engine: Engine) -> list[str]:
    """Projects with a job."""
    with engine.connect() as connection:
        return list(connection.execute(select(jobs.c.project).distinct()).scalars())


def job_ids(engine: Engine, project: str) -> set[int]:
    """Numbers of a project's jobs ("*" = of all)."""
    query = select(jobs.c.id)
    if project != "*":
        query = query.where(jobs.c.project == project)
    with engine.connect() as connection:
        return set(connection.execute(query).scalars())


def sessions_before(engine: Engine, before: float, limit: int, project: str) -> list[Held]:
    """Finished sessions of a project that are older than that time."""
    query = select(sessions.c.id, sessions.c.sha256, sessions.c.created_at)
    query = query.where((sessions.c.created_at < before) & _OVER & _of(project)).limit(limit)
    with engine.connect() as connection:
        return [Held(*row) for row in connection.execute(query)]


def oldest(engine: Engine, after: tuple[float, int], limit: int, project: str = "*") -> list[Held]:
    """The oldest finished sessions of a project after (time, number) ``after``."""
    place = tuple_(sessions.c.created_at, sessions.c.id)
    query = (
        select(sessions.c.id, sessions.c.sha256, sessions.c.created_at)
        .where((place > after) & _OVER & _of(project))
        .order_by(sessions.c.created_at, sessions.c.id)
        .limit(limit)
    )
    with engine.connect() as connection:
        return [Held(*row) for row in connection.execute(query)]


def remove(engine: Engine, ids: Sequence[int]) -> None:
    """Remove sessions, and update their jobs' rows."""
    with engine.begin() as connection:
        remove_in(connection, ids)


def remove_in(connection: Connection, ids: Sequence[int]) -> None:
    """Remove sessions in a transaction, and update their jobs' rows."""
    condition = sessions.c.id.in_(ids)
    query = select(sessions.c.job_id).where(condition).distinct()
    job_ids = list(connection.execute(query).scalars())
    connection.execute(delete(sessions).where(condition))
    for job_id in job_ids:
        summarise(connection, job_id)


def shares_trace(engine: Engine, row: Held) -> bool:
    """Whether a newer session or an upload has the same trace; older sessions are removed first."""
    newer = (sessions.c.created_at, sessions.c.id)
    others = select(sessions.c.id).where(
        (sessions.c.sha256 == row.sha256)
        & (sessions.c.id != row.id)
        & ((tuple_(*newer) > (row.created_at, row.id)) | ~_OVER)
    )
    pending = select(uploads.c.id).where(uploads.c.sha256 == row.sha256)
    with engine.connect() as connection:
        return any(connection.execute(query.limit(1)).first() for query in (others, pending))


def has_trace(engine: Engine, sha256: str) -> bool:
    """Whether any session or upload has this trace."""
    tables = (sessions, uploads)
    with engine.connect() as connection:
        return any(
            connection.execute(select(t.c.id).where(t.c.sha256 == sha256).limit(1)).first()
            for t in tables
        )


def references(engine: Engine, project: str = "*") -> tuple[set[str], set[str]]:
    """(SHA-256 of traces, numbers of sessions as text) of a project ("*" = of all)."""
    mine = _of(project)
    with engine.connect() as connection:
        traces = set(connection.execute(select(sessions.c.sha256).where(mine)).scalars())
        if project == "*":
            traces |= set(connection.execute(select(uploads.c.sha256)).scalars())
        numbers = connection.execute(select(sessions.c.id).where(mine)).scalars()
        return traces, {str(number) for number in numbers}


def n_since(engine: Engine, project: str, since: float) -> int:
    """Number of a project's sessions made since then."""
    query = select(func.count()).select_from(sessions)
    with engine.connect() as connection:
        condition = _of(project) & (sessions.c.created_at >= since)
        return int(connection.execute(query.where(condition)).scalar_one())


def _of(project: str) -> ColumnElement[bool]:
    """The condition that a session is of a project ("*" = of any)."""
    if project == "*":
        return true()
    return sessions.c.job_id.in_(select(jobs.c.id).where(jobs.c.project == project))
