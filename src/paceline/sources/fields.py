"""Values of an event with the right types; files of other tools cannot be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.errors import TraceError
from paceline.sources.imported import MAX_NUMBER


def whole(values: Mapping[str, Any], name: str, where: str) -> int:
    """The whole number ``name`` of an event, at least 0; text and a float like 3.0 are accepted.

    Raises:
        TraceError: it is missing or no such number.
    """
    value = optional_whole(values.get(name))
    if value is None:
        raise TraceError(
            f"{where}: {name} should be a whole number from 0, not {_value_text(values, name)}"
        )
    return value


def optional_whole(value: Any) -> int | None:
    """A value as a whole number from 0, as :func:`whole` accepts it; None for any other value."""
    if type(value) is int:
        return value if 0 <= value <= MAX_NUMBER else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_NUMBER:
        return None
    return value


def number(values: Mapping[str, Any], name: str, where: str) -> float:
    """The finite number ``name`` of an event; text is accepted.

    Raises:
        TraceError: it is missing or no such number.
    """
    value = values.get(name)
    if isinstance(value, str):  # older profilers write times as text
        try:
            value = float(value)
        except ValueError:
            value = None
    # A whole number may be too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise TraceError(f"{where}: {name} should be a number, not {_value_text(values, name)}")
    return float(value)


def mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object ``name`` of an event; empty if it is missing or no object."""
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _value_text(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return "missing"
    value = values[name]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)[:40]
