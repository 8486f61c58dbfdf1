"""A profiler's SQLite database, opened only to be read. Its content is not trusted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from paceline.errors import TraceError

if TYPE_CHECKING:
    from sqlite3 import Connection

_MAGIC = b"SQLite format 3\0"


def is_sqlite(path: Path) -> bool:
    """Whether the file begins like an SQLite database."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


class SqliteFile:
    """A database, for queries of its content; errors of SQLite name the file."""

    def __init__(self, path: Path, what_it_is_not: str, advice: str) -> None:
        """Open it.

        Args:
            path: the file.
            what_it_is_not: words about a file that cannot be read: "no export of Nsight Systems".
            advice: what to do about such a file.

        Raises:
            TraceError: SQLite cannot read the file.
        """
        self.path, self._not, self._advice = path, what_it_is_not, advice
        #: Table -> its columns. Views are left out, since they may select missing tables.
        self.columns: dict[str, set[str]] = {
            table: {str(row[1]) for row in self.rows(f'pragma table_info("{table}")')}
            for (table,) in self.rows("select name from sqlite_master where type = 'table'")
            if isinstance(table, str) and table.replace("_", "").isalnum()
        }

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a query.

        Raises:
            TraceError: SQLite cannot read the file.
        """
        import sqlite3

        try:
            with closing(self._connect()) as connection:
                yield from connection.execute(query, values)
        except (sqlite3.Error, ValueError, OverflowError, TypeError) as error:
            raise TraceError(
                f"{self.path} is {self._not}, or damaged ({error}); {self._advice}"
            ) from None

    def _connect(self) -> Connection:
        import sqlite3

        # immutable: nothing is written beside the file, and no lock is taken.
        where = f"file:{quote(str(self.path.absolute()))}?mode=ro&immutable=1"
        connection = sqlite3.connect(where, uri=True)
        connection.text_factory = lambda text: text.decode("utf-8", errors="replace")
        return connection


def whole_column(column: str, columns: set[str]) -> str:
    """SQL of a column as a whole number; -1 if it is missing."""
    return f'ifnull(cast("{column}" as int), -1)' if column in columns else "-1"
