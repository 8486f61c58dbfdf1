"""Ideal durations of parts, passes as wholes, and what lasts of a slowdown; by hand."""

import math
import random

import numpy as np
import pytest

from paceline.graph.computes import computes_of, set_passes, whole_passes
from paceline.trace import OpKind
from paceline.trace.kinds import LOCAL_KINDS
from paceline.whatif import analyze
from paceline.whatif.ideal import reference
from paceline.whatif.lasting import beyond_chance
from unit_jobs import measured_of


def of_kind(measured, values, kind):
    ops = np.flatnonzero(measured.graph.kind == kind)
    return values[ops[np.argsort(measured.graph.part[ops])]].tolist()


def three_parts(step, dp, kind, nth):
    """Forward parts of 1, 2 and 3 s on rank 0, and twice that on rank 1."""
    if kind == "forward-compute":
        return (1.0 + nth) * (1 + dp)
    if kind == "params-all-gather":
        return (0.1, 0.4, 0.2)[nth]
    return 1.0


def test_parts_share_the_ideal_pass():
    """A pass takes 9 s on average; the parts have 1/6, 2/6 and 3/6 of it."""
    measured = measured_of(3, three_parts)
    ideal = reference(measured.durations).seconds
    assert of_kind(measured, ideal, OpKind.FORWARD_COMPUTE) == pytest.approx([1.5, 3.0, 4.5])
    assert of_kind(measured, ideal, OpKind.BACKWARD_COMPUTE) == pytest.approx([1.0] * 3)
    assert of_kind(measured, ideal, OpKind.PARAMS_ALL_GATHER) == pytest.approx([0.1, 0.4, 0.2])


def test_units_that_are_slow_in_half_of_the_steps_keep_their_own_fast_time():
    """Gathers of 1 and 4 s, three times that in every other step: each unit has its own mode."""

    def seconds(step, dp, kind, nth):
        jitter = 1 + 0.001 * random.Random(f"{step} {dp} {kind} {nth}").random()
        if kind == "params-all-gather":
            return (1.0, 4.0)[nth] * (3 if step % 2 else 1) * jitter
        return 2.0 * jitter

    measured = measured_of(2, seconds, steps=10)
    judged_by = reference(measured.durations)
    assert set(judged_by.modes) == {OpKind.PARAMS_ALL_GATHER}
    usual = of_kind(measured, judged_by.seconds, OpKind.PARAMS_ALL_GATHER)
    assert usual == pytest.approx([1.0, 4.0], rel=2e-3)


def test_parts_of_a_lone_worker_keep_their_shares_of_the_fast_mode():
    def seconds(step, dp, kind, nth):
        jitter = 1 + 0.001 * random.Random(f"{step} {kind} {nth}").random()
        if kind == "forward-compute":
            return (1.0, 4.0)[nth] * (2 if step % 2 else 1) * jitter
        return jitter

    measured = measured_of(2, seconds, n_dp=1, steps=10)
    judged_by = reference(measured.durations)
    assert OpKind.FORWARD_COMPUTE in judged_by.modes
    usual = of_kind(measured, judged_by.seconds, OpKind.FORWARD_COMPUTE)
    assert usual == pytest.approx([1.0, 4.0], rel=2e-3)


def test_whole_passes_keep_sums_and_set_passes_keeps_shares():
    measured = measured_of(3, three_parts)
    durations, graph = measured.durations, measured.graph
    whole = whole_passes(durations)
    local = np.isin(graph.kind, [int(kind) for kind in LOCAL_KINDS])
    np.testing.assert_allclose(whole.blocks[0].sum(axis=0), durations.array[local].sum(axis=0))
    assert (whole.row[0][~local] == -1).all()
    (first,) = np.flatnonzero((graph.kind == OpKind.FORWARD_COMPUTE) & (graph.part == 0))
    assert whole.of(0, np.array([first])).ravel().tolist() == pytest.approx([6.0, 12.0])
    ops = computes_of(graph).ops[0][0]  # [place, microbatch] forwards
    assert ops.tolist() == [[first]]

    set_passes(durations, 0, ops, np.full((1, 1, 1), 3.0), dp_index=0)
    forward = np.flatnonzero(graph.kind == OpKind.FORWARD_COMPUTE)
    forward = forward[np.argsort(graph.part[forward])]
    assert durations.array[forward, 0, 0].tolist() == pytest.approx([0.5, 1.0, 1.5])
    assert durations.array[forward, 0, 1].tolist() == pytest.approx([2.0, 4.0, 6.0])
    others = np.flatnonzero(graph.kind != OpKind.FORWARD_COMPUTE)
    assert (
        durations.array[others].tolist()
        == measured_of(3, three_parts).durations.array[others].tolist()
    )


def jittery(slow, spike, share):
    """dp 4, 6 units of 50 ms; a share of the parts takes ``1 + spike`` times as long, anywhere."""

    def seconds(step, dp, kind, nth):
        if not kind.endswith("-compute"):
            return 0.002
        rng = random.Random(f"{step} {dp} {kind} {nth}")
        late = spike if rng.random() < share else 0.0
        return 0.05 * (slow if dp == 1 else 1.0) * (1 + late + 0.005 * rng.random())

    return analyze(measured_of(6, seconds, n_dp=4, steps=25))


