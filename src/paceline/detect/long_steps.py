"""Single steps that take longer than their neighbours again and again, but start no episode.

A detector learns that bursts belong to the job, and is silent about them. They cost time all the
same: evaluation, checkpoints, garbage collection, slow input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.detect.event import counted, duration
from paceline.robust import SIGMA_OF_MAD

Array = npt.NDArray[np.float64]

#: A step's neighbours, and the steps from one estimate of their median to the next.
NEIGHBOURS, APART = 101, 25
#: A step is long by this share over its neighbours at least, and by this many standard deviations
#: of the steps below their median.
LEAST, SIGMAS = 0.15, 6.0
#: Long steps are told if they come in this many runs, and cost this share of the time.
MIN_RUNS, MIN_LOST = 4, 0.01
#: If more steps than this are long, the median of the neighbours is a long step's, or between both.
MOST = 1 / 3
#: They come regularly if this share of the gaps is the median one, within a share or one step.
REGULAR, SAME_GAP = 0.8, 0.05


@dataclass(frozen=True)
class LongSteps:
    """Long steps of a log.

    Attributes:
        rows, of: rows of the log that are long, and all rows.
        steps_per_row: steps of which a row is the mean.
        in_a_row: median length of their runs, in rows.
        every: steps from the begin of one run to the next; None where they come irregularly.
        factor: median of their times over their neighbours'.
        lost_s: seconds beyond their neighbours' times.
        lost_share: the same as a share of all seconds.
    """

    rows: int
    of: int
    steps_per_row: int
    in_a_row: int
    every: int | None
    factor: float
    lost_s: float
    lost_share: float

    def explain(self) -> str:
        """The finding in words and numbers."""
        rows = "steps" if self.steps_per_row == 1 else f"rows of {self.steps_per_row} steps"
        row = f", {self.in_a_row} in a row" if self.in_a_row > 1 else ""
        when, causes = "irregularly", "slow input, shared storage and other jobs on the hosts"
        if self.every is not None:
            when = f"every {counted(self.every, 'step')}"
            causes = "evaluation, checkpoints and garbage collection"
        return (
            f"{100 * self.rows / self.of:.2g}% of the {rows} take {self.factor:.2f}x their "
            f"neighbours{row}, {when}: {duration(self.lost_s)} lost ({self.lost_share:.1%} of the "
            f"time); {causes} look so"
        )


def long_steps(duration_s: Array, steps_per_row: int = 1) -> LongSteps | None:
    """The long steps of a log, if they recur and cost enough.

    Args:
        duration_s: [row] seconds of a step; nan and values up to 0 are left out.
        steps_per_row: steps of which a row is the mean.
    """
    x = duration_s[np.isfinite(duration_s) & (duration_s > 0)]
    if len(x) < NEIGHBOURS:
        return None
    usual = _usual(x)
    excess = x / usual - 1
    sigma = SIGMA_OF_MAD * float(np.median(-excess[excess <= 0]))
    is_long = excess > max(LEAST, SIGMAS * sigma)
    begins = np.flatnonzero(is_long & ~np.r_[False, is_long[:-1]])
    if len(begins) < MIN_RUNS or is_long.mean() > MOST:
        return None
    lost_s = np.add.reduceat(np.where(is_long, x - usual, 0.0), begins)  # of each run
    if lost_s.sum() - lost_s.max() < MIN_LOST * x.sum():  # one alone, as a start, does not recur
        return None
    ends = np.flatnonzero(is_long & ~np.r_[is_long[1:], False])
    gaps = np.diff(begins)
    gap = float(np.median(gaps))
    same = np.abs(gaps - gap) <= max(1.0, SAME_GAP * gap)
    return LongSteps(
        rows=int(is_long.sum()),
        of=len(x),
        steps_per_row=steps_per_row,
        in_a_row=int(np.median(ends - begins + 1)),
        every=round(gap) * steps_per_row if same.mean() >= REGULAR else None,
        factor=float(np.median(1 + excess[is_long])),
        lost_s=float(lost_s.sum()) * steps_per_row,
        lost_share=float(lost_s.sum() / x.sum()),
    )


def _usual(x: Array) -> Array:
    """[row] the median of the neighbours."""
    first = np.arange(0, len(x) - NEIGHBOURS + APART, APART).clip(max=len(x) - NEIGHBOURS)
    windows = np.lib.stride_tricks.sliding_window_view(x, NEIGHBOURS)[first]
    centres = first + NEIGHBOURS // 2
    usual: Array = np.interp(np.arange(len(x)), centres, np.median(windows, axis=1))
    return usual
