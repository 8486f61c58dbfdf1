"""Unfinished uploads, whose bytes are in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, delete, insert, select, update

from paceline.monitor.store.tables import jobs, uploads

Row = dict[str, Any]


def under_way(engine: Engine, job_id: int, sha256: str) -> Row | None:
    """The job's upload of that trace, if any."""
    query = select(uploads).where((uploads.c.job_id == job_id) & (uploads.c.sha256 == sha256))
    with engine.connect() as connection:
        row = connection.execute(query.order_by(uploads.c.created_at)).mappings().first()
    return dict(row) if row else None


def begin(engine: Engine, upload_id: str, job_id: int, trace: Mapping[str, Any], now: float) -> Row:
    """Begin an upload."""
    row = {
        **{name: trace[name] for name in ("sha256", "size_bytes", "file_name", "meta")},
        "id": upload_id,
        "job_id": job_id,
        "created_at": now,
        "touched_at": now,
    }
    with engine.begin() as connection:
        connection.execute(insert(uploads).values(**row))
    return row


def find(engine: Engine, upload_id: str, project: str) -> Row | None:
    """An upload with its job's name and project; None if it is another project's."""
    query = (
        select(uploads, jobs.c.name.label("job"), jobs.c.project)
        .join(jobs)
        .where(uploads.c.id == upload_id)
    )
    if project != "*":
        query = query.where(jobs.c.project == project)
    with engine.connect() as connection:
        row = connection.execute(query).mappings().first()
    return dict(row) if row else None


def touch(engine: Engine, upload_id: str, now: float) -> None:
    """Record the arrival of bytes."""
    with engine.begin() as connection:
        connection.execute(update(uploads).where(uploads.c.id == upload_id).values(touched_at=now))


def declared_sizes(engine: Engine) -> list[tuple[str, str, int, float]]:
    """(number, project, declared bytes, last arrival) of each upload."""
    columns = (uploads.c.id, jobs.c.project, uploads.c.size_bytes, uploads.c.touched_at)
    with engine.connect() as connection:
        rows = connection.execute(select(*columns).join(jobs))
        return [(row[0], row[1], int(row[2]), float(row[3])) for row in rows]


def remove(engine: Engine, upload_id: str) -> None:
    """Remove an upload."""
    with engine.begin() as connection:
        connection.execute(delete(uploads).where(uploads.c.id == upload_id))


def abandoned(engine: Engine, before: float) -> list[str]:
    """Uploads without bytes since then."""
    with engine.connect() as connection:
        query = select(uploads.c.id).where(uploads.c.touched_at < before)
        return list(connection.execute(query).scalars())


def ids(engine: Engine) -> set[str]:
    """All uploads."""
    with engine.connect() as connection:
        return set(connection.execute(select(uploads.c.id)).scalars())
