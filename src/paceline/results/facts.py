"""Single facts of a document for sessions and for the fleet's figures."""

from __future__ import annotations

import math
from typing import Any

from paceline.results.document import JobReport

#: Most steps of one job in the figure of all steps.
_MAX_STEPS = 25


def main_cause(report: JobReport) -> str:
    """The first cause inside S, otherwise the first outside it; ``healthy`` without causes."""
    findings = sorted(report.diagnosis.findings, key=lambda finding: finding.share is None)
    return findings[0].cause if findings else "healthy"


def best_gain(report: JobReport) -> float | None:
    """The largest gain of a remedy that holds under the diagnosis; None without remedies."""
    return max((r.gain for r in report.remedies if not r.is_conditional), default=None)


def fleet_facts(report: JobReport, correlation: float) -> dict[str, Any]:
    """Fields of a session for the fleet's figures, in the form of JSON.

    ``m_w`` and ``m_s`` are None if there is nothing to explain. ``waste_by_kind`` is 1 - 1/S of
    each kind alone: Eq. 3 of the what-if paper for its Eq. 2. ``steps`` has slowdowns over the
    job's for at most 25 steps, at even ranks. ``correlation`` is the correlation of forward and
    backward. ``n_stages`` is the number of stages.
    """
    by_step = sorted(s for s in report.by_step.values() if math.isfinite(s))
    if len(by_step) > _MAX_STEPS:
        last = len(by_step) - 1
        by_step = [by_step[round(i * last / (_MAX_STEPS - 1))] for i in range(_MAX_STEPS)]
    kinds = {kind: s for kind, s in report.by_kind.items() if math.isfinite(s) and s}
    has_slowdown = math.isfinite(report.slowdown) and report.slowdown > 0
    return {
        "m_w": report.m_w,
        "m_s": report.m_s,
        "n_stages": report.job.pp_size,
        "waste_by_kind": {kind: round(1 - 1 / s, 6) for kind, s in kinds.items()},
        "steps": [round(s / report.slowdown, 6) for s in by_step] if has_slowdown else [],
        "correlation": round(correlation, 6) if math.isfinite(correlation) else None,
    }
