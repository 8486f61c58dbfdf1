"""Tables of a study's page about its jobs: sizes, severe slowdowns, and rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.fleet.bootstrap import Estimate
from paceline.fleet.definitions import PAPER_TABLES
from paceline.report.page.markup import escape, table
from paceline.units import count, percent

Numbers = Mapping[str, Any]

#: Most names of jobs in a sentence.
_NAMED = 5


def estimate_value(estimate: Estimate) -> str:
    """The number; a dash if there are no jobs."""
    return "–" if estimate.value is None else percent(estimate.value)


def estimate_interval(estimate: Estimate) -> str:
    """Its interval, or the reason why there is none."""
    if estimate.low is None or estimate.high is None:
        return f"{count(estimate.n, 'job')}: too few for an interval"
    return f"{percent(estimate.low)} to {percent(estimate.high)}"


def _with_interval(estimate: Estimate) -> str:
    if estimate.value is None:
        return "–"
    return f"{estimate_value(estimate)} ({estimate_interval(estimate)})"


def sizes(coverage: Numbers) -> str:
    """Number of jobs of each number of GPUs (3.1)."""
    cells = [
        (f"{int(gpus):,} GPUs and more", _with_interval(share))
        for gpus, share in coverage["sizes"].items()
    ]
    return table(("size", "jobs"), cells) + _of_paper("coverage")


def severe(numbers: Numbers) -> str:
    """Jobs with S above 3: sizes, and the shares due to single workers and to compute (4.1)."""
    if not numbers["jobs"]:
        return "<p>No job has S above 3.</p>" + _of_paper("severe")
    cells = [
        ("of all jobs", _with_interval(numbers["share"])),
        ("GPUs, median", _whole(numbers["median_gpus"])),
        ("GPUs of the other jobs, median", _whole(numbers["median_gpus_of_others"])),
        ("M_W above 0.5: single workers", _with_interval(numbers["by_workers"])),
        ("compute wastes most", _with_interval(numbers["by_compute"])),
    ]
    return table((count(numbers["jobs"], "job"), ""), cells) + _of_paper("severe")


def left_out(summary: Numbers, bounds: Numbers) -> str:
    """Sentences on the jobs left out for their discrepancy; "" without such jobs.

    Args:
        summary: of the study.
        bounds: as of :func:`funnel`.
    """
    n = sum(row["jobs"] for row in summary["funnel"] if row["rule"] == "discrepancy")
    if not n:
        return ""
    bound = percent(bounds["max_discrepancy"]) if "max_discrepancy" in bounds else "the bound"
    text = (
        f"discrepancy: {count(n, 'job')} left out, whose simulated step differs from the traced "
        f"one by more than {bound}, as time passes between operations"
    )
    waiting = summary["waiting"]
    if not waiting:
        return text
    named = [f"{row['name']} {percent(row['share_of_step'])}" for row in waiting[:_NAMED]]
    more = f" and {len(waiting) - _NAMED:,} more" if len(waiting) > _NAMED else ""
    return (
        f"{text}; in {len(waiting):,} of them workers wait for data, a share of the step: "
        f"{', '.join(named)}{more}"
    )


def funnel(rows: Sequence[Numbers], n_traces: int, bounds: Numbers) -> str:
    """Jobs left out by each rule, and jobs left (section 7).

    Args:
        rows: of the summary.
        n_traces: traces of the study.
        bounds: bounds of the rules, in the form of ``study.json``.
    """
    cells = [("all traces", "", f"{n_traces:,}", "", "", "", "")]
    cells += [
        (
            escape(row["about"]),
            f"−{row['jobs']:,}",
            f"{row['jobs_left']:,}",
            estimate_value(row["share"]),
            "" if row["share_of_failures"] is None else estimate_value(row["share_of_failures"]),
            f"−{row['gpu_hours']:,.0f}",
            f"{row['gpu_hours_left']:,.0f}",
        )
        for row in rows
    ]
    head = ("rule", "jobs", "left", "of those before", "of failures", "GPU-hours", "left")
    options = ", ".join(f"--{name.replace('_', '-')} {bound:g}" for name, bound in bounds.items())
    ours = f"<p>Bounds of this study: <code>{escape(options)}</code>.</p>" if options else ""
    return table(head, cells) + ours + _of_paper("funnel")


def hours_words(coverage: Numbers) -> str:
    """Source of the GPU-hours, and the number of jobs without them."""
    given, unknown = coverage["gpu_hours_given"], coverage["gpu_hours_unknown"]
    n = coverage["jobs"] - unknown
    traced = "GPUs times traced time: a trace of a few steps counts as these steps"
    if given == n:
        text = "As the manifest gives them."
    elif not given:
        text = f"{traced}. Give gpu_hours in a manifest to weigh jobs by their length."
    else:
        text = f"Of {count(given, 'job')} as the manifest gives them, of the others {traced}."
    if unknown:
        text += f" {count(unknown, 'job')} say no size, so they weigh nothing."
    return escape(text)


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _of_paper(name: str) -> str:
    return f'<p class="note">ByteDance: {escape(PAPER_TABLES[name])}.</p>'
