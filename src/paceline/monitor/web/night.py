"""Help for the person on call on a job's page: silence, runbook, commands to drain a host."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.hosts.cordon import FORMATS
from paceline.monitor.levels import LevelChanges
from paceline.monitor.rank_groups import hosts_of

Row = Mapping[str, Any]
#: With more hosts, no single host is at fault.
_MAX_HOSTS = 4


@dataclass(frozen=True)
class AlertView:
    """A firing alert on the job's page.

    Attributes:
        row: row of the store.
        runbook: URL, or "".
        silence: its longest active silence; None if not silenced.
    """

    row: Row
    runbook: str
    silence: Row | None


def alert_views(
    alerts: Sequence[Row], silences: Sequence[Row], job: Row, runbook: Any
) -> list[AlertView]:
    """A job's firing alerts.

    Args:
        alerts: rows of the store.
        silences: active silences of all jobs.
        job: its row.
        runbook: cause -> URL or "".
    """
    return [
        AlertView(
            alert,
            runbook(alert["cause"]),
            silence_of(alert["rule"], job["name"], job["project"], silences),
        )
        for alert in alerts
    ]


def with_silences(rows: Sequence[Row], silences: Sequence[Row]) -> list[Row]:
    """Alerts of several jobs with ``silence``; None for alerts that do not fire."""
    return [
        {
            **row,
            "silence": silence_of(row["rule"], row["job"], row["project"], silences)
            if row["status"] == "firing"
            else None,
        }
        for row in rows
    ]


def silence_of(rule: str, job: str, project: str, silences: Sequence[Row]) -> Row | None:
    """The longest of the active silences that cover an alert of a job; None without one."""
    return max(
        (silence for silence in silences if _covers(silence, rule, job, project)),
        key=lambda silence: silence["until"],
        default=None,
    )


def cordon_commands(job: Row, changes: LevelChanges, meta: object) -> list[str]:
    """Commands that take the hosts of a current fail-slow out of service; empty without one.

    Args:
        job: row of the job, whose labels name the scheduler.
        changes: changes of its level.
        meta: data pushed with its latest trace, including the hosts of its ranks.
    """
    onset = changes.going_on(job, settled=True)
    forms = [name for name in ("slurm", "kubernetes") if _has(job["labels"], name)]
    if onset is None or not onset["ranks"] or not forms:
        return []
    known = hosts_of(meta)
    hosts = sorted({known[rank][0] for rank in onset["ranks"] if rank in known} - {""})
    if len(hosts) > _MAX_HOSTS:
        return []
    reason = f"{job['name']} slow since step {onset['since_step']}"
    return [FORMATS[forms[0]](host, reason) for host in hosts]


def _has(labels: Mapping[str, Any], scheduler: str) -> bool:
    names = {"slurm": ("slurm_job",), "kubernetes": ("kubernetes_job", "namespace")}[scheduler]
    return any(name in labels for name in names)


def _covers(silence: Row, rule: str, job: str, project: str) -> bool:
    return silence["project"] in ("*", project) and all(
        pattern is None or fnmatch.fnmatchcase(name, pattern)
        for name, pattern in ((rule, silence["rule"]), (job, silence["job"]))
    )
