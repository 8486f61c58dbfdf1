"""Lists of a study's page: jobs with the largest losses, hosts that are slow in several jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.fleet import results
from paceline.report.page.markup import escape, foreign, table
from paceline.results.words.names import cause_name

#: Most hosts in the list.
_HOSTS = 20


def worst(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ten straggling jobs with the largest losses, with links to their results."""
    if not rows:
        return "<p>No job is straggling.</p>"
    cells = [
        (
            f'<a href="{escape(results.name_of(row["key"]))}">{foreign(row["name"])}</a>'
            f"<small>paceline analyze {foreign(row['path'])}</small>",
            escape(cause_name(row["cause"] or "unexplained")),
            foreign(row["remedy_action"] or "–"),
            f"{row['gpu_hours_lost']:,.1f}",
            "–" if row["gpus"] is None else f"{row['gpus']:,}",
            f"{row['slowdown']:.2f}",
        )
        for row in rows
    ]
    head = ("job", "cause", "what to do", "GPU-hours lost", "GPUs", "S")
    return table(head, cells, name="workers", numeric_from=3)


def hosts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Hosts that findings of several jobs name."""
    if not rows:
        return "<p>No host is named by findings of several jobs, or the traces name none.</p>"
    cells = [
        (
            foreign(row["host"]),
            ", ".join(foreign(name) for name in row["names"])
            + (" …" if row["jobs"] > len(row["names"]) else ""),
            f"{row['jobs']:,}",
            f"{row['gpu_hours_lost']:,.1f}",
        )
        for row in rows[:_HOSTS]
    ]
    more = f"<p>{len(rows) - _HOSTS:,} more are in summary.json.</p>" if len(rows) > _HOSTS else ""
    head = ("host", "among them", "jobs", "GPU-hours lost")
    return table(head, cells, name="workers", numeric_from=2) + more
