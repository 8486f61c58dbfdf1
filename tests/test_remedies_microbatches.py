from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.diagnose import diagnose
from paceline.errors import RemedyError
from paceline.graph import from_trace
from paceline.remedies.microbatches import best_counts, propose, redistribute
from paceline.remedies.remedy import Case, predicted_step_s
from paceline.remedies.resize import resizer
from paceline.synth import SlowLink, SlowWorker, SynthSpec, synthesize
from paceline.whatif import analyze

SPEC = SynthSpec(dp=4, pp=4, microbatches=8, steps=4)


def case_of(spec: SynthSpec) -> Case:
    measured = from_trace(synthesize(spec))
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result))


def test_redistribution_by_hand():
    # Replica 0 needs 2 s each, the others 1 s: of 8, it takes 2 and the others 3 (or 4 in all).
    times = np.arange(1, 9) * np.array([[2.0], [1.0], [1.0]])
    found = redistribute(times, 1, 9, np.array([3, 3, 3]))
    assert found.tolist() == [2, 4, 3]
    # Nothing moves where nothing is gained.
    assert redistribute(times[1:], 1, 6, np.array([3, 3])).tolist() == [3, 3]
    assert redistribute(np.ones((3, 4)), 2, 9, np.array([3, 3, 3])).tolist() == [3, 3, 3]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100_000))
def test_redistribution_is_optimal_and_changes_little(seed):
    rng = np.random.default_rng(seed)
    n, least, width = int(rng.integers(1, 4)), int(rng.integers(1, 3)), int(rng.integers(1, 5))
    step = rng.uniform(0, 1, (n, width)) if rng.random() < 0.7 else rng.integers(0, 3, (n, width))
    times = np.cumsum(step, axis=1).astype(float)
    now = rng.integers(least, least + width, n)
    total = int(now.sum())
    found = redistribute(times, least, total, now)
    assert found.sum() == total
    assert found.min() >= least

    def largest(counts) -> float:
        return float(times[np.arange(n), np.asarray(counts) - least].max())

    possible = [c for c in product(range(least, least + width), repeat=n) if sum(c) == total]
    assert largest(found) == min(map(largest, possible))
    assert largest(found) <= largest(now)
    if largest(found) == largest(now):  # never worse, and then nothing moves
        assert found.tolist() == now.tolist()


def test_what_cannot_be_shared_out():
    with pytest.raises(RemedyError, match="9 cannot be distributed over 2 replicas"):
        redistribute(np.ones((2, 4)), 1, 9, np.array([4, 5]))


def test_many_replicas():
    rng = np.random.default_rng(0)
    times = np.arange(1, 65) * rng.uniform(1, 2, (2000, 1))
    now = np.full(2000, 32)
    found = redistribute(times, 1, int(now.sum()), now)
    slack = times[np.arange(2000), found - 1].max() / times.max()
    assert found.sum() == now.sum()
    assert slack < 0.75 * times[:, 31].max() / times.max()


