"""The cost of each cause for a job, with its certainty: the waterfall and its variances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from paceline.comparison.interval import (
    MIN_STEPS,
    MISSES,
    Means,
    certain,
    means_of,
)
from paceline.diagnose import MIN_OF_STEP, Finding
from paceline.graph import Measured, StepGraph
from paceline.remedies import Advice
from paceline.robust import t_quantile
from paceline.simulate import Lanes, Rules, all_lanes, step_times
from paceline.trace import OpKind
from paceline.trace.kinds import MEAN_KINDS, P2P_KINDS, PASSES
from paceline.trace.warning import STEPS_OVERLAP
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]

#: The last row: the time that no drop removes.
COMPUTE = "compute"
#: Launch delays, and the part of them in which the job waits for data.
_DELAYS, _DATA = "launch-delay", "data-loading"


def cause_means(
    measured: Measured, result: WhatIf, advice: Advice, data_s: Array | None = None
) -> dict[str, Means]:
    """Mean seconds per step of each drop of the waterfall and of ``compute``, in its order.

    The means are those of the waterfall, and add up to the mean step less its overlap with the step
    before. The variances come from the
    steps. For launch delays, the loss and a cause they are direct. For the drops below T_ideal they
    come from the ideal step of each step alone.

    Args:
        measured: the job.
        result: its analysis.
        advice: its diagnosis and waterfall.
        data_s: [step] seconds of launch delays that are waits for data, which become a cause of
            their own; None: they stay launch delays.
    """
    spreads = _by_step(measured, result, data_s)
    gap = spreads["unexplained"]
    shares = {(f.cause, f.text): f for f in advice.diagnosis.findings if f.share is not None}
    shares |= {(f.cause, ""): f for (cause, _), f in shares.items() if cause == "unexplained"}
    means: dict[str, Means] = {}
    for drop in advice.fall.drops:
        if drop.name == STEPS_OVERLAP:
            continue
        key = (drop.name, "" if drop.name == "unexplained" else drop.text)
        # A healthy job has no findings: all of the loss is unexplained.
        spread = spreads.get(drop.name, gap)
        if key in shares:
            spread = _of_finding(shares[key], gap)
        mean = np.array(drop.seconds)
        if drop.name in means:  # two findings of one cause
            mean, spread = mean + means[drop.name].mean, _sum(spread, means[drop.name])
        if drop.name == _DELAYS and data_s is not None:
            means[_DATA] = spreads[_DATA]
            mean = mean - spreads[_DATA].mean
        means[drop.name] = replace(spread, mean=mean)
    return means | {COMPUTE: replace(spreads[COMPUTE], mean=np.array(advice.fall.compute_s))}


def absent_cause(result: WhatIf) -> Means:
    """The cost of a cause that a job does not have: zero, with an error since it may be unnoticed.

    Causes under half a percent of the step are not reported; a healthy job has none at all.
    """
    unnoticed = MIN_OF_STEP * float(result.simulated_s.mean())
    if result.healthy:
        unnoticed = max(float((result.simulated_s - result.ideal_s).mean()), 0.0)
    nothing = certain(np.array(0.0))
    if len(result.steps) < MIN_STEPS:
        return replace(nothing, variance=np.array(np.nan))
    return replace(nothing, variance=np.array((unnoticed / _one_sigma()) ** 2))


def _one_sigma() -> float:
    """Number of standard errors in half of a 90% interval, if the error is known."""
    return float(t_quantile(MISSES, np.array(np.inf)))


def _of_finding(finding: Finding, gap: Means) -> Means:
    """The variance of a finding's seconds, from its cost in each step."""
    return gap if finding.cost_s is None else means_of(finding.cost_s[:, None]).row(0)


def _sum(first: Means, second: Means) -> Means:
    """The sum of means that may rise and fall together: the errors add up."""
    return replace(first, variance=(np.sqrt(first.variance) + np.sqrt(second.variance)) ** 2)


def _by_step(measured: Measured, result: WhatIf, data_s: Array | None) -> dict[str, Means]:
    """The drops that every step has, as rows of one table."""
    delays = {_DELAYS: result.lost_s}
    if data_s is not None:
        delays = {_DATA: data_s, _DELAYS: result.lost_s - data_s}
    series = {
        **delays,
        "unexplained": result.simulated_s - result.ideal_s,
        **_below_ideal(measured),
    }
    table = means_of(np.stack(list(series.values()), axis=1))
    return {name: table.row(i) for i, name in enumerate(series)}


def _below_ideal(measured: Measured) -> dict[str, Array]:
    """[step] the drops below T_ideal and ``compute``, each step with its own ideal durations."""
    kind, graph = measured.graph.kind, measured.graph
    ideal = _ideal_by_step(measured)
    computes = np.isin(kind, PASSES)
    p2p = np.isin(kind, [int(k) for k in P2P_KINDS])
    lanes = _lanes(graph)

    def steps(seconds: Array) -> Array:
        rules = Rules.common(graph, seconds)
        return step_times(measured.durations, rules, lanes)

    selections: tuple[Callable[[Array], Array], ...] = (
        lambda values: values,
        lambda values: np.where(p2p, 0.0, values),
        lambda values: np.where(computes, values, 0.0),
    )
    ideal_s, without_p2p, only_compute = np.array(
        [[float(steps(choose(values))[0]) for choose in selections] for values in ideal]
    ).T
    replicas = np.array([len(dps) for dps in graph.variant_dps])[graph.variant[computes]]
    compute = ideal[:, computes] @ replicas / (graph.n_pp * graph.n_dp)
    return {
        "p2p": ideal_s - without_p2p,
        "collectives": without_p2p - only_compute,
        "bubble": only_compute - compute,
        COMPUTE: compute,
    }


def _ideal_by_step(measured: Measured) -> Array:
    """[step, op] ideal durations (``whatif.ideal``) of each step by itself."""
    graph = measured.graph
    ideal = np.zeros((measured.durations.n_steps, graph.n_ops))
    blocks = measured.durations.blocks
    for kind in OpKind:
        of_kind = (graph.kind == kind) & ~graph.noop
        if not of_kind.any():
            continue
        rows = [block[of_kind[graph.variant_ops(v)]] for v, block in enumerate(blocks)]
        values = np.concatenate(
            [np.moveaxis(row, 1, 0).reshape(row.shape[1], -1) for row in rows], axis=1
        )
        middle = values.mean(axis=1) if kind in MEAN_KINDS else np.median(values, axis=1)
        ideal[:, of_kind] = middle[:, None]
    for v, block in enumerate(blocks):
        noops = np.flatnonzero(graph.noop[graph.variant_ops(v)])
        ideal[:, noops + graph.variant_ops(v).start] = block[noops].mean(axis=2).T
    return ideal


def _lanes(graph: StepGraph) -> Lanes:
    """One step in which one replica of each structure stands for all: they take equal times.

    If ranks meet in sets (hybrid sharding), every replica has its own lane.
    """
    if graph.has_families:
        return all_lanes(graph, 1)
    variants = np.arange(graph.n_variants)
    none = np.zeros_like(variants)
    return Lanes(set=none, variant=variants, rule=none, column=none, n_sets=1)
