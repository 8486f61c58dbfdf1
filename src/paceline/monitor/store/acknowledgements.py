"""Acknowledgements: the person working on an alert, until when, and why; notices continue."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from sqlalchemy import Engine, select, update

from paceline.errors import MonitorError
from paceline.monitor.log import log
from paceline.monitor.store.audit import SERVICE, Actor, record
from paceline.monitor.store.tables import alerts
from paceline.units import moment


def acknowledge(
    engine: Engine,
    numbers: Sequence[int],
    project: str,
    *,
    until: float,
    comment: str,
    now: float,
    by: Actor = SERVICE,
) -> list[int]:
    """Acknowledge alerts until that time.

    Args:
        engine: the store.
        numbers: numbers of the alerts.
        project: project of the alerts; "*" = any.
        until: seconds since 1970.
        comment: reason.
        now: seconds since 1970.
        by: person working on them.

    Returns:
        the numbers of firing alerts in that project.

    Raises:
        MonitorError: it would already be over.
    """
    if not now < until < math.inf:
        raise MonitorError(
            "the acknowledgement would have ended already, or never end; give another time"
        )
    values = {
        "acknowledged_by": by.name,
        "acknowledged_at": now,
        "acknowledged_until": until,
        "acknowledged_why": comment,
    }
    subject = f"until {moment(until)} UTC" + (f": {comment}" if comment else "")
    return _change(engine, numbers, project, values, "alert-acknowledged", subject, now, by)


def end_acknowledgement(
    engine: Engine, number: int, project: str, now: float, by: Actor = SERVICE
) -> bool:
    """End an alert's acknowledgement; False if it had none."""
    values = dict.fromkeys(
        ("acknowledged_by", "acknowledged_at", "acknowledged_until", "acknowledged_why")
    )
    return bool(
        _change(engine, [number], project, values, "acknowledgement-ended", "", now, by, held=True)
    )


def _change(
    engine: Engine,
    numbers: Sequence[int],
    project: str,
    values: dict[str, object],
    action: str,
    subject: str,
    now: float,
    by: Actor,
    held: bool = False,
) -> list[int]:
    """Change firing alerts; ``held``: only acknowledged ones."""
    mine = alerts.c.id.in_(numbers) & (alerts.c.status == "firing")
    if project != "*":
        mine &= alerts.c.project == project
    if held:
        mine &= alerts.c.acknowledged_until > now
    with engine.begin() as connection:
        query = select(alerts.c.id, alerts.c.project, alerts.c.rule).where(mine)
        rows = connection.execute(query.order_by(alerts.c.id).with_for_update()).all()
        connection.execute(
            update(alerts).where(alerts.c.id.in_([row.id for row in rows])).values(**values)
        )
        for row in rows:
            text = f"{row.id}: {row.rule} {subject}".rstrip()
            record(connection, by, action, text, project=row.project, at=now)
    found = [int(row.id) for row in rows]
    log(logging.INFO, action.replace("-", " "), who=by.name, alerts=found)
    return found
