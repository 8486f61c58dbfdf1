"""The slow workers behind an onset, by the job's sessions: step times alone cannot tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from paceline.detect.event import SLOW_KINDS
from paceline.monitor.alerts.explanation import explanation_of
from paceline.monitor.levels import LevelChanges
from paceline.monitor.store.alerts import facts_of
from paceline.monitor.store.events import level_events_of

Row = Mapping[str, Any]


def with_who(connection: Connection, events: Sequence[Row]) -> list[dict[str, Any]]:
    """The events with ``who`` and ``session_id``, from the latest session that explains an onset.

    Both are None for other events and without such a session.
    """
    job_ids = sorted({event["job_id"] for event in events if event["kind"] == "onset"})
    facts = facts_of(connection, job_ids)
    changes = dict(level_events_of(connection, job_ids))
    episodes = {job_id: LevelChanges.of(rows).episodes for job_id, rows in changes.items()}
    found = []
    for event in events:
        told, job_id = None, event["job_id"]
        if event["kind"] == "onset" and event["factor"] is not None and job_id in facts:
            job, sessions = facts[job_id]
            until = _relieved_at(event, changes.get(job_id, ()))
            slow = episodes.get(job_id, ())
            told = explanation_of(sessions, event, slow, job["healthy_s"], until)
        names: dict[str, Any] = {"who": None, "session_id": None}
        if told is not None:
            names = {"who": told.place, "session_id": told.session["id"]}
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
