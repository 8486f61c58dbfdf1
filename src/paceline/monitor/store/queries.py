"""Rows for the pages. ``project`` "*" means all projects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Text, case, cast, func, or_, select

from paceline.monitor.store.tables import (
    alerts,
    deliveries,
    events,
    jobs,
    session_facts,
    sessions,
    silences,
)

Row = dict[str, Any]

ALL = "*"
#: Jobs per page of the list, and the most sessions and events on a job's page.
PAGE, MAX_SESSIONS, MAX_EVENTS, MAX_ALERTS = 50, 200, 200, 200

WEEK_S = 7 * 86_400.0
_FIRST_MONDAY_S = 4 * 86_400.0  # 5 January 1970; 1 January was a Thursday

# A current fail-slow may be later than the latest session, or its job may have no session.
_FACTOR = func.coalesce(jobs.c.slow_factor, jobs.c.step_s / jobs.c.healthy_s)
_SLOW = case((jobs.c.slow_since_step.is_not(None) & (_FACTOR > 1), 1 - 1 / _FACTOR))
_NO_WAIT = 1 - func.coalesce(jobs.c.data_loading, 0.0)  # share of the step without waits for data
_LOST = 1 - (1 - jobs.c.waste) * _NO_WAIT


def _lost_at(slowdown: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((slowdown > 1, 1 - _NO_WAIT / slowdown), else_=1 - _NO_WAIT)


# The loss that lasts or has a cause, as in the rule slow-job: nobody can stop passing variation.
_LASTING = func.coalesce(jobs.c.slowdown_lasting, jobs.c.slowdown)
_RISES = jobs.c.slowdown_healthy > jobs.c.slowdown
_LARGEST = case((_RISES, _LASTING * jobs.c.slowdown_healthy / jobs.c.slowdown), else_=_LASTING)
_HAS_S = jobs.c.slowdown.is_not(None)
_LASTS, _LASTS_MOST = (case((_HAS_S, _lost_at(s)), else_=_LOST) for s in (_LASTING, _LARGEST))
_IS_SLOWER = func.coalesce(_LASTS, 0.0) < _SLOW
_WORST = case((_IS_SLOWER, _SLOW), else_=_LASTS)
_MOST = case((_IS_SLOWER, _SLOW), else_=_LASTS_MOST)
_SHOWN = case((func.coalesce(_LOST, 0.0) < _SLOW, _SLOW), else_=_LOST)


def _stake(waste: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((jobs.c.status == "running", jobs.c.gpus * 24.0 * waste))


#: GPU-hours that the next day loses to what lasts or has a cause, in a running job; and at most.
STAKE, STAKE_MOST = _stake(_WORST), _stake(_MOST)
_STAKES = STAKE.label("stake_gpu_hours"), STAKE_MOST.label("stake_gpu_hours_most")

#: Sort orders of jobs; True: largest first. ``waste`` and ``stake`` count current fail-slows.
ORDERS: Mapping[str, tuple[ColumnElement[Any], bool]] = MappingProxyType(
    {
        "stake": (STAKE, True),
        "waste": (_SHOWN, True),
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
#: Matches jobs of any status.
ANY = "any"


@dataclass(frozen=True)
class JobsPage:
    """One page of the list of jobs.

    Attributes:
        rows: the jobs. ``latest`` is the status, the reason, ``best_gain`` and ``last_step`` of the
            latest session, or None; ``alert`` the most important firing alert, or None;
            ``stake_gpu_hours`` the next day's loss, or None if unknown, and
            ``stake_gpu_hours_most`` the upper end of its range.
        n_found: number of matching jobs.
        n_all: number of all jobs.
        page, n_pages: number of this page, from 1, and number of pages.
    """

    rows: list[Row]
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
    order: str = "stake",
    page: int = 1,
) -> JobsPage:
    """A page of jobs, the worst first.

    Args:
        connection: connection to the store.
        project: project of the jobs.
        search: words that must all occur in the job's name, labels, cause or headline.
        status: only jobs of this status; "" = all that have not ended, :data:`ANY` = all.
        order: one of :data:`ORDERS`; jobs without a value come last.
        page: page from 1; a larger number gives the last page.
    """
    mine = _of_project(select(func.count()).select_from(jobs), project)
    n_all = int(connection.execute(mine).scalar_one())
    conditions = [_matches(word) for word in search.split()[:8]]
    if not status:
        conditions.append(jobs.c.status != "ended")
    elif status != ANY:
        conditions.append(jobs.c.status == status)
    n_found = int(connection.execute(mine.where(*conditions)).scalar_one()) if conditions else n_all
    n_pages = max(1, -(-n_found // PAGE))
    page = min(max(page, 1), n_pages)
    column, largest_first = ORDERS[order]
    ordered = column.desc() if largest_first else column.asc()
    query = _of_project(select(jobs, *_STAKES), project).where(*conditions)
    orders = [ordered.nulls_last(), *([_WORST.desc().nulls_last()] if order == "stake" else [])]
    query = query.order_by(*orders, jobs.c.id).offset((page - 1) * PAGE).limit(PAGE)
    rows = _with_latest(connection, _rows(connection, query))
    return JobsPage(rows, n_found, n_all, page, n_pages)


def _with_latest(connection: Connection, rows: list[Row]) -> list[Row]:
    mine = sessions.c.job_id.in_([row["id"] for row in rows])
    newest = select(func.max(sessions.c.id)).where(mine).group_by(sessions.c.job_id)
    columns = ("job_id", "status", "reason", "best_gain", "last_step")
    query = select(*(sessions.c[name] for name in columns))
    latest_rows = _rows(connection, query.where(sessions.c.id.in_(newest)))
    latest = {row["job_id"]: row for row in latest_rows}
    alerts_of = _worst_alerts(connection, [row["id"] for row in rows])
    return [
        {**row, "latest": latest.get(row["id"]), "alert": alerts_of.get(row["id"])} for row in rows
    ]


#: Columns of an alert in the list of jobs.
_OF_ALERT = (
    *("id", "job_id", "rule", "importance", "place", "gain", "started_at"),
    *("acknowledged_by", "acknowledged_until"),
)


def _worst_alerts(connection: Connection, job_ids: list[int]) -> dict[int, Row]:
    """Job -> the most important of its firing alerts, the oldest of these."""
    firing = alerts.c.job_id.in_(job_ids) & (alerts.c.status == "firing")
    rank = case({"critical": 0, "warning": 1}, value=alerts.c.importance, else_=2)
    query = select(*(alerts.c[name] for name in _OF_ALERT)).where(firing)
    worst: dict[int, Row] = {}
    for row in _rows(connection, query.order_by(rank, alerts.c.started_at, alerts.c.id)):
        worst.setdefault(row["job_id"], row)
    return worst


def _matches(word: str) -> Any:
    places = (jobs.c.name, jobs.c.cause, jobs.c.headline)
    in_json = json.dumps(word)[1:-1]  # labels are stored as JSON, in which é is \u00e9
    return or_(
        *(place.icontains(word, autoescape=True) for place in places),
        cast(jobs.c.labels, Text).icontains(in_json, autoescape=True),
    )


def _rows(connection: Connection, query: Select[Any]) -> list[Row]:
    return [dict(row) for row in connection.execute(query).mappings()]


def _of_project(query: Select[Any], project: str) -> Select[Any]:
    return query if project == ALL else query.where(jobs.c.project == project)


def find_job(connection: Connection, project: str, name: str) -> Row | None:
    """The job with its stakes, or None; the last seen of several projects' jobs of that name."""
    query = _of_project(select(jobs, *_STAKES), project).where(jobs.c.name == name)
    return next(iter(_rows(connection, query.order_by(jobs.c.seen_at.desc()).limit(1))), None)


