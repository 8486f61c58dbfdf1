"""Step times from lines of text, by a pattern with named groups.

Groups, of which one that gives a time is needed:

    step          The step's number. Without it, the lines of a rank are counted.
    epoch, epoch_steps    Where step begins anew in each epoch: the epoch, and its steps.
    rank          The rank that wrote the line.
    duration_s    Seconds of the step. Also duration_ms. 1.23K means 1,230.
    duration      Time of the step with its units: 1m 20s, 350ms.
    evaluation_s, checkpoint_s    Seconds of the step that are no training; they are taken off.
    interval_s    Seconds of all steps since the rank's line before. Also interval_ms.
    steps_per_s   Steps a second (a progress bar's it/s).
    elapsed_s     Seconds since the start of the run. Also elapsed_ms, elapsed_h. Differences are
                  step times.
    elapsed       The same with units or colons: 1:02:03, 18m 42s.
    mean_s        Mean seconds of all steps since the start. Also mean_steps_per_s. Beside elapsed
                  it makes that clock finer.
    total_tokens, mean_tokens_per_s    Tokens since the start, and their mean rate: the same clock.
    rate          Tokens or samples a second, of equal steps. The times of the lines give the scale.
                  Without time, the median step counts as 1 s.
    time          Time of the line: 2026-08-22 10:00:00.123 (or with a comma), or
                  08/22/2026 10:00:00. Alone, its differences are step times. Without this group, a
                  date near the begin of a line is the line's time, but gives no step times.
    tokens, samples, batch, sequence_length, window, flops    The step's planned work.

Of several the first in this order counts, line by line: duration, interval, steps_per_s, elapsed,
rate, time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.step_logs.clocks import (
    MEANS,
    TEXT_TIMES,
    finest_clock,
    texts_in_seconds,
)
from paceline.sources.step_logs.log_words import DATE, SLASH_DATE
from paceline.sources.step_times import WORKLOAD_COLUMNS

Array = npt.NDArray[np.float64]
Columns = dict[str, Array]

_DURATIONS = {"duration_s": 1.0, "duration_ms": 1e-3}
_STEP_SECONDS = ("duration_s", "interval_s")
_INTERVALS = {"interval_s": 1.0, "interval_ms": 1e-3}
_ELAPSED = {"elapsed_s": 1.0, "elapsed_ms": 1e-3, "elapsed_h": 3600.0}
#: Groups that give the time of a step, the most exact ones first.
TIMED = (
    *(*_DURATIONS, "duration", *_INTERVALS, "steps_per_s"),
    *(*_ELAPSED, "elapsed", *MEANS, "rate", "time"),
)
_PAUSES = ("evaluation_s", "checkpoint_s")
_GROUPS = {
    *("step", "rank", "epoch", "epoch_steps", "total_tokens"),
    *_PAUSES,
    *TIMED,
    *WORKLOAD_COLUMNS,
}
_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
#: A pattern that users can adapt.
PATTERN_EXAMPLE = r"--pattern 'step (?P<step>\d+) took (?P<duration_ms>[\d.]+) ms'"
PATTERN_ADVICE = (
    "no words beside its numbers say which is a step's time; write a --pattern with the groups "
    "step and one of duration_s, duration_ms, elapsed_s, steps_per_s, rate, time: lines such as "
    f"'step 7 took 250 ms' need {PATTERN_EXAMPLE}"
)
#: Note on lines without a step number.
LINES_COUNTED = "the lines have no step number: steps are counted in the order of the lines"
#: Number of lines that an error quotes.
QUOTED_LINES = 3
_MAX_PATTERN = 2000
#: A number whose comma is a decimal point: a group of thousands has three digits after others.
DECIMAL_COMMA = re.compile(r"[-+]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))")
#: Means since the start: fewest lines in a third, and largest share of turns, which times of steps
#: have in 2 of 3 lines. Least fall of their changes from the first third to the last one, and
#: largest growth of those of their steps.
_FEW_MEANS, _MEANS_TURN, _MEANS_FALL, _MEANS_GROW = 15, 0.6, 2.5, 1.6
#: Share of times that equal the one before, from which on changes are counted in place of measured;
#: and fewest changes in a third.
_MANY_EQUAL, _FEW_TICKS = 0.5, 6
#: Turns of the step, and their share of the lines, from which on several processes write a log.
_FEW_TURNS, _TURNS = 3, 0.02
#: The text before and behind a part of a number, and its thousands from their comma on.
_HEAD = re.compile(r"\d\.?$|\d[eE][-+]?$")
_TAIL = re.compile(r"\.?\d|[eE][-+]?\d")
_THOUSANDS = re.compile(r"(?<=\d),\d{3}(?!\d)")
_CLASSES = re.compile(r"\[[^\]]*\]|\{[^}]*\}")
#: A date of a line, and the characters of the line's begin in which it may stand.
_DATE = re.compile(rf"(?<![\w/-])(?:{DATE}|{SLASH_DATE})")
_DATE_WITHIN = 80
_SLASH_DATE = re.compile(r"(\d\d)/(\d\d)/(\d{4})")
_YEAR_FIRST = re.compile(r"^(\d{4})/(\d\d)/(\d\d)")
_MONTHS = 12
#: A time with its digits behind the point.
_FRACTION = re.compile(r"[^.]*\.?(\d*).*")
#: Ticks of a coarse clock in a sample, which make its error 5%. And the shortest gap between lines,
#: in seconds, that is no step.
FINE_TICKS, _LONG_S = 20, 600.0

#: Steps that a line's time covers where only some steps have a line: all since the line before
#: ("mean"), its own step alone ("last"), or some of the last steps ("window").
Covers = Literal["mean", "last", "window"]


@dataclass(frozen=True)
class LineFormat:
    """Lines of one tool.

    Attributes:
        name: the tool.
        cue: words in a line of a step. They are searched first, since the pattern is slower.
        pattern: pattern with named groups.
        covers: steps that a line's time covers; None if the tool's source does not say.
        head: words in an earlier line that has other groups of the pattern. The pattern is searched
            in the last such line and the line with the cue, joined by a space. "": one line has
            all groups.
        window: a time is the mean of this many steps, the last ones. Of lines that are nearer to
            each other, only some are samples.
    """

    name: str
    cue: str
    pattern: re.Pattern[str]
    covers: Covers | None = None
    head: str = ""
    window: int = 1

    def steps_in(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines, each with its head before it."""
        if not self.head:
            yield from lines
            return
        head = ""
        for line in lines:
            if self.head in line:
                head = line.strip()
            if self.cue in line:
                yield f"{head} {line}"


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
    if not set(TIMED) & set(pattern.groupindex):
        names = ", ".join(TIMED)
        raise TraceError(f"--pattern needs a group that gives a time ({names}), {usage}")
    if ("epoch" in pattern.groupindex) != ("epoch_steps" in pattern.groupindex):
        raise TraceError("--pattern needs both groups epoch and epoch_steps, or none of them")
    return pattern


