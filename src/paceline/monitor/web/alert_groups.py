"""Alerts of one cause at one place, together: a slow host makes many jobs fire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

#: From this many alerts on a group is one card.
LEAST = 3


def grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """Alerts that fire by the same rule, for the same cause at the same place; others alone.

    Groups stand where their first alert does.
    """
    groups: dict[object, list[Row]] = {}
    for row in rows:
        shared = row["rule"], row["cause"], row["place"]
        alone = row["status"] != "firing" or not (row["cause"] or row["place"])
        groups.setdefault(row["id"] if alone else shared, []).append(row)
    return [
        part
        for group in groups.values()
        for part in ([group] if len(group) >= LEAST else [[row] for row in group])
    ]
