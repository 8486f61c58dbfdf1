"""Logs of Megatron-LM: steps, evaluations, checkpoints, restarts.

Held against the source of core 0.20.0 (commit d98e8a6): the lines of ``training_log``, of
``print_datetime`` and of ``timers.log``. These are in ``megatron/training/training.py``,
``training/checkpointing.py`` and ``core/timers.py``. The clock of an iteration's line stops for
evaluations and checkpoints. Their timers are printed when they end, after the line of the last
step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from paceline.errors import TraceError
from paceline.sources.run_logs.timeline import (
    Pause,
    PauseKind,
    Start,
    Timeline,
    steps_of,
)
from paceline.sources.step_logs.lines import stamp_seconds

#: Words in each line of a step.
CUE = "elapsed time per iteration (ms):"
_STAMP = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)"
_STEP = re.compile(
    rf"(?:\[{_STAMP}\] +)?iteration +(\d{{1,10}})/ *\d+ \|"
    r".*?elapsed time per iteration \(ms\): (\d{1,12}(?:\.\d{1,9})?)"
)
_DATETIME = re.compile(rf"\[([^\]]{{1,120}})\] datetime: {_STAMP}")
_SAVED = re.compile(rf"\[{_STAMP}\] successfully saved checkpoint from iteration +(\d+)")
_LOADED = re.compile(r"successfully loaded checkpoint from .* at iteration +(\d+)")
_MS = r"(\d{1,12}(?:\.\d{1,9})?)"
_TIMER = re.compile(
    r"^ {4}(save-checkpoint|save-checkpoint-non-persistent|load-checkpoint|evaluate) \.*: "
    rf"(?:\([\d.]+, {_MS}\)|{_MS}\s*$)"
)
_TIMERS: dict[str, PauseKind] = {
    "save-checkpoint": "checkpoint",
    "save-checkpoint-non-persistent": "checkpoint",
    "load-checkpoint": "restore",
    "evaluate": "evaluation",
}
#: First texts of ``print_datetime`` in a start, and its text when the job ends of its own accord.
_BEGIN = ("after in-process setup", "after in-job setup", "after megatron is initialized")
_END = "after training is done"
_BEFORE_STEPS = "before the start of training step"
_RECORDED: frozenset[PauseKind] = frozenset({"setup", "restore", "checkpoint", "evaluation"})
_NO_CLOCK = "lines have no dates (Megatron-LM before core 0.8): time between steps is unknown"


def read_megatron(lines: Iterable[str], where: str) -> Timeline:
    """The timeline of one log, which may hold several starts of the job.

    Raises:
        TraceError: it has no line of a step, or a date is invalid.
    """
    reader = _Reader(where)
    for line in lines:
        reader.take(line)
    starts = reader.starts()
    if not starts:
        raise TraceError(f"{where} has no line of a step that Megatron-LM writes")
    notes = () if reader.has_clock else (_NO_CLOCK,)
    return Timeline("Megatron-LM", starts, _RECORDED, has_clock=reader.has_clock, notes=notes)


class _Reader:
    """Collects lines into starts of the job."""

    def __init__(self, where: str) -> None:
        self.has_clock, self._where = True, where
        self._closed: list[Start] = []
        self._reset()

    def _reset(self) -> None:
        self._rows: list[tuple[int, int, float, float]] = []
        self._pauses: list[Pause] = []
        self._times: list[float] = []
        self._loaded: int | None = None
        self._first_time = 0
        self._has_begin = self._has_ended = False
        self._cursor: float | None = None

    def take(self, line: str) -> None:
        if CUE in line and (match := _STEP.search(line)):
            self._step(match)
        elif "datetime: " in line and (match := _DATETIME.search(line)):
            self._datetime(match[1], stamp_seconds(match[2], self._where))
        elif "successfully saved" in line and (match := _SAVED.search(line)):
            self._times.append(stamp_seconds(match[1], self._where))
        elif "successfully loaded" in line and (match := _LOADED.search(line)):
            self._loaded = int(match[1])
        elif line.startswith("    ") and (match := _TIMER.match(line)):
            self._timer(_TIMERS[match[1]], float(match[2] or match[3]) / 1e3)

    def _step(self, match: re.Match[str]) -> None:
        number, seconds = int(match[2]), float(match[3]) / 1e3
        if self._rows and number <= self._rows[-1][0]:
            self._close()
        count = self._count(number)
        if match[1] is None:
            self.has_clock = False
            end = (self._cursor or 0.0) + count * seconds
        else:
            end = stamp_seconds(match[1], self._where)
        begin = end - count * seconds
        if not self._rows:
            self._first_time = len(self._times)
        self._rows.append((number, count, begin, end))
        self._times += [begin, end]
        self._cursor = end

    def _count(self, number: int) -> int:
        """Steps since the line before; for a first line, since the loaded checkpoint."""
        if self._rows:
            return number - self._rows[-1][0]
        return max(number - (self._loaded or 0), 1)

    def _datetime(self, what: str, at: float) -> None:
        if what.startswith(_BEGIN) and self._rows:
            self._close()
        if what.startswith(_BEGIN) and not self._times:
            self._has_begin = True
        self._times.append(at)
        self._has_ended |= what.startswith(_END)
        if what.startswith(_BEFORE_STEPS) and not self._rows:
            self._pauses.append(Pause("setup", min(self._times), at))
        self._cursor = at if self._cursor is None else max(self._cursor, at)

    def _timer(self, kind: PauseKind, seconds: float) -> None:
        """Add a pause after the last known event: lines of timers have no date."""
        begin = self._cursor
        if begin is None:
            return
        self._pauses.append(Pause(kind, begin, begin + seconds))
        self._cursor = begin + seconds
        self._times.append(self._cursor)

    def _close(self) -> None:
        if self._loaded is None and len(self._rows) > 1:
            self._shorten_first(self._rows[1][1])
        if self._rows:
            self._closed.append(
                Start(
                    min(self._times),
                    max(self._times),
                    steps_of(self._rows),
                    tuple(self._pauses),
                    has_begin=self._has_begin,
                    has_ended=self._has_ended,
                )
            )
        self._reset()

    def _shorten_first(self, spacing: int) -> None:
        """Let the first line count for no more steps than the next: a log may begin anywhere."""
        number, count, begin, end = self._rows[0]
        if count > spacing:
            begin = end - (end - begin) * spacing / count
            self._rows[0] = (number, spacing, begin, end)
            self._times[self._first_time] = begin

    def starts(self) -> tuple[Start, ...]:
        self._close()
        return tuple(self._closed)
