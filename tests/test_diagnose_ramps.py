"""Workers whose slowness grows or fades from step to step: named, and repaired in all steps."""

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.graph.computes import computes_of
from paceline.ramps import ramp_of
from paceline.remedies import Case
from paceline.remedies.replace import replace_worker
from paceline.results.words.evidence import evidence_phrases
from paceline.synth import SynthSpec, synthesize
from paceline.whatif import analyze

STEPS = 74
LINE = np.linspace(1.0, 1.9, STEPS)
SPECS = {
    "data-parallel": SynthSpec(dp=4, pp=1, microbatches=2, steps=STEPS, noise=0.04),
    "pipeline": SynthSpec(dp=4, pp=2, microbatches=6, steps=STEPS, noise=0.04),
}


def job_of(spec, *workers, kinds=(0, 1)):
    """Case of a job, and its mean step without the faults; workers are (dp, stage, factors)."""
    trace = synthesize(spec)
    healthy_s = float(analyze(from_trace(trace)).simulated_s.mean())
    measured = from_trace(trace)
    computes = computes_of(measured.graph)
    for dp, stage, factors in workers:
        for kind in kinds:
            ops = computes.ops[0][kind][computes.stage == stage].ravel()
            measured.durations.block(0)[ops, :, dp] *= factors
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result)), healthy_s


def worker_of(case):
    (found,) = (f for f in case.diagnosis.findings if f.cause == "worker")
    return found


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("kinds", [(0, 1), (1,)])
def test_a_worker_that_becomes_slower_step_by_step(name, kinds):
    case, healthy_s = job_of(SPECS[name], (1, 0, LINE), kinds=kinds)
    worker = worker_of(case)
    assert worker.where["workers"] == [[1, 0]]
    assert worker.text.startswith("worker dp 1, stage 0 becomes slower: ")
    assert worker.text.endswith(f"{worker.evidence['factors'][0]:.2f}x at step {STEPS - 1}")
    (first,), (last,) = worker.evidence["first_factors"], worker.evidence["factors"]
    seconds = (0.05, 0.1) if kinds == (0, 1) else (0.0, 0.1)
    assert first == pytest.approx(1.0, abs=0.03)
    assert last == pytest.approx(1 + 0.9 * sum(seconds) / 0.15, rel=0.03)
    simulated_s = float(case.result.simulated_s.mean())
    true_gain = 1 - healthy_s / simulated_s
    assert worker.cost_s.mean() / simulated_s == pytest.approx(true_gain, abs=0.015)
    assert replace_worker(case).gain == pytest.approx(true_gain, abs=0.015)
    # The change of the step times is the worker's.
    drifts = [f for f in case.diagnosis.findings if f.cause == "drift"]
    assert [f.part_of for f in drifts] == [worker.id]


def test_a_worker_that_recovers_along_a_ramp():
    factors = np.interp(np.arange(STEPS), [0, 50], [1.8, 1.0])
    case, healthy_s = job_of(SPECS["data-parallel"], (2, 0, factors))
    worker = worker_of(case)
    assert worker.text.startswith("worker dp 2, stage 0 recovers: 1.77x slow at step 0, 1.00x from")
    assert worker.evidence["healthy_since"] == pytest.approx(50, abs=4)
    true_gain = 1 - healthy_s / float(case.result.simulated_s.mean())
    assert replace_worker(case).gain == pytest.approx(true_gain, abs=0.015)


def test_two_workers_of_a_host_that_throttles_become_slower_together():
    case, healthy_s = job_of(SPECS["data-parallel"], (0, 0, LINE), (1, 0, LINE))
    worker = worker_of(case)
    assert sorted(worker.where["workers"]) == [[0, 0], [1, 0]]
    assert worker.text.startswith("2 workers become slower: the worst (dp ")
    true_gain = 1 - healthy_s / float(case.result.simulated_s.mean())
    assert replace_worker(case).gain == pytest.approx(true_gain, abs=0.02)


def test_a_ramp_from_the_middle_on_says_where_it_begins():
    factors = np.interp(np.arange(STEPS), [30, STEPS - 1], [1.0, 1.8])
    case, _ = job_of(SPECS["data-parallel"], (1, 0, factors))
    worker = worker_of(case)
    assert "slow until step " in worker.text
    assert worker.evidence["steps"][0] == pytest.approx(32, abs=4)


def test_the_words_say_both_ends_of_a_ramp():
    case, _ = job_of(SPECS["data-parallel"], (1, 0, LINE))
    worker = worker_of(case)
    (last,) = worker.evidence["factors"]
    said = evidence_phrases(worker)[0]
    assert said.startswith("it takes 1.0")
    assert said.endswith(f"as long as its peers at first, and {last:.2f} times at last")


@pytest.mark.parametrize("n", [20, 40, 150])
def test_jumps_periods_and_noise_are_no_ramps(n):
    rng = np.random.default_rng(n)
    step = np.arange(n)
    shapes = {
        "noise": np.ones(n),
        "jump": np.where(step < n // 3, 1.0, 1.5),
        "period": np.where((step > n // 3) & (step < 2 * n // 3), 1.4, 1.0),
    }
    for shape in shapes.values():
        assert not any(ramp_of(shape * rng.lognormal(0, 0.05, n)) for _ in range(100))


@pytest.mark.parametrize(("n", "last", "least"), [(40, 1.9, 100), (74, 1.3, 90), (150, 1.3, 100)])
def test_ramps_are_found_with_their_levels(n, last, least):
    rng = np.random.default_rng(n)
    line = np.linspace(1.0, last, n)
    ramps = [ramp_of(line * rng.lognormal(0, 0.05, n)) for _ in range(100)]
    found = [ramp for ramp in ramps if ramp is not None]
    assert len(found) >= least
    errors = [float(np.abs(ramp.fitted / line - 1).mean()) for ramp in found]
    assert np.median(errors) < 0.025


def test_a_pause_does_not_bend_a_ramp():
    times = np.linspace(1.0, 1.9, STEPS)
    times[[3, 30, 70]] = 20.0
    ramp = ramp_of(times)
    assert (ramp.before_s, ramp.after_s) == pytest.approx((1.0, 1.9), abs=0.03)
