"""Rules of the diagnosis at their edges, on numbers that can be worked out by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.diagnose import garbage, outside
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.confidence import Trust
from paceline.diagnose.finding import NOWHERE, Finding
from paceline.diagnose.fit import Fit, VariantFit, _slopes, pause_residual, pauses
from paceline.diagnose.groups import _Group, _judge, _late_members, _slow_groups
from paceline.diagnose.hosts import name_hosts
from paceline.diagnose.levels import (
    from_the_fast,
    inner_median,
    lower_median,
    places_and_levels,
    use_fast_workers,
)
from paceline.diagnose.links import _flapping, _Links, _usual_levels
from paceline.diagnose.microbatches import _pearson, _same_in_all_steps
from paceline.diagnose.remove import Effect
from paceline.diagnose.stages import _place
from paceline.diagnose.workers import _chance, _pattern, _text
from paceline.trace import OpKind
from paceline.whatif.result import LaunchDelay

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


@pytest.mark.parametrize(("gap", "changed"), [(0.029, []), (0.031, [1])])
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
    durations = SimpleNamespace(block=lambda v: block)
    fit = fit_of(residual, sigma=sigma)
    [forward] = pauses(durations, fit, 0)
    [backward] = pauses(durations, fit, 1)
    assert forward.ravel() == pytest.approx([0.0, pause_s])
    assert not backward.any()
    assert pause_residual(fit) == pytest.approx(max(6 * sigma, math.log(1.15)))


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
    monkeypatch.setattr(garbage, "pauses", lambda durations, fit, kind: tables[kind])
    return garbage.garbage_cause(job(), SimpleNamespace(stage_of_place=np.zeros(1, dtype=int)))


SPREAD = [(0, microbatch, 0, microbatch % 3) for microbatch in range(8)]


@pytest.mark.parametrize(("pauses_", "named"), [(2, False), (3, True)])
def test_three_pauses_are_a_pattern(monkeypatch, pauses_, named):
    assert (garbage_of(monkeypatch, SPREAD[:pauses_]) is not None) == named


@pytest.mark.parametrize(("backward", "named"), [(0, True), (2, True), (3, False)])
def test_forwards_pause_three_times_as_often(monkeypatch, backward, named):
    assert (garbage_of(monkeypatch, SPREAD[:6], SPREAD[:backward]) is not None) == named


def test_the_evidence_of_pauses(monkeypatch):
    """6 of 160 forwards, of 100 ms each; worker 0 pauses most, worker 2 least; one backward."""
    cells = [(0, 0, 0, 0), (0, 1, 1, 0), (0, 2, 2, 0), (0, 3, 0, 1), (0, 4, 0, 1), (0, 5, 0, 2)]
    candidate = garbage_of(monkeypatch, cells, [(0, 0, 0, 3)])
    assert candidate.text.startswith("6 forwards (3.75%) on 3 workers pause for 100")
    assert "backwards hardly do" in candidate.text
    assert candidate.where == {"workers": [[0, 0], [1, 0], [2, 0]]}
    evidence = candidate.evidence
    assert (evidence["pauses"], evidence["backward_pauses"], evidence["workers"]) == (6, 1, 3)
    assert evidence["median_s"] == pytest.approx(0.1)
    assert evidence["total_s"] == pytest.approx(0.6)
    assert evidence["on_one_microbatch"] == pytest.approx(1 / 6)
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
    candidate = garbage_of(monkeypatch, [(0, i, 0, 1) for i in range(4)])
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
    return _Group(kind, 0, 0, np.arange(times.shape[1]), times, workers, usual_s)


def steps_of(n, *, late=0, at=2.1):
    return np.where(np.arange(n) < late, at, 1.0)


@pytest.mark.parametrize(("factor", "lasting"), [(1.29, False), (1.31, True)])
def test_a_group_is_slow_from_1_3_times_on(factor, lasting):
    others = [group(np.ones(10))] * 3
    slow = _judge(group(np.full(10, factor)), others)
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
    assert _judge(group(np.full(10, bar * 0.99)), others) is None
    assert _judge(group(np.full(10, bar * 1.01)), others) is not None
    # two others have no spread to speak of
    assert _judge(group(np.full(10, 1.31)), [others[0], others[2]]) is not None


@pytest.mark.parametrize(
    ("n", "late", "at", "flaps"),
    [
        (20, 3, 2.1, True),  # chance, were 1 in 500 usual: under one in ten thousand
        (20, 3, 1.9, False),  # late is twice as long
        (20, 1, 9.0, False),  # one step is no flapping
        (101, 2, 9.0, False),  # under 2% of the steps
    ],
)
def test_a_group_flaps(n, late, at, flaps):
    slow = _judge(group(steps_of(n, late=late, at=at)), [group(np.ones(n))] * 3)
    assert (slow is not None) == flaps
    if slow:
        assert not slow.lasting
        assert slow.factor == pytest.approx(at)
        assert slow.steps.sum() == late
        assert slow.excess_s == pytest.approx((at - 1) * late / n)


def test_most_of_a_kind_slow_alike_are_not_blamed():
    one = [group(np.full(10, 1.5)), *[group(np.ones(10)) for _ in range(3)]]
    assert [entry.factor for entry in _slow_groups(one)] == pytest.approx([1.5])
    two = [group(np.full(10, factor)) for factor in (1.5, 1.8, 1.0, 1.0, 1.0)]
    assert [entry.factor for entry in _slow_groups(two)] == pytest.approx([1.8, 1.5])
    clips = [group(np.full(10, f), OpKind.OPTIMIZER_CLIP_MAIN_GRAD) for f in (1.5, 1.0, 1.0)]
    assert _slow_groups(clips) == []


@pytest.mark.parametrize(
    ("behind", "late", "members", "steps", "named"),
    [
        (0.16, 1, 8, 10, 1),
        (0.14, 1, 8, 10, 0),  # under 15% of the group's time
        (0.16, 2, 8, 10, 2),
        (0.16, 3, 8, 10, 0),  # over a quarter: the members are unlike
        (0.16, 1, 8, 1, 0),
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
    assert _pattern(workers, (2, 8)) == words


def test_some_stages_of_one_rank():
    assert _pattern([[3, 0], [3, 1]], (4, 8)) == "one dp rank"


def test_sentences_name_six_steps():
    steps = np.arange(10, 20)
    assert _text([[3, 1]], 1.5, None, steps) == "worker dp 3, stage 1 is 1.50x slow"
    some = np.arange(10) < 6
    assert _text([[3, 1]], 1.5, some, steps).endswith(" in 6 of 10 steps (10, 11, 12, 13, 14, 15)")
    more = np.arange(10) < 7
    assert _text([[3, 1]], 1.5, more, steps).endswith("7 of 10 steps (10, 11, 12, 13, 14, 15, ...)")
    assert _text([[3, 1], [4, 1]], 1.5, None, steps).startswith(
        "2 workers are slow, the worst (dp 3"
    )


def test_the_chance_of_a_slow_worker():
    """t = 4 with 9 degrees of freedom: 0.00156 (tables); of 8 workers eight times that."""
    lasting, slow = np.full((1, 8), 0.08), np.ones((1, 8), dtype=bool)
    fit = SimpleNamespace(worker_error=np.full((1, 8), 0.02))
    assert _chance((0, 0), lasting, slow, fit, 10) == pytest.approx(8 * 0.00156, rel=0.2)
    assert _chance((0, 0), lasting, ~slow, fit, 10) == 0
    assert _chance((0, 0), lasting, slow, fit, 1) == 0
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


def test_chance_and_another_reading_lower_a_confidence():
    assert TRUST.confidence(candidate(chance=0.1), 1.0) == pytest.approx(0.9)
    assert TRUST.confidence(candidate(ambiguous="or not"), 1.0) == pytest.approx(0.6)


def test_a_simulation_slower_than_the_trace_is_wrong():
    block = np.array([1.0, 2.0, 4.0, 8.0])[:, None, None] * np.ones((1, 2, 2))
    kinds = np.array([OpKind.FORWARD_COMPUTE, OpKind.FORWARD_SEND, OpKind.GRADS_REDUCE_SCATTER,
                      OpKind.OPTIMIZER])  # fmt: skip
    graph = SimpleNamespace(kind=kinds, variant_ops=lambda v: slice(0, 4), n_dp=2, n_pp=1)
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


def life(times, **fields):
    times = np.asarray(times, dtype=float)
    fields = {
        "simulated_s": times,
        "traced_s": times,
        "steps": np.arange(len(times)) + 100,
    } | fields
    return SimpleNamespace(**fields)


def drift(times, **fields):
    return outside._drift(life(times, **fields), MEAN[len(times)])


@pytest.mark.parametrize(("change", "named"), [(0.0300, False), (0.0310, True)])
def test_a_trend_counts_from_three_percent_of_the_mean_on(change, named):
    found = drift(1 + change * np.linspace(0, 1, 16))
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
    assert (drift(np.linspace(1, 2, n)) is not None) == named


def test_a_job_that_becomes_faster():
    found = drift(np.linspace(2, 1, 16))
    assert "50.0% faster" in found.text
    assert found.share_of_step == pytest.approx(-0.5 / 1.5)
    assert found.confidence == 1
    assert found.where == NOWHERE


def test_a_jump_is_named_with_its_step():
    found = drift(np.repeat([1.0, 1.2], [12, 18]))
    assert (found.id, found.evidence["step"]) == ("change-point", 112)
    assert found.evidence["change"] == pytest.approx(0.2)
    assert found.share_of_step == pytest.approx(0.12 / 1.12)


def test_the_chances_of_trends_and_jumps():
    """Mann-Kendall: of 8 rising values 28 pairs rise; Pettitt: K = 36 of 6 and 6 values."""
    z = 27 / math.sqrt(8 * 7 * 21 / 18)
    assert outside._mann_kendall(np.arange(8.0)) == pytest.approx(math.erfc(z / math.sqrt(2)))
    assert outside._mann_kendall(np.ones(8)) == 1
    shape = outside._break(np.arange(12.0), np.repeat([1.0, 2.0], 6))
    assert shape.p_value == pytest.approx(2 * math.exp(-6 * 36**2 / (12**3 + 12**2)))
    assert shape.fitted.tolist() == [1.0] * 6 + [2.0] * 6
    line = outside._trend(np.array([0.0, 2.0, 3.0]), np.array([5.0, 9.0, 11.0]))
    assert line.fitted == pytest.approx([5, 9, 11])
    assert outside._theil_sen(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 8.0])) == 4


def delayed(lost, overlap=0.0, by_kind=None, step_start=1.0, slowdown=1.05, n=8):
    simulated = np.ones(n)
    result = life(
        simulated,
        traced_s=simulated + lost,
        launch_delay=LaunchDelay(step_start=step_start, by_kind=by_kind or {"forward-send": 1.02}),
        launch_slowdown=slowdown,
    )
    measured = SimpleNamespace(overlap_s=np.full(n, overlap))
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


def odd(work, idle=0.0):
    """Steps that compute for ``work`` seconds and wait for ``idle`` more."""
    work = np.asarray(work, dtype=float)
    kinds = np.array([OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.OPTIMIZER])
    graph = SimpleNamespace(kind=kinds, variant_ops=lambda v: slice(0, 3))
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
    graph = SimpleNamespace(kind=kinds, variant_ops=lambda v: slice(0, 3))
    measured = SimpleNamespace(graph=graph, durations=SimpleNamespace(blocks=[block]))
    found = outside._odd_steps(measured, life(block.sum(axis=(0, 2))), MEAN[8])
    assert found.evidence["steps"] == [104]
    block[kind, 4], block[2, 4] = 0.5, 5.0  # an optimizer is no compute
    life_ = life(block.sum(axis=(0, 2)))
    assert outside._odd_steps(measured, life_, MEAN[8]) is None
