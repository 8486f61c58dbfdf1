"""Alerts, their silences and their messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    bindparam,
    delete,
    desc,
    func,
    insert,
    or_,
    select,
    update,
)

from paceline.detect.event import LEVEL_KINDS, SLOW_KINDS
from paceline.errors import MonitorError
from paceline.monitor.log import log
from paceline.monitor.store.audit import SERVICE, Actor, record
from paceline.monitor.store.due import due
from paceline.monitor.store.inserts import insert_new
from paceline.monitor.store.tables import (
    IS_DONE,
    alerts,
    deliveries,
    events,
    jobs,
    session_facts,
    sessions,
    silences,
)
from paceline.units import moment

Row = dict[str, Any]
#: Sessions of a job that the rules examine.
_SESSIONS = 200
_OF_SESSION = (
    *("id", "created_at", "first_step", "last_step", "step_s", "data_loading"),
    *("slowdown", "slowdown_lasting", "slowdown_healthy"),
    *("cause", "place", "cause_gain", "headline"),
)
#: Columns of an alert that later information may change.
_SAID = ("session_id", "headline", "cause", "place", "hosts", "gain")
#: Messages of a channel that are read at once, the oldest first.
_BATCH = 500
_FIRES = alerts.c.status == "firing"


@dataclass(frozen=True)
class Firing:
    """An alert that starts, or that already fires and is updated.

    Attributes:
        alert: the row, without id.
        channels: channels that receive messages of its start.
    """

    alert: Row
    channels: Sequence[str] = ()


@dataclass(frozen=True)
class Passed:
    """An alert of something that is over already: it is told once, as resolved.

    Attributes:
        alert: the row, without id.
        channels: channels that receive the message.
        began: time of its begin, seconds since 1970. An alert that ended later has told it.
    """

    alert: Row
    channels: Sequence[str]
    began: float


@dataclass(frozen=True)
class Ending:
    """An alert that ends.

    Attributes:
        fingerprint: its fingerprint.
        why: is added to its headline.
        headline: its last headline; None: as it fires.
        absorbed: another alert tells its change, so messages that still wait are not sent.
    """

    fingerprint: str
    why: str = ""
    headline: str | None = None
    absorbed: bool = False


@dataclass(frozen=True)
class Told:
    """A change of an alert that is told: ``status`` is firing, updated or resolved."""

    id: int
    status: str
    fingerprint: str


def change(
    engine: Engine,
    firing: Sequence[Firing],
    endings: Sequence[Ending],
    now: float,
    next_at: float,
    over: Sequence[Passed] = (),
) -> list[Told]:
    """Start, update and end alerts with their messages, in one transaction.

    Channels told of an alert before a session had found its cause are told once more. A channel
    whose message had the same cause and place is not.

    Args:
        engine: the store.
        firing: alerts that fire.
        endings: alerts that end; those that do not fire are left out.
        now: seconds since 1970.
        next_at: time of the messages.
        over: alerts of what is over already.
    """
    names = [one.alert["fingerprint"] for one in firing] + [end.fingerprint for end in endings]
    if not names and not over:
        return []
    with engine.begin() as connection:
        # Instances that change the same alerts lock and insert them in one order.
        query = select(alerts).where(alerts.c.fingerprint.in_(names), _FIRES)
        query = query.order_by(alerts.c.id).with_for_update()
        rows = {row["fingerprint"]: dict(row) for row in connection.execute(query).mappings()}
        in_order = sorted(firing, key=lambda one: one.alert["fingerprint"])
        known = [(rows.get(one.alert["fingerprint"]), one) for one in in_order]
        begins = [one for row, one in known if row is None]
        updates = [(row, one.alert) for row, one in known if row is not None]
        ends = [(rows[end.fingerprint], end) for end in endings if end.fingerprint in rows]
        told = _begin(connection, engine, begins, next_at)
        told += _update(connection, engine, updates, next_at)
        told += _end(connection, engine, ends, now, next_at)
        return told + _pass(connection, engine, over, now, next_at)


def _pass(
    connection: Connection, engine: Engine, over: Sequence[Passed], now: float, next_at: float
) -> list[Told]:
    if not over:
        return []
    # No firing row keeps two instances from telling the same, so the job's row is locked.
    numbers = sorted({one.alert["job_id"] for one in over})
    locked = select(jobs.c.id).where(jobs.c.id.in_(numbers)).order_by(jobs.c.id)
    connection.execute(locked.with_for_update(key_share=True)).all()
    latest = latest_of(connection, [one.alert["fingerprint"] for one in over])
    told: list[Told] = []
    messages: list[tuple[int, Sequence[str]]] = []
    for one in over:
        row = latest.get(one.alert["fingerprint"])
        if row is not None and (row["status"] == "firing" or row["ended_at"] >= one.began):
            continue
        values = {**one.alert, "status": "resolved", "ended_at": now}
        key = connection.execute(insert(alerts).values(**values)).inserted_primary_key
        assert key is not None
        told.append(Told(int(key[0]), "resolved", one.alert["fingerprint"]))
        messages.append((int(key[0]), one.channels))
    _tell(connection, engine, messages, "resolved", next_at)
    return told


def _begin(
    connection: Connection, engine: Engine, begins: Sequence[Firing], next_at: float
) -> list[Told]:
    if not begins:
        return []
    statement = insert_new(engine, alerts).values([one.alert for one in begins])
    new = connection.execute(statement.returning(alerts.c.id, alerts.c.fingerprint))
    number_of = {fingerprint: int(number) for number, fingerprint in new}
    # Another instance may have inserted one first.
    pairs = [(number_of.get(one.alert["fingerprint"]), one) for one in begins]
    mine = [(number, one) for number, one in pairs if number is not None]
    messages = [(number, one.channels) for number, one in mine]
    _tell(connection, engine, messages, "firing", next_at)
    return [Told(number, "firing", one.alert["fingerprint"]) for number, one in mine]


def _update(
    connection: Connection,
    engine: Engine,
    updates: Sequence[tuple[Row, Mapping[str, Any]]],
    next_at: float,
) -> list[Told]:
    for row, alert in updates:
        changed = {name: alert[name] for name in _SAID if alert[name] is not None}
        if alert["cause"] != row["cause"]:  # place and remedy are of the cause
            changed = {name: alert[name] for name in _SAID}
        if alert["place"] is not None:  # a new place may have no host
            changed["hosts"] = alert["hosts"]
        changed["updated_at"] = alert["updated_at"]
        for name, choose in (("factor_least", min), ("factor_most", max)):
            factors = [one[name] for one in (row, alert) if one.get(name) is not None]
            changed[name] = choose(factors, default=None)
        connection.execute(update(alerts).where(alerts.c.id == row["id"]).values(**changed))
    learned = {
        row["id"]: alert for row, alert in updates if is_unknown(row) and not is_unknown(alert)
    }
    channels = _told(connection, list(learned), ("delivered",), learned)
    _tell(connection, engine, list(channels.items()), "updated", next_at)
    return [Told(number, "updated", learned[number]["fingerprint"]) for number in channels]


def is_unknown(alert: Mapping[str, Any]) -> bool:
    """Whether no session has named the cause of an alert."""
    return alert["session_id"] is None or alert["cause"] in (None, "unexplained")


def _end(
    connection: Connection,
    engine: Engine,
    ends: Sequence[tuple[Row, Ending]],
    now: float,
    next_at: float,
) -> list[Told]:
    if not ends:
        return []
    headline = bindparam("said", type_=alerts.c.headline.type)
    statement = update(alerts).where(alerts.c.id == bindparam("number"))
    values = [
        {"number": row["id"], "said": f"{end.headline or row['headline']} {end.why}".rstrip()}
        for row, end in ends
    ]
    ended = {"status": "resolved", "updated_at": now, "ended_at": now, "headline": headline}
    connection.execute(statement.values(**ended), values)
    absorbed = [row["id"] for row, end in ends if end.absorbed]
    connection.execute(
        delete(deliveries).where(
            deliveries.c.alert_id.in_(absorbed),
            deliveries.c.state == "waiting",
            deliveries.c.attempts == 0,
            deliveries.c.next_at > now,  # later, its channel may be sending it
        )
    )
    channels = _told(connection, [row["id"] for row, _ in ends], ("waiting", "delivered"))
    _tell(connection, engine, list(channels.items()), "resolved", next_at)
    return [Told(row["id"], "resolved", row["fingerprint"]) for row, _ in ends]


def _told(
    connection: Connection,
    numbers: Sequence[int],
    states: Sequence[str],
    news: Mapping[int, Mapping[str, Any]] | None = None,
) -> dict[int, list[str]]:
    """Alert -> channels whose message of its start is in one of these states.

    Args:
        connection: connection to the store.
        numbers: the alerts.
        states: states of messages.
        news: alert -> its present row. Channels that were told its cause and place are left out.
    """
    columns = ("alert_id", "channel", "told_cause", "told_place")
    query = select(*(deliveries.c[name] for name in columns)).where(
        deliveries.c.alert_id.in_(numbers),
        deliveries.c.status == "firing",
        deliveries.c.state.in_(states),
    )
    channels: dict[int, list[str]] = {}
    for row in connection.execute(query.order_by(deliveries.c.id)):
        if news is None or _is_new(news[row.alert_id], row.told_cause, row.told_place):
            channels.setdefault(row.alert_id, []).append(row.channel)
    return channels


def _is_new(alert: Mapping[str, Any], cause: str | None, place: str | None) -> bool:
    """Whether an alert says more than the cause and place that a channel was told."""
    return alert["cause"] != cause or alert["place"] not in (None, place)


def _tell(
    connection: Connection,
    engine: Engine,
    messages: Iterable[tuple[int, Sequence[str]]],
    status: str,
    next_at: float,
) -> None:
    rows = [
        {"alert_id": number, "channel": channel, "status": status, "next_at": next_at}
        for number, channels in messages
        for channel in channels
    ]
    if rows:
        connection.execute(insert_new(engine, deliveries).values(rows))


def firing(engine: Engine) -> list[Row]:
    """All firing alerts."""
    with engine.connect() as connection:
        query = select(alerts).where(alerts.c.status == "firing").order_by(alerts.c.id)
        return [dict(row) for row in connection.execute(query).mappings()]


def latest_of(connection: Connection, fingerprints: Sequence[str]) -> dict[str, Row]:
    """Fingerprint -> its latest alert; if one fires, it is the latest."""
    newest = select(func.max(alerts.c.id)).where(alerts.c.fingerprint.in_(fingerprints))
    query = select(alerts).where(alerts.c.id.in_(newest.group_by(alerts.c.fingerprint)))
    rows = connection.execute(query).mappings()
    return {row["fingerprint"]: dict(row) for row in rows}


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


def delivered(engine: Engine, rows: Sequence[Row], next_at: float) -> None:
    """Messages were delivered, with the cause and place of their rows.

    Args:
        engine: the store.
        rows: rows of :func:`waiting`.
        next_at: time of their repetition, where their channel repeats.
    """
    told: Row = {"told_cause": bindparam("cause"), "told_place": bindparam("place")}
    statement = update(deliveries).where(deliveries.c.id == bindparam("number"))
    statement = statement.values(state="delivered", next_at=next_at, error=None, attempts=1, **told)
    values = [{"number": row["id"], "cause": row["cause"], "place": row["place"]} for row in rows]
    with engine.begin() as connection:
        connection.execute(statement, values)


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


def facts_of(connection: Connection, job_ids: Sequence[int]) -> dict[int, tuple[Row, list[Row]]]:
    """Job -> its row and its latest analysed sessions, the latest first.

    ``causes`` of a session are those of :func:`paceline.results.causes.cause_facts`; None where an
    older version analysed it.
    """
    order = (sessions.c.created_at.desc(), sessions.c.id.desc())
    number = func.row_number().over(partition_by=sessions.c.job_id, order_by=order)
    # Without the meta column, which may name thousands of hosts.
    columns = [sessions.c[name] for name in _OF_SESSION]
    mine = sessions.c.job_id.in_(job_ids) & IS_DONE
    numbered = select(sessions.c.job_id, *columns, number.label("number")).where(mine).subquery()
    causes = session_facts.c.facts["causes"].label("causes")
    latest = select(numbered, causes).where(numbered.c.number <= _SESSIONS)
    latest = latest.outerjoin(session_facts, session_facts.c.session_id == numbered.c.id)
    latest = latest.order_by(numbered.c.job_id, numbered.c.number)
    query = select(jobs).where(jobs.c.id.in_(job_ids))
    rows = {row["id"]: dict(row) for row in connection.execute(query).mappings()}
    of_job: dict[int, list[Row]] = {job_id: [] for job_id in rows}
    for row in connection.execute(latest).mappings():
        values = {name: row[name] for name in (*_OF_SESSION, "causes")}
        of_job.get(row["job_id"], []).append(values)
    return {job_id: (row, of_job[job_id]) for job_id, row in rows.items()}


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


def relieved_jobs(engine: Engine, since: float) -> list[int]:
    """Running jobs with a relief since then."""
    query = select(events.c.job_id).join(jobs, jobs.c.id == events.c.job_id).distinct()
    query = query.where(
        jobs.c.status == "running",
        jobs.c.seen_at >= since,
        events.c.at >= since,
        events.c.kind.in_(LEVEL_KINDS),
        events.c.kind.not_in(SLOW_KINDS),
    )
    with engine.connect() as connection:
        return list(connection.execute(query).scalars())


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
