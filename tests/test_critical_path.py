"""The critical path and the slack beside it, against the oracle and the laws of longest paths."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

import paceline.simulate as simulate
import paceline.whatif.slack as slack_module
import paceline.whatif.trace_back as trace_back
from jobs import Spec, make_rows, random_spec, replace, trace_of
from oracle import Oracle
from paceline.graph import Durations, from_trace
from paceline.simulate import ends, timeline
from paceline.trace import OpKind
from paceline.whatif import analyze
from paceline.whatif.critical_path import critical_path, path_of
from paceline.whatif.segments import Replay, Sort
from paceline.whatif.slack import slack, slack_of

SEEDS = st.integers(0, 10**6)
FEW = settings(max_examples=25, deadline=None, derandomize=True)
OWN = (Sort.COMPUTE, Sort.TRANSFER)
BY_HAND = {  # (stage, kind) -> start, duration: forward 1 s, backward 2 s, transfers 0.5 s
    (0, "forward-compute"): (0, 1),
    (0, "forward-send"): (1, 0.5),
    (1, "forward-recv"): (0, 1.5),
    (1, "forward-compute"): (1.5, 1),
    (1, "backward-compute"): (2.75, 2),  # launched 0.25 s late
    (1, "backward-send"): (4.75, 0.5),
    (0, "backward-recv"): (0, 5.25),
    (0, "backward-compute"): (5.25, 2),
}


def measured_of(spec):
    rows = make_rows(spec)
    return rows, from_trace(trace_of(rows, spec.job), keep_clocks=True)


def by_hand():
    rows = []
    for (pp, kind), (start, duration) in BY_HAND.items():
        row = {"step": 0, "dp": 0, "pp": pp, "kind": kind, "seq": 0, "chunk": 0, "microbatch": 0}
        rows.append(row | {"start": float(start), "duration": float(duration)})
    return from_trace(trace_of(rows))


def step_times(measured, durations):
    return timeline(durations, delays=measured.delays).step_times()


def place(measured, op, dp):
    """Variant, op counted from its first, and rank counted within it."""
    graph = measured.graph
    v = int(graph.variant[op])
    return v, int(op - graph.variant_ptr[v]), int(graph.dp_index[dp])


def longer(measured, op, dp, step, seconds):
    durations = measured.durations
    changed = Durations(durations.graph, durations.n_steps, durations.values.copy())
    v, row, rank = place(measured, op, dp)
    changed.block(v)[row, step, rank] += seconds
    return changed


def expect_tiles(path):
    """Segments follow one another from 0 to the end of each step."""
    for index, (low, high) in enumerate(itertools.pairwise(path.ptr)):
        start, end = path.start_s[low:high], path.end_s[low:high]
        assert start[0] == 0
        np.testing.assert_array_equal(start[1:], end[:-1])
        assert end[-1] == path.step_s[index]
        assert (end - start).sum() == pytest.approx(path.step_s[index], rel=1e-12)
    for table in (path.sort_s, path.stage_s, path.worker_s.reshape(len(path.steps), -1)):
        np.testing.assert_allclose(table.sum(axis=1), path.step_s, rtol=1e-12)
    np.testing.assert_allclose(sum(path.kind_s.values()), path.step_s, rtol=1e-12)
    for shares in (path.by_sort, path.by_kind, path.by_stage):
        assert sum(shares.values()) == pytest.approx(1, rel=1e-12)
    assert path.by_worker.sum() == pytest.approx(1, rel=1e-12)


def test_two_stages_by_hand():
    """1 + 0.5 + 1, a delay of 0.25, 2 + 0.5 + 2; the recvs are on it, as they end last."""
    path = critical_path(by_hand())
    named = [
        (int(pp), OpKind(kind).label, Sort(sort).label, float(end - start))
        for pp, kind, sort, start, end in zip(
            path.pp, path.kind, path.sort, path.start_s, path.end_s, strict=True
        )
    ]
    assert named == [
        (0, "forward-compute", "compute", 1.0),
        (1, "forward-recv", "transfer", 0.5),
        (1, "forward-compute", "compute", 1.0),
        (1, "backward-compute", "delay", 0.25),
        (1, "backward-compute", "compute", 2.0),
        (0, "backward-recv", "transfer", 0.5),
        (0, "backward-compute", "compute", 2.0),
    ]
    assert path.step_s.tolist() == [7.25]
    shares = {"compute": 6 / 7.25, "transfer": 1 / 7.25, "delay": 0.25 / 7.25, "occupied": 0}
    assert path.by_sort == shares
    assert path.by_kind["launch-delay"] == 0.25 / 7.25
    assert path.by_stage == {0: 3.5 / 7.25, 1: 3.75 / 7.25}
    assert path.leading_worker.name == (0, 1)
    assert (path.leading_kind.name, path.leading_kind.n_steps) == ("backward-compute", 1)
    assert path.microbatch.tolist() == [0] * 7


def test_a_worker_that_computes_while_a_transfer_is_not_launched_is_occupied():
    """Stage 0 runs backward 0, forward 1, and only then posts the recv of backward 1, at 6.75 s.

    The recv depends on backward 0 alone, which ended at 5 s; forward 1 ran from 5.5 to 6.5 s.
    """
    spans = {
        (0, "forward-compute"): [(0, 1), (5.5, 1)],
        (0, "backward-compute"): [(3, 2), (7, 2)],
        (0, "forward-send"): [(1, 0.1), (6.5, 0.1)],
        (0, "backward-recv"): [(0, 3), (6.75, 0.25)],
        (1, "forward-recv"): [(0, 1.1), (1.5, 5.1)],
        (1, "forward-compute"): [(1.1, 0.1), (6.6, 0.05)],
        (1, "backward-compute"): [(1.2, 0.1), (6.65, 0.05)],
        (1, "backward-send"): [(1.3, 1.7), (6.7, 0.3)],
    }
    rows = [
        {"step": 0, "dp": 0, "pp": pp, "kind": kind, "seq": seq, "chunk": 0, "microbatch": seq}
        | {"start": float(start), "duration": float(duration)}
        for (pp, kind), pairs in spans.items()
        for seq, (start, duration) in enumerate(pairs)
    ]
    path = critical_path(from_trace(trace_of(rows), keep_clocks=True))
    expect_tiles(path)
    named = [
        (OpKind(kind).label, int(microbatch), Sort(sort).label, round(float(end - start), 9))
        for kind, microbatch, sort, start, end in zip(
            path.kind, path.microbatch, path.sort, path.start_s, path.end_s, strict=True
        )
    ]
    assert named[-6:] == [
        ("backward-compute", 0, "compute", 2.0),
        ("backward-recv", 1, "delay", 0.5),
        ("forward-compute", 1, "occupied", 1.0),
        ("backward-recv", 1, "delay", 0.25),
        ("backward-recv", 1, "transfer", 0.25),
        ("backward-compute", 1, "compute", 2.0),
    ]
    assert path.by_kind["launch-delay"] == pytest.approx(0.75 / 9)
    assert path.by_sort["occupied"] == pytest.approx(1 / 9)


def test_slack_by_hand():
    """The forward send ends at 1.5 s, when nothing waits for it any more: it has till the end."""
    measured = by_hand()
    table = slack_of(measured).array[:, 0, 0]
    kinds = [OpKind(kind).label for kind in measured.graph.kind]
    seconds = dict(zip(zip(measured.graph.pp.tolist(), kinds, strict=True), table, strict=True))
    assert seconds == {
        (0, "forward-compute"): 0,
        (0, "forward-send"): 7.25 - 1.5,
        (1, "forward-recv"): 0,
        (1, "forward-compute"): 0,
        (1, "backward-compute"): 0,
        (1, "backward-send"): 7.25 - 5.25,
        (0, "backward-recv"): 0,
        (0, "backward-compute"): 0,
    }


@FEW
@given(SEEDS)
def test_the_path_sums_to_the_step_as_it_was(seed):
    rows, measured = measured_of(random_spec(seed))
    path = critical_path(measured)
    expect_tiles(path)
    np.testing.assert_array_equal(path.step_s, step_times(measured, measured.durations))
    spec = random_spec(seed)
    oracle = Oracle(rows, spec.pp, spec.vpp)
    expected = oracle.step_times(delayed=lambda i, row: True)
    np.testing.assert_allclose(path.step_s, expected, rtol=1e-9)


def of_oracle(measured, rows):
    """(step index, dp, op) -> row of the oracle."""
    graph = measured.graph
    numbers = {
        (int(graph.variant[op]), int(graph.pp[op]), int(graph.kind[op]), int(graph.seq[op])): op
        for op in range(graph.n_ops)
    }
    steps = {int(step): index for index, step in enumerate(measured.steps)}
    return {
        (
            steps[row["step"]],
            row["dp"],
            numbers[
                int(graph.replica_variant[row["dp"]]),
                row["pp"],
                int(OpKind.from_label(row["kind"])),
                row["seq"],
            ],
        ): i
        for i, row in enumerate(rows)
    }


def oracle_steps(oracle, durations):
    _, end = oracle.run(durations, oracle.delays)
    last = {}
    for row, at in zip(oracle.rows, end, strict=True):
        last[row["step"]] = max(last.get(row["step"], at), at)
    return np.array([last[step] for step in sorted(last)])


@pytest.mark.parametrize("seed", range(8))
def test_the_path_is_what_the_oracle_waits_for(seed):
    """Take a little off every op in turn: the oracle's step moves by it just for those on it."""
    spec = replace(random_spec(seed), steps=1, noops="none")
    rows, measured = measured_of(spec)
    oracle = Oracle(rows, spec.pp, spec.vpp)
    path = critical_path(measured)
    on_path = {
        (int(dp), int(op))
        for dp, op, sort in zip(path.dp, path.op, path.sort, strict=True)
        if sort in OWN
    }
    before, little = oracle_steps(oracle, oracle.durations)[0], 1e-9
    for (_, dp, op), i in of_oracle(measured, rows).items():
        durations = list(oracle.durations)
        durations[i] -= little
        moved = before - oracle_steps(oracle, durations)[0]
        assert moved == pytest.approx(little if (dp, op) in on_path else 0, abs=1e-13)


