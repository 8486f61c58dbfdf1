"""Replays of a queue: their table on the terminal, as JSON, as parquet and as a page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, BinaryIO

import numpy as np
from rich.text import Text

from paceline.errors import OutputError
from paceline.files import Writer, check_targets, make_folder, text_writer, write_files
from paceline.report.layout import wrap
from paceline.report.page.frame import content_policy, paceline_version, static
from paceline.report.page.markup import escape, foreign, table
from paceline.report.page.pack import round_values, safe_json
from paceline.scheduling.summary import Labelled, figures, worse_off
from paceline.units import count, percent

SCHEMA = 1
JOBS, TIMELINE, RESULT, REPORT = "jobs.parquet", "timeline.parquet", "result.json", "report.html"

#: Most points of a curve, and most jobs of a list, in a page.
_POINTS, _LISTED = 400, 20
_SCRIPTS = ("base.js", "chart.js", "queue.js")

_HEAD = (
    *("policy", "deadlines met", "mean JCT", "p95 JCT", "mean wait", "makespan"),
    *("GPU-hours", "used", "restarts", "refused", "late", "worse off"),
)


def _row(entry: Labelled, first: Labelled) -> tuple[str, ...]:
    numbers = figures(entry.replay)

    def time_of(name: str) -> str:
        value = numbers[name]
        return "-" if value is None else duration(float(value))

    ratio = numbers["deadline_ratio"]
    worse = "-" if entry is first else f"{len(worse_off(first.replay, entry.replay)):,}"
    return (
        entry.label,
        "-" if ratio is None else percent(float(ratio)),
        *(time_of(n) for n in ("mean_jct_s", "p95_jct_s", "mean_wait_s", "makespan_s")),
        f"{entry.replay.gpu_hours:,.0f}",
        percent(entry.replay.utilisation),
        f"{int(entry.replay.restarts.sum()):,}",
        f"{len(entry.replay.refused):,}",
        f"{entry.replay.late:,}",
        worse,
    )


def duration(seconds: float) -> str:
    """A time of a queue in hours, or in minutes and seconds if short."""
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.3g} s"


def describe(entries: Sequence[Labelled]) -> str:
    """The replay in a line."""
    replay = entries[0].replay
    return f"{count(len(replay.jobs), 'job')} on {count(replay.gpus, 'GPU')}"


def lines(
    entries: Sequence[Labelled], notes: Sequence[str], warnings: Sequence[str], width: int
) -> list[Text]:
    """The screen: a table of the policies, reasons of refusals, and assumptions."""
    width = max(40, width)
    rows = [_HEAD, *(_row(entry, entries[0]) for entry in entries)]
    text = [*wrap(describe(entries), width, style="bold"), Text("")]
    text += _table(rows, width)
    for entry in entries:
        reasons = _reasons(entry)
        if reasons:
            text += [Text(""), Text(f"Refused by {entry.label}", style="bold")]
            text += [Text(f"{n:>8,}  {reason}") for reason, n in reasons]
    text.append(Text(""))
    for sentence in (*notes, *warnings):
        text += wrap(sentence, min(width, 132), style="dim")
    return text


def _table(rows: Sequence[Sequence[str]], width: int) -> list[Text]:
    """One row per policy, or one block per policy on a narrow screen."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    if sum(widths) + 2 * len(widths) <= width:
        text = []
        for i, row in enumerate(rows):
            cells = (f"{cell:>{size}}" for cell, size in zip(row[1:], widths[1:], strict=True))
            line = f"{row[0]:<{widths[0]}}  {'  '.join(cells)}"
            text.append(Text(line, style="" if i else "dim"))
        return text
    label = max(len(name) for name in rows[0])
    text = []
    for row in rows[1:]:
        text.append(Text(row[0], style="bold"))
        pairs = zip(rows[0][1:], row[1:], strict=True)
        text += [Text(f"  {name:<{label}}  {cell}") for name, cell in pairs]
    return text


