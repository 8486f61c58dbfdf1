from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose import diagnose, forward_backward_correlation, waterfall
from paceline.diagnose.drift import _mann_kendall
from paceline.diagnose.fit import fit_computes, pauses
from paceline.diagnose.healthy_ideal import HARDWARE
from paceline.diagnose.remove import Effect, without
from paceline.diagnose.shares import Savings
from paceline.graph import from_trace
from paceline.synth import SlowLink, SlowNic, SlowWorker, SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.whatif import analyze

JOB = SynthSpec(dp=8, pp=4, microbatches=12, steps=8, noise=0.01)


def diagnosed(spec):
    measured = from_trace(synthesize(spec))
    result = analyze(measured)
    return measured, result, diagnose(measured, result)


def causes(diagnosis):
    return [f.cause for f in diagnosis.findings if f.cause != "unexplained"]


def test_a_healthy_job_has_no_findings():
    _, result, diagnosis = diagnosed(JOB)
    assert result.healthy
    assert diagnosis.findings == ()
    low, high = diagnosis.slowdown_interval
    assert low <= result.slowdown <= high


@pytest.mark.parametrize(
    ("change", "cause", "where"),
    [
        ({"slow_workers": (SlowWorker(3, 1, 1.5),)}, "worker", {"workers": [[3, 1]]}),
        ({"slow_last_stage": (2.0, 1.5)}, "stage-imbalance", {"stage": 3}),
        ({"sequence_imbalance": 0.3}, "sequence-length", {}),
        ({"gc_pauses": (0.01, 0.3)}, "gc", None),
        ({"slow_links": (SlowLink(2, 1, 60.0),)}, "link", {"link": [[2, 1], [2, 2]]}),
        (
            {"slow_nics": (SlowNic(1, 0, 20.0, 0.5),)},
            "dp-network",
            {"group": {"stage": 0, "kind": "grads-reduce-scatter"}},
        ),
    ],
)
def test_one_cause_is_named_placed_and_explains_the_loss(change, cause, where):
    _, result, diagnosis = diagnosed(replace(JOB, **change))
    finding = diagnosis.findings[0]
    assert finding.cause == cause
    assert finding.share > 0.7
    assert finding.confidence > 0.9
    assert finding.interval[0] <= finding.share <= finding.interval[1]
    if where is not None:
        assert finding.where == where
    healthy = diagnosis.healthy
    assert (healthy is not None) == (cause in HARDWARE)
    ideal_s = result.ideal_s if healthy is None else healthy.step_s
    gap = float((result.simulated_s - ideal_s).mean())
    assert finding.share_of_step == pytest.approx(finding.share * gap / result.traced_s.mean())


def slow_worker_job(dp, factor):
    """The analysis and diagnosis of ``dp`` replicas, one slow, and the analysis if none is."""
    spec = replace(JOB, dp=dp, pp=1, noise=0.003)
    slow = diagnosed(replace(spec, slow_workers=(SlowWorker(1, 0, factor),)))
    healthy = analyze(from_trace(synthesize(spec)))
    return *slow[1:], healthy


@pytest.mark.parametrize("dp", [2, 3, 4])
@pytest.mark.parametrize("factor", [1.1, 2.0])
def test_among_few_replicas_the_ideal_without_the_slow_one_is_that_of_the_healthy_job(dp, factor):
    result, diagnosis, sound = slow_worker_job(dp, factor)
    healthy_s = float(sound.ideal_s.mean())
    # The paper's ideal is a mean that includes the slow replica.
    too_long = 1 + (factor - 1) / dp
    assert float(result.ideal_s.mean()) == pytest.approx(healthy_s * too_long, rel=0.02)
    assert float(diagnosis.healthy.step_s.mean()) == pytest.approx(healthy_s, rel=0.003)
    # One cause has one number: the cost of the slowness is what a healthy worker would save.
    saved = 1 - sound.simulated_s.mean() / result.simulated_s.mean()
    assert diagnosis.findings[0].share_of_step == pytest.approx(saved, abs=0.003)
    assert diagnosis.findings[0].share == pytest.approx(1, abs=0.05)
    assert sum(finding.share for finding in diagnosis.findings) == pytest.approx(1)


def test_of_two_links_the_ideal_is_that_of_the_healthy_one():
    spec = replace(JOB, dp=2, pp=2, noise=0.003)
    _, result, diagnosis = diagnosed(replace(spec, slow_links=(SlowLink(1, 0, 60.0),)))
    healthy = analyze(from_trace(synthesize(spec)))
    assert diagnosis.findings[0].evidence["median_over_usual"] == pytest.approx(60, rel=0.02)
    assert float(diagnosis.healthy.step_s.mean()) == pytest.approx(healthy.ideal_s.mean(), rel=0.01)
    assert result.ideal_s.mean() > 1.05 * healthy.ideal_s.mean()


