"""Rows that wait for a time of their own, by a clock that may be set back."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement

#: A row due later than in this time was written while the clock was ahead: it is due now. Nothing
#: waits for longer: not a retry, a repetition, nor the wait for others of a rule.
MOST_AHEAD_S = 3600.0


def is_due(next_at: float, now: float) -> bool:
    """Whether a row's time has come."""
    return not now < next_at <= now + MOST_AHEAD_S


def due(column: ColumnElement[Any], now: float) -> ColumnElement[bool]:
    """The same as a condition on a column; without a time a row is due."""
    return column.is_(None) | (column <= now) | (column > now + MOST_AHEAD_S)
