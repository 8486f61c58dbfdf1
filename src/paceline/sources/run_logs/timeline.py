"""The timeline of a job: its starts, and the steps and pauses of each, on one clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from paceline.sources.recording.files import RankFile

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
PauseKind = Literal["setup", "restore", "checkpoint", "evaluation", "data", "other"]
PAUSE_KINDS: tuple[PauseKind, ...] = (
    "setup",
    "restore",
    "checkpoint",
    "evaluation",
    "data",
    "other",
)


@dataclass(frozen=True)
class Pause:
    """Time in which a job did not run steps.

    Attributes:
        kind: kind of the pause.
        begin_s, end_s: seconds on the timeline's clock.
    """

    kind: PauseKind
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Steps:
    """Steps in a log. A sample may stand for several steps.

    Attributes:
        last: [sample] number of the sample's last step.
        count: [sample] number of its steps.
        begin_s, end_s: [sample] seconds on the timeline's clock; pauses may lie within.
        spent_s: [sample] seconds that the source gives for the sample; its rounded dates may leave
            fewer or more.
    """

    last: Ints
    count: Ints
    begin_s: Array
    end_s: Array
    spent_s: Array

    def __len__(self) -> int:
        return len(self.last)

    @property
    def first_step(self) -> int:
        """The first step of all."""
        return int(self.last[0] - self.count[0] + 1)


@dataclass(frozen=True)
class Start:
    """One start of the job's processes.

    Attributes:
        begin_s, end_s: seconds at which the processes began, and their last known time.
        has_begin: whether the log has this begin; else ``begin_s`` is the first time in the log.
        has_ended: whether the log shows that the job ended of its own accord.
        steps: ascending in time.
        pauses: in any order; they may overlap each other and the steps.
    """

    begin_s: float
    end_s: float
    steps: Steps
    pauses: tuple[Pause, ...] = ()
    has_begin: bool = False
    has_ended: bool = False


@dataclass(frozen=True, eq=False)
class Recording:
    """The folder of a recorded run, and its files."""

    path: Path
    files: tuple[RankFile, ...]


@dataclass(frozen=True)
class Timeline:
    """The timeline of a job.

    Attributes:
        tool: the tool that wrote the log.
        starts: the starts of the job, in their order.
        recorded: kinds of pauses that the log would show if there were any.
        has_clock: whether the time between starts, and between steps, is known.
        notes: doubts of the reader.
        recordings: recorded runs among the logs, whose profiled steps tell the stragglers.
    """

    tool: str
    starts: tuple[Start, ...]
    recorded: frozenset[PauseKind]
    has_clock: bool = True
    notes: tuple[str, ...] = ()
    recordings: tuple[Recording, ...] = ()


def no_steps() -> Steps:
    """An empty table, for a start without steps."""
    whole, seconds = np.empty(0, np.int64), np.empty(0)
    return Steps(whole, whole, seconds, seconds, seconds)


def _close_up(end_s: Array, spent_s: Array) -> Array:
    """[sample] ends, up to a second earlier where the next sample needs that time."""
    ends = end_s.tolist()
    for row in range(len(ends) - 1, 0, -1):
        needed = ends[row] - float(spent_s[row])
        ends[row - 1] = max(ends[row - 1] - 1.0, min(ends[row - 1], needed))
    return np.array(ends)


def steps_of(rows: Iterable[tuple[int, int, float, float]]) -> Steps:
    """Steps from rows (last step, count, begin, end), ascending in time.

    Logs round their times. If a sample seems to begin before the last one ends, its begin is moved.
    Dates of whole seconds may be up to a second off. Within that, samples follow each other.
    """
    table = np.array(list(rows), dtype=np.float64).reshape(-1, 4)
    begin_s, end_s = table[:, 2].copy(), np.maximum.accumulate(table[:, 3])
    spent_s = table[:, 3] - table[:, 2]
    if (end_s % 1 == 0).all() and (spent_s % 1 != 0).any():
        end_s = _close_up(end_s, spent_s)
        begin_s[1:] = end_s[1:] - spent_s[1:]
    begin_s[1:] = np.maximum(begin_s[1:], end_s[:-1])
    last, count = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    return Steps(last, count, np.minimum(begin_s, end_s), end_s, spent_s)
