"""Votes on the structure of steps where the steps disagree, and microbatches of any number."""

import random

import numpy as np
import pytest

from jobs import Spec, make_rows, trace_of
from paceline.graph import from_trace

ORDERS = ("FFFBBB", "FBFBFB", "FFBFBB", "FFBBFB")


def ordered(step, order, backwards=(0, 1, 2)):
    """One worker's step: forwards of microbatches 0, 1, 2 and backwards, one second each."""
    rows = []
    count = {"forward-compute": 0, "backward-compute": 0}
    for at, letter in enumerate(order):
        kind = "forward-compute" if letter == "F" else "backward-compute"
        seq = count[kind]
        count[kind] += 1
        row = {"step": step, "dp": 0, "pp": 0, "kind": kind, "seq": seq, "chunk": 0}
        row |= {"microbatch": seq if letter == "F" else backwards[seq]}
        rows.append(row | {"start": float(at), "duration": 1.0})
    return rows


def kept(*steps):
    measured = from_trace(trace_of([row for rows in steps for row in rows]))
    assert set(measured.left_out) == set(range(len(steps))) - set(measured.steps.tolist())
    return measured.steps.tolist()


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_steps_that_with_the_usual_replicas_stays(first):
    """Replica 1 has 4 and 6 microbatches: 4 is what replica 0 has, though 6 are more ops."""
    counts = [(4, 4), (4, 6)] if first == 0 else [(4, 6), (4, 4)]
    rows = []
    for step, microbatches in enumerate(counts):
        rows += make_rows(Spec(microbatches=microbatches, steps=1, first_step=step))
    measured = from_trace(trace_of(rows))
    assert measured.steps.tolist() == [first]
    assert measured.graph.n_variants == 1
    assert "6 forward-compute ops, usual are 4" in measured.left_out[1 - first]


@pytest.mark.parametrize("broken", [0, 1])
def test_of_two_steps_of_one_replica_that_with_more_ops_stays(broken):
    rows = make_rows(Spec(microbatches=(3,), steps=2))
    rows = [r for r in rows if (r["step"], r["pp"], r["kind"]) != (broken, 1, "optimizer")]
    assert from_trace(trace_of(rows)).steps.tolist() == [1 - broken]


@pytest.mark.parametrize("places", [(0, 1), (3, 4), (1, 3)])
def test_orders_that_are_odd_in_different_ways_do_not_add_up(places):
    """Two steps of five agree; the three others differ from them and from each other."""
    odd = iter(ORDERS[1:])
    steps = [ordered(s, ORDERS[0] if s in places else next(odd)) for s in range(5)]
    assert kept(*steps) == list(places)


@pytest.mark.parametrize("places", [(0, 1), (3, 4), (1, 3)])
def test_microbatches_that_are_odd_in_different_ways_do_not_add_up(places):
    """The same with the order in which microbatches go backward."""
    odd = iter([(2, 1, 0), (1, 0, 2), (0, 2, 1)])
    steps = [ordered(s, "FFFBBB", (0, 1, 2) if s in places else next(odd)) for s in range(5)]
    assert kept(*steps) == list(places)


@pytest.mark.parametrize("per", [("dp",), ("step",), ("step", "dp")], ids="-".join)
@pytest.mark.parametrize("spec", [Spec(steps=3), Spec(pp=2, vpp=2, steps=2)], ids=["1", "vpp"])
def test_microbatches_may_have_any_number(per, spec):
    """Sample numbers, other ones in every replica or step, in no order: nothing changes."""
    rows = make_rows(spec)
    expected = from_trace(trace_of(rows))
    rng = random.Random(0)
    names: dict[tuple, int] = {}
    for row in rows:
        if row["microbatch"] >= 0:
            key = (*(row[name] for name in per), row["microbatch"])
            row["microbatch"] = names.setdefault(key, rng.randrange(2**31))
    measured = from_trace(trace_of(rows))
    assert measured.steps.tolist() == expected.steps.tolist()
    assert measured.warnings == expected.warnings
    np.testing.assert_array_equal(measured.durations.values, expected.durations.values)
    np.testing.assert_array_equal(measured.graph.microbatch, expected.graph.microbatch)