def quoted(lines: Iterable[str]) -> str:
    """The first lines of a log, for an error."""
    texts = ", ".join(repr(line.strip()[:160]) for line in lines)
    return f"its first lines are {texts}"


def covers_of(pattern: re.Pattern[str]) -> Covers | None:
    """Steps that the times of a pattern cover, if its groups say it."""
    groups = set(pattern.groupindex)
    if not groups & {*_DURATIONS, "duration", "steps_per_s", "rate"}:
        return "mean"
    return None


def read_lines(
    lines: Iterable[str], pattern: re.Pattern[str], where: str, notes: list[str]
) -> Columns:
    """Columns step, duration_s and, if the lines have them, rank, time_s and workload.

    Args:
        lines: the log.
        pattern: a pattern of a step's line, with named groups.
        where: the file, for errors.
        notes: assumptions about the lines are added to them.

    Raises:
        TraceError: no line matches (the message quotes the first ones); or a number is invalid.
    """
    rows: list[tuple[str | None, ...]] = []
    others: list[str] = []
    dates: list[str] = []
    numbers = [name for name in pattern.groupindex if name not in ("time", *TEXT_TIMES)]
    for line in lines:
        match = pattern.search(line)
        if match:
            _check_whole(match, numbers, where)
            rows.append(match.groups())
            if len(dates) == len(rows) - 1 and (date := _DATE.search(line, 0, _DATE_WITHIN)):
                dates.append(date.group())
        elif len(others) < QUOTED_LINES and line.strip():
            others.append(line)
    if not rows:
        raise TraceError(f"{where}: no line matches the pattern; {quoted(others)}")
    texts = dict(zip(range(1, pattern.groups + 1), zip(*rows, strict=True), strict=True))
    named = {name: texts[index] for name, index in pattern.groupindex.items()}
    stamps = named.pop("time", None)
    shown_tick_s = 10.0 ** -_decimals(
        [text and _FRACTION.sub(r".\1", text, count=1) for text in named.get("elapsed", ())]
    )
    shown = {name: texts_in_seconds(named.pop(name), where) for name in TEXT_TIMES if name in named}
    columns = {name: _numbers(values, name, where, notes) for name, values in named.items()}
    columns["rank"] = np.nan_to_num(columns.get("rank", np.zeros(len(rows))))
    if "step" not in columns:
        columns["step"] = _counted(columns["rank"])
        notes.append(LINES_COUNTED)
    elif np.isnan(columns["step"]).any():
        raise TraceError(f"{where}: a line that matches the pattern has no step")
    else:
        _check_writers(columns["step"], columns["rank"], where)
    if "epoch" in columns:
        columns["step"] = columns["step"] + _epochs_before(columns)
    if "duration" in shown:
        columns["duration_s"] = shown["duration"]
    ticks = {name: 10.0 ** -_decimals(named[name]) for name in _ELAPSED if name in named}
    means = {name: columns.pop(name) for name in (*MEANS, "total_tokens") if name in columns}
    digits = {name: _decimals(named[name]) for name in means}
    clock = finest_clock(columns["step"], means, digits, shown.get("elapsed"), shown_tick_s)
    if clock is not None:
        columns["elapsed_s"], ticks["elapsed_s"] = clock
    if "total_tokens" in means:
        columns["tokens"] = steps_of_elapsed(
            columns["step"], columns["rank"], means["total_tokens"]
        )
    times = None if stamps is None else _stamps_seconds(stamps, where)
    if times is None and len(dates) == len(rows):
        if "rate" in columns:
            times = _stamps_seconds(dates, where)
        else:
            columns["time_s"] = _stamps_seconds(dates, where)
    return _with_durations(columns, times, ticks, where, notes)


