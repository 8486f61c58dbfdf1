"""Samples of ranks, one at a time, become steps."""

import numpy as np

from paceline.detect.arrivals import Arrivals


def steps_of(arrivals, samples):
    return [(step, row.tolist()) for each in samples for step, row in arrivals.add(*each)]


def test_a_step_is_over_when_all_ranks_have_given_a_sample():
    arrivals = Arrivals(2)
    assert steps_of(arrivals, [(7, 1, 2.0)]) == []
    assert steps_of(arrivals, [(7, 0, 1.0)]) == [(7, [1.0, 2.0])]
    assert steps_of(Arrivals(1), [(3, 0, 1.0)]) == [(3, [1.0])]


def test_a_step_is_over_when_the_next_begins_and_at_the_end():
    arrivals = Arrivals(2)
    ((step, row),) = steps_of(arrivals, [(0, 0, 1.0), (2, 1, 5.0)])
    assert (step, row[0]) == (0, 1.0)
    assert np.isnan(row[1])
    ((step, last),) = arrivals.end()
    assert (step, last[1]) == (2, 5.0)
    assert list(arrivals.end()) == []


def test_stragglers_and_repeated_lines_are_left_out():
    arrivals = Arrivals(2)
    samples = [(s, r, 1.0) for s in range(5) for r in (0, 1) if (s, r) != (2, 1)]
    assert [step for step, _ in steps_of(arrivals, samples)] == [0, 1, 2, 3, 4]
    assert steps_of(arrivals, [(2, 1, 9.0), (4, 0, 9.0), (4, 1, 9.0)]) == []
    assert [step for step, _ in steps_of(arrivals, [(5, 0, 1.0), (5, 1, 1.0)])] == [5]
    assert arrivals.late == 3
    assert steps_of(arrivals, [(5, 0, 1.0)]) == []
    assert list(arrivals.end()) == []
    assert arrivals.late == 4


def test_a_restart_from_a_checkpoint_goes_back():
    arrivals = Arrivals(2)
    first = [(s, r, 1.0) for s in range(100) for r in (0, 1)]
    again = [(s, r, 2.0) for s in range(90, 120) for r in (1, 0)]
    found = steps_of(arrivals, first + again)
    assert [step for step, _ in found] == [*range(100), *range(90, 120)]
    assert found[100] == (90, [2.0, 2.0])
    assert arrivals.late == 0
