"""Events of the step times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, delete, desc, select, update

from paceline.monitor.store.inserts import insert_new
from paceline.monitor.store.tables import events, jobs

Row = dict[str, Any]


def add(engine: Engine, row: Mapping[str, Any]) -> tuple[int, bool]:
    """(id, whether it is new) of an event; one of the same job, kind and step is that event."""
    same = (
        (events.c.job_id == row["job_id"])
        & (events.c.kind == row["kind"])
        & (events.c.step == row["step"])
    )
    with engine.begin() as connection:
        new = connection.execute(insert_new(engine, events).values(**row)).rowcount > 0
        if not new:  # more ranks may have joined since
            values = {name: row[name] for name in ("factor", "lost_s", "ranks", "text")}
            connection.execute(update(events).where(same).values(**values))
        return int(connection.execute(select(events.c.id).where(same)).scalar_one()), new


def listed(
    engine: Engine, project: str, job_id: int | None, before_id: int | None, limit: int
) -> list[Row]:
    """Events of a project ("*" = of all) or job, the newest first, those before ``before_id``."""
    query = select(events, jobs.c.name.label("job"), jobs.c.project).join(jobs)
    if project != "*":
        query = query.where(jobs.c.project == project)
    if job_id is not None:
        query = query.where(events.c.job_id == job_id)
    if before_id is not None:
        query = query.where(events.c.id < before_id)
    with engine.connect() as connection:
        found = connection.execute(query.order_by(desc(events.c.id)).limit(limit)).mappings()
        return [dict(row) for row in found]


def remove_older(engine: Engine, before: float) -> int:
    """Remove those before that time; returns how many."""
    with engine.begin() as connection:
        return int(connection.execute(delete(events).where(events.c.at < before)).rowcount)
