"""Step times of ranks: CSV, parquet or JSON lines -> a table [step, rank]."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.json_stream import end_notes, open_bytes, read_chunk

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Columns with the planned work of a step.
WORKLOAD_COLUMNS = ("tokens", "samples", "batch", "sequence_length", "window", "flops")

_COLUMNS = (
    *("step", "rank", "duration_s", "duration_ms", "start_s", "wait_s"),
    *WORKLOAD_COLUMNS,
)
#: Columns of times -> their unit in seconds. The first one that a table has counts.
_TIMES = {"duration_s": 1.0, "duration_ms": 1e-3, "start_s": 1.0}
#: Characters between the cells of a table.
_DELIMITERS = (",", ";", "\t")
#: Logarithms of the ratio of two units, seconds and milliseconds; share of samples that may have
#: such a ratio by chance.
_UNITS, _FEW_OF_A_UNIT = (2.9, 3.1), 0.02
_MAX_CELLS = 1 << 28  # 2 GB of durations
_MAX_STEP = 1 << 53  # from here, a float cannot hold every whole number


@dataclass(frozen=True)
class StepTimes:
    """Duration of each step on each rank.

    Attributes:
        steps: [step] numbers, ascending.
        ranks: [rank] numbers, ascending.
        duration_s: [step, rank] seconds; nan = no sample.
        warnings: notes on empty, repeated and unsorted samples.
        workload: column -> [step] the step's planned work, for the columns that have it.
        steps_per_sample: number of steps that a row stands for, if only some steps are logged.
        counts_lines: whether the log's lines have no step numbers, so that a "step" is a line.
        wait_s: [step, rank] seconds in which a rank waited for others; None if not given.
        data_wait_s: [step, rank] seconds in which a rank waited for its data; None if not measured.
    """

    steps: Ints
    ranks: Ints
    duration_s: Array
    warnings: tuple[str, ...]
    workload: Mapping[str, Array] = field(default_factory=dict)
    steps_per_sample: int = 1
    counts_lines: bool = False
    wait_s: Array | None = None
    data_wait_s: Array | None = None

    def workload_of(self, row: int) -> dict[str, float] | None:
        """A step's work, by column; None if it is not known."""
        if not self.workload:
            return None
        values = {name: float(column[row]) for name, column in self.workload.items()}
        return {name: value for name, value in values.items() if np.isfinite(value)} or None


