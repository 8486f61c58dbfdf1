"""Text of shares of the step and of the loss, the same for findings and remedies."""

from __future__ import annotations

from collections.abc import Callable

from paceline.diagnose import Finding
from paceline.remedies import Remedy
from paceline.results.document import JobReport
from paceline.results.words.names import cause_name
from paceline.results.words.slowdown import step_overlaps
from paceline.units import percent

#: A cause's share of the loss is unknown if its interval is wider than the whole loss.
MAX_WIDTH = 1.0

UNKNOWN = "unknown"
WHY_UNKNOWN = "its share of the loss differs too much from step to step to be told"

#: The name of launch delays for a reader who has no title above them.
WAITS = "Waits between operations"


def shares(of_step: float, of_loss: float | None) -> str:
    """``24.5% of the step, 98.6% of the loss``; only the first if the loss is unknown."""
    text = f"{percent(of_step)} of the step"
    return text if of_loss is None else f"{text}, {percent(of_loss)} of the loss"


def is_known(finding: Finding) -> bool:
    """Whether the steps agree on the share of a finding inside S."""
    low, high = finding.interval
    return high - low <= MAX_WIDTH


def share_text(finding: Finding, n_steps: int) -> str:
    """``98.6% of the loss (90%: 90.1% to 99.5%)`` for a finding inside S."""
    if finding.share is None or not is_known(finding):
        return WHY_UNKNOWN
    return f"{percent(finding.share)} of the loss ({interval_text(finding.interval, n_steps)})"


def interval_text(
    interval: tuple[float, float],
    n_steps: int,
    of: str = "",
    form: Callable[[float], str] = percent,
) -> str:
    """``90%: 90.1% to 99.5%``, or ``90%: unknown from one step``.

    One step has no resamples that differ, so that its interval has no width.

    Args:
        interval: both ends.
        n_steps: steps analysed.
        of: what the numbers are shares of, where that is said.
        form: number -> text.
    """
    low, high = interval
    if n_steps == 1 and low == high:
        return "90%: unknown from one step"
    return f"90%: {form(low)} to {form(high)}{of}"


def part_of(finding: Finding, report: JobReport) -> str:
    """``part of the worker fault above``: the finding that already counts the time of this one.

    Waits between operations may cost more than the waits for data that make most of them.
    """
    whole = next((f for f in report.diagnosis.findings if f.id == finding.part_of), None)
    cause = finding.part_of if whole is None else whole.cause
    name = WAITS if cause == "launch-delay" else cause_name(cause)
    is_more = whole is not None and finding.share_of_step > whole.share_of_step
    of = "most of it is" if is_more and finding.cause == "launch-delay" else "part of"
    return f"{of} the {name[:1].lower()}{name[1:]} above"


def share_of_loss(report: JobReport, remedy: Remedy) -> float | None:
    """The seconds that a remedy saves over the loss, :func:`lost_s`.

    It may be above 1, as the loss contains no launch delays.

    Returns:
        The share; None if almost nothing is lost, or if the remedy answers no finding inside S.
    """
    inside = {f.id for f in report.diagnosis.findings if f.share is not None}
    if not report.straggling or not inside.intersection(remedy.findings) or remedy.gain >= 1:
        return None
    saved_s = remedy.step_time_s * remedy.gain / (1 - remedy.gain)
    lost = lost_s(report)
    return saved_s / lost if lost > 0 else None


def masked_note(report: JobReport) -> str:
    """Why repairs of single causes save less than these cost; "" if none does."""
    masked = [f for f in report.diagnosis.findings if f.id in report.masked]
    if not masked:
        return ""
    names = " and ".join(dict.fromkeys(cause_name(f.cause).lower() for f in masked))
    return (
        f"After a repair of the {names} alone, steps still wait for the other causes. The costs "
        "of the causes divide the loss among all of them."
    )


def size_of_loss(report: JobReport) -> str:
    """``53.8% of the traced step``, of which findings have shares.

    The waste is a share of the simulated step. That share stands first if it differs.
    """
    lost = lost_s(report)
    of_step = percent(lost / report.lasted_s)
    of_simulated = percent(lost / float(report.simulated_s.mean()))
    overlaps = step_overlaps(report)
    which = "from step to step" if overlaps else "of the traced one"
    if of_simulated == of_step:
        return f"{of_step} of the {'' if overlaps else 'traced '}step"
    return f"{of_simulated} of the simulated step, {of_step} {which}"


def lost_s(report: JobReport) -> float:
    """The loss, mean seconds per step: T - T_healthy, or T - T_ideal if hardware is healthy."""
    return float(report.simulated_s.mean()) - report.healthy_step_s