@pytest.mark.parametrize(("spike", "share"), [(0.5, 0.1), (1.0, 0.2)])
def test_jitter_that_moves_between_ranks_passes(spike, share):
    result = jittery(1.0, spike, share)
    assert result.slowdown > 1.05
    assert result.lasting.slowdown == pytest.approx(1.0, abs=0.01)
    assert result.lasting.by_worker.max() < 1.01
    assert result.healthy


@pytest.mark.parametrize(("spike", "share"), [(0.0, 0.0), (0.5, 0.1), (1.0, 0.2)])
def test_a_slow_rank_lasts_however_much_else_varies(spike, share):
    """Rank 1 takes 1.3 x 0.6 s where the mean takes 1.075 x 0.6 s, beside 24 ms of collectives."""
    expected = (1.3 * 0.6 + 0.024) / (1.075 * 0.6 + 0.024)
    result = jittery(1.3, spike, share)
    assert result.lasting.slowdown == pytest.approx(expected, rel=0.01)
    assert result.lasting.by_worker[0, 1] == pytest.approx(expected, rel=0.01)
    assert result.lasting.by_worker[0, [0, 2, 3]].max() < 1.01
    assert not result.healthy


def test_a_rank_that_is_slow_in_a_third_of_the_steps_lasts_there():
    """Rank 1 takes twice as long from step 20 of 30 on; others vary in all steps.

    The median over all steps shows no slow rank.
    """

    def seconds(step, dp, kind, nth):
        if not kind.endswith("-compute"):
            return 0.002
        spike = 0.5 if random.Random(f"{step} {dp} {kind} {nth}").random() < 0.1 else 0.0
        return 0.05 * (2.0 if dp == 1 and step >= 20 else 1.0) * (1 + spike)

    result = analyze(measured_of(6, seconds, n_dp=4, steps=30))
    healthy_s, slow_s, mean_s = (0.05 * 12 * factor + 0.024 for factor in (1.0, 2.0, 1.25))
    expected = (20 * healthy_s + 10 * slow_s) / (20 * healthy_s + 10 * mean_s)
    assert result.lasting.slowdown == pytest.approx(expected, rel=0.01)
    assert result.lasting.by_worker[0, 1] == pytest.approx(expected, rel=0.01)
    assert result.lasting.by_worker[0, [0, 2, 3]].max() < 1.01
    by_step = result.lasting.by_worker_by_step[:, 0, 1]
    assert by_step[:20] == pytest.approx(1.0, abs=0.01)
    assert by_step[20:] == pytest.approx(slow_s / mean_s, rel=0.01)


def test_levels_that_all_ranks_share_are_one_part():
    """All ranks are 1.5 times as slow in the first 12 of 60 steps: no rank jumps beside the others.

    Medians of 12 noisy steps would look like lasting slowness.
    """

    def seconds(step, dp, kind, nth):
        if not kind.endswith("-compute"):
            return 0.002
        noise = random.Random(f"{step} {dp} {kind} {nth}").gauss(0, 0.2)
        return 0.05 * (1.5 if step < 12 else 1.0) * math.exp(noise)

    found = analyze(measured_of(6, seconds, n_dp=8, steps=60)).lasting
    np.testing.assert_allclose(found.by_worker_by_step, found.by_worker[None].repeat(60, axis=0))
    assert found.slowdown < 1.06


def test_one_step_lasts_as_it_was():
    result = analyze(measured_of(3, three_parts))
    assert result.lasting.slowdown == pytest.approx(result.slowdown, rel=1e-12)


def noisy(slow, slow_dp=None, n_dp=4, steps=10):
    """Computes of which three in ten are twice as long, at random; ``slow_dp`` is slow always."""

    def seconds(step, dp, kind, nth):
        pauses = random.Random(f"{step} {dp} {kind} {nth}").random() < 0.3
        pause = 2.0 if pauses else 1.0
        return (pause if "compute" in kind else 0.01) * (slow if dp == slow_dp else 1.0)

    return measured_of(4, seconds, n_dp, steps)


def chance_of(measured):
    judged_by = reference(measured.durations)
    lasting = analyze(measured).lasting.slowdown
    return lasting, beyond_chance(measured.durations, judged_by)


def test_medians_of_few_noisy_steps_are_no_lasting_slowdown():
    lasting, beyond = chance_of(noisy(1.0))
    assert lasting > 1.04
    assert beyond == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize("n_dp", [2, 4])
def test_a_worker_that_is_slow_in_all_steps_is_no_chance(n_dp):
    lasting, beyond = chance_of(noisy(1.6, slow_dp=1, n_dp=n_dp))
    assert lasting > 1.2
    assert beyond == pytest.approx(lasting)


def test_replicas_that_are_never_shuffled_show_no_chance():
    """A job of one replica has only its typical step."""
    lasting, beyond = chance_of(noisy(1.0, n_dp=1))
    assert beyond == pytest.approx(lasting)
