"""The begin of a job: it becomes slow in it, starts anew, or warms up."""

import numpy as np
import pytest

from paceline.detect.detector import Detector


def noise(steps, seed=7, spread=0.02):
    return np.random.default_rng(seed).lognormal(0, spread, steps)


def run(times, restarts=()):
    detector, events = Detector(1), []
    for step, x in enumerate(times):
        if step in restarts:
            detector.go_back()
        events += detector.update(step, [x])
    return detector, events


@pytest.mark.parametrize("begin", [15, 20, 30, 41])
def test_slow_from_a_step_in_the_warm_up(begin):
    times = noise(160)
    times[begin:120] *= 1.5
    _, (onset, relief) = run(times)
    assert (onset.kind, onset.step) == ("onset", 49)
    assert abs(onset.since_step - begin) <= 1
    assert onset.factor == pytest.approx(1.5, rel=0.02)
    assert onset.healthy_s == pytest.approx(1.0, rel=0.02)
    assert onset.lost_s == pytest.approx(0.5 * (50 - begin), rel=0.1)
    assert (relief.kind, relief.since_step) == ("relief", 120)
    assert relief.factor == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize("seed", range(12))
def test_a_warm_up_without_a_rise_is_none(seed):
    """Noise; a start that is slow; a few fast steps while input is prefetched; a drift."""
    times = noise(90, seed, 0.05)
    for begin, end, factor in ((0, 30, 1.5), (0, 8, 0.5), (20, 25, 2.0)):
        changed = times.copy()
        changed[begin:end] *= factor
        assert "onset" not in [event.kind for event in run(changed)[1]]
    ramp = times * np.linspace(1, 1.06, 90)
    assert run(ramp)[1] == []


@pytest.mark.parametrize("restart", [10, 44, 45, 47, 49, 50])
def test_a_restart_in_the_warm_up(restart):
    times = noise(200)
    times[120:] *= 1.3
    detector, (onset,) = run(times, restarts=(restart,))
    assert onset.since_step == 120
    assert onset.factor == pytest.approx(1.3, rel=0.05)
    assert detector.healthy_s[0] == pytest.approx(1.0, rel=0.02)


T = np.arange(900)
WARM_UPS = {
    "a line over 40 steps": 1 + 1.6 * np.clip(1 - T / 40, 0, 1),
    "a line over 60 steps, 6x": 1 + 5 * np.clip(1 - T / 60, 0, 1),
    "a line over 150 steps": 1 + np.clip(1 - T / 150, 0, 1),
    "an exponential decay": 1 + 1.6 * np.exp(-T / 40),
    "a slow exponential decay": 1 + 0.5 * np.exp(-T / 200),
    "autotuning, then a level": np.where(T < 40, 2.6, 1.0),
    "three levels": np.select([T < 15, T < 30, T < 45], [3.0, 2.0, 1.5], 1.0),
    "the last step of the warm-up": np.where(T < 46, 1.3, 1.0),
}


@pytest.mark.parametrize("name", WARM_UPS)
@pytest.mark.parametrize("spread", [0.01, 0.03])
def test_a_slow_start_that_settles_is_no_change_of_level(name, spread):
    for seed in range(3):
        times = noise(900, seed, spread) * WARM_UPS[name]
        assert [event.kind for event in run(times[:700])[1]] == []
        times[700:] *= 1.4
        _, (onset,) = run(times)
        assert onset.kind == "onset"
        assert abs(onset.since_step - 700) <= 2


def test_the_level_is_that_after_the_warm_up():
    times = noise(900) * WARM_UPS["a line over 60 steps, 6x"]
    times[130:] *= 1.3
    detector, (onset,) = run(times)
    assert abs(onset.since_step - 130) <= 1
    assert onset.factor == pytest.approx(1.3, rel=0.03)
    assert detector.healthy_s[0] == pytest.approx(1.0, rel=0.02)


def test_nothing_is_judged_while_each_step_is_faster_than_the_last_ones():
    times = noise(120, spread=0.005) * np.linspace(4, 1, 120)
    detector, events = run(times)
    assert events == []
    assert np.isnan(detector.healthy_s[0])


@pytest.mark.parametrize("begin", [60, 100, 300, 600])
def test_a_stable_level_that_becomes_faster_for_good_is_told(begin):
    times = noise(900)
    times[:begin] *= 1.5
    _, (faster,) = run(times)
    assert faster.kind == "faster"
    assert abs(faster.since_step - begin) <= 1
    assert faster.factor == pytest.approx(1 / 1.5, rel=0.03)


@pytest.mark.parametrize("name", ["a line over 60 steps, 6x", "an exponential decay"])
def test_a_warm_up_after_a_restart_is_none_either(name):
    times = noise(900, spread=0.01)
    times[400:] *= WARM_UPS[name][:500]
    assert run(times, restarts=(400,))[1] == []


def test_a_job_that_is_slow_after_the_warm_up_of_its_restart_is_told():
    times = noise(900, spread=0.01)
    times[400:] *= 1.3 * WARM_UPS["a line over 40 steps"][:500]
    _, (onset,) = run(times, restarts=(400,))
    assert 436 <= onset.since_step <= onset.step <= 470
    assert onset.factor == pytest.approx(1.3, rel=0.03)
