"""What the pages read. ``project`` "*" stands for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import Column, Connection, Select, Text, case, cast, func, or_, select
from sqlalchemy.engine import RowMapping

from paceline.monitor.store.tables import alerts, deliveries, events, jobs, sessions, silences

ALL = "*"
#: Jobs a page lists, and the most sessions and events that a job's page shows.
PAGE, MAX_SESSIONS, MAX_EVENTS, MAX_ALERTS = 50, 200, 200, 200

WEEK_S = 7 * 86_400.0
_FIRST_MONDAY_S = 4 * 86_400.0  # 5 January 1970; 1 January was a Thursday

#: What jobs can be sorted by; True: large ones first.
ORDERS: Mapping[str, tuple[Column[Any], bool]] = MappingProxyType(
    {
        "waste": (jobs.c.waste, True),
        "slowdown": (jobs.c.slowdown, True),
        "lost": (jobs.c.gpu_hours_lost, True),
        "gpus": (jobs.c.gpus, True),
        "step": (jobs.c.step_s, True),
        "seen": (jobs.c.seen_at, True),
        "name": (jobs.c.name, False),
        "status": (jobs.c.status, False),
    }
)
STATUSES = ("new", "running", "silent", "ended")


@dataclass(frozen=True)
class JobsPage:
    """One page of the list of jobs.

    Attributes:
        rows: the jobs.
        n_found: how many there are that match.
        n_all: how many there are.
        page, n_pages: this page from 1, and how many there are.
    """

    rows: Sequence[RowMapping]
    n_found: int
    n_all: int
    page: int
    n_pages: int


def list_jobs(
    connection: Connection,
    project: str,
    *,
    search: str = "",
    status: str = "",
    order: str = "waste",
    page: int = 1,
) -> JobsPage:
    """A page of jobs, the worst first.

    Args:
        connection: to the store.
        project: whose jobs.
        search: words that a job has in its name, labels, cause or headline, all of them.
        status: only jobs of this status; "" = any.
        order: one of :data:`ORDERS`; jobs without a value come last.
        page: from 1; the last one for a larger number.
    """
    mine = _of_project(select(func.count()).select_from(jobs), project)
    n_all = int(connection.execute(mine).scalar_one())
    chosen = [_matches(word) for word in search.split()[:8]]
    chosen += [jobs.c.status == status] if status else []
    n_found = int(connection.execute(mine.where(*chosen)).scalar_one()) if chosen else n_all
    n_pages = max(1, -(-n_found // PAGE))
    page = min(max(page, 1), n_pages)
    column, largest_first = ORDERS[order]
    ordered = column.desc() if largest_first else column.asc()
    query = _of_project(select(jobs), project).where(*chosen)
    query = query.order_by(ordered.nulls_last(), jobs.c.id).offset((page - 1) * PAGE).limit(PAGE)
    return JobsPage(connection.execute(query).mappings().all(), n_found, n_all, page, n_pages)


def _matches(word: str) -> Any:
    places = (jobs.c.name, cast(jobs.c.labels, Text), jobs.c.cause, jobs.c.headline)
    return or_(*(place.icontains(word, autoescape=True) for place in places))


def _of_project(query: Select[Any], project: str) -> Select[Any]:
    return query if project == ALL else query.where(jobs.c.project == project)


def find_job(connection: Connection, project: str, name: str) -> RowMapping | None:
    """The job, or None; of several projects' jobs of that name the one seen last."""
    query = _of_project(select(jobs), project).where(jobs.c.name == name)
    return connection.execute(query.order_by(jobs.c.seen_at.desc()).limit(1)).mappings().first()


def job_sessions(connection: Connection, job_id: int) -> Sequence[RowMapping]:
    """The latest sessions of a job, the latest first."""
    query = select(sessions).where(sessions.c.job_id == job_id)
    query = query.order_by(sessions.c.created_at.desc(), sessions.c.id.desc()).limit(MAX_SESSIONS)
    return connection.execute(query).mappings().all()


def job_session(connection: Connection, job_id: int, session_id: int) -> RowMapping | None:
    """A session of this job, or None."""
    query = select(sessions).where(sessions.c.job_id == job_id, sessions.c.id == session_id)
    return connection.execute(query).mappings().first()


def job_events(connection: Connection, job_id: int) -> Sequence[RowMapping]:
    """The latest detector events of a job, the latest first."""
    query = select(events).where(events.c.job_id == job_id)
    query = query.order_by(events.c.at.desc(), events.c.id.desc()).limit(MAX_EVENTS)
    return connection.execute(query).mappings().all()


