"""Causes outside S: launch delays, and a job that changes over its life."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from paceline.diagnose.finding import NOWHERE, Finding
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]

#: Delays between operations matter from this share of the step on (the health line of S, too).
DELAYED = 0.03

#: A trend counts if it changes the step time by this share over the trace and chance would show it
#: in one trace of a thousand.
DRIFTED, CHANCE = 0.03, 0.001

#: Fewer steps show no trend.
MIN_STEPS = 8


def outside_causes(result: WhatIf, resamples: Array) -> list[Finding]:
    """Findings outside S by share of the step, largest first."""
    found = [f for f in (_delays(result, resamples), _drift(result, resamples)) if f is not None]
    return sorted(found, key=lambda finding: -finding.share_of_step)


def _delays(result: WhatIf, resamples: Array) -> Finding | None:
    if result.launch_slowdown < 1 + DELAYED:
        return None
    lost = result.traced_s - result.simulated_s
    of_step = (resamples @ lost) / (resamples @ result.traced_s)
    by_kind = sorted(result.launch_delay.by_kind.items(), key=lambda item: -item[1])
    label, factor = by_kind[0]
    at_start = result.launch_delay.step_start - 1 > 0.5 * (result.launch_slowdown - 1)
    where = "at the start of steps (data loading)" if at_start else f"before {label}"
    share = float(lost.mean() / result.traced_s.mean())
    low, high = (float(x) for x in np.percentile(of_step, (5, 95)))
    return Finding(
        id="launch-delay",
        cause="launch-delay",
        text=f"{share:.1%} of the step passes between operations, most of it {where}",
        share=None,
        share_of_step=share,
        interval=(low, high),
        confidence=float((of_step >= DELAYED / (1 + DELAYED)).mean()),
        where={"group": {"kind": label}},
        evidence={
            "launch_slowdown": result.launch_slowdown,
            "step_start": result.launch_delay.step_start,
            "largest": factor,
            "by_kind": dict(by_kind[:5]),
            "threshold": 1 + DELAYED,
            "source": "what-if paper, 6",
        },
    )


def _drift(result: WhatIf, resamples: Array) -> Finding | None:
    """A lasting trend of the step time: Mann-Kendall for its significance, Theil-Sen its slope."""
    times, steps = result.simulated_s, result.steps.astype(np.float64)
    if len(times) < MIN_STEPS:
        return None
    slope, p = _theil_sen(steps, times), _mann_kendall(times)
    change = slope * (steps[-1] - steps[0])
    mean = float(times.mean())
    if p > CHANCE or abs(change) < DRIFTED * mean:
        return None
    start = float(np.median(times - slope * (steps - steps[0])))
    share = (mean - start) / float(result.traced_s.mean())
    lost = (resamples @ times - start) / (resamples @ result.traced_s)
    low, high = (float(x) for x in np.percentile(lost, (5, 95)))
    direction = "slower" if change > 0 else "faster"
    return Finding(
        id="drift",
        cause="drift",
        text=f"steps become {abs(change) / start:.1%} {direction} from the first to the last",
        share=None,
        share_of_step=share,
        interval=(low, high),
        confidence=float((np.sign(lost) == np.sign(change)).mean()),
        where=NOWHERE,
        evidence={
            "slope_s_per_step": slope,
            "change": change / start,
            "p_value": p,
            "threshold": DRIFTED,
            "test": "Mann-Kendall, Theil-Sen",
        },
    )


def _theil_sen(x: Array, y: Array) -> float:
    first, second = np.triu_indices(len(x), 1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def _mann_kendall(values: Array) -> float:
    """Two-sided p-value of no trend (normal approximation, without ties)."""
    n = len(values)
    first, second = np.triu_indices(n, 1)
    score = float(np.sign(values[second] - values[first]).sum())
    variance = n * (n - 1) * (2 * n + 5) / 18
    z = max(abs(score) - 1, 0) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))
