"""Detection of a run that is slower than its repeats, from its first steps on or as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.detect.limits import WARM_UP

Array = npt.NDArray[np.float64]

#: Least excess of a slow run over its repeats: 4%, less the uncertainty of 50 steps.
LEAST_SHARE = 0.035
#: Least number of earlier runs, which show the spread of repeats.
MIN_RUNS = 2
#: Least excess as a multiple of the repeats' width, which is uncertain for only two.
WIDTHS, WIDTHS_OF_TWO = 2.0, 4.0
#: From this number of repeats on, their width excludes the slowest, which may be slow itself.
MANY_RUNS = 4


@dataclass(frozen=True)
class SlowStart:
    """A run that is slower than its repeats, from its first steps on or as a whole.

    Attributes:
        factor: its step time over the median of its repeats, at the same steps.
        width: the share by which the slowest repeat (of four or more, the second slowest) exceeds
            the fastest.
        runs: number of repeats.
        steps: number of compared steps.
    """

    factor: float
    width: float
    runs: int
    steps: int

    def explain(self) -> str:
        """The finding in words and numbers."""
        return (
            f"{self.factor:.2f}x as long as the median of {self.runs} earlier runs over "
            f"{self.steps:,} steps; these differ by {self.width:.1%} among each other"
        )


def slow_start(
    run: npt.ArrayLike, earlier: Sequence[npt.ArrayLike], steps: int = WARM_UP
) -> SlowStart | None:
    """Compare the first steps of a run with the same steps of earlier runs of the job.

    Steps are matched by order, so that a common warm-up does not count.

    Args:
        run: [step] seconds.
        earlier: [step] seconds of each earlier run.
        steps: number of first steps to compare; shorter runs are left out.

    Returns:
        None if the run is not slow, or the repeats differ too much or are too few.
    """
    rows = [np.asarray(row, dtype=np.float64).reshape(-1)[:steps] for row in (run, *earlier)]
    rows = [rows[0], *(row for row in rows[1:] if len(row) == steps)]
    if len(rows[0]) < steps or len(rows) - 1 < MIN_RUNS:
        return None
    seconds = np.stack(rows)
    seconds[~(seconds > 0)] = np.nan
    seconds = seconds[:, np.isfinite(seconds[1:]).any(axis=0)]
    if not np.isfinite(seconds).any(axis=1).all():
        return None
    usual_s = np.nanmedian(seconds[1:], axis=0)
    logs = np.nanmedian(np.log(seconds / usual_s), axis=1)
    repeats = np.sort(logs[1:])
    excess = float(logs[0] - np.median(repeats))
    width = float(np.ptp(repeats[:-1] if len(repeats) >= MANY_RUNS else repeats))
    widths = WIDTHS_OF_TWO if len(repeats) == 2 else WIDTHS
    if not excess > max(np.log1p(LEAST_SHARE), widths * width):
        return None
    return SlowStart(float(np.exp(excess)), float(np.expm1(width)), len(repeats), steps)


def slow_run(run: npt.ArrayLike, earlier: Sequence[npt.ArrayLike]) -> SlowStart | None:
    """Compare the first steps of a run with those of earlier runs, then all common steps.

    Earlier runs count if they are at least half as long as the run.
    """
    size = np.size(np.asarray(run))
    long = [row for row in earlier if 2 * len(np.asarray(row)) >= size]
    shared = min([size, *(len(np.asarray(row)) for row in long)])
    return slow_start(run, earlier) or slow_start(run, long, max(shared, WARM_UP))


def comparable(first_step: int, earlier: Sequence[tuple[int, Array]]) -> list[Array]:
    """The earlier runs with a similar first step: the same, or both within the warm-up.

    Logs may count samples, or begin after an interval. A run from a checkpoint has other steps than
    one from the start.

    Args:
        first_step: first step of the run.
        earlier: the first step of each earlier run, and its [step] seconds.
    """
    return [
        seconds
        for first, seconds in earlier
        if first == first_step or max(first, first_step) <= WARM_UP
    ]
