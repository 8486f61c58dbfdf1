"""Groups of alerts with one cause on one host, as a slow host affects many jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

#: Groups of at least this many alerts are one card.
LEAST = 3


def grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """Group firing alerts by rule, cause and host; other alerts stay single.

    Alerts without a place are grouped by cause. A place without a host stays single, as rank 5
    differs between jobs.

    Groups are ordered by their first alert.
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
    """The alerts on the same card as this one."""
    return [row for row in rows if _key(row) == _key(alert)]


def _key(row: Row) -> object:
    hosts = row["hosts"]
    shares = hosts or (row["cause"] and not row["place"])
    return (row["rule"], row["cause"], hosts) if shares and row["status"] == "firing" else row["id"]
