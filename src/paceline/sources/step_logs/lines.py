"""Step times from lines of text, by a pattern with named groups.

Groups, of which one of ``duration_*``, ``elapsed_*`` and ``rate`` is needed:

    step          The step's number. Without it, the lines of a rank are counted.
    rank          The rank that wrote the line.
    duration_s    Seconds of the step. Also duration_ms.
    elapsed_s     Seconds since the start of the run. Also elapsed_ms. Differences are step times.
    rate          Tokens or samples a second, of equal steps. Needs time, which gives the scale.
    time          Time of the line: 2026-08-22 10:00:00.123 (or with a comma).
    tokens, samples, batch, sequence_length, window, flops    The step's planned work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.step_times import WORKLOAD_COLUMNS

Array = npt.NDArray[np.float64]
Columns = dict[str, Array]

_DURATIONS = {"duration_s": 1.0, "duration_ms": 1e-3}
_ELAPSED = {"elapsed_s": 1.0, "elapsed_ms": 1e-3}
_GROUPS = {"step", "rank", *_DURATIONS, *_ELAPSED, "rate", "time", *WORKLOAD_COLUMNS}
#: A pattern that users can adapt.
PATTERN_EXAMPLE = r"--pattern 'step (?P<step>\d+) took (?P<duration_ms>[\d.]+) ms'"
#: Number of lines that an error quotes.
QUOTED_LINES = 3
_MAX_PATTERN = 2000
#: Ticks of a coarse clock in a sample, which make its error 5%. And the shortest gap between lines,
#: in seconds, that is no step.
_FINE_TICKS, _LONG_S = 20, 600.0


@dataclass(frozen=True)
class LineFormat:
    """Lines of one tool.

    Attributes:
        name: the tool.
        cue: words in a line of a step. They are searched first, since the pattern is slower.
        pattern: pattern with named groups.
    """

    name: str
    cue: str
    pattern: re.Pattern[str]


def pattern_of(text: str) -> re.Pattern[str]:
    """The pattern that a user gave.

    Raises:
        TraceError: it is invalid, or its groups do not give the duration of a step.
    """
    usage = f"such as {PATTERN_EXAMPLE}"
    try:
        pattern = re.compile(text[:_MAX_PATTERN])
    except re.error as error:
        raise TraceError(f"--pattern is no regular expression ({error}); {usage}") from None
    unknown = sorted(set(pattern.groupindex) - _GROUPS)
    if unknown:
        names = ", ".join(sorted(_GROUPS))
        raise TraceError(f"--pattern has a group {unknown[0]}; the groups are {names}")
    if not {*_DURATIONS, *_ELAPSED, "rate"} & set(pattern.groupindex):
        raise TraceError(f"--pattern needs a group duration_s, duration_ms or elapsed_s, {usage}")
    if "rate" in pattern.groupindex and "time" not in pattern.groupindex:
        raise TraceError("--pattern with a group rate needs a group time, which gives the scale")
    return pattern


def quoted(lines: Iterable[str]) -> str:
    """The first lines of a log, for an error."""
    texts = ", ".join(repr(line.strip()[:160]) for line in lines)
    return f"its first lines are {texts}"


def read_lines(lines: Iterable[str], pattern: re.Pattern[str], where: str) -> Columns:
    """Columns step, duration_s and, if the lines have them, rank, time_s and workload.

    Raises:
        TraceError: no line matches (the message quotes the first ones); or a number is invalid.
    """
    rows: list[tuple[str | None, ...]] = []
    others: list[str] = []
    for line in lines:
        match = pattern.search(line)
        if match:
            rows.append(match.groups())
        elif len(others) < QUOTED_LINES and line.strip():
            others.append(line)
    if not rows:
        raise TraceError(f"{where}: no line matches the pattern; {quoted(others)}")
    texts = dict(zip(range(1, pattern.groups + 1), zip(*rows, strict=True), strict=True))
    named = {name: texts[index] for name, index in pattern.groupindex.items()}
    stamps = named.pop("time", None)
    columns = {name: _numbers(values, name, where) for name, values in named.items()}
    columns["rank"] = np.nan_to_num(columns.get("rank", np.zeros(len(rows))))
    if "step" not in columns:
        columns["step"] = _counted(columns["rank"])
    elif np.isnan(columns["step"]).any():
        raise TraceError(f"{where}: a line that matches the pattern has no step")
    times = None if stamps is None else np.array([stamp_seconds(stamp, where) for stamp in stamps])
    return _with_durations(columns, times, where)


def _with_durations(columns: Columns, times: Array | None, where: str) -> Columns:
    """Columns with duration_s in place of other times; without rows that have none."""
    duration_s = np.full(len(columns["step"]), np.nan)
    for name in (*_DURATIONS, *_ELAPSED, "rate"):  # durations are more exact than differences
        if name not in columns:
            continue
        values = columns.pop(name)
        if name in _DURATIONS:
            seconds = values * _DURATIONS[name]
        elif name in _ELAPSED:
            seconds = steps_of_elapsed(columns["step"], columns["rank"], values * _ELAPSED[name])
        elif times is not None:
            seconds = _of_rates(columns["step"], columns["rank"], values, times, where)
        duration_s = np.where(np.isnan(duration_s), seconds, duration_s)
    known = np.isfinite(duration_s)
    if not known.any():
        raise TraceError(f"{where} has no duration of a step: it takes two lines of steps")
    columns["duration_s"] = duration_s
    if times is not None:
        columns["time_s"] = times
    return {name: values[known] for name, values in columns.items()}


def steps_of_elapsed(step: Array, rank: Array, elapsed_s: Array) -> Array:
    """[row] mean seconds a step since the rank's line before; nan for its first and at restarts.

    A clock of whole seconds is too coarse for short steps. Then only one line in about
    :data:`_FINE_TICKS` seconds has a value: the mean since the line that had the last value.
    """
    seconds = np.full(len(step), np.nan)
    for one in np.unique(rank):
        rows = np.flatnonzero((rank == one) & np.isfinite(elapsed_s))
        rows = rows[:: _lines_of_a_sample(elapsed_s[rows])]
        steps, spent_s = np.diff(step[rows]), np.diff(elapsed_s[rows])
        goes_on = (steps > 0) & (spent_s > 0)
        seconds[rows[1:][goes_on]] = spent_s[goes_on] / steps[goes_on]
    return seconds


def _lines_of_a_sample(elapsed_s: Array) -> int:
    """Lines from one that is compared to the next: 1, but more if times are in whole seconds."""
    spent_s = np.diff(elapsed_s)
    ahead_s = spent_s[(spent_s >= 0) & (spent_s < _LONG_S)]
    if len(ahead_s) < _FINE_TICKS or (elapsed_s != np.round(elapsed_s)).any():
        return 1
    if (ahead_s == ahead_s[0]).all():
        return 1
    return max(1, int(np.ceil(_FINE_TICKS / max(float(ahead_s.mean()), 1e-3))))


def _of_rates(step: Array, rank: Array, rate: Array, times: Array, where: str) -> Array:
    """Seconds a step: the step's work over the rate.

    A step's work is the median, over pairs of lines, of the rate times the time between them. An
    evaluation or a checkpoint between two lines lengthens that pair only.
    """
    per_step = steps_of_elapsed(step, rank, times) * rate
    if not np.isfinite(per_step).any():
        raise TraceError(f"{where}: rates need at least two lines with different times")
    return np.where(rate > 0, np.nanmedian(per_step) / np.where(rate > 0, rate, 1.0), np.nan)


def _counted(rank: Array) -> Array:
    """[row] number of earlier rows of its rank."""
    numbers = np.empty(len(rank))
    counts = dict.fromkeys(rank.tolist(), 0)
    for row, one in enumerate(rank.tolist()):
        numbers[row] = counts[one]
        counts[one] += 1
    return numbers


def _numbers(values: Sequence[str | None], name: str, where: str) -> Array:
    try:
        # torchtitan writes 7,034
        return np.array([float(v.replace(",", "")) if v else np.nan for v in values])
    except ValueError:
        raise TraceError(f"{where}: the group {name} is no number in some line") from None


def stamp_seconds(stamp: str | None, where: str) -> float:
    """Seconds since the epoch of a date; nan if there is none.

    Raises:
        TraceError: the date is invalid.
    """
    if not stamp:
        return np.nan
    try:
        return datetime.fromisoformat(stamp.replace(",", ".")).timestamp()
    except ValueError:
        raise TraceError(f"{where}: {stamp[:40]!r} is no time, such as 2026-08-22 10:00") from None
