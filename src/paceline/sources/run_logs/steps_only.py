"""Timelines of logs with little beside steps: any log of step times, trainer_state.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.run_logs.dated_lines import read_dated_lines
from paceline.sources.run_logs.timeline import (
    Pause,
    PauseKind,
    Start,
    Steps,
    Timeline,
    steps_of,
)
from paceline.sources.step_logs.files import load_columns, texts_of
from paceline.sources.step_times import load_step_times

Array = npt.NDArray[np.float64]
Row = tuple[int, int, float, float]
_DAMAGED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
_NO_CLOCK = "the log has no dates: time between steps is unknown"


def read_steps(
    path: Path, pattern: str | None, given: Mapping[PauseKind, re.Pattern[str]] | None = None
) -> Timeline:
    """The timeline of one rank of a log of step times; a step that falls back is a restart.

    Dated lines beside the steps tell the begin of the job, checkpoints and evaluations.

    Args:
        path: the log.
        pattern: pattern of a step's line.
        given: kind of pause -> a user's pattern of its lines.

    Raises:
        TraceError: as of :func:`paceline.sources.step_logs.files.load_step_log`.
    """
    columns, notes, _ = load_columns(path, pattern)
    if columns is None:
        table = load_step_times(path)
        slowest = np.fmax.reduce(table.duration_s, axis=1)  # NaN without a sample
        columns = {"step": table.steps.astype(np.float64), "duration_s": slowest}
    rank = columns.get("rank", np.zeros(len(columns["step"])))
    mine = (rank == rank.min()) & (columns["duration_s"] > 0)
    step, duration_s = columns["step"][mine].astype(np.int64), columns["duration_s"][mine]
    if not len(step):
        raise TraceError(f"{path} has no step")
    times = columns["time_s"][mine] if "time_s" in columns else None
    breaks = np.flatnonzero(np.diff(step) <= 0) + 1
    starts, clock = [], 0.0
    for rows in np.split(np.arange(len(step)), breaks):
        table_rows = _rows(step[rows], duration_s[rows], None if times is None else times[rows])
        if times is None:
            table_rows = [(n, c, b + clock, e + clock) for n, c, b, e in table_rows]
            clock = table_rows[-1][3]
        starts.append(Start(table_rows[0][2], table_rows[-1][3], steps_of(table_rows)))
    has_clock = times is not None
    notes += () if has_clock else (_NO_CLOCK,)
    recorded: frozenset[PauseKind] = frozenset()
    if times is not None and _is_text(path):
        starts, recorded = _with_dated_lines(starts, path, times, given or {})
    elif given:
        raise TraceError(
            f"{path} has no dates beside its steps, so no pause can be placed; leave out "
            "--checkpoint and --evaluation"
        )
    return Timeline("step times", tuple(starts), recorded, has_clock=has_clock, notes=notes)


def _is_text(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".parquet", ".pq", ".csv", ".json", ".jsonl")


def _with_dated_lines(
    starts: list[Start], path: Path, times: Array, given: Mapping[PauseKind, re.Pattern[str]]
) -> tuple[list[Start], frozenset[PauseKind]]:
    """Starts with the pauses of the log's dated lines, and the kinds that these record."""
    dated = read_dated_lines(texts_of(path, []), times, str(path), given)
    first, last = starts[0], starts[-1]
    if dated.begin_s < first.begin_s:
        # Steps that the log does not show may lie between its begin and its first sample.
        is_whole = first.steps.first_step <= 1
        starts[0] = replace(first, begin_s=dated.begin_s, has_begin=is_whole)
    if dated.end_s > last.end_s:
        starts[-1] = replace(starts[-1], end_s=dated.end_s)
    begins = [start.begin_s for start in starts]
    for pause in dated.pauses:
        number = max(int(np.searchsorted(begins, pause.end_s, side="left")) - 1, 0)
        start = starts[number]
        starts[number] = replace(
            start,
            end_s=max(start.end_s, pause.end_s),
            steps=_beside(start.steps, pause),
            pauses=(*start.pauses, pause),
        )
    return starts, dated.recorded


def _beside(steps: Steps, pause: Pause) -> Steps:
    """Steps of which none begins or ends within the pause: that is rounding."""
    begins_in = (steps.begin_s > pause.begin_s) & (steps.begin_s < pause.end_s)
    ends_in = (steps.end_s > pause.begin_s) & (steps.end_s < pause.end_s)
    return replace(
        steps,
        begin_s=np.where(begins_in & ~ends_in, pause.end_s, steps.begin_s),
        end_s=np.where(ends_in & ~begins_in, pause.begin_s, steps.end_s),
    )


def _rows(step: npt.NDArray[np.int64], duration_s: Array, times: Array | None) -> list[Row]:
    """(last step, count, begin, end) of one start; without dates, samples follow each other.

    A sample stands for at most the usual number of steps: a log may begin in the middle of a run,
    and may lack lines.
    """
    usual = int(np.median(np.diff(step))) if len(step) > 1 else 1
    counts = np.minimum(np.diff(step, prepend=step[0] - usual), usual)
    counts[0] = max(min(usual, int(step[0])), 1)
    spent_s = counts * duration_s
    ends = np.cumsum(spent_s) if times is None else times
    begins = ends - spent_s
    return list(zip(step.tolist(), counts.tolist(), begins.tolist(), ends.tolist(), strict=True))


def read_trainer_state(path: Path) -> Timeline:
    """``trainer_state.json`` of Hugging Face's Trainer (transformers 5.23.0).

    ``train_runtime`` is the time since training began. Evaluations follow the step with which they
    are logged. Checkpoints are not logged; their time is part of the next step.

    Raises:
        TraceError: the file is damaged, or has no times
            (``include_num_input_tokens_seen="all"`` adds them).
    """
    try:
        history = json.loads(path.read_bytes())["log_history"]
        start = _trainer_start(history)
    except (OSError, RecursionError, *_DAMAGED) as error:
        raise TraceError(f"{path} is damaged ({type(error).__name__}: {error})") from None
    if start is None:
        raise TraceError(
            f"{path} has no times: set include_num_input_tokens_seen='all' in TrainingArguments"
        )
    notes = ("time before training began, and of saving checkpoints, is not in this file",)
    return Timeline("trainer_state.json", (start,), frozenset({"evaluation"}), notes=notes)


def _trainer_start(history: list[dict[str, float]]) -> Start | None:
    rows: list[Row] = []
    pauses: list[Pause] = []
    before_step, before_s, cursor_s, total_s = 0, 0.0, 0.0, 0.0
    for entry in history:
        step = int(entry["step"])
        if "eval_runtime" in entry:
            end_s = cursor_s + float(entry["eval_runtime"])
            pauses.append(Pause("evaluation", cursor_s, end_s))
            cursor_s = end_s
        elif "train_runtime" in entry:
            total_s = float(entry["train_runtime"])
            if step > before_step and "loss" in entry:
                rows.append((step, step - before_step, before_s, total_s))
                before_step, before_s, cursor_s = step, total_s, total_s
    if not rows:
        return None
    return Start(0.0, max(total_s, cursor_s), steps_of(rows), tuple(pauses), has_begin=True)
