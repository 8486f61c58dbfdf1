"""The monitor's database: SQLite (WAL) or PostgreSQL, migrated at the start."""

from __future__ import annotations

import logging
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    NullPool,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, InvalidatePoolError, SQLAlchemyError

from paceline.errors import MonitorError
from paceline.monitor.log import log
from paceline.monitor.store.tables import revisions

#: Seconds that a writer waits for another.
_BUSY_S = 30.0
#: A connection used within this time is assumed to be open.
_FRESH_S = 1.0
#: Settings of libpq: a lost server or network is noticed within half a minute.
_PATIENCE = {
    "connect_timeout": 10,
    "tcp_user_timeout": 20_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
#: SQLite's message about a damaged file.
_DAMAGED = ("malformed", "not a database", "disk I/O error")


def open_database(url: str, *, pooled: bool = True) -> Engine:
    """Connect, and migrate the tables.

    Args:
        url: "sqlite:///path" or "postgresql://user@host/name".
        pooled: whether connections are kept until ``dispose``; else each is closed after its use.

    Raises:
        MonitorError: the URL is invalid, the database cannot be reached, or a later version made
            it.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise MonitorError(  # without the URL, which may hold a password
            "store is no URL of a database; give sqlite:///file or postgresql://user@host/name"
        ) from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise MonitorError(f"{parsed.drivername} is no known store; use sqlite or postgresql")
    try:
        options = _PATIENCE if parsed.get_backend_name() == "postgresql" else {}
        pool = None if pooled else NullPool
        engine = create_engine(parsed, connect_args=options, poolclass=pool)
        if engine.dialect.name == "postgresql":
            _ping_after_rest(engine)
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _careful)
        try:
            upgrade(engine)
        except BaseException:
            engine.dispose()
            raise
    except (SQLAlchemyError, ImportError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        public_url = parsed.set(query={}).render_as_string(hide_password=True)
        if any(word in reason for word in _DAMAGED):
            reason += "; its file is damaged: restore a backup (paceline admin restore)"
        raise MonitorError(f"the store {public_url} cannot be used: {reason}") from None
    return engine


def _ping_after_rest(engine: Engine) -> None:
    """Test a pooled connection unless it was used within :data:`_FRESH_S`.

    SQLAlchemy's ``pool_pre_ping`` costs a round trip for every transaction.
    """

    @event.listens_for(engine, "checkin")
    def note(_: Any, record: Any) -> None:
        record.info["used_at"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def check(connection: Any, record: Any, _: Any) -> None:
        used_at = record.info.pop("used_at", None)
        if used_at is None or time.monotonic() - used_at < _FRESH_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error


def _careful(connection: Any, _: Any) -> None:
    """Sync committed rows to disk; let readers and a writer run at once."""
    cursor = connection.cursor()
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        f"busy_timeout = {int(_BUSY_S * 1000)}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def hold_nothing_up(engine: Engine, seconds: float) -> None:
    """Let the server end our idle transactions, for example if this process was paused.

    Others wait for the rows that such a transaction has locked.
    """

    @event.listens_for(engine, "connect")
    def limit(connection: Any, _: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET idle_in_transaction_session_timeout = {int(seconds * 1000)}")
        connection.commit()

    engine.dispose()  # earlier connections


def upgrade(engine: Engine) -> None:
    """Run the missing migrations.

    Raises:
        MonitorError: the database has migrations unknown to this version.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    scripts = ScriptDirectory.from_config(config)
    known_revisions = {script.revision for script in scripts.walk_revisions()}
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":  # one process at a time
            connection.execute(text("SELECT pg_advisory_xact_lock(7261634)"))
        current = MigrationContext.configure(connection).get_current_heads()
        if not known_revisions.issuperset(current):
            if _may_be_used(connection, known_revisions):
                return
            raise MonitorError(
                "the store was made by a later version of Paceline; install that one, or restore a "
                "backup"
            )
        if set(current) == set(scripts.get_heads()):
            return
        if engine.dialect.name == "sqlite":  # all or nothing; its driver begins none
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.execute(delete(revisions))
        rows = [
            {"revision": script.revision, "additive": getattr(script.module, "additive", False)}
            for script in scripts.walk_revisions()
        ]
        connection.execute(insert(revisions), rows)


def _may_be_used(connection: Connection, known_revisions: Set[str]) -> bool:
    """Whether a later version has only added to the tables."""
    if not inspect(connection).has_table(revisions.name):
        return False
    rows = connection.execute(select(revisions.c.revision, revisions.c.additive)).all()
    later = [additive for revision, additive in rows if revision not in known_revisions]
    if not later or not all(later):
        return False
    log(logging.WARNING, "store of a later version", reason="it has only added to the tables")
    return True
