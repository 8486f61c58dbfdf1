"""The kernel against the event-heap oracle, its compiled form, and laws that any timeline obeys."""

import numpy as np
import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

import paceline.simulate as simulate
from jobs import Spec, make_rows, random_spec, trace_of
from oracle import Oracle
from paceline.errors import SimulationError
from paceline.graph import Durations, from_trace
from paceline.simulate import Lanes, Rules, all_lanes, step_times, timeline
from paceline.trace import OpKind

SEEDS = st.integers(0, 10**6)
FEW = settings(max_examples=25, deadline=None, derandomize=True)


def measured_of(spec):
    rows = make_rows(spec)
    return rows, from_trace(trace_of(rows, spec.job), keep_clocks=True)


def small(seed):
    """A random job, without the jobs in which nothing is transferred."""
    spec = random_spec(seed)
    if spec.pp == 1:
        spec = Spec(**{**vars(spec), "clip": True})
    return measured_of(spec)


def everything(graph, delays=False):
    keep = np.ones((1, graph.n_ops), dtype=bool)
    return Rules(keep, np.zeros(graph.n_ops), keep if delays else None)


def total(measured, durations=None, delays=None):
    graph, n_steps = measured.graph, measured.durations.n_steps
    rules = everything(graph, delays is not None)
    return step_times(durations or measured.durations, rules, all_lanes(graph, n_steps), delays)


def changed(table, values):
    return Durations(table.graph, table.n_steps, values)


def test_two_stages_by_hand():
    """Forward 1 s, backward 2 s, transfers 0.5 s: 1 + 0.5 + 1 + 2 + 0.5 + 2."""
    rows = []
    at = {
        (0, "forward-compute"): (0, 1),
        (0, "forward-send"): (1, 1.5),
        (1, "forward-recv"): (0, 1.5),
        (1, "forward-compute"): (1.5, 2.5),
        (1, "backward-compute"): (2.5, 4.5),
        (1, "backward-send"): (4.5, 5),
        (0, "backward-recv"): (0, 5),
        (0, "backward-compute"): (5, 7),
    }
    for (pp, kind), (start, end) in at.items():
        row = {"step": 0, "dp": 0, "pp": pp, "kind": kind, "seq": 0, "chunk": 0, "microbatch": 0}
        rows.append(row | {"start": float(start), "duration": float(end - start)})
    measured = from_trace(trace_of(rows))
    found = timeline(measured.durations)
    assert found.step_times().tolist() == [7.0]
    order = [OpKind(kind).label for kind in measured.graph.kind]
    starts = dict(
        zip(
            zip(measured.graph.pp.tolist(), order, strict=True),
            found.start.array[:, 0, 0],
            strict=True,
        )
    )
    assert starts == {where: span[0] for where, span in at.items()}


def test_a_collective_waits_for_the_last_replica():
    """Two replicas of one stage: 1 + 2 s and 3 + 2 s, then an all-reduce of 1 s."""
    rows = []
    for dp, forward in ((0, 1.0), (1, 3.0)):
        spans = {
            "forward-compute": (0.0, forward),
            "backward-compute": (forward, 2.0),
            "grads-reduce-scatter": (forward + 2, 6.0 - forward - 2),
        }
        for kind, (start, duration) in spans.items():
            row = {"step": 0, "dp": dp, "pp": 0, "kind": kind, "seq": 0, "chunk": 0}
            rows.append(row | {"microbatch": 0, "start": start, "duration": duration})
    measured = from_trace(trace_of(rows))
    assert measured.durations.array[:, 0].tolist() == [[1, 3], [2, 2], [1, 1]]
    end = timeline(measured.durations).end.array[:, 0]
    assert end.tolist() == [[1, 3], [3, 5], [6, 6]]
    assert total(measured).tolist() == [6.0]


@FEW
@given(SEEDS)
def test_every_launch_and_end_equals_the_oracle(seed):
    rows, measured = small(seed)
    graph = measured.graph
    oracle = Oracle(rows, graph.n_pp, int(graph.chunk.max()) + 1)
    for delays in (None, measured.delays):
        launch, end = oracle.run(oracle.durations, delays and oracle.delays)
        found = timeline(measured.durations, delays=delays)
        place = {}
        for v, dps in enumerate(graph.variant_dps):
            ops = graph.variant_ops(v)
            for op in range(ops.start, ops.stop):
                name = (int(graph.pp[op]), OpKind(graph.kind[op]).label, int(graph.seq[op]))
                for k, dp in enumerate(dps.tolist()):
                    place[dp, *name] = v, op - ops.start, k
        for i, row in enumerate(rows):
            v, op, k = place[row["dp"], row["pp"], row["kind"], row["seq"]]
            assert found.start.block(v)[op, row["step"], k] == pytest.approx(launch[i], abs=1e-9)
            assert found.end.block(v)[op, row["step"], k] == pytest.approx(end[i], abs=1e-9)
        expected = oracle.step_times(delayed=delays and (lambda i, row: True))
        np.testing.assert_allclose(found.step_times(), expected, rtol=1e-9)


def random_lanes(graph, n_steps, rng):
    """Sets that mix rules and steps freely, a lane for every replica."""
    n_rules, n_sets = 4, 12
    keep = rng.random((n_rules, graph.n_ops)) < 0.5
    rules = Rules(keep, rng.random(graph.n_ops), rng.random(keep.shape) < 0.5)
    dp = np.tile(np.arange(graph.n_dp), n_sets)
    variant = graph.replica_variant[dp]
    n_dp = np.array([len(dps) for dps in graph.variant_dps])
    column = rng.integers(0, n_steps, len(dp)) * n_dp[variant] + graph.dp_index[dp]
    rule = rng.integers(0, n_rules, len(dp))
    return rules, Lanes(np.repeat(np.arange(n_sets), graph.n_dp), variant, rule, column, n_sets)


