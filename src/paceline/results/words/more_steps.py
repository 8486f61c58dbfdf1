"""Text on a loss that no cause explains: whether more steps would name one."""

from __future__ import annotations

from paceline.results.document import JobReport
from paceline.trace.job import place_name
from paceline.units import count, percent

#: Share of the waste from which on variation that passes explains it.
MOSTLY = 0.5


def steps_needed(report: JobReport) -> int | None:
    """Number of steps that may name the cause; None if more steps would hardly help."""
    needed = next(
        (f.evidence.get("steps_needed") for f in report.diagnosis.findings if _is_rest(f.cause)),
        None,
    )
    return needed if isinstance(needed, int) else None


def no_reason(report: JobReport) -> str:
    """Why the headline names no cause, as a short phrase."""
    if steps_needed(report) is None:
        if report.passing_share >= MOSTLY * report.waste:
            return f"{percent(report.passing_share, 0)} is variation that passes"
        return "no known pattern explains it"
    steps = count(len(report.steps), "step")
    suspect = _suspect(report)
    if suspect is None:
        return f"{steps} are too few to name the cause"
    return f"perhaps worker {suspect[0]} is slow, but {steps} are too few to tell"


def more_steps_text(report: JobReport) -> str:
    """The next step for the reader, as a sentence; empty if more steps would hardly help."""
    needed, suspect = steps_needed(report), _suspect(report)
    if needed is None:
        return ""
    if suspect is None:
        return f"A trace of {needed} steps or more may name the cause."
    return (
        f"Worker {suspect[0]} seems {suspect[1]:.2f}x slow, which may be chance. A trace of about "
        f"{needed} steps may tell."
    )


def _suspect(report: JobReport) -> tuple[str, float] | None:
    for finding in report.diagnosis.findings:
        if _is_rest(finding.cause) and finding.evidence.get("suspect"):
            return place_name(finding.evidence["suspect"][0]), float(finding.evidence["factor"])
    return None


def _is_rest(cause: str) -> bool:
    return cause == "unexplained"