def test_shares_and_unexplained_sum_to_one():
    spec = replace(
        JOB,
        slow_workers=(SlowWorker(3, 1, 1.4),),
        slow_last_stage=(1.5, 1.3),
        sequence_imbalance=0.3,
    )
    _, _, diagnosis = diagnosed(spec)
    assert {"worker", "stage-imbalance", "sequence-length"} <= set(causes(diagnosis))
    assert "unexplained" in [f.cause for f in diagnosis.findings]
    shares = [f.share for f in diagnosis.findings if f.share is not None]
    assert sum(shares) == pytest.approx(1.0, abs=1e-9)
    assert shares == sorted(shares, reverse=True)


def test_a_slow_replica_is_workers_of_one_dp_rank():
    slow = tuple(SlowWorker(2, pp, 1.3) for pp in range(4))
    _, _, diagnosis = diagnosed(replace(JOB, slow_workers=slow, sequence_imbalance=0.05))
    finding = diagnosis.findings[0]
    assert finding.cause == "worker"
    assert sorted(finding.where["workers"]) == [[2, 0], [2, 1], [2, 2], [2, 3]]
    assert finding.evidence["pattern"] == "all of one dp rank"
    np.testing.assert_allclose(finding.evidence["factors"], 1.3, rtol=0.02)


def test_a_worker_that_is_slow_in_some_steps_only():
    trace = synthesize(replace(JOB, steps=10))
    slowed = synthesize(replace(JOB, steps=10, slow_workers=(SlowWorker(5, 2, 1.6),)))
    first = trace.lane_rows()[7, 0]  # steps 0 to 6 are healthy, 7 to 9 are not
    for name in ("start", "end"):
        getattr(trace, name)[first:] = getattr(slowed, name)[first:]
    measured = from_trace(trace)
    finding = diagnose(measured, analyze(measured)).findings[0]
    assert finding.cause == "worker"
    assert finding.where["workers"] == [[5, 2]]
    assert finding.evidence["steps"] == [7, 8, 9]
    assert finding.evidence["factors"] == pytest.approx([1.6], rel=0.03)
    assert "in 3 of 10 steps (7, 8, 9)" in finding.text


def test_launch_delays_lie_outside_s():
    _, result, diagnosis = diagnosed(replace(JOB, launch_delay=(0.3, 1.0)))
    assert result.healthy
    (finding,) = diagnosis.findings
    assert finding.cause == "launch-delay"
    assert finding.share is None
    lost = 1 - 1 / result.launch_slowdown
    assert finding.share_of_step == pytest.approx(lost)
    assert "start of steps" in finding.text


def test_drift_is_a_trend_not_noise():
    trace = synthesize(replace(JOB, steps=16))
    first = np.append(trace.lane_rows()[:, 0], len(trace))
    for step in range(16):
        rows = slice(first[step], first[step + 1])
        trace.start[rows] *= 1 + 0.01 * step
        trace.end[rows] *= 1 + 0.01 * step
    measured = from_trace(trace)
    findings = {f.cause: f for f in diagnose(measured, analyze(measured)).findings}
    assert findings["drift"].evidence["change"] == pytest.approx(0.15, abs=0.01)
    assert findings["drift"].share is None
    assert findings["drift"].share_of_step == pytest.approx(0.07, abs=0.01)


def test_a_jump_inside_the_trace_is_a_change_point():
    trace = synthesize(replace(JOB, steps=20))
    first = np.append(trace.lane_rows()[:, 0], len(trace))
    for name in ("start", "end"):
        getattr(trace, name)[first[12] :] *= 1.2
    measured = from_trace(trace)
    (finding,) = diagnose(measured, analyze(measured)).findings
    assert (finding.id, finding.cause) == ("change-point", "drift")
    assert finding.evidence["step"] == 12
    assert finding.evidence["change"] == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("stretched", ["all", "end of the step"])
def test_a_few_steps_unlike_the_others_are_named(stretched):
    trace = synthesize(replace(JOB, steps=20))
    first = np.append(trace.lane_rows()[:, 0], len(trace))
    for step in (0, 11):
        rows = slice(first[step], first[step + 1])
        if stretched == "all":
            trace.start[rows] *= 1.5
            trace.end[rows] *= 1.5
        else:  # a checkpoint before the optimizer
            late = np.flatnonzero(trace.kind[rows] == OpKind.OPTIMIZER) + first[step]
            trace.start[late] += 3.0
            trace.end[late] += 3.0
    measured = from_trace(trace)
    findings = {f.id: f for f in diagnose(measured, analyze(measured)).findings}
    assert findings["odd-steps"].evidence["steps"] == [0, 11]
    word = "compute longer" if stretched == "all" else "wait"
    assert word in findings["odd-steps"].text


