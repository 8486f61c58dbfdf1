"""Lasting slowdowns, without passing variation.

If passes are recorded in parts, every part waits for the slowest of its peers. Variation of
changing workers then adds up to a slowdown without one slow worker. Lasting slowness shows in the
typical step, with each operation of each worker at its median over the steps. This step is compared
with its own ideal. A mean over the steps would include the passing variation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations
from paceline.whatif.ideal import Reference, reference
from paceline.whatif.layout import simulate_scenarios
from paceline.whatif.scenario import Part, Scenario

Array = npt.NDArray[np.float64]

_MEDIAN_VALUES = 1 << 22


@dataclass(frozen=True, eq=False)
class Lasting:
    """Slowdowns of the typical step.

    Attributes:
        slowdown: S with every operation of every worker at its median over the steps.
        by_worker: [pp, dp] S with only this worker at its medians, and all others ideal.
    """

    slowdown: float
    by_worker: Array


def lasting(durations: Durations, judged_by: Reference) -> Lasting | None:
    """The lasting slowdowns; None if passes are whole, as in the paper.

    Args:
        durations: measured durations.
        judged_by: the reference of these durations. Kinds that it judges against their fast mode
            keep this ideal, as their median over the steps may be slow.
    """
    graph = durations.graph
    if not graph.programmed:
        return None
    typical = Durations.empty(graph, 1)
    for v in range(graph.n_variants):
        block, out = durations.block(v), typical.block(v)
        few = max(1, _MEDIAN_VALUES // max(1, block[0].size))  # a median copies its input
        for low in range(0, len(block), few):
            out[low : low + few] = np.median(block[low : low + few], axis=1, keepdims=True)
    by_mode = np.isin(graph.kind, [int(kind) for kind in judged_by.modes])
    ideal = np.where(by_mode, judged_by.seconds, reference(typical).seconds)
    workers = [(dp, pp) for pp in range(graph.n_pp) for dp in range(graph.n_dp)]
    only = [Scenario.only(Part.of_workers([worker])) for worker in workers]
    times = simulate_scenarios(typical, ideal, [Scenario.measured(), Scenario.ideal(), *only])
    slowdowns = times[:, 0] / times[1, 0]
    return Lasting(float(slowdowns[0]), slowdowns[2:].reshape(graph.n_pp, graph.n_dp))
