"""What changed from one trace to another: unlike jobs, fixes that worked, and ones that did not."""

from dataclasses import replace

import numpy as np
import pytest

import paceline
from jobs import Spec, make_rows, trace_of
from paceline.comparison import Comparison, check_alike
from paceline.comparison.analysis import compare
from paceline.comparison.parts import DELAY_AT_START
from paceline.diagnose import diagnose
from paceline.errors import ComparisonError
from paceline.graph import from_trace
from paceline.remedies import Case
from paceline.sources import load
from paceline.synth import SlowNic, SlowWorker, SynthSpec, synthesize
from paceline.trace import Job, OpKind
from paceline.whatif import analyze

BASE = SynthSpec(dp=4, pp=3, microbatches=6, steps=8)
SLOW = replace(BASE, slow_workers=(SlowWorker(3, 1, 1.5),))


def synth(spec: SynthSpec = BASE, **changes: object) -> paceline.Trace:
    return synthesize(replace(spec, **changes))


def case_of(trace: paceline.Trace, layers: tuple[int, ...] | None = None) -> Case:
    measured = from_trace(trace)
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result), layers)


def sums(comparison: Comparison) -> dict[str, float]:
    """What the changes of each table that adds up add up to."""
    tables = {name: getattr(comparison, name) for name in ("causes", "kinds", "stages")}
    return {name: sum(row.change.seconds for row in rows) for name, rows in tables.items()}


def unlike(before: paceline.Trace, after: paceline.Trace) -> dict[str, tuple[str, str]]:
    with pytest.raises(ComparisonError) as caught:
        compare(before, after)
    return {what: (one, other) for what, one, other in caught.value.disagreements}


def test_a_slow_worker_that_was_replaced_is_named_in_every_table() -> None:
    comparison = compare(synth(SLOW), synth(seed=1))
    assert comparison.verdict == "shorter"
    change = comparison.time.after_s - comparison.time.before_s
    assert sums(comparison) == pytest.approx(dict.fromkeys(("causes", "kinds", "stages"), change))
    cause = comparison.causes[0]
    assert (cause.name, cause.after_s, cause.change.clear) == ("worker", 0.0, True)
    assert [row.name for row in comparison.kinds[:2]] == ["backward-compute", "forward-compute"]
    assert [row.change.clear for row in comparison.stages] == [False, True, False]
    assert comparison.stages[1].change.seconds == pytest.approx(change, rel=0.02)
    worker = comparison.workers[0]
    assert (worker.dp, worker.pp, worker.change.clear) == (3, 1, True)
    assert worker.slowdown[0] > 1.15 > 1.01 > worker.slowdown[1]
    assert not any(row.change.clear for row in comparison.workers[1:])


def test_what_all_workers_gain_is_compute_and_of_no_worker() -> None:
    faster = {**BASE.base_s, OpKind.FORWARD_COMPUTE: 0.048, OpKind.BACKWARD_COMPUTE: 0.096}
    comparison = compare(synth(), synth(seed=1, base_s=faster))
    assert comparison.time.change == pytest.approx(-0.19, abs=0.02)
    assert comparison.causes[0].name == "compute"
    assert not any(row.change.clear for row in comparison.workers)
    assert all(row.change.clear for row in comparison.stages)
    forward = next(row for row in comparison.kinds if row.name == "forward-compute")
    assert forward.mean_s == pytest.approx((0.060, 0.048), rel=0.01)


def test_a_slow_network_shows_in_its_kind() -> None:
    slow = {**BASE.base_s, OpKind.GRADS_REDUCE_SCATTER: 0.4}
    comparison = compare(synth(), synth(seed=1, base_s=slow))
    row = comparison.kinds[0]
    assert (row.name, row.change.clear) == ("grads-reduce-scatter", True)
    assert row.change.seconds == pytest.approx(0.36, rel=0.05)
    assert row.mean_s == pytest.approx((0.040, 0.4), rel=0.02)
    assert comparison.causes[0].name == "collectives"
    assert comparison.verdict == "longer"


def test_late_data_show_as_launch_delays_at_the_start() -> None:
    comparison = compare(synth(launch_delay=(0.5, 1.0)), synth(seed=1))
    row = comparison.kinds[0]
    assert (row.name, row.change.clear) == (DELAY_AT_START, True)
    assert row.change.seconds == pytest.approx(-0.5, rel=0.05)
    assert comparison.causes[0].name == "launch-delay"


def test_a_flapping_nic_is_as_sure_as_its_steps_allow() -> None:
    flapping = replace(BASE, steps=10, slow_nics=(SlowNic(2, 0, 30.0, 0.4),))
    comparison = compare(synth(flapping), synth(steps=10, seed=1))
    low, high = comparison.time.interval
    assert high - low > 0.1
    assert comparison.odd_steps[0]
    assert comparison.odd_steps[1] == ()


