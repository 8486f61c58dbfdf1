"""Microbatches of unlike size: the first of each step has three times the samples.

The median of all computes lies at random between the two sizes, and accused a healthy rank.
"""

import math
import random

import pytest

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.whatif import analyze
from program_jobs import Compute, Launch, Run, Wait, trace_of_runs

#: Seconds of the program's operations: three times the samples in the first microbatch.
USUAL_S = (0.030, 0.060, 0.010, 0.020, 0.005, 0.003)


def workers_of(seed, slow=1.0):
    """Findings on workers in a job of two ranks; computes of rank 1 take ``slow`` times as long."""
    kinds = ("forward-compute", "backward-compute")
    program = [Compute(kind, microbatch, 0, 0) for microbatch in range(2) for kind in kinds]
    program += [Launch("grads-reduce-scatter", "g", 0), Wait("g"), Compute("optimizer")]
    rng = random.Random(seed)

    def step():
        host = [math.exp(rng.gauss(0, 0.1)) * factor for factor in (1.0, slow)]
        noise = {(dp, n): math.exp(rng.gauss(0, 0.18)) for dp in range(2) for n in range(6)}
        return Run(
            {(dp, 0): program for dp in range(2)},
            lambda key: USUAL_S[key[2]] * noise[key[0], key[2]] * host[key[0]],
        )

    measured = from_trace(trace_of_runs([step() for _ in range(80)]))
    findings = diagnose(measured, analyze(measured)).findings
    return [finding for finding in findings if finding.cause == "worker"]


@pytest.mark.parametrize("seed", range(12))
def test_no_rank_of_a_healthy_job_is_slow(seed):
    assert workers_of(seed) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_rank_has_its_factor(seed):
    (finding,) = workers_of(seed, slow=1.4)
    assert finding.where["workers"] == [[1, 0]]
    assert finding.evidence["factors"] == [pytest.approx(1.4, abs=0.08)]


def random_sizes(seed, n_dp=4):
    """Findings on workers; each microbatch has the usual samples or three times as many."""
    kinds = ("forward-compute", "backward-compute")
    program = [Compute(kind, microbatch, 0, 0) for microbatch in range(2) for kind in kinds]
    program += [Launch("grads-reduce-scatter", "g", 0), Wait("g"), Compute("optimizer")]
    usual_s = (0.010, 0.020, 0.010, 0.020, 0.005, 0.003)
    rng = random.Random(seed)

    def step():
        sizes = {(dp, m): rng.choice((1, 3)) for dp in range(n_dp) for m in range(2)}
        noise = {(dp, n): math.exp(rng.gauss(0, 0.02)) for dp in range(n_dp) for n in range(6)}
        return Run(
            {(dp, 0): program for dp in range(n_dp)},
            lambda key: (
                usual_s[key[2]]
                * noise[key[0], key[2]]
                * (sizes[key[0], key[2] // 2] if key[2] < 4 else 1)
            ),
        )

    measured = from_trace(trace_of_runs([step() for _ in range(24)]))
    return [f for f in diagnose(measured, analyze(measured)).findings if f.cause == "worker"]


def test_random_sizes_of_microbatches_make_no_rank_look_slow():
    """Medians of two sizes lie on either size by chance, which their means do not confirm."""
    assert not any(random_sizes(seed) for seed in range(20))