def test_at_one_replica_stage_and_worker_cannot_be_told_apart():
    spec = replace(JOB, dp=1, slow_workers=(SlowWorker(0, 2, 1.5),))
    _, _, diagnosis = diagnosed(spec)
    assert diagnosis.findings[0].cause == "stage-imbalance"
    assert diagnosis.findings[0].where == {"stage": 2}
    assert diagnosis.findings[0].ambiguous


def test_at_one_stage_one_flaky_replica_is_no_sequence_imbalance():
    # Only one of eight replicas varies, forward and backward alike: no packing does that.
    trace = synthesize(replace(JOB, pp=1))
    varied = synthesize(replace(JOB, pp=1, sequence_imbalance=0.4))
    rows, counts = trace.lane_rows(), trace.counts.sum(axis=(2, 3))
    for step in range(trace.n_steps):
        part = slice(rows[step, 3], rows[step, 3] + counts[step, 3])
        trace.start[part], trace.end[part] = varied.start[part], varied.end[part]
    measured = from_trace(trace)
    assert "sequence-length" not in causes(diagnose(measured, analyze(measured)))


def test_hosts_are_named():
    measured = from_trace(synthesize(replace(JOB, slow_workers=(SlowWorker(3, 1, 1.5),))))
    hosts = {(3, 1): ("node7", "5"), (0, 0): ("node0", "0")}
    finding = diagnose(measured, analyze(measured), hosts).findings[0]
    assert finding.text.endswith("(node7, GPU 5)")
    assert finding.where["hosts"] == ["node7"]


def test_replicas_of_several_structures():
    spec = replace(JOB, dp=4, microbatches=(12, 16, 8, 12), slow_workers=(SlowWorker(1, 2, 1.5),))
    _, _, diagnosis = diagnosed(spec)
    worker = next(f for f in diagnosis.findings if f.cause == "worker")
    assert worker.where["workers"] == [[1, 2]]


def test_the_fit_recovers_the_factors():
    spec = replace(
        JOB,
        noise=0.005,
        slow_workers=(SlowWorker(3, 1, 1.5),),
        slow_last_stage=(1.8, 1.4),
        sequence_imbalance=0.3,
        gc_pauses=(0.01, 0.3),
    )
    measured = from_trace(synthesize(spec))
    fit = fit_computes(measured.durations)
    worker = np.exp(fit.worker_total)
    np.testing.assert_allclose(worker[:, 1, 3], 1.5, rtol=0.01)
    worker[:, 1, 3] = 1.0
    np.testing.assert_allclose(worker, 1.0, atol=0.01)
    place = np.exp(fit.place)
    np.testing.assert_allclose(place[:, 3] / place[:, 0], [1.8, 1.4], rtol=0.02)
    assert fit.variants[0].micro.std() == pytest.approx(0.29, rel=0.15)
    np.testing.assert_allclose(fit.slope, 1.0, atol=0.02)
    forward = pauses(measured.durations, fit, 0)[0]
    truth = next(c for c in synthesize(spec).truth["causes"] if c["cause"] == "gc-pauses")
    assert (forward > 0).sum() == pytest.approx(truth["pauses"], rel=0.02)
    assert np.median(forward[forward > 0]) == pytest.approx(0.3, rel=0.02)
    assert not (pauses(measured.durations, fit, 1)[0] > 0).any()


def test_the_waterfall_telescopes():
    spec = replace(JOB, slow_workers=(SlowWorker(3, 1, 1.5),), launch_delay=(0.2, 0.5))
    measured, result, diagnosis = diagnosed(spec)
    fall = waterfall(measured, result, diagnosis.findings, diagnosis.healthy)
    assert [drop.name for drop in fall.drops] == [
        "launch-delay",
        "worker",
        "unexplained",
        "p2p",
        "collectives",
        "bubble",
    ]
    left = fall.actual_s - sum(drop.seconds for drop in fall.drops)
    assert left == pytest.approx(fall.compute_s, rel=1e-12)
    assert fall.actual_s == pytest.approx(result.traced_s.mean())
    # 12 microbatches of 0.06 + 0.12 s on a healthy worker
    assert fall.compute_s == pytest.approx(12 * 0.18, rel=0.003)
    # 1F1B idles for (stages - 1) / microbatches of the compute
    bubble = fall.drops[-1].seconds
    assert bubble == pytest.approx(fall.compute_s * 3 / 12, rel=0.01)


