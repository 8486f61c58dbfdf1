"""BOCD with verification: the paper's detector, for comparison."""

import numpy as np
import pytest

from paceline.detect.bocd import VERIFY_STEPS, Bocd
from paceline.errors import DetectError


def events_of(x, **options):
    detector = Bocd(x.shape[1], **options)
    return [event for step, row in enumerate(x) for event in detector.update(step, row)]


def noise(steps, ranks=2, seed=0):
    return np.random.default_rng(seed).normal(2.0, 0.04, (steps, ranks))


def test_an_episode_is_found_once_its_means_are_compared():
    x = noise(1500)
    x[600:1000, 1] *= 1.3
    onset, relief = events_of(x)
    assert (onset.kind, onset.rank, relief.kind) == ("onset", 1, "relief")
    assert onset.since_step == pytest.approx(600, abs=2)
    assert onset.step == pytest.approx(600 + VERIFY_STEPS, abs=3)
    assert onset.factor == pytest.approx(1.3, rel=0.02)
    assert relief.since_step == pytest.approx(1000, abs=2)
    assert relief.lost_s == pytest.approx(0.3 * 2 * 400, rel=0.2)


def test_levels_that_change_again():
    x = noise(2200, ranks=1)
    for begin, factor in ((400, 1.3), (700, 2.0), (1000, 1.3), (1300, 1.0), (1600, 0.7)):
        x[begin:] *= factor / (x[begin:].mean() / 2)
    events = events_of(x)
    kinds = ["onset", "worsening", "partial-relief", "relief", "faster"]
    assert [event.kind for event in events] == kinds
    factors = [event.factor for event in events]
    assert factors == pytest.approx([1.3, 2.0, 1.3, 1.3, 0.7], rel=0.03)
    before = [event.before_factor for event in events]
    assert before == pytest.approx([1.3, 2 / 1.3, 1.3 / 2, 1 / 1.3, 0.7], rel=0.03)


def test_what_the_workload_explains_is_no_event():
    x = noise(1200, ranks=1)
    x[400:] *= 1.8
    x[800:] *= 1.3
    detector, told = Bocd(1), []
    for step, row in enumerate(x):
        told += detector.update(step, row, {"tokens": 4096 if step < 400 else 8192})
    assert [event.kind for event in told] == ["onset"]
    assert told[0].since_step == pytest.approx(800, abs=2)
    assert told[0].healthy_s == pytest.approx(3.6, rel=0.03)


def test_verification_drops_what_is_under_ten_percent():
    x = noise(1500)
    x[600:] *= 1.07
    assert events_of(x) == []
    assert any(event.kind == "onset" for event in events_of(x, verify=False))


def test_a_missing_sample_is_no_change():
    x = noise(600)
    x[300:303] = np.nan
    assert events_of(x) == []


def test_probabilities_stay_probabilities():
    detector = Bocd(3)
    for step, row in enumerate(noise(500, ranks=3)):
        detector.update(step, row)
    assert np.exp(detector._log).sum(axis=1) == pytest.approx(np.ones(3))


def test_wrong_input():
    with pytest.raises(DetectError, match="ranks must be"):
        Bocd(0)
    detector = Bocd(1)
    detector.update(3, [1.0])
    with pytest.raises(DetectError, match="steps must grow"):
        detector.update(3, [1.0])
    with pytest.raises(DetectError, match="2 durations for 1 ranks"):
        detector.update(4, [1.0, 2.0])
