"""Factors with an interval, and what they are once more samples of the level are there."""

import json

import numpy as np
import pytest

from paceline import Detector
from paceline.cli.main import run
from paceline.detect.bocd import Bocd
from paceline.detect.columns import AGE, CYCLE, N_FLOATS, N_WHOLES, STRAY
from paceline.detect.estimate import estimate
from paceline.detect.job import job_events
from paceline.detect.refinement import Refinement


def stream(seed, levels, noise=0.03):
    """[step] seconds: (steps, factor) one behind the other, around 2 s."""
    draw = np.random.default_rng(seed)
    level = np.concatenate([np.full(n, factor) for n, factor in levels])
    return 2.0 * level * (1 + noise * draw.standard_normal(len(level)))


def refined(x):
    detector = Detector(1)
    refinement = Refinement(detector)
    for step, seconds in enumerate(x):
        refinement.take(detector.update(step, [seconds]))
    return refinement.events()


@pytest.mark.parametrize("at", [60, 100, 200, 240, 400])
def test_a_change_is_no_noise(at):
    """Windows of up to 257 samples reach across it when their noise is first measured."""
    (onset,) = refined(stream(0, [(at, 1.0), (700 - at, 1.4)], noise=0.01))
    assert onset.refined.low < 1.4 < onset.refined.high
    assert onset.refined.high / onset.refined.low < 1.05


def test_the_mean_of_an_episode_ends_with_it():
    """The steps that make its end sure are healthy ones."""
    onset, relief = refined(stream(0, [(100, 1.0), (12, 1.4), (100, 1.0)], noise=0.01))
    assert (onset.kind, relief.kind) == ("onset", "relief")
    assert relief.factor == pytest.approx(1.4, rel=0.01)
    assert relief.lost_s == pytest.approx(12 * 2.0 * 0.4, rel=0.05)


def test_a_longer_level_is_known_better():
    first, last, held, held_first = [], [], [], []
    for seed in range(20):
        events = refined(stream(seed, [(100, 1.0), (200, 1.3), (100, 1.6), (100, 1.0)]))
        slow = [event for event in events if event.kind in ("onset", "worsening")]
        assert [event.kind for event in slow] == ["onset", "worsening"]
        for event, factor in zip(slow, (1.3, 1.6), strict=True):
            first.append(abs(event.factor / factor - 1))
            last.append(abs(event.refined.factor / factor - 1))
            held_first.append(event.estimate.low <= factor <= event.estimate.high)
            held.append(event.refined.low <= factor <= event.refined.high)
            assert event.estimate.factor == event.factor
            assert event.refined.samples > event.estimate.samples
    assert np.mean(np.array(last) < 0.02) >= 0.95
    assert np.mean(last) < 0.6 * np.mean(first)
    assert np.mean(held) >= 0.9
    assert np.mean(held_first) >= 0.9


def test_what_goes_on_is_refined_by_what_there_is():
    (onset,) = refined(stream(3, [(100, 1.0), (60, 1.5)]))
    assert onset.refined.samples == pytest.approx(60, abs=2)
    assert onset.refined.factor == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize("seed", range(6))
def test_a_faster_level_is_told_by_all_its_steps(seed):
    """As on two gloo ranks: 0.73x in the first ten steps, but 0.89x over all."""
    x = stream(seed, [(90, 1.0), (10, 0.73), (140, 0.9)], noise=0.05)
    (faster,) = refined(x)
    assert (faster.kind, faster.since_step) == ("faster", 90)
    assert faster.factor == pytest.approx(0.73, abs=0.03)
    whole = np.median(x[90:]) / np.median(x[:90])
    assert faster.refined.factor == pytest.approx(whole, abs=0.015)
    assert faster.refined.samples >= 140


def test_each_faster_level_refers_to_the_healthy_level_before_it():
    x = stream(1, [(500, 1.0), (100, 0.8), (90, 0.6), (60, 0.9)])
    first, second, onset = refined(x)
    assert [event.kind for event in (first, second, onset)] == ["faster", "faster", "onset"]
    assert first.refined.factor == pytest.approx(0.8, rel=0.02)
    assert second.refined.factor == pytest.approx(0.75, rel=0.02)
    assert onset.refined.factor == pytest.approx(1.5, rel=0.02)


