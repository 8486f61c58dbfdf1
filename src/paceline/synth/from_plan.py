"""Traces of a planned job: modelled durations, with chosen causes of slowness."""

from __future__ import annotations

from dataclasses import replace

from paceline.errors import SynthError
from paceline.graph.from_plan import op_seconds
from paceline.model.costs import PlanCosts
from paceline.model.plan import Plan
from paceline.synth.make import synthesize
from paceline.synth.spec import SynthSpec
from paceline.trace import Trace


def plan_spec(plan: Plan, costs: PlanCosts, causes: SynthSpec) -> SynthSpec:
    """``causes`` with the plan's degrees of parallelism, microbatches and schedule."""
    return replace(
        causes,
        dp=plan.dp,
        pp=plan.pp,
        tp=plan.tp,
        vpp=len(plan.places),
        microbatches=plan.microbatches,
        schedule=plan.schedule,
        overlap=costs.overlapped,
    )


def synthesize_plan(
    plan: Plan, costs: PlanCosts, causes: SynthSpec | None = None, *, scale: float = 1.0
) -> Trace:
    """A trace of the plan as the model predicts it, with causes of slowness.

    Args:
        plan: the plan.
        costs: its durations.
        causes: causes of slowness, number of steps, noise and seed; the plan replaces its shape of
            the job. None: no causes and no noise.
        scale: factor on all durations, for a machine slower than its model.

    Raises:
        SynthError: the causes contradict the plan's shape, or ``scale`` is no positive number.
    """
    if not 0 < scale < 1e6:
        raise SynthError(f"scale must be above 0 and below a million, not {scale:g}")
    spec = plan_spec(plan, costs, SynthSpec(noise=0.0) if causes is None else causes)
    return synthesize(spec, lambda graph: scale * op_seconds(graph, plan, costs))
