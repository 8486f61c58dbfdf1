"""Copy all rows of a store to an empty one of either kind, for backups and moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Engine, Integer, func, insert, select, text

from paceline.errors import MonitorError
from paceline.monitor.store.tables import metadata, revisions, uploads

#: Clients restart unfinished uploads, whose bytes are not in a backup.
LEFT_OUT = (uploads.name, revisions.name)
_AT_A_TIME = 500


def read_rows(engine: Engine) -> Iterator[tuple[str, dict[str, Any]]]:
    """(table, row) of all tables in one snapshot, parents first."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        else:  # Python's driver begins no transaction for reading
            connection.exec_driver_sql("BEGIN")
        for table in metadata.sorted_tables:
            if table.name not in LEFT_OUT:
                rows = connection.execution_options(yield_per=_AT_A_TIME).execute(select(table))
                for row in rows.mappings():
                    yield table.name, dict(row)


def write_rows(engine: Engine, rows: Iterable[tuple[str, dict[str, Any]]]) -> int:
    """Insert the rows of :func:`read_rows` into empty tables, all or none.

    Returns:
        the number of rows.

    Raises:
        MonitorError: a table is not empty, or a row is of a later version.
    """
    n_rows, waiting, current = 0, list[dict[str, Any]](), ""
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            if table is revisions:
                continue
            if connection.execute(select(func.count()).select_from(table)).scalar_one():
                raise MonitorError(
                    f"the store is not empty: it has {table.name}; restore elsewhere"
                )
        for name, row in rows:
            if waiting and (name != current or len(waiting) == _AT_A_TIME):
                connection.execute(insert(metadata.tables[current]), waiting)
                waiting = []
            current = name
            waiting.append(_check(name, row))
            n_rows += 1
        if waiting:
            connection.execute(insert(metadata.tables[current]), waiting)
        if engine.dialect.name == "postgresql":
            _set_sequences(connection)
    return n_rows


def _check(name: str, row: dict[str, Any]) -> dict[str, Any]:
    table = metadata.tables.get(name)
    if table is None or not set(row) <= set(table.c.keys()):
        raise MonitorError("the backup was made by a later version of Paceline; install that")
    return row


def _set_sequences(connection: Any) -> None:
    """Let PostgreSQL continue numbering after the rows."""
    for table in metadata.sorted_tables:
        if "id" in table.c and isinstance(table.c["id"].type, Integer):  # ids of uploads are texts
            connection.execute(
                text(
                    f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), "
                    f"COALESCE((SELECT MAX(id) FROM {table.name}), 0) + 1, false)"
                )
            )
