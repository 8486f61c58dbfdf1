"""A lock that allows one service per store, independent of the data folder."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from paceline.errors import MonitorError, OutputError

#: PostgreSQL releases the lock of a killed service after a moment.
_PATIENCE_S = 3.0


class StoreLock:
    """A lock held until closed: a file beside SQLite, or a separate PostgreSQL connection.

    Args:
        engine: engine of the store.
        several: instances of one store share the lock.
    """

    def __init__(self, engine: Engine, *, several: bool = False) -> None:
        """Take the lock.

        Raises:
            MonitorError: another service has the lock, or the store cannot be reached.
            OutputError: the file beside SQLite cannot be written.
        """
        self._public_url = engine.url.set(query={}).render_as_string(hide_password=True)
        self._file, self._engine = -1, engine
        self._function = f"pg_try_advisory_lock{'_shared' if several else ''}"
        self._connection: Connection | None = None
        if engine.dialect.name == "sqlite":
            if engine.url.database not in (None, "", ":memory:"):
                path = Path(os.path.realpath(f"{engine.url.database}.lock"))
                self._file = lock_file(path, self._public_url)
            return
        self._engine = create_engine(engine.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while not self._take():
                if time.monotonic() > deadline:
                    raise _in_use(self._public_url)
                time.sleep(0.1)
        except SQLAlchemyError as error:
            reason = str(error).strip().partition("\n")[0][:200]
            raise MonitorError(f"the store {self._public_url} cannot be locked: {reason}") from None

    def keep(self) -> None:
        """Check the connection; take the lock again if it was lost.

        Raises:
            MonitorError: another service has taken the lock meanwhile.
            SQLAlchemyError: the database is unreachable; try again later.
        """
        if self._connection is not None:
            try:
                self._connection.execute(text("SELECT 1"))
                return
            except SQLAlchemyError:
                self._disconnect()
        if self._file < 0 and self._engine.dialect.name == "postgresql" and not self._take():
            raise _in_use(self._public_url)

    def close(self) -> None:
        """Release the lock."""
        self._disconnect()
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _take(self) -> bool:
        connection = self._engine.connect()
        try:
            # The lock of a lost host ends within a minute instead of two hours.
            for name, value in (("idle", 30), ("interval", 10), ("count", 3)):
                connection.execute(text(f"SET tcp_keepalives_{name} = {value}"))
            # Per schema, as several monitors may share a database.
            query = text(f"SELECT {self._function}(7261635, hashtext(current_schema()))")
            if connection.execute(query).scalar():
                self._connection = connection
                return True
        finally:
            if self._connection is not connection:
                connection.close()
        return False

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()  # even if broken; closes without notifying the server
            connection.close()


def lock_file(path: Path, resource: str) -> int:
    """Descriptor of a locked file, which is created if missing; the caller closes it.

    Raises:
        MonitorError: another service uses ``what``.
        OutputError: the file cannot be written.
    """
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        raise _in_use(resource) from None
    return number


def _in_use(resource: str) -> MonitorError:
    return MonitorError(f"{resource} is in use by another `paceline serve`; stop it")
