"""Events of the step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, delete, desc, or_, select, update

from paceline.detect.event import LEVEL_KINDS
from paceline.monitor.store.inserts import insert_new
from paceline.monitor.store.leases import Held, LeaseLost, all_held
from paceline.monitor.store.tables import EVENT_ORDER, events, jobs

Row = dict[str, Any]

#: Tolerance for an event that a detector sees again after a restart.
_SAME_S = 60.0


def add(engine: Engine, row: Mapping[str, Any], held: Held = all_held) -> tuple[int, bool]:
    """Store an event once per job, kind, start and step; returns (id, whether it is new).

    Raises:
        LeaseLost: another instance now has the job's detector.
    """
    place = (
        (events.c.job_id == row["job_id"])
        & (events.c.kind == row["kind"])
        & (events.c.step == row["step"])
    )
    same_event = place & (events.c.start == row["start"])
    near = events.c.at.between(row["at"] - _SAME_S, row["at"] + _SAME_S)
    with engine.begin() as connection:
        if row["job_id"] not in held(connection, [row["job_id"]]):
            raise LeaseLost("the job belongs to another instance")
        # An event seen again that an older version stored without its start.
        unknown = update(events).where(place & events.c.start.is_(None) & near)
        connection.execute(unknown.values(start=row["start"]))
        # PostgreSQL's driver has no rowcount here.
        statement = insert_new(engine, events).values(**row).returning(events.c.id)
        number = connection.execute(statement).scalar_one_or_none()
        if number is not None:
            return int(number), True
        # More ranks may have joined.
        values = {name: row[name] for name in ("factor", "lost_s", "ranks", "text")}
        joined = update(events).where(same_event).values(**values).returning(events.c.id)
        return int(connection.execute(joined).scalar_one()), False


def has_near(engine: Engine, row: Mapping[str, Any], steps: int) -> bool:
    """Whether the event is stored under a nearby step with a common rank.

    :func:`add` finds an event stored under the same step.
    """
    began = events.c.since_step.between(row["since_step"] - steps, row["since_step"] + steps)
    query = select(events.c.step, events.c.ranks).where(
        events.c.job_id == row["job_id"],
        events.c.kind == row["kind"],
        or_(events.c.start == row["start"], events.c.start.is_(None)),
        began | (events.c.step == row["step"]),
    )
    with engine.connect() as connection:
        near = connection.execute(query).all()
    ranks = set(row["ranks"])
    is_there = any(step == row["step"] for step, _ in near)
    return not is_there and any(not ranks.isdisjoint(others) for _, others in near)


def list_events(
    engine: Engine, project: str, job_id: int | None, before_id: int | None, limit: int
) -> list[Row]:
    """Events of a project ("*" = of all) or job before ``before_id``, the newest first."""
    query = select(events, jobs.c.name.label("job"), jobs.c.project, jobs.c.gpus).join(jobs)
    if project != "*":
        query = query.where(jobs.c.project == project)
    order = events.c.id if job_id is None else EVENT_ORDER
    if job_id is not None:
        query = query.where(events.c.job_id == job_id)
    if before_id is not None:
        query = query.where(events.c.id < before_id)
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(desc(order)).limit(limit)).mappings()
        return [dict(row) for row in rows]


def level_events(engine: Engine, job_id: int) -> list[Row]:
    """Changes of a job's level, in order."""
    query = select(events).where(events.c.job_id == job_id, events.c.kind.in_(LEVEL_KINDS))
    query = query.order_by(events.c.start.nulls_first(), events.c.step, events.c.id)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def events_of_slow(
    connection: Connection, job_ids: Sequence[int] | None = None
) -> dict[int, list[Row]]:
    """Slow job -> changes of its level, the latest first.

    Args:
        connection: connection to the store.
        job_ids: only these jobs; None: all slow jobs.
    """
    query = select(events).where(events.c.kind.in_(LEVEL_KINDS))
    if job_ids is None:
        slow = select(jobs.c.id).where(jobs.c.slow_since_step.is_not(None))
        query = query.where(events.c.job_id.in_(slow))
    else:
        query = query.where(events.c.job_id.in_(job_ids))
    query = query.order_by(events.c.at.desc(), events.c.id.desc())
    found: dict[int, list[Row]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["job_id"], []).append(dict(row))
    return found


def remove_older(engine: Engine, before: float, project: str) -> int:
    """Remove a project's events before that time; returns their number."""
    mine = events.c.job_id.in_(select(jobs.c.id).where(jobs.c.project == project))
    with engine.begin() as connection:
        return int(connection.execute(delete(events).where(mine, events.c.at < before)).rowcount)
