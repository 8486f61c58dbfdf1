"""Step times in logs of MLPerf Training (``:::MLLOG``).

Held against results of training v3.1 (commit f33f944) and v5.1 (commit 4da2d1c) of mlcommons, and
the callbacks of NVIDIA's submissions that write them: a line ``tracked_stats`` has a value
``train_step_time`` (seconds) and, in its metadata, ``step`` or ``samples_count``. Both count
samples or tokens: the step is their multiple of what one step takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from paceline.errors import TraceError
from paceline.sources.step_logs.lines import Columns

#: What each line begins with, behind a launcher's words.
CUE = ":::MLLOG"
_STATS, _BATCH, _LENGTH = '"tracked_stats"', '"global_batch_size"', '"max_sequence_length"'


def read_mlperf(lines: Iterable[str], where: str) -> Columns:
    """Columns step, duration_s and batch (samples).

    Raises:
        TraceError: no line has a ``train_step_time``.
    """
    counts, durations = [], []
    sizes: dict[str, float] = {}
    for line in lines:
        if CUE not in line or not any(word in line for word in (_STATS, _BATCH, _LENGTH)):
            continue
        entry = _entry(line)
        value, metadata = entry.get("value"), entry.get("metadata")
        if isinstance(value, int | float):
            sizes[str(entry.get("key"))] = float(value)
        elif isinstance(value, dict) and isinstance(metadata, dict):
            count = metadata.get("step", metadata.get("samples_count"))
            seconds = value.get("train_step_time")
            if isinstance(count, int | float) and isinstance(seconds, int | float):
                counts.append(float(count))
                durations.append(float(seconds))
    if not counts:
        raise TraceError(
            f"{where} is a log of MLPerf without a train_step_time; not all submissions write one"
        )
    batch = sizes.get("global_batch_size", np.nan)
    per_step = _count_of_a_step(np.array(counts), batch, sizes.get("max_sequence_length", np.nan))
    return {
        "step": np.array(counts) / per_step,
        "duration_s": np.array(durations),
        "batch": np.full(len(counts), batch),
    }


def _count_of_a_step(counts: np.ndarray[Any, Any], batch: float, length: float) -> float:
    """What the counts grow by in a step: its tokens, its samples, or 1."""
    for size in (batch * length, batch):
        if size > 0 and not (counts % size).any():
            return float(size)
    return 1.0


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line[line.index("{") :])
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}