@pytest.mark.parametrize(
    "spec",
    [
        Spec(pp=3, microbatches=(4, 4, 4)),
        Spec(pp=2, microbatches=(4, 2, 6, 2), overlapped=True),
        Spec(pp=2, vpp=2, microbatches=(4, 2), noops="random"),
        Spec(pp=1, microbatches=(3,)),
    ],
    ids=["alike", "variants", "interleaved", "one worker"],
)
def test_compiled_and_blocked_walks_equal_the_plain_one(spec, monkeypatch):
    _, measured = measured_of(spec)
    rules, lanes = random_lanes(measured.graph, spec.steps, np.random.default_rng(3))
    plain = step_times(measured.durations, rules, lanes, measured.delays)
    lines = timeline(measured.durations, delays=measured.delays)
    monkeypatch.setattr(simulate._Prepared, "block_lanes", lambda self, fast: 3)
    np.testing.assert_array_equal(
        step_times(measured.durations, rules, lanes, measured.delays), plain
    )
    monkeypatch.setattr(simulate, "COLD_ABOVE_S", 0)
    monkeypatch.setattr(simulate, "_INTERPRETED_BYTES", 1)
    np.testing.assert_array_equal(
        step_times(measured.durations, rules, lanes, measured.delays), plain
    )
    fast = timeline(measured.durations, delays=measured.delays)
    np.testing.assert_array_equal(fast.end.values, lines.end.values)
    np.testing.assert_array_equal(fast.start.values, lines.start.values)


def test_small_blocks_hold_whole_sets(monkeypatch):
    _, measured = measured_of(Spec(microbatches=(2,) * 70, steps=3, delays=False))
    plain = total(measured)
    monkeypatch.setattr(simulate, "_INTERPRETED_BYTES", 1)
    np.testing.assert_array_equal(total(measured), plain)
    monkeypatch.setattr(simulate, "COLD_ABOVE_S", 0)
    monkeypatch.setattr(simulate, "_COMPILED_BYTES", 1)
    np.testing.assert_array_equal(total(measured), plain)


def test_progress_counts_all_lanes(monkeypatch):
    _, measured = measured_of(Spec(microbatches=(2,) * 70, steps=3))
    monkeypatch.setattr(simulate, "_INTERPRETED_BYTES", 1)
    seen = []
    lanes = all_lanes(measured.graph, 3)
    step_times(
        measured.durations,
        everything(measured.graph),
        lanes,
        progress=lambda done, of: seen.append((done, of)),
    )
    assert seen == [(70, 210), (140, 210), (210, 210)]


@FEW
@given(SEEDS, st.floats(0, 10))
def test_a_longer_op_never_shortens_a_step(seed, more):
    _, measured = small(seed)
    before = total(measured)
    rng = np.random.default_rng(seed)
    values = measured.durations.values.copy()
    values[rng.integers(0, len(values), 5)] += more
    assert (total(measured, changed(measured.durations, values)) >= before).all()


@FEW
@given(SEEDS, st.floats(0, 10))
def test_a_longer_delay_never_shortens_a_step(seed, more):
    _, measured = small(seed)
    before = total(measured, delays=measured.delays)
    values = measured.delays.values.copy()
    values[np.random.default_rng(seed).integers(0, len(values), 5)] += more
    assert (total(measured, delays=changed(measured.delays, values)) >= before).all()
    assert (before >= total(measured) - 1e-9).all()


@FEW
@given(SEEDS, st.floats(1e-3, 1e3))
def test_scaled_durations_scale_the_step(seed, factor):
    _, measured = small(seed)
    scaled = changed(measured.durations, measured.durations.values * factor)
    np.testing.assert_allclose(total(measured, scaled), total(measured) * factor, rtol=1e-9)


@FEW
@given(SEEDS)
def test_a_step_lasts_at_least_as_long_as_any_stage_computes(seed):
    _, measured = small(seed)
    graph, found = measured.graph, total(measured)
    local = np.isin(graph.kind, [OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.OPTIMIZER])
    for v in range(graph.n_variants):
        ops = graph.variant_ops(v)
        for pp in range(graph.n_pp):
            mine = local[ops] & (graph.pp[ops] == pp)
            busy = measured.durations.block(v)[mine].sum(axis=0)  # [step, dp]
            assert (found >= busy.max(axis=1) - 1e-9).all()


def test_arrays_that_do_not_belong_together_are_refused():
    _, measured = measured_of(Spec())
    graph, lanes = measured.graph, all_lanes(measured.graph, 2)
    with pytest.raises(SimulationError, match="do not fit"):
        step_times(measured.durations, Rules(np.ones((1, 3), bool), np.zeros(3)), lanes)
    with pytest.raises(SimulationError, match="delays"):
        step_times(measured.durations, everything(graph, delays=True), lanes)
    with pytest.raises(SimulationError, match="needs"):
        Durations(graph, 2, np.zeros(3))
    backwards = Lanes(lanes.set[::-1], lanes.variant, lanes.rule, lanes.column, lanes.n_sets)
    with pytest.raises(SimulationError, match="set by set"):
        step_times(measured.durations, everything(graph), backwards)
