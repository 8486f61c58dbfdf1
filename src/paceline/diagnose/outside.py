"""Causes outside S: launch delays, and steps that take longer than others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose.confidence import of_few_waits
from paceline.diagnose.data_waits import (
    data_waits,
    late_workers,
    lost_beside_s,
    with_data_waits,
)
from paceline.diagnose.delayed_ops import DelayedOps, alike_s, delayed_ops
from paceline.diagnose.drift import MIN_STEPS, drift_left
from paceline.diagnose.finding import NOWHERE, Finding
from paceline.diagnose.late_starts import LateStarts
from paceline.diagnose.long_waits import ALL_STEPS
from paceline.diagnose.passing import passing_worker
from paceline.diagnose.slow_steps import longer_steps, of_changing_workers, with_worker
from paceline.graph import Measured
from paceline.trace import OpKind
from paceline.trace.kinds import PASSES
from paceline.units import count, seconds
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Least share of the step that launch delays must cost (equal to the healthy limit of S).
MIN_DELAY_SHARE = 0.03

#: Largest confidence in a delay at the start of steps that may be overlap of steps.
MAY_OVERLAP = 0.6

#: A step is odd from ODD_TIMES the typical step time on. At most ODD_SHARE of the steps are odd.
ODD_TIMES, ODD_SHARE = 1.3, 0.25

#: Least cost of odd steps, as a share of the step. Less is noise.
MIN_ODD_COST = 0.005

#: Two causes are one if this share of the second one's time is time of the first one, too.
AGREEING = 0.75

#: Odd steps that only wait are told so.
WAITING = "wait (checkpoint?)"

#: The other explanation of such a delay.
OVERLAP = (
    "some ranks still run the step before when others begin the step. Only profiled steps without "
    "a gap tell these apart"
)


def outside_causes(
    measured: Measured, result: WhatIf, resamples: Array, inside: Sequence[Finding] = ()
) -> list[Finding]:
    """Findings outside S by share of the step, largest first.

    If ``inside`` (the findings inside S) has only unexplained ones, steps of two lengths may
    explain them. A worker that is slow in half of the steps has no typical duration.

    A change of step times that a finding inside S causes is marked as a part of it.
    """
    unexplained = bool(inside) and all(finding.cause == "unexplained" for finding in inside)
    named = [worker for finding in inside for worker in finding.where.get("workers", ())]
    waits = data_waits(measured, result, resamples)
    delays = _delays(measured, result, resamples, waits)
    drift, known = drift_left(result, resamples, inside)
    longer = [] if drift is None else [with_worker(drift, measured, result, known)]
    others = [_odd_steps(measured, result, resamples)]
    if not longer and others == [None] and (unexplained or not result.straggling):
        modes = _two_modes(measured, result, resamples)
        others = [None if modes is None or _changes(modes, measured, result) else modes]
    longer += [with_worker(f, measured, result) for f in others if f is not None]
    if result.straggling:  # noise makes two lengths, too: keep them only with a worker
        longer = [f for f in longer if f.where or f.id != "two-modes"]
    if not result.straggling and not any(f.where for f in longer):
        passing = passing_worker(measured, result, resamples)
        longer += [passing] if passing and passing.where["workers"][0] not in named else []
    longer = [_as_part(f, inside, result.steps) for f in longer]
    if waits is not None:  # it says all that the finding on the same waits does
        longer = [f for f in longer if f.part_of or not _is_time_of(f, waits.cost_s)]
        longer = [
            replace(f, part_of=waits.id, ambiguous="") if _in_longer(f, waits.cost_s) else f
            for f in longer
        ]
    if delays is not None:
        longer = [
            _with_late(replace(f, part_of=delays.id), delays, measured)
            if not f.part_of and _is_time_of(f, delays.cost_s)
            else f
            for f in longer
        ]
    findings = [*([delays] if delays else []), *longer]
    findings = with_data_waits(findings, waits, measured, result)
    n_steps = len(result.steps)
    findings = [
        replace(f, confidence=of_few_waits(f.cause, f.confidence, n_steps)) for f in findings
    ]
    return sorted(findings, key=lambda f: -f.share_of_step)


def _is_time_of(finding: Finding, cost_s: Array | None) -> bool:
    """Whether most of the finding's time is what a cause costs in these steps beyond its median.

    Args:
        finding: of some steps.
        cost_s: [step] seconds that the cause costs; None: not known.
    """
    if finding.cost_s is None or cost_s is None:
        return False
    beyond_s = np.maximum(cost_s - np.median(cost_s), 0.0)
    shared_s = float(np.minimum(beyond_s, finding.cost_s).sum())
    return shared_s >= AGREEING * float(finding.cost_s.sum())


def _in_longer(finding: Finding, cost_s: Array | None) -> bool:
    """Whether most of the finding's time is what a cause costs in these steps beyond the others.

    Half of the steps may be longer ones, so that the median of all is theirs.
    """
    if finding.part_of or finding.cost_s is None or cost_s is None:
        return False
    others = finding.cost_s == 0
    if not others.any():
        return False
    beyond_s = np.maximum(cost_s - np.median(cost_s[others]), 0.0)
    shared_s = float(np.minimum(beyond_s, finding.cost_s).sum())
    return shared_s >= AGREEING * float(finding.cost_s.sum())


def _changes(modes: Finding, measured: Measured, result: WhatIf) -> bool:
    """Whether each of the slow steps waits for another worker."""
    slow = np.isin(result.steps, modes.evidence["steps"])
    longer_s = modes.evidence["slow_s"] - modes.evidence["fast_s"]
    return of_changing_workers(measured.durations, slow, longer_s)


def _as_part(finding: Finding, inside: Sequence[Finding], steps: Ints) -> Finding:
    """The finding on longer steps, with the id of the finding inside S that causes them.

    The cause is known if it names the same worker, exactly the longer steps, or costs their time.
    """
    workers = finding.where.get("workers", ())
    longer = longer_steps(finding, steps)
    for cause in inside:
        same_worker = any(worker in cause.where.get("workers", ()) for worker in workers)
        named = cause.evidence.get("steps")
        same_steps = (
            isinstance(named, list) and longer is not None and named == steps[longer].tolist()
        )
        same_time = cause.cause != "unexplained" and _is_time_of(finding, cause.cost_s)
        if not finding.part_of and (same_worker or same_steps or same_time):
            return replace(finding, part_of=cause.id)
    return finding


def _with_late(finding: Finding, delays: Finding, measured: Measured) -> Finding:
    """The finding on steps that wait, with the latest worker if it is late in most of them."""
    late = delays.evidence.get("steps", []) if "late_s" in delays.evidence else []
    steps = finding.evidence["steps"] if finding.evidence.get("waits") else []
    n_both = len(set(steps) & set(late))
    if not n_both or n_both < AGREEING * max(len(steps), len(late)):
        return finding
    place = delays.where["workers"][0]
    in_these = f" in {n_both} of them" if n_both < len(steps) else ""
    who = f"for worker {measured.graph.worker_name(*place)}, which begins late{in_these}"
    cost = f"{finding.share_of_step:.1%} of the step (checkpoint, logging?)"
    text = finding.text.replace(WAITING, f"wait {who}, {cost}")
    return replace(finding, text=text, where={"workers": [place]})


def _delays(
    measured: Measured, result: WhatIf, resamples: Array, waits: Finding | None = None
) -> Finding | None:
    """The finding on launch delays; beside ``waits`` if other workers begin late, too."""
    lost_s = result.lost_s
    if float(lost_s.mean()) < MIN_DELAY_SHARE * float(result.simulated_s.mean()):
        return None
    late = late_workers(measured, result, waits)
    beside = waits is not None and late is not None and late.beside_data
    if waits is not None and beside:
        lost_s = lost_beside_s(measured, result, waits)
    of_step = (resamples @ lost_s) / (resamples @ result.lasted_s)
    by_kind = sorted(result.launch_delay.by_kind.items(), key=lambda item: -item[1])
    label, factor = by_kind[0]
    at_start = result.launch_delay.step_start - 1 > 0.5 * (result.launch_slowdown - 1)
    share = float(lost_s.mean() / result.lasted_s.mean())
    sure_s = float(lost_s.mean()) - measured.open_overlap_s
    simulated_s = float(result.simulated_s.mean())
    is_open = sure_s < MIN_DELAY_SHARE * simulated_s
    may_overlap = is_open and (at_start or late is not None)
    confidence = float((of_step >= MIN_DELAY_SHARE / (1 + MIN_DELAY_SHARE)).mean())
    delayed = shared_s = None
    if late is None and not at_start:
        least_s = MIN_DELAY_SHARE * simulated_s
        delayed = delayed_ops(measured, label, least_s)
        shared_s = alike_s(measured, label, least_s) if delayed is None else None
    place: dict[str, Any] = {"group": {"kind": label}}
    if late is not None:
        place["workers"] = [list(worker) for worker in late.workers]
        confidence *= 1 - late.chance
    if delayed is not None:
        place["workers"] = [list(worker) for worker in delayed.workers]
    low, high = (float(x) for x in np.percentile(of_step, (5, 95)))
    return Finding(
        id="launch-delay",
        cause="launch-delay",
        text=f"{share:.1%} of the step passes between operations"
        + (", beside these waits for data, " if beside else ", ")
        + _delayed_place(measured, result, late or delayed, label, at_start, may_overlap)
        + (f", where all workers wait alike ({seconds(shared_s)} a step)" if shared_s else ""),
        share=None,
        share_of_step=share,
        interval=(low, high),
        confidence=min(confidence, MAY_OVERLAP) if may_overlap else confidence,
        where=place,
        evidence={
            "launch_slowdown": result.launch_slowdown,
            "step_start": result.launch_delay.step_start,
            "largest": factor,
            "by_kind": dict(by_kind[:5]),
            "threshold": 1 + MIN_DELAY_SHARE,
            "source": "what-if paper, 6",
            **_late_evidence(late, result),
            **_delayed_evidence(delayed, result),
            **({} if shared_s is None else {"alike_s": shared_s}),
            **({"beside": waits.id} if waits is not None and beside else {}),
        },
        cost_s=lost_s,
        ambiguous=OVERLAP if may_overlap else "",
    )


def _delayed_place(
    measured: Measured,
    result: WhatIf,
    late: LateStarts | DelayedOps | None,
    label: str,
    at_start: bool,
    may_overlap: bool,
) -> str:
    """Where the time between operations passes, in words."""
    if isinstance(late, DelayedOps):
        name, n_others = measured.graph.worker_name(*late.workers[0]), len(late.workers) - 1
        who = f"worker {name}" if not n_others else f"{n_others + 1} workers, most of {name}"
        kind = measured.graph.kind_name(label)
        return (
            f"most of it before {kind} of {who}: {seconds(late.delay_s[0])} (others "
            f"{seconds(late.peers_s)}) in {late.steps.sum()} of {count(len(result.steps), 'step')}"
        )
    if late is not None:
        worst, n_steps = late.workers[0], len(result.steps)
        name, n_others = measured.graph.worker_name(*worst), len(late.workers) - 1
        who = f"worker {name} begins" if not n_others else f"{n_others + 1} workers begin"
        which = f"worker {name} " if n_others else ""
        return (
            f"{_late_share(late, result):.1%} because {who} steps late, "
            f"{which}by {seconds(late.typical_s(worst))} in {late.steps_of(worst).sum()} of "
            f"{count(n_steps, 'step')}"
        )
    if at_start:
        is_guess = measured.data_wait_s is None and not may_overlap
        return f"most of it at the start of steps{' (data loading)' if is_guess else ''}"
    return f"most of it before {measured.graph.kind_name(label)}"


def _late_share(late: LateStarts, result: WhatIf) -> float:
    """Share of the step that late workers cost, at most all that passes between operations."""
    of_all_s = min(float(late.saved_s.mean()), float(result.lost_s.mean()))
    return of_all_s / float(result.lasted_s.mean())


def _delayed_evidence(delayed: DelayedOps | None, result: WhatIf) -> dict[str, Any]:
    """The numbers behind the names of delayed workers, in the order of the workers."""
    if delayed is None:
        return {}
    evidence: dict[str, Any] = {
        "delay_s": list(delayed.delay_s),
        "peers_s": delayed.peers_s,
        "delayed_steps": int(delayed.steps.sum()),
    }
    if delayed.steps.mean() < ALL_STEPS:
        evidence["steps"] = result.steps[delayed.steps].tolist()
    return evidence


def _late_evidence(late: LateStarts | None, result: WhatIf) -> dict[str, Any]:
    """The numbers behind the names of late workers, in the order of the workers."""
    if late is None:
        return {}
    steps = [late.steps_of(worker) for worker in late.workers]
    evidence: dict[str, Any] = {
        "late_s": [late.typical_s(worker) for worker in late.workers],
        "late_steps": [int(late_steps.sum()) for late_steps in steps],
        "late_share": _late_share(late, result),
        "p_value": late.chance,
        "test": "steps with a late worker, binomial",
    }
    if not steps[0].all():
        evidence["steps"] = result.steps[steps[0]].tolist()
    return evidence


def _odd_steps(measured: Measured, result: WhatIf, resamples: Array) -> Finding | None:
    """A few steps that compute or wait much longer: warm-up, checkpoint or evaluation."""
    if len(result.steps) < MIN_STEPS:
        return None
    computes = np.isin(measured.graph.kind, PASSES)
    work = np.zeros(len(result.steps))
    for v, block in enumerate(measured.durations.blocks):
        work += block[computes[measured.graph.variant_ops(v)]].sum(axis=(0, 2))
    # Others begin the next step and wait there, too. If both steps are traced, one wait is one.
    overlap_s = np.where(np.isin(result.steps - 1, result.steps), 0.0, result.overlap_s)
    idle = result.lasted_s - result.simulated_s + overlap_s
    typical = float(np.median(result.lasted_s))
    working = work > ODD_TIMES * np.median(work)
    waiting = idle > np.median(idle) + (ODD_TIMES - 1) * typical
    odd = working | waiting
    if not 0 < odd.sum() <= ODD_SHARE * len(odd):
        return None
    numbers = result.steps[odd].tolist()
    excess = np.maximum(result.lasted_s - typical, 0.0)
    excess += np.maximum(overlap_s - np.median(overlap_s), 0.0) / 2  # of one of two steps
    excess = np.where(odd, excess, 0.0)
    cost = float(excess.mean() / result.lasted_s.mean())
    if cost < MIN_ODD_COST:
        return None
    lost_share = (resamples @ excess) / (resamples @ result.lasted_s)
    low, high = (float(x) for x in np.percentile(lost_share, (5, 95)))
    numbers_text = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    waits = not working.any()
    symptom = WAITING if waits else "compute longer (warm-up, evaluation?)"
    return Finding(
        id="odd-steps",
        cause="drift",
        text=f"{len(numbers)} of {len(odd)} steps {symptom}, unlike the others: {numbers_text}",
        share=None,
        share_of_step=cost,
        interval=(low, high),
        confidence=float((lost_share > 0).mean()),
        where=NOWHERE,
        evidence={
            "steps": numbers,
            "threshold": ODD_TIMES,
            "typical_s": typical,
            **({"waits": True} if waits else {}),
        },
        cost_s=excess,
    )


def _two_modes(measured: Measured, result: WhatIf, resamples: Array) -> Finding | None:
    """Steps of two lengths."""
    modes = result.step_modes
    if modes is None:
        return None
    slow = modes.slow
    fast_s, slow_s = (float(np.median(result.traced_s[mode])) for mode in (~slow, slow))
    excess = np.where(slow, result.traced_s - fast_s, 0.0)
    lost_share = (resamples @ excess) / (resamples @ result.lasted_s)
    low, high = (float(x) for x in np.percentile(lost_share, (5, 95)))
    growth = _growth_by_kind(measured, slow)
    names = measured.graph.kind_name
    longer = [names(label) for label, ratio in growth.items() if ratio >= ODD_TIMES]
    kinds_text = f"; longer then: {', '.join(longer[:3])}" if longer else ""
    return Finding(
        id="two-modes",
        cause="drift",
        text=f"{slow.sum()} of {len(slow)} steps take {seconds(slow_s)}, the others "
        f"{seconds(fast_s)}{kinds_text}",
        share=None,
        share_of_step=float(excess.mean() / result.lasted_s.mean()),
        interval=(low, high),
        confidence=float((lost_share > 0).mean()),
        where=NOWHERE,
        evidence={
            "steps": result.steps[slow].tolist(),
            "fast_s": fast_s,
            "slow_s": slow_s,
            "slow_over_fast_by_kind": growth,
        },
        cost_s=excess,
        ambiguous="the work of these steps may differ (batch shapes, evaluation), or all workers "
        "are slow at once",
    )


def _growth_by_kind(measured: Measured, slow: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Kind -> its seconds in slow steps over its seconds in the other steps, largest first."""
    kind = measured.graph.kind
    total = np.zeros((len(OpKind), len(slow)))
    for v, block in enumerate(measured.durations.blocks):
        np.add.at(total, kind[measured.graph.variant_ops(v)], block.sum(axis=2))
    there = np.flatnonzero((total > 0).all(axis=1))
    ratio = total[there][:, slow].mean(axis=1) / total[there][:, ~slow].mean(axis=1)
    order = np.argsort(-ratio)
    return {OpKind(int(there[i])).label: float(ratio[i]) for i in order}
