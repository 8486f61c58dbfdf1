"""Numbers for /metrics."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, func, select

from paceline.monitor.store.queries import STAKE, STAKE_MOST
from paceline.monitor.store.tables import jobs, sessions, uploads

Row = dict[str, Any]

_COLUMNS = (
    "id",
    *("project", "name", "gpus", "degrees", "labels", "status", "seen_at", "last_step", "step_s"),
    *("healthy_s", "slow_since_step", "slow_factor", "slowdown", "slowdown_lasting"),
    *("slowdown_healthy", "data_loading", "waste", "cause", "gpu_hours_lost"),
    *("gpu_hours_lost_most", "n_sessions"),
)


def seen_jobs(engine: Engine, project: str, since: float) -> list[Row]:
    """Jobs of a project ("*" = of all) seen since then."""
    stakes = STAKE.label("stake_gpu_hours"), STAKE_MOST.label("stake_gpu_hours_most")
    columns = (*(jobs.c[name] for name in _COLUMNS), *stakes)
    query = select(*columns).where(jobs.c.seen_at >= since)
    if project != "*":
        query = query.where(jobs.c.project == project)
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(jobs.c.project, jobs.c.name)).mappings()
        return [dict(row) for row in rows]


def session_counts(engine: Engine) -> dict[str, int]:
    """Status -> number of sessions."""
    query = select(sessions.c.status, func.count()).group_by(sessions.c.status)
    with engine.connect() as connection:
        return {status: int(n) for status, n in connection.execute(query)}


def open_uploads(engine: Engine) -> int:
    """Number of unfinished uploads."""
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(uploads)).scalar_one())
