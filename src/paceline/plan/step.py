"""The step time of a plan without its graph: the pipeline's recurrence, then the step's tail.

Equal to the simulation of ``graph.from_plan`` (a test compares them); for fits and searches that
need it thousands of times.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.model.costs import PlanCosts
from paceline.model.plan import Plan
from paceline.plan.pipeline import Pipelines

Array = npt.NDArray[np.float64]


def step_time_s(costs: PlanCosts, plan: Plan, *, fast: bool | None = None) -> float:
    """Seconds of one step.

    Args:
        costs: the durations.
        plan: the plan.
        fast: use the compiled recurrence; None = where this plan alone repays loading it.
    """
    gathers = costs.all_gather_s.reshape(plan.vpp, plan.pp)
    pipeline = Pipelines(
        plan.schedule,
        plan.pp,
        plan.vpp,
        np.array([plan.microbatches]),
        costs.forward_s[None],
        costs.backward_s[None],
        costs.p2p_s[None],
        np.cumsum(gathers, axis=0).reshape(1, -1),
    )
    ends = pipeline.ends(fast=fast).reshape(plan.vpp, plan.pp)
    return float(_tail(costs, plan, ends)) + costs.fixed_s


def _tail(costs: PlanCosts, plan: Plan, ends: Array) -> float:
    """Seconds until the last stage has updated its parameters.

    Args:
        costs: the durations.
        plan: the plan.
        ends: [chunk, stage] end of the last backward.
    """
    scatters = costs.reduce_scatter_s.reshape(plan.vpp, plan.pp)
    time: Array = ends.max(axis=0)
    if costs.overlapped:
        stream = costs.all_gather_s.reshape(plan.vpp, plan.pp).sum(axis=0)
        for chunk in reversed(range(plan.vpp)):
            stream = np.maximum(stream, ends[chunk]) + scatters[chunk]
        time = np.maximum(time, stream)
    time = time + costs.layernorm_grads_s
    if plan.pp > 1:
        time[[0, -1]] = max(time[0], time[-1]) + costs.embedding_grads_s
    if not costs.overlapped:
        time = time + scatters.sum(axis=0)
    updated: Array = time.max() + costs.clip_s + costs.optimizer_s
    return float(updated.max())
