"""Waterfall: losses of time from the actual step down to pure compute.

The terms are differences of successive simulations, so they add up by construction. Negative terms
are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.diagnose.finding import Finding
from paceline.diagnose.healthy_ideal import HealthyIdeal, part_that_passes, passing_s
from paceline.graph import Durations, Measured
from paceline.simulate import Rules, all_lanes, step_times
from paceline.trace.kinds import P2P_KINDS, PASSES
from paceline.trace.warning import STEPS_OVERLAP
from paceline.whatif import WhatIf, ideal_durations

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Drop:
    """One drop of the waterfall.

    Attributes:
        name: "steps-overlap", "launch-delay", the cause of a finding, "passing-variation",
            "unexplained", "p2p", "collectives", "bubble".
        text: its description.
        seconds: mean seconds per step; negative if the step would become longer.
    """

    name: str
    text: str
    seconds: float


@dataclass(frozen=True)
class Waterfall:
    """The losses between the actual step and its compute, all mean seconds per step.

    Attributes:
        actual_s: the traced mean step.
        drops: the losses, in order; ``actual_s`` minus their sum is ``compute_s``.
        compute_s: mean seconds of forward and backward compute of a worker.
    """

    actual_s: float
    drops: tuple[Drop, ...]
    compute_s: float


def waterfall(
    measured: Measured,
    result: WhatIf,
    findings: Sequence[Finding],
    healthy: HealthyIdeal | None = None,
) -> Waterfall:
    """The waterfall of a job.

    actual -> less the overlap with the step before, if any -> T (launch delays) -> each cause by
    its share -> T_ideal, or T_healthy where hardware is at fault (the rest is unexplained) ->
    point-to-point transfers take no time -> collectives
    and the other ops of the tail take no time -> the mean compute of a worker; the last drop is the
    pipeline's bubble.
    """
    actual, t = float(result.traced_s.mean()), float(result.simulated_s.mean())
    t_ideal = float((result.ideal_s if healthy is None else healthy.step_s).mean())
    drops = []
    if (overlap := float(result.overlap_s.mean())) > 0:
        drops.append(Drop(STEPS_OVERLAP, "the step before still runs on other ranks", overlap))
    delays = float(result.lost_s.mean())
    drops.append(Drop("launch-delay", "time between operations (launch delays)", delays))
    causes = [f for f in findings if f.share is not None and f.cause != "unexplained"]
    of_causes = [Drop(f.cause, f.text, float(f.share or 0.0) * (t - t_ideal)) for f in causes]
    drops += of_causes
    unexplained_s = t - t_ideal - sum(drop.seconds for drop in of_causes)
    variation_s = passing_s(result, healthy)
    if variation_s is not None:
        passing = float(part_that_passes(variation_s, unexplained_s).mean())
        text = "variation that passes: parts wait for whichever peer is slow at the moment"
        drops.append(Drop("passing-variation", text, passing))
        unexplained_s -= passing
    drops.append(Drop("unexplained", "stragglers of no known pattern", unexplained_s))
    ideal = ideal_durations(measured.durations) if healthy is None else healthy.seconds
    kind = measured.graph.kind
    no_p2p = np.where(np.isin(kind, [int(k) for k in P2P_KINDS]), 0.0, ideal)
    computes = np.isin(kind, PASSES)
    only_compute = np.where(computes, ideal, 0.0)
    without_p2p = _ideal_step(measured.durations, no_p2p)
    without_tail = _ideal_step(measured.durations, only_compute)
    replicas = [len(dps) for dps in measured.graph.variant_dps]  # copies of a variant's ops
    times = np.array(replicas)[measured.graph.variant[computes]]
    compute = float(ideal[computes] @ times) / (measured.graph.n_pp * measured.graph.n_dp)
    drops += [
        Drop("p2p", "sends and recvs between stages", t_ideal - without_p2p),
        Drop("collectives", "collectives, optimizer and the rest", without_p2p - without_tail),
        Drop(
            "bubble", "pipeline bubble: workers wait for their neighbours", without_tail - compute
        ),
    ]
    return Waterfall(actual, tuple(drops), compute)


def _ideal_step(durations: Durations, seconds: Array) -> float:
    """The step time if every op takes ``seconds`` [op] in all lanes."""
    graph = durations.graph
    rules = Rules.common(graph, seconds)
    return float(step_times(durations, rules, all_lanes(graph, 1))[0])
