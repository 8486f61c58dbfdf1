"""Tokens: rights to push, read, operate or administer. Only their SHA-256 is stored."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, insert, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from paceline.errors import MonitorError
from paceline.monitor.store.audit import SERVICE, Actor, record
from paceline.monitor.store.tables import tokens

#: Rights of each scope.
SCOPES = {
    "push": frozenset(("push",)),
    "read": frozenset(("read",)),
    "operate": frozenset(("push", "read", "operate")),
    "admin": frozenset(("push", "read", "operate", "admin")),
}
#: Prefix of secrets, by which repository scanners and our own logs find them.
PREFIX = "pcl_"
#: Least interval between writes of the last use, so that reads seldom write.
_USED_EVERY_S = 60.0
_NAME = re.compile(r"[A-Za-z0-9._ @-]{1,100}")
PROJECT = re.compile(r"\*|[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True)
class Token:
    """A token without its secret.

    Attributes:
        id: number for revoking the token.
        name: name of the owner.
        project: project of its rights; "*" = all.
        scope: one of :data:`SCOPES`.
        created_at, expires_at, revoked_at, used_at: seconds since 1970.
        account_id: number of the owning service account; None: a person's token.
        made_by: name of its creator; None: unknown.
    """

    id: int
    name: str
    project: str
    scope: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    used_at: float | None
    account_id: int | None = None
    made_by: str | None = None

    def problem(self, now: float) -> str | None:
        """The reason why the token is invalid; None if it is valid."""
        if self.revoked_at is not None:
            return "was revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "has expired"
        return None


def create_token(
    engine: Engine,
    name: str,
    *,
    scope: str,
    project: str = "*",
    now: float,
    expires_at: float | None = None,
    by: Actor = SERVICE,
) -> tuple[Token, str]:
    """Create a token; returns it and its secret, which is not stored.

    Raises:
        MonitorError: the name, scope or project is none, or it expires in the past.
    """
    with engine.begin() as connection:
        return insert_token(
            connection,
            name,
            scope=scope,
            project=project,
            now=now,
            expires_at=expires_at,
            by=by,
        )


def check_grant(name: str, scope: str, project: str) -> None:
    """Check the name, scope and project of a token or service account.

    Raises:
        MonitorError: the name, scope or project is invalid.
    """
    if not _NAME.fullmatch(name):
        raise MonitorError(f"{name!r} is an invalid name; use letters, digits and . _ - @")
    if scope not in SCOPES:
        raise MonitorError(f"{scope!r} is no scope; use {', '.join(SCOPES)}")
    if not PROJECT.fullmatch(project):
        raise MonitorError(
            f"{project!r} is no project; use letters, digits and . _ -, or * for all"
        )


def insert_token(
    connection: Connection,
    name: str,
    *,
    scope: str,
    project: str,
    now: float,
    expires_at: float | None,
    by: Actor,
    account_id: int | None = None,
) -> tuple[Token, str]:
    """Create a token in a transaction; returns it and its secret.

    Raises:
        MonitorError: the name, scope or project is none, or it expires in the past.
    """
    check_grant(name, scope, project)
    if expires_at is not None and not now < expires_at < math.inf:
        raise MonitorError(
            "the token would have expired already, or never expire; give another time"
        )
    secret = PREFIX + secrets.token_urlsafe(32)
    values: dict[str, Any] = {
        "name": name,
        "project": project,
        "scope": scope,
        "created_at": now,
        "expires_at": expires_at,
        "account_id": account_id,
        "made_by": by.name,
    }
    query = insert(tokens).values(sha256=digest(secret), **values)
    key = connection.execute(query).inserted_primary_key
    assert key is not None
    subject = f"{key[0]} {name} ({scope})"
    record(connection, by, "token-made", subject, project=project, at=now)
    return Token(id=key[0], **values, revoked_at=None, used_at=None), secret


def find_token(engine: Engine, secret: str, now: float) -> Token | None:
    """The token of a secret, valid or not, or None. Records its use."""
    token = _token_where(engine, tokens.c.sha256 == digest(secret))
    if token is not None and token.problem(now) is None:
        before = now - _USED_EVERY_S
        if token.used_at is None or token.used_at < before:
            stale = or_(tokens.c.used_at.is_(None), tokens.c.used_at < before)
            # Reading works even if the disk is full.
            with contextlib.suppress(SQLAlchemyError), engine.begin() as connection:
                connection.execute(
                    update(tokens).where(tokens.c.id == token.id, stale).values(used_at=now)
                )
    return token


def token_by_id(engine: Engine, number: int) -> Token | None:
    """The token with that number, or None."""
    return _token_where(engine, tokens.c.id == number)


def list_tokens(engine: Engine, project: str = "*") -> list[Token]:
    """A project's tokens ("*" = of all), oldest first."""
    query = select(tokens).order_by(tokens.c.id)
    if project != "*":
        query = query.where(tokens.c.project == project)
    with engine.connect() as connection:
        return [_token(row) for row in connection.execute(query)]


def revoke_token(
    engine: Engine, number: int, now: float, *, project: str = "*", by: Actor = SERVICE
) -> Token:
    """Revoke a token of a project ("*" = of any).

    Raises:
        MonitorError: no token has that number.
    """
    mine = tokens.c.id == number
    if project != "*":
        mine &= tokens.c.project == project
    token = _token_where(engine, mine)
    if token is None:
        raise MonitorError(f"there is no token {number}; paceline admin token list shows them")
    with engine.begin() as connection:
        good = mine & tokens.c.revoked_at.is_(None)
        if connection.execute(update(tokens).where(good).values(revoked_at=now)).rowcount:
            subject = f"{token.id} {token.name} ({token.scope})"
            record(connection, by, "token-revoked", subject, project=token.project, at=now)
    return token


def _token_where(engine: Engine, condition: Any) -> Token | None:
    with engine.connect() as connection:
        row = connection.execute(select(tokens).where(condition)).first()
    return None if row is None else _token(row)


def _token(row: Any) -> Token:
    values = row._mapping
    return Token(**{name: values[name] for name in Token.__dataclass_fields__})


def digest(secret: str) -> str:
    """The stored SHA-256 of a secret."""
    # The secret has 256 random bits, so that a slow hash gains nothing.
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
