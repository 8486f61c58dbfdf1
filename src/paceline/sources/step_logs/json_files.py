"""Step times in JSON files: Hugging Face's ``trainer_state.json``, Prometheus' range queries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import TraceError
from paceline.sources.step_logs.lines import Columns, steps_of_elapsed

#: Words in the first characters of each kind of file.
TRAINER_STATE, PROMETHEUS = '"log_history"', '"resultType"'

#: Ending of a metric's name -> its unit, in seconds.
_UNITS = {"_ms": 1e-3, "_milliseconds": 1e-3, "_us": 1e-6, "_microseconds": 1e-6}

#: Number of series that a note names.
_LISTED = 8

_SCRAPES = (
    "each sample is a scrape, not a step: scrapes are numbered as steps, and lost seconds are of "
    "the sampled steps only"
)


def read_json(path: Path, head: str) -> tuple[Columns, tuple[str, ...]]:
    """Columns, and notes.

    Raises:
        TraceError: the file is damaged, or has no step times.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path} is no JSON: {str(error)[:200]}") from None
    read = _trainer_state if TRAINER_STATE in head else _prometheus
    try:
        return read(content, path)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise TraceError(f"{path} is damaged ({reason[:200]})") from None


def _trainer_state(content: dict[str, Any], path: Path) -> tuple[Columns, tuple[str, ...]]:
    """``Trainer.log`` (transformers 5.23.0) adds ``train_runtime`` where it counts tokens."""
    rows = [entry for entry in content["log_history"] if "loss" in entry]
    timed = [entry for entry in rows if "train_runtime" in entry]
    if len(timed) < 2:
        raise TraceError(
            f"{path} has no times: set include_num_input_tokens_seen='all' in TrainingArguments, "
            "and logging_steps=1 for single steps"
        )
    step = np.array([float(entry["step"]) for entry in timed])
    elapsed_s = np.array([float(entry["train_runtime"]) for entry in timed])
    tokens = np.array([float(entry.get("num_input_tokens_seen", np.nan)) for entry in timed])
    seconds = steps_of_elapsed(step, np.zeros(len(step)), elapsed_s)
    per_step = steps_of_elapsed(step, np.zeros(len(step)), tokens)
    known = np.isfinite(seconds)
    columns = {"step": step, "duration_s": seconds, "tokens": per_step}
    return {name: column[known] for name, column in columns.items()}, ()


def _prometheus(content: dict[str, Any], path: Path) -> tuple[Columns, tuple[str, ...]]:
    """A matrix (HTTP API v1). A series has its labels (``metric``) and values [time, "number"]."""
    data = content.get("data", content)
    if data["resultType"] != "matrix" or not data["result"]:
        raise TraceError(f"{path} holds no matrix; ask Prometheus' query_range for a gauge")
    names = {series["metric"].get("__name__", "") for series in data["result"]}
    if len(names) > 1:
        raise TraceError(f"{path} holds several metrics ({', '.join(sorted(names))}); give one")
    (name,) = names
    scale = next((unit for end, unit in _UNITS.items() if name.endswith(end)), 1.0)
    stamps = sorted({float(at) for series in data["result"] for at, _ in series["values"]})
    number_of = {at: i for i, at in enumerate(stamps)}
    samples = [
        (number_of[float(at)], _rank(series["metric"], place), float(value) * scale)
        for place, series in enumerate(data["result"])
        for at, value in series["values"]
    ]
    step, rank, seconds = np.array(samples).T
    known = np.isfinite(seconds)
    notes = (_SCRAPES, *_numbered([series["metric"] for series in data["result"]]))
    return {"step": step[known], "rank": rank[known], "duration_s": seconds[known]}, notes


def _numbered(labels: Sequence[Mapping[str, str]]) -> list[str]:
    """A note on the numbers of series that lack the label rank."""
    if len(labels) < 2 or any("rank" in own for own in labels):
        return []
    names = sorted({name for own in labels for name in own})
    apart = [name for name in names if len({own.get(name) for own in labels}) > 1]
    numbers = [
        f"{place} is {', '.join(f'{name} {own[name]}' for name in apart if name in own)}"
        for place, own in enumerate(labels[:_LISTED])
    ]
    more = [f"and {len(labels) - _LISTED:,} more"] if len(labels) > _LISTED else []
    return ["series without a label rank are numbered as ranks: " + "; ".join([*numbers, *more])]


def _rank(labels: dict[str, str], place: int) -> float:
    """The label rank, else the place among the series."""
    return float(labels.get("rank", place))
