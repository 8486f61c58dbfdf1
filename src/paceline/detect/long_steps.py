"""Long steps that recur but start no episode.

The detector learns that recurring bursts belong to the job, and reports them no more. They still
cost time. Common causes are evaluation, checkpoints, garbage collection and slow input.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.event import counted
from paceline.robust import SIGMA_OF_MAD
from paceline.units import duration

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

#: Number of a step's neighbours, and steps between estimates of their median.
NEIGHBOURS, APART = 101, 25
#: The same where levels within them differ. The nearer neighbours count for periods among them that
#: only they show, or whose long steps cost this many times as much.
NEAR, NEAR_APART, MORE = 15, 1, 1.5
#: Least excess of a long step over its neighbours: as a share, and in standard deviations of the
#: steps below their neighbours' median.
LEAST, SIGMAS = 0.15, 6.0
#: Least number of runs of long steps for a finding, and least share of the time that they cost.
MIN_RUNS, MIN_LOST = 4, 0.01
#: The same share for runs with a fixed period. A checkpoint that takes as long as 8 steps, every
#: 1,000 steps, costs 0.8%. Validations of real runs that cost 0.3% give no finding.
MIN_REGULAR = 0.005
#: Number of the costliest runs that suggest periods. Most that a run with the period costs, as a
#: multiple of their median. Largest chance that runs at random have the period.
COSTLIEST, OUTLIER, BY_CHANCE = 8, 10, 0.01
#: Largest share of long steps; with more, the median of the neighbours may be a long step's.
MOST = 1 / 3
#: Runs are regular if this share of their gaps equals the median gap, or of a period's places has
#: a run. Equal gaps differ by at most this share or one step.
REGULAR, SAME_GAP = 0.8, 0.05


@dataclass(frozen=True)
class LongSteps:
    """Long steps of a log.

    Attributes:
        rows, of: number of long rows of the log, and of all rows.
        steps_per_row: number of steps that a row averages.
        in_a_row: median length of the runs of long rows, in rows.
        every: steps from the begin of one run to the next; None if irregular.
        factor: median ratio of the long rows to their neighbours.
        lost_s: total excess over the neighbours' times, seconds.
        lost_share: ``lost_s`` as a share of the log's time.
        at: [long row] their places in the log.
        excess_s: [long row] seconds beyond the neighbours' time.
        usual_s: [long row] their neighbours' time, seconds.
        off_beat: places of further long rows, which do not have the period.
    """

    rows: int
    of: int
    steps_per_row: int
    in_a_row: int
    every: int | None
    factor: float
    lost_s: float
    lost_share: float
    at: tuple[int, ...] = ()
    excess_s: tuple[float, ...] = ()
    usual_s: tuple[float, ...] = ()
    off_beat: tuple[int, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """The totals as JSON values, without the single rows."""
        of_rows = ("at", "excess_s", "usual_s", "off_beat")
        return {name: value for name, value in asdict(self).items() if name not in of_rows}

    def explain(self, who: str = "") -> str:
        """The finding in words and numbers; the usual causes if it is not known ``who`` waits."""
        rows = "steps" if self.steps_per_row == 1 else f"rows of {self.steps_per_row} steps"
        row = f", {self.in_a_row} in a row" if self.in_a_row > 1 else ""
        when, causes = "irregularly", "slow input, shared storage and other jobs on the hosts"
        if self.every is not None:
            when = f"every {counted(self.every, 'step')}"
            causes = "evaluation, checkpoints and garbage collection"
        return (
            f"{100 * self.rows / self.of:.2g}% of the {rows} take {self.factor:.2f}x their "
            f"neighbours{row}, {when}: {duration(self.lost_s)} lost ({self.lost_share:.1%} of the "
            f"time); {who or f'typical of {causes}'}"
        )


def long_steps(duration_s: Array, steps_per_row: int = 1) -> LongSteps | None:
    """The long steps of a log, if they recur and cost enough; else None.

    Args:
        duration_s: [row] seconds of a step; nan and values up to 0 are left out.
        steps_per_row: number of steps that a row averages.
    """
    rows = np.flatnonzero(np.isfinite(duration_s) & (duration_s > 0))
    if len(rows) < NEIGHBOURS:
        return None
    x = duration_s[rows]
    far = _beside(_usual(x, NEIGHBOURS, APART), rows, duration_s, steps_per_row)
    near = _beside(_usual(x, NEAR, NEAR_APART), rows, duration_s, steps_per_row)
    if near is None or near.every is None or near.every > NEAR * steps_per_row:
        return far
    if far is None or far.every is None or near.lost_s > MORE * far.lost_s:
        return near
    return far


def _beside(usual: Array, rows: Rows, duration_s: Array, steps_per_row: int) -> LongSteps | None:
    """Rows that are longer than their ``usual`` times, [valid row] seconds."""
    x = duration_s[rows]
    excess = x / usual - 1
    sigma = SIGMA_OF_MAD * float(np.median(-excess[excess <= 0]))
    is_long = excess > max(LEAST, SIGMAS * sigma)
    begins = np.flatnonzero(is_long & ~np.r_[False, is_long[:-1]])
    ends = np.flatnonzero(is_long & ~np.r_[is_long[1:], False])
    if len(begins) < MIN_RUNS or is_long.mean() > MOST:
        return None
    lost_s = np.add.reduceat(np.where(is_long, x - usual, 0.0), begins)  # [run]
    period, periodic = _find_period(rows[begins], lost_s, len(duration_s))
    if period and lost_s[periodic].sum() > (lost_s.sum() - lost_s.max()) / 2:
        begins, ends, lost_s = begins[periodic], ends[periodic], lost_s[periodic]
    else:
        period = 0
    # Without a period, the costliest run may be a single event, such as the job's start.
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
        at=tuple(rows[of_runs].tolist()),
        excess_s=tuple((x - usual)[of_runs].tolist()),
        usual_s=tuple(usual[of_runs].tolist()),
        off_beat=tuple(rows[np.setdiff1d(np.flatnonzero(is_long), of_runs)].tolist()),
    )


def _find_period(begins: Rows, lost_s: Array, n_rows: int) -> tuple[int, Rows]:
    """Period of the runs of long steps (0 = none), and indices of the runs that have it.

    Candidates are the distances between the costliest runs, and the median gap. A period that runs
    at random would have with a chance above BY_CHANCE does not count.
    """
    top = np.sort(begins[np.argsort(-lost_s, kind="stable")[:COSTLIEST]])
    pairs = top[None, :] - top[:, None]
    candidates = np.unique(np.append(pairs[pairs > 0], round(np.median(np.diff(begins)))))
    least = max(2.0, REGULAR * n_rows / len(begins))
    share = len(begins) / n_rows  # chance that a run begins at a given row
    best, best_s = (0, np.zeros(0, dtype=np.int64)), 0.0
    for period in candidates[candidates >= least].tolist():
        for first in top.tolist():
            hits = np.flatnonzero((begins - first) % period == 0)
            # The start of a job is no such run.
            hits = hits[lost_s[hits] <= OUTLIER * np.median(lost_s[hits])]
            n, of = len(hits), len(range(first % period, n_rows, period))
            if n < max(MIN_RUNS, REGULAR * of) or lost_s[hits].sum() <= best_s:
                continue
            trials = len(candidates) * len(top)
            # Two of the runs define the period, so only the others are evidence.
            if trials * math.comb(of, n) * share ** (n - 2) < BY_CHANCE:
                best, best_s = (period, hits), float(lost_s[hits].sum())
    return best


def _usual(x: Array, neighbours: int, apart: int) -> Array:
    """[row] the median of the row's neighbours, interpolated."""
    first = np.arange(0, len(x) - neighbours + apart, apart).clip(max=len(x) - neighbours)
    windows = np.lib.stride_tricks.sliding_window_view(x, neighbours)[first]
    centres = first + neighbours // 2
    usual: Array = np.interp(np.arange(len(x)), centres, np.median(windows, axis=1))
    return usual
