"""Levels that change again, what was planned, and what a person accepts."""

import math

import numpy as np
import pytest

from paceline import Detector
from paceline.detect import levels


def noise(steps, cov=0.01, seed=0):
    return np.random.default_rng(seed).normal(1.0, cov, steps)


def events_of(x, like=(), workload=None):
    detector = Detector(1, like=like)
    return [
        event
        for step, value in enumerate(x)
        for event in detector.update(step, [value], workload and workload(step))
    ]


def test_a_fail_slow_that_grows_and_heals_by_halves():
    x = noise(1000)
    x[300:700] *= 1.12
    x[400:500] *= 4 / 1.12
    told = [(e.kind, e.since_step, e.factor, e.before_factor) for e in events_of(x)]
    kinds = ("onset", "worsening", "partial-relief", "relief")
    assert [(kind, since) for kind, since, *_ in told] == [
        *zip(kinds, (300, 400, 500, 700), strict=True)
    ]
    assert [factor for *_, factor, _ in told[:3]] == pytest.approx([1.12, 4, 1.12], rel=0.03)
    assert [before for *_, before in told] == pytest.approx([1.12, 3.57, 0.28, 0.89], rel=0.03)


def test_a_ramp_is_an_onset_and_a_worsening_once_it_is_over():
    x = noise(1000)
    x[300:] *= np.interp(np.arange(700), [0, 60], [1, 1.7])
    events = events_of(x)
    assert [event.kind for event in events] == ["onset", "worsening"]
    assert events[1].factor == pytest.approx(1.7, rel=0.04)
    # The level before was refined by the ramp's first samples, so it is above the onset's.
    assert 1.3 < events[1].before_factor < events[1].factor / events[0].factor


def test_a_job_that_is_faster_for_good_has_a_new_healthy_level():
    x = noise(1000)
    x[300:] *= 0.7
    x[600:] *= 1.2
    faster, onset = events_of(x)
    assert (faster.kind, faster.since_step, onset.kind, onset.since_step) == (
        "faster", 300, "onset", 600,
    )  # fmt: skip
    assert (faster.factor, onset.factor) == pytest.approx((0.7, 1.2), rel=0.03)


@pytest.mark.parametrize("length", [8, 20, 45])
def test_a_short_faster_stretch_is_no_healthy_level(length):
    """The return to the old level is no fail-slow, and a later one is measured against that."""
    x = noise(1000)
    x[300 : 300 + length] *= 0.7
    x[700:800] *= 1.3
    faster, back, onset, relief = events_of(x)
    assert (faster.kind, back.kind, back.since_step) == ("faster", "relief", 300 + length)
    assert back.explain().endswith(
        f"healthy again since step {300 + length}, as the faster level did not last"
    )
    assert math.isnan(back.factor)
    assert back.healthy_s == pytest.approx(1.0, rel=0.01)
    assert (onset.kind, onset.since_step, relief.kind) == ("onset", 700, "relief")
    assert onset.factor == pytest.approx(1.3, rel=0.02)


def test_a_fail_slow_behind_a_short_faster_stretch_is_told_at_once():
    x = noise(1000)
    x[300:330] *= 0.7
    x[330:400] *= 1.3
    told = [(event.kind, event.since_step) for event in events_of(x)]
    assert told == [("faster", 300), ("onset", 330), ("relief", 400)]
    assert events_of(x)[1].factor == pytest.approx(1.3, rel=0.03)


def test_a_faster_level_that_rises_within_the_short_time_is_still_faster():
    x = noise(1000)
    x[300:330] *= 0.6
    x[330:] *= 0.8
    x[600:] *= 1.3
    told = [(event.kind, event.since_step) for event in events_of(x)]
    assert told == [("faster", 300), ("onset", 600)]
    assert events_of(x)[1].factor == pytest.approx(1.3, rel=0.03)


