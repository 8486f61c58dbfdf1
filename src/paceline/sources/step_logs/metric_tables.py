"""Step times in tables of metrics: CSV and JSON lines of trackers and of own training loops.

A table has a step, and a metric that is a step time or a clock, under the names that trainers use.
Weights & Biases has two forms. A chart's export has columns ``Step``, then ``RUN - METRIC`` with
``__MIN`` and ``__MAX`` beside it. ``run.history().to_csv()`` has ``_step``, ``_runtime``,
``_timestamp`` and metrics. JSON lines may hold their metrics in an inner object, as those of verl's
file logger do (commit b178a3c, ``verl/utils/tracking.py``).
"""

from __future__ import annotations

import csv
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.json_stream import lines, whole_lines
from paceline.sources.step_logs.lines import Columns, stamp_seconds
from paceline.sources.step_logs.metrics import (
    BETWEEN,
    NAMES,
    WORKLOADS,
    bare_name,
    columns_of,
    step_time_metric,
    unit_notes,
)
from paceline.sources.step_times import json_lines

Array = npt.NDArray[np.float64]
Table = Mapping[str, Sequence[Any]]

#: Names of the step of a tracker's table, and of tables of own training loops.
TRACKED_STEPS = ("Step", "_step", "trainer/global_step", "global_step")
STEP_COLUMNS = (*TRACKED_STEPS, "step", "iteration", "iter", "train/global_step")
_CLOCKS = ("_runtime", "_timestamp", "Relative Time (Process)", "timestamp", "wall_time")


def is_header(line: str) -> bool:
    """Whether a line is the header of a CSV that a tracker wrote."""
    cells = next(csv.reader([line]), [])
    return len(cells) > 1 and any(cell.strip() in TRACKED_STEPS for cell in cells)


def has_step_times(names: Sequence[str]) -> bool:
    """Whether a table with these columns has a step, and a metric that is a step time or a clock.

    Raises:
        TraceError: as :func:`step_time_metric`.
    """
    has_step = any(name in STEP_COLUMNS for name in names)
    return has_step and (step_time_metric(names, "the table") or _clock_of(names)) is not None


def metrics_of_line(line: str) -> list[str]:
    """Names of the metrics in a JSON line; empty if it is no JSON object."""
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return list(_flat(sample)) if isinstance(sample, dict) else []


def read_csv(path: Path) -> tuple[Columns, tuple[str, ...]]:
    """Columns, and notes.

    Raises:
        TraceError: no column is a step time or a clock, or a cell is no number.
    """
    notes: list[str] = []
    rows = csv.reader(_closed_lines(path, notes))
    try:
        head = [cell.strip() for cell in next(rows, [])]
        every = [row for row in rows if row]
    except csv.Error as error:
        raise TraceError(f"{path} is no CSV: {error}") from None
    cells = [row for row in every if len(row) == len(head)]
    if len(cells) < len(every):
        n_other = len(every) - len(cells)
        notes.append(f"{n_other} lines are left out: their number of cells is not the header's")
    return _read(path, {name: [row[i] for row in cells] for i, name in enumerate(head)}, notes)


def read_json_lines(path: Path) -> tuple[Columns, tuple[str, ...]]:
    """Columns, and notes.

    Raises:
        TraceError: a line is no JSON object, or a value is no number.
    """
    notes: list[str] = []
    rows = json_lines(whole_lines(path, notes), str(path))
    samples = [_flat(sample) for _, sample in rows]
    names = dict.fromkeys(name for sample in samples for name in sample)
    return _read(path, {name: [s.get(name) for s in samples] for name in names}, notes)


def _read(path: Path, table: Table, notes: list[str]) -> tuple[Columns, tuple[str, ...]]:
    metrics = [name for name in table if not name.endswith(("__MIN", "__MAX"))]
    metric = step_time_metric(metrics, str(path))
    source = metric or _clock_of(metrics)
    if source is None:
        raise TraceError(
            f"{path} has no step times: none of its columns is one of {NAMES}, and _runtime and "
            "_timestamp are missing, too"
        )
    step_name = next(name for name in STEP_COLUMNS if name in table)
    wanted = [step_name, source, *(name for name in metrics if bare_name(name) in WORKLOADS)]
    step, values, *work = (_numbers(path, table[name], name) for name in wanted)
    logged = np.isfinite(step) & np.isfinite(values)
    workload = {
        WORKLOADS[bare_name(name)]: column[logged]
        for name, column in zip(wanted[2:], work, strict=True)
    }
    if "rank" in table:
        workload["rank"] = np.nan_to_num(_numbers(path, table["rank"], "rank"))[logged]
    columns = columns_of(step[logged], values[logged], metric, workload)
    return columns, (*notes, *(unit_notes(metric) if metric else [BETWEEN]))


def _clock_of(names: Sequence[str]) -> str | None:
    return next((name for name in _CLOCKS if name in names), None)


def _flat(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an object and of the objects in it, which give their names a prefix."""
    flat: dict[str, Any] = {}
    for name, value in sample.items():
        if isinstance(value, dict):
            flat |= {f"{name}/{inner}": one for inner, one in value.items()}
        else:
            flat[name] = value
    return flat


def _closed_lines(path: Path, notes: list[str]) -> Iterator[str]:
    """Whole lines; also a last line without an end if a quotation mark closes its last cell."""
    yield from whole_lines(path, notes)
    if notes and (last := deque(lines(path), 1)) and last[0].endswith('"'):
        notes.clear()
        yield last[0]


def _numbers(path: Path, values: Sequence[Any], name: str) -> Array:
    """[row] numbers of a column; of a clock, dates count, too."""
    try:
        return np.array([_number(value) for value in values], dtype=float)
    except (TypeError, ValueError, OverflowError):
        pass
    if name in _CLOCKS:
        return np.array([stamp_seconds(value and str(value), str(path)) for value in values])
    raise TraceError(f"{path}: the column {name} holds words, not numbers")


def _number(value: Any) -> float:
    if value is None or (isinstance(value, str) and not value.strip()):
        return np.nan
    return float(value)
