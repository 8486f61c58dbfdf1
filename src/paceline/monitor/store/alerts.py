"""Alerts, their silences and their messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Select, delete, desc, func, insert, or_, select, update

from paceline.detect.event import LEVEL_KINDS
from paceline.errors import MonitorError
from paceline.monitor.log import log
from paceline.monitor.store.audit import SERVICE, Actor, record
from paceline.monitor.store.due import due
from paceline.monitor.store.inserts import insert_new
from paceline.monitor.store.tables import (
    EVENT_ORDER,
    IS_DONE,
    alerts,
    deliveries,
    events,
    jobs,
    sessions,
    silences,
)
from paceline.units import moment

Row = dict[str, Any]
#: Sessions and events of a job that the rules examine.
_SESSIONS, _EVENTS = 200, 200
_OF_SESSION = ("id", "created_at", "slowdown", "step_s", "cause", "headline")
#: Columns of an alert that later information may change.
_SAID = ("session_id", "headline", "cause", "place", "hosts", "gain")
#: Messages of a channel that are read at once, the oldest first.
_BATCH = 500


def fire(engine: Engine, alert: Mapping[str, Any], channels: Sequence[str], next_at: float) -> Row:
    """Start an alert with its messages, or update one that already fires.

    Channels told of it before a session had found the cause are told once more.

    Args:
        engine: the store.
        alert: the row, without id.
        channels: channels that receive messages.
        next_at: time of the messages.

    Returns:
        its id, whether it is ``new``, and whether the ``learned`` cause is sent.
    """
    with engine.begin() as connection:
        row = connection.execute(_firing(alert["fingerprint"]).with_for_update()).first()
        if row is not None:
            values = {k: alert[k] for k in _SAID}
            changed = {k: v for k, v in values.items() if v is not None}
            if alert["place"] is not None:  # a new place may have no host
                changed["hosts"] = alert["hosts"]
            connection.execute(
                update(alerts)
                .where(alerts.c.id == row.id)
                .values(**changed, updated_at=alert["updated_at"])
            )
            told: list[str] = []
            if row.session_id is None and alert["session_id"] is not None:
                told = _told(connection, row.id, ("delivered",))
                _tell(connection, engine, row.id, told, "updated", next_at)
            return {"id": row.id, "new": False, "learned": bool(told)}
        statement = insert_new(engine, alerts).values(**alert).returning(alerts.c.id)
        number = connection.execute(statement).scalar_one_or_none()
        if number is None:  # another instance inserted it first
            return {"id": 0, "new": False, "learned": False}
        _tell(connection, engine, number, channels, "firing", next_at)
        return {"id": number, "new": True, "learned": False}


def resolve(
    engine: Engine, fingerprint: str, now: float, next_at: float, why: str = ""
) -> Row | None:
    """End an alert, and tell its channels from ``next_at`` on.

    ``why`` is added to its headline.

    Returns None if it does not fire.
    """
    with engine.begin() as connection:
        row = connection.execute(_firing(fingerprint).with_for_update()).mappings().first()
        if row is None:
            return None
        connection.execute(
            update(alerts)
            .where(alerts.c.id == row["id"])
            .values(
                status="resolved",
                updated_at=now,
                ended_at=now,
                headline=f"{row['headline']} {why}".rstrip(),
            )
        )
        channels = _told(connection, row["id"], ("waiting", "delivered"))
        _tell(connection, engine, row["id"], channels, "resolved", next_at)
        return dict(row)


def _firing(fingerprint: str) -> Select[Any]:
    return select(alerts).where(alerts.c.fingerprint == fingerprint, alerts.c.status == "firing")


def _told(connection: Connection, alert_id: int, states: Sequence[str]) -> list[str]:
    """Channels whose message of an alert's start is in one of these states."""
    query = select(deliveries.c.channel).where(
        deliveries.c.alert_id == alert_id,
        deliveries.c.status == "firing",
        deliveries.c.state.in_(states),
    )
    return list(connection.execute(query).scalars())


def _tell(
    connection: Any,
    engine: Engine,
    alert_id: int,
    channels: Iterable[str],
    status: str,
    next_at: float,
) -> None:
    for channel in channels:
        connection.execute(
            insert_new(engine, deliveries).values(
                alert_id=alert_id, channel=channel, status=status, next_at=next_at
            )
        )


