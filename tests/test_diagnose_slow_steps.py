"""Whose computes make some steps longer: at one stage, with few microbatches.

First met in a recording of torch 2.13: FSDP2 on two gloo ranks, one of which sleeps longer from a
step on.
"""

from dataclasses import replace

import numpy as np
import pytest

from paceline import analyze
from paceline.diagnose import diagnose
from paceline.diagnose.slow_steps import of_changing_workers
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case
from paceline.remedies.advise import advise
from paceline.report.terminal import screen
from paceline.results.document import JobReport
from paceline.results.headline import headline
from paceline.synth import Layers, SlowWorker, SynthSpec, synthesize

JOB = SynthSpec(dp=4, pp=1, microbatches=1, steps=20, layers=Layers(4, fsdp=True), noise=0.02)


def mixed(slow_steps, workers, factor=1.6):
    """The job, slow on some replicas in some steps."""
    trace = synthesize(JOB)
    slowed = synthesize(replace(JOB, slow_workers=tuple(SlowWorker(w, 0, factor) for w in workers)))
    first = [*trace.lane_rows()[:, 0], len(trace)]
    for step in slow_steps:
        rows = slice(first[step], first[step + 1])
        for name in ("start", "end"):
            getattr(trace, name)[rows] = getattr(slowed, name)[rows]
    measured = from_trace(trace)
    result = analyze(measured)
    return measured, result, diagnose(measured, result)


def over_time(diagnosis):
    (finding,) = [f for f in diagnosis.findings if f.cause == "drift"]
    return finding


@pytest.mark.parametrize(
    ("steps", "name"), [((3, 7, 8, 12, 15, 19), "two-modes"), (range(13, 20), "change-point")]
)
def test_the_worker_that_computes_longer_in_some_steps_is_named(steps, name):
    _, _, diagnosis = mixed(steps, [2])
    finding = over_time(diagnosis)
    assert finding.id == name
    assert finding.where == {"workers": [[2, 0]]}
    assert finding.evidence["compute_then_over_else"] == pytest.approx(1.6, rel=0.03)
    assert finding.evidence["others_then_over_else"] == pytest.approx(1.0, abs=0.05)
    assert "; worker dp 2, stage 0 computes 1." in finding.text
    assert finding.ambiguous == ("the worker may have more work in these steps (longer sequences)")


def test_a_worker_that_is_slow_in_half_of_the_steps_is_named():
    """Its typical step tells nothing then, so no cause inside S is known."""
    _, result, diagnosis = mixed((1, 3, 5, 8, 9, 11, 12, 15, 18, 19), [2])
    assert result.straggling
    assert {f.cause for f in diagnosis.findings} == {"unexplained", "drift"}
    finding = over_time(diagnosis)
    assert finding.id == "two-modes"
    assert finding.where == {"workers": [[2, 0]]}
    assert finding.confidence > 0.9


def test_nobody_is_named_where_several_compute_longer():
    _, _, diagnosis = mixed((3, 7, 8, 12, 15, 19), [0, 1, 2, 3])
    finding = over_time(diagnosis)
    assert finding.where == {}
    assert "computes" not in finding.text
    assert "all workers are slow at once" in finding.ambiguous


def test_two_of_four_are_no_single_worker():
    _, _, diagnosis = mixed((3, 7, 8, 12, 15, 19), [1, 2])
    assert over_time(diagnosis).where == {}


def test_headline_and_terminal_say_what_lasts_not_what_passes():
    """S is 1.1 over all steps; the typical step has nothing of it."""
    measured, result, diagnosis = mixed((3, 7, 8, 12, 15, 19), [2])
    assert result.slowdown > 1.08
    report = JobReport.of(result, advise(Case(measured, result, diagnosis), REMEDIES))
    text = " ".join(line.plain for line in screen(report, 120, colour=False))
    assert "Lasting stragglers cost little (0." in text
    assert "worker dp 2, stage 0 computes longer in 6 of 20 steps" in headline(report)


