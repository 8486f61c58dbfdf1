"""Step times that change over the trace: along a line, at one step, or for a period."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.finding import NOWHERE, Finding
from paceline.diagnose.fit import PAUSE_SIGMAS
from paceline.jumps import MAX_CHANCE, MIN_JUMP, find_jump, period_of
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Fewer steps show no trend.
MIN_STEPS = 8

#: The steps themselves must show this share of a change that findings leave. Steps that no finding
#: explains are compared, if there are MIN_SIDE on either side; otherwise all steps are.
SHOWN, MIN_SIDE = 0.5, 4


def drift_left(
    result: WhatIf, resamples: Array, inside: Sequence[Finding]
) -> tuple[Finding | None, Mask]:
    """The drift that findings of some of the steps leave, and a [step] mask of these steps.

    A fault that ends may lie before or on another change, which then hides its end. Without another
    change, the whole drift is a part of the largest finding. So it is if the steps themselves do
    not show the change that the findings leave.
    """
    drift = _drift(result, resamples, result.simulated_s)
    known = np.zeros(len(result.steps), dtype=bool)
    left_s, largest = result.simulated_s, None
    for finding in inside:
        if finding.cost_s is not None and isinstance(finding.evidence.get("steps"), list):
            left_s = left_s - finding.cost_s
            largest = max(largest or finding, finding, key=lambda f: f.share_of_step)
            known |= np.isin(result.steps, finding.evidence["steps"])
    if drift is None or largest is None:
        return drift, np.zeros_like(known)
    left = _shape_of(result.steps, left_s)
    if left is None or not _shows(left, result.simulated_s, known):
        return replace(drift, part_of=largest.id), np.zeros_like(known)
    return _finding(left, result, resamples, left_s), known


def _drift(result: WhatIf, resamples: Array, times: Array) -> Finding | None:
    """The finding on [step] times that change, at most those of the simulated steps."""
    shape = _shape_of(result.steps, times)
    return None if shape is None else _finding(shape, result, resamples, times)


def _shows(left: _Shape, times: Array, known: Mask) -> bool:
    """Whether [step] times change where a shape does, at each of its changes."""
    longer = left.fitted > (left.fitted.min() + left.fitted.max()) / 2
    least_s = SHOWN * float(np.ptp(left.fitted))
    bounds = [0, *(np.flatnonzero(np.diff(longer)) + 1).tolist(), len(times)]
    parts = [slice(first, end) for first, end in pairwise(bounds)]
    for before, behind in pairwise(parts):
        unknown = [part for part in (before, behind) if (~known[part]).sum() >= MIN_SIDE]
        use = ~known if len(unknown) == 2 else np.ones_like(known)
        before_s, behind_s = (float(np.median(times[part][use[part]])) for part in (before, behind))
        rise_s = behind_s - before_s
        if (rise_s if longer[behind.start] else -rise_s) < least_s:
            return False
    return True


def _shape_of(steps: Ints, times: Array) -> _Shape | None:
    """How [step] times change: along a line, at one step, or for a period; None if they do not."""
    numbers = steps.astype(np.float64)
    if len(times) < MIN_STEPS:
        return None
    shapes = [_trend(numbers, times), _break(numbers, times), *_period(steps, times)]
    shapes = [s for s in shapes if abs(s.change_s) >= MIN_JUMP * times.mean()]
    if not shapes or min(shape.p_value for shape in shapes) > MAX_CHANCE:
        return None
    return min(shapes, key=lambda candidate: float(np.abs(times - candidate.fitted).sum()))


def _finding(shape: _Shape, result: WhatIf, resamples: Array, times: Array) -> Finding:
    """The finding on step times that change as a shape.

    The cost is that of the longer steps. Where steps become faster, these are the earlier ones. It
    is what the line, the jump or the period adds; pauses of single steps are no part of it.

    Args:
        shape: of the times.
        result: the analysis.
        resamples: [resample, step] weights.
        times: [step] seconds, at most those of the simulated steps.
    """
    short_s = float(shape.fitted.min())
    # Time that the simulation leaves out is a part of the steps that become longer.
    outside_s = result.lasted_s - result.simulated_s
    whole_s = shape.usual_s + max(float(np.median(outside_s)), 0.0)
    added_s = shape.fitted - short_s
    rest_s = times - shape.fitted
    most_s = PAUSE_SIGMAS * robust.spread(rest_s)
    noise_s = rest_s.clip(-most_s, most_s)
    varied_s = np.where(added_s > 0, added_s + noise_s - noise_s[added_s > 0].mean(), 0.0)
    lost_share = (resamples @ varied_s) / (resamples @ result.lasted_s)
    low, high = (float(x) for x in np.percentile(lost_share, (5, 95)))
    change = shape.change_s / whole_s
    return Finding(
        id=shape.name,
        cause="drift",
        text=shape.text(change),
        share=None,
        share_of_step=float(added_s.mean() / result.lasted_s.mean()),
        interval=(low, high),
        confidence=float((lost_share > 0).mean()),
        where=NOWHERE,
        evidence={
            **shape.evidence,
            "change": change,
            "p_value": shape.p_value,
            "threshold": MIN_JUMP,
        },
    )


@dataclass(frozen=True)
class _Shape:
    """Change of step times over the trace.

    Attributes:
        name: id of its finding.
        slower: the sentence on a change to longer steps, with a place for the change.
        faster: the sentence on a change to shorter steps, with a place for the ratio.
        fitted: [step] seconds.
        usual_s, change_s: seconds of a step before the change, and what it adds.
        p_value: chance of such times without a change.
        evidence: the numbers behind it.
    """

    name: str
    slower: str
    faster: str
    fitted: Array
    usual_s: float
    change_s: float
    p_value: float
    evidence: dict[str, Any]

    def text(self, change: float) -> str:
        """The change in words; ``change`` as a share of the step before it."""
        if change < 0:
            return self.faster.format(f"{1 / (1 + change):.2f}x")
        return self.slower.format(f"{change:.1%}")


def _trend(steps: Array, times: Array) -> _Shape:
    """A straight line: Mann-Kendall for its significance, Theil-Sen for its slope."""
    slope, p = _theil_sen(steps, times), _mann_kendall(times)
    fitted = slope * (steps - steps[0])
    fitted += np.median(times - fitted)
    return _Shape(
        "trend",
        "steps become {} slower from the first to the last",
        "times fall from step to step: the first steps take {} as long as the later ones",
        fitted,
        float(fitted[0]),
        float(fitted[-1] - fitted[0]),
        p,
        {"slope_s_per_step": slope, "test": "Mann-Kendall, Theil-Sen"},
    )


def _break(steps: Array, times: Array) -> _Shape:
    """One jump, at the place with the least absolute error."""
    jump = find_jump(times)
    step = int(steps[jump.at])
    return _Shape(
        "change-point",
        f"steps become {{}} slower at step {step}",
        f"the steps before step {step} take {{}} as long as the later ones",
        np.repeat([jump.before_s, jump.after_s], [jump.at, len(times) - jump.at]),
        jump.before_s,
        jump.after_s - jump.before_s,
        jump.p_value,
        {"step": step, "test": jump.test},
    )


def _period(steps: Ints, times: Array) -> list[_Shape]:
    """Steps that take longer or shorter than those before and behind them, if there are any."""
    period = period_of(times)
    if period is None:
        return []
    inside = period.inside(len(times))
    first, last = steps[period.first], steps[period.end - 1]
    longer = inside if period.inside_s > period.outside_s else ~inside
    return [
        _Shape(
            "period",
            f"steps {first} to {last} are {{}} slower than those before and behind them",
            f"the steps before step {first} and behind step {last} take {{}} as long as the others",
            np.where(inside, period.inside_s, period.outside_s),
            period.outside_s,
            period.inside_s - period.outside_s,
            period.p_value,
            {"steps": steps[longer].tolist(), "test": period.test},
        )
    ]


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
