"""Hanging steps: when a step counts as a hang, and the ranks that did not arrive."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from paceline.detect.job import JobEvent
from paceline.detect.missing_calls import absent_ranks, waiting_calls
from paceline.trace.calls import CallLog

#: A hang has no samples for this many typical steps and seconds beyond the usual time.
STEPS, SECONDS = 3, 30.0


def is_overdue(waited_s: float, usual_s: float, step_s: float) -> bool:
    """Whether the time without samples shows a hang.

    Args:
        waited_s: seconds since the job's last data.
        usual_s: usual seconds between data.
        step_s: step time; nan if unknown, which never counts as a hang.
    """
    return math.isfinite(step_s) and waited_s > usual_s + STEPS * step_s + SECONDS


def hang_of(
    steps: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
    duration_s: npt.NDArray[np.float64],
    waited_s: float,
    step_s: float,
    log: CallLog | None = None,
) -> JobEvent:
    """The event of a hanging step.

    The call log names the ranks that did not arrive. Otherwise these are the ranks without a step
    that others have. If neither names a rank, the event has all ranks.

    Args:
        steps: [step] numbers, ascending, up to the newest step of any rank.
        ranks: [rank] numbers of the ranks.
        duration_s: [step, rank] seconds; nan = no sample.
        waited_s: seconds since the job's last data.
        step_s: step time, seconds.
        log: calls of the job until now.
    """
    waiting = () if log is None else waiting_calls(log)
    last = np.isnan(duration_s[-1])
    is_partial = bool(last.any() and not last.all())
    step = int(steps[-1]) + (not is_partial)
    late = absent_ranks(waiting) or tuple((ranks[last] if is_partial else ranks).tolist())
    return JobEvent(
        "hang", step, step, late, len(ranks), math.nan, waited_s, step_s, waiting=waiting
    )
