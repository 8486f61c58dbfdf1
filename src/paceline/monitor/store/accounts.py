"""Service accounts: names that own tokens of one project and scope, which end together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from paceline.errors import MonitorError
from paceline.monitor.store.audit import Actor, record
from paceline.monitor.store.tables import accounts, tokens
from paceline.monitor.store.tokens import Token, check_grant, insert_token


@dataclass(frozen=True)
class Account:
    """A service account.

    Attributes:
        id: number.
        name: name of the program.
        project: the project of its tokens; "*" = all.
        scope: scope of its tokens.
        created_at, disabled_at: seconds since 1970.
        made_by: name of its creator.
    """

    id: int
    name: str
    project: str
    scope: str
    created_at: float
    made_by: str
    disabled_at: float | None


def create_account(
    engine: Engine, name: str, *, project: str, scope: str, now: float, by: Actor
) -> Account:
    """Create a service account without a token.

    Raises:
        MonitorError: name, scope or project is invalid, or the account exists.
    """
    check_grant(name, scope, project)
    row = {"name": name, "project": project, "scope": scope, "created_at": now, "made_by": by.name}
    try:
        with engine.begin() as connection:
            key = connection.execute(insert(accounts).values(**row)).inserted_primary_key
            record(connection, by, "account-made", f"{name} ({scope})", project=project, at=now)
    except IntegrityError:
        raise MonitorError(f"there is a service account {name} in {project} already") from None
    assert key is not None
    return Account(key[0], name, project, scope, now, by.name, None)


def list_accounts(engine: Engine, project: str = "*") -> list[Account]:
    """The service accounts of a project ("*" = of all), oldest first."""
    query = select(accounts).order_by(accounts.c.id)
    if project != "*":
        query = query.where(accounts.c.project == project)
    with engine.connect() as connection:
        return [_account(row) for row in connection.execute(query)]


def account_token(
    engine: Engine,
    number: int,
    project: str,
    *,
    now: float,
    expires_at: float | None,
    by: Actor,
) -> tuple[Token, str]:
    """Create a token of a project's service account ("*" = of any); returns it and its secret.

    Raises:
        MonitorError: no enabled account has that number, or the time is past.
    """
    with engine.begin() as connection:
        account = _find(connection, number, project)
        if account is None or account.disabled_at is not None:
            raise _no_account(number)
        return insert_token(
            connection,
            account.name,
            scope=account.scope,
            project=account.project,
            now=now,
            expires_at=expires_at,
            by=by,
            account_id=number,
        )


def disable_account(engine: Engine, number: int, project: str, now: float, by: Actor) -> Account:
    """End a project's service account ("*" = of any) with all its tokens.

    Raises:
        MonitorError: there is none of that number.
    """
    with engine.begin() as connection:
        account = _find(connection, number, project)
        if account is None:
            raise _no_account(number)
        for table, column, mine in (
            (accounts, "disabled_at", accounts.c.id == number),
            (tokens, "revoked_at", tokens.c.account_id == number),
        ):
            goes_on = mine & table.c[column].is_(None)
            connection.execute(update(table).where(goes_on).values({column: now}))
        if account.disabled_at is None:
            project, subject = account.project, account.name
            record(connection, by, "account-disabled", subject, project=project, at=now)
    return account


def _find(connection: Connection, number: int, project: str) -> Account | None:
    mine = accounts.c.id == number
    if project != "*":
        mine &= accounts.c.project == project
    # Changes nothing, but locks the row: otherwise a token made meanwhile would outlive the
    # account.
    connection.execute(update(accounts).where(mine).values(made_by=accounts.c.made_by))
    row = connection.execute(select(accounts).where(mine)).first()
    return None if row is None else _account(row)


def _account(row: Any) -> Account:
    values = row._mapping
    return Account(**{name: values[name] for name in Account.__dataclass_fields__})


def _no_account(number: int) -> MonitorError:
    return MonitorError(f"there is no service account {number}")