@FEW
@given(SEEDS)
def test_a_nanosecond_off_an_op_on_the_path_moves_the_step(seed):
    """With random durations the path is the only one; no-ops of 0 s have equals beside them."""
    spec = random_spec(seed)
    _, measured = measured_of(spec)
    path = critical_path(measured)
    rng = np.random.default_rng(seed)
    real = np.flatnonzero(np.isin(path.sort, OWN) & ~measured.graph.noop[path.op])
    for segment in rng.choice(real, min(6, len(real)), replace=False):
        step = int(path.step_index[segment])
        changed = longer(measured, path.op[segment], path.dp[segment], step, -1e-9)
        moved = path.step_s - step_times(measured, changed)
        assert moved[step] == pytest.approx(1e-9, abs=1e-13)
        assert (np.delete(moved, step) == 0).all()


@FEW
@given(SEEDS)
def test_slack_is_how_much_longer_an_op_may_take(seed):
    spec = random_spec(seed)
    rows, measured = measured_of(spec)
    oracle = Oracle(rows, spec.pp, spec.vpp)
    table = slack_of(measured)
    before = oracle_steps(oracle, oracle.durations)
    places = sorted(of_oracle(measured, rows).items())
    for chosen in np.random.default_rng(seed).choice(len(places), min(6, len(places)), False):
        (step, dp, op), i = places[chosen]
        v, row, rank = place(measured, op, dp)
        room = table.block(v)[row, step, rank]
        assert room >= -1e-12
        for more, moves in ((0.9 * room, 0.0), (room + 0.25, 0.25)):
            durations = list(oracle.durations)
            durations[i] += more
            after = oracle_steps(oracle, durations) - before
            assert after[step] == pytest.approx(moves, abs=1e-12)
            mine = step_times(measured, longer(measured, op, dp, step, more))
            np.testing.assert_allclose(mine, before + after, rtol=1e-9)


