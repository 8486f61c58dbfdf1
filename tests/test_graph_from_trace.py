"""Durations, delays and structure found in a trace."""

import numpy as np
import pytest

from jobs import Spec, make_rows, random_spec, replace, trace_of
from oracle import Oracle
from paceline.errors import GraphError, TraceError
from paceline.graph import from_trace
from paceline.trace import OpKind
from paceline.whatif.ideal import ideal_durations


def by_key(measured, table):
    """(step, dp, pp, kind, seq) -> value."""
    graph, found = measured.graph, {}
    for v, dps in enumerate(graph.variant_dps):
        ops = graph.variant_ops(v)
        values = table.block(v).tolist()
        for op in range(ops.start, ops.stop):
            where = (int(graph.pp[op]), OpKind(graph.kind[op]).label, int(graph.seq[op]))
            for s, step in enumerate(measured.steps.tolist()):
                for k, dp in enumerate(dps.tolist()):
                    found[step, dp, *where] = values[op - ops.start][s][k]
    return found


def key(row):
    return row["step"], row["dp"], row["pp"], row["kind"], row["seq"]


@pytest.mark.parametrize("seed", range(40))
def test_durations_delays_and_ideals_equal_the_oracle(seed):
    spec = random_spec(seed)
    rows = make_rows(spec)
    oracle = Oracle(rows, spec.pp, spec.vpp)
    measured = from_trace(trace_of(rows, spec.job), keep_clocks=True)
    for table, expected in (
        (measured.durations, oracle.durations),
        (measured.delays, oracle.delays),
    ):
        found = by_key(measured, table)
        assert len(found) == len(rows)
        pairs = np.array([(found[key(r)], e) for r, e in zip(rows, expected, strict=True)])
        np.testing.assert_allclose(pairs[:, 0], pairs[:, 1], rtol=1e-9, atol=1e-12)
    assert measured.graph.noop.any() == any(oracle.noop)
    np.testing.assert_allclose(measured.traced_step_s, list(oracle.traced.values()), rtol=1e-12)
    ideal = ideal_durations(measured.durations)
    for op in np.flatnonzero(~measured.graph.noop):
        label = OpKind(measured.graph.kind[op]).label
        assert ideal[op] == pytest.approx(oracle.ideal[label], rel=1e-9)


def without(rows, **where):
    """Rows but those that match."""
    return [r for r in rows if any(r[name] != value for name, value in where.items())]


@pytest.mark.parametrize(
    "lost",
    [
        {"kind": "forward-compute", "seq": 2, "dp": 1, "pp": 0},
        {"kind": "forward-send", "seq": 0, "dp": 0, "pp": 0},
        {"kind": "optimizer", "dp": 1, "pp": 1},
        {"kind": "grads-reduce-scatter", "dp": 1, "pp": 1},
        {"dp": 0, "pp": 1},
        {"dp": 1},
        {"pp": 0},
    ],
    ids=str,
)
def test_a_step_that_lacks_something_is_left_out_and_named(rows, lost):
    measured = from_trace(trace_of(without(rows, step=6, **lost), Spec().job))
    assert measured.steps.tolist() == [5, 7]
    assert list(measured.left_out) == [6]
    assert any("1 of 3 steps left out" in warning for warning in measured.warnings)


def test_what_is_left_out_does_not_count(rows):
    whole = from_trace(trace_of([r for r in rows if r["step"] != 6]))
    broken = from_trace(trace_of(without(rows, step=6, dp=1, pp=1, kind="optimizer", seq=0)))
    np.testing.assert_array_equal(whole.durations.values, broken.durations.values)


def test_an_op_that_every_step_lacks_is_an_error(rows):
    with pytest.raises(GraphError, match="missing"):
        from_trace(trace_of(without(rows, kind="forward-send", seq=0, dp=0, pp=0)))


def test_a_worker_that_never_occurs_is_an_error(rows):
    with pytest.raises(TraceError, match=r"dp 0, stage 1"):
        from_trace(trace_of(without(rows, dp=0, pp=1)))


def test_no_whole_step_is_an_error(rows):
    rows = without(rows, step=5, dp=0)
    rows = without(rows, step=6, dp=1)
    rows = without(rows, step=7, pp=1)
    with pytest.raises(TraceError, match="no step is whole"):
        from_trace(trace_of(rows))


def test_of_two_steps_the_broken_one_goes():
    rows = make_rows(Spec(steps=2, microbatches=(3, 3)))
    for step in (0, 1):
        measured = from_trace(trace_of(without(rows, step=step, dp=1, pp=0, kind="optimizer")))
        assert measured.steps.tolist() == [1 - step]


