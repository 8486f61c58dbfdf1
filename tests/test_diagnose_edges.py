"""Rules of the diagnosis at their edges, on numbers that can be worked out by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.diagnose import garbage
from paceline.diagnose.fit import Fit, VariantFit, _slopes, pause_residual, pauses
from paceline.diagnose.groups import Group, _judge, _late_members, _Others, slow_groups
from paceline.diagnose.levels import (
    from_the_fast,
    inner_median,
    lower_median,
    places_and_levels,
    use_fast_workers,
)
from paceline.diagnose.links import _flapping, _Links, _usual_levels
from paceline.diagnose.microbatches import _pearson, _same_in_all_steps
from paceline.trace import OpKind

# Levels.


def test_middle_values():
    assert lower_median(np.array([3.0, 1.0])) == 1
    assert lower_median(np.array([5.0, 3.0, 4.0, 1.0])) == 3
    assert lower_median(np.array([3.0, 1.0, 2.0])) == 2
    assert inner_median(np.array([-3.0, 1.0])) == 1
    assert inner_median(np.array([-1.0, 3.0])) == -1
    assert inner_median(np.array([-2.0, 2.0])) == -2
    assert inner_median(np.array([7.0, 5.0, -9.0])) == 5


def test_places_and_replicas_come_apart():
    """Two kinds, two stages of two chunks, three replicas, the last of them 0.2 slower."""
    place = np.array([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]])
    level = np.array([0.0, 0.0, 0.2])
    stages = np.array([0, 0, 1, 1])
    found, levels = places_and_levels(place[..., None] + level, stages)
    assert found == pytest.approx(place)
    assert levels == pytest.approx(level)


STAGES = np.arange(3)


def stages_with(slow, n_dp, by=0.3):
    """[kind, place, dp]: on stage 1 the first ``slow`` of the replicas are slow."""
    by_replica = np.zeros((2, 3, n_dp))
    by_replica[:, 1, :slow] = by
    return by_replica


@pytest.mark.parametrize(
    ("slow", "n_dp", "changed"),
    [
        (3, 4, [1]),  # a quarter is fast
        (4, 5, []),  # a fifth is too few
        (5, 8, [1]),
        (4, 8, []),  # half and half: nobody knows
        (2, 2, []),
    ],
)
def test_the_fast_workers_of_a_mostly_slow_stage(slow, n_dp, changed):
    by_replica = stages_with(slow, n_dp)
    place = np.zeros((2, 3))
    place[:, 1] = 0.3
    assert use_fast_workers(place, by_replica, STAGES) == changed
    assert place[:, 1] == pytest.approx(0.0 if changed else 0.3)
    assert place[:, [0, 2]] == pytest.approx(0.0)


@pytest.mark.parametrize(("gap", "changed"), [(0.029, []), (0.03, [1]), (0.031, [1])])
def test_fast_is_three_percent_faster(gap, changed):
    place = np.array([[0.0, gap, 0.0]] * 2)
    assert use_fast_workers(place, stages_with(3, 4, gap), STAGES) == changed


@pytest.mark.parametrize(("others", "changed"), [(0.07, [1]), (0.08, []), (-0.07, [1])])
def test_fast_workers_agree_with_the_other_stages_to_a_quarter_of_the_gap(others, changed):
    by_replica = stages_with(3, 4)
    by_replica[:, [0, 2]] += others
    place = np.array([[others, 0.3, others]] * 2)
    assert use_fast_workers(place, by_replica, STAGES) == changed


@pytest.mark.parametrize(
    ("level", "error", "beside"),
    [
        ([-0.3, 0.0, 0.0, 0.0], 0.0, [0.0, 0.3, 0.3, 0.3]),
        ([-0.3, 0.0, 0.0, 0.0], 0.049, [0.0, 0.3, 0.3, 0.3]),  # 6 errors are 0.294
        ([-0.3, 0.0, 0.0, 0.0], 0.051, [-0.3, 0.0, 0.0, 0.0]),
        ([-0.029, 0.0, 0.0, 0.0], 0.0, [-0.029, 0.0, 0.0, 0.0]),
        ([-0.3, 0.0, 0.0, 0.0, 0.0], 0.0, [-0.3, 0.0, 0.0, 0.0, 0.0]),  # a fifth
        ([-0.3, -0.3, 0.0, 0.0], 0.0, [-0.3, -0.3, 0.0, 0.0]),  # half
        ([-0.3, 0.0], 0.0, [-0.3, 0.0]),
    ],
)
def test_levels_beside_the_fast_replicas(level, error, beside):
    errors = np.full(len(level), error)
    assert from_the_fast(np.array(level), errors) == pytest.approx(beside)


# The fit.


def fit_of(residual, *, sigma=0.0, micro=None, level=(0.0,), seen=(0.0,), error=(0.0,)):
    """One stage and chunk: [kind, place, microbatch, step, dp] residuals."""
    ops = np.arange(2 * residual.shape[2]).reshape(2, 1, -1)
    micro = np.zeros(residual.shape[2:]) if micro is None else micro
    return Fit(
        place=np.zeros((2, 1)), slope=np.ones((2, 1)), stage_of_place=np.zeros(1, dtype=np.int64),
        level=np.array(level), level_seen=np.array(seen), level_error=np.array(error),
        worker=np.zeros((2, 1, 1)), worker_error=np.zeros((1, 1)), mostly_slow=frozenset(),
        variants=(VariantFit(ops, micro, residual),), sigma=np.full(2, sigma),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("factor", "seconds", "sigma", "pause_s"),
    [
        (1.16, 0.16, 0.0, 0.16),
        (1.14, 0.14, 0.0, 0.0),  # under 15%
        (1.16, 0.0101, 0.0, 0.0101),
        (1.16, 0.0099, 0.0, 0.0),  # under 10 ms
        (1.5, 0.5, 0.066, 0.5),  # ln 1.5 is 0.405: above 6 x 0.066 and below 6 x 0.069
        (1.5, 0.5, 0.069, 0.0),
    ],
)
def test_what_a_pause_is(factor, seconds, sigma, pause_s):
    """A compute that takes ``factor`` times what it should, ``seconds`` more."""
    usual = seconds / (factor - 1)
    residual = np.zeros((2, 1, 2, 1, 1))
    residual[0, 0, 1] = math.log(factor)
    block = np.full((4, 1, 1), usual)
    block[1] = usual * factor
    durations = SimpleNamespace(
        block=lambda v: block, blocks=(block,), graph=SimpleNamespace(has_parts=False)
    )
    fit = fit_of(residual, sigma=sigma)
    [forward] = pauses(durations, fit, 0)
    [backward] = pauses(durations, fit, 1)
    assert forward.ravel() == pytest.approx([0.0, pause_s])
    assert not backward.any()
    assert pause_residual(fit) == pytest.approx(max(6 * sigma, math.log(1.15)))


def test_a_pause_exceeds_the_least_residual():
    """Fifteen percent of 1 s is no pause yet."""
    for residual_of, n in ((math.log1p(0.15), 0), (math.log1p(0.1501), 1)):
        residual = np.full((2, 1, 1, 1, 1), residual_of)
        block = np.ones((2, 1, 1))
        durations = SimpleNamespace(
            block=lambda v, block=block: block,
            blocks=(block,),
            graph=SimpleNamespace(has_parts=False),
        )
        [forward] = pauses(durations, fit_of(residual), 0)
        assert np.count_nonzero(forward) == n


@pytest.mark.parametrize(
    ("level", "seen", "error", "doubt"),
    [
        (0.0, 0.021, 0.0, 0.021),
        (0.0, 0.019, 0.0, 0.0),
        (0.0, -0.05, 0.024, -0.05),
        (0.0, -0.05, 0.026, 0.0),  # under two standard errors
        (0.05, 0.05, 0.0, 0.0),  # counted: no doubt
    ],
)
def test_levels_in_doubt(level, seen, error, doubt):
    fit = fit_of(np.zeros((2, 1, 1, 1, 1)), level=(level,), seen=(seen,), error=(error,))
    assert fit.level_in_doubt.tolist() == [doubt]


@pytest.mark.parametrize(
    ("spread", "slope", "fitted"),
    [(0.1, 0.6, 0.6), (0.1, 2.5, 2.5), (0.1, 0.2, 1.0), (0.1, 3.5, 1.0), (0.04, 0.6, 1.0)],
)
def test_slopes_of_places(spread, slope, fitted):
    """Half of the microbatches cost more, half less; slopes outside 0.3 to 3 are no slopes."""
    cost = np.array([spread, -spread] * 10)[:, None, None]
    logs = [np.stack([cost[None] * slope, cost[None]])]
    assert _slopes(logs, [cost]).ravel() == pytest.approx([fitted, 1.0])


def test_the_costliest_microbatches_bend_no_slope():
    """19 costs of 0.1 each way and one of 0.5, over three times their 90% quantile.

    It is 0.1 off the cost, as far as the others' 0.04 allow; with it the slope would be 0.71.
    """
    cost = np.array([0.1, -0.1] * 9 + [0.1, 0.5])[:, None, None]
    logs = np.where(cost > 0.3, cost - 0.1, 0.6 * cost)
    assert _slopes([np.stack([logs[None], cost[None]])], [cost])[0] == pytest.approx([0.6])


# Garbage collection.


def job(n_dp=4, n_pp=1):
    graph = SimpleNamespace(n_dp=n_dp, n_pp=n_pp, variant_dps=(np.arange(n_dp),))
    return SimpleNamespace(graph=graph)


def pausing(cells, seconds=0.1, shape=(1, 8, 5, 4)):
    """[place, microbatch, step, dp] seconds of pauses in some cells."""
    excess = np.zeros(shape)
    for cell in cells:
        excess[cell] = seconds
    return [excess]


def garbage_of(monkeypatch, forward, backward=(), **kwargs):
    tables = {0: pausing(forward, **kwargs), 1: pausing(backward, **kwargs)}
    monkeypatch.setattr(garbage, "pauses", lambda durations, fit, kind, *_: tables[kind])
    fit = SimpleNamespace(
        stage_of_place=np.zeros(1, dtype=int), place=np.log(np.full((2, 1), 0.5)), sigma=np.zeros(2)
    )
    return garbage.garbage_cause(job(), fit)


SPREAD = [(0, microbatch, 0, microbatch % 3) for microbatch in range(8)]


@pytest.mark.parametrize(("pauses_", "named"), [(4, False), (5, True)])
def test_five_pauses_of_forwards_alone_are_no_chance(monkeypatch, pauses_, named):
    assert (garbage_of(monkeypatch, SPREAD[:pauses_]) is not None) == named


@pytest.mark.parametrize(("backward", "named"), [(0, True), (1, True), (2, False)])
def test_forwards_pause_more_often_than_chance_has_it(monkeypatch, backward, named):
    """Of 7 coins none, of 8 one shows the other side in 0.8 and 3.5%; of 9 two in 9%."""
    candidate = garbage_of(monkeypatch, SPREAD[:7], SPREAD[:backward])
    assert (candidate is not None) == named
    if named:
        assert candidate.chance == (1 / 128 if backward == 0 else 9 / 256)


def test_pauses_too_short_for_backwards_are_ambiguous(monkeypatch):
    """Forwards take 1 s and backwards 10 s: those pause from 15%, 1.5 s on."""
    tables = {0: pausing(SPREAD[:7], seconds=1.0), 1: pausing(())}
    monkeypatch.setattr(garbage, "pauses", lambda durations, fit, kind, *_: tables[kind])
    place = np.log([[1.0], [10.0]])
    fit = SimpleNamespace(stage_of_place=np.zeros(1, dtype=int), place=place, sigma=np.zeros(2))
    assert "do not show in backwards" in garbage.garbage_cause(job(), fit).ambiguous
    fit.place = np.log([[1.0], [6.0]])
    assert not garbage.garbage_cause(job(), fit).ambiguous


def test_the_evidence_of_pauses(monkeypatch):
    """7 of 160 forwards, of 100 ms each; worker 0 pauses most, worker 2 least; one backward."""
    cells = [(0, m, m, 0) for m in range(4)] + [(0, 4, 0, 1), (0, 5, 0, 1), (0, 6, 0, 2)]
    candidate = garbage_of(monkeypatch, cells, [(0, 0, 0, 3)])
    assert candidate.text.startswith("7 forwards (4.38%) on 3 workers pause for 100")
    assert "backwards hardly do" in candidate.text
    assert candidate.where == {"workers": [[0, 0], [1, 0], [2, 0]]}
    evidence = candidate.evidence
    assert (evidence["pauses"], evidence["backward_pauses"], evidence["workers"]) == (7, 1, 3)
    assert evidence["median_s"] == pytest.approx(0.1)
    assert evidence["total_s"] == pytest.approx(0.7)
    assert evidence["on_one_microbatch"] == pytest.approx(1 / 7)
    assert not candidate.ambiguous


@pytest.mark.parametrize(
    ("same", "others", "named"),
    [
        (6, 4, False),  # 60% of ten on one microbatch: the work, not the collector
        (5, 5, True),  # half is not more than half
        (6, 3, True),  # nine are too few to say
    ],
)
def test_pauses_of_one_microbatch_follow_the_work(monkeypatch, same, others, named):
    cells = [(0, 0, i % 5, i // 5) for i in range(same)]
    cells += [(0, 1 + i, 0, 2) for i in range(others)]
    assert (garbage_of(monkeypatch, cells) is not None) == named


def test_one_worker_that_pauses_is_ambiguous(monkeypatch):
    candidate = garbage_of(monkeypatch, [(0, i, 0, 1) for i in range(5)])
    assert candidate.alternative == "worker"
    assert "only one worker pauses" in candidate.ambiguous
    assert "no backwards do" in candidate.text


def test_few_microbatches_say_nothing_of_one():
    cells = [(0, 0, step, 0) for step in range(5)]
    assert garbage._on_one_microbatch(pausing(cells, shape=(1, 3, 5, 4))) == 0
    assert garbage._on_one_microbatch(pausing(cells, shape=(1, 4, 5, 4))) == 1


def test_the_growth_of_pauses_is_the_median_slope():
    """1, 2, 3, 7 s: slopes 1, 1, 2, 1, 2.5, 4 between two; by 3 x 1.5 over the trace, of 2.5."""
    excess = np.zeros((1, 2, 4, 1))
    excess[0, 0, :, 0] = 1, 2, 3, 7
    assert garbage._growth([excess]) == pytest.approx(3 * 1.5 / 2.5)


@pytest.mark.parametrize(("steps", "growth"), [(4, 3 / 2.5), (3, 0.0)])
def test_pauses_that_grow(steps, growth):
    """1, 2, 3, 4 seconds: by 3 over the trace, 2.5 in the middle; of three steps: nothing."""
    excess = np.zeros((1, 2, 5, 1))
    excess[0, 0, :steps, 0] = np.arange(1, steps + 1)
    assert garbage._growth([excess[:, :, : max(steps, 4)]]) == pytest.approx(growth)


# Collectives of data-parallel groups.


def group(times, kind=OpKind.GRADS_REDUCE_SCATTER, usual_s=1.0):
    times = np.asarray(times, dtype=float)
    if times.ndim == 1:
        times = np.repeat(times[:, None], 3, axis=1)
    workers = [(dp, 0) for dp in range(times.shape[1])]
    return Group(kind, 0, np.arange(times.shape[1]), times, workers, usual_s)


def judge(one, others):
    table = np.stack([entry.level for entry in (one, *others)])
    return _judge(one, _Others(table, np.median(table, axis=1), 0))


def steps_of(n, *, late=0, at=2.1):
    return np.where(np.arange(n) < late, at, 1.0)


@pytest.mark.parametrize(("factor", "lasting"), [(1.29, False), (1.3, True), (1.31, True)])
def test_a_group_is_slow_from_1_3_times_on(factor, lasting):
    others = [group(np.ones(10))] * 3
    slow = judge(group(np.full(10, factor)), others)
    assert (slow is not None) == lasting
    if slow:
        assert slow.lasting
        assert slow.factor == pytest.approx(factor)
        assert slow.steps.all()
        assert slow.excess_s == pytest.approx(factor - 1)


def test_a_slow_group_stands_out_of_the_spread_of_the_others():
    """Levels e^-x, 1, e^x spread by 1.4826 x: six times that decides, not 1.3."""
    x = 0.05
    others = [group(np.full(10, level)) for level in (math.exp(-x), 1.0, math.exp(x))]
    bar = math.exp(6 * 1.4826 * x)
    assert judge(group(np.full(10, bar * 0.99)), others) is None
    assert judge(group(np.full(10, bar * 1.01)), others) is not None
    # two others have no spread to speak of
    assert judge(group(np.full(10, 1.31)), [others[0], others[2]]) is not None


@pytest.mark.parametrize(
    ("n", "late", "at", "flaps"),
    [
        (20, 3, 2.1, True),  # chance, were 1 in 500 usual: under one in ten thousand
        (20, 3, 2.0, False),  # late is more than twice as long
        (20, 1, 9.0, False),  # one step is no flapping
        (101, 2, 9.0, False),  # under 2% of the steps
    ],
)
def test_a_group_flaps(n, late, at, flaps):
    slow = judge(group(steps_of(n, late=late, at=at)), [group(np.ones(n))] * 3)
    assert (slow is not None) == flaps
    if slow:
        assert not slow.lasting
        assert slow.factor == pytest.approx(at)
        assert slow.steps.sum() == late
        assert slow.excess_s == pytest.approx((at - 1) * late / n)


def test_most_of_a_kind_slow_alike_are_not_blamed():
    one = [group(np.full(10, 1.5)), *[group(np.ones(10)) for _ in range(3)]]
    assert [entry.factor for entry in slow_groups(one)] == pytest.approx([1.5])
    two = [group(np.full(10, factor)) for factor in (1.5, 1.8, 1.0, 1.0, 1.0)]
    assert [entry.factor for entry in slow_groups(two)] == pytest.approx([1.8, 1.5])
    half = [group(np.full(10, factor)) for factor in (1.5, 1.8, 1.0, 1.0)]
    assert [entry.factor for entry in slow_groups(half)] == pytest.approx([1.8, 1.5])
    most = [group(np.full(10, factor)) for factor in (1.5, 1.5, 1.0)]
    assert slow_groups(most) == []
    pair = [group(np.full(10, factor)) for factor in (1.5, 1.0)]
    assert [entry.factor for entry in slow_groups(pair)] == pytest.approx([1.5])
    clips = [group(np.full(10, f), OpKind.OPTIMIZER_CLIP_MAIN_GRAD) for f in (1.5, 1.0, 1.0)]
    assert slow_groups(clips) == []


@pytest.mark.parametrize(
    ("behind", "late", "members", "steps", "named"),
    [
        (0.16, 1, 8, 10, 1),
        (0.14, 1, 8, 10, 0),  # under 15% of the group's time
        (0.16, 2, 8, 10, 2),
        (0.16, 3, 8, 10, 0),  # over a quarter: the members are unlike
        (0.16, 1, 8, 1, 0),
        (0.16, 1, 8, 2, 1),
        (9.0, 1, 2, 10, 0),
    ],
)
def test_a_member_ends_late(behind, late, members, steps, named):
    times = np.ones((steps, members))
    times[:, :late] += behind
    blamed = _late_members([group(times, usual_s=2.0)])
    assert len(blamed) == named
    assert all(seconds == pytest.approx(2 * behind) for _, _, seconds in blamed)
    assert [member for _, member, _ in blamed] == list(range(named))


def test_a_member_is_late_beyond_its_own_spread():
    """Behind by 1 +- 0.8: spread 1.4826 x 0.8, of a median of 10 steps 1.2533 / sqrt(10) of it."""
    times = np.ones((10, 8))
    times[:, 0] += 1 + np.array([0.8, -0.8] * 5)
    error = 1.2533 * 1.4826 * 0.8 / math.sqrt(10)
    assert 6 * error > 1
    assert _late_members([group(times)]) == []
    times[:, 0] = 2 + np.array([0.2, -0.2] * 5)
    assert 6 * error / 4 < 1
    [(_, member, _)] = _late_members([group(times)])
    assert member == 0


def test_fifteen_percent_of_the_time_of_a_group_is_late():
    """20 s, and 23 s of one of eight."""
    times = np.full((10, 8), 20.0)
    times[:, 3] = 23.0
    assert [member for _, member, _ in _late_members([group(times)])] == [3]


@pytest.mark.parametrize(("usual", "named"), [(1.0, 1), (0.0, 0), (-1.0, 0)])
def test_groups_that_take_no_time_have_no_late_members(usual, named):
    """Clocks that are off leave nothing; members end within 20 ms of each other, one 5 s after."""
    times = usual + 0.01 * np.array([-2, -1, -1, 0, 0, 0, 1, 1, 500]) * np.ones((10, 1))
    assert len(_late_members([group(times)])) == named


# Links.


def links_of(level, low=None, dp=None, late=None, n=None):
    size = len(level)
    low = np.zeros(size, dtype=np.int64) if low is None else np.array(low)
    return _Links(
        np.arange(size) if dp is None else np.array(dp), low, low + 1, np.array(level, dtype=float),
        np.zeros(size, dtype=np.int64) if late is None else np.array(late),
        np.full(size, 1000) if n is None else np.array(n), np.zeros((size, 3)), (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("late", "flapping"),
    [
        ([221, 0, 0, 0], [True, False, False, False]),  # 2.2% less the usual one in 500
        ([219, 0, 0, 0], [False, False, False, False]),
        ([601, 410, 400, 400], [True, False, False, False]),
        ([599, 400, 400, 400], [False, False, False, False]),  # under 2% more than the others
        ([400, 200, 200, 200], [True, False, False, False]),  # 2% more is enough
    ],
)
def test_a_link_flaps(late, flapping):
    assert _flapping(links_of([1.0] * 4, late=late, n=[10_000] * 4)).tolist() == flapping


def test_few_late_transfers_are_chance():
    """2 of 40: 5%, but one in 500 usual gives that once in 300 jobs."""
    assert not _flapping(links_of([1.0] * 4, late=[2, 0, 0, 0], n=[40] * 4)).any()
    assert _flapping(links_of([1.0] * 4, late=[4, 0, 0, 0], n=[40] * 4))[0]


def test_links_between_the_same_stages_are_the_measure():
    """Between stages 0 and 1 all take twice the usual time; so do most pairs of stages."""
    links = links_of([2.0, 2.0, 4.0, 2.0, 2.0, 2.0], low=[0, 0, 0, 1, 1, 1], dp=[0, 1, 2] * 2)
    assert _usual_levels(links).tolist() == [3.0, 3.0, 2.0, 2.0, 2.0, 2.0]
    # a single replica has none to compare with; levels below 1 count as 1
    assert _usual_levels(links_of([2.0, 1.0], low=[0, 1])).tolist() == [1.0, 1.0]
    assert _usual_levels(links_of([0.5, 0.5, 2.0])).tolist() == [1.25, 1.25, 1.0]


@pytest.mark.parametrize(
    ("paths", "usual"),
    [
        ([1.4, 1.0, 1.0], [1.0, 1.0, 1.0]),  # one slow path of three is slow
        ([1.2, 1.0, 1.0], [1.2, 1.0, 1.0]),  # under 1.3 it is what messages explain
        ([1.4, 1.4, 1.0], [1.4, 1.4, 1.0]),  # most of them: explained
        ([1.4, 1.0], [1.4, 1.0]),  # two paths do not show which is right
    ],
)
def test_a_slow_path_among_others(paths, usual):
    low = [pair for pair in range(len(paths)) for _ in range(3)]
    level = [level for level in paths for _ in range(3)]
    assert _usual_levels(links_of(level, low=low)).tolist() == [u for u in usual for _ in range(3)]


def test_names_and_neighbours_of_a_link():
    links = links_of([1.0] * 4, low=[0, 0, 1, 1], dp=[0, 1, 0, 1])
    assert links.name(3) == [[1, 1], [1, 2]]
    assert links.others_between(3).tolist() == [False, False, True, False]


# Microbatches.


def test_pearson_by_hand():
    one = np.array([1.0, 2.0, 3.0, 4.0])[:, None]
    assert _pearson(one, 2 * one + 5) == pytest.approx([1.0])
    assert _pearson(one, -one) == pytest.approx([-1.0])
    other = np.array([1.0, 3.0, 2.0, 4.0])[:, None]
    assert _pearson(one, other) == pytest.approx([0.8])
    assert _pearson(one, np.ones((4, 1))).tolist() == [0.0]


def test_variance_that_goes_with_the_number_in_the_step():
    """[microbatch, step, dp]: all of it, half of it, none."""
    number = np.array([1.0, -1.0])[:, None, None] * np.ones((1, 2, 1))
    step = np.ones((2, 1, 1)) * np.array([1.0, -1.0])[None, :, None]
    shares = [
        _same_in_all_steps(SimpleNamespace(variants=[SimpleNamespace(micro=micro)]))
        for micro in (number, number + step, step, number[:, :1])
    ]
    assert shares == pytest.approx([1.0, 0.5, 0.0, 0.0])
