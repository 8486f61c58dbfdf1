"""A plan -> step graph and modelled durations: the second source of the simulator's input.

The ops have the kinds of a trace. So code that reads a measured step also reads a predicted one.
All replicas of a plan are equal: one stands for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline.graph.build import build_graph
from paceline.graph.graph import Durations, StepGraph
from paceline.graph.schedules import SCHEDULES, replica_ops
from paceline.graph.split_replica import split_replica_ops
from paceline.graph.zero_bubble import SPLIT_CHUNKS, SPLIT_SCHEDULES, SplitOrder
from paceline.model.costs import PlanCosts
from paceline.model.plan import Plan
from paceline.trace import Job, OpKind

Array = npt.NDArray[np.float64]
K = OpKind

#: [kind] forward 0, gradient of inputs 1, of weights 2.
_DIRECTION = np.zeros(len(OpKind), dtype=np.int64)
_DIRECTION[[K.BACKWARD_COMPUTE, K.WEIGHT_COMPUTE]] = 1, 2


@dataclass(frozen=True)
class Planned:
    """A step as a plan would run it.

    Attributes:
        job: degrees of parallelism.
        graph: the ops of one replica.
        durations: their modelled durations, one step of one replica.
    """

    job: Job
    graph: StepGraph
    durations: Durations


def from_plan(plan: Plan, costs: PlanCosts, name: str = "") -> Planned:
    """The step graph of a plan with modelled durations.

    Args:
        plan: a legal plan.
        costs: its costs (``model.costs.plan_costs``).
        name: the job's name.

    Raises:
        GraphError: the schedule cannot run this number of microbatches.
    """
    graph = plan_graph(plan.schedule, plan.pp, plan.microbatches, plan.vpp, costs.overlapped)
    durations = Durations.empty(graph, 1)
    durations.block(0)[:, 0, 0] = op_seconds(graph, plan, costs)
    return Planned(job_of(plan, name), graph, durations)


def job_of(plan: Plan, name: str = "") -> Job:
    """The plan's degrees of parallelism as a job, like that of a trace."""
    return Job(
        dp_size=plan.dp,
        pp_size=plan.pp,
        tp_size=plan.tp,
        dsp_size=plan.cp,
        vpp_size=len(plan.places),
        name=name,
    )


@lru_cache(maxsize=8)
def plan_graph(
    schedule: str, pp: int, microbatches: int, vpp: int, overlapped: bool, dp: int = 1
) -> StepGraph:
    """The ops of ``dp`` equal replicas, and their dependencies."""
    if schedule in SPLIT_SCHEDULES:
        ops = split_replica_ops(schedule, pp, microbatches, overlap=overlapped)
        vpp = SPLIT_CHUNKS[schedule]
    else:
        ops = replica_ops(SCHEDULES[schedule], pp, microbatches, vpp, overlap=overlapped)
    job = Job(dp_size=dp, pp_size=pp, vpp_size=vpp)
    return build_graph([ops], np.zeros(dp, dtype=np.int64), job)


def op_seconds(graph: StepGraph, plan: Plan, costs: PlanCosts) -> Array:
    """[op] modelled seconds."""
    seconds = np.zeros(graph.n_ops)
    place = np.array(plan.places)[np.maximum(graph.chunk, 0), graph.pp]
    of_place = {
        K.FORWARD_COMPUTE: costs.forward_s,
        K.BACKWARD_COMPUTE: costs.backward_s,
        K.PARAMS_ALL_GATHER: costs.all_gather_s,
        K.GRADS_REDUCE_SCATTER: costs.reduce_scatter_s,
    }
    for kind, each in of_place.items():
        ops = graph.kind == kind
        seconds[ops] = each[place[ops]]
    of_stage = {
        K.LAYERNORM_GRADS_ALL_REDUCE: costs.layernorm_grads_s,
        K.OPTIMIZER: costs.optimizer_s,
    }
    for kind, each in of_stage.items():
        ops = graph.kind == kind
        seconds[ops] = each[graph.pp[ops]]
    if plan.splits_backward:
        passes = (costs.forward_s, costs.backward_s - costs.weight_s, costs.weight_s)
        for stage, place in enumerate(np.array(plan.places).T):
            order = SPLIT_SCHEDULES[plan.schedule](stage, plan.pp, plan.microbatches)
            of_order = split_seconds(order, place, *passes, costs.exchange_s, plan.overlap_factor)
            for kind in (K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE, K.WEIGHT_COMPUTE):
                seconds[(graph.kind == kind) & (graph.pp == stage)] = of_order[order.kind == kind]
    # A hand-over costs the same between any two chunks; no-ops move nothing.
    transfer = np.isin(
        graph.kind, [K.FORWARD_SEND, K.FORWARD_RECV, K.BACKWARD_SEND, K.BACKWARD_RECV]
    )
    seconds[transfer & ~graph.noop] = costs.p2p_s.max()
    seconds[graph.kind == K.EMBEDDING_GRADS_ALL_REDUCE] = costs.embedding_grads_s
    seconds[graph.kind == K.OPTIMIZER_CLIP_MAIN_GRAD] = costs.clip_s
    return seconds


def split_seconds(
    order: SplitOrder,
    place: npt.NDArray[np.int64],
    forward_s: Array,
    inputs_s: Array,
    weight_s: Array,
    exchange_s: tuple[Array, Array],
    overlap_factor: float = 1.0,
) -> Array:
    """[..., compute] seconds of one stage's computes, in their order.

    If a forward overlaps with a backward, their exchanges of experts' tokens run while other work
    goes on. Each compute keeps its share of the time. DualPipe's authors claim "full
    overlap" of the two (deepseek-ai/DualPipe 89f5de1, README.md).

    Args:
        order: the computes.
        place: [chunk] the model's chunk.
        forward_s: [..., place] seconds of a microbatch's forward.
        inputs_s: [..., place] seconds of the gradient of the inputs.
        weight_s: [..., place] seconds of the gradient of the weights.
        exchange_s: [..., place] seconds of forward and backward in which they exchange tokens.
        overlap_factor: share of the shorter of work and exchange that hides behind the longer.
    """
    at = place[order.chunk]
    direction = _DIRECTION[order.kind]
    alone = np.choose(direction, [v[..., at] for v in (forward_s, inputs_s, weight_s)])
    if not order.overlaps.any():
        return np.asarray(alone, dtype=np.float64)
    exchange = np.choose(direction, [exchange_s[0][..., at], exchange_s[1][..., at], 0.0])
    begins = np.flatnonzero(np.diff(order.block, prepend=-1))
    whole = np.add.reduceat(alone, begins, axis=-1)
    hidden = np.add.reduceat(exchange, begins, axis=-1)
    work = whole - hidden
    both = np.maximum(work, hidden) + (1 - overlap_factor) * np.minimum(work, hidden)
    share = np.divide(both, whole, out=np.ones_like(whole), where=whole > 0)[..., order.block]
    seconds: Array = alone * np.where(order.overlaps, share, 1.0)
    return seconds