def test_an_accepted_faster_level_is_healthy_at_once():
    x = noise(400)
    x[300:320] *= 0.7
    detector, events = Detector(1), []
    for step, value in enumerate(x):
        events += detector.update(step, [value])
        if step == 310:
            detector.accept()
    assert [event.kind for event in events] == ["faster", "onset"]


def test_a_faster_level_among_the_first_samples_of_a_stage_is_its_own():
    """The eight samples that measure the stage have a fault of 1.4x from the eighth on."""
    x = noise(1000)
    x[400:] *= 0.7
    x[407:] *= 1.4

    def tokens(step):
        return {"tokens": 4096 if step < 400 else 4000}

    assert "onset" in [event.kind for event in events_of(x, workload=tokens)]


@pytest.mark.parametrize(("share", "kinds"), [(0.93, []), (0.88, ["faster"])])
def test_a_fall_of_less_than_a_tenth_is_not_told(share, kinds):
    x = noise(1000)
    x[300:] *= share
    assert [event.kind for event in events_of(x)] == kinds


@pytest.mark.parametrize(("after", "kinds"), [(1.88, []), (1.7, ["partial-relief"])])
def test_a_part_of_less_than_a_tenth_of_a_fail_slow_is_no_relief(after, kinds):
    x = noise(1000)
    x[300:500] *= 2.0
    x[500:700] *= after
    told = [event.kind for event in events_of(x)]
    assert told == ["onset", *kinds, "relief"]


def test_what_the_workload_explains_is_planned_and_a_fault_in_it_is_not():
    x = noise(1000)
    x[400:] *= 1.8
    x[700:] *= 1.2

    def tokens(step):
        return {"tokens": 4096 if step < 400 else 8192}

    assert [(e.kind, e.since_step) for e in events_of(x, workload=tokens)] == [("onset", 700)]
    assert events_of(x)[0].since_step == 400


def test_what_the_workload_does_not_allow_is_a_fault():
    x = noise(1000)
    x[400:] *= 1.5
    events = events_of(x, workload=lambda step: {"tokens": 4096 if step < 400 else 4506})
    assert [event.kind for event in events] == ["onset"]
    assert events[0].factor == pytest.approx(1.5 / 1.1 / 1.03, rel=0.03)


def test_what_earlier_runs_show_is_planned_though_one_of_them_was_slow():
    level = np.where(np.arange(1000) < 400, 1.0, 1.6)
    like = [noise(1000, seed=seed) * level for seed in (1, 2, 3)]
    like[0][200:] *= 1.4
    x = noise(1000) * level
    assert events_of(x, like) == []
    x[700:] *= 1.2
    assert [(e.kind, e.since_step) for e in events_of(x, like)] == [("onset", 700)]


def test_odd_and_even_steps_may_differ():
    x = noise(1000)
    x[1::2] *= 1.25
    x[600:] *= 1.12
    assert [(e.kind, e.since_step) for e in events_of(x)] == [("onset", 600)]


def test_a_small_swing_is_told_once_and_a_higher_or_longer_level_again():
    x = noise(3000)
    for begin in range(300, 2000, 250):
        x[begin : begin + 40] *= 1.11
    x[2100:2200] *= 1.3
    x[2500:] *= 1.11
    told = [(e.kind, e.since_step) for e in events_of(x)]
    assert [since for _, since in told] == [300, 340, 2100, 2200, 2500]
    assert [kind for kind, _ in told] == ["onset", "relief", "onset", "relief", "onset"]


def with_small_rises(rises):
    """2,000 steps; before 1,000, ``rises`` stretches of 40 steps are 1.085x slow."""
    x = noise(2000, cov=0.004)
    for begin in range(200, 200 + 200 * rises, 200):
        x[begin : begin + 40] *= 1.085
    return x


def test_rises_that_are_too_small_for_an_event_make_a_similar_one_a_swing():
    fresh, used = with_small_rises(0), with_small_rises(3)
    for x in (fresh, used):
        x[1000:1040] *= 1.105
    assert [(e.kind, e.since_step) for e in events_of(fresh)] == [("onset", 1000), ("relief", 1040)]
    assert events_of(used) == []