@FEW
@given(SEEDS)
def test_there_is_no_slack_on_the_path(seed):
    _, measured = measured_of(random_spec(seed))
    path, table = critical_path(measured), slack_of(measured)
    own = np.flatnonzero(np.isin(path.sort, OWN))
    for segment in own:
        v, row, rank = place(measured, path.op[segment], path.dp[segment])
        assert abs(table.block(v)[row, path.step_index[segment], rank]) < 1e-12
    assert table.values.min() > -1e-12


def test_equal_paths_leave_the_step_where_it_is():
    """Without spread all replicas are equal: one op less moves nothing, the sum still holds."""
    _, measured = measured_of(Spec(spread=0.0, delays=False, clip=True))
    path = critical_path(measured)
    expect_tiles(path)
    again = critical_path(measured)
    np.testing.assert_array_equal(path.op, again.op)
    np.testing.assert_array_equal(path.dp, again.dp)
    for segment in np.flatnonzero(path.kind == OpKind.FORWARD_COMPUTE)[:5]:
        step = int(path.step_index[segment])
        changed = longer(measured, path.op[segment], path.dp[segment], step, -1e-6)
        moved = path.step_s[step] - step_times(measured, changed)[step]
        assert 0 <= moved <= 1e-6 + 1e-15


@FEW
@given(SEEDS)
def test_negative_transfers_run_backwards_and_the_sum_holds(seed):
    """Clock error: up to 9 ms below zero, of transfers and of delays."""
    _, measured = measured_of(random_spec(seed))
    rng = np.random.default_rng(seed)
    graph, n_steps = measured.graph, measured.durations.n_steps
    durations = Durations(graph, n_steps, measured.durations.values.copy())
    delays = Durations(graph, n_steps, measured.delays.values.copy())
    for op in np.flatnonzero(graph.kind > OpKind.BACKWARD_COMPUTE):
        row = durations.row(op)
        row[:] = np.where(rng.random(row.shape) < 0.5, rng.uniform(-0.009, 0, row.shape), row)
        late = delays.row(op)
        late[:] = np.where(rng.random(late.shape) < 0.3, rng.uniform(-0.009, 0, late.shape), late)
    path = path_of(graph, measured.steps, ends(durations, delays=delays), Replay(durations, delays))
    expect_tiles(path)
    before = timeline(durations, delays=delays).step_times()
    np.testing.assert_array_equal(path.step_s, before)
    table = slack(durations, delays)
    assert table.values.min() > -1e-12
    for flat in rng.choice(len(table.values), 6):
        op = int(np.searchsorted(table.row_ptr, flat, side="right") - 1)
        step = int((flat - table.row_ptr[op]) // len(graph.variant_dps[graph.variant[op]]))
        for more, moves in ((0.9 * table.values[flat], 0.0), (table.values[flat] + 0.25, 0.25)):
            changed = Durations(graph, n_steps, durations.values.copy())
            changed.values[flat] += more
            after = timeline(changed, delays=delays).step_times() - before
            assert after[step] == pytest.approx(moves, abs=1e-12)


@pytest.mark.parametrize(
    "spec",
    [
        Spec(pp=3, microbatches=(4, 4, 4), steps=3, overlapped=True),
        Spec(pp=2, microbatches=(3, 5, 4), steps=2),
        Spec(pp=2, vpp=2, microbatches=(4, 4), noops="random"),
        Spec(pp=1, microbatches=(3,)),
    ],
    ids=["alike", "variants", "interleaved", "one worker"],
)
def test_compiled_and_interpreted_agree(spec, monkeypatch):
    _, measured = measured_of(spec)
    plain, table = critical_path(measured), slack_of(measured)
    monkeypatch.setattr(simulate, "COLD_ABOVE_S", 0)
    monkeypatch.setattr(simulate, "_ENDS_BYTES", 1)
    monkeypatch.setattr(trace_back, "COLD_ABOVE_S", 0)
    monkeypatch.setattr(trace_back, "WARM_ABOVE_S", 0)
    fast = critical_path(measured)
    for name in ("step_s", "ptr", "op", "dp", "sort", "start_s", "end_s"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(fast, name))
    np.testing.assert_allclose(slack_of(measured).values, table.values, atol=1e-15)


def test_steps_of_different_blocks_are_alike(monkeypatch):
    _, measured = measured_of(Spec(pp=2, microbatches=(3, 5, 4), steps=5))
    whole = critical_path(measured)
    monkeypatch.setattr(simulate, "_INTERPRETED_BYTES", 1)
    cut = critical_path(measured)
    np.testing.assert_array_equal(whole.op, cut.op)
    np.testing.assert_array_equal(whole.end_s, cut.end_s)


def test_a_slow_worker_leads_the_path_and_others_have_slack():
    spec = Spec(pp=2, microbatches=(6, 6, 6), steps=4, spread=0.05, slow=((1, 1, 2.0),))
    _, measured = measured_of(spec)
    path = analyze(measured).critical_path
    assert path.leading_worker.name == (1, 1)
    assert path.leading_worker.n_steps == 4
    assert path.leading_worker.share > 0.5
    least = path.slack.least_s
    assert abs(least[1, 1]) < 1e-12
    assert (np.delete(least.ravel(), 4) > 0.1).sum() >= 4  # all of the other replicas
    assert path.slack.near_workers < 3
    assert path.slack.by_kind["backward-compute"][0] == pytest.approx(0, abs=1e-12)
    assert path.slack.by_stage[0][1] > path.slack.by_stage[0][0]
    assert path.slack.steps.tolist() == measured.steps.tolist()


def test_of_large_jobs_the_slack_of_typical_steps_is_looked_at(monkeypatch):
    _, measured = measured_of(Spec(steps=5, microbatches=(4, 4)))
    monkeypatch.setattr(slack_module, "MAX_OPS", len(measured.durations.values) // 5)
    path = critical_path(measured)
    middle = np.argsort(path.step_s)[2]
    assert path.slack.steps.tolist() == [measured.steps[middle]]
    block = slack_of(measured, np.array([middle])).block(0)
    computes = measured.graph.kind <= OpKind.BACKWARD_COMPUTE
    stage = block[np.flatnonzero(computes & (measured.graph.pp == 1))]
    np.testing.assert_array_equal(path.slack.least_s[1], stage.min(axis=(0, 1)))
    assert path.slack.by_stage[1] == (stage.min(), np.median(stage))


def test_without_launch_delays_there_are_none_on_the_path():
    """It sums to the simulated step of the analysis."""
    _, measured = measured_of(Spec(steps=3))
    path = path_of(measured.graph, measured.steps, ends(measured.durations))
    expect_tiles(path)
    assert path.by_sort["delay"] == 0
    np.testing.assert_allclose(path.step_s, analyze(measured).simulated_s, rtol=1e-12)


SMALL = """
import sys
from paceline import SynthSpec, analyze, synthesize
assert analyze(synthesize(SynthSpec(dp=2, pp=2, microbatches=4, steps=2))).critical_path.slack
assert "numba" not in sys.modules
"""


def test_small_jobs_load_no_compiler():
    subprocess.run([sys.executable, "-c", SMALL], check=True)
