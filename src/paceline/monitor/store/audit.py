"""The log of actions, written with each: logins, tokens, service accounts, silences, removals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, delete, desc, insert, select

from paceline.monitor.store.tables import audit

Row = dict[str, Any]

#: Logged actions, and their words on the page.
ACTIONS = {
    "login": "logged in",
    "login-refused": "was refused",
    "logout": "logged out",
    "login-ended": "ended the login",
    "token-made": "made the token",
    "token-revoked": "revoked the token",
    "account-made": "made the service account",
    "account-disabled": "disabled the service account",
    "alert-acknowledged": "acknowledged the alert",
    "acknowledgement-ended": "ended the acknowledgement of the alert",
    "silence-begun": "silenced",
    "silence-ended": "ended the silence",
    "session-queued": "had analysed again",
    "session-removed": "removed the session",
    "job-removed": "removed the job",
    "level-accepted": "accepted the level",
}


@dataclass(frozen=True)
class Actor:
    """The acting user, token or program.

    Attributes:
        name: user, token or service account; for a command the system's user.
        kind: user, token, account, command or service.
        client: network address, or "".
    """

    name: str
    kind: str
    client: str = ""


#: The service itself.
SERVICE = Actor("paceline", "service")


def record(
    connection: Connection, by: Actor, action: str, subject: str, *, project: str, at: float
) -> None:
    """Log an action in its own transaction.

    Args:
        connection: in a transaction.
        by: the actor.
        action: one of :data:`ACTIONS`.
        subject: object of the action.
        project: project whose administrators may read the entry; "*" = only those of all projects.
        at: seconds since 1970.
    """
    assert action in ACTIONS
    values = {"name": by.name, "kind": by.kind, "client": by.client, "project": project}
    row = {**values, "action": action, "subject": subject[:500], "at": at}
    connection.execute(insert(audit).values(**row))


def note(engine: Engine, by: Actor, action: str, subject: str, *, project: str, at: float) -> None:
    """Log a finished action that was no transaction of the store."""
    with engine.begin() as connection:
        record(connection, by, action, subject, project=project, at=at)


def list_entries(
    engine: Engine, project: str, before_id: int | None = None, limit: int = 100
) -> list[Row]:
    """Actions in a project ("*" = in any) before ``before_id``, the newest first."""
    query = select(audit).order_by(desc(audit.c.id)).limit(limit)
    if project != "*":
        query = query.where(audit.c.project == project)
    if before_id is not None:
        query = query.where(audit.c.id < before_id)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def remove_older(engine: Engine, before: float) -> None:
    """Remove older actions."""
    with engine.begin() as connection:
        connection.execute(delete(audit).where(audit.c.at < before))