#: A session's columns without ``meta``, which may hold the hosts of 10,000 ranks.
_SESSION = tuple(column for column in sessions.c if column.name != "meta")


def job_sessions(connection: Connection, job_id: int) -> list[Row]:
    """The latest sessions of a job, the latest first."""
    query = select(*_SESSION).where(sessions.c.job_id == job_id)
    query = query.order_by(sessions.c.created_at.desc(), sessions.c.id.desc()).limit(MAX_SESSIONS)
    return _rows(connection, query)


def job_session(connection: Connection, job_id: int, session_id: int) -> Row | None:
    """A session of this job, or None."""
    query = select(*_SESSION).where(sessions.c.job_id == job_id, sessions.c.id == session_id)
    return next(iter(_rows(connection, query)), None)


def latest_meta(connection: Connection, job_id: int) -> Any:
    """Meta of the latest trace of a job, or None."""
    return latest_metas(connection, [job_id]).get(job_id)


def latest_metas(connection: Connection, job_ids: Sequence[int]) -> dict[int, Any]:
    """Job -> meta of its latest trace, for jobs with one."""
    order = (sessions.c.created_at.desc(), sessions.c.id.desc())
    number = func.row_number().over(partition_by=sessions.c.job_id, order_by=order)
    mine = sessions.c.job_id.in_(job_ids)
    numbered = select(sessions.c.id, number.label("number")).where(mine).subquery()
    query = select(sessions.c.job_id, sessions.c.meta).join(
        numbered, (numbered.c.id == sessions.c.id) & (numbered.c.number == 1)
    )
    return {row.job_id: row.meta for row in connection.execute(query)}


def job_events(connection: Connection, job_id: int) -> list[Row]:
    """The latest detector events of a job, the latest first."""
    query = select(events).where(events.c.job_id == job_id)
    query = query.order_by(events.c.at.desc(), events.c.id.desc()).limit(MAX_EVENTS)
    return _rows(connection, query)


def job_alerts(connection: Connection, job_id: int) -> list[Row]:
    """A job's firing alerts."""
    query = select(alerts).where(alerts.c.job_id == job_id, alerts.c.status == "firing")
    return _rows(connection, query.order_by(alerts.c.started_at.desc()))