@pytest.mark.parametrize(("factor", "within"), [(1.105, 60), (1.2, 10)])
def test_after_small_rises_a_longer_or_higher_level_is_told(factor, within):
    x = with_small_rises(3)
    x[1000:] *= factor
    (event,) = events_of(x)
    assert (event.kind, event.since_step) == ("onset", 1000)
    assert event.step <= 1000 + within


def test_long_small_rises_hide_no_later_fault():
    x = noise(2000, cov=0.02)
    for begin in (300, 600):
        x[begin : begin + 80] *= 1.07
    x[1000:] *= 1.12
    assert [e.kind for e in events_of(x) if e.since_step > 990] == ["onset"]


def test_a_fault_that_an_onset_told_is_no_small_rise():
    x = noise(2000, cov=0.004)
    for begin in range(300, 1500, 200):
        x[begin : begin + 40] *= 1.3
    told = [(e.kind, e.since_step) for e in events_of(x)]
    assert told == [("onset" if s % 200 == 100 else "relief", s) for _, s in told]
    assert len(told) == 12


def test_a_rise_of_less_than_a_tenth_is_no_onset():
    x = noise(1500, cov=0.004)
    x[500:] *= 1.095
    assert events_of(x) == []


@pytest.mark.parametrize("burst", range(3, 10))
def test_the_level_after_a_burst_within_an_episode_is_told(burst):
    x = noise(900)
    x[300:] *= 1.4
    x[400 : 400 + burst] *= 5 / 1.4
    told = events_of(x)
    assert [(e.kind, e.since_step) for e in told[:2]] == [("onset", 300), ("worsening", 400)]
    assert (told[2].kind, told[2].since_step) == ("partial-relief", 400 + burst)
    assert told[2].factor == pytest.approx(1.4, rel=0.02)
    assert told[2].before_factor < 0.5
    assert len(told) == 3
    assert told[2].step <= 400 + burst + 33


@pytest.mark.parametrize("burst", range(3, 10))
def test_the_level_after_a_burst_that_began_an_episode_is_told(burst):
    x = noise(900)
    x[300:] *= 1.4
    x[300 : 300 + burst] *= 5 / 1.4
    told = [(e.kind, e.since_step) for e in events_of(x)]
    assert told == [("onset", 300), ("partial-relief", 300 + burst)]


def on_a_ramp():
    """A detector whose rank becomes slower with every step, up to 1.79 s in step 319."""
    detector, x = Detector(), noise(320, cov=0.005)
    x[200:] *= np.interp(np.arange(120), [0, 60, 119], [1.2, 1.2, 1.79])
    for step, value in enumerate(x):
        detector.update(step, [value])
    assert detector.slow.all()
    assert detector.lost_s[0] > 10
    return detector


@pytest.mark.parametrize("end", [Detector.accept, Detector.settle_level])
def test_a_ramp_whose_episode_was_ended_gives_no_event(end):
    detector = on_a_ramp()
    for step in range(320, 327):
        assert detector.update(step, [1.79]) == []
    end(detector)
    assert detector.lost_s.tolist() == [0.0]
    events = [event for step in range(327, 460) for event in detector.update(step, [1.79])]
    assert (events, detector.slow.tolist()) == ([], [False])


def test_an_accepted_level_is_healthy():
    detector = Detector()
    x = noise(1000)
    x[300:] *= 1.3
    x[700:] *= 1.2
    kinds = []
    for step, value in enumerate(x):
        kinds += [event.kind for event in detector.update(step, [value])]
        if step == 500:
            detector.accept()
            assert not detector.slow.any()
            assert detector.healthy_s == pytest.approx(1.3, rel=0.01)
    assert kinds == ["onset", "onset"]


