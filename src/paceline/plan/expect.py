"""A measured job compared with the model of it: its distance from the hardware's ability.

    traced / modelled = launch delays x stragglers x hardware

"Hardware" (and software) is the model's slowdown with each kind of operation scaled to its typical
duration in the trace. "Stragglers" is the slowdown beyond that. Unlike S, which compares with equal
stages, it does not count imbalance that the model contains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import ModelError
from paceline.graph import Measured
from paceline.graph.computes import computes_of, whole_passes
from paceline.model.cluster import Cluster
from paceline.model.costs import PlanCosts, plan_costs
from paceline.model.llm import LLM
from paceline.model.memory import by_stage
from paceline.model.plan import Plan
from paceline.model.plan_check import check
from paceline.plan.step import step_time_s
from paceline.trace import OpKind
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Expectation:
    """Measured over modelled.

    Attributes:
        model: name of the model.
        plan: the plan as text.
        modelled_step_s: the model's step time.
        traced_step_s: the traced mean step.
        ideal_step_s: the step without launch delays and stragglers (T_ideal).
        traced_ratio: traced over modelled, the product of the next three ratios.
        launch_slowdown: slowdown by launch delays (traced over T).
        straggler_ratio: T over the model with typical durations of the trace.
        hardware_ratio: that model over the plain model.
        slowdown: S of the what-if analysis, for comparison.
        compute_ratio: seconds of all computes (medians over replicas, steps and microbatches) over
            the modelled. It describes the hardware, for single slow workers do not change medians.
        by_kind: kind label -> measured over modelled; None if the model has 0.
        by_stage: [pp] computes of a stage over the modelled computes.
    """

    model: str
    plan: str
    modelled_step_s: float
    traced_step_s: float
    ideal_step_s: float
    traced_ratio: float
    launch_slowdown: float
    straggler_ratio: float
    hardware_ratio: float
    slowdown: float
    compute_ratio: float
    by_kind: Mapping[str, float | None]
    by_stage: tuple[float, ...]

    def to_mapping(self) -> dict[str, Any]:
        """The comparison in the form of JSON."""
        return {
            "model": self.model,
            "plan": self.plan,
            "modelled_step_s": self.modelled_step_s,
            "traced_step_s": self.traced_step_s,
            "ideal_step_s": self.ideal_step_s,
            "traced_ratio": self.traced_ratio,
            "launch_slowdown": self.launch_slowdown,
            "straggler_ratio": self.straggler_ratio,
            "hardware_ratio": self.hardware_ratio,
            "slowdown": self.slowdown,
            "compute_ratio": self.compute_ratio,
            "by_kind": dict(self.by_kind),
            "by_stage": {str(stage): ratio for stage, ratio in enumerate(self.by_stage)},
        }


def expect(
    measured: Measured, result: WhatIf, llm: LLM, plan: Plan, cluster: Cluster
) -> Expectation:
    """Compare a trace with the model of its job.

    Raises:
        ModelError: the plan differs from the trace; the differences are named.
        PlanError: the plan cannot train the model.
    """
    _same_job(measured, plan)
    check(plan, llm)
    # A trace has no op for the fixed time of a step, so it counts as launch delay.
    costs = replace(plan_costs(llm, plan, cluster), fixed_s=0.0)
    modelled_s = step_time_s(costs, plan)
    passes = whole_passes(measured.durations)  # the backward includes the gradients of weights
    typical = computes_of(measured.graph).typical(passes)  # [kind, stage x chunk]
    typical = typical.reshape(2, plan.pp, len(plan.places))
    model = np.stack([_by_stage(x, plan) for x in (costs.forward_s, costs.backward_s)])
    if measured.job.dp_size <= 2 and plan.chunks > 2:
        # With two replicas, a median does not exclude a slow worker, but the other stages do.
        ratio = np.median(typical / model, axis=(1, 2), keepdims=True)
        typical = model * np.minimum(typical / model, ratio)
    by_kind = _by_kind(measured, costs, typical, model)
    typical_s = step_time_s(_scaled(costs, by_kind), plan)
    traced_s, simulated_s = float(result.traced_s.mean()), float(result.simulated_s.mean())
    ideal_s = float(result.ideal_s.mean())
    return Expectation(
        model=llm.name,
        plan=plan.describe(),
        modelled_step_s=modelled_s,
        traced_step_s=traced_s,
        ideal_step_s=ideal_s,
        traced_ratio=traced_s / modelled_s,
        launch_slowdown=traced_s / simulated_s,
        straggler_ratio=simulated_s / typical_s,
        hardware_ratio=typical_s / modelled_s,
        slowdown=result.slowdown,
        compute_ratio=float(typical.sum() / model.sum()),
        by_kind=by_kind,
        by_stage=tuple((typical.sum(axis=(0, 2)) / model.sum(axis=(0, 2))).tolist()),
    )


def _by_stage(place: Array, plan: Plan) -> Array:
    """[stage, chunk] of [place]."""
    return by_stage(plan, place).T


def _same_job(measured: Measured, plan: Plan) -> None:
    job, counts = measured.job, sorted(set(measured.microbatches.tolist()))
    passes = plan.microbatches // plan.copies  # under DualPipe, each direction has half of them
    # A trace may count context-parallel ranks as replicas, separately, or not at all.
    dp = plan.dp if job.dp_size == plan.dp else plan.dp * plan.cp
    different = [
        f"{name} is {planned} in the plan, {traced} in the trace"
        for name, planned, traced in (
            ("pp", plan.pp, job.pp_size),
            ("vpp", len(plan.places), job.vpp_size),
            ("dp", dp, job.dp_size),
            ("microbatches", passes, counts[0] if len(counts) == 1 else counts),
        )
        if planned != traced
    ]
    if different:
        raise ModelError(f"the expected job is another one: {'; '.join(different)}")


def _scaled(costs: PlanCosts, by_kind: Mapping[str, float | None]) -> PlanCosts:
    """The model with each kind scaled to the trace's typical op of the kind."""

    def ratio(kind: OpKind) -> float:
        return by_kind.get(kind.label) or 1.0

    computes = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)
    factors = np.array([ratio(kind) for kind in computes])
    return replace(
        costs,
        parts_s=costs.parts_s * factors[:, None, None],
        weight_s=costs.weight_s * factors[1],
        p2p_s=costs.p2p_s * ratio(OpKind.FORWARD_SEND),
        all_gather_s=costs.all_gather_s * ratio(OpKind.PARAMS_ALL_GATHER),
        reduce_scatter_s=costs.reduce_scatter_s * ratio(OpKind.GRADS_REDUCE_SCATTER),
        layernorm_grads_s=costs.layernorm_grads_s * ratio(OpKind.LAYERNORM_GRADS_ALL_REDUCE),
        embedding_grads_s=costs.embedding_grads_s * ratio(OpKind.EMBEDDING_GRADS_ALL_REDUCE),
        clip_s=costs.clip_s * ratio(OpKind.OPTIMIZER_CLIP_MAIN_GRAD),
        optimizer_s=costs.optimizer_s * ratio(OpKind.OPTIMIZER),
    )


