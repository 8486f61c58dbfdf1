"""The clock of a run, from the words or the means that a line gives.

Trainers built on Hugging Face's write a clock of whole seconds (``1:02:03``, ``18m 42s``). Beside
it stands a mean of all steps so far, or the tokens and their mean rate. Such a mean times the
number of steps is the same clock, with finer ticks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError

Array = npt.NDArray[np.float64]

#: Groups whose text is a time with units or colons.
TEXT_TIMES = ("duration", "elapsed")
#: Groups that give the clock by a mean since the start.
MEANS = ("mean_s", "mean_steps_per_s", "mean_tokens_per_s")

_SECONDS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
#: Names of units in a time such as 2 min 3 sec; (?![a-z]) follows them.
UNIT_NAMES = r"ms|d(?:ays?)?|h(?:ours?|rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?"
_DAYS = re.compile(r"(\d{1,6}) days?,? +(?=\d{1,6}:)")
_COLONS = re.compile(r"(?:(\d{1,6}):)?(\d{1,2}):(\d{1,2}(?:\.\d{1,9})?)")
_UNITS = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,9}})?) ?({UNIT_NAMES})(?![a-z])")


class Clock(NamedTuple):
    """A run's clock.

    Attributes:
        elapsed_s: [row] seconds since the start; nan where a line has none.
        tick_s: resolution.
    """

    elapsed_s: Array
    tick_s: float


def seconds_of_text(text: str | None, where: str) -> float:
    """Seconds of ``2 days, 6:39:40``, ``1:02:03``, ``18m 42s``, ``2 min 3 sec``, ``350ms``.

    nan without a text.

    Raises:
        TraceError: the text is no time.
    """
    if not text:
        return np.nan
    rest = text.strip()
    days = _DAYS.match(rest)
    total = 0.0
    if days:
        total, rest = float(days[1]) * _SECONDS["d"], rest[days.end() :]
    colons = _COLONS.fullmatch(rest)
    if colons:
        return total + float(colons[1] or 0) * 3_600 + float(colons[2]) * 60 + float(colons[3])
    parts = _UNITS.findall(rest)
    if not parts or _UNITS.sub("", rest).strip():
        raise TraceError(f"{where}: {text[:40]!r} is no time, such as 1:02:03 or 18m 42s")
    return total + sum(
        float(number) * _SECONDS[unit if unit == "ms" else unit[0]] for number, unit in parts
    )


def finest_clock(
    step: Array,
    columns: dict[str, Array],
    decimals: dict[str, int],
    shown_s: Array | None,
    shown_tick_s: float = 1.0,
) -> Clock | None:
    """The clock with the finest ticks that the lines give; None if they give none.

    Args:
        step: [row] the step of a line.
        columns: the groups of :data:`MEANS` that the lines have, and total_tokens.
        decimals: group -> digits behind the point.
        shown_s: [row] the clock that the lines show.
        shown_tick_s: its resolution.
    """
    clocks = [] if shown_s is None else [Clock(shown_s, shown_tick_s)]
    tick = {name: 10.0**-digits for name, digits in decimals.items()}
    if "mean_s" in columns:
        mean_s = _positive(columns["mean_s"])
        number = _steps_since_start(step, mean_s, shown_s)
        clocks.append(_clock(number * mean_s, tick["mean_s"] / mean_s))
    if "mean_steps_per_s" in columns:
        rate = _positive(columns["mean_steps_per_s"])
        number = _steps_since_start(step, 1 / rate, shown_s)
        clocks.append(_clock(number / rate, tick["mean_steps_per_s"] / rate))
    if "mean_tokens_per_s" in columns and "total_tokens" in columns:
        rate = _positive(columns["mean_tokens_per_s"])
        clocks.append(_clock(columns["total_tokens"] / rate, tick["mean_tokens_per_s"] / rate))
    known = [clock for clock in clocks if np.isfinite(clock.elapsed_s).any()]
    return min(known, key=lambda clock: clock.tick_s, default=None)


def _clock(elapsed_s: Array, relative_tick: Array) -> Clock:
    """A clock whose tick grows with the time since the start; its largest one counts."""
    ticks = elapsed_s * relative_tick
    return Clock(elapsed_s, float(np.nanmax(ticks)) if np.isfinite(ticks).any() else np.inf)


def _positive(values: Array) -> Array:
    return np.where(values > 0, values, np.nan)


def _steps_since_start(step: Array, mean_s: Array, shown_s: Array | None) -> Array:
    """[row] steps that a mean covers: those since the start, or since a resumed run's start.

    The clock over the mean is their number, but the clock has whole seconds only. So it tells the
    first step of each run, by the median of the run's lines.
    """
    if shown_s is None:
        return step
    number = np.empty(len(step))
    begins = np.flatnonzero((np.diff(step) < 0) | (np.diff(shown_s) < 0)) + 1
    for rows in np.split(np.arange(len(step)), begins):
        before = step[rows] - shown_s[rows] / mean_s[rows]
        known = before[np.isfinite(before)]
        first = float(np.median(known)) if len(known) else 0.0
        is_resumed = abs(first) > 2 + 2 / float(np.nanmedian(mean_s[rows])) if len(known) else False
        number[rows] = step[rows] - (round(first) if is_resumed else 0.0)
    return number


def texts_in_seconds(texts: Sequence[str | None], where: str) -> Array:
    """[row] seconds of :func:`seconds_of_text`."""
    return np.array([seconds_of_text(text, where) for text in texts])