def _check_whole(match: re.Match[str], names: Sequence[str], where: str) -> None:
    """Refuse a group that holds a part of a number, such as 501 of 1,501."""
    line = match.string
    has_comma = "," in _CLASSES.sub("", match.re.pattern)  # between values, such as those of a CSV
    for name in names:
        begin, end = match.span(name)
        if begin < 0:
            continue
        head, tail = _HEAD.search(line[max(0, begin - 3) : begin]), _TAIL.match(line, end)
        is_cut = name in TIMED and (head is not None or tail is not None)
        is_cut |= not has_comma and any(
            _THOUSANDS.match(line, comma) is not None for comma in (end, begin - 1)
        )
        if is_cut:
            part = line[max(0, begin - 12) : end + 8].strip()
            raise TraceError(
                f"{where}: the group {name} of the pattern takes {match[name]!r}, a part of a "
                f"number in {part!r}; let it match all of it, as (?P<{name}>[\\d.,eE+-]*\\d)"
            )


def _check_writers(step: Array, rank: Array, where: str) -> None:
    """Refuse lines of several processes that no line tells apart: steps go back and forth."""
    for one in np.unique(rank):
        steps = step[rank == one]
        before, at, after = steps[:-2], steps[1:-1], steps[2:]
        turns = np.flatnonzero((at < before) & (before < after))
        if len(turns) >= max(_FEW_TURNS, _TURNS * len(steps)):
            shown = ", ".join(f"{value:,.0f}" for value in steps[turns[0] : turns[0] + 3])
            raise TraceError(
                f"{where}: steps go back and forth ({shown}), so several processes write it; give "
                "the log of one, or a --pattern with the group rank"
            )


def thinned(columns: Columns, window: int) -> Columns:
    """The rows that lie at least ``window`` steps behind the one before, of each rank."""
    keep = np.zeros(len(columns["step"]), dtype=bool)
    last: dict[float, float] = {}
    for row, (rank, step) in enumerate(
        zip(columns["rank"].tolist(), columns["step"].tolist(), strict=True)
    ):
        if not 0 <= step - last.get(rank, -np.inf) < window:
            last[rank], keep[row] = step, True
    return {name: values[keep] for name, values in columns.items()}


def is_mean_since_start(seconds: Array) -> bool:
    """Whether times look like means of all steps so far, in the order of the lines.

    The differences of such means fall with the number of steps, while the steps that they stand for
    vary as much late as early. Times of steps vary as much late as early themselves, and they
    alternate: a step above the mean is followed by a lower one.
    """
    x = seconds[np.isfinite(seconds) & (seconds > 0)]
    third = len(x) // 3
    if third < _FEW_MEANS:
        return False
    changes = np.diff(x)
    if (changes == 0).mean() > _MANY_EQUAL:  # too few digits: only ticks alternate
        early, late = (int((part != 0).sum()) for part in (changes[:third], changes[-third:]))
        return early >= _FEW_TICKS and early > _MEANS_FALL * late
    turns = changes[1:] * changes[:-1] < 0
    if turns[:third].mean() >= _MEANS_TURN or turns.mean() >= _MEANS_TURN:
        return False
    number = np.arange(1, len(x) + 1)
    steps = np.diff(number * x)

    def fall(values: Array) -> float:
        early, late = (float(np.median(np.abs(v))) for v in (values[2:third], values[-third:]))
        return early / max(late, 1e-300)

    return fall(changes) > _MEANS_FALL or fall(np.diff(steps)) > 1 / _MEANS_GROW


