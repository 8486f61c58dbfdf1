"""Lists of a study's page: the jobs that lose most, and hosts that are slow in several jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from paceline.report.page.markup import escape, foreign, table
from paceline.results.words.names import cause_name

#: Hosts of the list.
_HOSTS = 20


def worst(rows: Sequence[Mapping[str, Any]], address: str) -> str:
    """The ten straggling jobs that lose most, with links to their traces."""
    if not rows:
        return "<p>No job is straggling.</p>"
    cells = [
        (
            _linked(row["name"], link(row["path"], address)),
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


def _linked(name: str, address: str) -> str:
    return f'<a href="{escape(address)}">{foreign(name)}</a>' if address else foreign(name)


def link(path: str, study: str) -> str:
    """Where the page finds a trace; "" where a browser cannot open it.

    Args:
        path: of the trace, as it was given: a relative one begins in the working folder.
        study: folder or address of the study, in which the page is.
    """
    if path.startswith(("http://", "https://")):
        return quote(path, safe="/:?&=%~+@,;")
    if "://" in path or "://" in study or not Path(path).exists():
        return ""
    return quote(os.path.relpath(path, study))


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
