"""Planned garbage collection."""

from dataclasses import replace

import pytest

from paceline.errors import RemedyError
from paceline.remedies.planned_gc import EVERY_STEPS, propose
from paceline.synth import SynthSpec
from remedy_cases import analysed, case_of

PAUSE_S = 0.25


@pytest.mark.parametrize(
    ("dp", "pp", "seed", "noise"), [(4, 2, 0, 0.01), (8, 4, 1, 0.02), (16, 8, 2, 0.01)]
)
def test_the_gain_is_right(dp, pp, seed, noise):
    calm = SynthSpec(dp=dp, pp=pp, microbatches=16, steps=8, seed=seed, noise=noise)
    remedy = propose(case_of(replace(calm, gc_pauses=(0.02, PAUSE_S))))
    every = remedy.change["every_steps"]
    truth = float(analysed(calm).simulated_s.mean()) + PAUSE_S / every
    assert remedy.step_time_s == pytest.approx(truth, rel=0.01)
    assert remedy.findings == ("gc",)
    assert remedy.gain > 0.02
    # 16 forwards per step at 2%: a worker collects about every 3 steps
    assert remedy.change["steps_between_automatic"] == pytest.approx(3.1, rel=0.5)


@pytest.fixture(scope="module")
def case():
    return case_of(SynthSpec(dp=16, pp=2, microbatches=8, steps=6, gc_pauses=(0.01, PAUSE_S)))


def test_the_table_grows_towards_no_collections_at_all(case):
    table = propose(case).change["table"]
    gains = [row["gain"] for row in table]
    assert [row["every_steps"] for row in table] == list(EVERY_STEPS)
    assert gains == sorted(gains)


def test_the_shortest_interval_that_gains_enough_is_proposed(case):
    change = propose(case).change
    chosen = next(r for r in change["table"] if r["every_steps"] == change["every_steps"])
    limit = change["table"][-1]["gain"]
    before = [r for r in change["table"] if r["every_steps"] < change["every_steps"]]
    assert chosen["gain"] >= 0.94 * limit
    assert all(row["gain"] < 0.96 * limit for row in before)


def test_the_user_may_choose_the_interval(case):
    remedy = propose(replace(case, options={"every_steps": 7}))
    assert remedy.change["every_steps"] == 7
    with pytest.raises(RemedyError, match="give 1 or more"):
        propose(replace(case, options={"every_steps": 0}))


def test_without_collections_it_does_not_apply():
    with pytest.raises(RemedyError, match="no garbage collection"):
        propose(case_of(SynthSpec(dp=4, pp=2, microbatches=4, steps=3)))
