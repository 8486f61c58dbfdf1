"""Make a Remedy of predicted step times: its gain, interval and sentence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.diagnose import MIN_OF_STEP, Diagnosis, Finding
from paceline.errors import NotApplicableError
from paceline.graph import Durations
from paceline.remedies.remedy import (
    Case,
    Prediction,
    Remedy,
    RemedyKind,
    answered_findings,
    gain_of,
)
from paceline.units import seconds

#: If two readings of a trace differ in gain by more than this, the interval covers both.
MAX_READING_GAP = 0.01

#: A remedy is not offered if two readings of a trace predict steps that differ by more.
MAX_OPEN_GAP = 0.03

#: Margin for remedies that move workers or layers. 469 jobs were run again (benchmarks/truth.py).
#: For 95% of them, the gain lay at most this far outside the interval from the steps alone.
MOVED_MARGIN = 0.004

#: Fewer steps do not show the variation of steps (as in ``paceline.comparison``).
MIN_STEPS = 4

#: A speed-up exceeds S only from this ratio on; a smaller ratio is noise.
MIN_BEYOND_RATIO = 1.01


def outcome(
    case: Case,
    kind: RemedyKind,
    action: str,
    after: Prediction,
    change: Mapping[str, Any],
    *,
    notes: Sequence[str] = (),
    causes: Collection[str] | None = None,
    findings: tuple[str, ...] | None = None,
    before: Prediction | None = None,
    otherwise: Sequence[Prediction] = (),
    margin: float = 0.0,
) -> Remedy:
    """The remedy that leads to the step times ``after``.

    Args:
        case: the job.
        kind: the remedy.
        action: the advice, the start of its sentence.
        after: predicted step times.
        change: the change in a form for JSON.
        notes: limits and assumptions.
        causes: causes whose findings the remedy answers; None: all causes of the kind.
        findings: ids of the findings it answers; None: those of ``causes``.
        before: step times to compare with; None: the case's own.
        otherwise: step times under other readings of the trace; they widen the interval.
        margin: error of such predictions besides the noise of steps, as a gain. It widens the
            interval.
    """
    before = before or case.before
    # Operations in another order vary independently.
    gain_by = partial(gain_of, paired=not kind.architecture)
    gain, (low, high) = gain_by(before.step_s, after.step_s)
    notes = list(notes)
    readings = [gain_by(before.step_s, reading.step_s) for reading in otherwise]
    bare = gain_by(before.undelayed_s, after.undelayed_s)
    if abs(bare[0] - gain) > MAX_READING_GAP:
        readings.append(bare)
        notes.append(_delays_note(gain, bare[0]))
    if (n_steps := len(before.step_s)) < MIN_STEPS:
        few = "one step was" if n_steps == 1 else f"{n_steps} steps were"
        notes.append(f"{few} analysed: the interval cannot include the variation of steps")
    for _, interval in readings:
        low, high = min(low, *interval), max(high, *interval)
    low, high = low - margin, high + margin
    least, most = ("at least ", "at most ") if change.get("bound") else ("", "")
    effect = (
        f"a step takes {least}{seconds(after.mean_s)} instead of {seconds(before.mean_s)} "
        f"(saves {most}{gain:.1%} of the step)"
    )
    if findings is None:
        findings = answered_findings(case, kind.causes if causes is None else frozenset(causes))
    remedy = Remedy(
        remedy=kind.name,
        text=f"{action}: {effect}",
        findings=findings,
        step_time_s=after.mean_s,
        gain=gain,
        interval=(low, high),
        change=change,
        notes=tuple(notes),
        action=action,
        effect=effect,
        architecture=kind.architecture,
    )
    beyond = beyond_s(_largest_slowdown(case), case.diagnosis, [remedy])
    return replace(remedy, notes=(*notes, beyond)) if beyond else remedy


def _largest_slowdown(case: Case) -> float:
    healthy, result = case.diagnosis.healthy, case.result
    if healthy is None:
        return result.slowdown
    return float(result.simulated_s.mean() / healthy.step_s.mean())


def _delays_note(gain: float, bare: float) -> str:
    return (
        f"the gain includes the launch delays ({gain:.1%}); if some of them are unrecorded waits, "
        f"it is closer to the gain without delays ({bare:.1%})"
    )


def beyond_s(slowdown: float, diagnosis: Diagnosis, remedies: Sequence[Remedy]) -> str | None:
    """A note on a speed-up above S; None if no remedy of a finding within S exceeds S.

    Args:
        slowdown: S, or S beside healthy hardware.
        diagnosis: tells which findings lie inside S.
        remedies: remedies for the job; the one with the largest gain counts.
    """
    inside = {finding.id for finding in diagnosis.findings if finding.share is not None}
    gain = max((r.gain for r in remedies if inside & set(r.findings)), default=0.0)
    if not 0 < gain < 1 or (speedup := 1 / (1 - gain)) < MIN_BEYOND_RATIO * slowdown:
        return None
    return (
        f"a speed-up of {speedup:.2f} above S = {slowdown:.2f} is no contradiction: the ideal in "
        "S is the mean of all workers (what-if paper, 3.2); some of them are faster than the mean"
    )


def finding_of(case: Case, cause: str) -> Finding | None:
    """The case's finding of a cause, first the one of that id; None without one."""
    found = [f for f in case.diagnosis.findings if f.cause == cause]
    return next((f for f in found if f.id == cause), found[0] if found else None)


def needed_finding(case: Case, cause: str, description: str) -> Finding:
    """The case's finding of a cause; raises NotApplicableError without one."""
    finding = finding_of(case, cause)
    if finding is None:
        raise NotApplicableError(
            f"nothing to do: the trace shows no {description} (no {cause!r} finding)"
        )
    return finding


def need_gain(case: Case, after: Prediction, change: str) -> None:
    """Raise NotApplicableError if the change gains almost nothing, or loses."""
    now = case.before.mean_s
    if after.mean_s > now * (1 - MIN_OF_STEP):
        loss = after.mean_s / now - 1
        effect = "gains almost nothing" if loss < MIN_OF_STEP else f"makes steps {loss:.1%} longer"
        raise NotApplicableError(
            f"{change} {effect}: a step takes {seconds(after.mean_s)}, now {seconds(now)}"
        )


def copy_of(durations: Durations) -> Durations:
    """A writable copy of the durations."""
    return Durations(durations.graph, durations.n_steps, durations.values.copy())