def firing(engine: Engine) -> list[Row]:
    """All firing alerts."""
    with engine.connect() as connection:
        query = select(alerts).where(alerts.c.status == "firing").order_by(alerts.c.id)
        return [dict(row) for row in connection.execute(query).mappings()]


def firing_of(engine: Engine, fingerprints: Sequence[str]) -> dict[str, Row]:
    """The firing alerts among some, by rule."""
    query = select(alerts).where(
        alerts.c.fingerprint.in_(fingerprints), alerts.c.status == "firing"
    )
    with engine.connect() as connection:
        return {row["rule"]: dict(row) for row in connection.execute(query).mappings()}


def list_alerts(engine: Engine, project: str, *, status: str = "", limit: int = 100) -> list[Row]:
    """The latest alerts of a project ("*" = of all), with their ``job``, the latest first."""
    query = select(alerts, jobs.c.name.label("job")).join(jobs, jobs.c.id == alerts.c.job_id)
    if project != "*":
        query = query.where(alerts.c.project == project)
    if status:
        query = query.where(alerts.c.status == status)
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(desc(alerts.c.id)).limit(limit)).mappings()
        return [dict(row) for row in rows]


def waiting(engine: Engine, channel: str) -> list[Row]:
    """A channel's waiting messages with their alert and its ``job``, the oldest first."""
    query = _messages(channel).where(deliveries.c.state == "waiting")
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(deliveries.c.id).limit(_BATCH)).mappings()
        return [dict(row) for row in rows]


def repeatable(engine: Engine, channel: str, now: float) -> list[Row]:
    """A channel's delivered messages of firing alerts that are due for repetition."""
    query = _messages(channel).where(
        deliveries.c.state == "delivered",
        deliveries.c.status == "firing",
        due(deliveries.c.next_at, now),
        alerts.c.status == "firing",
    )
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(deliveries.c.next_at).limit(_BATCH)).mappings()
        return [dict(row) for row in rows]


def _messages(channel: str) -> Select[Any]:
    alert_columns = (column for column in alerts.c if column.name not in ("id", "status"))
    return (
        select(
            deliveries.c.id,
            deliveries.c.alert_id,
            deliveries.c.status,
            deliveries.c.attempts,
            deliveries.c.next_at,
            alerts.c.status.label("alert_status"),
            jobs.c.name.label("job"),
            *alert_columns,
        )
        .join(alerts, alerts.c.id == deliveries.c.alert_id)
        .join(jobs, jobs.c.id == alerts.c.job_id)
        .where(deliveries.c.channel == channel)
    )


def mark(engine: Engine, ids: Sequence[int], **values: Any) -> None:
    """Change messages."""
    with engine.begin() as connection:
        connection.execute(update(deliveries).where(deliveries.c.id.in_(ids)).values(**values))


def forget(engine: Engine, ids: Sequence[int]) -> None:
    """Remove messages that are no longer needed."""
    with engine.begin() as connection:
        connection.execute(delete(deliveries).where(deliveries.c.id.in_(ids)))


def drop_channels(engine: Engine, channels: Sequence[str]) -> int:
    """Give up messages of removed channels; returns their number."""
    is_dropped = deliveries.c.channel.not_in(channels) & (deliveries.c.state == "waiting")
    statement = update(deliveries).where(is_dropped)
    with engine.begin() as connection:
        done = connection.execute(statement.values(state="given-up", error="no such channel"))
        return int(done.rowcount)


def add_silence(
    engine: Engine,
    project: str,
    *,
    rule: str | None,
    job: str | None,
    until: float,
    comment: str,
    now: float,
    by: Actor = SERVICE,
) -> int:
    """Silence alerts of a rule and job (None = any) until then; returns the silence's number.

    Raises:
        MonitorError: it would already have ended.
    """
    if not now < until < math.inf:
        raise MonitorError("the silence would have ended already, or never end; give another time")
    values = {"project": project, "rule": rule, "job": job, "until": until, "comment": comment}
    with engine.begin() as connection:
        row = {**values, "who": by.name, "created_at": now}
        done = connection.execute(insert(silences).values(**row))
        assert done.inserted_primary_key is not None
        number = int(done.inserted_primary_key[0])
        subject = f"{number}: {rule or 'any rule'}, {job or 'any job'} until {moment(until)} UTC"
        record(connection, by, "silence-begun", subject, project=project, at=now)
    log(logging.INFO, "silence", who=by.name, project=project, rule=rule, job=job, until=until)
    return number


