"""Text of shares of the step and of the loss, the same for findings and remedies."""

from __future__ import annotations

from paceline.remedies import Remedy
from paceline.results.document import JobReport
from paceline.units import percent


def shares(of_step: float, of_loss: float | None) -> str:
    """``24.5% of the step, 98.6% of the loss``; only the first if the loss is unknown."""
    text = f"{percent(of_step)} of the step"
    return text if of_loss is None else f"{text}, {percent(of_loss)} of the loss"


def share_of_loss(report: JobReport, remedy: Remedy) -> float | None:
    """The seconds that a remedy saves over the loss, T - T_ideal.

    It may be above 1, for T_ideal uses the mean of all workers, including slow ones.

    Returns:
        The share; None if almost nothing is lost, or if the remedy answers no finding inside S.
    """
    inside = {f.id for f in report.diagnosis.findings if f.share is not None}
    if not report.straggling or not inside.intersection(remedy.findings) or remedy.gain >= 1:
        return None
    saved_s = remedy.step_time_s * remedy.gain / (1 - remedy.gain)
    lost_s = float((report.simulated_s - report.ideal_s).mean())
    return saved_s / lost_s if lost_s > 0 else None
