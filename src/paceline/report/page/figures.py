"""Data of the figures: results in the form for the page's scripts."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.diagnose import Diagnosis
from paceline.report.page.pack import round_values, slowdowns
from paceline.results.document import JobReport
from paceline.results.keys import Hosts
from paceline.trace import Job
from paceline.trace.job import device_name

#: Up to this many replicas, the two heatmaps fit beside each other.
MAX_SIDE_BY_SIDE = 10

#: Most values of the per-step heatmap in a page (16 bits each, about 1 MB).
MAX_STEP_VALUES = 400_000


def figure_data(report: JobReport) -> dict[str, Any]:
    """Data of all figures except the timeline and the scatter."""
    n_pp, n_dp = report.by_worker.shape
    return {
        "steps": list(report.steps),
        "slowdown": float(report.slowdown),
        "by_step": round_values(np.array([report.by_step[step] for step in report.steps])),
        "traced_s": round_values(report.traced_s),
        "simulated_s": round_values(report.simulated_s),
        "ideal_s": round_values(report.ideal_s),
        "n_pp": n_pp,
        "n_dp": n_dp,
        "workers": slowdowns(report.by_worker),
        "workers_by_step": _by_step(report),
        "hosts": _hosts(report.hosts, n_pp, n_dp),
        "replicas": replica_numbers(report.job),
    }


def replica_numbers(job: Job) -> list[str] | None:
    """Suffix after "dp" in the names of replicas, if it is more than their numbers."""
    if job.peers == 1:
        return None
    return [job.replica_name(r).removeprefix("dp ") for r in range(job.replicas)]


def _by_step(report: JobReport) -> dict[str, Any]:
    """Slowdowns of every worker in every step, or in as many steps as there is room for."""
    n_steps, room = len(report.steps), max(1, MAX_STEP_VALUES // report.by_worker.size)
    if n_steps <= room:
        index = np.arange(n_steps)
    else:
        worst = np.argsort(-report.simulated_s / report.ideal_s, kind="stable")[: (room + 1) // 2]
        spread = np.linspace(0, n_steps - 1, room - len(worst), dtype=np.int64)
        index = np.unique(np.concatenate([worst, spread]))
    return {"index": index.tolist(), **slowdowns(report.workers_by_step[index])}


def blamed_workers(job: Job, diagnosis: Diagnosis) -> list[list[int]]:
    """Workers (replica, pp) that findings blame."""
    worker_lists = (f.where.get("workers") or [] for f in diagnosis.findings if f.cause == "worker")
    return [list(job.worker_at(place)) for workers in worker_lists for place in workers]


def host_name(hosts: Hosts, replica: int, pp: int) -> str:
    """``node-7, GPU 3``; empty if unknown."""
    return device_name(*hosts.get((replica, pp), ("", "")))


def _hosts(hosts: Hosts, n_pp: int, n_dp: int) -> list[str] | None:
    if not hosts:
        return None
    return [host_name(hosts, dp, pp) for pp in range(n_pp) for dp in range(n_dp)]