def list_silences(engine: Engine, project: str, now: float) -> list[Row]:
    """Active silences of a project ("*" = all)."""
    query = select(silences).where(silences.c.until > now).order_by(silences.c.until)
    if project != "*":
        query = query.where(silences.c.project.in_((project, "*")))
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def end_silence(engine: Engine, number: int, project: str, now: float, by: Actor = SERVICE) -> bool:
    """End a silence of a project ("*" = of any); False if none has that number."""
    mine = silences.c.id == number
    if project != "*":
        mine &= silences.c.project == project
    mine &= silences.c.until > now
    with engine.begin() as connection:
        row = connection.execute(select(silences.c.project).where(mine)).first()
        done = connection.execute(update(silences).where(mine).values(until=now))
        if row is None or not done.rowcount:
            return False
        record(connection, by, "silence-ended", str(number), project=row.project, at=now)
    return True


def facts_of(engine: Engine, job_id: int) -> tuple[Row, list[Row], list[Row]] | None:
    """A job's row, its latest analysed sessions and fail-slow events, both latest first."""
    done = (sessions.c.job_id == job_id) & IS_DONE
    # Without the meta column, which may name thousands of hosts.
    latest = (
        select(*(sessions.c[name] for name in _OF_SESSION))
        .where(done)
        .order_by(desc(sessions.c.created_at), desc(sessions.c.id))
    )
    slow = events.c.kind.in_(LEVEL_KINDS)
    happened = select(events).where(events.c.job_id == job_id, slow)
    happened = happened.order_by(desc(EVENT_ORDER))
    with engine.connect() as connection:
        job = connection.execute(select(jobs).where(jobs.c.id == job_id)).mappings().first()
        if job is None:
            return None
        return (
            dict(job),
            [dict(row) for row in connection.execute(latest.limit(_SESSIONS)).mappings()],
            [dict(row) for row in connection.execute(happened.limit(_EVENTS)).mappings()],
        )


def quiet_jobs(engine: Engine, seen_after: float, seen_before: float) -> list[int]:
    """Running or silent jobs last seen between two times."""
    running = jobs.c.status.in_(("running", "silent"))
    query = select(jobs.c.id).where(
        running, jobs.c.seen_at > seen_after, jobs.c.seen_at <= seen_before
    )
    with engine.connect() as connection:
        return list(connection.execute(query).scalars())


def slow_jobs(engine: Engine, seen_after: float) -> list[int]:
    """Slow running jobs seen since then."""
    slow = (jobs.c.status == "running") & jobs.c.slow_since_step.is_not(None)
    with engine.connect() as connection:
        return list(
            connection.execute(
                select(jobs.c.id).where(slow, jobs.c.seen_at >= seen_after)
            ).scalars()
        )


def recent_jobs(engine: Engine, since: float) -> list[int]:
    """Jobs seen since then."""
    analysed = select(sessions.c.job_id).where(sessions.c.finished_at >= since)
    query = select(jobs.c.id).where(or_(jobs.c.seen_at >= since, jobs.c.id.in_(analysed)))
    with engine.connect() as connection:
        return list(connection.execute(query).scalars())


def remove_older(engine: Engine, before: float) -> None:
    """Remove alerts and silences that ended before then, with their messages."""
    with engine.begin() as connection:
        connection.execute(delete(alerts).where(alerts.c.ended_at < before))
        connection.execute(delete(silences).where(silences.c.until < before))


def counts(engine: Engine) -> tuple[list[Row], list[Row]]:
    """Firing alerts by project, rule and importance; messages by channel and state."""
    fires = (
        select(alerts.c.project, alerts.c.rule, alerts.c.importance, func.count().label("n"))
        .where(alerts.c.status == "firing")
        .group_by(alerts.c.project, alerts.c.rule, alerts.c.importance)
    )
    messages = select(deliveries.c.channel, deliveries.c.state, func.count().label("n")).group_by(
        deliveries.c.channel, deliveries.c.state
    )
    with engine.connect() as connection:
        rows = [connection.execute(query).mappings().all() for query in (fires, messages)]
    return [dict(row) for row in rows[0]], [dict(row) for row in rows[1]]
