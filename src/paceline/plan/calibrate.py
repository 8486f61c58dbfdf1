"""Fit a cluster's efficiencies to measured step times.

The constants are few and have a meaning. A log-normal prior keeps each near its sourced value. A
constant that the runs do not determine is fixed there, so a calibration does not learn noise. The
loss is robust and uses relative errors, because some measured runs are slow for reasons outside a
model of a healthy cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import ModelError
from paceline.extras import pip_install
from paceline.model.calibration import Calibration, coverage
from paceline.model.cluster import Cluster
from paceline.model.costs import CostModel
from paceline.model.efficiency import Efficiency
from paceline.model.llm import LLM
from paceline.model.plan import Plan
from paceline.plan.step import step_time_s

Array = npt.NDArray[np.float64]
Job = tuple[LLM, Plan]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Constant:
    """A constant that can be fitted.

    Attributes:
        name: field of :class:`Efficiency`.
        spread: standard deviation of the prior on its logarithm.
        low, high: bounds.
    """

    name: str
    spread: float
    low: float
    high: float


#: Shares of a peak vary by 10 to 15% between good systems. Times per kernel, and constants without
#: a source, may be wrong by a factor.
CONSTANTS = (
    Constant("gemm", 0.10, 0.2, 0.95),
    Constant("gemm_fp8", 0.10, 0.2, 0.95),
    Constant("attention", 0.20, 0.1, 0.9),
    Constant("attention_backward", 0.20, 0.1, 0.9),
    Constant("batched", 0.40, 0.05, 0.9),
    Constant("memory", 0.10, 0.3, 0.97),
    Constant("kernel_s", 0.70, 2e-7, 5e-5),
    Constant("launch_s", 0.70, 5e-7, 1e-4),
    Constant("intra", 0.15, 0.1, 0.97),
    Constant("inter", 0.15, 0.1, 0.97),
    Constant("partial", 1.00, 0.02, 1.0),
)

#: Fewer runs add nothing to the prior.
MIN_RUNS = 8

#: Relative error at which the loss turns from square to linear: the error of a good model.
_SCALE = 0.04
#: A constant whose standard error exceeds this share of its prior's is not determined by the runs.
_UNDETERMINED = 0.9
#: "At its bound": within this share of it.
_PINNED = 0.005


@dataclass(frozen=True)
class Fit:
    """A calibrated cluster and the quality of its fit.

    Attributes:
        cluster: the cluster with the fitted efficiency and its calibration.
        calibration: the cluster's calibration.
        predicted_s: [run] seconds.
    """

    cluster: Cluster
    calibration: Calibration
    predicted_s: Array


def calibrate(
    jobs: Sequence[Job],
    measured_s: Sequence[float],
    cluster: Cluster,
    *,
    progress: Progress | None = None,
) -> Fit:
    """Fit the cluster's efficiency to measured step times.

    Args:
        jobs: model and plan of each run.
        measured_s: their step times.
        cluster: datasheet numbers, and the sourced efficiencies as the centre of the prior.
        progress: called with (evaluations done, evaluations expected).

    Raises:
        ModelError: too few runs, or SciPy is not installed.
    """
    if len(jobs) < MIN_RUNS:
        raise ModelError(
            f"{len(jobs)} runs are too few to calibrate; measure at least {MIN_RUNS}, of different "
            "tp, pp, dp and micro batch"
        )
    fitter = _Fitter(jobs, np.asarray(measured_s, dtype=np.float64), cluster, progress)
    names = fitter.touched()
    start: dict[str, float] = {}
    while True:
        constants = [c for c in CONSTANTS if c.name in names]
        x, errors = fitter.fit(constants, start)
        # Without one constant, the others change little.
        start = {c.name: float(v) for c, v in zip(constants, x, strict=True)}
        # Constants that the runs do not determine, or push out of their bounds, are fixed.
        loose = [
            c.name
            for c, value, error in zip(constants, x, errors, strict=True)
            if error > _UNDETERMINED * c.spread or _pinned(c, exp(value))
        ]
        if not loose:
            break
        if len(names) == 1:
            raise ModelError(
                "the runs determine no constant; measure others, of different tp, pp, dp and micro "
                "batch"
            )
        worst = max(loose, key=lambda name: _looseness(name, constants, errors))
        names = [name for name in names if name != worst]
    efficiency = fitter.efficiency(constants, x)
    predicted = fitter.predict(efficiency)
    share = np.abs(predicted / fitter.measured - 1)
    ranges, words = coverage(list(jobs))
    calibration = Calibration(
        runs=len(jobs),
        constants={c.name: round(float(e), 4) for c, e in zip(constants, errors, strict=True)},
        fixed=tuple(c.name for c in CONSTANTS if c.name not in names),
        mape=round(float(share.mean()), 4),
        median=round(float(np.median(share)), 4),
        ranges=ranges,
        words=words,
    )
    name = cluster.name if cluster.name.endswith("calibrated") else f"{cluster.name} calibrated"
    fitted = replace(cluster, name=name, efficiency=efficiency, calibration=calibration)
    return Fit(fitted, calibration, predicted)


def cross_validate(
    jobs: Sequence[Job],
    measured_s: Sequence[float],
    cluster: Cluster,
    held_out: Sequence[Sequence[int]],
    *,
    progress: Progress | None = None,
) -> Array:
    """[run] seconds predicted by calibrations without the run's part.

    Args:
        jobs: model and plan of each run.
        measured_s: their step times.
        cluster: as for :func:`calibrate`.
        held_out: indices of the runs, in disjoint parts.
        progress: called with (finished parts, all parts).
    """
    predicted = np.full(len(jobs), np.nan)
    for done, rows in enumerate(held_out):
        training = sorted(set(range(len(jobs))) - set(rows))
        fit = calibrate([jobs[i] for i in training], [measured_s[i] for i in training], cluster)
        predicted[list(rows)] = [
            step_time_s(CostModel(jobs[i][0], fit.cluster).costs(jobs[i][1]), jobs[i][1], fast=True)
            for i in rows
        ]
        if progress is not None:
            progress(done + 1, len(held_out))
    return predicted


def folds(n: int, k: int, seed: int = 0) -> list[list[int]]:
    """``k`` disjoint parts of ``n`` runs, drawn at random."""
    order = np.random.default_rng(seed).permutation(n)
    size = ceil(n / k)
    return [sorted(order[i : i + size].tolist()) for i in range(0, n, size)]


class _Fitter:
    """Predictions of all runs under trial efficiencies."""

    def __init__(
        self, jobs: Sequence[Job], measured: Array, cluster: Cluster, progress: Progress | None
    ) -> None:
        self.jobs, self.measured, self.cluster = jobs, measured, cluster
        self.progress, self.calls = progress, 0

    def efficiency(self, constants: Sequence[Constant], x: Array) -> Efficiency:
        values: dict[str, Any] = {
            c.name: float(f"{exp(v):.4g}") for c, v in zip(constants, x, strict=True)
        }
        return replace(self.cluster.efficiency, **values)

    def predict(self, efficiency: Efficiency) -> Array:
        """[run] seconds."""
        cluster = replace(self.cluster, efficiency=efficiency)
        models: dict[LLM, CostModel] = {}
        seconds = []
        for llm, plan in self.jobs:
            model = models.setdefault(llm, CostModel(llm, cluster))
            seconds.append(step_time_s(model.costs(plan), plan, fast=True))
        return np.array(seconds)

    def touched(self) -> list[str]:
        """Constants that change at least one prediction."""
        base = self.predict(self.cluster.efficiency)
        names = []
        for constant in CONSTANTS:
            value = getattr(self.cluster.efficiency, constant.name)
            scaled = replace(self.cluster.efficiency, **{constant.name: value * 0.8})
            if np.any(np.abs(self.predict(scaled) / base - 1) > 1e-6):
                names.append(constant.name)
        return names

    def fit(self, constants: Sequence[Constant], start: Mapping[str, float]) -> tuple[Array, Array]:
        """Logarithms of the best constants, and their standard errors.

        Args:
            constants: the constants to fit; the others stay at the centres of their priors.
            start: logarithms to start at, if known.
        """
        try:
            from scipy.optimize import least_squares
        except ImportError:
            raise ModelError(
                f"calibrating needs SciPy; install it with: {pip_install('calibrate')}"
            ) from None
        centre = np.log([getattr(self.cluster.efficiency, c.name) for c in constants])
        spread = np.array([c.spread for c in constants])
        low, high = (np.log([getattr(c, side) for c in constants]) for side in ("low", "high"))
        begin = [start.get(c.name, middle) for c, middle in zip(constants, centre, strict=True)]
        inside = np.clip(begin, low + 1e-3, high - 1e-3)

        def residuals(x: Array) -> Array:
            values = {c.name: exp(v) for c, v in zip(constants, x, strict=True)}
            trial: Any = replace(self.cluster.efficiency, **values)
            error = np.log(self.predict(trial) / self.measured) / _SCALE
            # Charbonnier ("soft L1"): square for small errors, linear for large ones.
            robust = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))
            self.calls += 1
            if self.progress is not None:
                self.progress(self.calls, max(self.calls, 12 * (len(constants) + 1)))
            return np.concatenate([robust, (x - centre) / spread])

        solved = least_squares(residuals, inside, bounds=(low, high), diff_step=1e-2, xtol=1e-5)
        of_runs = solved.jac[: -len(constants)]
        # The prior's share is exact: differences vanish where a logarithm is about 0.
        curvature = of_runs.T @ of_runs + np.diag(spread**-2.0)
        errors = np.sqrt(np.diag(np.linalg.inv(curvature)))
        return solved.x, errors


def _pinned(constant: Constant, value: float) -> bool:
    return (
        abs(log(value / constant.low)) < _PINNED or abs(log(value / constant.high)) < _PINNED
    ) and not (constant.name == "partial" and value > 0.9)


def _looseness(name: str, constants: Sequence[Constant], errors: Array) -> float:
    place = [c.name for c in constants].index(name)
    return float(errors[place] / constants[place].spread)
