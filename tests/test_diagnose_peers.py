"""Causes within groups of a pass, in jobs that an event simulator ran with and without them."""

import random

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.whatif import analyze
from program_jobs import Compute, Launch, Run, Wait, trace_of_runs

LAYERS, STEPS = 4, 8
NEAR = 0.03  # of the step: the rule of benchmarks/truth.py


def program(kind):
    """A forward and a backward of some layers, each with a collective within it; then an update."""
    steps = []
    for way in ("forward", "backward"):
        for layer in range(LAYERS):
            name = (way, layer)
            steps += [Compute(f"{way}-compute", 0, 0), Launch(kind, name), Wait(name)]
        steps.append(Compute(f"{way}-compute", 0, 0))
    steps += [Launch("grads-reduce-scatter", "g"), Wait("g"), Compute("optimizer")]
    return steps


OPS = {
    kind: [step.kind for step in program(kind) if not isinstance(step, Wait)]
    for kind in ("tensor-comm", "expert-comm")
}
BASE_S = {
    "forward-compute": 0.02,
    "backward-compute": 0.04,
    "tensor-comm": 0.004,
    "expert-comm": 0.004,
    "grads-reduce-scatter": 0.02,
    "optimizer": 0.005,
}


def runs(kind, factor, *, dp=2, peers=4, jitter=0.01, seed=0):
    """Steps of a job; ``factor(step, replica, nth, label)`` of the op's usual time."""
    programs = dict.fromkeys([(replica, 0) for replica in range(dp * peers)], program(kind))

    def seconds(step):
        def of(key):
            replica, _, nth = key
            label = OPS[kind][nth]
            noise = random.Random(f"{seed} {step} {key}").gauss(1, jitter)
            return BASE_S[label] * noise * factor(step, replica, nth, label)

        return of

    return [Run(programs, seconds(step), peers=peers) for step in range(STEPS)]


def advised(some):
    measured = from_trace(trace_of_runs(some), keep_clocks=True)
    result = analyze(measured)
    case = Case(measured, result, diagnose(measured, result))
    return result, advise(case, REMEDIES)


def mean_s(some):
    return float(np.mean([run.step_s for run in some]))


def found(advice, cause):
    return next((f for f in advice.diagnosis.findings if f.cause == cause), None)


def gain_of(advice, remedy):
    return next(r.step_time_s for r in advice.remedies if r.remedy == remedy)


def test_a_healthy_group_has_no_findings():
    result, advice = advised(runs("tensor-comm", lambda *_: 1.0))
    assert advice.diagnosis.findings == ()
    assert result.slowdown < 1.05


def test_a_slow_gpu_of_a_tensor_parallel_group_is_named():
    """Replica 5 is dp 1, peer 1; without it a step takes what the healthy job takes."""

    def factor(step, replica, nth, label):
        return 1.5 if replica == 5 and label.endswith("compute") else 1.0

    _, advice = advised(runs("tensor-comm", factor))
    finding = found(advice, "worker")
    assert finding.where["workers"] == [[5, 0]]
    assert "worker dp 1, stage 0, peer 1 is 1.5" in finding.text
    healthy = mean_s(runs("tensor-comm", lambda *_: 1.0))
    assert gain_of(advice, "replace-worker") == pytest.approx(healthy, rel=NEAR)


def test_a_slow_connection_within_a_group_is_no_slow_gpu():
    """All collectives of dp 1's group take four times as long: NVLink, say."""

    def factor(step, replica, nth, label):
        return 4.0 if replica >= 4 and label == "tensor-comm" else 1.0

    _, advice = advised(runs("tensor-comm", factor))
    assert [f.cause for f in advice.diagnosis.findings if f.share > 0.1] == ["peer-network"]
    finding = found(advice, "peer-network")
    assert finding.where["workers"] == [[4, 0], [5, 0], [6, 0], [7, 0]]
    assert finding.text.startswith("the tensor-parallel group of dp 1, stage 0, peer 0")
    assert finding.evidence["median_over_usual"] == pytest.approx(4.0, rel=0.1)
    healthy = mean_s(runs("tensor-comm", lambda *_: 1.0))
    assert gain_of(advice, "fix-peer-network") == pytest.approx(healthy, rel=NEAR)


def tokens(spread):
    """Shares of the tokens, of mean 1 in each group, other ones in each layer and step.

    Attention, dispatch, experts, combine: every other compute is one of experts.
    """
    of_pass = 2 * LAYERS + 1

    def factor(step, replica, nth, label):
        if not label.endswith("compute") or nth % of_pass // 2 % 2 == 0:
            return 1.0
        rng = np.random.default_rng([step, nth])
        return float((1 - spread + spread * 4 * rng.dirichlet(np.full(4, 2.0)))[replica])

    return factor


def test_uneven_experts_are_told_from_slow_gpus():
    job = {"dp": 4, "peers": 1}
    some = runs("expert-comm", tokens(0.6), **job)
    _, advice = advised(some)
    finding = found(advice, "expert-imbalance")
    assert finding is not None
    assert found(advice, "worker") is None
    even = mean_s(runs("expert-comm", lambda *_: 1.0, **job))
    assert gain_of(advice, "balance-experts") == pytest.approx(even, rel=NEAR)


def test_even_experts_are_no_finding():
    _, advice = advised(runs("expert-comm", lambda *_: 1.0, dp=4, peers=1))
    assert found(advice, "expert-imbalance") is None
