"""Step times from any file, recognised by its content."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.errors import DetectError, TraceError
from paceline.sources.json_stream import head as head_of
from paceline.sources.json_stream import whole_lines
from paceline.sources.step_logs import event_files, json_files, mlperf, wandb_csv
from paceline.sources.step_logs.formats import COLOURS, LINE_FORMATS
from paceline.sources.step_logs.lines import (
    PATTERN_EXAMPLE,
    QUOTED_LINES,
    Columns,
    pattern_of,
    quoted,
    read_lines,
)
from paceline.sources.step_times import StepTimes, load_step_times, table_of

Array = npt.NDArray[np.float64]

#: The project's own columns: a header with one of them is a table of step times.
_OWN = {"step", "rank", "duration_s", "start_s"}
#: Most lines before the first step.
_MAX_PREAMBLE = 1_000_000


def load_step_log(path: Path, pattern: str | None = None) -> StepTimes:
    """Read step times.

    Args:
        path: a table (CSV, parquet, JSON lines), a log or metrics of a trainer, or a folder of
            TensorBoard's event files.
        pattern: pattern of a line, with named groups
            (:mod:`paceline.sources.step_logs.lines`); None detects the format from the content.

    Raises:
        TraceError: the file is unreadable, damaged, or of no known format.
    """
    columns, notes = load_columns(path, pattern)
    return load_step_times(path) if columns is None else _of_columns(path, columns, notes)


def load_columns(path: Path, pattern: str | None = None) -> tuple[Columns | None, tuple[str, ...]]:
    """Samples in the order of the file, and notes; None if it is a table of the project's own.

    Args, Raises: as of :func:`load_step_log`.
    """
    if pattern is not None:
        notes: list[str] = []
        columns = read_lines(texts_of(path, notes), pattern_of(pattern), str(path))
        return columns, tuple(notes)
    if path.is_dir():
        return event_files.read_event_files(_event_files(path))
    if event_files.is_event_file(path):
        return event_files.read_event_files([path])
    head = head_of(path)
    first = next((line for line in head.splitlines() if line.strip()), "").strip()
    if json_files.TRAINER_STATE in head or json_files.PROMETHEUS in head[:1000]:
        return json_files.read_json(path, head)
    cells = {cell.strip() for cell in first.split(",")}
    if path.suffix in (".parquet", ".pq") or not first or first[0] == "{" or cells & _OWN:
        return None, ()
    if wandb_csv.is_header(first):
        return wandb_csv.read_wandb(path)
    return _read_text(path)


def earlier_runs(paths: Iterable[Path], *, but: Path | None = None) -> list[tuple[int, Array]]:
    """The first step of each of several runs, and [step] the median of the ranks.

    Args:
        paths: step times or logs, and folders of them.
        but: the run itself, which is left out.

    Raises:
        TraceError: a file cannot be read.
        DetectError: there is no file but the run itself.
    """
    files = [file for path in paths for file in _files_in(path)]
    runs = []
    for file in files:
        if but is None or file.resolve() != but.resolve():
            log = load_step_log(file)
            runs.append((int(log.steps[0]), median_of_ranks(log.duration_s)))
    if not runs:
        raise DetectError("--like names no file but the run itself")
    return runs


def median_of_ranks(duration_s: Array) -> Array:
    """[step] the median of [step, rank]; nan if no rank gave a sample."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step without a sample
        median: Array = np.nanmedian(duration_s, axis=1)
    return median


def _files_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and file.name[0] != ".")


def _event_files(folder: Path) -> Sequence[Path]:
    files = [file for file in _files_in(folder) if event_files.is_event_file(file)]
    if not files:
        raise TraceError(f"{folder} is no recorded run and holds no event files of TensorBoard")
    return files


def _of_columns(path: Path, columns: Columns, notes: tuple[str, ...]) -> StepTimes:
    """A table; its samples may stand for several steps each."""
    table = table_of(str(path), columns)
    spacing = int(np.median(np.diff(table.steps))) if len(table.steps) > 1 else 1
    if spacing > 1:
        notes += (f"a sample every {spacing:,} steps: its lost seconds count {spacing:,} times",)
    changing = {
        name: column
        for name, column in table.workload.items()
        if np.unique(column[np.isfinite(column)]).size > 1
    }
    reader_notes = (*table.warnings, *notes)
    return replace(table, warnings=reader_notes, workload=changing, steps_per_sample=spacing)


def texts_of(path: Path, notes: list[str]) -> Iterator[str]:
    """The lines of a log without colours; a progress bar's states are lines, too.

    Args:
        path: the log.
        notes: as of :func:`paceline.sources.json_stream.whole_lines`.
    """
    for line in whole_lines(path, notes):
        if "\r" in line or "\x1b" in line:
            yield from COLOURS.sub("", line).split("\r")
        else:
            yield line


def _read_text(path: Path) -> tuple[Columns, tuple[str, ...]]:
    """The step times of a log of a known tool, and notes."""
    first: list[str] = []
    notes: list[str] = []
    texts = texts_of(path, notes)
    for number, line in enumerate(texts):
        if mlperf.CUE in line:
            return mlperf.read_mlperf(chain([line], texts), str(path)), tuple(notes)
        pattern = _pattern_for(line)
        if pattern is not None:
            return read_lines(chain([line], texts), pattern, str(path)), tuple(notes)
        if len(first) < QUOTED_LINES and line.strip():
            first.append(line)
        if number > _MAX_PREAMBLE:
            break
    raise TraceError(
        f"{path} has no step times of a known tool ({', '.join(f.name for f in LINE_FORMATS)}, "
        f"MLPerf); run the command again with the pattern of its lines, {PATTERN_EXAMPLE}; "
        f"{quoted(first)}"
    )


def _pattern_for(line: str) -> re.Pattern[str] | None:
    for candidate in LINE_FORMATS:
        if candidate.cue in line and candidate.pattern.search(line):
            return candidate.pattern
    return None
