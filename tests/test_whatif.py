"""Every number of an analysis against a full simulation of its scenario by the oracle."""

import math

import numpy as np
import pytest

import paceline.simulate as simulate
import paceline.whatif.layout as layout
from jobs import Spec, make_rows, random_spec, replace, trace_of
from oracle import Oracle
from paceline.errors import ScenarioError
from paceline.graph import from_trace
from paceline.simulate import timeline
from paceline.trace import KIND_GROUPS
from paceline.whatif import analyze
from paceline.whatif.doubts import delay_doubts
from paceline.whatif.ideal import ideal_durations
from paceline.whatif.layout import rules_of
from paceline.whatif.result import LaunchDelay
from paceline.whatif.scenario import Scenario


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def check(spec):
    """All numbers of the analysis of a random job."""
    rows = make_rows(spec)
    oracle = Oracle(rows, spec.pp, spec.vpp)
    result = analyze(trace_of(rows, spec.job), keep_clocks=True)
    times = lambda measured: np.array(oracle.step_times(measured))  # noqa: E731 (short)
    t, ideal = times(lambda row: True), times(lambda row: False)
    close(result.simulated_s, t)
    close(result.ideal_s, ideal)
    close(result.slowdown, t.mean() / ideal.mean())
    close(result.waste, 1 - ideal.mean() / t.mean())
    close(list(result.by_step.values()), t / ideal)
    present = {row["kind"] for row in rows}
    assert set(result.by_kind) == {
        label for label, kinds in KIND_GROUPS.items() if present & {k.label for k in kinds}
    }
    for label in result.by_kind:
        kinds = {kind.label for kind in KIND_GROUPS[label]}
        alone = times(lambda row, kinds=kinds: row["kind"] in kinds)
        close(result.by_kind[label], alone.mean() / ideal.mean())
        close(result.by_kind_by_step[label], alone / ideal)
    for pp in range(spec.pp):
        alone = times(lambda row, pp=pp: row["pp"] == pp)
        close(result.by_stage[pp], alone.mean() / ideal.mean())
        close(result.by_stage_by_step[:, pp], alone / ideal)
    for dp in range(len(spec.microbatches)):
        alone = times(lambda row, dp=dp: row["dp"] == dp)
        close(result.by_replica[dp], alone.mean() / ideal.mean())
        close(result.by_replica_by_step[:, dp], alone / ideal)
    for pp in range(spec.pp):
        for dp in range(len(spec.microbatches)):
            alone = times(lambda row, w=(dp, pp): (row["dp"], row["pp"]) == w)
            close(result.by_worker[pp, dp], alone.mean() / ideal.mean())
            close(result.by_worker_by_step[:, pp, dp], alone / ideal)
    check_shares(spec, result, times, t.mean(), ideal.mean())
    check_delays(oracle, result, t.mean())


def check_shares(spec, result, times, t, ideal):
    n_slowest = math.ceil(0.03 * result.by_worker.size)
    workers = [(dp, pp) for pp in range(spec.pp) for dp in range(len(spec.microbatches))]
    by_exact = sorted(workers, key=lambda w: -round(result.by_worker[w[1], w[0]], 12))
    assert [(dp, pp) for dp, pp, _ in result.slowest_workers] == by_exact[:n_slowest]
    by_paper = sorted(
        workers, key=lambda w: -round(min(result.by_replica[w[0]], result.by_stage[w[1]]), 12)
    )
    last = lambda row: row["pp"] == spec.pp - 1  # noqa: E731 (short)
    one_of = lambda chosen: lambda row: (row["dp"], row["pp"]) in chosen  # noqa: E731 (short)
    exact, paper = one_of(set(by_exact[:n_slowest])), one_of(set(by_paper[:n_slowest]))
    gap = t - ideal
    if gap < 0.001 * t:
        assert result.m_w is None
        assert result.m_w_paper is None
        assert result.m_w_only is None
        if spec.pp > 1:
            assert result.m_s is None
        return
    close(result.m_w * gap, t - times(lambda row: not exact(row)).mean())
    close(result.m_w_paper * gap, t - times(lambda row: not paper(row)).mean())
    close(result.m_w_only * gap, times(exact).mean() - ideal)
    if spec.pp == 1:
        assert (result.m_s, result.m_s_only) == (0.0, 0.0)
        return
    np.testing.assert_allclose(
        result.m_s, (t - times(lambda row: not last(row)).mean()) / gap, rtol=1e-7, atol=1e-9
    )
    np.testing.assert_allclose(
        result.m_s_only, (times(last).mean() - ideal) / gap, rtol=1e-7, atol=1e-9
    )


