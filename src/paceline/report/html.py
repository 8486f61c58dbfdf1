"""The report: one HTML file that opens from disk, fetches nothing and prints.

Text, tables and bars are HTML written here; the figures that move (heatmaps, curves, timeline) are
drawn by the scripts in ``page/static`` from numbers that the page holds as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from types import MappingProxyType
from typing import BinaryIO
from urllib.parse import quote

from paceline.diagnose import Diagnosis, Waterfall
from paceline.graph import Measured
from paceline.remedies import Remedy
from paceline.report.headline import details, headline, is_healthy
from paceline.report.page.drawn import timeline_data
from paceline.report.page.fall import key_numbers, parts_html, waterfall_html
from paceline.report.page.figures import Hosts, blamed, figure_data
from paceline.report.page.findings import details_html, findings_html, remedies_html
from paceline.report.page.frame import content_policy, job_line, paceline_version, static
from paceline.report.page.markup import escaped, foreign
from paceline.report.page.pack import safe_json
from paceline.report.page.path import path_html
from paceline.report.page.scatter import scatter_data
from paceline.units import count, percent
from paceline.whatif import WhatIf

NOTHING: Mapping[str, str] = MappingProxyType({})

#: In this order: each uses what the ones before it define.
SCRIPTS = (
    "base.js",
    "heatmap.js",
    "chart.js",
    "timeline_view.js",
    "timeline_step.js",
    "timeline.js",
    "page.js",
)


#: Up to so many replicas the two heatmaps have room beside each other.
FEW = 10


@dataclass(frozen=True)
class _Report:
    """All that the page is made of."""

    result: WhatIf
    diagnosis: Diagnosis
    fall: Waterfall
    remedies: Sequence[Remedy]
    measured: Measured
    hosts: Hosts | None
    gpu_hour_cost: float | None
    perfetto: str | None
    not_applicable: Mapping[str, str]


def report_writer(
    result: WhatIf,
    diagnosis: Diagnosis,
    fall: Waterfall,
    remedies: Sequence[Remedy],
    measured: Measured,
    *,
    hosts: Hosts | None = None,
    gpu_hour_cost: float | None = None,
    perfetto: str | None = None,
    not_applicable: Mapping[str, str] = NOTHING,
) -> Callable[[BinaryIO], None]:
    """What writes ``report.html``.

    Args:
        result: the what-if analysis.
        diagnosis: its findings; may have none.
        fall: where the time goes.
        remedies: changes with their gains, those of the architecture among them, in any order;
            may be empty.
        measured: the graph and durations, from which the timeline is drawn.
        hosts: (dp, pp) -> host, or (host, gpu), where they are known.
        gpu_hour_cost: price of a GPU-hour, in the user's currency.
        perfetto: the file with the ideal timeline, relative to the report.
        not_applicable: remedy -> why it does not apply here.
    """
    report = _Report(
        *(result, diagnosis, fall, remedies, measured),
        *(hosts, gpu_hour_cost, perfetto, not_applicable),
    )
    # Names come from outside and may hold half a surrogate pair, which UTF-8 cannot say.
    content = _page(report).encode("utf-8", "replace")
    return lambda file: _write(file, content)


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def _page(report: _Report) -> str:
    """The page."""
    result, diagnosis = report.result, report.diagnosis
    script = "\n".join(static(name) for name in SCRIPTS)
    return Template(static("page.html")).substitute(
        title=escaped(_title(result)),
        policy=escaped(content_policy(script)),
        style=static("page.css"),
        job=job_line(result),
        headline=foreign(headline(result, diagnosis, report.remedies)),
        details=details_html(details(result, diagnosis, report.remedies)),
        mood="healthy" if is_healthy(result, diagnosis) else "slow",
        doubt=_doubt(result),
        numbers=key_numbers(result, diagnosis, report.gpu_hour_cost),
        nav=static("nav.html"),
        answers=_answers(report),
        figures=_figures(report),
        definitions=static("definitions.html"),
        warnings=_warnings(result),
        version=escaped(paceline_version()),
        data=safe_json(_data(report)),
        script=script,
    )


def _data(report: _Report) -> dict[str, object]:
    return {
        **figure_data(report.result, report.hosts),
        "blamed": blamed(report.diagnosis),
        "timeline": timeline_data(report.measured, report.result),
        "scatter": scatter_data(report.measured),
    }


def _answers(report: _Report) -> str:
    """Findings and remedies: what a reader acts on."""
    findings = report.diagnosis.findings
    return Template(static("answers.html")).substitute(
        findings=findings_html(report.diagnosis, report.remedies, report.hosts),
        remedies=remedies_html(report.remedies, findings, report.not_applicable),
    )


def _figures(report: _Report) -> str:
    """Critical path, waterfall, parts and charts: what the findings rest on."""
    result = report.result
    stages = {f"stage {stage}": s for stage, s in result.by_stage.items()}
    kinds = dict(sorted(result.by_kind.items(), key=lambda item: -item[1]))
    few = result.by_worker.shape[1] <= FEW
    return Template(static("figures.html")).substitute(
        heatmaps="columns" if few else "",
        kinds=parts_html(kinds, "kind"),
        stages=parts_html(stages, "stage"),
        **path_html(result.critical_path),
        waterfall=waterfall_html(result, report.fall, report.gpu_hour_cost),
        perfetto=_perfetto(report.perfetto),
    )


def _title(result: WhatIf) -> str:
    return f"{result.job.name or 'Training job'} · Paceline"


def _doubt(result: WhatIf) -> str:
    """A caution under the headline, where the simulation is far from the trace."""
    if not result.doubtful:
        return ""
    return (
        '<p class="doubt"><b>Doubtful:</b> the simulation is '
        f"{percent(result.discrepancy)} off the "
        "trace (over 5%): time passes that the operations do not explain. See launch delays, and "
        'the <a href="#warnings">warnings</a>.</p>'
    )


def _perfetto(name: str | None) -> str:
    if name is None:
        return ""
    # Quoted as a path, no name can be a scheme (javascript:) or a host (//).
    target = escaped(quote(name.lstrip("/\\")))
    return (
        "<p>The whole ideal timeline for Perfetto: "
        f'<a href="{target}" download>{foreign(name)}</a>; '
        "open it at ui.perfetto.dev (the file stays in your browser). "
        "<code>paceline timeline</code> draws the other steps and scenarios.</p>"
    )


def _warnings(result: WhatIf) -> str:
    """Warnings, steps that were left out, times that were clamped; empty where there are none."""
    notes = [foreign(note) for note in result.warnings]
    clamped = sum(sum(counts.values()) for counts in result.clamped.values())
    if clamped:
        notes.append(f"{clamped:,} negative times below −10 ms were set to 0 (clocks disagree)")
    text = f"<ul>{''.join(f'<li>{note}</li>' for note in notes)}</ul>" if notes else ""
    if result.left_out_steps:
        left_out = list(result.left_out_steps.items())
        items = "".join(f"<li>step {step}: {foreign(why)}</li>" for step, why in left_out[:50])
        more = f"<li>and {len(left_out) - 50:,} more</li>" if len(left_out) > 50 else ""
        were = "was" if len(left_out) == 1 else "were"
        text += f"<p>{count(len(left_out), 'step')} {were} left out:</p><ul>{items}{more}</ul>"
    return text or "<p>No warnings; no step was left out.</p>"
