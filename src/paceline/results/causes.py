"""The place and the remedy of the cause that a headline names, for alerts and lists."""

from __future__ import annotations

from paceline.diagnose import Finding
from paceline.remedies import Remedy
from paceline.results.document import JobReport
from paceline.results.headline import best_remedy, main_finding
from paceline.results.words.names import hosts, place

#: Most named hosts of a place; more are counted.
_MAX_HOSTS = 4


def cause_place(report: JobReport, cause: str | None) -> str | None:
    """Place, as text, of the finding with that cause; None if there is none.

    An unexplained loss has no place.
    """
    finding = _finding(report, cause)
    return place(finding.where) or None if finding is not None else None


def cause_hosts(report: JobReport, cause: str | None) -> str | None:
    """The hosts of the same finding."""
    finding = _finding(report, cause)
    return hosts(finding.where, _MAX_HOSTS) or None if finding is not None else None


def cause_remedy(report: JobReport, cause: str | None) -> Remedy | None:
    """The best remedy of the same finding; None if none gains a percent."""
    return best_remedy(_finding(report, cause), report.every_remedy)


def _finding(report: JobReport, cause: str | None) -> Finding | None:
    """The finding that the headline names if it has the cause, else the first one with it."""
    if cause is None or cause == "unexplained":
        return None
    candidates = [main_finding(report), *report.diagnosis.findings]
    return next((f for f in candidates if f is not None and f.cause == cause), None)
