"""Words, confidence, hosts and causes outside S, at their edges."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from paceline import jumps
from paceline.diagnose import drift, outside
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.confidence import Trust
from paceline.diagnose.finding import NOWHERE, Finding
from paceline.diagnose.hosts import name_hosts
from paceline.diagnose.remove import Effect
from paceline.diagnose.stages import _place
from paceline.diagnose.workers import _chance, _text, pattern_of
from paceline.trace import OpKind
from paceline.whatif.modes import TwoModes
from paceline.whatif.result import LaunchDelay

# Stages and workers.


@pytest.mark.parametrize(
    ("stage", "forward", "backward", "words"),
    [
        (0, 1.5, 1.5, " (the first: embedding)"),
        (3, 1.5, 1.5, " (the last: loss layer)"),
        (2, 1.5, 1.5, ""),
        (2, 1.019, 1.02, " (only its backwards: recomputed activations?)"),
        (0, 1.02, 1.5, " (the first: embedding)"),
        (2, 1.0, 1.01, ""),
    ],
)
def test_what_lengthens_a_stage(stage, forward, backward, words):
    assert _place(stage, 4, forward, backward) == words


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ([[3, 1]], "one worker"),
        ([[3, 0], [3, 1]], "all of one dp rank"),
        ([[3, 1], [4, 1]], "one stage"),
        ([[3, 1], [4, 0]], "several workers"),
    ],
)
def test_how_slow_workers_lie(workers, words):
    assert pattern_of(workers, (2, 8)) == words


def test_some_stages_of_one_rank():
    assert pattern_of([[3, 0], [3, 1]], (4, 8)) == "one dp rank"


def test_sentences_name_six_steps():
    steps = np.arange(10, 20)
    name = "dp 3, stage 1"
    assert _text(name, 1, 1.5, None, steps) == "worker dp 3, stage 1 is 1.50x slow"
    some = np.arange(10) < 6
    assert _text(name, 1, 1.5, some, steps).endswith(" in 6 of 10 steps (10, 11, 12, 13, 14, 15)")
    more = np.arange(10) < 7
    assert _text(name, 1, 1.5, more, steps).endswith("7 of 10 steps (10, 11, 12, 13, 14, 15, ...)")
    assert _text(name, 2, 1.5, None, steps).startswith("2 workers are slow, the worst (dp 3")


def test_the_chance_of_a_slow_worker():
    """t = 4 with 9 degrees of freedom: 0.00156 (tables); of 8 workers eight times that."""
    lasting, slow = np.full((1, 8), 0.08), np.ones((1, 8), dtype=bool)
    fit = SimpleNamespace(worker_error=np.full((1, 8), 0.02))
    assert _chance((0, 0), lasting, slow, fit, 10) == pytest.approx(8 * 0.00156, rel=0.2)
    assert _chance((0, 0), lasting, ~slow, fit, 10) == 0
    assert _chance((0, 0), lasting, slow, fit, 1) == 0
    assert _chance((0, 0), lasting, slow, fit, 2) > 0.1  # two steps are no certainty
    assert _chance((0, 0), np.full((1, 8), 1e-6), slow, fit, 10) == 1


# Confidence.


def candidate(cause="worker", chance=0.0, ambiguous=""):
    return Candidate(cause, "", {}, {}, Effect(), ambiguous, chance)


TRUST = Trust(misfit=0.0, doubtful=False, clock_doubt_s=0.0, transfer_s=1.0, n_steps=10)


@pytest.mark.parametrize(
    ("change", "cause", "factor"),
    [
        ({}, "worker", 1.0),
        ({"n_steps": 1}, "worker", 0.8),
        ({"n_steps": 2}, "worker", 0.9),
        ({"n_steps": 3}, "worker", 0.95),
        ({"n_steps": 4}, "worker", 1.0),
        ({"n_steps": 9}, "worker", 1.0),
        ({"n_steps": 9}, "dp-network", 10 / 11),  # Laplace's rule of succession
        ({"n_steps": 9}, "link", 1.0),
        ({"n_steps": 9, "programmed": False}, "dp-network", 1.0),
        ({"n_steps": 2}, "peer-network", 0.9 * 3 / 4),
        ({"n_steps": 10}, "peer-network", 1.0),
        ({"misfit": 0.02}, "worker", 0.9),  # five times as much
        ({"misfit": 0.5}, "worker", 0.3),  # at worst
        ({"doubtful": True}, "worker", 0.8),
        ({"clock_doubt_s": 0.25}, "worker", 1.0),  # it does not rest on clocks
        ({"clock_doubt_s": 0.25}, "link", 0.75),
        ({"clock_doubt_s": 0.25}, "dp-network", 0.75),
        ({"clock_doubt_s": 2.0}, "link", 0.3),
        ({"clock_doubt_s": 2.0, "transfer_s": 0.0}, "link", 1.0),
    ],
)
def test_what_lowers_a_confidence(change, cause, factor):
    trust = Trust(**(vars(TRUST) | change))
    assert trust.confidence(candidate(cause), 1.0) == pytest.approx(factor)
    assert trust.confidence(candidate(cause), 0.5) == pytest.approx(0.5 * factor)


def test_a_group_is_judged_by_its_slow_steps():
    """A healthy gloo job was told "3.0x slow in 6 of 11 steps, nearly certain"."""
    group = replace(candidate("dp-network"), evidence={"steps": list(range(6))})
    assert replace(TRUST, n_steps=11).confidence(group, 1.0) == pytest.approx(7 / 8)
    assert replace(TRUST, n_steps=11, programmed=False).confidence(group, 1.0) == 1.0


def test_chance_and_another_reading_lower_a_confidence():
    assert TRUST.confidence(candidate(chance=0.1), 1.0) == pytest.approx(0.9)
    assert TRUST.confidence(candidate(ambiguous="or not"), 1.0) == pytest.approx(0.6)


def test_a_simulation_slower_than_the_trace_is_wrong():
    block = np.array([1.0, 2.0, 4.0, 8.0])[:, None, None] * np.ones((1, 2, 2))
    kinds = np.array([OpKind.FORWARD_COMPUTE, OpKind.FORWARD_SEND, OpKind.GRADS_REDUCE_SCATTER,
                      OpKind.OPTIMIZER])  # fmt: skip
    graph = SimpleNamespace(kind=kinds, variant_ops=lambda v: slice(0, 4), n_dp=2, n_pp=1)
    graph.programmed = False
    measured = SimpleNamespace(
        graph=graph,
        clocks=SimpleNamespace(doubt_s=0.5),
        durations=SimpleNamespace(blocks=[block], n_steps=2),
    )
    result = SimpleNamespace(
        simulated_s=np.array([1.1, 1.1]), traced_s=np.array([1.0, 1.0]), replay_error=0.02,
        doubtful=False, steps=np.arange(2),
    )  # fmt: skip
    trust = Trust.of(measured, result)
    assert trust.misfit == pytest.approx(0.1)
    assert trust.transfer_s == pytest.approx(2 + 4)
    assert (trust.clock_doubt_s, trust.n_steps) == (0.5, 2)
    result.simulated_s = np.array([0.9, 0.9])
    assert Trust.of(measured, result).misfit == 0.02


# Hosts.


def finding(workers, cause="worker", pattern="one stage", key="workers"):
    return Finding(
        cause, cause, "slow", 0.1, 0.1, (0.0, 0.2), 1.0, {key: workers}, {"pattern": pattern}
    )


HOSTS = {(dp, 0): (f"h{dp // 2}", str(dp % 2)) for dp in range(20)}


@pytest.mark.parametrize(
    ("workers", "text", "pattern"),
    [
        ([[3, 0]], "slow (h1, GPU 1)", "one stage"),
        ([[2, 0], [3, 0]], "slow (all on h1)", "all of one node"),
        ([[0, 0], [3, 0]], "slow (h0, h1)", "one stage"),
        ([[99, 0]], "slow", "one stage"),
        ([[dp, 0] for dp in range(16)], "slow (h0, h1, h2, h3, h4, h5, h6, h7)", "one stage"),
        ([[dp, 0] for dp in range(18)], "slow (h0, h1, h2, h3, h4, h5, h6, h7, ...)", "one stage"),
    ],
)
def test_hosts_of_slow_workers(workers, text, pattern):
    named = name_hosts(finding(workers), HOSTS)
    assert (named.text, named.evidence["pattern"]) == (text, pattern)


def test_hosts_of_some_workers_of_a_node_and_of_links():
    three = HOSTS | {(50, 0): ("h1", "")}
    some = name_hosts(finding([[2, 0], [3, 0]]), three)
    assert some.evidence["pattern"] == "one node"
    assert name_hosts(finding([[50, 0]]), three).text == "slow (h1)"
    link = name_hosts(finding([[0, 0], [2, 0]], "link", key="link"), HOSTS)
    assert link.where["hosts"] == ["h0", "h1"]
    assert link.evidence["pattern"] == "one stage"
    assert name_hosts(finding([[0, 0]], "gc"), HOSTS).text == "slow"


# Causes outside S.

MEAN = {n: np.full((1, n), 1 / n) for n in range(6, 31)}


class Life(SimpleNamespace):
    """What of an analysis the causes outside S read."""

    @property
    def lasted_s(self):
        return self.traced_s - self.overlap_s

    @property
    def lost_s(self):
        return self.lasted_s - self.simulated_s


@pytest.fixture(autouse=True)
def _no_late_worker(monkeypatch):
    """These jobs have no graph; tests of late_workers and data_waits have jobs with one."""
    for name in ("late_workers", "delayed_ops", "alike_s", "data_waits"):
        monkeypatch.setattr(outside, name, lambda *_: None)


def life(times, **fields):
    times = np.asarray(times, dtype=float)
    fields = {
        "simulated_s": times,
        "traced_s": times,
        "overlap_s": np.zeros(len(times)),
        "steps": np.arange(len(times)) + 100,
    } | fields
    return Life(**fields)


def drift_of(times, **fields):
    result = life(times, **fields)
    return drift._drift(result, MEAN[len(times)], result.simulated_s)


@pytest.mark.parametrize(("change", "named"), [(0.0300, False), (0.0310, True)])
def test_a_trend_counts_from_three_percent_of_the_mean_on(change, named):
    found = drift_of(1 + change * np.linspace(0, 1, 16))
    assert (found is not None) == named
    if found:
        assert found.id == "trend"
        assert found.evidence["change"] == pytest.approx(change)
        assert found.evidence["slope_s_per_step"] == pytest.approx(change / 15)
        assert found.share_of_step == pytest.approx(change / 2 / (1 + change / 2))
        assert found.text.startswith("steps become 3.1% slower from the first to the last")
        assert found.confidence == 1


@pytest.mark.parametrize(("n", "named"), [(7, False), (8, True)])
def test_eight_steps_may_show_a_trend(n, named):
    assert (drift_of(np.linspace(1, 2, n)) is not None) == named


def test_a_job_that_becomes_faster():
    """It costs the time by which the earlier steps exceed the last one."""
    found = drift_of(np.linspace(2, 1, 16))
    assert found.text == (
        "times fall from step to step: the first steps take 2.00x as long as the later ones"
    )
    assert found.share_of_step == pytest.approx(0.5 / 1.5)
    assert found.confidence == 1
    assert found.where == NOWHERE


def test_a_jump_is_named_with_its_step():
    found = drift_of(np.repeat([1.0, 1.2], [12, 18]))
    assert (found.id, found.evidence["step"]) == ("change-point", 112)
    assert found.evidence["change"] == pytest.approx(0.2)
    assert found.share_of_step == pytest.approx(0.12 / 1.12)


def test_pauses_of_single_steps_are_no_part_of_a_jump():
    """12 steps of 1 s and 18 of 1.2 s; a collection takes 3 s in four of the latter."""
    times = np.repeat([1.0, 1.2], [12, 18])
    times[[15, 17, 20, 25]] += 3.0
    found = drift_of(times)
    assert found.evidence["step"] == 112
    assert found.share_of_step == pytest.approx(18 * 0.2 / times.sum())


def test_a_change_is_that_of_the_whole_step():
    """Delays that the simulation leaves out are a part of the step, its overlap is none."""
    times = np.repeat([1.0, 1.2], [12, 18])
    found = drift_of(times, traced_s=times + 1.5, overlap_s=np.full(30, 0.5))
    assert found.evidence["change"] == pytest.approx(0.1)
    assert found.text.startswith("steps become 10.0% slower")
    faster = drift_of(times[::-1], traced_s=times[::-1] + 1.5, overlap_s=np.full(30, 0.5))
    assert "take 1.10x as long as the later ones" in faster.text


def test_the_chances_of_trends_and_jumps():
    """Mann-Kendall: of 8 rising values 28 pairs rise; Pettitt: K = 36 of 6 and 6 values."""
    z = 27 / math.sqrt(8 * 7 * 21 / 18)
    assert drift._mann_kendall(np.arange(8.0)) == pytest.approx(math.erfc(z / math.sqrt(2)))
    assert drift._mann_kendall(np.ones(8)) == 1
    pettitt = 2 * math.exp(-6 * 36**2 / (12**3 + 12**2))
    assert jumps._pettitt(np.repeat([1.0, 2.0], 6)) == pytest.approx(pettitt)
    shape = drift._break(np.arange(12.0), np.repeat([1.0, 2.0], 6))
    assert shape.fitted.tolist() == [1.0] * 6 + [2.0] * 6
    line = drift._trend(np.array([0.0, 2.0, 3.0]), np.array([5.0, 9.0, 11.0]))
    assert line.fitted == pytest.approx([5, 9, 11])
    assert drift._theil_sen(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 8.0])) == 4


def delayed(lost, overlap=0.0, by_kind=None, step_start=1.0, slowdown=1.05, n=8, open_overlap=0.0):
    simulated = np.ones(n)
    result = life(
        simulated,
        traced_s=simulated + lost,
        launch_delay=LaunchDelay(step_start=step_start, by_kind=by_kind or {"forward-send": 1.02}),
        launch_slowdown=slowdown,
        overlap_s=np.full(n, overlap),
    )
    measured = SimpleNamespace(
        data_wait_s=None, open_overlap_s=open_overlap, graph=SimpleNamespace(kind_name=str)
    )
    return outside._delays(measured, result, MEAN[n])


def test_delays_count_from_three_percent_on():
    assert delayed(0.0299) is None
    found = delayed(0.0301)
    assert found.share_of_step == pytest.approx(0.0301 / 1.0301)
    assert found.interval == pytest.approx((0.0301 / 1.0301,) * 2)
    assert found.confidence == 1
    assert found.evidence["threshold"] == 1.03
    # what passes while the step before still runs elsewhere is not lost
    assert delayed(0.04, overlap=0.02) is None


@pytest.mark.parametrize(
    ("step_start", "where"), [(1.024, "before recv"), (1.026, "(data loading)")]
)
def test_half_of_the_delay_at_the_start_is_data_loading(step_start, where):
    kinds = {"send": 1.001, "recv": 1.01} | {f"k{i}": 1.0 for i in range(5)}
    found = delayed(0.05, by_kind=kinds, step_start=step_start)
    assert where in found.text
    assert found.where == {"group": {"kind": "recv"}}
    assert found.evidence["largest"] == 1.01
    assert list(found.evidence["by_kind"])[:2] == ["recv", "send"]
    assert len(found.evidence["by_kind"]) == 5


@pytest.mark.parametrize(
    ("open_overlap", "step_start", "is_open"),
    [(0.019, 1.04, False), (0.021, 1.04, True), (math.inf, 1.04, True), (math.inf, 1.0, False)],
)
def test_overlap_that_a_trace_leaves_open_may_explain_the_start(open_overlap, step_start, is_open):
    found = delayed(0.05, step_start=step_start, open_overlap=open_overlap)
    assert found.confidence == (0.6 if is_open else 1)
    assert found.ambiguous.startswith("some ranks still run the step before") is is_open
    # what may be overlap is not called data loading
    assert ("(data loading)" in found.text) is (step_start > 1.03 and not is_open)


def odd(work, idle=0.0):
    """Steps that compute for ``work`` seconds and wait for ``idle`` more."""
    work = np.asarray(work, dtype=float)
    kinds = np.array([OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.OPTIMIZER])
    graph = SimpleNamespace(kind=kinds, variant_ops=lambda v: slice(0, 3), kind_name=str)
    block = np.stack([work / 2, work / 2, 100 * np.ones(len(work))])[..., None]
    measured = SimpleNamespace(graph=graph, durations=SimpleNamespace(blocks=[block]))
    return outside._odd_steps(measured, life(work, traced_s=work + idle), MEAN[len(work)])


@pytest.mark.parametrize(
    ("longer", "times", "named"),
    [(1, 1.31, True), (1, 1.29, False), (2, 2.0, True), (3, 2.0, False), (0, 2.0, False)],
)
def test_odd_steps_compute_longer(longer, times, named):
    """Up to a quarter of 8 steps."""
    found = odd(np.where(np.arange(8) < longer, times, 1.0))
    assert (found is not None) == named
    if found:
        assert found.evidence["steps"] == list(range(100, 100 + longer))
        assert "compute longer" in found.text
        assert found.share_of_step == pytest.approx(
            longer * (times - 1) / (8 + longer * (times - 1))
        )
        assert found.confidence == 1


@pytest.mark.parametrize(("idle", "named"), [(0.29, False), (0.31, True)])
def test_odd_steps_wait(idle, named):
    found = odd(np.ones(8), np.where(np.arange(8) == 3, idle, 0.0))
    assert (found is not None) == named
    if found:
        assert found.evidence["steps"] == [103]
        assert "wait (checkpoint?)" in found.text


def test_seven_steps_have_no_odd_ones():
    assert odd([9.0, *[1.0] * 6]) is None
    found = odd(np.where(np.arange(20) < 5, 2.0, 1.0))
    assert found.text.startswith("5 of 20 steps")
    assert not found.text.endswith("...")


@pytest.mark.parametrize("kind", [0, 1])
def test_forwards_and_backwards_make_odd_steps_and_nothing_else(kind):
    """A fifth step whose forwards (backwards) take 1.5 s instead of 0.5: 2 s of compute, not 1."""
    block = np.full((3, 8, 1), 0.5)
    block[kind, 4] = 1.5
    kinds = np.array([OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.OPTIMIZER])
    graph = SimpleNamespace(kind=kinds, variant_ops=lambda v: slice(0, 3), kind_name=str)
    measured = SimpleNamespace(graph=graph, durations=SimpleNamespace(blocks=[block]))
    found = outside._odd_steps(measured, life(block.sum(axis=(0, 2))), MEAN[8])
    assert found.evidence["steps"] == [104]
    block[kind, 4], block[2, 4] = 0.5, 5.0  # an optimizer is no compute
    life_ = life(block.sum(axis=(0, 2)))
    assert outside._odd_steps(measured, life_, MEAN[8]) is None


def test_two_lengths_of_steps_cost_the_difference():
    """3 of 8 steps take 1.5 s instead of 1: 1.5 of 9.5 s; their forwards take twice as long."""
    slow = np.arange(8) < 3
    times = np.where(slow, 1.5, 1.0)
    kinds = np.array([OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.OPTIMIZER])
    block = np.stack([np.where(slow, 1.0, 0.5), np.where(slow, 0.6, 0.5), np.zeros(8)])[..., None]
    graph = SimpleNamespace(kind=kinds, variant_ops=lambda v: slice(0, 3), kind_name=str)
    measured = SimpleNamespace(graph=graph, durations=SimpleNamespace(blocks=[block]))
    modes = TwoModes(slow, 1.5)
    found = outside._two_modes(measured, life(times, step_modes=modes), MEAN[8])
    assert found.share_of_step == pytest.approx(1.5 / 9.5)
    assert found.interval == pytest.approx((1.5 / 9.5,) * 2)
    assert found.confidence == 1
    evidence = found.evidence
    assert (evidence["steps"], evidence["fast_s"], evidence["slow_s"]) == ([100, 101, 102], 1, 1.5)
    growth = evidence["slow_over_fast_by_kind"]
    assert growth == pytest.approx({"forward-compute": 2.0, "backward-compute": 1.2})
    assert list(growth) == ["forward-compute", "backward-compute"]
    assert found.text.startswith("3 of 8 steps take 1.5")
    assert found.text.endswith("; longer then: forward-compute")
    assert outside._two_modes(measured, life(times, step_modes=None), MEAN[8]) is None


def test_sentences_name_five_odd_steps():
    found = odd(np.where(np.arange(24) < 6, 2.0, 1.0))
    assert found.text == (
        "6 of 24 steps compute longer (warm-up, evaluation?), unlike the others: "
        "100, 101, 102, 103, 104, ..."
    )
    assert found.evidence == {
        "steps": [100, 101, 102, 103, 104, 105], "threshold": 1.3, "typical_s": 1.0
    }  # fmt: skip


def test_the_evidence_of_a_drift():
    jump = drift_of(np.repeat([1.0, 1.2], [12, 18]))
    assert (jump.cause, jump.evidence["test"], jump.evidence["threshold"]) == (
        "drift", "Pettitt", 0.03
    )  # fmt: skip
    assert jump.text == "steps become 20.0% slower at step 112"
    assert 0 < jump.evidence["p_value"] < 0.001
    trend = drift_of(np.linspace(1, 2, 16))
    assert (trend.cause, trend.evidence["test"]) == ("drift", "Mann-Kendall, Theil-Sen")


def test_drifts_that_chance_may_show_are_not_named():
    """Of 8 steps all 28 pairs must rise: with 26 of them z is 23 / 8.08, a chance of 0.004."""
    times = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7])
    assert drift_of(times) is not None
    times[[0, 1]] = times[[1, 0]]
    assert drift._mann_kendall(times) == pytest.approx(math.erfc(25 / math.sqrt(8 * 7 * 21 / 9)))
    assert drift_of(times) is None


def test_the_order_of_causes_outside():
    """By share of the step; steps of two lengths only where nothing else says why."""
    jump = np.repeat([1.0, 1.2], [12, 18])
    result = life(
        jump, traced_s=jump + 0.05, launch_slowdown=1.05, straggling=False,
        launch_delay=LaunchDelay(step_start=1.0, by_kind={"forward-send": 1.02}),
        step_modes=TwoModes(jump > 1.1, 1.2), lasting=None,
    )  # fmt: skip
    kinds = np.array([OpKind.FORWARD_COMPUTE])
    graph = SimpleNamespace(
        kind=kinds, variant_ops=lambda v: slice(0, 1), n_dp=1, n_pp=1, kind_name=str
    )
    measured = SimpleNamespace(
        data_wait_s=None,
        open_overlap_s=0.0,
        graph=graph,
        durations=SimpleNamespace(blocks=[jump[None, :, None]], graph=graph),
    )
    found = outside.outside_causes(measured, result, MEAN[30])
    assert [finding.id for finding in found] == ["change-point", "launch-delay"]
    # in turns there is no drift: two lengths
    turns = np.tile([1.0, 1.2], 15)
    again = Life(**vars(result))
    again.simulated_s, again.traced_s = turns, turns + 0.05
    again.step_modes = TwoModes(turns > 1.1, 1.2)
    found = outside.outside_causes(measured, again, MEAN[30])
    assert [finding.id for finding in found] == ["two-modes", "launch-delay"]
    again.straggling = True  # S says why, or noise does; only a worker would explain S
    unexplained, gc = (
        SimpleNamespace(cause=cause, where={}, cost_s=None) for cause in ("unexplained", "gc")
    )
    for inside in ([gc, unexplained], [unexplained]):
        found = outside.outside_causes(measured, again, MEAN[30], inside)
        assert [finding.id for finding in found] == ["launch-delay"]


# Intervals: of 101 resamples, one step each, the sixth and the sixth from the end.

EACH = np.eye(101)


def test_the_interval_of_delays():
    """Between 0.100 and 0.200 s of steps of 1 s without them."""
    result = life(
        np.ones(101), traced_s=1 + np.linspace(0.1, 0.2, 101), launch_slowdown=1.15,
        launch_delay=LaunchDelay(step_start=1.0, by_kind={"forward-send": 1.02}),
    )  # fmt: skip
    measured = SimpleNamespace(
        data_wait_s=None, open_overlap_s=0.0, graph=SimpleNamespace(kind_name=str)
    )
    found = outside._delays(measured, result, EACH)
    assert found.interval == pytest.approx((0.105 / 1.105, 0.195 / 1.195))
    assert found.confidence == 1
    result.traced_s = np.where(np.arange(101) < 26, 1.02, 1.10)  # 3% in 75 of them
    found = outside._delays(measured, result, EACH)
    assert found.confidence == pytest.approx(75 / 101)


def test_the_interval_of_a_drift():
    result = life(np.linspace(1, 2, 101))
    found = drift._drift(result, EACH, result.simulated_s)
    assert found.interval == pytest.approx((0.05 / 1.05, 0.95 / 1.95))
    assert found.confidence == pytest.approx(100 / 101)


def worker_in_steps(steps, cost_s):
    """A slow worker of some steps, with [step] seconds."""
    return Finding(
        *("worker", "worker", "worker dp 1, stage 0 is slow", 0.5, 0.2, (0.4, 0.6), 0.99),
        *({"workers": [[1, 0]]}, {"steps": list(steps)}),
        cost_s=cost_s,
    )


def test_a_change_that_the_steps_do_not_show_is_no_drift_of_its_own():
    """A growing fault that is known from step 150 on leaves longer steps before it.

    The steps themselves are the longest behind it.
    """
    times = np.linspace(1.0, 2.0, 101)
    known = np.arange(101) >= 50
    worker = worker_in_steps(np.arange(150, 201), np.where(known, times - 1.0, 0.0))
    left, _ = drift.drift_left(life(times), EACH, [worker])
    assert left.part_of == "worker"
    assert left.text == "steps become 100.0% slower from the first to the last"


def test_a_change_beside_a_known_fault_is_told_alone():
    """Steps 110 to 119 are slow by a worker, and all steps from 160 on are longer."""
    step = np.arange(101)
    fault_s = np.where((step >= 10) & (step < 20), 0.5, 0.0)
    times = 1.0 + fault_s + np.where(step >= 60, 0.2, 0.0)
    worker = worker_in_steps(range(110, 120), fault_s)
    left, known = drift.drift_left(life(times), EACH, [worker])
    assert (left.part_of, left.text) == ("", "steps become 20.0% slower at step 160")
    assert known.tolist() == (fault_s > 0).tolist()


def test_the_interval_of_odd_steps():
    """20 steps take 1.50 to 1.69 s, the others 1 s."""
    work = np.where(np.arange(101) < 20, 1.5 + 0.01 * np.arange(101), 1.0)
    kinds = np.array([OpKind.FORWARD_COMPUTE])
    graph = SimpleNamespace(kind=kinds, variant_ops=lambda v: slice(0, 1), kind_name=str)
    durations = SimpleNamespace(blocks=[work[None, :, None]])
    measured = SimpleNamespace(graph=graph, durations=durations)
    found = outside._odd_steps(measured, life(work), EACH)
    assert found.interval == pytest.approx((0.0, 0.64 / 1.64))
    assert found.confidence == pytest.approx(20 / 101)
    assert found.evidence["typical_s"] == 1.0


def test_the_interval_of_two_lengths_of_steps():
    """50 steps take 1 s, 51 others 1.50 to 2.00 s."""
    times = np.where(np.arange(101) < 50, 1.0, 1.0 + 0.01 * np.arange(101))
    kinds = np.array([OpKind.FORWARD_COMPUTE])
    graph = SimpleNamespace(kind=kinds, variant_ops=lambda v: slice(0, 1), kind_name=str)
    durations = SimpleNamespace(blocks=[times[None, :, None]])
    measured = SimpleNamespace(graph=graph, durations=durations)
    result = life(times, step_modes=TwoModes(times > 1.2, 1.75))
    found = outside._two_modes(measured, result, EACH)
    assert found.interval == pytest.approx((0.0, 0.95 / 1.95))
    assert found.confidence == pytest.approx(51 / 101)
    assert found.evidence["slow_s"] == pytest.approx(1.75)
