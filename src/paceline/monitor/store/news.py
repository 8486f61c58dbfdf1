"""Changes by other instances since a time, for the open pages of this one."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, func, select

from paceline.monitor.store.tables import alerts, events, jobs, sessions

#: Changes of a kind that are sent at once; a page refetches itself after the first.
_MOST = 200

#: (project, kind of message, its data), as in :class:`~paceline.monitor.bus.Message`.
Change = tuple[str, str, dict[str, Any]]


def changes(engine: Engine, since: float) -> list[Change]:
    """New steps, sessions, events and alerts after ``since``."""
    job = (jobs.c.project, jobs.c.name.label("job"), jobs.c.id.label("job_id"))
    at = func.coalesce(sessions.c.finished_at, sessions.c.started_at, sessions.c.created_at)
    queries = {
        "steps": select(*job, jobs.c.last_step, jobs.c.step_s).where(
            jobs.c.seen_at > since, jobs.c.last_step.is_not(None)
        ),
        "session": select(*job, sessions.c.id, sessions.c.status)
        .join(jobs, jobs.c.id == sessions.c.job_id)
        .where(at > since),
        "event": select(*job, events.c.id, events.c.kind, events.c.text)
        .join(jobs, jobs.c.id == events.c.job_id)
        .where(events.c.at > since),
        "alert": select(*job, alerts.c.id, alerts.c.rule, alerts.c.status)
        .join(jobs, jobs.c.id == alerts.c.job_id)
        .where(alerts.c.updated_at > since),
    }
    found: list[Change] = []
    with engine.connect() as connection:
        for kind, query in queries.items():
            for row in connection.execute(query.limit(_MOST)).mappings():
                data = dict(row)
                found.append((data.pop("project"), kind, data))
    return found
