"""The worker whose computes make some steps longer than the others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.finding import Finding
from paceline.graph import Durations, Measured
from paceline.graph.computes import compute_s
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Least share of the steps' extra time that the worker's extra compute time explains.
MIN_PART = 0.5

#: The worker's extra compute time must be this many times any other worker's.
MIN_TIMES_NEXT = 4.0

#: Both must hold in MIN_STEP_SHARE of the slow steps and in at least MIN_STEPS. In a single step,
#: some worker always has the longest pause.
MIN_STEPS, MIN_STEP_SHARE = 2, 0.75


@dataclass(frozen=True)
class SlowWorker:
    """The one worker that computes longer in some steps.

    Attributes:
        dp, stage: its place.
        times: its typical compute seconds in these steps over those in the other steps.
        others: the same ratio of the other worker that grows most.
        chance: chance that pauses of random workers fall on one worker in as many of these steps.
    """

    dp: int
    stage: int
    times: float
    others: float
    chance: float


def with_worker(
    finding: Finding, measured: Measured, result: WhatIf, known: Mask | None = None
) -> Finding:
    """The finding about longer steps, with the worker that computes longer in them.

    The finding stays unchanged if no single worker stands out, or if it names no steps.

    Args:
        finding: the finding.
        measured: the trace.
        result: its analysis.
        known: [step] mask of steps with a known cause, which are left out; None: there are none.
    """
    slow = longer_steps(finding, result.steps)
    if slow is None:
        return finding
    durations, traced_s = measured.durations, result.traced_s
    if known is not None and known.any():
        durations = durations.of_steps(np.flatnonzero(~known))
        slow, traced_s = slow[~known], traced_s[~known]
    if not 0 < slow.sum() < len(slow):
        return finding
    typical_s = [float(np.median(traced_s[steps])) for steps in (slow, ~slow)]
    who = slow_worker(durations, slow, typical_s[0] - typical_s[1])
    if who is None:
        return finding
    name = measured.graph.worker_name(who.dp, who.stage)
    return replace(
        finding,
        text=f"{finding.text}; worker {name} computes {who.times:.2f}x as long as in its other "
        f"steps, no other more than {max(who.others, 1.0):.2f}x",
        where={**finding.where, "workers": [[who.dp, who.stage]]},
        evidence={
            **finding.evidence,
            "compute_then_over_else": who.times,
            "others_then_over_else": who.others,
            "p_value_worker": who.chance,
        },
        confidence=(1 - who.chance) * finding.confidence,
        ambiguous="the worker may have more work in these steps (longer sequences)",
    )


def longer_steps(finding: Finding, steps: npt.NDArray[np.int64]) -> Mask | None:
    """[step] mask of the steps that a finding calls longer; None if it names none."""
    if "steps" in finding.evidence:
        return np.isin(steps, finding.evidence["steps"])
    jump = finding.evidence.get("step")
    if jump is None:
        return None
    behind: Mask = steps >= jump
    return behind if finding.evidence["change"] > 0 else ~behind


def slow_worker(durations: Durations, slow: Mask, longer_s: float) -> SlowWorker | None:
    """The worker whose computes make steps longer; None if no single worker does.

    The measurement does not show the reason: the worker may be slow or have more work.

    Args:
        durations: as measured.
        slow: [step] the longer steps.
        longer_s: typical extra seconds of a longer step.
    """
    graph = durations.graph
    if slow.sum() < MIN_STEPS or slow.all() or graph.n_dp * graph.n_pp == 1:
        return None
    seconds = compute_s(durations)  # [stage, dp, step]
    usual = np.median(seconds[..., ~slow], axis=2)
    excess = seconds[..., slow] - usual[..., None]
    typical = np.median(excess, axis=2)
    stage, dp = (int(i) for i in np.unravel_index(int(typical.argmax()), typical.shape))
    others = np.ones(typical.shape, dtype=bool)
    others[stage, dp] = False
    own = float(typical[stage, dp])
    if own < MIN_PART * longer_s or own < MIN_TIMES_NEXT * float(typical[others].max()):
        return None
    on_top = excess[stage, dp] >= MIN_PART * longer_s
    on_top &= excess[stage, dp] > excess[others].max(axis=0)
    if on_top.sum() < max(MIN_STEPS, MIN_STEP_SHARE * slow.sum()):
        return None
    times = 1 + typical / np.maximum(usual, 1e-12)
    n = typical.size
    chance = min(1.0, n * robust.chance_of_count(int(on_top.sum()), int(slow.sum()), 1 / n))
    return SlowWorker(dp, stage, float(times[stage, dp]), float(times[others].max()), chance)


def of_changing_workers(durations: Durations, slow: Mask, longer_s: float) -> bool:
    """Whether each longer step has a longer worker, but not the same one.

    Such steps are no sort of their own: pauses fall on one worker or another.

    Args:
        durations: as measured.
        slow: [step] the longer steps.
        longer_s: typical extra seconds of a longer step.
    """
    if durations.graph.n_dp * durations.graph.n_pp == 1:
        return False
    seconds = compute_s(durations)  # [stage, dp, step]
    excess = seconds[..., slow] - np.median(seconds[..., ~slow], axis=2)[..., None]
    explains = (excess >= MIN_PART * longer_s).reshape(-1, int(slow.sum()))  # [worker, slow step]
    least = max(MIN_STEPS, MIN_STEP_SHARE * slow.sum())
    return bool(explains.any(axis=0).sum() >= least > explains.sum(axis=1).max())
