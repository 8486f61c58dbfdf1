"""When a step that does not end is a hang."""

from __future__ import annotations

import math

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
