"""Rows with a due time, by a clock that may be set back."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement

#: The longest wait of a retry, a repetition or a rule. A row due later was written while the clock
#: was ahead, so it is due now.
MOST_AHEAD_S = 3600.0


def is_due(next_at: float, now: float) -> bool:
    """Whether a row is due."""
    return not now < next_at <= now + MOST_AHEAD_S


def due(column: ColumnElement[Any], now: float) -> ColumnElement[bool]:
    """The same as an SQL condition on a column; a row without a time is due."""
    return column.is_(None) | (column <= now) | (column > now + MOST_AHEAD_S)