@pytest.mark.parametrize(("steps", "said"), [(9, True), (10, False)])
def test_few_steps_are_said_and_no_straggler_is_blamed_where_nothing_repeats(steps, said):
    """Jitter of 40% in a job whose workers are all alike."""
    measured = from_trace(synthesize(replace(JOB, steps=steps, noise=0.4)))
    result = analyze(measured)
    assert ("few-steps" in {doubt.code for doubt in result.doubts}) == said
    diagnosis = diagnose(measured, result)
    report = JobReport.of(result, advise(Case(measured, result, diagnosis), REMEDIES))
    text = " ".join(line.plain for line in screen(report, 120, colour=False))
    assert result.straggling
    assert ("but no straggler shows in 9 steps" in text) == said
    assert ("Stragglers make steps" in text) != said
    assert ("only 9 steps analysed" in text) == said


def test_few_steps_of_whole_passes_are_not_said():
    """S of these is no median; how sure findings are is in their confidence."""
    result = analyze(from_trace(synthesize(SynthSpec(dp=2, pp=2, microbatches=4, steps=3))))
    assert "few-steps" not in {doubt.code for doubt in result.doubts}


def test_a_slow_worker_of_steps_that_are_long_for_all_in_turn():
    """Every second step has three times the work, as with gradients that are gathered up."""
    spec = SynthSpec(dp=4, pp=1, microbatches=1, steps=6, noise=0.02)
    trace = synthesize(replace(spec, slow_workers=(SlowWorker(1, 0, 2.0),)))
    factor = np.where(trace.step % 2 == 0, 1.0, 3.0)
    measured = from_trace(replace(trace, start=trace.start * factor, end=trace.end * factor))
    (worker, *_) = diagnose(measured, analyze(measured)).findings
    assert (worker.cause, worker.where) == ("worker", {"workers": [[1, 0]]})
    assert worker.evidence["factors"][0] == pytest.approx(2.0, abs=0.1)
    assert worker.confidence > 0.9


def turns(order, dp=2, steps=20, pp=1):
    """Step -> the worker of stage 0 that computes 1.6x as long in it."""
    base = SynthSpec(dp=dp, pp=pp, microbatches=8, steps=steps, noise=0.002)
    trace = synthesize(base)
    first = np.append(0, np.cumsum(trace.counts.sum(axis=(1, 2, 3))))
    for step, worker in order.items():
        slowed = synthesize(replace(base, slow_workers=(SlowWorker(worker, 0, 1.6),)))
        rows = slice(first[step], first[step + 1])
        for name in ("start", "end"):
            getattr(trace, name)[rows] = getattr(slowed, name)[rows]
    measured = from_trace(trace)
    result = analyze(measured)
    return measured, result, diagnose(measured, result)


def test_steps_that_wait_for_one_worker_or_another_are_no_second_length():
    """Pauses that fall on two workers in turn make long steps by chance."""
    measured, result, diagnosis = turns({3: 0, 8: 1, 12: 0, 16: 1}, dp=4)
    modes = result.step_modes
    assert modes.slow.sum() == 4
    longer_s = float(np.median(result.traced_s[modes.slow]) - np.median(result.traced_s))
    assert of_changing_workers(measured.durations, modes.slow, longer_s)
    assert [f.id for f in diagnosis.findings if f.cause == "drift"] == []
    measured, result, _ = mixed((3, 7, 8, 12, 15, 19), [0, 1, 2, 3])
    assert not of_changing_workers(measured.durations, result.step_modes.slow, longer_s)


@pytest.mark.parametrize("steps", [(3, 7, 8, 12, 15), (3, 7, 8, 12, 15, 19)])
def test_long_steps_of_one_worker_may_be_chance(steps):
    """Pauses of five steps fall on the same of four workers in one of 256 jobs."""
    _, _, diagnosis = mixed(steps, [2])
    finding = over_time(diagnosis)
    chance = 4 * 0.25 ** len(steps)
    assert finding.where == {"workers": [[2, 0]]}
    assert finding.evidence["p_value_worker"] == pytest.approx(chance)
    assert finding.confidence <= 1 - chance