def check_delays(oracle, result, t):
    traced = np.mean(list(oracle.traced.values()))
    close(result.traced_s, list(oracle.traced.values()))
    close(result.launch_slowdown, traced / t)
    assert result.discrepancy == pytest.approx(abs(t / traced - 1), abs=1e-9)
    assert result.replay_error < 1e-9
    for label, factor in result.launch_delay.by_kind.items():
        alone = oracle.step_times(delayed=lambda i, row, label=label: row["kind"] == label)
        close(factor, np.mean(alone) / t)
    start = oracle.step_times(
        delayed=lambda i, row: (
            not oracle.before[i] or (row["kind"] == "forward-compute" and row["seq"] == 0)
        )
    )
    close(result.launch_delay.step_start, np.mean(start) / t)


@pytest.mark.parametrize("seed", range(50))
def test_random_jobs_equal_the_oracle(seed):
    check(random_spec(seed))


@pytest.mark.parametrize(
    "spec",
    [
        Spec(pp=4, microbatches=(6, 6, 6), slow=((1, 2, 2.0),)),
        Spec(pp=4, microbatches=(6, 6), schedule="gpipe", overlapped=True),
        Spec(pp=3, vpp=2, microbatches=(6, 6), overlapped=True, noops="random"),
        Spec(pp=2, vpp=4, microbatches=(4, 4), overlapped=False, noops="none"),
        Spec(pp=2, microbatches=(4, 2, 6), overlapped=True),
        Spec(pp=2, vpp=2, microbatches=(2, 4, 2), noops="random"),
        Spec(pp=1, microbatches=(4,)),
        Spec(pp=1, microbatches=(4, 2), overlapped=True),
        Spec(pp=4, microbatches=(8,)),
        Spec(pp=2, microbatches=(1, 1), steps=1),
    ],
    ids=lambda spec: f"{spec.schedule}-{spec.pp}x{spec.vpp}-{spec.microbatches}-{spec.noops}",
)
def test_chosen_jobs_equal_the_oracle(spec):
    check(spec)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_batches_and_compiled_blocks_change_nothing(seed, monkeypatch):
    spec = random_spec(seed)
    trace = trace_of(make_rows(spec), spec.job)
    plain = analyze(trace)
    monkeypatch.setattr(layout, "_MAX_LANES", 5)
    monkeypatch.setattr(simulate, "COLD_ABOVE_S", 0)
    monkeypatch.setattr(simulate, "_COMPILED_BYTES", 1)
    split = analyze(trace)
    np.testing.assert_array_equal(split.by_worker_by_step, plain.by_worker_by_step)
    monkeypatch.setattr(layout, "_MAX_CELLS", 1)
    split = analyze(trace)
    np.testing.assert_array_equal(split.by_replica_by_step, plain.by_replica_by_step)
    assert split.by_kind == plain.by_kind
    assert split.m_s == plain.m_s


def test_many_replicas_with_other_noops_are_exact_or_say_how_far_off():
    spec = Spec(pp=2, vpp=2, microbatches=(2,) * 11, steps=1, noops="random", delays=False)
    rows = make_rows(spec)
    result = analyze(trace_of(rows), keep_clocks=True)
    oracle = Oracle(rows, 2, 2)
    (ideal,) = oracle.step_times(lambda row: False)
    off = abs(result.ideal_s[0] - ideal)
    for dp in range(11):
        (alone,) = oracle.step_times(lambda row, dp=dp: (row["dp"], row["pp"]) == (dp, 1))
        off = max(off, abs(result.by_worker[1, dp] * result.ideal_s[0] - alone))
    notes = [warning for warning in result.warnings if "too low by up to" in warning]
    allowed = float(notes[0].split()[-1]) * ideal * 1.1 if notes else 1e-9 * ideal
    assert off <= allowed


def test_a_slow_worker_is_found_without_ghosts():
    """One worker of 4 x 4 twice as slow: it alone is to blame, its row and column are not."""
    spec = Spec(pp=4, microbatches=(8,) * 4, delays=False, spread=0.01, slow=((3, 1, 2.0),))
    result = analyze(trace_of(make_rows(spec)), keep_clocks=True)
    assert [worker[:2] for worker in result.slowest_workers] == [(3, 1)]
    assert result.by_worker[1, 3] > 1.4
    others = np.delete(result.by_worker.ravel(), 1 * 4 + 3)
    assert others.max() < 1.05
    assert result.m_w > 0.95
    assert result.m_w_only > 0.95


def test_equal_workers_waste_nothing():
    spec = Spec(pp=2, microbatches=(4, 4), delays=False, spread=0.0)
    result = analyze(trace_of(make_rows(spec)))
    assert result.slowdown == pytest.approx(1, abs=1e-12)
    assert result.healthy
    assert (result.m_w, result.m_w_paper, result.m_s, result.m_w_only) == (None,) * 4
    assert result.discrepancy < 1e-9