def _reasons(entry: Labelled) -> list[tuple[str, int]]:
    """Reasons without the numbers of single jobs, the most frequent first."""
    kinds = Counter(
        "alone on the whole cluster they would end late" if reason.startswith("alone") else reason
        for reason in entry.replay.refused.values()
    )
    return kinds.most_common()


# Data.


def to_mapping(
    entries: Sequence[Labelled], choices: Mapping[str, Any], warnings: Sequence[str]
) -> dict[str, Any]:
    """The replays in the form of JSON."""
    first = entries[0]
    return {
        "schema": SCHEMA,
        "gpus": first.replay.gpus,
        "jobs": len(first.replay.jobs),
        "choices": dict(choices),
        "warnings": list(warnings),
        "replays": [
            {
                "label": entry.label,
                "policy": entry.replay.policy,
                **figures(entry.replay),
                "refused_jobs": {
                    entry.replay.jobs.job_id[i]: reason
                    for i, reason in entry.replay.refused.items()
                },
                "worse_off": []
                if entry is first
                else [
                    entry.replay.jobs.job_id[i]
                    for i in worse_off(first.replay, entry.replay).tolist()
                ],
            }
            for entry in entries
        ],
    }


def _jobs_columns(entries: Sequence[Labelled]) -> dict[str, Any]:
    """One row for each replay and job."""
    columns: dict[str, list[Any]] = {"replay": []}
    for entry in entries:
        replay, jobs = entry.replay, entry.replay.jobs
        n = len(jobs)
        columns["replay"] += [entry.label] * n
        values: dict[str, Iterable[Any]] = {
            "job_id": list(jobs.job_id),
            "submitted_s": jobs.submitted_s,
            "deadline_s": [None if np.isinf(d) else d for d in jobs.deadline_s.tolist()],
            "start_s": _or_none(replay.start_s),
            "end_s": _or_none(replay.end_s),
            "jct_s": _or_none(replay.jct_s),
            "wait_s": _or_none(replay.wait_s),
            "gpu_seconds": replay.gpu_seconds,
            "restarts": replay.restarts,
            "refused": [replay.refused.get(i) for i in range(n)],
            **jobs.labels,
        }
        for name, column in values.items():
            columns.setdefault(name, []).extend(column)
    return columns


def _or_none(values: Any) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]


def _timeline_columns(entries: Sequence[Labelled]) -> dict[str, Any]:
    replays = [entry.replay for entry in entries]
    return {
        "replay": [entry.label for entry in entries for _ in range(len(entry.replay.timeline))],
        "time_s": np.concatenate([replay.timeline.time_s for replay in replays]),
        "job_id": [r.jobs.job_id[i] for r in replays for i in r.timeline.job.tolist()],
        "gpus": np.concatenate([replay.timeline.gpus for replay in replays]),
    }


def _parquet(columns: Mapping[str, Any]) -> Writer:
    def write(file: BinaryIO) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(dict(columns)), file)

    return write


