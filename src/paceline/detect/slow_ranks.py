"""Ranks that are slower than their peers in all steps: no change of the step time shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.detect.who import MIN_SHARE, SUSPICIOUS_RATIO, alike_groups, lower_median, name_ranks

Array = npt.NDArray[np.float64]

#: Parts of the run. A rank must be slow in each of them.
_PARTS = 4


@dataclass(frozen=True)
class SlowRanks:
    """Ranks that are slow in all steps, alike.

    Attributes:
        ranks: the ranks, ascending.
        factor: their own work over that of the median rank.
        work_s, usual_s: seconds of own work a step, theirs and the median rank's.
    """

    ranks: tuple[int, ...]
    factor: float
    work_s: float
    usual_s: float

    def explain(self) -> str:
        """One line."""
        return (
            f"{name_ranks(self.ranks)}: {self.factor:.2f}x the own work of the median rank in all "
            f"steps ({self.work_s:.4g} s instead of {self.usual_s:.4g} s), without the wait for "
            "others"
        )


def slow_ranks(duration_s: Array, wait_s: Array, ranks: Sequence[int]) -> tuple[SlowRanks, ...]:
    """Ranks whose own work is longer than the median rank's in each quarter of the steps.

    Args:
        duration_s: [step, rank] step times.
        wait_s: [step, rank] the part in which the rank waited for others.
        ranks: [rank] numbers.
    """
    work_s = duration_s - wait_s
    parts = np.array_split(np.arange(len(work_s)), _PARTS)
    known = [np.isfinite(work_s[rows]).any(axis=0).all() for rows in parts]
    if len(ranks) < 2 or not all(known):
        return ()
    middles = np.array([np.nanmedian(work_s[rows], axis=0) for rows in parts])  # [part, rank]
    usual_s = np.array([[lower_median(of_part)] for of_part in middles])
    step_s = float(np.nanmedian(duration_s))
    is_slow = (middles >= SUSPICIOUS_RATIO * usual_s) & (middles - usual_s >= MIN_SHARE * step_s)
    of_rank, of_all = np.nanmedian(work_s, axis=0), float(np.median(usual_s))
    factor = of_rank / max(of_all, 1e-12)
    return tuple(
        SlowRanks(
            tuple(int(ranks[at]) for at in group),
            float(np.median(factor[group])),
            float(np.median(of_rank[group])),
            of_all,
        )
        for group in alike_groups(np.flatnonzero(is_slow.all(axis=0)), factor)
    )
