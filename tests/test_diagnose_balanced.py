"""Uneven work that is shared evenly: what goes with it, and what stays."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.diagnose.balanced import balanced_s
from paceline.graph import from_trace
from paceline.remedies import Case
from paceline.remedies.peer_groups import EXPERTS
from paceline.synth import Layers, SlowWorker, SynthSpec, synthesize
from paceline.trace.door import arrange
from paceline.whatif import analyze
from peer_jobs import even, runs, tokens
from program_jobs import Compute, Launch, Run, Wait, columns_of

NEAR = 0.03  # of the step: the rule of benchmarks/truth.py
PAIRS = np.array([0, 0, 1, 1])


def case_of(trace):
    measured = from_trace(trace, keep_clocks=True)
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result))


def test_members_differ_as_beside_the_exchange():
    """Means of the pairs: 3 and 4 s; beside the exchange members take 1:1 and 3:5 of 2 means."""
    uneven_s = np.array([[[2.0, 4.0, 4.0, 4.0]]])
    beside_s = np.array([[[1.0, 1.0, 3.0, 5.0]]])
    np.testing.assert_allclose(balanced_s(uneven_s, beside_s, PAIRS), [[[3, 3, 3, 5]]])


def test_computes_that_outnumber_those_beside_do_not_vary_alike():
    uneven_s = np.ones((2, 2, 2))
    beside_s = np.array([[[1.0, 1.0], [1.0, 3.0]]])
    expected = [[[1, 1], [0.5, 1.5]], [[0.5, 1.5], [1, 1]]]
    np.testing.assert_allclose(balanced_s(uneven_s, beside_s, np.zeros(2, dtype=int)), expected)


@pytest.mark.parametrize("pauses_beside", [True, False])
def test_a_pause_stays_where_others_pause(pauses_beside):
    """A member pauses 2 s in one of ten steps; each takes 1 s else."""
    uneven_s, beside_s = np.ones((1, 10, 4)), np.ones((1, 10, 4))
    uneven_s[0, 3, 1] += 2.0
    if pauses_beside:
        beside_s[0, 7, 2] += 2.0
    balanced = balanced_s(uneven_s, beside_s, np.zeros(4, dtype=int))
    expected = np.ones((1, 10, 4))
    if pauses_beside:
        expected[0, 3, 1] += 2.0
    else:
        expected[0, 3] = 1.5
    np.testing.assert_allclose(balanced, expected)


@pytest.mark.parametrize("jitter", [0.01, 0.03, 0.1])
def test_noise_stays_where_the_experts_get_even_work(jitter):
    """Until 0.2 the noise went with the shares, and layers below the finding's level kept them."""
    job = {"dp": 4, "peers": 1, "jitter": jitter, "seed": 3}
    now, without = runs("expert-comm", tokens(0.87), **job), runs("expert-comm", even, **job)
    promise = EXPERTS.proposed(case_of(arrange(columns_of(now), None)))
    true_s = np.mean([run.step_s for run in without])
    assert promise.step_time_s == pytest.approx(true_s, rel=0.015)
    low, high = promise.interval
    assert low <= 1 - true_s / np.mean([run.step_s for run in now]) <= high


@pytest.mark.parametrize(
    "fault",
    [
        {"pp": 2, "microbatches": 8, "slow_workers": (SlowWorker(1, 1, 1.47),)},
        {"slow_workers": (SlowWorker(5, 0, 1.3),)},
        {"sequence_imbalance": 0.1},
        {"noise": 0.1},
    ],
)
def test_other_faults_stay(fault):
    """A worker that is slow in one stage made the other stage's experts look uneven."""
    layers = Layers(4, ep=8, expert_imbalance=0.5)
    base = SynthSpec(dp=8, pp=1, microbatches=2, steps=8, noise=0.03, layers=layers)
    spec = replace(base, **fault)
    promise = EXPERTS.proposed(case_of(synthesize(spec)))
    balanced = synthesize(replace(spec, layers=replace(layers, expert_imbalance=0.0)))
    assert promise.step_time_s == pytest.approx(np.mean(balanced.truth["step_s"]), rel=NEAR)


def test_without_computes_beside_the_interval_reaches_to_no_gain():
    """Every pass begins behind an exchange, so what is share and what is noise stays open."""
    program = []
    for way in ("forward", "backward"):
        for layer in range(3):
            exchange = Launch("expert-comm", (way, layer))
            program += [exchange, Wait((way, layer)), Compute(f"{way}-compute", 0, 0)]
    program += [Launch("grads-reduce-scatter", "g"), Wait("g"), Compute("optimizer")]
    ops = [op for op in program if not isinstance(op, Wait)]

    def seconds(step):
        def of(key):
            if not ops[key[2]].kind.endswith("compute"):
                return 0.01
            share = np.random.default_rng([step, key[2]]).dirichlet(np.full(4, 2.0))[key[0]]
            return 0.05 + 0.2 * float(share)

        return of

    steps = [
        Run(dict.fromkeys([(dp, 0) for dp in range(4)], program), seconds(n)) for n in range(8)
    ]
    promise = EXPERTS.proposed(case_of(arrange(columns_of(steps), None)))
    assert promise.gain > 0.1
    assert promise.interval[0] <= 0
    assert any("reaches down to no gain" in note for note in promise.notes)
