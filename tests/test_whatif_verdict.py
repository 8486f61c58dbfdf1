"""What an analysis may say: which kinds are judged, who is slowest, when a job is healthy."""

import json
import pickle
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from jobs import Spec, make_rows, trace_of
from paceline.graph import Durations, from_trace
from paceline.report.terminal import screen
from paceline.results.document import JobReport
from paceline.simulate import Rules, timeline
from paceline.trace import OpKind
from paceline.whatif import Scenario, analyze, ideal_durations, simulate_scenarios
from paceline.whatif.layout import MAX_IDEAL_LANES

DP_GROUPS = ["params-all-gather", "grads-reduce-scatter"]
PP_COMM = ["forward-pp-comm", "backward-pp-comm"]
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP = "optimizer-clip-main-grad"


def text_of(result):
    return "\n".join(line.plain for line in screen(JobReport.of(result), 100, colour=False))


def kinds_in(result, words):
    """The kinds that the warning with these words lists."""
    notes = [warning for warning in result.warnings if warning.startswith(words)]
    assert len(notes) <= 1
    return set(notes[0].rpartition(": ")[2].split(", ")) if notes else set()


@pytest.mark.parametrize(
    ("dp", "pp", "alone", "halved"),
    [
        (4, 1, [*DP_GROUPS, CLIP], []),
        (2, 1, [*DP_GROUPS, CLIP], [LAYERNORM, EMBEDDING]),
        (1, 2, [*PP_COMM, EMBEDDING, CLIP], [*DP_GROUPS, LAYERNORM]),
        (1, 3, [EMBEDDING, CLIP], [*PP_COMM]),
        (2, 2, [CLIP], [*PP_COMM, *DP_GROUPS, EMBEDDING]),
        (3, 2, [CLIP], DP_GROUPS),
        (2, 3, [CLIP], [EMBEDDING]),
        (3, 3, [CLIP], []),
    ],
)
def test_which_kinds_are_judged(dp, pp, alone, halved):
    """Peers: of a link all links, of a DP group those of the other stages, else all workers."""
    result = analyze(trace_of(make_rows(Spec(pp=pp, microbatches=(2,) * dp))))
    assert set(result.not_judged) == set(alone)
    assert kinds_in(result, "not judged") == set(alone)
    assert kinds_in(result, "judged against one peer only") == set(halved)


def test_one_worker_is_not_judged():
    result = analyze(trace_of(make_rows(Spec(pp=1, microbatches=(4,)))))
    assert "forward-compute" in result.not_judged
    healthy = replace(result, slowdown=1.0)
    assert "Not judged" in text_of(healthy)
    assert "Healthy" not in text_of(healthy)


def test_a_job_is_healthy_below_three_percent():
    result = analyze(trace_of(make_rows(Spec(microbatches=(3,) * 3, spread=0.0, delays=False))))
    below, at = replace(result, slowdown=1.0299), replace(result, slowdown=1.03)
    assert below.healthy
    assert "Healthy" in text_of(below)
    assert not at.healthy
    assert "Stragglers make steps 1.03 times" in text_of(at)


@pytest.mark.parametrize(("slowdown", "healthy"), [(0.9899, False), (0.99, True), (1.0, True)])
def test_a_job_faster_than_its_reference_is_not_called_healthy(slowdown, healthy):
    result = analyze(trace_of(make_rows(Spec(microbatches=(3,) * 3, spread=0.0, delays=False))))
    assert replace(result, slowdown=slowdown).healthy == healthy
    two_modes = np.repeat([1.0, 1.5], 10)
    assert not replace(result, slowdown=slowdown, traced_s=two_modes).healthy


def test_an_analysis_is_doubtful_above_five_percent():
    result = analyze(trace_of(make_rows(Spec(microbatches=(3,) * 3, spread=0.0, delays=False))))
    assert not replace(result, discrepancy=0.05).doubtful
    assert replace(result, discrepancy=0.0501).doubtful
    assert replace(result, slowdown=1.03).straggling
    assert not replace(result, slowdown=1.0299).straggling