def test_a_state_carries_what_is_expected():
    def tokens(step):
        return {"tokens": 4096 if step < 203 else 8192}

    level = np.where(np.arange(400) < 203, 1.0, 1.7)
    like = [noise(400, seed=seed) for seed in (1, 2, 3)]
    whole = cut = Detector(like=like)
    cut = Detector.from_state_dict(whole.state_dict())
    for step, value in enumerate(noise(400) * level):
        assert repr(cut.update(step, [value], tokens(step))) == repr(
            whole.update(step, [value], tokens(step))
        )
        if step % 23 == 0 or step == 206:
            cut = Detector.from_state_dict(cut.state_dict())


def test_machine_code_tells_the_same(monkeypatch):
    """But for the last digits: sums are in another order, and ties may fall the other way."""
    rng = np.random.default_rng(8)
    levels_of = np.repeat([1.0, 1.3, 1.6, 1.1, 1.0, 0.7, 0.9], 90)
    x = 0.2 * levels_of * (1 + 0.01 * rng.normal(size=len(levels_of)))
    told = []
    for limit in (10**9, 0):
        monkeypatch.setattr(levels, "INTERPRETED_SAMPLES", limit)
        detector = Detector(1)
        told.append([e for step, s in enumerate(x) for e in detector.update(step, [s])])
    interpreted, compiled = told
    assert len(interpreted) >= 5
    for one, other in zip(interpreted, compiled, strict=True):
        assert (one.kind, one.step, one.since_step) == (other.kind, other.step, other.since_step)
        assert one.factor == pytest.approx(other.factor, rel=1e-3)


def test_where_many_steps_are_to_come_the_first_one_is_judged_by_machine_code(monkeypatch):
    calls = []
    monkeypatch.setattr(levels, "compiled_advance", lambda: lambda *given: calls.append(given) or 0)
    detector = Detector()
    detector.update(0, [1.0])
    assert not calls
    detector.expected_steps = levels.INTERPRETED_SAMPLES + 1
    detector.update(1, [1.0])
    assert len(calls) == 1


@pytest.mark.parametrize("at", range(600, 616))
def test_a_job_that_is_slow_after_a_restart_is_told_wherever_it_settles(at):
    x = noise(700, cov=0.005)
    x[at:] *= 1.4
    x[at : at + 6] *= np.linspace(1.8, 1.1, 6)
    detector, events = Detector(), []
    for step, value in enumerate(x):
        if step == at:
            detector.go_back()
        events += detector.update(step, [value])
    assert [event.kind for event in events] == ["onset"]
    assert events[0].factor == pytest.approx(1.4, rel=0.02)
    assert events[0].step <= at + 12


def test_an_onset_has_a_factor_above_the_threshold():
    x = noise(700, cov=0.001)
    x[300:311] *= 1.085
    x[[306, 308, 310]] *= 1.1 / 1.085  # the median of the last five is above, that of all is not
    assert events_of(x) == []
    x[300:311] *= 1.02
    assert [event.kind for event in events_of(x)] == ["onset", "relief"]


@pytest.mark.parametrize(
    ("samples", "step"),
    [((1.11, 1.19, 1.29), None), ((1.25, 1.28, 1.30), 302), ((1.11, 1.19, 1.29, 1.29), 303)],
)
def test_three_samples_are_a_level_if_they_agree(samples, step):
    x = noise(400, cov=0.001)
    x[300 : 300 + len(samples)] = samples
    steps = [event.step for event in events_of(x) if event.kind == "onset"]
    assert steps == ([] if step is None else [step])


def test_a_step_on_a_level_that_wobbles_is_no_ramp():
    early, middle = np.linspace(1.08, 1.12, 8), np.linspace(1.14, 1.21, 8)
    jump = np.concatenate([early, middle, np.full(4, 1.2), np.full(4, 1.46)])[::-1]
    assert levels.is_ramp(jump, 24, 0)
    assert not levels.is_ramp(jump, 24, 4)
    ramp = np.linspace(1.46, 1.08, 24)
    assert levels.is_ramp(ramp, 24, 4)
