"""The ideal step if the faulty hardware of the findings were healthy.

The paper's ideal of computes is a mean over all workers, including the slow ones. Its ideal of
transfers is a median, which of two links or groups is the mean. Among few peers a fault therefore
makes the ideal too long. Without the faults, mean and median are those of the healthy peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.diagnose.candidate import Candidate
from paceline.diagnose.fit import Fit
from paceline.diagnose.remove import without
from paceline.graph import Durations
from paceline.whatif import Scenario, WhatIf, simulate_scenarios
from paceline.whatif.ideal import reference
from paceline.whatif.lasting import lasting

Array = npt.NDArray[np.float64]

#: Causes that healthy hardware removes. Others are uneven work, whose ideal is the paper's mean.
HARDWARE = frozenset({"worker", "link", "dp-network", "peer-network"})


@dataclass(frozen=True, eq=False)
class HealthyIdeal:
    """The ideal of a job with healthy hardware.

    Attributes:
        seconds: [op] ideal durations.
        step_s: [step] the ideal step, T_healthy; at most that of the paper, T_ideal.
        passing_s: [step] seconds by which a step exceeds the typical one, both with healthy
            hardware; None if passes are whole.
    """

    seconds: Array
    step_s: Array
    passing_s: Array | None


def healthy_ideal(
    durations: Durations, fit: Fit, causes: Sequence[Candidate], result: WhatIf
) -> HealthyIdeal | None:
    """The ideal without the faults among ``causes``; None if none of them is of the hardware."""
    faults = [cause.effect for cause in causes if cause.cause in HARDWARE]
    if not faults:
        return None
    repaired = without(durations, fit, faults)
    judged_by = reference(repaired)
    scenarios = [Scenario.measured(), Scenario.ideal()]
    repaired_s, step_s = simulate_scenarios(repaired, judged_by.seconds, scenarios)
    typical = lasting(repaired, judged_by)
    passing_s = None if typical is None else repaired_s - typical.slowdown * step_s
    if float(step_s.mean()) < float(result.ideal_s.mean()):
        return HealthyIdeal(judged_by.seconds, step_s, passing_s)
    return HealthyIdeal(reference(durations).seconds, result.ideal_s, passing_s)


def passing_s(result: WhatIf, healthy: HealthyIdeal | None) -> Array | None:
    """[step] seconds by which a step exceeds the typical one; None if passes are whole.

    With slow hardware it is the excess in the repaired job. In the job as it is, a slow worker
    hides variation of the others.
    """
    if healthy is not None:
        return healthy.passing_s
    if result.lasting is None:
        return None
    return result.simulated_s - result.lasting.slowdown * result.ideal_s


def part_that_passes(passing: Array, rest_s: float) -> Array:
    """[step] seconds of the passing variation that belong to the rest, which no cause explains.

    Their mean is at least 0 and at most that of the rest. Single steps are not cut off: a cut would
    leave only the steps above the typical one, and so make the mean too large.

    Args:
        passing: [step] seconds by which a step exceeds the typical one, :func:`passing_s`.
        rest_s: mean seconds of the loss that no cause explains.
    """
    whole_s = float(passing.mean())
    if whole_s <= 0:
        return np.zeros_like(passing)
    return passing * min(1.0, max(rest_s, 0.0) / whole_s)
