"""Jobs whose steps take longer and longer from the first step on."""

import re

import numpy as np
import pytest

from paceline import Detector
from paceline.cli.main import run
from paceline.detect import levels
from paceline.detect.slow_ramp import hinge, trend

SEEDS = range(8)


def noise(steps, seed=0, spread=0.03):
    return np.random.default_rng(seed).lognormal(0, spread, steps)


def wander(steps, seed, spread, over=100):
    """[step] times that wander by ``spread`` (standard deviation) over some steps."""
    rng, keep = np.random.default_rng(seed), np.exp(-1 / over)
    logs = np.empty(steps)
    logs[0] = rng.normal()
    for step in range(1, steps):
        logs[step] = keep * logs[step - 1] + np.sqrt(1 - keep**2) * rng.normal()
    return np.exp(spread * logs) * noise(steps, seed + 1, 0.02)


def ramp(steps, begin, end, factor, seed=0, spread=0.03):
    level = np.interp(np.arange(steps), [begin, end], [1, factor])
    return 0.1 * level * noise(steps, seed, spread)


def judge(times):
    detector, events = Detector(1), []
    for step, x in enumerate(times):
        events += detector.update(step, [x])
    return detector, events


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("steps", "factor"), [(148, 1.6), (148, 1.37), (400, 1.6), (600, 1.4)])
def test_a_ramp_from_the_first_step_is_one_onset(steps, factor, seed):
    times = ramp(steps, 0, steps - 1, factor, seed)
    detector, (onset, *others) = judge(times)
    assert onset.kind == "onset"
    assert onset.since_step <= 0.15 * steps
    # The first five steps do not count, and noise hides the first ones of the ramp.
    mean = 0.1 * (1 + (factor - 1) * (5 + onset.since_step) / 2 / steps)
    assert onset.healthy_s == pytest.approx(mean, rel=0.03)
    assert len(others) <= 1
    assert {event.kind for event in others} <= {"worsening"}
    assert detector.slow[0]
    assert detector.level_s[0] == pytest.approx(np.median(times[-16:]), rel=0.1)
    since = times[onset.since_step :]
    assert detector.lost_s[0] == pytest.approx(since.sum() - 0.1 * len(since), rel=0.25)


def test_the_factor_is_the_mean_since_the_begin():
    """A rise from 1 to 1.6 in 300 steps, which is told after about 100."""
    times = ramp(300, 0, 299, 1.6, spread=0.01)
    _, (onset, *_) = judge(times)
    since = times[onset.since_step : onset.step + 1]
    assert onset.factor == pytest.approx(since.mean() / 0.1, rel=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_end_of_the_ramp_is_a_worsening_and_what_follows_is_judged(seed):
    times = ramp(700, 0, 200, 1.6, seed)
    times[500:] /= 1.6
    _, events = judge(times)
    assert [event.kind for event in events] == ["onset", "worsening", "relief"]
    assert events[1].factor == pytest.approx(1.6, rel=0.05)
    assert abs(events[2].since_step - 500) <= 2


@pytest.mark.parametrize("begin", [10, 20])
def test_the_begin_is_where_the_level_ends(begin):
    for seed in SEEDS:
        _, (onset, *_) = judge(ramp(begin + 300, begin, begin + 299, 1.6, seed, 0.02))
        assert abs(onset.since_step - begin) <= 20
        assert onset.healthy_s == pytest.approx(0.1, rel=0.03)


def test_a_ramp_that_was_told_as_a_step_is_followed():
    """Its onset comes by windows, as the first 60 steps are healthy and the rise is fast."""
    times = ramp(500, 60, 460, 2.5, spread=0.02)
    detector, events = judge(times)
    assert events[0].kind == "onset"
    assert len(events) <= 2
    assert detector.level_s[0] == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_steady_rise_is_no_onset(seed):
    steps = np.arange(400)
    swings = 1 + 0.12 * (np.sin(steps / 8) > 0) * (steps < 50)
    for level in (1 + 0.08 * steps / 400, swings, 1 + 0.5 * np.exp(-steps / 10)):
        assert judge(noise(400, seed) * level)[1] == []
    assert judge(wander(400, seed, 0.03))[1] == []


def test_a_step_is_told_at_its_own_step():
    for seed in SEEDS:
        times = noise(200, seed)
        times[90:] *= 1.3
        _, (onset,) = judge(times)
        assert abs(onset.since_step - 90) <= 2


def test_pauses_and_checkpoints_hide_no_ramp():
    times = ramp(300, 0, 299, 1.6, spread=0.02)
    times[20::25] *= 4
    times[33::60] *= 30
    _, (onset, *_) = judge(times)
    assert (onset.kind, onset.healthy_s) == ("onset", pytest.approx(0.1, rel=0.04))


def test_trend_and_hinge_of_a_line():
    """No noise: 1 for 30 samples, then 1% more each."""
    oldest_first = np.concatenate([np.ones(30), 1 + 0.01 * np.arange(1, 91)])
    newest_first = oldest_first[::-1].copy()
    rise, part, errors = trend(newest_first, 120)
    assert rise == pytest.approx((1.70 - 1.035) / 1.035, rel=0.1)
    assert 0.25 < part < 0.5
    assert errors > 5.5
    before, level, slope = hinge(newest_first, 120)
    assert abs(before - 29) <= 1
    assert (level, slope) == pytest.approx((1.0, 0.01), rel=0.02)
    assert trend(newest_first, 35) == (0.0, 0.0, 0.0)


def test_machine_code_and_a_restored_state_tell_the_same(monkeypatch):
    times = ramp(700, 0, 200, 1.6)
    times[500:] /= 1.6
    told = [judge(times)[1]]
    monkeypatch.setattr(levels, "INTERPRETED_SAMPLES", 0)
    told.append(judge(times)[1])
    detector, events = Detector(1), []
    for step, x in enumerate(times):
        events += detector.update(step, [x])
        if step % 40 == 0:
            detector = Detector.from_state_dict(detector.state_dict())
    told.append(events)
    places = [[(event.kind, event.step, event.since_step) for event in one] for one in told]
    assert places[0] == places[1] == places[2]
    for one, other in zip(told[0], told[1], strict=True):
        assert one.factor == pytest.approx(other.factor, rel=1e-3)


def table(path, times):
    rows = [f"{s},{r},{x:.6f}" for s, row in enumerate(times) for r, x in enumerate(row)]
    path.write_text("\n".join(["step,rank,duration_s", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_rise_that_is_not_certain_is_not_called_healthy(capsys, tmp_path, ranks):
    """1.18x in 200 steps is 1.15 / 1.03 from the first third to the last: too little to be told."""
    times = np.column_stack([ramp(200, 0, 199, 1.18, seed, 0.01) for seed in range(ranks)])
    assert run(["detect", table(tmp_path / "it.csv", times)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "0 fail-slows" in last
    assert "healthy" not in last
    assert re.search(r"not judged \(the last third of the steps takes 1\.1[12]x the first", last)


def test_steps_without_a_rise_are_healthy_at_the_end(capsys, tmp_path):
    path = table(tmp_path / "it.csv", ramp(200, 0, 199, 1.05, spread=0.05)[:, None])
    assert run(["detect", path]) == 0
    assert "0 fail-slows, healthy at the end" in capsys.readouterr().out
