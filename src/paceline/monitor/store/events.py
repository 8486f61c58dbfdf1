"""Events of the step times."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Engine, Text, cast, delete, desc, func, or_, select, update

from paceline.detect.event import LEVEL_KINDS
from paceline.monitor.store.inserts import insert_new
from paceline.monitor.store.leases import Held, LeaseLost, all_held
from paceline.monitor.store.tables import EVENT_ORDER, events, jobs

Row = dict[str, Any]
#: Number of a job's changes of level, the latest one's id, and the size of their ranks.
Mark = tuple[int, int, int]

#: Tolerance for an event that a detector sees again after a restart.
_SAME_S = 60.0
#: Changes of level of a job that are read, and jobs in one query.
_MAX_CHANGES, _JOBS_AT_ONCE = 200, 200


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
        # More ranks may have joined, so that the medians differ.
        changed = ("since_step", "factor", "lost_s", "ranks", "text")
        values = {name: row[name] for name in changed}
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
    of_job = (
        jobs.c.name.label("job"),
        jobs.c.project,
        jobs.c.gpus,
        jobs.c.status.label("job_status"),
    )
    query = select(events, *of_job).join(jobs)
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


def level_marks(connection: Connection, job_ids: Collection[int] | None = None) -> dict[int, Mark]:
    """Job -> a mark that differs once an event of its level is added, removed or gets more ranks.

    Args:
        connection: connection to the store.
        job_ids: only these jobs; None: all slow jobs.
    """
    ranks_size = func.sum(func.length(cast(events.c.ranks, Text)))
    query = select(events.c.job_id, func.count(), func.max(events.c.id), ranks_size)
    query = query.where(events.c.kind.in_(LEVEL_KINDS)).group_by(events.c.job_id)
    if job_ids is None:
        slow = select(jobs.c.id).where(jobs.c.slow_since_step.is_not(None))
        query = query.where(events.c.job_id.in_(slow))
    else:
        query = query.where(events.c.job_id.in_(job_ids))
    return {row[0]: (int(row[1]), int(row[2]), int(row[3])) for row in connection.execute(query)}


def level_events_of(
    connection: Connection, job_ids: Sequence[int]
) -> Iterator[tuple[int, list[Row]]]:
    """(job, the latest changes of its level, the latest first), for jobs with any."""
    number = func.row_number().over(partition_by=events.c.job_id, order_by=events.c.id.desc())
    for first in range(0, len(job_ids), _JOBS_AT_ONCE):
        some = job_ids[first : first + _JOBS_AT_ONCE]
        mine = events.c.job_id.in_(some) & events.c.kind.in_(LEVEL_KINDS)
        latest = select(events, number.label("number")).where(mine).subquery()
        query = select(*(latest.c[column.name] for column in events.c))
        query = query.where(latest.c.number <= _MAX_CHANGES)
        query = query.order_by(latest.c.job_id, latest.c.id.desc())
        rows = (dict(row) for row in connection.execute(query).mappings())
        for job_id, of_job in groupby(rows, key=lambda row: int(row["job_id"])):
            yield job_id, list(of_job)


def remove_older(engine: Engine, before: float, project: str) -> int:
    """Remove a project's events before that time; returns their number."""
    mine = events.c.job_id.in_(select(jobs.c.id).where(jobs.c.project == project))
    with engine.begin() as connection:
        return int(connection.execute(delete(events).where(mine, events.c.at < before)).rowcount)
