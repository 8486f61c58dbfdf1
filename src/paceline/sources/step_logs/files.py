"""Step times from any file, recognised by its content."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.errors import DetectError, TraceError
from paceline.sources.json_stream import head as head_of
from paceline.sources.json_stream import whole_lines
from paceline.sources.step_logs import (
    event_files,
    json_files,
    metric_tables,
    mlperf,
    progress_bars,
    proposals,
)
from paceline.sources.step_logs.formats import COLOURS, LINE_FORMATS
from paceline.sources.step_logs.lines import (
    LINES_COUNTED,
    PATTERN_ADVICE,
    QUOTED_LINES,
    Columns,
    Covers,
    LineFormat,
    covers_of,
    is_mean_since_start,
    pattern_of,
    quoted,
    read_lines,
    thinned,
)
from paceline.sources.step_times import StepTimes, delimiter_of, load_step_times, table_of

Array = npt.NDArray[np.float64]

#: The project's own columns: a header with one of them is a table of step times.
_OWN_TIMES = {"duration_s", "duration_ms", "start_s"}
_OWN = {"step", "rank", *_OWN_TIMES}
#: A line of transformers' Trainer (5.23.0), which says no time; and the advice for such a log.
_TRAINER_LINE = re.compile(r"\{'loss': .*'(?:learning_rate|grad_norm)': ")
_TRAINER_ADVICE = (
    "the lines of transformers' Trainer have no times; give its progress bar (stderr of the job), "
    "or its trainer_state.json, which has times with include_num_input_tokens_seen='all'"
)
#: Most lines before the first step.
_MAX_PREAMBLE = 1_000_000


class Samples(NamedTuple):
    """Content of a log.

    Attributes:
        columns: samples in the order of the file; None: a table of the project's own.
        notes: on the file and on assumptions about it.
        covers: steps that a sample covers, if that is known.
    """

    columns: Columns | None
    notes: tuple[str, ...]
    covers: Covers | None = None


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
    samples = load_columns(path, pattern)
    return load_step_times(path) if samples.columns is None else _of_samples(path, samples)


def load_columns(path: Path, pattern: str | None = None) -> Samples:
    """Samples in the order of the file, and notes.

    Args, Raises: as of :func:`load_step_log`.
    """
    if pattern is not None:
        notes: list[str] = []
        compiled = pattern_of(pattern)
        columns = read_lines(texts_of(path, notes), compiled, str(path), notes)
        if is_mean_since_start(columns["duration_s"][columns["rank"] == columns["rank"][0]]):
            notes.append(
                "the times look like means since the start: a fail-slow shows late and too small"
            )
        return Samples(columns, tuple(notes), covers_of(compiled))
    if path.is_dir():
        return Samples(*event_files.read_event_files(_event_files(path)))
    if event_files.is_event_file(path):
        return Samples(*event_files.read_event_files([path]))
    head = head_of(path)
    first = next((line for line in head.splitlines() if line.strip()), "").strip()
    if any(_format_of(line, {}) is not None for line in head.splitlines()):
        return _read_text(path)
    if json_files.TRAINER_STATE in head or json_files.PROMETHEUS in head[:1000]:
        return Samples(*json_files.read_json(path, head))
    if path.suffix in (".parquet", ".pq") or not first or delimiter_of(first) is not None:
        return Samples(None, ())
    if first.startswith("{") and not first.startswith("{'"):  # a printed dict is no JSON
        return _read_json_lines(path, head)
    cells = [cell.strip() for cell in first.split(",")]
    if not _OWN_TIMES & set(cells) and metric_tables.has_step_times(cells):
        return Samples(*metric_tables.read_csv(path))
    if _OWN & set(cells):
        return Samples(None, ())
    if metric_tables.is_header(first):
        return Samples(*metric_tables.read_csv(path))
    return _read_text(path)


def _read_json_lines(path: Path, head: str) -> Samples:
    """A table of the project's own, or one of metrics if its first lines have a step time."""
    names = [name for line in head.splitlines() for name in metric_tables.metrics_of_line(line)]
    names = list(dict.fromkeys(names))
    if _OWN_TIMES & set(names):
        return Samples(None, ())
    if not metric_tables.has_step_times(names):
        proposal = proposals.proposal_for(head.splitlines())
        if proposal is not None:
            raise TraceError(
                f"{path} has no step times under a known name (docs/detect.md#logs names them); "
                f"{_suggested(proposal)}"
            )
        return Samples(None, ())
    return Samples(*metric_tables.read_json_lines(path))


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