def _by_kind(
    measured: Measured, costs: PlanCosts, typical: Array, model: Array
) -> dict[str, float | None]:
    """Measured over modelled seconds per kind, with medians over ops as measured values."""
    ratios: dict[str, float | None] = {
        OpKind.FORWARD_COMPUTE.label: float(typical[0].sum() / model[0].sum()),
        OpKind.BACKWARD_COMPUTE.label: float(typical[1].sum() / model[1].sum()),
    }
    p2p = costs.p2p_s[costs.p2p_s > 0]
    others = {
        OpKind.FORWARD_SEND: p2p,
        OpKind.FORWARD_RECV: p2p,
        OpKind.BACKWARD_SEND: p2p,
        OpKind.BACKWARD_RECV: p2p,
        OpKind.PARAMS_ALL_GATHER: costs.all_gather_s,
        OpKind.GRADS_REDUCE_SCATTER: costs.reduce_scatter_s,
        OpKind.LAYERNORM_GRADS_ALL_REDUCE: costs.layernorm_grads_s,
        OpKind.EMBEDDING_GRADS_ALL_REDUCE: np.array([costs.embedding_grads_s]),
        OpKind.OPTIMIZER_CLIP_MAIN_GRAD: np.array([costs.clip_s]),
        OpKind.OPTIMIZER: costs.optimizer_s,
    }
    graph = measured.graph
    for kind, seconds in others.items():
        ops = np.flatnonzero((graph.kind == kind) & ~graph.noop)
        if not len(ops):
            continue
        values = np.concatenate([measured.durations.row(int(op)).ravel() for op in ops])
        expected = float(np.median(seconds)) if len(seconds) else 0.0
        ratios[kind.label] = float(np.median(values)) / expected if expected > 0 else None
    return ratios
