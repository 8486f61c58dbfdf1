"""Step times in CSV files of Weights & Biases.

There are two forms. A chart's export has columns ``Step``, then ``RUN - METRIC`` with ``__MIN`` and
``__MAX`` beside it. ``run.history().to_csv()`` has ``_step``, ``_runtime``, ``_timestamp`` and
metrics.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.json_stream import lines, whole_lines
from paceline.sources.step_logs.lines import Columns
from paceline.sources.step_logs.metrics import (
    BETWEEN,
    NAMES,
    WORKLOADS,
    bare_name,
    columns_of,
    step_time_metric,
)

STEP_COLUMNS = ("Step", "_step", "trainer/global_step", "global_step")
_CLOCKS = ("_runtime", "_timestamp", "Relative Time (Process)")


def is_header(line: str) -> bool:
    """Whether a line is the header of such a file."""
    cells = next(csv.reader([line]), [])
    return len(cells) > 1 and any(cell.strip() in STEP_COLUMNS for cell in cells)


def read_wandb(path: Path) -> tuple[Columns, tuple[str, ...]]:
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
    table = {name: i for i, name in enumerate(head)}
    metrics = [name for name in head if not name.endswith(("__MIN", "__MAX"))]
    metric = step_time_metric(metrics, str(path))
    clock = next((name for name in _CLOCKS if name in table), None)
    source = metric or clock
    if source is None:
        raise TraceError(
            f"{path} has no step times: none of its columns is one of {NAMES}, and _runtime and "
            "_timestamp are missing, too"
        )
    step_name = next(name for name in STEP_COLUMNS if name in table)
    step, values = (_numbers(path, cells, table[name], name) for name in (step_name, source))
    logged = np.isfinite(step) & np.isfinite(values)
    workload = {
        WORKLOADS[bare_name(name)]: _numbers(path, cells, table[name], name)[logged]
        for name in metrics
        if bare_name(name) in WORKLOADS
    }
    columns = columns_of(step[logged], values[logged], metric, workload)
    return columns, (*notes, *([] if metric else [BETWEEN]))


def _closed_lines(path: Path, notes: list[str]) -> Iterator[str]:
    """Whole lines; also a last line without an end if a quotation mark closes its last cell."""
    yield from whole_lines(path, notes)
    if notes and (last := deque(lines(path), 1)) and last[0].endswith('"'):
        notes.clear()
        yield last[0]


def _numbers(path: Path, cells: list[list[str]], column: int, name: str) -> npt.NDArray[np.float64]:
    try:
        return np.array([float(row[column]) if row[column].strip() else np.nan for row in cells])
    except ValueError:
        raise TraceError(f"{path}: the column {name} holds words, not numbers") from None
