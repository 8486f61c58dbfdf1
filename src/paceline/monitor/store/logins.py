"""Logins of the OpenID provider's users: the cookie's SHA-256, the user, and the granted groups.

A login is a row, not a signed text, so that it ends at once on all instances.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, delete, insert, select, update

from paceline.monitor.store.audit import Actor, record
from paceline.monitor.store.tables import logins
from paceline.monitor.store.tokens import digest


@dataclass(frozen=True)
class Login:
    """A user's login.

    Attributes:
        id: number.
        name: the user's name in the provider's claim.
        issuer, subject: the provider's permanent identity of the user.
        groups: the user's groups that a grant names.
        created_at, expires_at, ended_at: seconds since 1970.
    """

    id: int
    name: str
    issuer: str
    subject: str
    groups: tuple[str, ...]
    created_at: float
    expires_at: float
    ended_at: float | None


def begin_login(
    engine: Engine,
    *,
    name: str,
    issuer: str,
    subject: str,
    groups: Sequence[str],
    now: float,
    expires_at: float,
    client: str,
    project: str,
) -> str:
    """Create a login; returns its secret, which is not stored.

    Args:
        engine: engine of the store.
        name: name of the user.
        issuer: the provider's URL.
        subject: the provider's claim ``sub``.
        groups: groups that grants name.
        now: seconds since 1970.
        expires_at: seconds since 1970.
        client: network address.
        project: project whose administrators see the log entry.
    """
    secret = secrets.token_urlsafe(32)
    values = {"name": name, "issuer": issuer, "subject": subject, "groups": list(groups)}
    times = {"created_at": now, "expires_at": expires_at}
    with engine.begin() as connection:
        connection.execute(insert(logins).values(sha256=digest(secret), **values, **times))
        subject = f"{subject} of {issuer}"
        record(connection, Actor(name, "user", client), "login", subject, project=project, at=now)
    return secret


def find_login(engine: Engine, secret: str, now: float) -> Login | None:
    """The login of a cookie; None if unknown or ended."""
    with engine.connect() as connection:
        query = select(logins).where(logins.c.sha256 == digest(secret))
        row = connection.execute(query).first()
    login = None if row is None else _login(row)
    return (
        login if login is not None and login.ended_at is None and login.expires_at > now else None
    )


def current_logins(engine: Engine, now: float) -> list[Login]:
    """Active logins, the latest first."""
    goes_on = logins.c.ended_at.is_(None) & (logins.c.expires_at > now)
    with engine.connect() as connection:
        query = select(logins).where(goes_on).order_by(logins.c.id.desc()).limit(1000)
        return [_login(row) for row in connection.execute(query)]


def end_login(engine: Engine, number: int, now: float, by: Actor, project: str = "*") -> bool:
    """End a login; False if no active login has that number."""
    mine = (logins.c.id == number) & logins.c.ended_at.is_(None)
    with engine.begin() as connection:
        row = connection.execute(select(logins.c.name).where(mine)).first()
        done = connection.execute(update(logins).where(mine).values(ended_at=now))
        if row is None or not done.rowcount:
            return False
        action = "logout" if (by.kind, by.name) == ("user", row.name) else "login-ended"
        record(connection, by, action, f"login {number} of {row.name}", project=project, at=now)
    return True


def remove_older(engine: Engine, before: float) -> None:
    """Remove logins that ended before then."""
    with engine.begin() as connection:
        connection.execute(delete(logins).where(logins.c.expires_at < before))


def _login(row: Any) -> Login:
    values = row._mapping
    fields = {name: values[name] for name in Login.__dataclass_fields__}
    return Login(**{**fields, "groups": tuple(fields["groups"])})
