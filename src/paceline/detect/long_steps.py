"""Single steps that take longer than their neighbours again and again, but start no episode.

A detector learns that bursts belong to the job, and is silent about them. They cost time all the
same: evaluation, checkpoints, garbage collection, slow input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.detect.event import counted, duration
from paceline.robust import SIGMA_OF_MAD

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

#: A step's neighbours, and the steps from one estimate of their median to the next.
NEIGHBOURS, APART = 101, 25
#: A step is long by this share over its neighbours at least, and by this many standard deviations
#: of the steps below their median.
LEAST, SIGMAS = 0.15, 6.0
#: Long steps are told if they come in this many runs, and cost this share of the time.
MIN_RUNS, MIN_LOST = 4, 0.01
#: Those that keep a beat are told from this share on: a checkpoint every 1,000 steps takes 0.8% of
#: the time where it lasts 8 steps. Real runs whose validations take 0.3% say nothing of them.
MIN_REGULAR = 0.005
#: How many of the costliest say what the beat may be, and how many times the median one they may
#: cost. The chance with which runs at random may keep a beat.
COSTLIEST, OUTLIER, BY_CHANCE = 8, 10, 0.01
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
    rows = np.flatnonzero(np.isfinite(duration_s) & (duration_s > 0))
    x = duration_s[rows]
    if len(x) < NEIGHBOURS:
        return None
    usual = _usual(x)
    excess = x / usual - 1
    sigma = SIGMA_OF_MAD * float(np.median(-excess[excess <= 0]))
    is_long = excess > max(LEAST, SIGMAS * sigma)
    begins = np.flatnonzero(is_long & ~np.r_[False, is_long[:-1]])
    ends = np.flatnonzero(is_long & ~np.r_[is_long[1:], False])
    if len(begins) < MIN_RUNS or is_long.mean() > MOST:
        return None
    lost_s = np.add.reduceat(np.where(is_long, x - usual, 0.0), begins)  # of each run
    period, on_beat = _beat(rows[begins], lost_s, len(duration_s))
    if period and lost_s[on_beat].sum() > (lost_s.sum() - lost_s.max()) / 2:
        begins, ends, lost_s = begins[on_beat], ends[on_beat], lost_s[on_beat]
    else:
        period = 0
    # Without a beat, one alone, as a start, is most of the loss and does not recur.
    recurring_s = lost_s.sum() if period else lost_s.sum() - lost_s.max()
    if recurring_s < (MIN_REGULAR if period else MIN_LOST) * x.sum():
        return None
    gaps = np.diff(rows[begins])
    gap = float(np.median(gaps))
    same = np.abs(gaps - gap) <= max(1.0, SAME_GAP * gap)
    if not period and same.mean() >= REGULAR:
        period = round(gap)
    of_runs = np.concatenate([np.arange(a, b + 1) for a, b in zip(begins, ends, strict=True)])
    return LongSteps(
        rows=len(of_runs),
        of=len(x),
        steps_per_row=steps_per_row,
        in_a_row=int(np.median(ends - begins + 1)),
        every=period * steps_per_row if period else None,
        factor=float(np.median(1 + excess[of_runs])),
        lost_s=float(lost_s.sum()) * steps_per_row,
        lost_share=float(lost_s.sum() / x.sum()),
    )


def _beat(begins: Rows, lost_s: Array, n_rows: int) -> tuple[int, Rows]:
    """Period that runs of long steps keep, 0 = none, and which of the runs keep it.

    The costliest ones give the candidates. A beat that this many runs would keep by chance is none.
    """
    top = np.sort(begins[np.argsort(-lost_s, kind="stable")[:COSTLIEST]])
    pairs = top[None, :] - top[:, None]
    candidates = np.unique(np.append(pairs[pairs > 0], round(np.median(np.diff(begins)))))
    least = max(2.0, REGULAR * n_rows / len(begins))
    share = len(begins) / n_rows  # of places that a run hits by chance
    best, best_s = (0, np.zeros(0, dtype=np.int64)), 0.0
    for period in candidates[candidates >= least].tolist():
        for first in top.tolist():
            hits = np.flatnonzero((begins - first) % period == 0)
            hits = hits[lost_s[hits] <= OUTLIER * np.median(lost_s[hits])]  # no start of a job
            n, of = len(hits), len(range(first % period, n_rows, period))
            if n < max(MIN_RUNS, REGULAR * of) or lost_s[hits].sum() <= best_s:
                continue
            trials = len(candidates) * len(top)
            if trials * math.comb(of, n) * share ** (n - 2) < BY_CHANCE:  # two gave the beat
                best, best_s = (period, hits), float(lost_s[hits].sum())
    return best


def _usual(x: Array) -> Array:
    """[row] the median of the neighbours."""
    first = np.arange(0, len(x) - NEIGHBOURS + APART, APART).clip(max=len(x) - NEIGHBOURS)
    windows = np.lib.stride_tricks.sliding_window_view(x, NEIGHBOURS)[first]
    centres = first + NEIGHBOURS // 2
    usual: Array = np.interp(np.arange(len(x)), centres, np.median(windows, axis=1))
    return usual