def _of_samples(path: Path, samples: Samples) -> StepTimes:
    """A table; its samples may stand for several steps each."""
    table = table_of(str(path), samples.columns or {})
    notes = samples.notes
    spacing = int(np.median(np.diff(table.steps))) if len(table.steps) > 1 else 1
    is_counted = LINES_COUNTED in notes
    if spacing > 1 and is_counted:
        notes += (f"a sample every {spacing:,} lines, as the clock is coarse",)
    elif spacing > 1:
        covers = {
            "mean": f"the mean of {spacing:,} steps",
            "window": f"the mean of the last of {spacing:,} steps",
            "last": f"one step of {spacing:,}; a long step between two samples does not show",
            None: f"for {spacing:,} steps; the log does not say whether it is their mean",
        }[samples.covers]
        lost = f"its lost seconds count {spacing:,} times"
        notes += (f"a sample every {spacing:,} steps, {covers}: {lost}",)
    changing = {
        name: column
        for name, column in table.workload.items()
        if np.unique(column[np.isfinite(column)]).size > 1
    }
    reader_notes = (*table.warnings, *notes)
    return replace(
        table,
        warnings=reader_notes,
        workload=changing,
        steps_per_sample=spacing,
        counts_lines=is_counted,
    )


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


def _read_text(path: Path) -> Samples:
    """The step times of a log of a known tool, of a progress bar, or of clear words, and notes."""
    lines: list[str] = []
    bars: list[re.Match[str]] = []
    notes: list[str] = []
    heads: dict[str, str] = {}
    texts = texts_of(path, notes)
    for number, line in enumerate(texts):
        if mlperf.CUE in line:
            return Samples(mlperf.read_mlperf(chain([line], texts), str(path)), tuple(notes))
        known = _format_of(line, heads)
        if known is not None:
            begin = [heads[known.head], line] if known.head else [line]
            steps = known.steps_in(chain(begin, texts))
            columns = read_lines(steps, known.pattern, str(path), notes)
            if known.window > 1:
                columns = thinned(columns, known.window)
            return Samples(columns, tuple(notes), known.covers)
        state = progress_bars.state_of(line)
        if state is not None:
            bars.append(state)
        elif len(lines) < proposals.LINES and line.strip():
            lines.append(line)
        if number > _MAX_PREAMBLE:
            break
    proposal = proposals.proposal_for(lines)
    if proposal is not None and proposal.is_certain:
        return _read_proposed(path, proposal.pattern)
    if bars:
        columns, covers = progress_bars.read_bars(bars, str(path), notes)
        return Samples(columns, tuple(notes), covers)
    advice = PATTERN_ADVICE
    if proposal is None and any(_TRAINER_LINE.search(line) for line in lines):
        advice = _TRAINER_ADVICE
    if proposal is not None:
        advice = _suggested(proposal)
    raise TraceError(
        f"{path} has no step times of a known tool (docs/detect.md#logs names them); {advice}; "
        f"{quoted(lines[:QUOTED_LINES])}"
    )


def _suggested(proposal: proposals.Proposal) -> str:
    guess = f" ({proposal.doubt})" if proposal.doubt else ""
    return f"its lines suggest --pattern '{proposal.pattern}'{guess}"


def _read_proposed(path: Path, text: str) -> Samples:
    """The step times of a log whose words say what its numbers are."""
    notes: list[str] = []
    pattern = pattern_of(text)
    columns = read_lines(texts_of(path, notes), pattern, str(path), notes)
    return Samples(columns, (*notes, f"read as --pattern '{text}'"), covers_of(pattern))


def _format_of(line: str, heads: dict[str, str]) -> LineFormat | None:
    """The format of a line of a step; remembers heads of formats with several lines.

    Args:
        line: a line.
        heads: words of a head -> the last line with them.
    """
    for candidate in LINE_FORMATS:
        if candidate.head and candidate.head in line:
            heads[candidate.head] = line
        if candidate.cue in line:
            text = f"{heads.get(candidate.head, '')} {line}" if candidate.head else line
            if candidate.pattern.search(text):
                return candidate
    return None
