"""Whether a run is slower than its repeats from its first steps on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.detect.limits import WARM_UP

#: A run is called slow from this excess over its repeats on.
LEAST_SHARE = 0.04
#: With fewer earlier runs nothing says how far repeats differ.
MIN_RUNS = 3
#: The excess is this many times the width in which the repeats themselves lie.
WIDTHS = 2.0


@dataclass(frozen=True)
class SlowStart:
    """A run that is slow from its first steps on.

    Attributes:
        factor: its step time over the median of its repeats, at the same steps.
        width: the share by which the slowest repeat exceeds the fastest.
        runs: how many repeats there are.
    """

    factor: float
    width: float
    runs: int

    def explain(self) -> str:
        """The finding in words and numbers."""
        return (
            f"{self.factor:.2f}x as long as the median of {self.runs} earlier runs from its first "
            f"steps on; these differ by {self.width:.1%} among each other"
        )


def slow_start(
    run: npt.ArrayLike, earlier: Sequence[npt.ArrayLike], steps: int = WARM_UP
) -> SlowStart | None:
    """Compare the first steps of a run with the same steps of earlier runs of the job.

    Steps are matched by their order, so that a warm-up that all runs share does not count.

    Args:
        run: [step] seconds.
        earlier: [step] seconds of each earlier run.
        steps: first steps that are compared.

    Returns:
        None where the run is not slow, or the repeats differ too much or are too few to say so.
    """
    rows = [np.asarray(row, dtype=np.float64).reshape(-1)[:steps] for row in (run, *earlier)]
    rows = [rows[0], *(row for row in rows[1:] if len(row) == steps)]
    if len(rows[0]) < steps or len(rows) - 1 < MIN_RUNS:
        return None
    seconds = np.stack(rows)
    seconds[~(seconds > 0)] = np.nan
    if not np.isfinite(seconds).any(axis=1).all():
        return None
    usual_s = np.nanmedian(seconds[1:], axis=0)
    logs = np.nanmedian(np.log(seconds / usual_s), axis=1)
    excess, width = float(logs[0] - np.median(logs[1:])), float(np.ptp(logs[1:]))
    if not excess > max(np.log1p(LEAST_SHARE), WIDTHS * width):
        return None
    return SlowStart(float(np.exp(excess)), float(np.expm1(width)), len(rows) - 1)
