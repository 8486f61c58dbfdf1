"""Times from step to step of all steps of a recording, profiled or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.sources.recording.files import RankFile
from paceline.trace import Periods

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def step_periods(starts: Sequence[Sequence[RankFile]]) -> Periods | None:
    """Times from the end of a step to that of the next one, means over the ranks.

    Args:
        starts: the files of each start of the job, the latest start first. A step comes from the
            last start that recorded it.

    Returns:
        The times; None if no step follows another.
    """
    steps, seconds = np.zeros(0, dtype=np.int64), np.zeros(0)
    for files in starts:
        own_steps, own_seconds = _of_start(files)
        new = ~np.isin(own_steps, steps)
        steps = np.concatenate([steps, own_steps[new]])
        seconds = np.concatenate([seconds, own_seconds[new]])
    order = np.argsort(steps)
    return Periods(steps[order], seconds[order]) if len(steps) else None


def _of_start(files: Sequence[RankFile]) -> tuple[Ints, Floats]:
    """([step] numbers, [step] mean seconds over the ranks of one start)."""
    of_ranks = [_of_rank(file) for file in files]
    steps, row = np.unique(np.concatenate([steps for steps, _ in of_ranks]), return_inverse=True)
    seconds = np.concatenate([seconds for _, seconds in of_ranks])
    return steps, np.bincount(row, weights=seconds, minlength=len(steps)) / np.bincount(
        row, minlength=len(steps)
    )


def _of_rank(file: RankFile) -> tuple[Ints, Floats]:
    """([step] numbers, [step] seconds) of one rank; of a repeated number the later one."""
    order = np.argsort(file.spans_ns[:, 0], kind="stable")
    number, end_ns = file.times[order, 0], file.spans_ns[order, 1]
    follows = np.diff(number) == 1
    steps, seconds = number[1:][follows], np.diff(end_ns)[follows] / 1e9
    numbers, last = np.unique(steps[::-1], return_index=True)
    return numbers, seconds[::-1][last]
