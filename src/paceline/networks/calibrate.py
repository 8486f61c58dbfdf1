"""A cluster's factors from measured runs, with their accuracy on left-out runs and their coverage.

Residuals are logarithms of measured over predicted time. Runs, whole networks and whole strategies
are left out in turn. The residuals of left-out runs give the width of the band of normal runs
(``abnormal``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import ModelError
from paceline.model.cluster import Cluster
from paceline.networks.abci import chainer_constants
from paceline.networks.compute import ComputeConstants, constants_of
from paceline.networks.factors import Factors, Measured, fit_factors
from paceline.networks.runs import NetworkRun
from paceline.networks.terms import Machine, step_terms

LEAST_RUNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The range of the calibrated runs.

    Attributes:
        networks, strategies: names.
        most_gpus: largest number of GPUs of a run.
        samples: network|strategy -> most samples per GPU.
    """

    networks: tuple[str, ...]
    strategies: tuple[str, ...]
    most_gpus: int
    samples: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCalibration:
    """A cluster, its factors and their accuracy.

    Attributes:
        cluster: the cluster with the datasheet numbers of the terms.
        software: constants of the runs' kernels.
        factors: factors on its terms.
        coverage: coverage of the runs.
        spread: root mean square of the residuals of left-out runs.
        spread_network, spread_strategy: the same with the whole network or strategy left out; equal
            to ``spread`` for a single one.
    """

    cluster: Cluster
    software: ComputeConstants
    factors: Factors
    coverage: Coverage
    spread: float
    spread_network: float
    spread_strategy: float

    def terms(self, run: NetworkRun) -> dict[str, float]:
        """Seconds of each term of the run's step."""
        terms = step_terms(run.network, run.strategy, Machine(self.cluster, self.software))
        return self.factors.apply(terms, run.strategy.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Accuracy for runs that were left out.

    Attributes:
        what: "run", "network vgg16", "strategy filter", "above 64 GPUs".
        runs: number of runs.
        accuracy: mean of 1 - |predicted - measured| / measured, each at least 0 (ParaDL, 5.2).
        residuals: ln(measured / predicted).
    """

    what: str
    runs: int
    accuracy: float
    residuals: tuple[float, ...]


def accuracy(predicted: float, measured: float) -> float:
    """1 - |predicted - measured| / measured, at least 0."""
    return max(0.0, 1 - abs(predicted - measured) / measured)


def normal_runs(runs: Sequence[NetworkRun]) -> list[NetworkRun]:
    """The runs to fit: measured, and normal or without a status.

    Raises:
        ModelError: there are fewer than ``LEAST_RUNS``.
    """
    chosen = [run for run in runs if run.step_s and run.status in ("", "normal")]
    if len(chosen) < LEAST_RUNS:
        raise ModelError(
            f"{len(chosen)} normal runs with step_time_s are too few to calibrate on: give at "
            f"least {LEAST_RUNS} (status normal, or no status)"
        )
    return chosen


def measured_of(runs: Sequence[NetworkRun], cluster: Cluster) -> list[Measured]:
    """Terms and times of ``runs``, which have step times and the same framework."""
    machine = Machine(cluster, software_of(runs, cluster))
    return [
        Measured(
            strategy=run.strategy.name,
            terms=step_terms(run.network, run.strategy, machine),
            step_s=run.step_s or math.nan,
            compute_s=run.compute_s,
            communication_s=run.communication_s,
        )
        for run in runs
    ]


def software_of(runs: Sequence[NetworkRun], cluster: Cluster) -> ComputeConstants:
    """Constants of the runs' framework.

    Raises:
        ModelError: the runs have several frameworks.
    """
    frameworks = {run.framework for run in runs}
    if len(frameworks) > 1:
        raise ModelError("the runs are of several frameworks; calibrate on one at a time")
    return chainer_constants(cluster) if "chainer" in frameworks else constants_of(cluster.gpu)


def calibrate_networks(
    runs: Sequence[NetworkRun],
    cluster: Cluster,
    parts: Mapping[str, Sequence[LeftOut]] | None = None,
) -> NetworkCalibration:
    """Fit the normal runs; ``parts`` comes from ``left_out_in_turn``.

    Raises:
        ModelError: there are too few.
    """
    runs = normal_runs(runs)
    measured = measured_of(runs, cluster)
    parts = left_out_in_turn(runs, cluster) if parts is None else parts
    spread = _spread(parts["runs"])
    return NetworkCalibration(
        cluster=cluster,
        software=software_of(runs, cluster),
        factors=fit_factors(measured),
        coverage=_coverage(runs),
        spread=spread,
        spread_network=_spread(parts["networks"]) or spread,
        spread_strategy=_spread(parts["strategies"]) or spread,
    )


def _by_run(run: NetworkRun) -> str:
    return f"line {run.line}"


def _by_network(run: NetworkRun) -> str:
    return f"network {run.network.name}"


def _by_strategy(run: NetworkRun) -> str:
    return f"strategy {run.strategy.name}"


def leave_out(
    runs: Sequence[NetworkRun], measured: Sequence[Measured], key: Callable[[NetworkRun], str]
) -> list[LeftOut]:
    """For each group of runs, fit without it and predict it."""
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        groups.setdefault(key(run), []).append(i)
    if len(groups) < 2:
        return []
    return [
        predict_others(what, measured, [i for i in range(len(runs)) if i not in set(group)])
        for what, group in groups.items()
    ]


def predict_others(what: str, measured: Sequence[Measured], fitted: Sequence[int]) -> LeftOut:
    """Fit to the runs of the indices ``fitted`` and predict all others."""
    factors = fit_factors([measured[i] for i in fitted])
    rest = [run for i, run in enumerate(measured) if i not in set(fitted)]
    predicted = [sum(factors.apply(run.terms, run.strategy).values()) for run in rest]
    pairs = list(zip(predicted, (run.step_s for run in rest), strict=True))
    return LeftOut(
        what=what,
        runs=len(rest),
        accuracy=sum(accuracy(p, m) for p, m in pairs) / len(pairs),
        residuals=tuple(math.log(m / p) for p, m in pairs),
    )


def left_out_in_turn(runs: Sequence[NetworkRun], cluster: Cluster) -> dict[str, list[LeftOut]]:
    """Accuracies for runs, networks and strategies, each left out in turn; for reports."""
    runs = normal_runs(runs)
    measured = measured_of(runs, cluster)
    keys = {"runs": _by_run, "networks": _by_network, "strategies": _by_strategy}
    return {name: leave_out(runs, measured, key) for name, key in keys.items()}


def _spread(parts: Sequence[LeftOut]) -> float:
    residuals = [value for part in parts for value in part.residuals]
    return math.sqrt(sum(value**2 for value in residuals) / len(residuals)) if residuals else 0.0


def _coverage(runs: Sequence[NetworkRun]) -> Coverage:
    samples: dict[str, float] = {}
    for run in runs:
        key = sample_key(run)
        samples[key] = max(samples.get(key, 0.0), run.strategy.samples)
    return Coverage(
        networks=tuple(sorted({run.network.name for run in runs})),
        strategies=tuple(sorted({run.strategy.name for run in runs})),
        most_gpus=max(run.strategy.gpus for run in runs),
        samples=samples,
    )


def sample_key(run: NetworkRun) -> str:
    """Key in ``Coverage.samples``."""
    return f"{run.network.name}|{run.strategy.name}"