@pytest.mark.parametrize("seed", range(6))
def test_two_runs_of_one_job_show_no_difference(seed) -> None:
    noisy = replace(BASE, steps=10, noise=0.03, sequence_imbalance=0.1)
    comparison = compare(synth(noisy, seed=2 * seed), synth(noisy, seed=2 * seed + 1))
    assert comparison.verdict == "no-difference"
    for name in ("causes", "kinds", "stages", "workers"):
        assert not any(row.change.clear for row in getattr(comparison, name)), name


@pytest.mark.parametrize(
    ("name", "changed"),
    # In ST the clip of the gradients takes 14 ms up to step 288 and 5 ms from step 514 on.
    [("AR", set()), ("SE", set()), ("ST", {"optimizer-clip-main-grad"})],
)
def test_two_halves_of_a_real_job_show_no_difference(real_jobs, name, changed) -> None:
    trace = load(real_jobs / f"trace-{name}.parquet", real_jobs / f"meta-{name}.yaml")
    half = len(trace.steps) // 2
    sides = [
        trace.select_steps(steps.tolist()) for steps in (trace.steps[:half], trace.steps[half:])
    ]
    comparison = compare(*sides)
    assert comparison.verdict == "no-difference"
    assert comparison.median.verdict == "no-difference"
    change = comparison.time.after_s - comparison.time.before_s
    assert sums(comparison) == pytest.approx(dict.fromkeys(("causes", "kinds", "stages"), change))
    least = 0.001 * comparison.time.before_s
    clear = [
        row
        for table in ("causes", "kinds", "stages", "workers")
        for row in getattr(comparison, table)
        if row.change.clear and abs(row.change.seconds) >= least
    ]
    assert {row.name for row in clear} == changed


def test_a_real_trace_beside_itself_is_the_same(real_jobs) -> None:
    trace = load(real_jobs / "trace-AR.parquet", real_jobs / "meta-AR.yaml")
    comparison = compare(trace, trace)
    assert comparison.same_steps
    assert comparison.verdict == "no-difference"
    assert all(row.change.seconds == 0 for row in comparison.causes)


@pytest.mark.parametrize(
    ("changes", "what", "values"),
    [
        ({"dp": 2}, "dp", ("4", "2")),
        ({"pp": 2}, "pp", ("3", "2")),
        ({"tp": 2}, "tp", ("1", "2")),
        ({"vpp": 2}, "vpp", ("1", "2")),
        ({"microbatches": 12}, "microbatches", ("6 per replica", "12 per replica")),
        (
            {"microbatches": (6, 5, 7, 6)},
            "microbatches",
            ("6 per replica", "5 to 7 per replica, 24 in all"),
        ),
        (
            {"overlap": True},
            "kinds",
            ("without separate-grads-all-reduce", "with separate-grads-all-reduce"),
        ),
        (
            {"schedule": "gpipe"},
            "schedule",
            (
                "backward-compute of microbatch 0 is compute 3 of stage 0",
                "forward-compute of microbatch 3 is compute 3 of stage 0",
            ),
        ),
    ],
)
def test_unlike_jobs_are_refused_and_said_how(changes, what, values) -> None:
    after = synth(**changes)
    assert unlike(synth(), after)[what] == values
    comparison = compare(synth(), after, anyway=True)
    assert comparison.unit == ("microbatch" if what in ("dp", "microbatches") else "step")
    assert what in {row.what for row in comparison.disagreements}


def test_the_same_numbers_on_other_replicas_are_unlike() -> None:
    rows = unlike(synth(microbatches=(5, 7, 6, 6)), synth(microbatches=(7, 5, 6, 6)))
    assert rows == {
        "microbatches": (
            "5 to 7 per replica, 24 in all; 5 on dp 0",
            "5 to 7 per replica, 24 in all; 7 on dp 0",
        )
    }


def test_other_dependencies_of_the_same_operations_are_unlike() -> None:
    """Collectives that carry their chunk are ordered by it."""
    spec = Spec(pp=2, vpp=2, microbatches=(4, 4), steps=4)
    one, other = (make_rows(replace(spec, seed=seed)) for seed in (1, 2))
    for row in other:
        if row["kind"] in ("params-all-gather", "grads-reduce-scatter"):
            row["chunk"] = 1 - row["chunk"]
    assert set(unlike(trace_of(one), trace_of(other))) == {"dependencies"}


