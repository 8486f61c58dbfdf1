"""The first 50 samples: a job that becomes slow in them, or starts anew."""

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
