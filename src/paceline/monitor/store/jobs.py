"""Jobs: registered by pushers, updated by incoming data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Integer, bindparam, case, cast, desc, func, select, update

from paceline.monitor.store.inserts import insert_new
from paceline.monitor.store.leases import Held, all_held
from paceline.monitor.store.tables import IS_DONE, jobs, sessions, stores

#: Sessions whose slowdown a job's row keeps, for its sparkline.
TREND = 20


@dataclass(frozen=True)
class JobKey:
    """Identity of a job."""

    id: int
    project: str
    name: str


def register(
    engine: Engine,
    project: str,
    name: str,
    now: float,
    *,
    gpus: int | None = None,
    degrees: Mapping[str, Any] | None = None,
    labels: Mapping[str, Any] | None = None,
) -> JobKey:
    """The job of that name, created if new; given values replace stored ones."""
    details = {"gpus": gpus, "degrees": degrees, "labels": labels}
    changes = {key: value for key, value in details.items() if value}
    with engine.begin() as connection:
        row: dict[str, Any] = {
            "project": project,
            "name": name,
            "created_at": now,
            "seen_at": now,
            **changes,
        }
        if engine.dialect.name == "sqlite":  # it would reuse the largest number
            removed = select(func.coalesce(func.max(stores.c.last_job), 0)).scalar_subquery()
            largest = select(func.coalesce(func.max(jobs.c.id), 0)).scalar_subquery()
            row["id"] = func.max(largest, removed) + 1
        new = insert_new(engine, jobs).values(**row)
        connection.execute(new)
        job_id = connection.execute(select(jobs.c.id).where(_has_name(project, name))).scalar_one()
        if changes:
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(**changes))
    return JobKey(job_id, project, name)


def register_many(
    engine: Engine, project: str, names: Collection[str], now: float
) -> dict[str, JobKey]:
    """The jobs of these names, created if new, in one transaction."""
    if engine.dialect.name == "sqlite":  # numbers them one by one, without a round trip
        return {name: register(engine, project, name, now) for name in names}
    known = select(jobs.c.name, jobs.c.id).where(
        (jobs.c.project == project) & jobs.c.name.in_(list(names))
    )
    with engine.begin() as connection:
        found = {row.name: row.id for row in connection.execute(known)}
        new = sorted(set(names) - found.keys())  # in one order, as other instances do
        if new:
            rows = [
                {"project": project, "name": name, "created_at": now, "seen_at": now}
                for name in new
            ]
            connection.execute(insert_new(engine, jobs), rows)
            found = {row.name: row.id for row in connection.execute(known)}
    return {name: JobKey(found[name], project, name) for name in names}


def learn(engine: Engine, job_id: int, gpus: int | None, degrees: Mapping[str, Any] | None) -> None:
    """Fill in what a trace says of a job; a job removed meanwhile stays removed."""
    values = {key: value for key, value in (("gpus", gpus), ("degrees", degrees)) if value}
    if values:
        with engine.begin() as connection:
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))


def find(engine: Engine, project: str, name: str) -> JobKey | None:
    """The job of that name; in project "*", that of ``default``, else the newest."""
    condition = jobs.c.name == name if project == "*" else _has_name(project, name)
    query = (
        select(jobs.c.id, jobs.c.project)
        .where(condition)
        .order_by(desc(jobs.c.project == "default"), desc(jobs.c.id))
        .limit(1)
    )
    with engine.connect() as connection:
        row = connection.execute(query).first()
    return JobKey(row.id, row.project, name) if row else None


def labelled(engine: Engine, project: str, labels: Mapping[str, str]) -> list[JobKey]:
    """Unfinished jobs of a project ("*" = of any) with all these labels."""
    query = select(jobs.c.id, jobs.c.project, jobs.c.name).where(jobs.c.status != "ended")
    if project != "*":
        query = query.where(jobs.c.project == project)
    for name, text in labels.items():
        query = query.where(jobs.c.labels[name].as_string() == text)
    with engine.connect() as connection:
        return [JobKey(*row) for row in connection.execute(query.order_by(jobs.c.id))]


def key_of(engine: Engine, job_id: int) -> JobKey | None:
    """The job with that number."""
    row = by_id(engine, job_id)
    return JobKey(job_id, row["project"], row["name"]) if row else None


def keys_of(engine: Engine, job_ids: Collection[int]) -> dict[int, JobKey]:
    """The jobs with these numbers, without removed ones."""
    query = select(jobs.c.id, jobs.c.project, jobs.c.name).where(jobs.c.id.in_(list(job_ids)))
    with engine.connect() as connection:
        return {int(row.id): JobKey(*row) for row in connection.execute(query)}


def by_id(engine: Engine, job_id: int) -> dict[str, Any] | None:
    """A job's row."""
    with engine.connect() as connection:
        row = connection.execute(select(jobs).where(jobs.c.id == job_id)).mappings().first()
    return dict(row) if row else None


def is_running(engine: Engine, job: JobKey) -> bool:
    """Whether a job has not ended."""
    row = by_id(engine, job.id)
    return row is not None and row["status"] == "running"


def names_and_labels(engine: Engine, project: str) -> list[dict[str, Any]]:
    """(id, name, labels) of a project's jobs, the newest first."""
    query = select(jobs.c.id, jobs.c.name, jobs.c.labels).where(jobs.c.project == project)
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(desc(jobs.c.id))).mappings()
        return [dict(row) for row in rows]


