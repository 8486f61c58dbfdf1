"""The critical path as HTML: parts of the step by kind, stage and worker."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.report.page.markup import bar, escape, table
from paceline.results.path import PathSummary, SlackSummary
from paceline.results.words.path import leader_text, near_text
from paceline.trace import Job
from paceline.trace.kinds import kind_name
from paceline.units import percent, seconds
from paceline.whatif.critical_path import LAUNCH_DELAY
from paceline.whatif.segments import Sort

#: Most workers in the table.
MAX_WORKERS = 8


def path_html(path: PathSummary | None, job: Job, all_reduces: bool = False) -> dict[str, str]:
    """The pieces for ``figures.html``; empty if the document has no path."""
    if path is None:
        return dict.fromkeys(("path_text", "path_kinds", "path_stages", "path_workers"), "")
    kinds = {label: share for label, share in path.by_kind.items() if share > 0}
    ranked = dict(sorted(kinds.items(), key=lambda item: -item[1]))
    names = {
        "between operations" if label == LAUNCH_DELAY else kind_name(label, all_reduces): share
        for label, share in ranked.items()
    }
    stages = {f"stage {stage}": share for stage, share in path.by_stage.items()}
    return {
        "path_text": _text(path, job),
        "path_kinds": _shares(names, "kind"),
        "path_stages": _shares(stages, "stage"),
        "path_workers": _workers(path, job),
    }


def _text(path: PathSummary, job: Job) -> str:
    sentences = []
    if job.workers > 1:
        text = leader_text(path, job)
        sentences.append(f"{text[0].upper()}{text[1:]}.")
        if path.slack is not None:
            sentences.append(f"{near_text(path.slack, job.workers)}.")
    occupied = path.by_sort[Sort.OCCUPIED.label]
    if occupied >= 0.005:
        sentences.append(
            f"{percent(occupied)} of it is occupied workers: the next operation started after "
            "such an operation without depending on it."
        )
    return f"<p>{escape(' '.join(sentences))}</p>" if sentences else ""


def _shares(shares: Mapping[str, float], head: str) -> str:
    top = max(shares.values(), default=1.0)
    rows = [
        [escape(name), bar(0.0, share / top, name="level"), percent(share)]
        for name, share in shares.items()
    ]
    return table([head, "", "share of the step"], rows, name="parts", numeric_from=2)


def _workers(path: PathSummary, job: Job) -> str:
    """The workers with the largest shares, and the slack of their computes."""
    head = ["worker", "share of the step", "the most in steps", "least slack", "median slack"]
    rows = []
    for dp, pp, share in path.by_worker[:MAX_WORKERS]:
        rows.append(
            [
                escape(job.worker_name(dp, pp)),
                percent(share),
                f"{path.steps_led_by(dp, pp)} of {len(path.by_step)}",
                *_slack(path.slack, dp, pp),
            ]
        )
    return table(head, rows, caption="Workers on the path", name="workers", numeric_from=1)


def _slack(slack: SlackSummary | None, dp: int, pp: int) -> list[str]:
    """The least and the median slack of a worker, if known."""
    tables = (None, None) if slack is None else (slack.by_worker, slack.median_by_worker)
    return ["–" if s is None else seconds(max(float(s[pp, dp]), 0.0)) for s in tables]