def test_more_steps_are_counted_at_the_refined_level(tmp_path, capsys):
    """The first steps of the fail-slow are 1.3x, the level is 1.4x."""
    path = tmp_path / "steps.csv"
    x = stream(2, [(100, 1.0), (8, 1.3), (120, 1.4)], noise=0.02)
    path.write_text("step,duration_s\n" + "".join(f"{n},{s}\n" for n, s in enumerate(x)))
    assert run(["detect", str(path), "--json"]) == 0
    (event,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert event["factor"] < 1.35
    assert event["at_stake_s_per_1000_steps"] == pytest.approx(1000 * 2.0 * 0.4, rel=0.03)


def test_reliefs_and_other_methods_have_no_estimate():
    events = refined(stream(1, [(100, 1.0), (50, 1.5), (50, 1.0)]))
    assert [(e.kind, e.estimate is None, e.refined is None) for e in events] == [
        ("onset", False, False),
        ("relief", True, True),
    ]
    detector = Bocd(1)
    events = [
        event
        for step, seconds in enumerate(stream(1, [(100, 1.0), (150, 1.5)], 0.01))
        for event in detector.update(step, [seconds])
    ]
    assert events
    assert events[0].to_mapping()["factor_low"] is None


def test_the_width_is_that_of_the_window_below():
    floats, wholes = np.zeros(N_FLOATS), np.zeros(N_WHOLES, dtype=np.int64)
    floats[STRAY:CYCLE] = [0.05, 0.04, 0.03, 0.02, 0.012, 0.008, 0.006, 0.004]
    wholes[AGE] = 20
    found = estimate(floats, wholes, 1.5)
    error = np.sqrt(0.02**2 + 0.006**2 + 0.005**2)  # windows of 17 and 129, and the rest
    assert found.high == pytest.approx(1.5 * np.exp(2.2 * error))
    assert found.low == pytest.approx(1.5**2 / found.high)
    floats[STRAY:CYCLE] = np.nan  # nothing is known of its noise
    assert estimate(floats, wholes, 1.5).to_mapping()["high"] is None
    floats[STRAY:CYCLE] = 1e6  # times of a damaged file
    assert estimate(floats, wholes, 1.5).to_mapping()["high"] is None


def test_ranks_are_merged_by_medians():
    detector = Detector(3)
    refinement = Refinement(detector)
    x = np.stack([stream(seed, [(100, 1.0), (60, 1.5)]) for seed in range(3)], axis=1)
    for step, row in enumerate(x):
        refinement.take(detector.update(step, row))
    (event,) = job_events(refinement.events(), 3)
    assert event.refined.factor == pytest.approx(1.5, rel=0.02)
    assert event.estimate.low < event.factor < event.estimate.high


def test_the_command_says_both(tmp_path, capsys):
    path = tmp_path / "steps.csv"
    x = stream(5, [(100, 1.0), (200, 1.3)])
    path.write_text("step,duration_s\n" + "".join(f"{n},{s}\n" for n, s in enumerate(x)))
    assert run(["detect", str(path), "--json"]) == 0
    (event,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert event["factor_low"] < event["factor"] < event["factor_high"]
    assert event["refined"]["factor"] == pytest.approx(1.3, rel=0.02)
    assert run(["detect", str(path)]) == 0
    assert "\n  so far: 1." in capsys.readouterr().out


def test_the_command_says_what_became_of_a_faster_level(tmp_path, capsys):
    path = tmp_path / "steps.csv"
    x = stream(1, [(90, 1.0), (10, 0.73), (140, 0.9)], noise=0.05)
    path.write_text("step,duration_s\n" + "".join(f"{n},{s}\n" for n, s in enumerate(x)))
    assert run(["detect", str(path)]) == 0
    event, level, _ = capsys.readouterr().out.splitlines()
    assert "faster since step 90: 0.7" in event
    assert level.startswith("  so far: 0.89x (0.8")
