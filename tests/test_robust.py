"""Robust statistics against SciPy and simulation."""

import numpy as np
import pytest

import requires
from paceline import robust

requires.installed("scipy")

from scipy import stats


def test_the_spread_of_a_normal_distribution():
    values = np.random.default_rng(0).normal(3.0, 2.0, 20_000)
    assert robust.spread(values) == pytest.approx(2.0, rel=0.03)
    assert robust.spread(np.append(values, [1e9] * 500)) == pytest.approx(2.0, rel=0.06)


def test_the_error_of_a_median():
    draws = np.random.default_rng(1).normal(size=(25, 4000))
    assert float(np.mean(robust.median_error(draws))) == pytest.approx(
        float(np.median(draws, axis=0).std()), rel=0.05
    )


def test_a_row_that_drifts_has_a_larger_error():
    rng = np.random.default_rng(2)
    rows = np.zeros((40, 500))
    rows[0] = rng.normal(size=500)
    for step in range(1, 40):
        rows[step] = 0.8 * rows[step - 1] + rng.normal(size=500)
    true = float(np.median(rows, axis=0).std())
    assert float(np.mean(robust.median_error(rows))) < 0.6 * true
    assert float(np.mean(robust.error_over_time(rows))) == pytest.approx(true, rel=0.35)
    even = rng.normal(size=(40, 500))
    assert float(np.mean(robust.error_over_time(even))) == pytest.approx(
        float(np.median(even, axis=0).std()), rel=0.2
    )


@pytest.mark.parametrize("n", [3, 8, 30])
@pytest.mark.parametrize("t", [0.5, 2.0, 5.0])
def test_the_chance_of_a_student_t(n, t):
    chance = float(robust.student_chance(np.array(t), n))
    assert chance == pytest.approx(float(stats.t.sf(t, n - 1)), rel=0.12)


@pytest.mark.parametrize(("count", "n", "share"), [(9, 20, 0.1), (5, 100, 0.002), (20, 20, 0.5)])
def test_the_chance_of_a_count_is_a_bound(count, n, share):
    bound = robust.chance_of_count(count, n, share)
    exact = float(stats.binom.sf(count - 1, n, share))
    assert exact <= bound <= 30 * exact


def test_a_usual_count_is_no_surprise():
    assert robust.chance_of_count(2, 100, 0.02) == 1.0
    assert robust.chance_of_count(0, 100, 0.0) == 1.0
    assert robust.chance_of_count(1, 100, 0.0) == 0.0
