"""The job page's parts about a session, drawn by the report's code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.monitor.pusher import SESSION_STEPS
from paceline.report.page.fall import key_numbers, parts_html, waterfall_html
from paceline.report.page.figures import MAX_SIDE_BY_SIDE, figure_data
from paceline.report.page.findings import details_html, findings_html, remedies_html
from paceline.results.document import JobReport
from paceline.results.headline import details, is_healthy
from paceline.results.words.more_steps import steps_needed
from paceline.results.words.shares import size_of_loss


@dataclass(frozen=True)
class Sections:
    """A session's parts of the job page, as HTML and as data of figures.

    Attributes:
        details, numbers, waterfall, kinds, stages, findings, remedies: HTML.
        workers, workers_by_step: data of the heatmaps.
        few: whether the heatmaps fit side by side.
        exact: whether the per-step heatmap is exact instead of estimated.
        healthy: whether there are only small findings.
        warnings: warnings about the numbers.
        n_steps: steps analysed.
        loss: a sentence on the loss whose shares the findings have; "" if it is negligible.
    """

    details: str
    numbers: str
    waterfall: str
    kinds: str
    stages: str
    findings: str
    remedies: str
    workers: dict[str, Any]
    workers_by_step: dict[str, Any]
    few: bool
    exact: bool
    healthy: bool
    warnings: tuple[str, ...]
    n_steps: int
    loss: str


def sections(report: JobReport) -> Sections:
    """The job page's sections about a session."""
    stages = {f"stage {stage}": s for stage, s in report.by_stage.items()}
    kinds = dict(sorted(report.by_kind.items(), key=lambda item: -item[1]))
    data = figure_data(report)
    both = ("n_pp", "n_dp", "hosts", "replicas")
    by_step = ("steps", "by_step", "traced_s", "workers_by_step")
    return Sections(
        details=details_html([*details(report), *_next_step(report)]),
        numbers=key_numbers(report, None),
        waterfall=waterfall_html(report, None),
        kinds=parts_html(kinds, "kind"),
        stages=parts_html(stages, "stage"),
        findings=findings_html(report),
        remedies=remedies_html(report),
        workers={name: data[name] for name in (*both, "workers")},
        workers_by_step={name: data[name] for name in (*both, *by_step)},
        few=report.job.replicas <= MAX_SIDE_BY_SIDE,
        exact=report.by_worker_by_step is not None,
        healthy=is_healthy(report),
        warnings=report.warning_texts,
        n_steps=len(report.steps),
        loss=_loss(report),
    )


def _next_step(report: JobReport) -> list[str]:
    """How to give the monitor the steps that may name the cause."""
    needed = steps_needed(report)
    if needed is None:
        return []
    push = "ush all steps of the recording as one session: paceline push FOLDER."
    if needed <= SESSION_STEPS:
        return [f"The end of the job, or a pause, cut this session short. P{push}"]
    return [
        f"Set PACELINE_SESSION_STEPS={needed} for the job: a session then has {needed} profiled "
        f"steps. Or p{push}"
    ]


def _loss(report: JobReport) -> str:
    if not report.straggling:
        return ""
    what = "the upper end of the waste: " if report.bounded else ""
    return f" The loss is {what}{size_of_loss(report)}."
