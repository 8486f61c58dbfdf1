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
