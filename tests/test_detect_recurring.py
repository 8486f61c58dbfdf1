"""Bursts and long steps that recur are told a few times, then belong to the job."""

import numpy as np
import pytest

from paceline.detect.detector import Detector
from paceline.detect.job import job_events
from paceline.detect.samples import burst_period

N = 6000
STEP = np.arange(N)


def noise(seed=7, spread=0.02):
    return np.random.default_rng(seed).lognormal(0, spread, N)


def told(times):
    detector, events = Detector(1), []
    detector.expected_steps = N
    for step, x in enumerate(times):
        events += detector.update(step, [x])
    return events


def onsets(events):
    return [event for event in events if event.kind == "onset"]


@pytest.mark.parametrize(("every", "length"), [(20, 4), (50, 5), (100, 12), (150, 30)])
@pytest.mark.parametrize("seed", [0, 1])
def test_long_steps_that_recur_are_told_three_times_at_most(every, length, seed):
    times = noise(seed) * np.where(STEP % every >= every - length, 1.5, 1.0)
    events = told(times)
    assert 1 <= len(onsets(events)) <= 3
    *_, last = events
    assert last.kind == "relief"
    assert length <= last.bursts_up_to <= length + 6
    assert f"of up to {last.bursts_up_to} steps are not reported from now on" in last.explain()
    (*_, job) = job_events(events, 1)
    assert job.to_mapping()["bursts_up_to"] == last.bursts_up_to
    assert "; bursts recur" in job.explain()


def test_the_period_is_said_where_they_keep_one():
    times = noise() * np.where(STEP % 100 >= 88, 1.5, 1.0)
    *_, last = told(times)
    assert last.bursts_every == 100
    assert "; bursts recur every 100 steps: those of up to 14 steps are not" in last.explain()


def test_bursts_at_random_do_not_come_back_as_long_as_they_come():
    """The memory of 2,000 samples begins anew with each, though none is told."""
    times = noise()
    for begin in range(100, N - 10, 173):
        times[begin + begin % 7 : begin + begin % 7 + 5] *= 2
    events = told(times)
    onset, relief = events
    assert (onset.kind, relief.kind, relief.bursts_up_to) == ("onset", "relief", 8)
    assert relief.step < 300


def test_a_burst_is_told_once_and_a_longer_one_again():
    times = noise()
    for begin, length in ((1000, 3), (1500, 3), (2000, 5), (2500, 40)):
        times[begin : begin + length] *= 3.5
    begins = [event.since_step for event in onsets(told(times))]
    assert begins == [1000, 2500]


@pytest.mark.parametrize("begin", [3000, 3088])
def test_a_fail_slow_among_them_is_told(begin):
    times = noise() * np.where(STEP % 100 >= 88, 1.5, 1.0)
    times[begin:] *= 1.3
    late = [event for event in onsets(told(times)) if event.step >= 2900]
    assert late
    assert begin - 12 <= late[0].since_step <= late[0].step <= begin + 20


def test_half_of_the_time_is_no_beat():
    """Flapping: each of its episodes is told."""
    times = noise() * np.where(STEP % 80 >= 40, 1.4, 1.0)
    assert len(onsets(told(times))) >= 10


@pytest.mark.parametrize(
    ("begins", "lengths", "found"),
    [
        ((10, 60, 110), (8, 8, 8), (50, 8)),
        ((10, 59, 111), (8, 9, 7), (50, 9)),
        ((10, 60, 110), (8, 3, 8), (0, 0)),  # of other lengths
        ((10, 40, 110), (8, 8, 8), (0, 0)),  # irregular
        ((10, 60), (8, 8), (0, 0)),  # two
        ((10, 30, 50), (8, 8, 8), (0, 0)),  # more than a third
    ],
)
def test_a_beat_is_three_runs_alike(begins, lengths, found):
    y = np.ones(200)
    for begin, length in zip(begins, lengths, strict=True):
        y[begin : begin + length] = 1.5
    assert burst_period(y, 200, False, 1.2)[:2] == found
