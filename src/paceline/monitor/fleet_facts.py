"""What the fleet's figures need of a session's result: nobody reads 2,000 results for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Steps of one job in the figure of all steps: more say nothing new.
_MAX_STEPS = 25


def facts_of(result: Mapping[str, Any], correlation: float) -> dict[str, Any]:
    """The facts of a ``result.json``, as JSON knows them.

    ``m_w`` and ``m_s`` (None: nothing to explain), ``n_stages``, ``waste_by_kind`` (1 - 1/S of each
    kind alone: Eq. 3 of the what-if paper for its Eq. 2), ``steps`` (slowdowns of at most 25 steps,
    evenly out of the sorted ones, over the job's) and ``correlation`` (of forward and backward).
    """
    by_step = sorted(s for s in result["by_step"].values() if s is not None)
    if len(by_step) > _MAX_STEPS:
        last = len(by_step) - 1
        by_step = [by_step[round(i * last / (_MAX_STEPS - 1))] for i in range(_MAX_STEPS)]
    kinds = {kind: round(1 - 1 / s, 6) for kind, s in result["by_kind"].items() if s}
    return {
        "m_w": result["m_w"],
        "m_s": result["m_s"],
        "n_stages": int(result["job"]["pp_size"]),
        "waste_by_kind": kinds,
        "steps": [round(s / result["slowdown"], 6) for s in by_step] if result["slowdown"] else [],
        "correlation": round(correlation, 6) if math.isfinite(correlation) else None,
    }
