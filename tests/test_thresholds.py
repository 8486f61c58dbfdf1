"""Documented thresholds at their edges (docs/diagnosis.md, docs/whatif.md)."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.diagnose.outside import MIN_DELAY_SHARE
from paceline.diagnose.shares import Savings
from paceline.graph import from_trace
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.whatif import analyze
from paceline.whatif.doubts import clock_doubts, delay_doubts
from paceline.whatif.result import LaunchDelay, WhatIf


def findings(**spec):
    measured = from_trace(synthesize(SynthSpec(dp=8, pp=2, microbatches=8, steps=6, **spec)))
    return {f.cause: f for f in diagnose(measured, analyze(measured)).findings}


@pytest.mark.parametrize(("factor", "named"), [(1.0195, False), (1.0205, True)])
def test_a_worker_is_slow_from_two_percent_on(factor, named):
    found = findings(noise=0.0, slow_workers=(SlowWorker(3, 1, factor),))
    assert ("worker" in found) == named
    if named:
        assert found["worker"].where["workers"] == [[3, 1]]


@pytest.mark.parametrize(("load", "named"), [(1.0195, False), (1.0205, True)])
def test_a_stage_is_overfull_from_two_percent_over_the_mean_on(load, named):
    """Of two stages, one that takes f times as long has 2 f / (1 + f) times the mean load."""
    factor = load / (2 - load)
    found = findings(noise=0.0, stage_factors=((1.0, 1.0), (factor, factor)))
    assert ("stage-imbalance" in found) == named
    if named:
        assert found["stage-imbalance"].evidence["load_over_mean"] == pytest.approx(load)


@pytest.mark.parametrize(("seconds", "named"), [(0.9, False), (1.1, True)])
def test_launch_delays_count_from_three_percent_of_the_step_on(seconds, named):
    """A delay in every step at the start of all replicas, 0.9 or 1.1 times 3% of the step."""
    plain = synthesize(SynthSpec(dp=8, pp=2, microbatches=8, steps=6, noise=0.0))
    step_s = float(analyze(plain).traced_s.mean())
    delay_s = seconds * MIN_DELAY_SHARE / (1 - MIN_DELAY_SHARE) * step_s
    found = findings(noise=0.0, launch_delay=(delay_s, 1.0))
    assert ("launch-delay" in found) == named


def test_a_replay_is_doubted_above_a_thousandth():
    assert clock_doubts(0.001, 3) == []
    assert "misses it by 0.1%" in clock_doubts(0.00101, 3)[0].text


def test_an_analysis_is_doubted_above_five_percent():
    delay = LaunchDelay(step_start=1.0, by_kind={})
    assert WhatIf.DOUBTFUL_ABOVE == 0.05  # what-if paper, 6
    assert delay_doubts(0.05, delay) == []
    assert "5.1%" in delay_doubts(0.051, delay)[0].text


class _Airport(Savings):
    """A game whose Shapley values are known: the dearest of the causes left sets the step.

    Littlechild and Owen 1973: with costs c_1 <= ... <= c_n a player k pays the sum over j <= k of
    (c_j - c_(j-1)) / (n - j + 1).
    """

    def __init__(self, costs):
        self.costs = costs
        self.durations = type("One", (), {"n_steps": 1})()

    def step_s(self, removed):
        left = [c for i, c in enumerate(self.costs) if i not in removed]
        return np.array([max(left, default=0.0)])


@pytest.mark.parametrize("n", [3, 4, 5, 7])
def test_shares_are_shapley_values(n):
    costs = [float(k) for k in range(1, n + 1)]
    exact = np.cumsum([1 / (n - j) for j in range(n)])
    cost, error = _Airport(costs).shapley(range(n))
    assert cost.sum() == pytest.approx(n)  # nothing is lost, nothing counted twice
    if n <= 4:
        assert cost[:, 0] == pytest.approx(exact)
        assert (error == 0).all()
    else:  # from sampled orders: within a tenth of the dearest on average
        assert np.abs(cost[:, 0] - exact).mean() < 0.05 * n
        assert (np.abs(cost[:, 0] - exact) < 4 * error + 1e-9).all()


@pytest.mark.parametrize(("grid_s", "said"), [(1e-3, False), (0.01, True)])
def test_coarse_times_are_said(grid_s, said):
    """Forwards take about 80 ms: a grid of 1 ms is fine, one of 10 ms is 12% of them."""
    trace = synthesize(SynthSpec(dp=2, pp=2, microbatches=8, steps=4, noise=0.1))
    rounded = replace(
        trace,
        start=np.rint(trace.start / grid_s) * grid_s,
        end=np.rint(trace.end / grid_s) * grid_s,
    )
    warnings = [w for w in analyze(rounded).warnings if w.startswith("times are rounded")]
    assert bool(warnings) == said
    assert not any(w.startswith("times are rounded") for w in analyze(trace).warnings)
    if said:
        assert "rounded to 10.0 ms" in warnings[0]


def test_equal_times_are_no_grid():
    trace = synthesize(SynthSpec(dp=2, pp=2, microbatches=8, steps=4, noise=0.0))
    assert not any("rounded" in w for w in analyze(trace).warnings)
