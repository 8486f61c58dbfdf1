"""Runs that are slow from their first steps on."""

import numpy as np
import pytest

import requires
from paceline.detect.slow_start import comparable, slow_run, slow_start

WARMING = np.concatenate([[9.0, 3.0, 2.0], np.ones(57)])


@pytest.fixture(scope="module")
def series():
    path = requires.data("step-series", "step_series.npz", origin="MLCommons' and modded-nanogpt's")
    with np.load(path) as file:
        return {name: file[name] for name in ("offsets", "step", "duration_s", "group", "source")}


def test_a_run_slower_than_its_repeats_from_the_start_is_told():
    finding = slow_start(1.05 * WARMING, [WARMING, 1.01 * WARMING, 0.99 * WARMING])
    assert finding is not None
    assert finding.factor == pytest.approx(1.05)
    assert finding.width == pytest.approx(0.0202, abs=1e-4)
    assert "1.05x as long as the median of 3 earlier runs" in finding.explain()


@pytest.mark.parametrize(
    "factors",
    [(1, 1, 1.02), (1, 1.02), (1,), (1, 1.05, 0.99, 1.2), (1, 1, 1.05)],
    ids=["below", "two that differ", "one", "two slow", "one slow of three"],
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


def test_two_repeats_that_agree_are_enough():
    finding = slow_start(1.05 * WARMING, [WARMING, 1.005 * WARMING])
    assert finding is not None
    assert (finding.runs, finding.steps) == (2, 50)


def test_of_four_repeats_one_may_be_slow_itself():
    finding = slow_start(1.05 * WARMING, [f * WARMING for f in (1, 1.01, 0.995, 1.06)])
    assert finding is not None
    assert finding.width == pytest.approx(0.015, abs=1e-3)


def test_a_run_that_is_slow_as_a_whole_is_told():
    run = np.ones(200)
    run[60:] = 1.05
    assert slow_start(run, [np.ones(200)] * 3) is None
    finding = slow_run(run, [np.ones(180)] * 3 + [np.ones(90)])
    assert finding is not None
    assert (finding.runs, finding.steps) == (3, 180)
    assert slow_run(np.ones(200), [np.ones(180)] * 3) is None


def test_runs_are_comparable_where_they_begin_at_the_same_step():
    runs = [(0, WARMING), (31, WARMING), (1152, WARMING), (500, WARMING)]
    assert len(comparable(1, runs)) == 2
    assert len(comparable(1152, runs)) == 1
    assert comparable(600, runs) == []


def test_a_real_run_that_is_slower_than_its_repeats_is_told(series):
    """Each public MLPerf run, 5% slower than it was, against the others of its system."""
    by_group = {}
    for run in np.flatnonzero(["mlcommons" in source for source in series["source"]]):
        rows = slice(series["offsets"][run], series["offsets"][run + 1])
        begin = int(series["step"][rows.start])
        by_group.setdefault(series["group"][run], []).append((begin, series["duration_s"][rows]))
    told = unchanged = 0
    for runs in by_group.values():
        for n, (begin, seconds) in enumerate(runs):
            earlier = comparable(begin, runs[:n] + runs[n + 1 :])
            told += slow_run(1.05 * seconds.astype(float), earlier) is not None
            unchanged += slow_run(seconds, earlier) is not None
    assert sum(map(len, by_group.values())) == 184
    assert (told, unchanged) == (184, 0)
