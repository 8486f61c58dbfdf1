"""The page of a study: one self-contained file, legible for ten jobs and for a million."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

import numpy as np

from paceline.fleet.bootstrap import Estimate
from paceline.fleet.figures import Curve, Figure, Jobs
from paceline.fleet.study import Study
from paceline.report import fleet_coverage, fleet_lists
from paceline.report.fleet_coverage import estimate_interval, estimate_value
from paceline.report.page.distributions import (
    Distribution,
    Spec,
    defined_cdf,
    scatter_chart,
    sizes_table,
)
from paceline.report.page.frame import content_policy, paceline_version, static
from paceline.report.page.markup import bar, escape, foreign, table
from paceline.report.page.pack import safe_json
from paceline.results.words.names import cause_name, remedy_name
from paceline.units import count, percent

#: The page in a study's folder.
REPORT_FILE = "report.html"
#: Most points of a scatter: the slowest jobs, and a sample of the others.
_SLOWEST, _SAMPLE = 100, 400
_SCRIPTS = ("base.js", "chart.js", "fleet.js")
_GROUP_NAMES = {"team": "Team", "size": "GPUs", "cause": "Main cause", "week": "Week from"}


def write(study: Study) -> str:
    """Write the page into the study; returns its address.

    Raises:
        OutputError: the page cannot be written.
    """
    study.store.write(REPORT_FILE, page(study).encode())
    return f"{study.address.rstrip('/')}/{REPORT_FILE}"


def page(study: Study) -> str:
    """The page as HTML."""
    jobs, summary = Jobs(study.jobs), study.summary
    script = "\n".join(static(name) for name in _SCRIPTS)
    charts = {name: chart(figure, jobs) for name, figure in study.figures.items()}
    drawn = {name: spec for name, spec in charts.items() if spec is not None}
    n_slow, coverage = summary["straggling"]["jobs"], summary["coverage"]
    about = f"{count(coverage['jobs'], 'job')} of {study.about['traces']:,} traces"
    return Template(static("fleet.html")).substitute(
        title=escape(f"Fleet of {count(coverage['jobs'], 'job')} · Paceline"),
        policy=escape(content_policy(script)),
        style=static("page.css"),
        job=foreign(f"{study.address} · {about}"),
        mood="slow" if n_slow else "healthy",
        headline=_headline(summary),
        numbers=_numbers(summary),
        causes=_causes(summary["causes"]),
        remedies=_remedies(summary["remedies"], summary["saved"]),
        worst=fleet_lists.worst(summary["worst"]),
        hosts=fleet_lists.hosts(summary["hosts"]),
        groups="\n".join(_group(name, rows) for name, rows in summary["groups"].items() if rows),
        figures="\n".join(_figure(f, charts[name], jobs) for name, f in study.figures.items()),
        sizes=fleet_coverage.sizes(coverage),
        severe=fleet_coverage.severe(summary["severe"]),
        funnel=fleet_coverage.funnel(
            summary["funnel"], study.about["traces"], study.about.get("rules", {})
        )
        + _left_out(study),
        hours=fleet_coverage.hours_words(coverage),
        version=escape(paceline_version()),
        data=safe_json(drawn),
        script=script,
    )


def _left_out(study: Study) -> str:
    text = fleet_coverage.left_out(study.summary, study.about.get("rules", {}))
    return f"<p>{foreign(text[:1].upper() + text[1:])}.</p>" if text else ""


def _headline(summary: Mapping[str, Any]) -> str:
    lost, slow = summary["straggling"]["gpu_hours_wasted"], summary["straggling"]["straggling"]
    if slow.value is None:
        return "No job counts"
    waste = "" if lost.value is None else f", and {percent(lost.value)} of the GPU-hours are wasted"
    return f"<b>{percent(slow.value)} of the jobs straggle</b>{waste}"


def _numbers(summary: Mapping[str, Any]) -> str:
    coverage, straggling = summary["coverage"], summary["straggling"]
    cells = [
        ("Jobs", f"{coverage['jobs']:,}", f"{coverage['gpu_hours']:,.0f} GPU-hours"),
        (
            "Straggling",
            estimate_value(straggling["straggling"]),
            estimate_interval(straggling["straggling"]),
        ),
        ("Wasted GPU-hours", *_pair(straggling["gpu_hours_wasted"])),
        ("Waste, 90th percentile", *_pair(straggling["p90"])),
        ("Waste, 99th percentile", *_pair(straggling["p99"])),
        (
            "S above 3",
            f"{summary['severe']['jobs']:,}",
            estimate_interval(summary["severe"]["share"]),
        ),
    ]
    return "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd>{escape(more)}</dd></div>"
        for name, value, more in cells
    )


def _pair(estimate: Estimate) -> tuple[str, str]:
    return estimate_value(estimate), estimate_interval(estimate)


def _causes(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>No job is straggling.</p>"
    cells = [
        (
            escape(cause_name(row["cause"])),
            _share_bar(row["share_of_lost"]),
            estimate_value(row["share_of_lost"]),
            f"{row['gpu_hours_lost']:,.1f}",
            estimate_value(row["diagnosed_share"]),
            f"{row['diagnosed_gpu_hours']:,.1f}",
            f"{row['n']:,}",
            f"{estimate_value(row['jobs'])} ({estimate_interval(row['jobs'])})",
        )
        for row in rows
    ]
    head = (
        "cause",
        "",
        "of the loss",
        "GPU-hours",
        "diagnosed",
        "GPU-hours",
        "jobs",
        "of straggling",
    )
    return table(head, cells, name="parts", numeric_from=2)


def _share_bar(share: Estimate) -> str:
    ends = None if share.low is None or share.high is None else (share.low, share.high)
    return bar(0, share.value or 0, name="share", interval=ends)


def _remedies(rows: Sequence[Mapping[str, Any]], saved: Mapping[str, Any]) -> str:
    if not rows:
        return "<p>No remedy is predicted to help.</p>"
    cells = [
        (escape(remedy_name(row["remedy"])), f"{row['gpu_hours']:,.1f}", f"{row['jobs']:,}")
        for row in rows
    ]
    share = saved["share"]
    total = (
        f"<p>Together {saved['gpu_hours']:,.1f} GPU-hours, {estimate_value(share)} of all "
        f"({escape(estimate_interval(share))}).</p>"
    )
    return total + table(("remedy", "GPU-hours saved", "jobs"), cells)


def _group(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    title = _GROUP_NAMES.get(name, name)
    cells = []
    for row in rows:
        share = row["straggling"]
        value = cause_name(row["value"]) if name == "cause" else row["value"]
        cells.append(
            (
                foreign(value),
                _share_bar(share),
                estimate_value(share),
                f"{row['jobs']:,}",
                estimate_value(row["waste"]),
                f"{row['gpu_hours_lost']:,.1f}",
            )
        )
    head = (title, "", "straggling", "jobs", "waste", "GPU-hours lost")
    return f"<div><h3>{escape(title)}</h3>{table(head, cells, name='parts', numeric_from=2)}</div>"


# Figures.


def _figure(figure: Figure, chart: Spec | None, jobs: Jobs) -> str:
    defined = figure.definition
    box = f'<figure id="fig-{defined.name}" aria-label="{escape(defined.title)}"></figure>'
    empty = '<p class="note">No job has this.</p>'
    numbers = "; ".join(_said(figure))
    here = f"Here, of {count(figure.jobs, 'job')}: {numbers}."
    ours = f"<p>{escape(here)}</p>" if numbers else ""
    paper = f'<p class="note">ByteDance: {escape(defined.paper)}.</p>' if defined.paper else ""
    text = f"<h3>{escape(defined.title)}</h3><p>{escape(defined.text)}</p>"
    return f"<div>{text}{ours}{paper}{box if chart is not None else empty}</div>"


_SAID = {
    "straggling": "{} straggle",
    "slow_with_passing": "S is at least 1.1 in {}, with variation that passes",
    "gpu_hours_wasted": "{} of the GPU-hours are wasted",
    "p50": "{} at the median",
    "p90": "{} at the 90th percentile",
    "p99": "{} at the 99th",
    "above_half": "M_W is above 0.5 in {}",
    "at_least_half": "M_S is at least 0.5 in {}",
    "one_stage": "{} have one stage",
    "high": "at least 0.9 in {}",
    "rank_correlation": "rank correlation {}",
    "mean_slowdown": "mean S of all {}",
    "mean_slowdown_above": "mean S of these {}",
    "mean_slowdown_high": "mean S of these {}",
}
_PLAIN = ("rank_correlation", "mean_slowdown", "mean_slowdown_above", "mean_slowdown_high")


def _said(figure: Figure) -> list[str]:
    """A figure's numbers as text."""
    said = []
    for name, number in figure.numbers.items():
        if isinstance(number, Mapping) or name not in _SAID:
            continue
        estimate = number if isinstance(number, Estimate) else Estimate(number, None, None, 0)
        if estimate.value is None:
            continue
        plain = name in _PLAIN or figure.definition.name == "steps"
        form = (lambda v: f"{v:.2f}") if plain else percent
        text = form(estimate.value)
        if estimate.low is not None and estimate.high is not None:
            text += f" ({form(estimate.low)} to {form(estimate.high)})"
        said.append(_SAID[name].format(text))
    return said