def test_work_handed_out_unevenly_is_not_called_healthy():
    spec = Spec(pp=2, microbatches=(4, 4, 6), spread=0.0, delays=False, shared_transfers=True)
    result = analyze(trace_of(make_rows(spec)))
    assert result.healthy
    assert not result.even
    (note,) = [w for w in result.warnings if "does not show in S" in w]
    assert "at most 6, on average 4.7" in note
    lines = screen(JobReport.of(result), 100, colour=False)
    assert not any(line.plain.startswith("Healthy") for line in lines)
    assert not any("green" in str(line.style) for line in lines)
    assert "unequal numbers of microbatches" in text_of(result)


def computing(dp, at, forwards):
    """A replica of one stage that runs the forwards as many backwards of 1 s, and the clip."""
    rows = []
    spans = [("forward-compute", seconds) for seconds in forwards]
    spans += [("backward-compute", 0.01)] * len(forwards)
    for place, (kind, seconds) in enumerate(spans):
        seq = place % len(forwards)
        row = {"step": 0, "dp": dp, "pp": 0, "kind": kind, "seq": seq, "chunk": 0}
        rows.append(row | {"microbatch": seq, "start": at, "duration": seconds})
        at += seconds
    return rows, at


def test_workers_that_differ_by_rounding_only_are_ties():
    """Replicas 0 and 1 run the same 0.1, 0.2 and 0.3 s in another order; sums then differ."""
    differing = 0
    for first in permutations((0.1, 0.2, 0.3)):
        for second in permutations((0.1, 0.2, 0.3)):
            replicas = [computing(0, 0.0, first), computing(1, 0.0, second)]
            replicas.append(computing(2, 0.0, (0.1, 0.1, 0.1)))
            last = max(at for _, at in replicas)
            rows = [row for part, _ in replicas for row in part]
            for dp in range(3):
                row = {"step": 0, "dp": dp, "pp": 0, "kind": CLIP, "seq": 0, "chunk": -1}
                rows.append(row | {"microbatch": -1, "start": last, "duration": 0.01})
            result = analyze(trace_of(rows))
            differing += bool(result.by_worker[0, 1] > result.by_worker[0, 0])
            assert [worker[:2] for worker in result.slowest_workers] == [(0, 0)]
    assert differing > 0


def test_of_many_ideal_replicas_with_other_noops_the_slowest_is_simulated():
    """Replica k waits 0.1 * k s at a no-op before its first forward: the last one sets the time."""
    n_dp = MAX_IDEAL_LANES + 3
    spec = Spec(pp=2, vpp=2, microbatches=(2,) * n_dp, steps=1, noops="zero", delays=False)
    measured = from_trace(trace_of(make_rows(spec), spec.job), keep_clocks=True)
    graph, durations = measured.graph, measured.durations
    varied = Durations(graph, 1, durations.values.copy())
    first = graph.noop & (graph.kind == OpKind.FORWARD_RECV) & (graph.pp == 0) & (graph.seq == 0)
    (op,) = np.flatnonzero(first)
    varied.row(int(op))[0] = 0.1 * np.arange(n_dp)
    ideal = ideal_durations(varied)
    (found,) = simulate_scenarios(varied, ideal, [Scenario.ideal()])
    every_lane = timeline(varied, Rules(graph.noop[None], ideal)).step_times()
    np.testing.assert_allclose(found, every_lane, rtol=1e-12)
    assert analyze(replace(measured, durations=varied)).ideal_s.tolist() == found.tolist()


def test_a_result_can_be_stored():
    result = analyze(trace_of(make_rows(Spec(first_step=7))))
    again = pickle.loads(pickle.dumps(result))
    assert again.by_kind == result.by_kind
    assert again.slowest_workers == result.slowest_workers
    np.testing.assert_array_equal(again.by_worker, result.by_worker)
    assert json.loads(json.dumps(result.by_step)) == {
        str(step): value for step, value in result.by_step.items()
    }
    for numbers in (result.by_kind, result.by_stage, result.by_replica, result.slowest_workers):
        assert json.dumps(numbers)
