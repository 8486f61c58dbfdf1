"""What a kind of operation is judged against: its peers, or its own fast mode."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.graph import Durations, from_trace
from paceline.sources import load
from paceline.synth import SlowNic, SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.whatif import analyze
from paceline.whatif.ideal import reference
from paceline.whatif.modes import two_modes

ONE_GROUP = SynthSpec(dp=8, pp=1, microbatches=4, steps=20, noise=0.01, seed=3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("probability", [0.3, 0.4, 0.5, 0.6, 0.7])
def test_one_group_that_is_slow_in_many_steps_is_found_and_priced(probability, seed):
    """Issue 12.3: at half of the steps the median is the slow time, and S was 0.7: "Healthy"."""
    spec = replace(ONE_GROUP, seed=seed)
    slow = synthesize(replace(spec, slow_nics=(SlowNic(0, 0, 40.0, probability),)))
    healthy = synthesize(spec)
    true_loss = 1 - healthy.traced_step_s().mean() / slow.traced_step_s().mean()
    measured = from_trace(slow)
    result = analyze(measured)
    assert result.waste == pytest.approx(true_loss, abs=0.03)
    assert not result.healthy
    finding = diagnose(measured, result).findings[0]
    assert finding.cause == "dp-network"
    slow_steps = slow.truth["causes"][0]["steps"]
    assert finding.evidence["steps"] == slow_steps
    assert f"in {len(slow_steps)} of 20 steps" in finding.text


def test_both_references_are_given_and_explained_once():
    measured = from_trace(synthesize(replace(ONE_GROUP, slow_nics=(SlowNic(0, 0, 40.0, 0.6),))))
    result = analyze(measured)
    assert set(result.slow_mode_shares) == {"params-all-gather", "grads-reduce-scatter"}
    assert result.slowdown > 2
    assert result.slowdown_paper < 1
    (note,) = [w for w in result.warnings if "by the paper's" in w]
    assert f"{result.slowdown_paper:.3f}" in note
    assert "grads-reduce-scatter" in note


def test_a_job_without_modes_keeps_the_papers_reference():
    result = analyze(synthesize(ONE_GROUP))
    assert result.slowdown_paper == result.slowdown
    assert not result.slow_mode_shares
    assert not any("by the paper's" in w for w in result.warnings)


def test_the_real_jobs_keep_the_papers_reference(real_jobs):
    """Their small collectives have two modes, at no cost: the artifact's numbers stay."""
    for name in ("AR", "SE", "ST"):
        trace = load(real_jobs / f"trace-{name}.parquet", job=real_jobs / f"meta-{name}.yaml")
        found = reference(from_trace(trace).durations)
        assert not found.differs
        assert not found.modes


def test_the_fast_mode_of_one_worker():
    """dp 1, pp 1: the only worker, twice as slow in half of its steps."""
    trace = synthesize(SynthSpec(dp=1, pp=1, microbatches=4, steps=12, noise=0.01))
    measured = from_trace(trace)
    slow = np.arange(12) % 2 == 1
    stretched = Durations(
        measured.graph, 12, (measured.durations.array * np.where(slow, 2, 1)[:, None]).ravel()
    )
    found = reference(stretched)
    forward = measured.graph.kind == OpKind.FORWARD_COMPUTE
    np.testing.assert_array_equal(found.modes[OpKind.FORWARD_COMPUTE].slow, slow)
    assert found.seconds[forward][0] == pytest.approx(0.060, rel=0.02)
    assert found.paper[forward][0] == pytest.approx(0.090, rel=0.02)


def test_links_that_are_all_slow_at_times_have_a_fast_mode():
    """The network of the whole job is slow in 6 of 10 steps: no link has a healthy peer then."""
    trace = synthesize(SynthSpec(dp=4, pp=4, microbatches=8, steps=10, noise=0.02))
    measured = from_trace(trace)
    p2p = np.isin(measured.graph.kind, [2, 3, 4, 5])
    slow = np.arange(10) % 5 < 3
    changed = measured.durations.array.copy()
    changed[p2p] *= np.where(slow, 60, 1)[:, None]
    found = reference(Durations(measured.graph, 10, changed.ravel()))
    assert set(found.modes) == {OpKind(kind) for kind in (2, 3, 4, 5)}
    assert found.seconds[p2p] == pytest.approx(0.001, rel=0.05)


def test_step_times_in_two_modes_are_not_healthy():
    """All workers are slow in 8 of 20 steps: S does not see it, the stopwatch does."""
    trace = synthesize(replace(ONE_GROUP, pp=2, microbatches=8))
    first = np.append(trace.lane_rows()[:, 0], len(trace))
    for step in range(20):
        if step % 5 in (1, 3):
            for name in ("start", "end"):
                getattr(trace, name)[first[step] : first[step + 1]] *= 1.5
    measured = from_trace(trace)
    result = analyze(measured)
    assert not result.straggling
    assert not result.healthy
    assert result.step_modes is not None
    assert result.step_modes.ratio == pytest.approx(1.5, rel=0.02)
    (finding,) = diagnose(measured, result).findings
    assert finding.id == "two-modes"
    assert len(finding.evidence["steps"]) == 8
    assert finding.share_of_step == pytest.approx(0.4 * 0.5 / 1.2, abs=0.01)
    assert finding.evidence["slow_over_fast_by_kind"]["forward-compute"] == pytest.approx(1.5, 0.02)


def test_waste_below_zero_is_not_healthy():
    result = analyze(synthesize(ONE_GROUP))
    assert result.healthy
    assert not replace(result, slowdown=0.98).healthy
    assert replace(result, slowdown=0.991).healthy


@pytest.mark.parametrize(
    "values",
    [
        [1.0] * 12,
        [1.0, 1.01, 0.99, 1.0, 2.0],  # one odd value is an outlier, not a mode
        [1.0, 2.0],
        [1.0, 1.05] * 8,  # 5% apart
        list(np.exp(np.random.default_rng(0).normal(0, 0.3, 30))),
        [0.0, 1.0, 1.0, 2.0, 2.0],
    ],
)
def test_no_two_modes(values):
    assert two_modes(np.array(values, dtype=float)) is None


def test_two_modes():
    values = np.array([1.0, 1.02, 2.0, 0.99, 2.1, 1.95, 1.01, 1.0])
    modes = two_modes(values)
    assert modes is not None
    assert modes.slow.tolist() == [False, False, True, False, True, True, False, False]
    assert modes.ratio == pytest.approx(2.0, rel=0.01)
    assert modes.share == pytest.approx(3 / 8)


def test_two_modes_seldom_by_chance():
    rng = np.random.default_rng(1)
    for n in (6, 10, 20, 40):
        draws = np.exp(0.3 * rng.normal(size=(400, n)))
        assert np.mean([two_modes(row) is not None for row in draws]) < 0.02