def chart(figure: Figure, jobs: Jobs) -> Spec | None:
    """Data of a figure for the page's script; None if no job has the figure."""
    defined = figure.definition
    if figure.points is not None:
        return _scatter(figure, jobs)
    curves = {label: _named(curve, jobs) for label, curve in figure.curves.items()}
    x_range = (0.0, 1.03) if defined.name in ("m_w", "m_s", "m_s_slow") else None
    y_label = "share of steps" if defined.name == "steps" else "share of jobs"
    return defined_cdf(defined, curves, y_label, x_range)


def _named(curve: Curve, jobs: Jobs) -> Distribution:
    return Distribution(curve.values, lambda i: jobs.name(int(curve.row[i])))  # type: ignore[arg-type]  # an array is read as a sequence


def _scatter(figure: Figure, jobs: Jobs) -> Spec | None:
    """All points if they are few; otherwise the slowest and a sample. The table covers all."""
    assert figure.points is not None
    x, y, row = figure.points
    if not len(x):
        return None
    chosen = np.arange(len(x))
    if len(x) > _SLOWEST + _SAMPLE:
        slowest = np.argsort(-y, kind="stable")[:_SLOWEST]
        sample = np.random.default_rng(0).choice(len(x), _SAMPLE, replace=False)
        chosen = np.unique(np.concatenate([slowest, sample]))
    points = [(float(x[i]), float(y[i]), jobs.name(int(row[i]))) for i in chosen.tolist()]
    label = f"Slowdown of each job against its {figure.definition.x_label}"
    by_size = sizes_table(x, y, lambda i: jobs.name(int(row[i])), figure.definition.x_label)
    return scatter_chart(
        points, label=label, x_label=figure.definition.x_label, y_label="S", table=by_size
    )
