"""Causes within groups of a pass, in jobs that an event simulator ran with and without them."""

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.trace import Job
from paceline.trace.door import arrange
from paceline.whatif import analyze
from peer_jobs import even, runs, slow_connection, slow_gpu, tokens
from program_jobs import columns_of

NEAR = 0.03  # of the step: the rule of benchmarks/truth.py


def advised(some, job=None):
    measured = from_trace(arrange(columns_of(some), job), keep_clocks=True)
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
    result, advice = advised(runs("tensor-comm", even))
    assert advice.diagnosis.findings == ()
    assert result.slowdown < 1.05


def test_a_slow_gpu_of_a_tensor_parallel_group_is_named():
    """Replica 5 is dp 1, peer 1; without it a step takes what the healthy job takes."""
    _, advice = advised(runs("tensor-comm", slow_gpu))
    finding = found(advice, "worker")
    assert finding.where["workers"] == [[5, 0]]
    assert "worker dp 1, stage 0, peer 1 is 1.5" in finding.text
    healthy = mean_s(runs("tensor-comm", even))
    assert gain_of(advice, "replace-worker") == pytest.approx(healthy, rel=NEAR)


def test_a_slow_connection_within_a_group_is_no_slow_gpu():
    _, advice = advised(runs("tensor-comm", slow_connection))
    assert [f.cause for f in advice.diagnosis.findings if f.share > 0.1] == ["peer-network"]
    finding = found(advice, "peer-network")
    assert finding.where["workers"] == [[4, 0], [5, 0], [6, 0], [7, 0]]
    assert finding.text.startswith("the tensor-parallel group of dp 1, stage 0, peer 0")
    assert finding.evidence["median_over_usual"] == pytest.approx(4.0, rel=0.1)
    healthy = mean_s(runs("tensor-comm", even))
    assert gain_of(advice, "fix-peer-network") == pytest.approx(healthy, rel=NEAR)


def test_uneven_experts_are_told_from_slow_gpus():
    job = {"dp": 4, "peers": 1}
    some = runs("expert-comm", tokens(0.6), **job)
    _, advice = advised(some)
    finding = found(advice, "expert-imbalance")
    assert finding is not None
    assert found(advice, "worker") is None
    shared = mean_s(runs("expert-comm", even, **job))
    assert gain_of(advice, "balance-experts") == pytest.approx(shared, rel=NEAR)


def test_even_experts_are_no_finding():
    _, advice = advised(runs("expert-comm", even, dp=4, peers=1))
    assert found(advice, "expert-imbalance") is None


def test_uneven_context_ranks_are_told():
    """Peers are context-parallel where the job says so; rows alone do not tell."""
    some, even_ones = (runs("context-comm", f, dp=1, peers=4) for f in (tokens(0.6), even))
    job = Job(1, 1, dsp_size=4, world_size=4)
    _, advice = advised(some, job)
    assert found(advice, "context-imbalance") is not None
    assert found(advice, "worker") is None
    assert gain_of(advice, "balance-context") == pytest.approx(mean_s(even_ones), rel=NEAR)
    _, advice = advised(even_ones, job)
    assert found(advice, "context-imbalance") is None
