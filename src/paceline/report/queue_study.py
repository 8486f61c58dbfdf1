"""vTrain's case study as text and as JSON: every window, beside the paper's figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from paceline.files import check_targets, make_folder, text_writer, write_files
from paceline.report.layout import wrap
from paceline.scheduling.study import PAPER, WITHOUT, Study
from paceline.scheduling.study import to_mapping as study_mapping
from paceline.scheduling.summary import interval_of_mean

SCHEMA = 1
RESULT = "result.json"

#: Part, jobs (0 = all), name, key of the summary.
_PARTS = (
    ("deadlines", 64, "deadlines met, 64 jobs, best plans over fixed", "deadline_gain_64"),
    ("deadlines", 128, "deadlines met, 128 jobs, best plans over fixed", "deadline_gain_128"),
    ("jct", WITHOUT, f"mean JCT, {WITHOUT} jobs without deadlines", "jct_change"),
    ("makespan", 0, "makespan, 16 to 72 jobs at once, largest change", "makespan_change"),
)


def lines(study: Study, width: int) -> list[Text]:
    """The screen: the paper's figures and ours, every window, every choice."""
    width = max(40, min(width, 132))
    summary = study.summary()
    text = [
        *wrap(
            "vTrain V-B: ElasticFlow with fixed plans against the best plans", width, style="bold"
        )
    ]
    for part, jobs, words, key in _PARTS:
        gains = [w.gain for w in study.windows if w.part == part and jobs in (0, w.jobs)]
        gains.sort(reverse=part != "deadlines")
        text.append(Text(""))
        text += wrap(
            f"{words}: {_value(part, summary[key])}{_interval(part, gains)}; "
            f"the paper {_value(part, PAPER[key])}",
            width,
        )
        text += wrap(
            f"windows, worst first: {', '.join(_value(part, g) for g in gains)}",
            width,
            indent="  ",
            style="dim",
        )
    text.append(Text(""))
    late = int(summary["late"])
    text += wrap(f"Admitted jobs that ended late, over all windows: {late}", width)
    text.append(Text(""))
    for sentence in choices(study):
        text += wrap(sentence, width, style="dim")
    return text


def _value(part: str, gain: float) -> str:
    return f"{gain:.2f} x" if part == "deadlines" else f"{gain:+.1%}"


def _interval(part: str, gains: list[float]) -> str:
    interval = interval_of_mean(np.array(gains)) if part != "makespan" else None
    if interval is None:
        return ""
    return f" (80% of resampled windows {_value(part, interval[0])} to {_value(part, interval[1])})"


def choices(study: Study) -> list[str]:
    """Details that the paper leaves out, and the chosen values."""
    c = study.choices
    degrees = ", ".join(f"{name} tp {t} pp {p}" for name, (t, p) in study.tables.degrees.items())
    return [
        "The paper leaves many details open; agreement with it shows only that these choices are "
        "plausible:",
        f"arrivals stretched to {c.span_h:g} h; durations log-uniform from {c.duration_h[0]:g} to "
        f"{c.duration_h[1]:g} h on {', '.join(map(str, c.duration_gpus))} GPUs with the fixed "
        "plan; models drawn evenly.",
        f"Fixed plans: {degrees}; {c.software}'s software; slots of {c.slot_s:g} s; rescaling "
        f"{c.rescale_s:g} s, in the plan; powers of two; marginal return by GPU-time {c.marginal}; "
        f"jobs without GPUs by {c.order}; seed {c.seed}.",
    ]


def to_mapping(study: Study) -> dict[str, Any]:
    """The study in the form of JSON."""
    return {"schema": SCHEMA, **study_mapping(study)}


def write(study: Study, folder: Path, *, force: bool = False) -> str:
    """Write ``result.json``; returns a note for the user.

    Raises:
        OutputError: the file exists and ``force`` is not given, or it cannot be written.
    """
    path = folder / RESULT
    check_targets([path], force=force)
    make_folder(folder)
    write_files({path: text_writer(f"{json.dumps(to_mapping(study), indent=1)}\n")}, force=force)
    return f"wrote {path}"
