"""The report: one self-contained HTML file, which can be printed.

Text, tables and bars are written as HTML here. The page holds JSON for the interactive figures
(heatmaps, curves, timeline), which the scripts in ``page/static`` draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from string import Template
from typing import BinaryIO
from urllib.parse import quote

from paceline.report.page.communication import communication_html, exposed_texts
from paceline.report.page.drawings import Drawings
from paceline.report.page.fall import key_numbers, parts_html, waterfall_html
from paceline.report.page.figures import MAX_SIDE_BY_SIDE, blamed_workers, figure_data
from paceline.report.page.findings import details_html, findings_html, remedies_html
from paceline.report.page.frame import content_policy, job_line, paceline_version, static
from paceline.report.page.markup import escape, foreign
from paceline.report.page.pack import safe_json
from paceline.report.page.path import path_html
from paceline.results.document import JobReport
from paceline.results.headline import details, explained, headline, is_healthy
from paceline.trace.kinds import kind_name
from paceline.units import count, percent

#: The order matters: each script uses definitions of the ones before it.
SCRIPTS = (
    "base.js",
    "heatmap.js",
    "chart.js",
    "timeline_view.js",
    "timeline_step.js",
    "timeline.js",
    "page.js",
)


@dataclass(frozen=True)
class _Page:
    """All parts of the page."""

    report: JobReport
    drawings: Drawings
    gpu_hour_cost: float | None
    perfetto: str | None


def report_writer(
    report: JobReport,
    drawings: Drawings,
    *,
    gpu_hour_cost: float | None = None,
    perfetto: str | None = None,
) -> Callable[[BinaryIO], None]:
    """The writer of ``report.html``.

    Args:
        report: the document with a diagnosis, which may have no findings.
        drawings: timeline and scatter.
        gpu_hour_cost: price of a GPU-hour, in the user's currency.
        perfetto: the file with the ideal timeline, relative to the report.
    """
    # Names are foreign input and may contain half a surrogate pair, which UTF-8 cannot encode.
    content = _html(_Page(report, drawings, gpu_hour_cost, perfetto)).encode("utf-8", "replace")
    return lambda file: _write(file, content)


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def _html(page: _Page) -> str:
    report = page.report
    script = "\n".join(static(name) for name in SCRIPTS)
    return Template(static("page.html")).substitute(
        title=escape(f"{report.job.name or 'Training job'} · Paceline"),
        policy=escape(content_policy(script)),
        style=static("page.css"),
        job=job_line(report.job, report.steps),
        headline=foreign(headline(report)),
        details=details_html(details(report)),
        mood="healthy" if is_healthy(report) else "slow",
        doubt=_doubt(report),
        numbers=key_numbers(report, page.gpu_hour_cost),
        nav=_contents(report),
        answers=_findings_and_remedies(report),
        figures=_figures(page),
        definitions=static("definitions.html"),
        warnings=_warnings(report),
        version=escape(paceline_version()),
        data=safe_json(_data(page)),
        script=script,
    )


def _contents(report: JobReport) -> str:
    link = "" if report.communication is None else '<a href="#communication">Communication</a> '
    return Template(static("nav.html")).substitute(communication=link)


def _data(page: _Page) -> dict[str, object]:
    return {
        **figure_data(page.report),
        "blamed": blamed_workers(page.report.job, page.report.diagnosis),
        "timeline": {**page.drawings.timeline, **exposed_texts(page.report.communication)},
        "scatter": page.drawings.scatter,
    }


def _findings_and_remedies(report: JobReport) -> str:
    """Findings and remedies."""
    return Template(static("answers.html")).substitute(
        findings=findings_html(report), remedies=remedies_html(report)
    )


def _figures(page: _Page) -> str:
    """Critical path, waterfall, parts and charts: the basis of the findings."""
    report = page.report
    stages = {f"stage {stage}": s for stage, s in report.by_stage.items()}
    ranked = sorted(report.by_kind.items(), key=lambda item: -item[1])
    kinds = {kind_name(kind, report.all_reduces): s for kind, s in ranked}
    return Template(static("figures.html")).substitute(
        heatmaps="columns" if report.job.replicas <= MAX_SIDE_BY_SIDE else "",
        kinds=parts_html(kinds, "kind"),
        stages=parts_html(stages, "stage"),
        communication=communication_html(report.communication),
        **path_html(report.critical_path, report.job, report.all_reduces),
        waterfall=waterfall_html(report, page.gpu_hour_cost),
        perfetto=_perfetto(page.perfetto),
    )


def _doubt(report: JobReport) -> str:
    """A caution under the headline, if the simulation differs much from the trace."""
    if not report.doubtful or explained(report):
        return ""
    return (
        '<p class="doubt"><b>Doubtful:</b> the simulation is '
        f"{percent(report.discrepancy)} off the "
        "trace (over 5%): the operations do not explain all of the time. See launch delays, and "
        'the <a href="#warnings">warnings</a>.</p>'
    )


def _perfetto(name: str | None) -> str:
    if name is None:
        return ""
    # Quoted as a path, a name cannot become a scheme (javascript:) or a host (//).
    target = escape(quote(name.lstrip("/\\")))
    return (
        "<p>The whole ideal timeline for Perfetto: "
        f'<a href="{target}" download>{foreign(name)}</a>; '
        "open it at ui.perfetto.dev (the file stays in your browser). "
        "<code>paceline timeline</code> draws the other steps and scenarios.</p>"
    )


def _warnings(report: JobReport) -> str:
    """Warnings, left-out steps and clamped times; empty without any."""
    notes = [foreign(note) for note in report.warning_texts]
    clamped = sum(sum(counts.values()) for counts in report.clamped.values())
    if clamped:
        notes.append(f"{clamped:,} negative times below −10 ms were set to 0 (clocks disagree)")
    text = f"<ul>{''.join(f'<li>{note}</li>' for note in notes)}</ul>" if notes else ""
    if report.left_out_steps:
        left_out = list(report.left_out_steps.items())
        items = "".join(
            f"<li>step {step}: {foreign(reason)}</li>" for step, reason in left_out[:50]
        )
        overflow = f"<li>and {len(left_out) - 50:,} more</li>" if len(left_out) > 50 else ""
        were = "was" if len(left_out) == 1 else "were"
        text += f"<p>{count(len(left_out), 'step')} {were} left out:</p><ul>{items}{overflow}</ul>"
    return text or "<p>No warnings; no step was left out.</p>"
