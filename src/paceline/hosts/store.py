"""Results of validations, per host, in an SQLite file that several jobs write to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from paceline.errors import OutputError, StateError
from paceline.hosts.result import Result

#: ``PRAGMA application_id`` ("Pchs") and ``user_version``.
_APPLICATION, VERSION = 0x50636873, 1
_COLUMNS = "at_s, run, host, gpu, device, test, seconds, ratio, peers"
_TABLE = """
CREATE TABLE results (
    at_s REAL NOT NULL, run TEXT NOT NULL, host TEXT NOT NULL, gpu INTEGER NOT NULL,
    device TEXT NOT NULL, test TEXT NOT NULL, seconds REAL NOT NULL, ratio REAL NOT NULL,
    peers INTEGER NOT NULL)
"""
#: Another job may be writing.
_TIMEOUT_S = 30.0


class HostStore:
    """The file.

    Args:
        path: the file; created if it is missing.
        must_exist: do not create it.

    Raises:
        StateError: it is no such file, or of another version.
        OutputError: it cannot be opened, or is missing.
    """

    def __init__(self, path: Path, *, must_exist: bool = False) -> None:
        self.path = path
        if must_exist and not path.exists():
            raise OutputError(f"{path} does not exist: validations have not written it yet")
        with self._open() as connection:
            self._prepare(connection)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are kept together."""
        try:
            with closing(sqlite3.connect(self.path, timeout=_TIMEOUT_S)) as connection, connection:
                yield connection
        except sqlite3.DatabaseError as error:
            if "not a database" in str(error):
                raise StateError(f"{self.path} is no file of host results") from None
            raise OutputError(f"{self.path}: {error}") from None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if not tables:
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute(_TABLE)
            connection.execute("CREATE INDEX results_of_host ON results (host, at_s)")
        elif application != _APPLICATION:
            raise StateError(f"{self.path} is no file of host results")
        elif version != VERSION:
            raise StateError(
                f"{self.path} has version {version}, this Paceline knows {VERSION}: update it, or "
                "give another file"
            )

    @property
    def no_results(self) -> str:
        """A sentence for a file without results."""
        return (
            f"{self.path} has no results yet; paceline validate --store {self.path} adds some, "
            "and so does a validator in a job (docs/validate.md)"
        )

    def add(self, results: Iterable[Result]) -> None:
        """Store results."""
        rows = [
            (r.at_s, r.run, r.host, r.gpu, r.device, r.test, r.seconds, r.ratio, r.peers)
            for r in results
        ]
        with self._open() as connection:
            connection.executemany(
                f"INSERT INTO results ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)", rows
            )

    def results(self, host: str | None = None) -> list[Result]:
        """Results of all hosts, or of one, in the order of time."""
        where, values = ("", ()) if host is None else ("WHERE host = ?", (host,))
        with self._open() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM results {where} ORDER BY at_s, rowid", values
            ).fetchall()
        return [Result(*row) for row in rows]

    def forget(self, host: str) -> int:
        """Delete a host's results, as after a repair; returns their number."""
        with self._open() as connection:
            return connection.execute("DELETE FROM results WHERE host = ?", (host,)).rowcount
