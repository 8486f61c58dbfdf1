"""What the figures draw: results brought into the form the page's scripts take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.diagnose import Diagnosis
from paceline.report.page.pack import rounded, slowdowns
from paceline.whatif import WhatIf

#: (dp, pp) -> host, or (host, gpu).
Hosts = Mapping[tuple[int, int], "str | tuple[str, str]"]

#: Values of the per-step heatmap that a page holds at most (16 bits each, so about 1 MB).
MAX_STEP_VALUES = 400_000


def figure_data(result: WhatIf, hosts: Hosts | None) -> dict[str, Any]:
    """Everything but the timeline and the scatter."""
    n_pp, n_dp = result.by_worker.shape
    return {
        "steps": result.steps.tolist(),
        "slowdown": float(result.slowdown),
        "by_step": rounded(np.array([result.by_step[step] for step in result.steps.tolist()])),
        "traced_s": rounded(result.traced_s),
        "simulated_s": rounded(result.simulated_s),
        "ideal_s": rounded(result.ideal_s),
        "n_pp": n_pp,
        "n_dp": n_dp,
        "workers": slowdowns(result.by_worker),
        "workers_by_step": _by_step(result),
        "hosts": _hosts(hosts, n_pp, n_dp),
    }


def _by_step(result: WhatIf) -> dict[str, Any]:
    """Slowdowns of every worker in every step, or in the steps there is room for."""
    n_steps, room = len(result.steps), max(1, MAX_STEP_VALUES // result.by_worker.size)
    if n_steps <= room:
        shown = np.arange(n_steps)
    else:
        worst = np.argsort(-result.simulated_s / result.ideal_s, kind="stable")[: (room + 1) // 2]
        spread = np.linspace(0, n_steps - 1, room - len(worst), dtype=np.int64)
        shown = np.unique(np.concatenate([worst, spread]))
    return {"index": shown.tolist(), **slowdowns(result.by_worker_by_step[shown])}


def blamed(diagnosis: Diagnosis) -> list[list[int]]:
    """Workers (dp, pp) that findings blame."""
    found = (f.where.get("workers") or [] for f in diagnosis.findings if f.cause == "worker")
    return [[int(dp), int(pp)] for workers in found for dp, pp in workers]


def host_name(hosts: Hosts | None, dp: int, pp: int) -> str:
    """``node-7, GPU 3``; empty where it is not known."""
    host = (hosts or {}).get((dp, pp), "")
    if isinstance(host, str):
        return host
    name, gpu = host
    return f"{name}, GPU {gpu}" if gpu else name


def _hosts(hosts: Hosts | None, n_pp: int, n_dp: int) -> list[str] | None:
    if not hosts:
        return None
    return [host_name(hosts, dp, pp) for pp in range(n_pp) for dp in range(n_dp)]
