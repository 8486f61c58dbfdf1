"""The place and the remedy of the cause that a headline names, for alerts and lists."""

from __future__ import annotations

from typing import Any

from paceline.diagnose import Finding
from paceline.remedies import Remedy
from paceline.results.document import JobReport
from paceline.results.headline import best_remedy, main_finding
from paceline.results.words.names import hosts, place

#: Most named hosts of a place; more are counted.
_MAX_HOSTS = 4


def cause_place(report: JobReport, cause: str | None, at: str | None = None) -> str | None:
    """Place, as text, of the finding with that cause; None if there is none.

    An unexplained loss has no place. If several findings have the cause, the one at the place
    ``at`` counts.
    """
    finding = _finding(report, cause, at)
    return _place(finding) if finding is not None else None


def cause_hosts(report: JobReport, cause: str | None, at: str | None = None) -> str | None:
    """The hosts of the same finding."""
    finding = _finding(report, cause, at)
    return hosts(finding.where, _MAX_HOSTS) or None if finding is not None else None


def cause_remedy(report: JobReport, cause: str | None, at: str | None = None) -> Remedy | None:
    """The best remedy of the same finding; None if none gains a percent."""
    return best_remedy(_finding(report, cause, at), report.every_remedy)


def cause_facts(report: JobReport) -> list[dict[str, Any]]:
    """Causes that a remedy answers, in the form of JSON: ``cause``, ``place``, ``gain``.

    ``gain`` is the share of the step that the best remedy saves.
    """
    pairs = [(f, best_remedy(f, report.every_remedy)) for f in report.diagnosis.findings]
    return [
        {"cause": finding.cause, "place": _place(finding), "gain": round(float(best.gain), 6)}
        for finding, best in pairs
        if best is not None
    ]


def _place(finding: Finding) -> str | None:
    return place(finding.where) or None


def _finding(report: JobReport, cause: str | None, at: str | None) -> Finding | None:
    """The finding that the headline names if it has the cause, else the first one with it.

    One at the place ``at`` comes before both.
    """
    if cause is None or cause == "unexplained":
        return None
    candidates = [main_finding(report), *report.diagnosis.findings]
    with_cause = [f for f in candidates if f is not None and f.cause == cause]
    there = [f for f in with_cause if at is not None and _place(f) == at]
    return next(iter(there + with_cause), None)
