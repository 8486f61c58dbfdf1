"""The shared store of several instances: its ownership and its shared secrets."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from sqlalchemy import Engine, insert, select, text, update

from paceline.errors import MonitorError
from paceline.monitor.store import step_log
from paceline.monitor.store.tables import jobs, stores

#: Name of the key file of the logins' cookies in the data folder.
COOKIE_KEY = "cookie.key"


def claim(engine: Engine, now: float) -> str:
    """The store's name; a new store, or one without step times, is shared from now on.

    Raises:
        MonitorError: its step times lie in the data folder of a single process.
    """
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(7261634)"))  # one instance at a time
        row = connection.execute(select(stores.c.name, stores.c.several)).first()
        if row is None:
            name = secrets.token_hex(16)
            values = {"name": name, "beat": 0, "created_at": now, "several": True}
            connection.execute(insert(stores).values(**values))
            return name
        if not row.several:
            has_steps = select(jobs.c.id).where(jobs.c.last_step.is_not(None)).limit(1)
            if connection.execute(has_steps).first() is not None:
                raise MonitorError(
                    "the step times of this store are in the data folder of one service; several "
                    "instances need another store"
                )
            connection.execute(update(stores).values(several=True))
        return str(row.name)


def share_cookie_key(engine: Engine, data: Path) -> None:
    """Use the store's key in this folder, so that a login is valid on all instances."""
    path = data / COOKIE_KEY
    own = path.read_bytes() if path.is_file() else secrets.token_bytes(32)
    key = step_log.shared_key(engine, COOKIE_KEY, own)
    if not path.is_file() or own != key:
        partial = path.with_name(f".{COOKIE_KEY}.partial")
        number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(key)
        partial.replace(path)
