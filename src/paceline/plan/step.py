"""The step time of a plan without a graph: the pipeline's recurrence, then the step's tail.

It equals the simulation of ``graph.from_plan`` (a test compares them). Fits and searches need it
thousands of times.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.model.costs import PlanCosts
from paceline.model.memory import by_stage, ends_meet
from paceline.model.plan import Plan
from paceline.plan.pipeline import Pipelines
from paceline.plan.split_pipeline import SplitPipelines

Array = npt.NDArray[np.float64]


def step_time_s(costs: PlanCosts, plan: Plan, *, fast: bool | None = None) -> float:
    """Seconds of one step.

    Args:
        costs: the durations.
        plan: the plan.
        fast: use the compiled recurrence; None = if this plan alone is worth loading it.
    """
    ready = np.cumsum(by_stage(plan, costs.all_gather_s), axis=0)
    if plan.splits_backward:
        split = SplitPipelines(
            plan.schedule,
            np.array(plan.places),
            np.array([plan.microbatches]),
            costs.forward_s[None],
            costs.backward_s[None],
            costs.weight_s[None],
            (costs.exchange_s[0][None], costs.exchange_s[1][None]),
            costs.p2p_s.max(keepdims=True),
            ready[None],
            plan.overlap_factor,
        )
        return float(_tail(costs, plan, split.ends(fast=fast)[0])) + costs.fixed_s
    pipeline = Pipelines(
        plan.schedule,
        plan.pp,
        plan.vpp,
        np.array([plan.microbatches]),
        costs.forward_s[None],
        costs.backward_s[None],
        costs.p2p_s[None],
        ready.reshape(1, -1),
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
    scatters = by_stage(plan, costs.reduce_scatter_s)
    time: Array = ends.max(axis=0)
    if costs.overlapped:
        stream = by_stage(plan, costs.all_gather_s).sum(axis=0)
        for end, scatter in zip(*in_queue(ends, scatters), strict=True):
            stream = np.maximum(stream, end) + scatter
        time = np.maximum(time, stream)
    time = time + costs.layernorm_grads_s
    if meets_at_ends(plan):
        time[[0, -1]] = max(time[0], time[-1]) + costs.embedding_grads_s
    if not costs.overlapped:
        time = time + scatters.sum(axis=0)
    updated: Array = time.max() + costs.clip_s + costs.optimizer_s
    return float(updated.max())


def in_queue(ends: Array, scatters: Array) -> tuple[Array, Array]:
    """[chunk, ...] ends of the chunks and their reductions, sorted by end."""
    order = np.argsort(ends, axis=0, kind="stable")
    return np.take_along_axis(ends, order, axis=0), np.take_along_axis(scatters, order, axis=0)


def meets_at_ends(plan: Plan) -> bool:
    """Whether the first and the last stage sum the gradients of a tied embedding."""
    return plan.pp > 1 and not ends_meet(plan)
