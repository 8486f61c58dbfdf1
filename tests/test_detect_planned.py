"""Time of a step by its planned work: new stages, and work that differs from step to step."""

import json

import numpy as np
import pytest

import paceline
from paceline.detect.planned import Workloads

NONE = np.array([False])


def shares_of(first, second):
    """[even, odd] shares of a stage with twice the tokens, by its first samples."""
    loads, rows = Workloads(), []
    for step, value in enumerate([*first, *second]):
        tokens = 1 if step < len(first) else 2
        rows += loads.take(step, np.array([value]), NONE, 1.0, {"tokens": tokens})
    scales = {step: scale for step, _, scale in rows}
    last = len(first) + len(second) - 1
    return scales[last - last % 2], scales[last - 1 + last % 2]


def test_one_long_and_one_short_step_are_no_alternation():
    """A run of modded-nanogpt, milliseconds: the schedule changed a step before its times did."""
    even, odd = shares_of([34.0] * 40, [35, 63, 61, 83, 42, 69, 65, 65])
    assert even == odd == pytest.approx(63 / 34, rel=0.04)


def test_an_alternation_that_begins_with_the_stage():
    even, odd = shares_of([34.0, 35.0] * 20, [54, 61, 54, 62, 55, 61, 54, 61])
    assert even == pytest.approx(54 / 34, rel=0.04)
    assert odd == pytest.approx(61 / 35, rel=0.04)


def varying_job(share, *, slow=1.25, lengths=None):
    """(seconds, tokens) of 400 steps; steps 200 to 299 are slow."""
    random = np.random.default_rng(3)
    work = random.lognormal(0, 0.25, 400) if lengths is None else random.choice(lengths, 400)
    seconds = 10 * (1 - share + share * work) * (1 + 0.01 * random.standard_normal(400))
    seconds[200:300] *= slow
    return seconds, np.round(1e6 * work)


def events_of(seconds, tokens, detector=None):
    detector = detector or paceline.Detector(1)
    return [
        event
        for step, (x, work) in enumerate(zip(seconds, tokens, strict=True))
        for event in detector.update(step, [float(x)], workload={"tokens": float(work)})
    ]


@pytest.mark.parametrize("lengths", [None, [0.5, 0.75, 1.0, 1.5]])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 1.3])
def test_a_fail_slow_of_a_job_whose_work_varies(share, lengths):
    """As of batches of unpacked sequences: before, its factor was 1.09, and it did not end."""
    onset, relief = events_of(*varying_job(share, lengths=lengths))
    assert (onset.kind, relief.kind) == ("onset", "relief")
    assert onset.since_step == pytest.approx(200, abs=2)
    assert relief.since_step == pytest.approx(300, abs=2)
    assert onset.factor == pytest.approx(1.25, rel=0.03)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_healthy_job_whose_work_varies_has_no_event(share):
    assert events_of(*varying_job(share, slow=1.0)) == []


def test_two_works_that_alternate_are_stages():
    loads = Workloads()
    for step in range(60):
        loads.take(step, np.array([1.0 + step % 2]), NONE, 1.0, {"tokens": 1 + step % 2})
    assert loads.state()["varying"] is None


def test_work_that_ceases_to_vary_goes_on_at_its_level():
    """The job packs its sequences from step 200 on: the level is that of the model."""
    random = np.random.default_rng(4)
    work = np.concatenate([random.lognormal(0, 0.25, 200), np.ones(200)])
    seconds = 10 * (0.3 + 0.7 * work) * (1 + 0.01 * random.standard_normal(400))
    assert events_of(seconds, 1e6 * work) == []
    seconds[300:] *= 1.2
    (onset,) = events_of(seconds, 1e6 * work)
    assert onset.factor == pytest.approx(1.2, rel=0.03)


def test_a_model_of_varying_work_is_kept():
    """A detector restored at any step goes on as the one that was saved."""
    seconds, tokens = varying_job(0.7)
    rows, loads = [], Workloads()
    for step, (x, work) in enumerate(zip(seconds, tokens, strict=True)):
        rows += loads.take(step, np.array([x]), NONE, 1.0, {"tokens": work})
        if step in (5, 12, 40, 250):
            loads = Workloads.from_state(json.loads(json.dumps(loads.state())))
    whole, same = Workloads(), []
    for step, (x, work) in enumerate(zip(seconds, tokens, strict=True)):
        same += whole.take(step, np.array([x]), NONE, 1.0, {"tokens": work})
    assert [(step, scale) for step, _, scale in rows] == [(s, scale) for s, _, scale in same]


def test_steps_without_a_time_or_a_known_work_do_not_harm():
    loads = Workloads()
    for step in range(40):
        tokens = {"tokens": float(step % 7 + 1)} if step % 5 else {"batch": 2.0}
        x = np.array([np.nan if step % 4 == 0 else 1.0 + 0.1 * (step % 7)])
        loads.take(step, x, np.isnan(x), 1.0, tokens)
    assert all(scale > 0 for _, _, scale in loads.take(41, np.array([1.0]), NONE, 1.0, {"x": 0.0}))