def job_alerts(connection: Connection, job_id: int) -> Sequence[RowMapping]:
    """The alerts of a job that fire."""
    query = select(alerts).where(alerts.c.job_id == job_id, alerts.c.status == "firing")
    return connection.execute(query.order_by(alerts.c.started_at.desc())).mappings().all()


def count_firing(connection: Connection, project: str) -> int:
    """How many alerts fire."""
    query = select(func.count()).select_from(alerts).where(alerts.c.status == "firing")
    if project != ALL:
        query = query.where(alerts.c.project == project)
    return int(connection.execute(query).scalar_one())


def list_alerts(connection: Connection, project: str, status: str = "") -> Sequence[RowMapping]:
    """The latest alerts with their job's name; those that fire first.

    Each row has ``n_delivered``, ``n_waiting`` and ``n_failed``: what became of its messages.
    """
    states = (("n_delivered", "delivered"), ("n_waiting", "waiting"), ("n_failed", "given-up"))
    told = (
        select(
            deliveries.c.alert_id,
            *(func.sum(case((deliveries.c.state == s, 1), else_=0)).label(n) for n, s in states),
        )
        .group_by(deliveries.c.alert_id)
        .subquery()
    )
    counts = (func.coalesce(told.c[name], 0).label(name) for name, _ in states)
    query = (
        select(alerts, jobs.c.name.label("job"), *counts)
        .join(jobs, jobs.c.id == alerts.c.job_id)
        .outerjoin(told, told.c.alert_id == alerts.c.id)
    )
    if project != ALL:
        query = query.where(alerts.c.project == project)
    if status:
        query = query.where(alerts.c.status == status)
    fires = case((alerts.c.status == "firing", 0), else_=1)
    query = query.order_by(fires, alerts.c.started_at.desc(), alerts.c.id.desc())
    return connection.execute(query.limit(MAX_ALERTS)).mappings().all()


def active_silences(connection: Connection, project: str, now: float) -> Sequence[RowMapping]:
    """Silences that still hold."""
    query = select(silences).where(silences.c.until > now)
    if project != ALL:
        query = query.where(silences.c.project.in_((project, ALL)))
    return connection.execute(query.order_by(silences.c.until)).mappings().all()


def fleet_jobs(connection: Connection, project: str) -> Sequence[RowMapping]:
    """All jobs with a slowdown, with the latest session that was analysed (``session_id``)."""
    latest = (
        select(sessions.c.job_id, func.max(sessions.c.id).label("session_id"))
        .where(sessions.c.status == "done")
        .group_by(sessions.c.job_id)
        .subquery()
    )
    wanted = ("id", "project", "name", "gpus", "labels", "slowdown", "waste", "cause")
    query = select(
        *(jobs.c[name] for name in wanted), jobs.c.gpu_hours_lost, latest.c.session_id
    ).join(latest, latest.c.job_id == jobs.c.id)
    query = _of_project(query, project).where(jobs.c.slowdown.is_not(None))
    return connection.execute(query.order_by(jobs.c.id)).mappings().all()


@dataclass(frozen=True)
class Week:
    """What was lost in a week.

    Attributes:
        start: its Monday, seconds since 1970.
        lost: cause -> GPU-hours.
        n_sessions: sessions analysed.
        mean_waste: of them; None where there is none.
    """

    start: float
    lost: Mapping[str, float]
    n_sessions: int
    mean_waste: float | None


def weeks(connection: Connection, project: str, now: float, n_weeks: int) -> list[Week]:
    """The last weeks, the oldest first; the last one is not over."""
    monday = now - (now - _FIRST_MONDAY_S) % WEEK_S
    return [_week(connection, project, monday - k * WEEK_S) for k in reversed(range(n_weeks))]


def _week(connection: Connection, project: str, start: float) -> Week:
    query = (
        select(
            sessions.c.cause,
            func.sum(sessions.c.gpu_hours_lost),
            func.count(),
            func.sum(sessions.c.waste),
        )
        .where(sessions.c.created_at >= start, sessions.c.created_at < start + WEEK_S)
        .where(sessions.c.status == "done")
        .group_by(sessions.c.cause)
    )
    if project != ALL:
        query = query.join(jobs, jobs.c.id == sessions.c.job_id).where(jobs.c.project == project)
    rows = connection.execute(query).all()
    n_sessions = sum(int(row[2]) for row in rows)
    waste = sum(float(row[3] or 0.0) for row in rows)
    lost = {row[0] or "": float(row[1] or 0.0) for row in rows}
    return Week(start, lost, n_sessions, waste / n_sessions if n_sessions else None)