def test_shapley_values_from_sampled_orders_agree_with_the_exact_ones(monkeypatch):
    spec = replace(
        JOB, dp=4, steps=2, slow_workers=(SlowWorker(1, 1, 1.5),), sequence_imbalance=0.3
    )
    measured = from_trace(synthesize(spec))
    fit = fit_computes(measured.durations)
    micro = fit.variants[0].micro
    worker = fit.worker_total[:, fit.stage_of_place][:, :, None, None, :]
    place = (fit.place - fit.place.mean())[:, :, None, None, None]
    effects = [Effect(factor=(f,)) for f in (worker, micro, place)]
    savings = Savings(measured.durations, fit, effects)
    exact, zero = savings.shapley([0, 1, 2])
    assert not zero.any()
    monkeypatch.setattr("paceline.diagnose.shares.EXACT_UP_TO", 2)
    monkeypatch.setattr("paceline.diagnose.shares.ORDERS", 200)
    sampled, error = savings.shapley([0, 1, 2])
    assert (np.abs((sampled - exact).mean(axis=1)) <= 4 * error + 1e-9).all()
    everything = frozenset({0, 1, 2})
    saved = savings.step_s(frozenset()) - savings.step_s(everything)
    np.testing.assert_allclose(exact.sum(axis=0), saved, rtol=1e-9)


def test_removing_a_factor_keeps_the_total_work():
    spec = replace(JOB, slow_workers=(SlowWorker(3, 1, 2.0),))
    measured = from_trace(synthesize(spec))
    fit = fit_computes(measured.durations)
    worker = fit.worker_total[:, fit.stage_of_place][:, :, None, None, :]
    savings = Savings(measured.durations, fit, [Effect(factor=(worker,))])
    assert (savings.step_s(frozenset({0})) < savings.step_s(frozenset())).all()
    changed = without(measured.durations, fit, [Effect(factor=(worker,))])
    computes = measured.graph.kind <= 1
    for kind in (0, 1):
        rows = computes & (measured.graph.kind == kind)
        before, after = (d.array[rows].sum() for d in (measured.durations, changed))
        assert after == pytest.approx(before, rel=1e-12)
    assert (changed.array[~computes] == measured.durations.array[~computes]).all()


def test_mann_kendall_knows_its_chance():
    rng = np.random.default_rng(0)
    rejected = np.mean([_mann_kendall(rng.random(20)) < 0.05 for _ in range(400)])
    assert 0.02 < rejected < 0.08
    assert _mann_kendall(np.arange(20.0)) < 1e-6


@pytest.mark.parametrize("pp", [2, 4])
def test_one_slow_worker_of_two_replicas_is_no_slow_stage(pp):
    job = SynthSpec(dp=2, pp=pp, microbatches=8, steps=6, noise=0.015, seed=991)
    _, _, diagnosis = diagnosed(replace(job, slow_workers=(SlowWorker(1, 1, 1.6),)))
    assert causes(diagnosis) == ["worker"]
    worker = diagnosis.findings[0]
    assert worker.where == {"workers": [[1, 1]]}
    assert worker.evidence["factors"] == pytest.approx([1.6], rel=0.02)


def test_a_slow_stage_of_two_replicas_is_no_slow_worker():
    job = SynthSpec(dp=2, pp=4, microbatches=8, steps=6, noise=0.015, seed=992)
    _, _, diagnosis = diagnosed(replace(job, slow_last_stage=(1.7, 1.5)))
    assert causes(diagnosis) == ["stage-imbalance"]


@pytest.mark.parametrize("pp", [1, 4])
def test_forward_and_backward_vary_alike_only_with_the_sequences(pp):
    job = replace(JOB, pp=pp, noise=0.02)

    def correlation(**change):
        measured = from_trace(synthesize(replace(job, **change)))
        return forward_backward_correlation(measured.durations)

    assert correlation(sequence_imbalance=0.3) > 0.9
    assert abs(correlation(slow_workers=(SlowWorker(3, 0, 1.5),))) < 0.3


def test_a_stage_long_in_backwards_only_is_no_embedding():
    """Recomputed activations lengthen backwards; an embedding or a loss layer forwards, too."""
    for factors, said in (((1.0, 1.33), "recomputed"), ((1.2, 1.2), "embedding")):
        spec = replace(JOB, stage_factors=(factors, (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)))
        finding = diagnosed(spec)[2].findings[0]
        assert finding.where == {"stage": 0}
        assert said in finding.text


def test_lengths_that_lie_close_by_chance_make_no_slow_worker():
    """One microbatch a step: of 16 replicas some show ten lengths that hardly differ."""
    spec = replace(JOB, dp=16, pp=1, microbatches=1, steps=10, sequence_imbalance=0.3)
    accused = [
        seed for seed in range(20) if "worker" in causes(diagnosed(replace(spec, seed=seed))[2])
    ]
    assert accused == []
    slow = replace(spec, sequence_imbalance=0.1, steps=20, slow_workers=(SlowWorker(3, 0, 1.4),))
    assert "worker" in causes(diagnosed(slow)[2])
