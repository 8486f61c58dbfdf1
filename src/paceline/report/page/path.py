"""The critical path as HTML: what the step consists of, by kind, stage and worker."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.report.critical_path import leader_text, near_text
from paceline.report.page.markup import bar, escaped, table
from paceline.units import percent, seconds
from paceline.whatif.critical_path import LAUNCH_DELAY, CriticalPath
from paceline.whatif.segments import Sort

#: Workers in the table.
TOP = 8


def path_html(path: CriticalPath) -> dict[str, str]:
    """The pieces that ``figures.html`` asks for."""
    kinds = {label: share for label, share in path.by_kind.items() if share > 0}
    ranked = dict(sorted(kinds.items(), key=lambda item: -item[1]))
    names = {("between operations" if k == LAUNCH_DELAY else k): v for k, v in ranked.items()}
    stages = {f"stage {stage}": share for stage, share in path.by_stage.items()}
    return {
        "path_text": _text(path),
        "path_kinds": _shares(names, "kind"),
        "path_stages": _shares(stages, "stage"),
        "path_workers": _workers(path),
    }


def _text(path: CriticalPath) -> str:
    workers = path.n_dp * path.n_pp
    sentences = []
    if workers > 1:
        text = leader_text(path)
        sentences.append(f"{text[0].upper()}{text[1:]}.")
        if path.slack is not None:
            sentences.append(f"{near_text(path.slack, workers)}.")
    occupied = path.by_sort[Sort.OCCUPIED.label]
    if occupied >= 0.005:
        sentences.append(
            f"{percent(occupied)} of it is of operations behind which the next one was launched "
            "although it does not depend on them (occupied workers)."
        )
    return f"<p>{escaped(' '.join(sentences))}</p>" if sentences else ""


def _shares(shares: Mapping[str, float], head: str) -> str:
    top = max(shares.values(), default=1.0)
    rows = [
        [escaped(name), bar(0.0, share / top, name="level"), percent(share)]
        for name, share in shares.items()
    ]
    return table([head, "", "share of the step"], rows, name="parts", numeric_from=2)


def _workers(path: CriticalPath) -> str:
    """The workers with the largest shares, and how much longer their computes could take."""
    shares = path.by_worker
    order = np.argsort(-shares, axis=None, kind="stable")[:TOP]
    head = ["worker", "share of the step", "the most in", "least slack", "median slack"]
    lead = path.worker_s.reshape(len(path.steps), -1).argmax(axis=1)
    rows = []
    for flat in order.tolist():
        pp, dp = divmod(flat, path.n_dp)
        if shares[pp, dp] <= 0:
            break
        steps = int((lead == flat).sum())
        slack = path.slack
        extents = (None, None) if slack is None else (slack.least_s[pp, dp], slack.median_s[pp, dp])
        rows.append(
            [
                escaped(f"dp {dp}, stage {pp}"),
                percent(float(shares[pp, dp])),
                f"{steps} of {len(path.steps)} steps",
                *("–" if value is None else seconds(max(float(value), 0.0)) for value in extents),
            ]
        )
    return table(head, rows, caption="Workers on the path", name="workers", numeric_from=1)
