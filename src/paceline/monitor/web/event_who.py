"""The slow workers behind an onset, by the job's sessions: step times alone cannot tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from paceline.detect.event import SLOW_KINDS
from paceline.monitor.alerts.judgement import session_that_explains
from paceline.monitor.store.alerts import facts_of
from paceline.monitor.store.events import level_events_of

Row = Mapping[str, Any]


def with_who(connection: Connection, events: Sequence[Row]) -> list[dict[str, Any]]:
    """The events with ``who`` and ``session_id``, from the latest session that explains an onset.

    Both are None for other events and without such a session.
    """
    job_ids = sorted({event["job_id"] for event in events if event["kind"] == "onset"})
    sessions = {job_id: rows for job_id, (_, rows) in facts_of(connection, job_ids).items()}
    changes = dict(level_events_of(connection, job_ids))
    found = []
    for event in events:
        session = None
        if event["kind"] == "onset" and event["factor"] is not None:
            until = _relieved_at(event, changes.get(event["job_id"], ()))
            session = session_that_explains(sessions.get(event["job_id"], ()), event, until)
        names = {"who": None, "session_id": None}
        if session is not None:
            names = {"who": session["place"], "session_id": session["id"]}
        found.append({**event, **names})
    return found


def _relieved_at(onset: Row, changes: Sequence[Row]) -> float:
    """Time of the relief of the last slow rank of an onset; inf while one of them is slow.

    Args:
        onset: its row.
        changes: changes of the job's level, the latest first.
    """
    slow = set(onset["ranks"])
    for change in reversed(changes):
        # A relief just before the onset may have come in the same batch, at the same time.
        if change["id"] > onset["id"] and change["kind"] not in SLOW_KINDS:
            slow.difference_update(change["ranks"])
            if not slow:
                return float(change["at"])
    return math.inf