def count_firing(connection: Connection, project: str) -> int:
    """Number of firing alerts."""
    query = select(func.count()).select_from(alerts).where(alerts.c.status == "firing")
    if project != ALL:
        query = query.where(alerts.c.project == project)
    return int(connection.execute(query).scalar_one())


def list_alerts(connection: Connection, project: str, status: str = "") -> list[Row]:
    """The latest alerts with their job's name, firing ones first.

    Each row has ``n_delivered``, ``n_waiting`` and ``n_failed``, the counts of its messages.
    """
    states = (("n_delivered", "delivered"), ("n_waiting", "waiting"), ("n_failed", "given-up"))
    deliveries_of = (
        select(
            deliveries.c.alert_id,
            *(func.sum(case((deliveries.c.state == s, 1), else_=0)).label(n) for n, s in states),
        )
        .group_by(deliveries.c.alert_id)
        .subquery()
    )
    counts = (func.coalesce(deliveries_of.c[name], 0).label(name) for name, _ in states)
    query = (
        select(alerts, jobs.c.name.label("job"), *counts)
        .join(jobs, jobs.c.id == alerts.c.job_id)
        .outerjoin(deliveries_of, deliveries_of.c.alert_id == alerts.c.id)
    )
    if project != ALL:
        query = query.where(alerts.c.project == project)
    if status:
        query = query.where(alerts.c.status == status)
    fires = case((alerts.c.status == "firing", 0), else_=1)
    query = query.order_by(fires, alerts.c.started_at.desc(), alerts.c.id.desc())
    return _rows(connection, query.limit(MAX_ALERTS))


def find_alert(connection: Connection, project: str, number: int) -> Row | None:
    """An alert with its ``job``; None if it is another project's."""
    query = select(alerts, jobs.c.name.label("job")).join(jobs, jobs.c.id == alerts.c.job_id)
    query = query.where(alerts.c.id == number)
    if project != ALL:
        query = query.where(alerts.c.project == project)
    rows = _rows(connection, query)
    return rows[0] if rows else None


def active_silences(connection: Connection, project: str, now: float) -> list[Row]:
    """Active silences."""
    query = select(silences).where(silences.c.until > now)
    if project != ALL:
        query = query.where(silences.c.project.in_((project, ALL)))
    return _rows(connection, query.order_by(silences.c.until))


def fleet_jobs(connection: Connection, project: str) -> list[Row]:
    """All jobs with a slowdown; ``facts`` are those of the latest analysed session."""
    latest = (
        select(sessions.c.job_id, func.max(sessions.c.id).label("session_id"))
        .where(sessions.c.status == "done")
        .group_by(sessions.c.job_id)
        .subquery()
    )
    names = (
        *("name", "gpus", "labels", "slowdown", "slowdown_lasting", "slowdown_healthy"),
        *("data_loading", "waste", "cause", "gpu_hours_lost", "gpu_hours_lost_most"),
    )
    query = (
        select(*(jobs.c[name] for name in names), session_facts.c.facts)
        .join(latest, latest.c.job_id == jobs.c.id)
        .outerjoin(session_facts, session_facts.c.session_id == latest.c.session_id)
        .where(jobs.c.slowdown.is_not(None))
    )
    return _rows(connection, _of_project(query, project).order_by(jobs.c.id))


def fleet_state(connection: Connection, project: str) -> tuple[Any, ...]:
    """Changes with each analysis, and with each session or job that is added or removed."""
    n_jobs = connection.execute(_of_project(select(func.count()).select_from(jobs), project))
    done = select(func.count(), func.max(sessions.c.finished_at)).where(sessions.c.status == "done")
    if project != ALL:
        done = done.join(jobs, jobs.c.id == sessions.c.job_id).where(jobs.c.project == project)
    return n_jobs.scalar_one(), *connection.execute(done).one()


@dataclass(frozen=True)
class Week:
    """Loss of a week.

    Attributes:
        start: its Monday, seconds since 1970.
        lost: cause -> GPU-hours.
        n_sessions: number of analysed sessions.
        mean_waste: their mean share lost, with waits for data; None without sessions.
    """

    start: float
    lost: Mapping[str, float]
    n_sessions: int
    mean_waste: float | None


def weeks(connection: Connection, project: str, now: float, n_weeks: int) -> list[Week]:
    """The last weeks, the oldest first, including the current one."""
    monday = now - (now - _FIRST_MONDAY_S) % WEEK_S
    return [_week(connection, project, monday - k * WEEK_S) for k in reversed(range(n_weeks))]


def _week(connection: Connection, project: str, start: float) -> Week:
    waits = func.coalesce(sessions.c.data_loading, 0.0)
    query = (
        select(
            sessions.c.cause,
            func.sum(sessions.c.gpu_hours_lost),
            func.count(),
            func.sum(sessions.c.waste + (1 - sessions.c.waste) * waits),
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
    hours_lost = {row[0] or "": float(row[1] or 0.0) for row in rows}
    return Week(start, hours_lost, n_sessions, waste / n_sessions if n_sessions else None)
