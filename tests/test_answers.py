"""Answers beside the truth: jobs of the independent world, run again with the change made.

The tables over hundreds of jobs are ``benchmarks/truth.py``'s; these are the ones that went wrong.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from truth.case import Case
from truth.cases_others import healthy_cases
from truth.examine import examine

from world.faults import Delay, HeavyEnds, LateMember, SlowLink, SlowMachine, SlowNic
from world.noise import LognormalMembers, LognormalOps
from world.plant import World, even_setup
from world.programs import CLIP, FORWARD, GATHER, SCATTER


def asked(size, *faults, steps=8, seed=7, noise=0.01, layers=None, more=()):
    """What the product says of a job, and what comes of its remedies."""
    dp, stages, microbatches = size
    noise = (LognormalOps(noise), *more)
    world = World(seed, dp, stages, steps, microbatches, faults=faults, noise=noise)
    setup = even_setup(world, microbatches)
    if layers:
        setup = replace(setup, layers=layers)
    record = examine(Case("test", "test", world, setup, {}))
    assert "crash" not in record, record["crash"]
    return record


def outcome_of(record, name):
    """The outcome of a remedy; None where it was refused."""
    rows = [row for row in record["outcomes"] if row["remedy"] == name]
    assert bool(rows) != (name in record["answer"]["refused"])
    return rows[0] if rows else None


def findings_of(record):
    return [f for f in record["answer"]["findings"] if f["cause"] != "unexplained"]


def finding_of(record, cause):
    return next(f for f in findings_of(record) if f["cause"] == cause)


INTERLEAVED = {
    "link 60x": ((4, 4, 8), (SlowLink(1, 1, 60.0),)),
    "link 120x": ((4, 4, 8), (SlowLink(1, 1, 120.0),)),
    "link 60x, one replica": ((1, 4, 8), (SlowLink(0, 1, 60.0),)),
    "launch delays": ((4, 4, 8), (Delay(FORWARD, 0.006),)),
    "last stage": ((4, 4, 4), (HeavyEnds(last=4.0),)),
    "slow worker": ((4, 4, 8), (SlowMachine(2, 1, 1.5),)),
    "no fault": ((4, 4, 8), ()),
}


@pytest.mark.parametrize("name", INTERLEAVED)
def test_interleaving_keeps_the_faults_or_is_not_offered(name):
    size, faults = INTERLEAVED[name]
    outcome = outcome_of(asked(size, *faults), "interleave")
    if outcome is None:
        assert "link" in name or "delays" in name  # it loses there
    else:
        assert outcome["step_error"] == pytest.approx(0, abs=0.03)
        low, high = outcome["interval"]
        assert low <= outcome["true_gain"] <= high


def test_chunk_counts_divide_the_layers():
    change = next(
        remedy["change"]
        for remedy in asked((4, 4, 8), layers=(9, 9, 9, 9))["answer"]["remedies"]
        if remedy["remedy"] == "interleave"
    )
    assert [row["chunks"] for row in change["compared"]] == [3]


@pytest.mark.parametrize("share", [0.4, 0.5, 0.6])
@pytest.mark.parametrize("dp", [2, 8])
def test_one_group_that_is_slow_in_many_steps(dp, share):
    record = asked((dp, 1, 8), SlowNic(dp - 1, 0, 10.0, share), steps=20)
    answer = record["answer"]
    assert not answer["is_healthy"]
    assert answer["waste"] == pytest.approx(record["true_loss"], abs=0.03)
    fixed = outcome_of(record, "fix-nic")
    assert fixed["step_error"] == pytest.approx(0, abs=0.03)


def test_healthy_jobs_under_ten_kinds_of_noise_have_hardly_a_finding():
    """Mild and strong; of the small sizes, so that it takes seconds."""
    cases = [case for case in healthy_cases(31) if case.size < 8 * 4 * 16 * 8][:60]
    assert len(cases) >= 48
    named = [(case.id, findings_of(examine(case))) for case in cases]
    false = [(id_, found) for id_, found in named if found]
    assert len(false) <= 1, false


@pytest.mark.parametrize("cv", [0.2, 0.3])
def test_members_that_jitter_on_their_own_accuse_no_group(cv):
    false = []
    for seed in range(12):
        size = ((4, 1, 8), (4, 2, 8), (8, 2, 8))[seed % 3]
        false += findings_of(asked(size, seed=seed, more=(LognormalMembers(cv),)))
    assert len(false) <= 1, false


@pytest.mark.parametrize("stages", [1, 2])
def test_a_member_that_ends_late_is_no_clock(stages):
    late = LateMember(1, stages - 1, 0.05, (GATHER, SCATTER, CLIP))
    record = asked((4, stages, 8), late)
    assert not record["answer"]["clocks_corrected"]
    assert record["answer"]["discrepancy"] < 0.01
    assert [f["cause"] for f in findings_of(record)] == ["dp-network"]
    assert outcome_of(record, "fix-nic")["gain_error"] == pytest.approx(0, abs=0.003)
    interleaved = outcome_of(record, "interleave")
    assert interleaved is None or abs(interleaved["step_error"]) < 0.03


@pytest.mark.parametrize(
    ("faults", "workers"),
    [
        ((SlowMachine(2, 1, 1.05),), [[2, 1]]),
        (tuple(SlowMachine(1, stage, 1.04) for stage in range(2)), [[1, 0], [1, 1]]),
    ],
    ids=["worker 1.05x", "replica 1.04x"],
)
def test_weak_causes_that_repeat_are_named(faults, workers):
    record = asked((4, 2, 8), *faults, noise=0.005)
    finding = finding_of(record, "worker")
    assert sorted(finding["where"]["workers"]) == workers
    assert finding["confidence"] >= 0.9
    assert finding["interval"][0] > 0
    replaced = outcome_of(record, "replace-worker")
    assert replaced["gain_error"] == pytest.approx(0, abs=0.003)


def test_two_of_three_workers_slow_are_right_or_ambiguous():
    record = asked((3, 2, 6), SlowMachine(0, 1, 1.3), SlowMachine(2, 1, 1.3), noise=0.005)
    [finding] = findings_of(record)
    if finding["cause"] == "worker":
        assert sorted(finding["where"]["workers"]) == [[0, 1], [2, 1]]
    else:
        assert finding["cause"] == "stage-imbalance"
        assert finding["alternative"] == "worker"
        assert finding["confidence"] < 0.9


def test_the_steps_of_a_worker_slow_at_times_are_named():
    fault = SlowMachine(1, 1, 1.4, 0.25)
    record = asked((4, 2, 8), fault)
    finding = finding_of(record, "worker")
    assert finding["where"]["workers"] == [[1, 1]]
    steps = finding["evidence"]["steps"]
    assert len(steps) == 2
    low, high = finding["interval"]
    assert 0 <= low <= finding["share"] <= high <= 1.2


def test_a_replica_that_may_be_slow_forbids_an_exchange_of_microbatches():
    """Costs of microbatches vary by 38%, so that 1.5x slow shows by 3.5 standard errors only."""
    from world.faults import UnevenData
    from world.noise import HeavyTails, Spread

    world = World(
        12075, 3, 1, 8, 6,
        faults=(UnevenData(cv=0.35), SlowMachine(1, 0, 1.5)),
        noise=(LognormalOps(0.02), HeavyTails("pareto", 0.3), LognormalMembers(0.1), Spread(0.007)),
    )  # fmt: skip
    record = examine(Case("test", "test", world, even_setup(world, 6), {}))
    assert "microbatches open" in record["answer"]["refused"]["sequence-balance"]
    assert finding_of(record, "sequence-length")["alternative"] == "worker"
