"""Steps that do not end: from when on one is a hang, and the ranks that did not arrive."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from paceline.detect.job import JobEvent
from paceline.detect.missing_calls import absent_ranks, waiting_calls
from paceline.trace.calls import CallLog

#: Nothing came for this many typical steps, and seconds, more than usual.
STEPS, SECONDS = 3, 30.0


def is_overdue(waited_s: float, usual_s: float, step_s: float) -> bool:
    """Whether nothing came for too long.

    Args:
        waited_s: since the last sign of the job.
        usual_s: between two signs.
        step_s: what a step takes; nan where it is not known, which says nothing.
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
    """The event of a step that does not end.

    The call log says which ranks did not arrive. Else the ranks are named that have not told a step
    which others have. Else nothing says it, and the event has all ranks.

    Args:
        steps: [step] numbers, ascending; the last is the newest that any rank has told.
        ranks: [rank] their numbers.
        duration_s: [step, rank] seconds; nan = not told.
        waited_s: since the last sign of the job.
        step_s: what a step takes.
        log: calls of the job, up to now.
    """
    waiting = () if log is None else waiting_calls(log)
    last = np.isnan(duration_s[-1])
    is_partial = bool(last.any() and not last.all())
    step = int(steps[-1]) + (not is_partial)
    late = absent_ranks(waiting) or tuple((ranks[last] if is_partial else ranks).tolist())
    return JobEvent(
        "hang", step, step, late, len(ranks), math.nan, waited_s, step_s, waiting=waiting
    )
