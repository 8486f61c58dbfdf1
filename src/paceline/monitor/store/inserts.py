"""Inserts that keep an existing row, in both SQL dialects."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_new(engine: Engine, table: Table) -> Any:
    """An insert that leaves an existing row as it is."""
    dialect: Any = postgresql if engine.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing()