def test_batch_size_warmup_is_left_out():
    spec = Spec(microbatches=(4, 4), steps=4)
    warm = make_rows(replace(spec, microbatches=(2, 2), steps=1))
    rows = warm + [r for r in make_rows(spec) if r["step"] > 0]
    measured = from_trace(trace_of(rows))
    assert measured.steps.tolist() == [1, 2, 3]
    assert "2 forward-compute ops, usual are 4" in measured.left_out[0]


def test_another_order_of_ops_is_left_out():
    spec = Spec(microbatches=(4, 4), steps=4)
    odd = make_rows(replace(spec, schedule="gpipe", steps=1))
    rows = odd + [r for r in make_rows(spec) if r["step"] > 0]
    measured = from_trace(trace_of(rows))
    assert measured.steps.tolist() == [1, 2, 3]
    assert "another order" in measured.left_out[0]


def test_the_majority_decides_the_order_not_the_first():
    spec = Spec(microbatches=(4, 4), steps=5)
    gpipe = [r for r in make_rows(replace(spec, schedule="gpipe")) if r["step"] < 2]
    measured = from_trace(trace_of(gpipe + [r for r in make_rows(spec) if r["step"] >= 2]))
    assert measured.steps.tolist() == [2, 3, 4]


def test_replicas_with_other_numbers_of_microbatches_are_fine():
    measured = from_trace(trace_of(make_rows(Spec(microbatches=(4, 2, 4)))), keep_clocks=True)
    assert measured.graph.n_variants == 2
    assert any("2 structures with 2, 4 microbatches" in w for w in measured.warnings)
    assert dict(measured.left_out) == {}


def test_replicas_may_number_their_microbatches_globally(rows):
    expected = from_trace(trace_of(rows)).durations.values
    for row in rows:
        if row["microbatch"] >= 0:
            row["microbatch"] += 3 * row["dp"]
    np.testing.assert_array_equal(from_trace(trace_of(rows)).durations.values, expected)


def test_a_replica_that_lacks_a_collective_always_is_an_error(rows):
    with pytest.raises(TraceError, match="dp ranks consist of other ops than most"):
        from_trace(trace_of(without(rows, dp=1, kind="grads-reduce-scatter")))


def test_vpp_without_recorded_noops_is_said_and_gives_the_same():
    spec = Spec(pp=2, vpp=2, microbatches=(4, 4), delays=False, spread=0.0, noops="zero")
    with_noops = from_trace(trace_of(make_rows(spec), spec.job), keep_clocks=True)
    bare = from_trace(trace_of(make_rows(replace(spec, noops="none")), spec.job), keep_clocks=True)
    assert with_noops.graph.noop.sum() == 4 * 4  # 4 microbatches at 4 ends
    assert not bare.graph.noop.any()
    np.testing.assert_allclose(bare.traced_step_s, with_noops.traced_step_s, rtol=1e-12)
    assert not any("no-op" in warning for warning in with_noops.warnings)
    assert any("no-op" in warning for warning in bare.warnings)


def test_a_cycle_names_its_ops():
    """Stage 0 runs a backward first, whose gradient comes from the forward it runs second."""
    rows = make_rows(Spec(pp=2, microbatches=(2,), steps=1, delays=False))
    first = next(r for r in rows if r["pp"] == 0 and r["kind"] == "backward-compute")
    first["start"] = -1.0
    with pytest.raises(GraphError, match=r"in a circle: .*backward-compute 0 of stage 0"):
        from_trace(trace_of(rows))


def test_slightly_negative_times_stay_and_grossly_negative_ones_are_counted():
    rows = make_rows(Spec(pp=1, microbatches=(1,), steps=1, delays=False, spread=0.0))
    backward = next(r for r in rows if r["kind"] == "backward-compute")
    for early, kept, clamped in ((0.009, -0.009, {}), (0.011, 0.0, {"backward-compute": 1})):
        moved = [dict(r, start=r["start"] - early) if r is backward else r for r in rows]
        measured = from_trace(trace_of(moved))
        op = int(np.flatnonzero(measured.graph.kind == OpKind.BACKWARD_COMPUTE)[0])
        assert measured.delays.array[op, 0, 0] == pytest.approx(kept)
        assert dict(measured.clamped["launch_delay"]) == clamped


def test_a_job_without_any_transfer_is_fine():
    spec = Spec(pp=1, microbatches=(2,), gather=False, scatter=False, clip=False, embedding=False)
    rows = make_rows(spec)
    measured = from_trace(trace_of(rows))
    expected = [r["duration"] for r in rows if r["step"] == 0 and r["kind"] == "forward-compute"]
    assert measured.durations.array[:2, 0, 0].tolist() == pytest.approx(expected)
