"""Intervals of differences: against scipy, by hand, and by how often they miss."""

import numpy as np
import pytest

import requires
from paceline.comparison.interval import (
    MIN_STEPS,
    Means,
    certain,
    difference,
    means_of,
    ratio_means,
    relative_difference,
)
from paceline.comparison.median import median_of
from paceline.robust import t_quantile


@pytest.fixture
def stats():
    """Of SciPy, which takes most of a second to import."""
    requires.installed("scipy")
    from scipy import stats

    return stats


def autoregressive(rng, n: int, rho: float, *shape: int) -> np.ndarray:
    """Stationary series of mean 20 and variance 1 with lag-1 autocorrelation ``rho``."""
    values = np.empty((n, *shape))
    values[0] = rng.standard_normal(shape)
    for step in range(1, n):
        noise = rng.standard_normal(shape)
        values[step] = rho * values[step - 1] + np.sqrt(1 - rho**2) * noise
    return 20 + values


def missed(before: Means, after: Means, n_rows: int = 1) -> np.ndarray:
    _, low, high = difference(before, after, n_rows)
    return (low > 0) | (high < 0)


@pytest.mark.parametrize("misses", [0.1, 0.01, 1e-5, 0.1 / 8192])
def test_quantiles_are_those_of_student(misses, stats) -> None:
    freedom = np.array([2.0, 2.3, 3.0, 4.5, 7.0, 20.0, 100.0, 1e6])
    expected = stats.t.isf(misses / 2, freedom)
    np.testing.assert_allclose(t_quantile(misses, freedom), expected, rtol=1e-4)


def test_independent_steps_give_the_interval_of_welch(stats) -> None:
    """Series without any autocorrelation, by construction: 1, -1 alternating does not shrink it."""
    before = np.array([10.0, 12.0] * 5)
    after = np.array([13.0, 9.0] * 8)
    change, low, high = difference(means_of(before), means_of(after))
    expected = stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.9)
    assert change == pytest.approx(0.0)
    assert (low, high) == pytest.approx((expected.low, expected.high), rel=1e-4)


def test_steps_that_depend_on_each_other_are_worth_fewer() -> None:
    waves = np.repeat([10.0, 12.0, 11.0, 9.0], 5)
    shuffled = np.random.default_rng(0).permutation(waves)
    assert means_of(waves).effective < 5
    assert means_of(shuffled).effective > 10
    assert means_of(waves).variance > 3 * means_of(shuffled).variance


@pytest.mark.parametrize(
    ("n", "rho", "at_most"),
    [
        *((n, 0.0, 0.11) for n in (5, 8, 20, 60)),
        *((n, 0.3, 0.12) for n in (5, 8, 20, 60)),
        *((n, 0.6, 0.14) for n in (8, 20, 60)),
        *((n, 0.85, 0.16) for n in (10, 20, 60)),
    ],
)
def test_one_interval_in_ten_misses_at_most(n, rho, at_most) -> None:
    """Of plain t-intervals 20 to 65% miss at these autocorrelations."""
    rng = np.random.default_rng(7)
    before, after = (autoregressive(rng, n, rho, 4000) for _ in range(2))
    rows = [[means_of(side[:, i]) for i in range(4000)] for side in (before, after)]
    rate = np.mean([missed(one, other) for one, other in zip(*rows, strict=True)])
    assert 0.02 < rate < at_most


@pytest.mark.parametrize(("n", "rho"), [(6, 0.0), (10, 0.3), (10, 0.6), (40, 0.6)])
@pytest.mark.parametrize("n_rows", [10, 200])
def test_of_a_whole_table_one_in_ten_has_a_row_that_misses(n, rho, n_rows) -> None:
    rng = np.random.default_rng(11)
    tables = 300
    wrong = 0
    for _ in range(tables):
        before, after = (means_of(autoregressive(rng, n, rho, n_rows)) for _ in range(2))
        wrong += bool(missed(before, after, n_rows).any())
    assert wrong / tables < 0.16