def _epochs_before(columns: Columns) -> Array:
    """[row] steps of earlier epochs, counted from the first epoch of the log."""
    epoch, size = columns.pop("epoch"), columns.pop("epoch_steps")
    known = epoch[np.isfinite(epoch)]
    first = known.min() if len(known) else 0.0
    passed: Array = np.nan_to_num((epoch - first) * size)
    return passed


def _decimals(texts: Sequence[str | None]) -> int:
    """Digits behind the point that the numbers have at most."""
    return max((len(text.partition(".")[2]) for text in texts if text), default=0)


def _with_durations(
    columns: Columns, times: Array | None, ticks: dict[str, float], where: str, notes: list[str]
) -> Columns:
    """Columns with duration_s in place of other times; without rows that have none.

    ``ticks`` has the resolution of each clock, in the clock's unit.
    """
    duration_s = np.full(len(columns["step"]), np.nan)
    has_rate = "rate" in columns
    pauses_s = sum(np.nan_to_num(columns.pop(name)) for name in _PAUSES if name in columns)
    for name in TIMED:  # durations are more exact than differences
        if name == "time" and times is not None and not has_rate:
            values = times
        elif name in columns:
            values = columns.pop(name)
        else:
            continue
        step, rank = columns["step"], columns["rank"]
        if name in _DURATIONS:
            seconds = values * _DURATIONS[name] - pauses_s
        elif name in _INTERVALS:
            seconds = _of_intervals(step, rank, values * _INTERVALS[name])
        elif name == "steps_per_s":
            seconds = np.where(values > 0, 1.0 / np.where(values > 0, values, 1.0), np.nan)
        elif name in _ELAPSED:
            unit_s = _ELAPSED[name]
            seconds = steps_of_elapsed(step, rank, values * unit_s, ticks[name] * unit_s)
        elif name == "time":
            seconds = steps_of_elapsed(step, rank, values)
        elif times is not None:
            seconds = _of_rates(step, rank, values, times, where)
        else:
            seconds = _of_rates_alone(values)
            notes.append(
                "the lines have rates without times: a step of the median rate counts as 1 s, so "
                "factors hold, but seconds do not"
            )
        duration_s = np.where(np.isnan(duration_s), seconds, duration_s)
    known = np.isfinite(duration_s)
    if not known.any():
        raise TraceError(f"{where} has no duration of a step: it takes two lines of steps")
    columns["duration_s"] = duration_s
    if times is not None:
        columns["time_s"] = times
    return {name: values[known] for name, values in columns.items()}


def steps_of_elapsed(
    step: Array, rank: Array, elapsed_s: Array, tick_s: float | None = None
) -> Array:
    """[row] mean seconds a step since the rank's line before; nan for its first and at restarts.

    A clock of whole seconds is too coarse for short steps. Then only one line in about
    :data:`FINE_TICKS` seconds has a value: the mean since the line that had the last value.

    Args:
        step: [row] the step of a line.
        rank: [row] its rank.
        elapsed_s: [row] the clock.
        tick_s: the clock's resolution. None: 1 s if all its times are whole seconds, else none.
    """
    seconds = np.full(len(step), np.nan)
    for one in np.unique(rank):
        rows = np.flatnonzero((rank == one) & np.isfinite(elapsed_s))
        rows = rows[:: _lines_of_a_sample(elapsed_s[rows], tick_s)]
        steps, spent_s = np.diff(step[rows]), np.diff(elapsed_s[rows])
        goes_on = (steps > 0) & (spent_s > 0)
        seconds[rows[1:][goes_on]] = spent_s[goes_on] / steps[goes_on]
    return seconds


