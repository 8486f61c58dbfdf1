"""What-if and diagnosis of pipelines with split backwards, on traces whose answers are known."""

import numpy as np
import pyarrow.parquet as pq
import pytest

import paceline
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.graph.from_plan import from_plan
from paceline.model.costs import PlanCosts
from paceline.model.layer_costs import PARTS
from paceline.model.plan import Plan
from paceline.simulate import timeline
from paceline.sources.parquet import write
from paceline.trace import OpKind
from split_jobs import recorded

PP, M = 4, 8
SPLIT = ("zb-h1", "zbv", "dualpipev", "dualpipe")


def planned(schedule, factors):
    """A step of equal chunks, each stage as much slower as its factor."""
    plan = Plan(pp=PP, global_batch=M, schedule=schedule)
    places = plan.chunks
    parts = np.zeros((2, len(PARTS), places))
    parts[0, 0], parts[1, 0] = 0.1, 0.25
    costs = PlanCosts(
        parts_s=parts,
        p2p_s=np.full(places, 1e-4),
        **dict.fromkeys(("all_gather_s", "reduce_scatter_s", "hidden_dp_s"), np.zeros(places)),
        **dict.fromkeys(("layernorm_grads_s", "optimizer_s"), np.zeros(PP)),
        **dict.fromkeys(("embedding_grads_s", "clip_s", "fixed_s"), 0.0),
        overlapped=False,
        weight_s=np.full(places, 0.1),
    )
    step = from_plan(plan, costs)
    computes = np.isin(step.graph.kind, [0, 1, OpKind.WEIGHT_COMPUTE])
    step.durations.values[computes] *= np.array(factors)[step.graph.pp[computes]]
    return step


def trace_of(schedule, factors=(1, 1, 1, 1), change=None):
    """That step, several times over, as workers would have recorded it."""
    step = planned(schedule, factors)
    if change is not None:
        change(step.graph, step.durations.values)
    return recorded(step, Plan(pp=PP, global_batch=M, schedule=schedule))


def step_s(schedule, factors):
    return float(timeline(planned(schedule, factors).durations).step_times()[0])


@pytest.mark.parametrize("schedule", SPLIT)
def test_a_healthy_job_has_no_finding(schedule):
    measured = from_trace(trace_of(schedule))
    result = paceline.analyze(measured)
    assert measured.graph.programmed
    assert result.slowdown == pytest.approx(1.0, abs=1e-9)
    assert result.discrepancy < 1e-9
    assert diagnose(measured, result).findings == ()


@pytest.mark.parametrize("schedule", SPLIT)
def test_a_slow_stage_costs_what_levelling_it_would_save(schedule):
    measured = from_trace(trace_of(schedule, (1, 2, 1, 1)))
    result = paceline.analyze(measured)
    expected = step_s(schedule, (1, 2, 1, 1)) / step_s(schedule, (1.25,) * 4)
    assert result.slowdown == pytest.approx(expected, rel=1e-6)
    first = diagnose(measured, result).findings[0]
    assert (first.cause, first.where["stage"]) == ("stage-imbalance", 1)
    assert first.evidence["backward_ratio"] == pytest.approx(2.0, rel=1e-3)
    loads = np.array(first.evidence["loads_s"])
    assert loads[1] / loads[0] == pytest.approx(2.0, rel=1e-3)


def test_a_stage_that_splits_its_backward_otherwise_is_no_straggler():
    """torch's first stage computes both gradients in its W pass."""

    def all_in_w(graph, seconds):
        first = (graph.pp == 0) & (graph.chunk == 0)
        seconds[first & (graph.kind == OpKind.BACKWARD_COMPUTE)] = 0.0
        seconds[first & (graph.kind == OpKind.WEIGHT_COMPUTE)] = 0.25

    measured = from_trace(trace_of("zbv", change=all_in_w))
    result = paceline.analyze(measured)
    assert result.slowdown == pytest.approx(1.0, abs=1e-9)
    assert diagnose(measured, result).findings == ()


def test_a_trace_file_keeps_the_weights_microbatches(tmp_path):
    trace = trace_of("zbv", (1, 1, 2, 1))
    write(trace, tmp_path / "trace.parquet")
    again = paceline.load(tmp_path / "trace.parquet")
    weights = again.kind == OpKind.WEIGHT_COMPUTE
    assert set(again.microbatch[weights].tolist()) == set(range(M))
    gmc = pq.read_table(tmp_path / "trace.parquet", columns=["gmc"])["gmc"].to_numpy()
    assert (gmc == -1).all()  # the column knows rounds only
    one, two = paceline.analyze(trace), paceline.analyze(again)
    assert one.slowdown == pytest.approx(two.slowdown, rel=1e-12)
