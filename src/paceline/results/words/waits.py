"""Waits between operations, which S leaves out: what they cost, and the sentence that says so.

They are waits for data, late starts, other launch delays, and steps that wait, as for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.diagnose import Finding
from paceline.results.document import JobReport
from paceline.results.words.names import LIKELY, hedge, worker
from paceline.results.words.shares import lost_s
from paceline.results.words.slowdown import step_overlaps
from paceline.trace.kinds import kind_name
from paceline.trace.warning import BETWEEN_STEPS
from paceline.units import count, percent, seconds

#: A finding below this share of the step is small; S under 1.03 is healthy, too.
SMALL_SHARE = 0.03

#: From this confidence on, a cause is sure enough to come first: it is called likely.
SURE = next(least for least, word in LIKELY if word == "likely")

#: An unsure cause comes first from this share of the step on.
HEAVY = 0.2


def pause_numbers(report: JobReport) -> Mapping[str, float]:
    """The numbers of the warning on the time between the steps; empty without one."""
    return next((w.numbers for w in report.warnings if w.code == BETWEEN_STEPS), {})


def between_steps(report: JobReport) -> float:
    """The share of the time between the steps, which S does not show; 0 if it is small.

    The time is that of all steps, or of the traced ones if :func:`traced_only`.
    """
    return pause_numbers(report).get("share", 0.0)


def traced_only(report: JobReport) -> bool:
    """Whether the pauses are those before traced steps, and the others are unknown."""
    return "traced_only" in pause_numbers(report)


def lasted_name(report: JobReport) -> str:
    """The name of the step time that the simulation is compared with."""
    if not step_overlaps(report):
        return "traced"
    return "without pauses and overlap" if between_steps(report) else "from step to step"


def waits(report: JobReport) -> list[Finding]:
    """The findings on waits, without those whose time another one counts."""
    return [f for f in report.diagnosis.findings if _is_wait(f) and not f.part_of]


def cost_of(finding: Finding) -> float:
    """The share of the step that a wait costs; of late workers, what their lateness costs."""
    return float(finding.evidence.get("late_share", finding.share_of_step))


def first_wait(report: JobReport) -> Finding | None:
    """The largest wait if it costs more than all stragglers; None if the headline tells more."""
    largest = max(waits(report), key=cost_of, default=None)
    if largest is None:
        return None
    sure = largest.confidence >= SURE or _few_steps(report, largest) is not None
    least = max(SMALL_SHARE if sure else HEAVY, _stragglers(report))
    return largest if cost_of(largest) > least else None


def first_pause(report: JobReport) -> float:
    """The share of the time between the steps if it is the largest cost; 0 otherwise.

    Waits for data may lie there. Then they are the reason and not a cost beside it.
    """
    others = {f.cause: cost_of(f) for f in waits(report)}
    pause = between_steps(report)
    unexplained = pause - others.get("data-loading", 0.0)
    return pause if unexplained > max(_stragglers(report), *others.values(), 0.0) else 0.0


def wait_text(report: JobReport, finding: Finding) -> str:
    """The cost of a wait, and who waits: a sentence without the full stop."""
    of_cause = _TEXTS.get(finding.cause, _steps_wait)
    text = of_cause(report, finding)
    return f"{text[:1].upper()}{text[1:]}"


def waits_share(report: JobReport) -> float:
    """The share of the step that all waits cost."""
    parts = [f for f in report.diagnosis.findings if _is_wait(f)]
    return sum(
        max(f.share_of_step, *(p.share_of_step for p in parts if p.part_of == f.id), 0.0)
        for f in waits(report)
    )


def beside_waste(report: JobReport) -> str:
    """``waits between operations not included: 15.7% of the step``; empty if they cost little."""
    share = waits_share(report)
    if share < SMALL_SHARE:
        return ""
    return f"waits between operations not included: {percent(share)} of the step"


def _is_wait(finding: Finding) -> bool:
    is_odd = finding.id == "odd-steps" and finding.evidence.get("waits") is True
    return finding.cause in _TEXTS or is_odd


def _stragglers(report: JobReport) -> float:
    """The share of the step that stragglers cost, with variation that passes."""
    return lost_s(report) / report.lasted_s


def _few_steps(report: JobReport, finding: Finding) -> Finding | None:
    """The finding on the few steps in which most of a wait lies."""
    parts = (f for f in report.diagnosis.findings if f.part_of == finding.id and _is_wait(f))
    few = (f for f in parts if f.id == "odd-steps" and f.confidence >= SURE)
    return next((f for f in few if f.share_of_step >= cost_of(finding) / 2), None)


def _cost(finding: Finding) -> str:
    return f"{percent(cost_of(finding))} of the step"


def _of_steps(report: JobReport, n_steps: int, all_steps: str = " a step") -> str:
    """`` in 11 of 74 steps``, or a text for all steps."""
    n_all = len(report.steps)
    return all_steps if n_steps >= n_all else f" in {n_steps:,} of {count(n_all, 'step')}"


def _data(report: JobReport, finding: Finding) -> str:
    """``Data loading costs 15.7% of the step: dp 2, stage 0 waits 121 ms in 11 of 74 steps``."""
    places, evidence = finding.where.get("workers") or [], finding.evidence
    steps = evidence.get("steps")
    n_steps = len(steps) if isinstance(steps, list) else len(report.steps)
    longest = evidence.get("wait_s") or []
    how = f" {seconds(longest[0])}{_of_steps(report, n_steps)}" if longest else ""
    who = "workers wait" if not places else f"{worker(places[0])} waits"
    if len(places) > 1:
        who = f"{len(places):,} workers wait (most: {worker(places[0])})"
    return f"{hedge(finding.confidence)}data loading costs {_cost(finding)}: {who}{how}"


def _delay(report: JobReport, finding: Finding) -> str:
    places, evidence = finding.where.get("workers") or [], finding.evidence
    others = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
    unsure = hedge(finding.confidence)
    cost = f"between operations cost {_cost(finding)}"
    if places and "late_s" in evidence:
        begins = "begin" if others else "begins"
        n_steps = evidence["late_steps"][0]
        return (
            f"{unsure}late starts cost {_cost(finding)}: {worker(places[0])}{others} {begins} "
            f"{seconds(evidence['late_s'][0])} late{_of_steps(report, n_steps, '')}"
        )
    if places:
        n_steps = evidence.get("delayed_steps", len(report.steps))
        return (
            f"{unsure}waits {cost}: the host of {worker(places[0])}{others} delays operations "
            f"{seconds(evidence['delay_s'][0])}{_of_steps(report, n_steps)}"
        )
    if few := _few_steps(report, finding):
        return f"{hedge(few.confidence)}waits {cost}, most of it {_checkpoints(report, few)}"
    return f"{unsure}waits {cost}, most of it {_place(report, finding)}"


def _place(report: JobReport, finding: Finding) -> str:
    """Where most of the launch delays lie."""
    delay = report.launch_delay
    if delay is not None and delay.step_start - 1 > 0.5 * (report.launch_slowdown - 1):
        return "at the start of steps"
    label = (finding.where.get("group") or {}).get("kind", "operations")
    return f"before {kind_name(label, report.all_reduces)}"


def _steps_wait(report: JobReport, finding: Finding) -> str:
    """``Waits in 10 of 99 steps (checkpoint?) cost 16.9% of the step``."""
    few = _checkpoints(report, finding)
    return f"{hedge(finding.confidence)}waits {few} cost {_cost(finding)}"


def _checkpoints(report: JobReport, finding: Finding) -> str:
    """``in 3 of 74 steps (checkpoint?)``: they may be intended."""
    few = len(finding.evidence["steps"])
    return f"in {few} of {count(len(report.steps), 'step')} (checkpoint?)"


#: Cause -> the sentence on its cost.
_TEXTS: Mapping[str, Callable[[JobReport, Finding], str]] = {
    "data-loading": _data,
    "launch-delay": _delay,
}