def list_jobs(engine: Engine, project: str, after: int, limit: int) -> list[dict[str, Any]]:
    """Rows of a project ("*" = of all) with ids above ``after``, by id."""
    query = select(jobs).where(jobs.c.id > after).order_by(jobs.c.id).limit(limit)
    if project != "*":
        query = query.where(jobs.c.project == project)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def update_live(engine: Engine, rows: Iterable[Mapping[str, Any]], held: Held = all_held) -> None:
    """Update the state by the step times: the jobs run, unless they have ended since.

    Each row has ``job_id``, ``seen_at`` (arrival of the last samples), ``is_live`` and the same
    columns as the others. Steps of a recording (``is_live`` is false) leave the status as it is.
    Jobs whose detector another instance has are left out.
    """
    rows = list(rows)
    if not rows:
        return
    names = [name for name in rows[0] if name != "job_id"]
    seen_at = bindparam("new_seen_at", type_=jobs.c.seen_at.type)
    is_live = bindparam("new_is_live", type_=Integer) == 1
    was_seen = (jobs.c.seen_at > seen_at) | (~is_live & (jobs.c.status != "new"))
    over = (jobs.c.status == "ended") & (~is_live | (jobs.c.seen_at >= seen_at))
    others: dict[str, Any] = {
        name: bindparam(f"new_{name}") for name in names if name not in ("seen_at", "is_live")
    }
    for name, of_ended in (("slow_since_step", None), ("slow_factor", jobs.c.slow_factor)):
        if name in others:  # a detector that is rebuilt sees the last steps again
            kind = jobs.c[name].type  # PostgreSQL would take a float's parameter for a text
            value = cast(bindparam(f"new_{name}", type_=kind), kind)
            others[name] = case((~over, value), else_=of_ended)
    statement = (
        update(jobs)
        .where(jobs.c.id == bindparam("job_id"))
        .values(
            **others,
            status=case((over | ~is_live, jobs.c.status), else_="running"),
            seen_at=case((was_seen, jobs.c.seen_at), else_=seen_at),
        )
    )
    values = [
        {"job_id": row["job_id"], **{f"new_{name}": row[name] for name in names}}
        | {"new_is_live": int(row.get("is_live", True))}
        for row in rows
    ]
    with engine.begin() as connection:
        ours = held(connection, [row["job_id"] for row in rows])
        values = [value for value in values if value["job_id"] in ours]
        if values:
            connection.execute(statement, values)


def end(engine: Engine, job_id: int, now: float) -> None:
    """Mark a job as ended."""
    with engine.begin() as connection:
        statement = update(jobs).where(jobs.c.id == job_id)
        # The alert that ends tells the last factor.
        connection.execute(statement.values(status="ended", seen_at=now, slow_since_step=None))


def not_after(engine: Engine, now: float) -> None:
    """Jobs seen later than now, by a clock that was ahead, were seen now."""
    with engine.begin() as connection:
        connection.execute(update(jobs).where(jobs.c.seen_at > now).values(seen_at=now))


def silence_quiet(engine: Engine, before: float) -> list[JobKey]:
    """Mark running jobs not seen since ``before`` as silent; returns them."""
    quiet = (jobs.c.status == "running") & (jobs.c.seen_at < before)
    statement = update(jobs).where(quiet).values(status="silent")
    with engine.begin() as connection:
        rows = connection.execute(statement.returning(jobs.c.id, jobs.c.project, jobs.c.name))
        return [JobKey(*row) for row in rows]


def summarise(connection: Any, job_id: int) -> None:
    """Update the job's row from its analysed sessions; without any it has no slowdown."""
    done = (sessions.c.job_id == job_id) & IS_DONE
    latest = list(
        connection.execute(
            select(sessions)
            .where(done)
            .order_by(desc(sessions.c.created_at), desc(sessions.c.id))
            .limit(TREND)
        ).mappings()
    )
    lost = sessions.c.gpu_hours_lost
    most = func.coalesce(sessions.c.gpu_hours_lost_most, lost)  # of older versions
    n, hours_lost, hours_most = connection.execute(
        select(
            func.count(),
            *(func.coalesce(func.sum(hours).filter(done), 0.0) for hours in (lost, most)),
        ).where(sessions.c.job_id == job_id)
    ).one()
    newest = latest[0] if latest else {}
    values: dict[str, Any] = {"n_sessions": n, "gpu_hours_lost": hours_lost}
    values["gpu_hours_lost_most"] = hours_most
    slowdowns = ("slowdown", "slowdown_lasting", "slowdown_healthy", "data_loading")
    names = (*slowdowns, "waste", "cause", "headline")
    values |= {name: newest.get(name) for name in names}
    values["trend"] = [row["slowdown"] for row in reversed(latest)]
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))


def _has_name(project: str, name: str) -> Any:
    return (jobs.c.project == project) & (jobs.c.name == name)


def seen_since(engine: Engine, since: float) -> list[JobKey]:
    """Running jobs, and jobs with data since that time."""
    recent = (jobs.c.status == "running") | (jobs.c.seen_at >= since)
    query = select(jobs.c.id, jobs.c.project, jobs.c.name).where(recent)
    with engine.connect() as connection:
        return [JobKey(*row) for row in connection.execute(query)]
