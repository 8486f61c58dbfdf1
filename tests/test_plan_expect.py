"""Measured beside modelled: a synthesised job whose truth is known."""

from dataclasses import replace

import pytest

from paceline.errors import ModelError, SynthError
from paceline.graph import from_trace
from paceline.graph.from_plan import from_plan
from paceline.model.cluster_presets import cluster_preset
from paceline.model.costs import plan_costs
from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan
from paceline.plan.expect import expect
from paceline.plan.step import step_time_s
from paceline.synth import SlowWorker, SynthSpec
from paceline.synth.from_plan import synthesize_plan
from paceline.whatif import analyze
from split_jobs import recorded

LLM, CLUSTER = llm_preset("megatron-18.4b"), cluster_preset("a100-80g")
PLAN = Plan(tp=8, pp=4, dp=4, micro_batch=2, global_batch=64, sequence_parallel=True)


def compared(plan, *slow, scale=1.15):
    costs = plan_costs(LLM, plan, CLUSTER)
    causes = SynthSpec(dp=plan.dp, pp=plan.pp, steps=3, noise=0.0, slow_workers=slow)
    measured = from_trace(synthesize_plan(plan, costs, causes, scale=scale))
    return expect(measured, analyze(measured), LLM, plan, CLUSTER), costs, measured


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, vpp=2, schedule="interleaved"),
        replace(PLAN, overlap_dp=False),
        replace(PLAN, pp=1, tp=8),
        replace(PLAN, dp=2),
        replace(PLAN, dp=1),
    ],
)
def test_a_slower_machine_with_a_slow_worker(plan):
    """Durations are the model's times 1.15, one worker 1.5 slow: both come back within 1%."""
    found, costs, measured = compared(plan, SlowWorker(plan.dp - 1, 0, 1.5))
    assert found.compute_ratio == pytest.approx(1.15, rel=0.01)
    assert found.hardware_ratio == pytest.approx(1.15, rel=0.01)
    healthy = 1.15 * step_time_s(costs, plan)
    injected = measured.traced_step_s.mean() / healthy
    assert injected > 1.1
    assert found.straggler_ratio == pytest.approx(injected, rel=0.01)
    product = found.launch_slowdown * found.straggler_ratio * found.hardware_ratio
    assert product == pytest.approx(found.traced_ratio)
    assert all(ratio == pytest.approx(1.15) for ratio in found.by_kind.values() if ratio)


def test_the_synthesised_step_is_the_predicted_one():
    found, costs, _ = compared(PLAN, scale=1.0)
    assert found.traced_step_s == pytest.approx(step_time_s(costs, PLAN), rel=1e-6)
    assert found.straggler_ratio == pytest.approx(1.0, rel=1e-6)


def test_another_job_is_refused():
    _, _, measured = compared(PLAN)
    other = replace(PLAN, pp=8, dp=2)
    with pytest.raises(ModelError, match="pp is 8 in the plan, 4 in the trace"):
        expect(measured, analyze(measured), LLM, other, CLUSTER)


def test_a_scale_must_be_positive():
    with pytest.raises(SynthError, match="scale must be above 0"):
        synthesize_plan(PLAN, plan_costs(LLM, PLAN, CLUSTER), scale=0.0)


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "dualpipe"])
def test_split_backwards_are_compared_with_their_own_places(schedule):
    plan = replace(PLAN, dp=1, schedule=schedule)
    step = from_plan(plan, plan_costs(LLM, plan, CLUSTER))
    step.durations.values[:] *= 1.15
    measured = from_trace(recorded(step, plan))
    expectation = expect(measured, analyze(measured), LLM, plan, CLUSTER)
    assert expectation.hardware_ratio == pytest.approx(1.15, rel=0.01)
    assert expectation.compute_ratio == pytest.approx(1.15, rel=1e-6)
    assert expectation.by_stage == pytest.approx([1.15] * 4, rel=1e-6)
