"""A measured job beside the model of it: how far it is from what its hardware can do.

    traced / modelled = launch delays x stragglers (S) x hardware

The first two are the what-if analysis' own; the last compares the job without stragglers to the
model, and the ratios of its computes, stage by stage, say where the difference lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import ModelError
from paceline.graph import Measured
from paceline.graph.computes import computes_of
from paceline.model.cluster import Cluster
from paceline.model.costs import PlanCosts, plan_costs
from paceline.model.llm import LLM
from paceline.model.plan import Plan, check
from paceline.plan.step import step_time_s
from paceline.trace import OpKind
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Expectation:
    """Measured over modelled.

    Attributes:
        model: name of the model.
        plan: the plan in words.
        modelled_step_s: the model's step time.
        traced_step_s: the mean step as traced.
        ideal_step_s: the same without launch delays and stragglers (T_ideal).
        traced_ratio: traced over modelled.
        launch_slowdown: what launch delays cost (traced over T).
        slowdown: what stragglers cost (S).
        ideal_ratio: T_ideal over modelled: what is neither. The three multiply to ``traced_ratio``.
        compute_ratio: seconds of all computes, the median of each over replicas, steps and
            microbatches, over the modelled: how far the hardware is, whatever single workers do.
        by_kind: kind label -> measured over modelled; None where the model has 0.
        by_stage: [pp] computes of a stage over the modelled.
    """

    model: str
    plan: str
    modelled_step_s: float
    traced_step_s: float
    ideal_step_s: float
    traced_ratio: float
    launch_slowdown: float
    slowdown: float
    ideal_ratio: float
    compute_ratio: float
    by_kind: Mapping[str, float | None]
    by_stage: tuple[float, ...]

    def to_mapping(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {
            "model": self.model,
            "plan": self.plan,
            "modelled_step_s": self.modelled_step_s,
            "traced_step_s": self.traced_step_s,
            "ideal_step_s": self.ideal_step_s,
            "traced_ratio": self.traced_ratio,
            "launch_slowdown": self.launch_slowdown,
            "slowdown": self.slowdown,
            "ideal_ratio": self.ideal_ratio,
            "compute_ratio": self.compute_ratio,
            "by_kind": dict(self.by_kind),
            "by_stage": {str(stage): ratio for stage, ratio in enumerate(self.by_stage)},
        }


def expect(
    measured: Measured, result: WhatIf, llm: LLM, plan: Plan, cluster: Cluster
) -> Expectation:
    """Compare a trace with the model of its job.

    Raises:
        ModelError: the plan is not that of the trace; the differences are named.
        PlanError: the plan cannot train the model.
    """
    _same_job(measured, plan)
    check(plan, llm)
    costs = plan_costs(llm, plan, cluster)
    modelled_s = step_time_s(costs, plan)
    typical = computes_of(measured.graph).typical(measured.durations)  # [kind, stage x chunk]
    typical = typical.reshape(2, plan.pp, plan.vpp)
    model = np.stack([_by_stage(x, plan) for x in (costs.forward_s, costs.backward_s)])
    traced_s = float(measured.traced_step_s.mean())
    ideal_s = float(result.ideal_s.mean())
    return Expectation(
        model=llm.name,
        plan=plan.describe(),
        modelled_step_s=modelled_s,
        traced_step_s=traced_s,
        ideal_step_s=ideal_s,
        traced_ratio=traced_s / modelled_s,
        launch_slowdown=result.launch_slowdown,
        slowdown=result.slowdown,
        ideal_ratio=ideal_s / modelled_s,
        compute_ratio=float(typical.sum() / model.sum()),
        by_kind=_by_kind(measured, costs, plan, typical, model),
        by_stage=tuple((typical.sum(axis=(0, 2)) / model.sum(axis=(0, 2))).tolist()),
    )


def _by_stage(place: Array, plan: Plan) -> Array:
    """[stage, chunk] of [chunk * pp + stage]."""
    return place.reshape(plan.vpp, plan.pp).T


def _same_job(measured: Measured, plan: Plan) -> None:
    job, counts = measured.job, sorted(set(measured.microbatches.tolist()))
    different = [
        f"{name} is {given} in the plan, {traced} in the trace"
        for name, given, traced in (
            ("pp", plan.pp, job.pp_size),
            ("vpp", plan.vpp, job.vpp_size),
            ("dp x cp", plan.dp * plan.cp, job.dp_size * job.dsp_size),
            ("microbatches", plan.microbatches, counts[0] if len(counts) == 1 else counts),
        )
        if given != traced
    ]
    if different:
        raise ModelError(f"the expected job is another one: {'; '.join(different)}")


def _by_kind(
    measured: Measured, costs: PlanCosts, plan: Plan, typical: Array, model: Array
) -> dict[str, float | None]:
    """Measured over modelled seconds, per kind; the median over ops stands for the measured."""
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