def test_layers_and_tokens_have_to_agree_where_they_are_known() -> None:
    one, other = case_of(synth(), (9, 9, 9)), case_of(synth(seed=1), (9, 9, 8))
    with pytest.raises(ComparisonError, match="layers: 27 before, 26 after"):
        compare(one, other)
    moved = case_of(synth(seed=1), (8, 10, 9))
    assert compare(one, moved).unit == "step"
    assert compare(one, synth(seed=1)).unit == "step"  # unknown on one side
    with pytest.raises(
        ComparisonError, match="tokens: 1,000 per step before, 1,020 per step after"
    ):
        compare(synth(), synth(seed=1), tokens_before=1000, tokens_after=1020)
    assert compare(synth(), synth(seed=1), tokens_before=1000, tokens_after=1009).unit == "step"
    with pytest.raises(ComparisonError, match="positive"):
        compare(synth(), synth(seed=1), tokens_before=0, tokens_after=1)


def test_check_alike_needs_no_analysis() -> None:
    one, other = from_trace(synth()), from_trace(synth(dp=2))
    check_alike(one, one)
    with pytest.raises(ComparisonError):
        check_alike(one, other)


def test_anyway_counts_microbatches_of_all_replicas_and_gpu_time() -> None:
    """Half the replicas with twice the microbatches each: as many microbatches in a step."""
    before, after = synth(), synth(dp=2, microbatches=12)
    comparison = compare(before, after, anyway=True)
    for side, trace in ((comparison.before, before), (comparison.after, after)):
        assert side.units_per_step == 24
        assert side.result.traced_s.mean() == pytest.approx(trace.traced_step_s().mean())
        assert side.simulated_s == pytest.approx(side.result.simulated_s.mean() / 24)
        assert side.simulated_s / side.ideal_s == pytest.approx(side.result.slowdown)
    assert comparison.time.before_s == pytest.approx(before.traced_step_s().mean() / 24)
    assert comparison.time.after_s == pytest.approx(after.traced_step_s().mean() / 24)
    gpu_time = comparison.gpu_time
    assert gpu_time.before_s == pytest.approx(12 * comparison.time.before_s)
    assert gpu_time.after_s == pytest.approx(6 * comparison.time.after_s)
    assert gpu_time.change == pytest.approx(gpu_time.after_s / gpu_time.before_s - 1)
    assert gpu_time.interval[0] < gpu_time.change < gpu_time.interval[1]
    change = comparison.time.after_s - comparison.time.before_s
    assert sum(row.change.seconds for row in comparison.causes) == pytest.approx(change)
    assert all(row.change is None for row in comparison.kinds)
    assert comparison.stages == comparison.workers == ()
    assert set(comparison.left_out) == {"kinds", "stages", "workers"}


def test_anyway_counts_tokens_where_both_are_known() -> None:
    before, after = synth(), synth(microbatches=12)
    comparison = compare(before, after, anyway=True, tokens_before=24_000, tokens_after=48_000)
    assert comparison.unit == "token"
    assert comparison.time.before_s == pytest.approx(before.traced_step_s().mean() / 24_000)
    assert comparison.time.after_s == pytest.approx(after.traced_step_s().mean() / 48_000)
    assert comparison.gpu_time is None
    assert comparison.workers != ()
    one_known = compare(before, after, anyway=True, tokens_before=24_000)
    assert one_known.unit == "microbatch"


def test_anyway_exchanges_durations_where_the_operations_agree() -> None:
    """Another degree of tensor parallelism, the same steps."""
    comparison = compare(synth(), synth(tp=2, seed=1), anyway=True)
    change = comparison.time.after_s - comparison.time.before_s
    assert sums(comparison) == pytest.approx(
        dict.fromkeys(("causes", "kinds", "stages"), change), abs=1e-9
    )
    assert comparison.gpu_time.change == pytest.approx(1.0, abs=0.01)
    assert not comparison.same_steps


def test_what_cannot_differ_is_not_looked_for() -> None:
    alike = compare(synth(), synth(seed=1), anyway=True)
    assert (alike.unit, alike.disagreements) == ("step", ())


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 8), (3, 8), (8, 2)])
def test_too_few_steps_have_no_interval_anywhere(n, m) -> None:
    comparison = compare(synth(SLOW, steps=n), synth(steps=m, seed=1))
    assert comparison.verdict == "unknown"
    assert comparison.time.interval is None
    assert comparison.time.change < -0.1
    for name in ("causes", "kinds", "stages", "workers"):
        rows = getattr(comparison, name)
        assert all(row.change.interval is None and not row.change.clear for row in rows), name
    assert comparison.causes[0].name == "worker"


def test_one_worker_has_no_peers_and_one_stage_no_others() -> None:
    comparison = compare(synth(dp=1, pp=1), synth(dp=1, pp=1, seed=1))
    assert comparison.verdict == "no-difference"
    assert comparison.workers == comparison.stages == comparison.hosts == ()
    assert set(comparison.left_out) == {"workers", "stages"}


