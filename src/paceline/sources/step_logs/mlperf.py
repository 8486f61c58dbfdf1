"""Step times in logs of MLPerf Training (``:::MLLOG``).

Held against results of training v3.1 (commit f33f944) and v5.1 (commit 4da2d1c) of mlcommons, and
the callbacks of NVIDIA's submissions that write them. A line ``tracked_stats`` has a value
``train_step_time`` (seconds). Its metadata has ``step`` or ``samples_count``. Both count samples or
tokens; divided by the count of one step, they give the step's number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from paceline.errors import TraceError
from paceline.sources.step_logs.lines import Columns

#: Prefix of each line; a launcher may put its own words in front.
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
        entry = entry_of(line)
        try:
            if isinstance(entry.get("value"), int | float):
                sizes[str(entry.get("key"))] = float(entry["value"])
            sample = train_step_time(entry)
        except OverflowError as error:
            raise TraceError(f"{where} is damaged ({error})") from None
        if sample is not None:
            counts.append(sample[0])
            durations.append(sample[1])
    if not counts:
        raise TraceError(
            f"{where} is a log of MLPerf without a train_step_time; not all submissions write one"
        )
    batch = sizes.get("global_batch_size", np.nan)
    per_step = count_of_a_step(np.array(counts), batch, sizes.get("max_sequence_length", np.nan))
    return {
        "step": np.array(counts) / per_step,
        "duration_s": np.array(durations),
        "batch": np.full(len(counts), batch),
    }


def count_of_a_step(counts: np.ndarray[Any, Any], batch: float, length: float) -> float:
    """Growth of the counts in a step: its tokens, its samples, or 1."""
    for size in (batch * length, batch):
        if size > 0 and not (counts % size).any():
            return float(size)
    return 1.0


def train_step_time(entry: Mapping[str, Any]) -> tuple[float, float] | None:
    """(samples or steps so far, seconds a step) of an entry; None if it has none."""
    value, metadata = entry.get("value"), entry.get("metadata")
    if not isinstance(value, dict) or not isinstance(metadata, dict):
        return None
    count = metadata.get("step", metadata.get("samples_count"))
    seconds = value.get("train_step_time")
    if not isinstance(count, int | float) or not isinstance(seconds, int | float):
        return None
    return float(count), float(seconds)


def entry_of(line: str) -> dict[str, Any]:
    """Content of a line of such a log; empty for other lines."""
    if CUE not in line:
        return {}
    try:
        entry = json.loads(line[line.index("{") :])
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}