def check_folder(folder: Path, *, force: bool = False) -> None:
    """Check that :func:`write_folder` may write.

    Raises:
        OutputError: one of the files exists.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; --out takes a folder")
    check_targets([folder / name for name in (JOBS, TIMELINE, RESULT, REPORT)], force=force)


def write_folder(
    entries: Sequence[Labelled],
    choices: Mapping[str, Any],
    notes: Sequence[str],
    warnings: Sequence[str],
    folder: Path,
    *,
    force: bool = False,
) -> str:
    """Write the result, the jobs, the timeline and the page; returns a note for the user.

    Raises:
        OutputError: a file exists and ``force`` is not given, or cannot be written.
    """
    mapping = to_mapping(entries, choices, warnings)
    writers = {
        folder / JOBS: _parquet(_jobs_columns(entries)),
        folder / TIMELINE: _parquet(_timeline_columns(entries)),
        folder / RESULT: text_writer(f"{json.dumps(mapping, indent=1)}\n"),
        folder / REPORT: text_writer(page(entries, notes, warnings)),
    }
    make_folder(folder)
    write_files(writers, force=force)
    return f"wrote {', '.join(str(path) for path in writers)}"


# The page.


def page(entries: Sequence[Labelled], notes: Sequence[str], warnings: Sequence[str]) -> str:
    """The page: one self-contained file, like the page of ``analyze``."""
    script = "\n".join(static(name) for name in _SCRIPTS)
    first = entries[0]
    rows = [tuple(escape(cell) for cell in _row(entry, first)) for entry in entries]
    return Template(static("queue.html")).substitute(
        title=escape(f"Queue of {describe(entries)} · Paceline"),
        policy=escape(content_policy(script)),
        style=static("page.css"),
        job=foreign(describe(entries)),
        headline=_headline(entries),
        policies=table(_HEAD, rows),
        losers=_losers(entries),
        refused=_refused(entries),
        notes="".join(f"<p>{escape(note)}</p>" for note in (*notes, *warnings)),
        version=escape(paceline_version()),
        data=safe_json({"replays": [_curves(entry) for entry in entries]}),
        script=script,
    )


def _headline(entries: Sequence[Labelled]) -> str:
    scored = [(entry, figures(entry.replay)) for entry in entries]
    if all(numbers["deadline_ratio"] is not None for _, numbers in scored):
        best, numbers = max(scored, key=lambda pair: float(pair[1]["deadline_ratio"] or 0))
        ratio = percent(float(numbers["deadline_ratio"] or 0))
        return f"<b>{escape(best.label)}</b> meets the most deadlines: {ratio}"
    ran = [pair for pair in scored if pair[1]["mean_jct_s"] is not None]
    if not ran:
        return "No job ran"
    best, numbers = min(ran, key=lambda pair: float(pair[1]["mean_jct_s"] or 0))
    jct = duration(float(numbers["mean_jct_s"] or 0))
    return f"<b>{escape(best.label)}</b> has the shortest mean completion time: {jct}"


def _losers(entries: Sequence[Labelled]) -> str:
    first, parts = entries[0], []
    for entry in entries[1:]:
        rows = worse_off(first.replay, entry.replay)
        cells = [
            (
                foreign(entry.replay.jobs.job_id[i]),
                _end(first.replay.jct_s[i]),
                _end(entry.replay.jct_s[i]),
            )
            for i in rows[:_LISTED].tolist()
        ]
        intro = f"{count(len(rows), 'job')} under {escape(entry.label)}"
        parts.append(f"<p>{intro}{f', the {_LISTED} worst:' if len(rows) > _LISTED else '.'}</p>")
        if cells:
            parts.append(table(("job", escape(first.label), escape(entry.label)), cells))
    return "".join(parts) or "<p>One policy only: there is nothing to compare.</p>"


def _end(jct_s: float) -> str:
    return duration(float(jct_s)) if np.isfinite(jct_s) else "refused"


def _refused(entries: Sequence[Labelled]) -> str:
    rows = [
        (escape(entry.label), f"{n:,}", escape(reason))
        for entry in entries
        for reason, n in _reasons(entry)
    ]
    if not rows:
        return "<p>No job was refused.</p>"
    return table(("policy", "jobs", "why"), rows)


def _curves(entry: Labelled) -> dict[str, Any]:
    times, used = entry.replay.gpus_over_time()
    first = entry.replay.jobs.submitted_s[0] if len(entry.replay.jobs) else 0.0
    return {
        "label": entry.label,
        "jct_h": _quantiles(entry.replay.jct_s / 3600),
        "wait_h": _quantiles(entry.replay.wait_s / 3600),
        "time_h": round_values(_thin((times - first) / 3600)),
        "gpus": _thin(used).tolist(),
    }


def _quantiles(values: Any) -> list[float | None]:
    """A cumulative distribution, sampled at even shares of the jobs."""
    finite = np.sort(values[np.isfinite(values)])
    if not len(finite):
        return []
    return round_values(np.percentile(finite, np.linspace(0, 100, min(101, len(finite) + 1))))


def _thin(values: Any) -> Any:
    if len(values) <= _POINTS:
        return values
    return values[np.linspace(0, len(values) - 1, _POINTS).astype(int)]
