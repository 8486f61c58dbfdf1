"""Text on S and waste: lower bounds, passing variation, the paper's reference (docs/whatif.md)."""

from __future__ import annotations

from paceline.results.document import JobReport
from paceline.results.words.names import HARDWARE
from paceline.units import percent, seconds


def by_paper(report: JobReport) -> str:
    """``0.985 by the paper's reference``; empty if both references agree."""
    return (
        f"{report.slowdown_paper:.3f} by the paper's reference" if report.slow_mode_shares else ""
    )


def slowdown_range(report: JobReport, digits: int = 2) -> str:
    """``1.40``, or ``1.40 to 2.18`` if S is a lower bound."""
    low, high = (f"{s:.{digits}f}" for s in (report.slowdown, report.largest_slowdown))
    return f"{low} to {high}" if report.bounded else low


def without_passing(report: JobReport) -> str:
    """``; without variation that passes, S is 1.05``; empty if this is S as it is told."""
    lasting = f"{report.lasting_slowdown:.2f}"
    same = lasting == f"{report.slowdown:.2f}"
    return "" if same else f"; without variation that passes, S is {lasting}"


def waste_range(report: JobReport, digits: int = 1) -> str:
    """``29.2%``, or ``29.2% to 54.1%`` if S is a lower bound."""
    low, high = report.waste, 1 - 1 / report.largest_slowdown
    return (
        f"{percent(low, digits)} to {percent(high, digits)}"
        if report.bounded
        else percent(low, digits)
    )


def beside_s(report: JobReport) -> str:
    """``1.012 lasts``, ``0.985 by the paper's reference``; empty without facts."""
    lasts = f"{report.lasting_slowdown:.3f} lasts" if report.passing_share > 0 else ""
    return "; ".join(filter(None, (lasts, by_paper(report))))


def waste_parts(report: JobReport) -> str:
    """``0.7% lasts, 19.9% is variation that passes``; empty if nothing passes.

    The parts are those of the lower end if the waste is a range.
    """
    passing = report.passing_share
    if percent(passing) == percent(0):
        return ""
    if report.bounded:
        return f"of {percent(report.waste)}, {percent(passing)} is variation that passes"
    return f"{percent(report.waste - passing)} lasts, {percent(passing)} is variation that passes"


def parts_text(report: JobReport) -> str:
    """Sentences on the parts of S and of the waste; empty without facts."""
    sentences = []
    passing = report.passing_share
    if percent(passing) != percent(0):
        lasts = "" if report.bounded else f"{percent(report.waste - passing)} lasts and "
        sentences.append(
            f"Of the {percent(report.waste)} waste, {lasts}{percent(passing)} is variation that "
            f"passes. Without it, S is {report.lasting_slowdown:.3f}."
        )
    if report.slow_mode_shares:
        sentences.append(f"S is {by_paper(report)}.")
    return " ".join(sentences)


def ideal_range(report: JobReport) -> str:
    """``101 ms``, or ``92.0 ms to 142 ms`` if S is a lower bound.

    ``at most 101 ms`` if two replicas differ without a finding: their mean is an upper bound.
    """
    ideal = seconds(float(report.ideal_s.mean()))
    if report.bounded:
        return f"{seconds(report.healthy_step_s)} to {ideal}"
    return f"at most {ideal}" if report.job.replicas == 2 and report.straggling else ideal


def step_overlaps(report: JobReport) -> bool:
    """Whether the step time from step to step differs from the traced one as both are told."""
    return seconds(report.lasted_s) != seconds(float(report.traced_s.mean()))


def slow_hardware(report: JobReport) -> str:
    """``workers``: the hardware that findings blame most."""
    causes = [finding.cause for finding in report.diagnosis.findings]
    return next((HARDWARE[cause] for cause in causes if cause in HARDWARE), "hardware")


def bound_note(report: JobReport) -> str:
    """Why S and T_ideal are ranges; empty if they are none."""
    if not report.bounded:
        return ""
    ideal, healthy = (seconds(s) for s in (float(report.ideal_s.mean()), report.healthy_step_s))
    slow = slow_hardware(report)
    text = (
        f"S is {report.slowdown:.3f} if the ideal comes from all peers, including the slow {slow} "
        f"({ideal}), and {report.largest_slowdown:.3f} if the slow {slow} were as fast as the "
        f"others ({healthy})"
    )
    if report.other_passing_s:
        passing = seconds(report.other_passing_s)
        text += f". Then variation that passes would cost {passing}"
    if report.job.replicas == 2 and slow == HARDWARE["worker"]:
        text += ". Of two replicas, the trace cannot show which one has the usual speed"
    return text
