"""Alerts of one cause on one host, together: a slow host makes many jobs fire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

#: From this many alerts on a group is one card.
LEAST = 3


def grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """Alerts that fire by the same rule, for the same cause on the same host; others alone.

    Those that have no place are together by their cause. A place without a host is alone: rank 5
    of one job is not that of another.

    Groups stand where their first alert does.
    """
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(_key(row), []).append(row)
    return [
        part
        for group in groups.values()
        for part in ([group] if len(group) >= LEAST else [[row] for row in group])
    ]


def group_of(alert: Row, rows: Sequence[Row]) -> list[Row]:
    """Those of some alerts that stand on one card with this one."""
    return [row for row in rows if _key(row) == _key(alert)]


def _key(row: Row) -> object:
    hosts = row["hosts"]
    shares = hosts or (row["cause"] and not row["place"])
    return (row["rule"], row["cause"], hosts) if shares and row["status"] == "firing" else row["id"]