def load_step_times(path: Path) -> StepTimes:
    """Read step times: columns ``step``, ``duration_s`` (or ``start_s``) and, optionally, ``rank``.

    ``duration_ms`` replaces ``duration_s``. Cells of a text are apart by commas, semicolons or
    tabs. With ``start_s`` a step lasts until the rank's next one starts; the last has no duration.

    Raises:
        TraceError: the file cannot be read, or lacks columns, or holds no sample.
    """
    columns = _columns(path)
    numbers_of = {name: _numbers(path, name, values) for name, values in columns.items()}
    timed = next((name for name in _TIMES if name in numbers_of), "start_s")
    missing = [name for name in ("step", timed) if name not in numbers_of]
    if missing:
        time_columns = "duration_s (or start_s)" if missing[-1] == "start_s" else ""
        names = [time_columns if name == "start_s" else name for name in missing]
        near = get_close_matches(missing[0], list(columns), n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise TraceError(
            f"{path} lacks the columns {', '.join(names)}{hint}; it has "
            f"{', '.join(columns)[:200] or 'none'}"
        )
    if timed == "duration_ms":
        numbers_of["duration_s"] = numbers_of[timed] * _TIMES[timed]
    table = table_of(str(path), numbers_of, starts=timed == "start_s")
    notes = () if path.suffix in (".parquet", ".pq") else end_notes(path)
    return replace(table, warnings=(*notes, *table.warnings))


def table_of(where: str, columns: Mapping[str, Array], *, starts: bool = False) -> StepTimes:
    """A table from columns of samples.

    Args:
        where: the file, for errors.
        columns: ``step``, ``duration_s`` and, optionally, ``rank``, ``wait_s`` and workload, each
            [sample].
        starts: the column is ``start_s`` in place of ``duration_s``: a step lasts until the rank's
            next one starts.

    Raises:
        TraceError: there is no sample, or a step or rank is no whole number.
    """
    step, value = columns["step"], columns["start_s" if starts else "duration_s"]
    rank = columns.get("rank", np.zeros(len(step)))
    if not len(step):
        raise TraceError(f"{where} holds no sample")
    for name, numbers in (("step", step), ("rank", rank)):
        is_whole = (np.abs(numbers) < _MAX_STEP) & (numbers == np.round(numbers))
        bad = np.flatnonzero(~is_whole)
        if len(bad):
            raise TraceError(f"{where}: row {bad[0] + 1}: {name} must be a whole number")
    table = _table(where, step.astype(np.int64), rank.astype(np.int64), value, starts)
    workload = _workload(columns, step.astype(np.int64), table.steps)
    return replace(table, workload=workload, wait_s=_waits(columns, step, rank, table))


def _waits(
    columns: Mapping[str, Array], step: Array, rank: Array, table: StepTimes
) -> Array | None:
    """[step, rank] the waits of samples, if they have any."""
    if "wait_s" not in columns:
        return None
    wait_s = np.full((len(table.steps), len(table.ranks)), np.nan)
    row, column = np.searchsorted(table.steps, step), np.searchsorted(table.ranks, rank)
    wait_s[row, column] = columns["wait_s"]
    return wait_s


def _workload(columns: Mapping[str, Array], step: Ints, steps: Ints) -> dict[str, Array]:
    """Column -> [step] the step's work: the largest value of its ranks."""
    workload = {}
    for name in WORKLOAD_COLUMNS:
        if name in columns:
            values = np.full(len(steps), np.nan)
            np.fmax.at(values, np.searchsorted(steps, step), columns[name])
            workload[name] = values
    return workload


def _table(where: str, step: Ints, rank: Ints, value: Array, starts: bool) -> StepTimes:
    steps, row = np.unique(step, return_inverse=True)
    ranks, column = np.unique(rank, return_inverse=True)
    if len(steps) * len(ranks) > _MAX_CELLS:
        raise TraceError(
            f"{where}: {len(steps):,} steps x {len(ranks):,} ranks are too many at once"
        )
    warnings = []
    by_rank = np.argsort(column, kind="stable")
    falls = (np.diff(row[by_rank]) < 0) & (np.diff(column[by_rank]) == 0)
    unsorted = int(falls.sum())
    if unsorted:
        warnings.append(f"{unsorted} samples were not in the order of their steps; sorted")
    flat = row * len(ranks) + column
    repeated = len(flat) - len(np.unique(flat))
    if repeated:
        warnings.append(f"{repeated} samples repeat a step of their rank; the last counts")
    table = np.full((len(steps), len(ranks)), np.nan)
    table.ravel()[flat] = value
    if starts:
        table = np.vstack([np.diff(table, axis=0), np.full((1, len(ranks)), np.nan)])
    warnings += _unit_notes(table, ranks)
    empty = int(np.isnan(value).sum())
    if empty:
        warnings.append(f"{empty} samples are empty")
    return StepTimes(steps, ranks, table, tuple(warnings))


def _unit_notes(table: Array, ranks: Ints) -> list[str]:
    """A note if some durations are about 1,000 times the others, as milliseconds are."""
    with np.errstate(invalid="ignore"):
        logs = np.log10(np.where((table > 0) & np.isfinite(table), table, np.nan))
    known = logs[np.isfinite(logs)]
    if not len(known):
        return []
    low, high = np.quantile(known, _FEW_OF_A_UNIT), np.quantile(known, 1 - _FEW_OF_A_UNIT)
    if high - low < _UNITS[0]:
        return []
    is_large = logs > (low + high) / 2
    apart = float(np.nanmedian(logs[is_large]) - np.median(known[known <= (low + high) / 2]))
    if not _UNITS[0] <= apart <= _UNITS[1]:
        return []
    of_rank = is_large.any(axis=0) & (np.isnan(logs) | is_large).all(axis=0)
    who = f"durations of rank {ranks[of_rank][0]}" if of_rank.sum() == 1 else "some durations"
    return [f"{who} are about {10**apart:,.0f} times the others; are all of them seconds?"]


def _columns(path: Path) -> dict[str, Sequence[Any]]:
    if path.suffix in (".parquet", ".pq"):
        return _parquet(path)
    try:
        with open_bytes(path) as file:
            content = b"".join(iter(lambda: read_chunk(file, path), b""))
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise TraceError(f"{path} is no text; step times are CSV, JSON lines or .parquet") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    if not text.strip():
        raise TraceError(f"{path} is empty")
    if text.lstrip().startswith("{"):
        if not text.endswith("\n") and not _is_json(text.rpartition("\n")[2]):
            text = text[: text.rfind("\n") + 1]  # the job is writing it; a note says so
        rows = [sample for _, sample in json_lines(io.StringIO(text), str(path))]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return {name: [row.get(name) for row in rows] for name in names}
    delimiter = delimiter_of(next(line for line in text.splitlines() if line.strip()))
    rows_of_text = csv.reader(io.StringIO(text), strict=True, delimiter=delimiter or ",")
    try:
        lines = [line for line in rows_of_text if line]
    except csv.Error as error:
        raise TraceError(f"{path} is no CSV: {error}") from None
    head = [name.strip() for name in lines[0]]
    _check_twice(path, head)
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(head):
            raise TraceError(f"{path}:{number} has {len(line)} cells, the header {len(head)}")
    return {name: [line[i] for line in lines[1:]] for i, name in enumerate(head)}


def delimiter_of(head: str) -> str | None:
    """The character between the names of a table's head, which may be quoted; None if no table."""
    for delimiter in _DELIMITERS:
        names = {name.strip().strip('"') for name in head.split(delimiter)}
        if "step" in names and not names.isdisjoint(_TIMES):
            return delimiter
    return None


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _parquet(path: Path) -> dict[str, Sequence[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
        _check_twice(path, names)
        table = pq.read_table(path)
        table.validate(full=True)
    except FileNotFoundError:
        raise TraceError(f"{path}: No such file or directory") from None
    except MemoryError:  # also Arrow's: the file may be readable
        raise
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise TraceError(f"{path} is no parquet file: {error}") from None
    wanted_names = [name for name in _COLUMNS if name in names]
    values: dict[str, Sequence[Any]] = {name: table[name].to_pylist() for name in wanted_names}
    return values or {name: [] for name in names}


def _check_twice(path: Path, names: Sequence[str]) -> None:
    twice = [name for name in _COLUMNS if names.count(name) > 1]
    if twice:
        raise TraceError(f"{path} has more than one column called {', '.join(twice)}")


def json_lines(file: Iterable[str], where: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line number, object) of each line.

    Raises:
        TraceError: a line is no JSON object.
    """
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError):
            sample = None
        if not isinstance(sample, dict):
            raise TraceError(f"{where}:{number} is no JSON object")
        yield number, sample


def sample_of(line: Mapping[str, Any], where: str, ranks: int) -> tuple[int, int, float]:
    """(step, rank, seconds) of a JSON line; nan for null.

    Raises:
        TraceError: a number is invalid, or out of range.
    """
    name = "duration_s" if "duration_s" in line else "duration_ms"
    value = line.get(name, "missing")
    try:
        step, rank = float(line["step"]), float(line.get("rank", 0))
        seconds = float("nan") if value is None else float(value) * _TIMES[name]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise TraceError(f"{where} needs numbers for step and duration_s (and rank)") from None
    if not (step.is_integer() and 0 <= step < _MAX_STEP and rank.is_integer()):
        raise TraceError(f"{where}: step and rank must be whole numbers, at least 0")
    if not 0 <= rank < ranks:
        raise TraceError(f"{where}: rank {int(rank)} is not one of {ranks} ranks; give --ranks N")
    return int(step), int(rank), seconds


def workload_of_line(line: Mapping[str, Any], where: str) -> dict[str, float]:
    """The work of a JSON line's step, by column; null means unknown.

    Raises:
        TraceError: a value is no number.
    """
    values = {name: line[name] for name in WORKLOAD_COLUMNS if line.get(name) is not None}
    try:
        numbers = {name: float(value) for name, value in values.items()}
    except (TypeError, ValueError, OverflowError):
        raise TraceError(f"{where} needs numbers for {', '.join(values)}") from None
    return {name: number for name, number in numbers.items() if np.isfinite(number)}


def wait_of_line(line: Mapping[str, Any], where: str) -> float:
    """Seconds in which a JSON line's rank waited for others; nan if unknown.

    Raises:
        TraceError: the value is no number.
    """
    value = line.get("wait_s")
    try:
        return float("nan") if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        raise TraceError(f"{where} needs a number for wait_s") from None


def _numbers(path: Path, name: str, values: Sequence[Any]) -> Array:
    if name not in _COLUMNS:
        return np.empty(0)
    numbers = np.empty(len(values))
    for i, value in enumerate(values):
        empty = value is None or (isinstance(value, str) and not value.strip())
        try:
            numbers[i] = np.nan if empty else float(value)
        except (TypeError, ValueError, OverflowError):
            hint = "; write decimals with a point" if "," in str(value) else ""
            raise TraceError(
                f"{path}: row {i + 1}: {name} must be a number, not {str(value)[:40]!r}{hint}"
            ) from None
    return numbers
