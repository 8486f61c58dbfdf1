"""Runs that are slow from their first steps on."""

import numpy as np
import pytest

from paceline.detect.slow_start import slow_start

WARMING = np.concatenate([[9.0, 3.0, 2.0], np.ones(57)])


def test_a_run_slower_than_its_repeats_from_the_start_is_told():
    finding = slow_start(1.05 * WARMING, [WARMING, 1.01 * WARMING, 0.99 * WARMING])
    assert finding is not None
    assert finding.factor == pytest.approx(1.05)
    assert finding.width == pytest.approx(0.0202, abs=1e-4)
    assert "1.05x as long as the median of 3 earlier runs" in finding.explain()


@pytest.mark.parametrize(
    "factors", [(1, 1, 1.02), (1, 1.05), (1, 1.05, 0.99, 1.2)], ids=["below", "few", "one slow"]
)
def test_nothing_is_said_where_the_repeats_do_not_allow_it(factors):
    run = 1.03 if factors == (1, 1, 1.02) else 1.05
    assert slow_start(run * WARMING, [f * WARMING for f in factors]) is None


def test_samples_that_are_missing_are_left_out():
    run = 1.1 * WARMING
    run[5:20] = np.nan
    finding = slow_start(run, [WARMING] * 3)
    assert finding is not None
    assert finding.factor == pytest.approx(1.1)
    assert slow_start(np.full(60, np.nan), [WARMING] * 3) is None