def hosts(n_dp: int, n_pp: int, spare: str = "") -> dict[tuple[int, int], tuple[str, str]]:
    """A host per replica; the last replica on ``spare`` where it is given."""
    names = [f"node-{dp}" for dp in range(n_dp - 1)] + [spare or f"node-{n_dp - 1}"]
    return {(dp, pp): (names[dp], str(pp)) for dp in range(n_dp) for pp in range(n_pp)}


def test_hosts_are_compared_by_name_even_where_one_was_replaced() -> None:
    comparison = compare(
        synth(SLOW), synth(seed=1), hosts_before=hosts(4, 3), hosts_after=hosts(4, 3, "spare")
    )
    rows = {row.host: row for row in comparison.hosts}
    assert set(rows) == {"node-0", "node-1", "node-2", "node-3", "spare"}
    gone, new = rows["node-3"], rows["spare"]
    assert (gone.workers, gone.loss_s[1], gone.change.clear) == ((3, 0), None, True)
    assert gone.change.seconds == pytest.approx(-gone.loss_s[0])
    assert (new.workers, new.loss_s[0]) == ((0, 3), None)
    assert comparison.hosts[0] is gone
    assert not any(rows[name].change.clear for name in ("node-0", "node-1", "node-2"))
    assert comparison.workers[0].hosts == ("node-3, GPU 1", "spare, GPU 1")


def test_hosts_of_one_side_only_are_not_compared() -> None:
    comparison = compare(synth(), synth(seed=1), hosts_after=hosts(4, 3))
    assert comparison.hosts == ()
    assert comparison.left_out == {"hosts": "the hosts of BEFORE are not known"}


def test_a_cause_that_a_side_does_not_report_may_hide_below_the_threshold() -> None:
    """The healthy job reports none, so all of its loss may be of this cause."""
    comparison = compare(synth(SLOW), synth(seed=1))
    worker = comparison.causes[0]
    low, high = worker.change.interval
    loss = comparison.after.result
    unnoticed = float((loss.simulated_s - loss.ideal_s).mean())
    assert high - low > 2 * unnoticed


def test_one_odd_step_makes_the_mean_unsure_and_leaves_the_median() -> None:
    before, after = synth(steps=12), synth(steps=12, seed=1)
    rows = after.step == 7
    scale = np.where(rows, 10.0, 1.0)
    odd = replace(after, start=after.start * scale, end=after.end * scale)
    comparison = compare(before, odd)
    assert comparison.verdict == "no-difference"
    assert comparison.time.change > 0.5
    assert comparison.median.verdict == "no-difference"
    assert abs(comparison.median.change) < 0.01
    assert comparison.odd_steps == ((), (7,))


def test_traces_measured_and_cases_are_taken() -> None:
    before, after = synth(SLOW), synth(seed=1)
    expected = paceline.compare(before, after)
    measured = paceline.compare(from_trace(before), from_trace(after))
    cases = paceline.compare(case_of(before), case_of(after), names=("a", "b"))
    for comparison in (measured, cases):
        assert comparison.time == expected.time
        assert comparison.workers == expected.workers
        assert comparison.kinds == expected.kinds
    assert (cases.before.name, cases.after.name) == ("a", "b")
    assert isinstance(expected, paceline.Comparison)


def test_the_pieces_of_work_are_reported() -> None:
    seen: dict[str, list[tuple[int, int]]] = {}

    def progress(what: str):
        return lambda done, total: seen.setdefault(what, []).append((done, total))

    compare(synth(), synth(seed=1), progress=progress)
    assert set(seen) == {"simulating", "exchanging kinds", "exchanging stages"}
    assert all(done == total for done, total in (rows[-1] for rows in seen.values()))


def test_uneven_replicas_are_compared_too() -> None:
    uneven = replace(BASE, microbatches=(6, 4, 5, 6))
    comparison = compare(
        synth(uneven), synth(uneven, seed=1, slow_workers=(SlowWorker(0, 2, 1.4),))
    )
    assert comparison.verdict == "longer"
    worker = comparison.workers[0]
    assert (worker.dp, worker.pp) == (0, 2)
    change = comparison.time.after_s - comparison.time.before_s
    assert sums(comparison) == pytest.approx(dict.fromkeys(("causes", "kinds", "stages"), change))


def test_jobs_of_many_ranks() -> None:
    wide = SynthSpec(dp=32, pp=4, microbatches=4, steps=6)
    comparison = compare(synth(wide), synth(wide, seed=1, slow_workers=(SlowWorker(20, 2, 1.3),)))
    assert [(row.dp, row.pp) for row in comparison.workers if row.change.clear] == [(20, 2)]
    assert len(comparison.workers) == 128


def test_a_job_whose_name_is_another_is_the_same_job() -> None:
    trace = synth()
    named = replace(synth(seed=1), job=replace(trace.job, name="other"))
    assert isinstance(named.job, Job)
    assert compare(trace, named).disagreements == ()