def test_a_job_faster_than_its_ideal_has_no_shares():
    """Layernorm lasts 1, 1 and 0.1 s, its median is 1: T = 3.7 s on average, T_ideal = 4 s."""
    rows = []
    for step, layernorm in enumerate((1.0, 1.0, 0.1)):
        at = 0.0
        for kind, seconds in (
            ("forward-compute", 1.0),
            ("backward-compute", 1.0),
            ("layernorm-grads-all-reduce", layernorm),
            ("optimizer-clip-main-grad", 1.0),
        ):
            row = {"step": step, "dp": 0, "pp": 0, "kind": kind, "seq": 0, "chunk": 0}
            rows.append(row | {"microbatch": 0, "start": at, "duration": seconds})
            at += seconds
    result = analyze(trace_of(rows))
    assert result.simulated_s.mean() == pytest.approx(3.7)
    assert result.ideal_s.tolist() == pytest.approx([4, 4, 4])
    assert (result.m_w, result.m_w_paper, result.m_w_only) == (None, None, None)


def test_what_has_no_peers_is_not_judged():
    rows = make_rows(Spec(pp=2, microbatches=(3,), steps=1))
    notes = [w for w in analyze(trace_of(rows)).warnings if "not judged" in w]
    assert len(notes) == 1
    for label in ("forward-pp-comm", "backward-pp-comm", "optimizer-clip-main-grad"):
        assert label in notes[0]
    assert "forward-compute" not in notes[0]


def test_a_doubtful_analysis_says_which_delays():
    spec = Spec(pp=1, microbatches=(2, 2), delays=False)
    rows = make_rows(spec)
    for row in rows:  # seconds of data loading before the first forward
        if row["kind"] != "params-all-gather":
            row["start"] += 5.0
    result = analyze(trace_of(rows))
    assert result.doubtful
    assert result.launch_delay.step_start > 2
    (note,) = [w for w in result.warnings if "doubtful" in w]
    assert "forward-compute +" in note
    assert "at the start of steps +" in note


def test_a_simulation_that_no_delay_explains_differs_from_the_trace():
    (note,) = delay_doubts(0.06, LaunchDelay({}, 1.0))
    assert note.text.startswith("the simulation differs from the trace by 6.0% of the step")


def test_a_kind_that_no_step_has_is_fine():
    rows = [row for row in make_rows(Spec()) if row["kind"] != "optimizer"]
    assert "optimizer" not in analyze(trace_of(rows)).by_kind


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("ideal", lambda row: False),
        ("measured", lambda row: True),
        ("only:kind=forward-pp-comm", lambda row: row["kind"] in ("forward-send", "forward-recv")),
        ("without:kind=backward-compute", lambda row: row["kind"] != "backward-compute"),
        ("only:stage=1", lambda row: row["pp"] == 1),
        ("without:stage=0", lambda row: row["pp"] != 0),
        ("only:replica=2", lambda row: row["dp"] == 2),
        ("without:replica=1", lambda row: row["dp"] != 1),
        ("only:worker=2,1", lambda row: (row["dp"], row["pp"]) == (2, 1)),
        ("without:worker=0,0", lambda row: (row["dp"], row["pp"]) != (0, 0)),
    ],
)
@pytest.mark.parametrize("counts", [(4, 4, 4), (4, 2, 6)], ids=["alike", "variants"])
def test_the_timeline_of_a_scenario_equals_the_oracle(text, measured, counts):
    rows = make_rows(Spec(pp=2, vpp=2, microbatches=counts, noops="random", overlapped=True))
    found = from_trace(trace_of(rows), keep_clocks=True)
    ideal = ideal_durations(found.durations)
    rules, rule_of_dp = rules_of(found.graph, found.durations, ideal, Scenario.parse(text))
    times = timeline(found.durations, rules, rule_of_dp=rule_of_dp).step_times()
    close(times, Oracle(rows, 2, 2).step_times(measured))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "only:",
        "only:stage=x",
        "only:stage",
        "but:stage=1",
        "only:kind=forward-send",
        "only:worker=1",
        "only:worker=1,2,3",
        "only:planet=1",
    ],
)
def test_scenarios_that_name_nothing_are_refused(text):
    with pytest.raises(ScenarioError):
        Scenario.parse(text)


@pytest.mark.parametrize(
    "text", ["only:stage=2", "only:stage=-1", "only:replica=9", "without:worker=0,2"]
)
def test_scenarios_that_name_absent_ranks_are_refused(text):
    found = from_trace(trace_of(make_rows(Spec())))
    ideal = ideal_durations(found.durations)
    with pytest.raises(ScenarioError, match="the job has no"):
        rules_of(found.graph, found.durations, ideal, Scenario.parse(text))


def test_progress_reports_every_lane_once():
    seen = []
    analyze(trace_of(make_rows(replace(Spec(), steps=3))), progress=lambda *at: seen.append(at))
    assert seen[-1][0] == seen[-1][1] > 0
    assert seen == sorted(seen)
