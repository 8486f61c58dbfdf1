"""How many steps would name the slow worker that a trace of few steps only suggests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import Fit
from paceline.diagnose.workers import MIN_SLOW_SHARE, bars, chances, slowness
from paceline.graph import Durations
from paceline.whatif.lasting import ENOUGH_STEPS

#: Least share of the loss that no cause explains, for more steps to matter.
MIN_UNEXPLAINED = 0.5

#: Largest chance that noise shows a suspected worker.
MAX_CHANCE = 0.1

#: More steps than the estimate are advised: its slowness and error come from few steps. Of noisy
#: jobs with a slow worker, about three of four are then named.
MARGIN = 2.0

#: Least and most steps that are advised, over those of the trace.
MIN_TIMES, MAX_TIMES = 3, 10


def more_steps(
    durations: Durations, fit: Fit, by_worker: npt.NDArray[np.float64]
) -> dict[str, Any]:
    """Evidence of an unexplained loss: ``steps_needed``, and the ``suspect`` with its ``factor``.

    Errors fall with the square root of the number of steps. The suspect is the slowest worker if
    noise hardly shows one as slow, and if it also costs the most. Evidence is empty if more steps
    would hardly help.

    Args:
        durations: the measured durations.
        fit: the fit of the computes.
        by_worker: [pp, dp] slowdown S_w, which tells the worker that costs the most.
    """
    lasting, n_steps = slowness(fit)[0], durations.n_steps
    few = durations.graph.programmed and n_steps < ENOUGH_STEPS
    generic = {"steps_needed": ENOUGH_STEPS} if few else {}
    stage, dp = (int(i) for i in np.unravel_index(int(lasting.argmax()), lasting.shape))
    slow, bar = float(lasting[stage, dp]), float(bars(durations, fit)[stage, dp])
    if n_steps < 2 or not MIN_SLOW_SHARE <= slow < bar:
        return generic
    if float(chances(lasting, fit, n_steps)[stage, dp]) > MAX_CHANCE:
        return generic
    needed = math.ceil(MARGIN * n_steps * (bar / slow) ** 2)
    if needed > MAX_TIMES * n_steps:
        return generic
    needed = max(needed, MIN_TIMES * n_steps, *generic.values())
    if by_worker[stage, dp] < by_worker.max():
        return {"steps_needed": needed}
    return {"steps_needed": needed, "suspect": [[dp, stage]], "factor": 1 + slow}