def _lines_of_a_sample(elapsed_s: Array, tick_s: float | None) -> int:
    """Lines from one that is compared to the next: 1, but more if the clock is coarse."""
    spent_s = np.diff(elapsed_s)
    ahead_s = spent_s[(spent_s >= 0) & (spent_s < _LONG_S)]
    if tick_s is None:
        tick_s = 1.0 if (elapsed_s == np.round(elapsed_s)).all() else 0.0
    if len(ahead_s) < FINE_TICKS or (ahead_s == ahead_s[0]).all():
        return 1
    return max(1, int(np.ceil(FINE_TICKS * tick_s / max(float(ahead_s.mean()), 1e-3))))


def _of_intervals(step: Array, rank: Array, interval_s: Array) -> Array:
    """[row] mean seconds a step of the steps since the rank's line before; nan for its first."""
    seconds = np.full(len(step), np.nan)
    for one in np.unique(rank):
        rows = np.flatnonzero((rank == one) & np.isfinite(interval_s))
        steps = np.diff(step[rows])
        goes_on = steps > 0
        seconds[rows[1:][goes_on]] = interval_s[rows[1:][goes_on]] / steps[goes_on]
    return seconds


def _of_rates_alone(rate: Array) -> Array:
    """Seconds a step where a step of the median rate takes 1 s."""
    positive = np.where(rate > 0, rate, np.nan)
    with np.errstate(invalid="ignore"):
        seconds: Array = np.nanmedian(positive) / positive if (rate > 0).any() else positive
    return seconds


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


def _numbers(values: Sequence[str | None], name: str, where: str, notes: list[str]) -> Array:
    try:
        # torchtitan writes 7,034, nanotron 1.23K, and a German locale 0,512
        is_decimal = _has_decimal_commas(values)
        if not is_decimal and name in _STEP_SECONDS and _has_commas_alone(values):
            is_decimal = True
            shown = next(value for value in values if value and "," in value)
            read_as = shown.replace(",", ".")
            notes.append(f"the group {name}: {shown} is read as {read_as} seconds")
        point = "." if is_decimal else ""
        return np.array([_number(v.replace(",", point)) if v else np.nan for v in values])
    except ValueError:
        raise TraceError(f"{where}: the group {name} is no number in some line") from None


def _has_commas_alone(values: Sequence[str | None]) -> bool:
    """Whether all numbers have one comma and no point: steps of thousands of seconds are rare."""
    return all(value.count(",") == 1 and "." not in value for value in values if value)


def _has_decimal_commas(values: Sequence[str | None]) -> bool:
    """Whether commas are decimal points: some are no groups of thousands."""
    texts = [value for value in values if value and "," in value]
    is_decimal = any(DECIMAL_COMMA.fullmatch(text) for text in texts)
    return is_decimal and not any("." in value for value in values if value)


def _number(text: str) -> float:
    scale = _SUFFIXES.get(text[-1:])
    return float(text) if scale is None else float(text[:-1]) * scale


def _stamps_seconds(stamps: Sequence[str | None], where: str) -> Array:
    """[row] seconds of :func:`stamp_seconds`, and of 08/22/2026 or 22/08/2026 10:00:00."""
    slashes = [_SLASH_DATE.match(stamp) if stamp else None for stamp in stamps]
    is_day_first = any(match is not None and int(match[1]) > _MONTHS for match in slashes)
    month, day = (2, 1) if is_day_first else (1, 2)
    return np.array(
        [
            stamp_seconds(
                f"{match[3]}-{match[month]}-{match[day]}{stamp[match.end() :]}"
                if match is not None and stamp
                else stamp,
                where,
            )
            for stamp, match in zip(stamps, slashes, strict=True)
        ]
    )


def date_of(line: str, where: str) -> tuple[str, float, str | None]:
    """The text before a line's date, the date in seconds, and the text behind it.

    The last is None if no date stands near the line's begin.
    """
    match = _DATE.search(line, 0, _DATE_WITHIN)
    if match is None:
        return line, np.nan, None
    try:
        seconds = float(_stamps_seconds([match.group()], where)[0])
    except TraceError:  # digits such as 2026-99-01 are no date
        return line, np.nan, None
    return line[: match.start()], seconds, line[match.end() :]


def stamp_seconds(stamp: str | None, where: str) -> float:
    """Seconds since the epoch of a date, also of 2026/08/22 10:00; nan if there is none.

    Raises:
        TraceError: the date is invalid.
    """
    if not stamp:
        return np.nan
    try:
        iso = _YEAR_FIRST.sub(r"\1-\2-\3", stamp).replace(",", ".")
        return datetime.fromisoformat(iso).timestamp()
    except ValueError:
        raise TraceError(f"{where}: {stamp[:40]!r} is no time, such as 2026-08-22 10:00") from None