def test_a_large_change_is_seen_in_a_large_table() -> None:
    rng = np.random.default_rng(3)
    before, after = (autoregressive(rng, 10, 0.0, 2000) for _ in range(2))
    after[:, 17] += 8
    clear = missed(means_of(before), means_of(after), 2000)
    assert clear[17]
    assert clear.sum() <= 2


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_than_four_steps_have_no_interval(n) -> None:
    assert n < MIN_STEPS
    few, many = means_of(np.arange(n) + 1.0), means_of(np.arange(10) + 1.0)
    for pair in ((few, many), (many, few), (few, few)):
        change, low, high = difference(*pair)
        assert np.isfinite(change)
        assert np.isnan([low, high]).all()
        assert np.isnan(relative_difference(*pair)[1:]).all()


def test_equal_steps_have_an_exact_mean() -> None:
    """0.1 has no exact sum: what is left of it is no variation."""
    change, low, high = difference(means_of(np.full(7, 0.1)), means_of(np.full(9, 0.3)))
    assert (low, high) == (change, change)
    assert change == pytest.approx(0.2)


def test_a_value_that_is_certain_adds_no_error(stats) -> None:
    values = autoregressive(np.random.default_rng(1), 12, 0.0)
    half = stats.t.isf(0.05, 11) * values.std(ddof=1) / np.sqrt(12)
    means = means_of(values)
    _, low, high = difference(certain(np.array(0.0)), means)
    assert high - low >= 2 * half * (1 - 1e-9)
    assert (low + high) / 2 == pytest.approx(values.mean())


def test_a_ratio_is_that_of_the_sums() -> None:
    """Steps of 10 and 20 tokens: time per token is what all tokens took."""
    seconds, tokens = np.array([1.0, 2.2, 0.9, 1.9]), np.array([10.0, 20.0, 10.0, 20.0])
    means = ratio_means(seconds, tokens)
    assert means.mean == pytest.approx(6.0 / 60.0)
    # Time that follows the tokens does not vary per token.
    assert ratio_means(tokens / 10, tokens).variance == pytest.approx(0.0, abs=1e-20)


def test_relative_changes_agree_with_absolute_ones() -> None:
    rng = np.random.default_rng(5)
    before, after = 1 + 0.02 * rng.standard_normal(30), 0.9 + 0.02 * rng.standard_normal(30)
    one, other = means_of(before), means_of(after)
    change, low, high = (float(x) for x in difference(one, other))
    relative = relative_difference(one, other)
    assert relative[0] == pytest.approx(change / before.mean())
    assert relative[1] == pytest.approx(low / before.mean(), abs=0.002)
    assert relative[2] == pytest.approx(high / before.mean(), abs=0.002)


def test_a_useless_interval_is_finite() -> None:
    wild = np.array([1e-6, 1e-6, 1e-6, 1e3, 1e-6])
    low, high = relative_difference(means_of(wild), means_of(wild[::-1]))[1:]
    assert -1 <= low < 0 < high < np.inf


def test_medians_ignore_odd_steps() -> None:
    rng = np.random.default_rng(2)
    before, after = (1 + 0.01 * rng.standard_normal(20) for _ in range(2))
    after -= 0.1
    after[[3, 11]] = 9.0
    change, _, high = relative_difference(median_of(before), median_of(after))
    assert change == pytest.approx(-0.1, abs=0.01)
    assert high < 0
    assert relative_difference(means_of(before), means_of(after))[2] > 0


def test_intervals_of_medians_miss_rarely() -> None:
    rng = np.random.default_rng(4)
    for n in (5, 10, 40):
        rate = np.mean(
            [
                missed(
                    median_of(autoregressive(rng, n, 0.3)), median_of(autoregressive(rng, n, 0.3))
                )
                for _ in range(1500)
            ]
        )
        assert rate < 0.12, n