JOBS = {
    "one stage": {"pp": 1},
    "1f1b": {},
    "first stage": {"slow_workers": (SlowWorker(0, 0, 1.8),)},
    "gpipe": {"schedule": "gpipe"},
    "interleaved": {"vpp": 2, "microbatches": 16, "slow_workers": (SlowWorker(1, 0, 2.0),)},
    "no no-ops": {"vpp": 2, "microbatches": 16, "noops": False, "overlap": True},
    "replicas differ": {"microbatches": (8, 8, 6, 10)},
    "bigger": {"dp": 16, "pp": 2, "microbatches": 24},
    "two slow": {"dp": 8, "slow_workers": (SlowWorker(1, 0, 1.5), SlowWorker(6, 3, 2.5))},
    "link": {"slow_workers": (), "slow_links": (SlowLink(2, 1, 60.0),), "microbatches": 16},
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", JOBS)
def test_the_predicted_gain_is_what_the_job_then_gains(name, seed):
    slow = {"slow_workers": (SlowWorker(1, (JOBS[name].get("pp", 4) - 1) // 2, 1.6),)}
    spec = replace(SPEC, noise=0.01 + 0.01 * seed, seed=seed, **(slow | JOBS[name]))
    case = case_of(spec)
    remedy = propose(case)
    counts = np.array(spec.replica_microbatches)
    for entry in remedy.change["microbatches"]:
        assert counts[entry["dp"]] == entry["before"] != entry["after"]
        counts[entry["dp"]] = entry["after"]
    assert counts.sum() == sum(spec.replica_microbatches) == remedy.change["total"]
    assert not (counts % remedy.change["unit"]).any()
    after = analyze(synthesize(replace(spec, microbatches=tuple(counts.tolist()))))
    assert remedy.step_time_s == pytest.approx(after.simulated_s.mean(), rel=0.01)
    assert remedy.gain == pytest.approx(1 - remedy.step_time_s / case.result.simulated_s.mean())
    assert remedy.gain > 0.01
    assert set(remedy.findings) <= {"worker", "link"}
    assert remedy.findings


@pytest.mark.parametrize("name", JOBS)
def test_resizing_to_the_same_numbers_changes_nothing(name):
    measured = from_trace(synthesize(replace(SPEC, **JOBS[name])))
    resize = resizer(measured)
    again = resize.durations(resize.counts)
    np.testing.assert_allclose(
        predicted_step_s(again), predicted_step_s(measured.durations), rtol=1e-12
    )
    unit = measured.graph.n_pp if "vpp" in JOBS[name] else 1
    assert resize.unit == unit


def test_a_replica_alone_takes_what_the_pipeline_says():
    spec = replace(SPEC, noise=0.0, slow_workers=(SlowWorker(1, 1, 2.0),))
    resize = resizer(from_trace(synthesize(spec)))
    for n in (1, 5, 8, 11):
        alone = replace(spec, dp=1, microbatches=n, slow_workers=())
        slow = replace(alone, slow_workers=(SlowWorker(0, 1, 2.0),))
        expected = [analyze(synthesize(one)).simulated_s.mean() for one in (alone, slow)]
        found = resize.replica_s(n)
        np.testing.assert_allclose(found[[0, 1]], expected, rtol=1e-9)
    times = np.array([resize.replica_s(n) for n in range(1, 12)])
    assert (np.diff(times, axis=0) > 0).all()


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1000))
def test_the_numbers_are_optimal_for_the_replicas_alone(seed):
    rng = np.random.default_rng(seed)
    spec = replace(
        SPEC,
        dp=3,
        pp=int(rng.integers(1, 4)),
        microbatches=4,
        steps=2,
        seed=seed,
        slow_workers=(SlowWorker(0, 0, float(rng.uniform(1.0, 3.0))),),
    )
    resize = resizer(from_trace(synthesize(spec)))
    counts, alone = best_counts(resize)
    table = np.stack([resize.replica_s(n) for n in range(1, 11)], axis=1)
    np.testing.assert_allclose(alone, table[:, 3])
    possible = [c for c in product(range(1, 11), repeat=3) if sum(c) == 12]
    best = min(max(table[i, n - 1] for i, n in enumerate(c)) for c in possible)
    assert max(table[i, n - 1] for i, n in enumerate(counts)) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dp": 1}, "one replica"),
        ({}, "too little for one of its 8 microbatches to move"),
        ({"vpp": 2, "slow_workers": (SlowWorker(0, 0, 1.2),)}, "too little for 4 of its 8"),
        ({"microbatches": 1}, "have 1 microbatch, the least possible"),
        ({"vpp": 2, "microbatches": 4}, "the least possible"),
    ],
)
def test_where_it_does_not_apply(change, message):
    with pytest.raises(RemedyError, match=message):
        propose(case_of(replace(SPEC, **change)))


def test_an_unknown_order_of_work_is_said():
    measured = from_trace(synthesize(SPEC))
    graph = measured.graph
    swapped = replace(measured, graph=replace(graph, noop=~graph.noop))
    with pytest.raises(RemedyError, match="none of the known schedules"):
        resizer(swapped)
