"""Steps and suspects from call logs, on logs small enough to follow by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from paceline.detect.arrivals import Arrivals
from paceline.detect.detector import Detector
from paceline.detect.passes import ring_passes
from paceline.detect.period import Period
from paceline.detect.steps_of_calls import StepTimes, _agree, _by_appearance, _offset, _periodic
from paceline.detect.verdict import Measurements, Place, judge
from paceline.detect.who_calls import (
    _flows,
    _idle_s,
    _steps_of_calls,
    _Window,
    _work,
    who_from_calls,
)
from paceline.detect.who_trace import place_text
from paceline.errors import DetectError
from paceline.trace import Job
from paceline.trace.calls import CallLog


def ints(*values):
    return np.array(values, dtype=np.int64)


def log_of(rows, ops=("AllReduce", "Send", "Recv"), communicators=("a", "b")):
    """Rows of (rank, begin, seconds, op, size, communicator)."""
    rank, time_s, duration_s, op, size, communicator = zip(*rows, strict=True)
    return CallLog(
        ints(*rank), np.array(time_s, dtype=float), ints(*op), ints(*size), ints(*communicator),
        ops, communicators, np.array(duration_s, dtype=float),
    )  # fmt: skip


# Periods of ranks that see parts of a step.


def sequence(rank, calls, repetitions=10, apart_s=1.0):
    n = calls * repetitions
    names = np.tile(np.arange(calls), repetitions)
    return rank, names, 1e6 + apart_s * np.arange(n), Period(calls, 1.0, float(repetitions))


@pytest.mark.parametrize(
    ("odd", "calls", "repetitions"),
    [
        (sequence(2, 2, 20), 4, 10),  # half a step: doubled
        (sequence(2, 1, 40), 4, 10),
        (sequence(2, 2, 3), 2, 3),  # 1.5 repetitions would be left
        (sequence(2, 2, 4), 4, 2),
        (sequence(2, 8, 5), 4, 10),  # two steps: halved
        (sequence(2, 12, 4), 4, 12),
        (sequence(2, 7, 5), 7, 5),  # does not divide
        (sequence(2, 8, 10, 0.5), 8, 10),  # as long as the others' in time
    ],
)
def test_periods_become_those_of_most_ranks(odd, calls, repetitions):
    agreed = _agree([sequence(0, 4), sequence(1, 4), odd])
    assert [entry[3].calls for entry in agreed[:2]] == [4, 4]
    assert (agreed[2][3].calls, agreed[2][3].repetitions) == (calls, repetitions)


def test_names_by_first_appearance():
    assert _by_appearance(ints(7, 3, 7, 9, 3)).tolist() == [0, 1, 0, 2, 1]


def test_steps_of_a_rank_that_begins_later():
    reference = np.arange(0.0, 10.0)
    assert _offset(np.array([3.1, 4.1, 5.0]), reference) == 3
    assert _offset(np.array([0.1, 1.1]), reference) == 0


def test_a_rank_whose_threads_mix_has_the_longest_period_of_a_communicator():
    """Communicator 0 repeats after 2 calls, 1 after 3; mixed at random nothing does.

    Of equally long logs the period of 3 is longer in time.
    """
    rng = np.random.default_rng(0)
    communicator = rng.permutation(np.repeat([0, 1], 60))
    codes = np.empty(120, dtype=np.int64)
    codes[communicator == 0] = np.tile([0, 1], 30)
    codes[communicator == 1] = np.tile([2, 3, 4], 20)
    rows, names, period = _periodic(np.arange(120), codes, communicator, 50, {})
    assert period.calls == 3
    assert rows.tolist() == np.flatnonzero(communicator == 1).tolist()
    assert names.tolist() == np.tile([0, 1, 2], 20).tolist()


def test_of_two_communicators_that_with_fewer_periods_is_the_steps():
    """2 calls repeat 10 times, 3 calls 30 times: the former takes longer."""
    communicator = np.repeat([0, 1], [20, 90])
    codes = np.append(np.tile([0, 1], 10), np.tile([2, 3, 4], 30))
    mixed = np.random.default_rng(0).permutation(110)
    order = np.argsort(np.argsort(mixed))
    # calls of one communicator stay in their order
    communicator = communicator[order]
    names = np.empty(110, dtype=np.int64)
    for one in (0, 1):
        names[communicator == one] = codes[:20] if one == 0 else codes[20:]
    rows, _, period = _periodic(np.arange(110), names, communicator, 50, {})
    assert (period.calls, len(rows)) == (2, 20)


def times_of(rank, step, duration_s=None):
    rank, step = ints(*rank), ints(*step)
    seconds = np.ones(len(rank)) if duration_s is None else np.array(duration_s)
    return StepTimes(rank, step, step.astype(float), seconds, {0: Period(4, 0.975, 5.0)})


def test_step_times_in_words_and_as_a_table():
    times = times_of([0, 0, 1, 1], [0, 1, 1, 2], [1.0, 2.0, 3.0, 4.0])
    assert times.iteration_s == 2.5
    assert times.explain().startswith("every 4 calls a step (97.5% of the calls in place, 1 ranks)")
    assert times.to_mapping()["steps"] == 3
    table = times.table()
    assert np.array_equal(
        table.duration_s,
        [[1.0, np.nan], [2.0, 3.0], [np.nan, 4.0]],
        equal_nan=True,
    )
    many = StepTimes(ints(0), ints(0), np.zeros(1), np.ones(1),
                     {r: Period(r + 1, 1.0, 5.0) for r in range(9)})  # fmt: skip
    assert "every 1, 2, 3, 4, 5, 6, 7, 8, ... calls a step" in many.explain()
    single = StepTimes(ints(0), ints(0), np.zeros(1), np.ones(1), {0: Period(1, 1.0, 5.0)})
    assert "every 1 call a step" in single.explain()
    assert "all calls are equal" in single.explain()


# Who.


def test_idle_time_runs_from_the_last_begin_or_end():
    log = log_of([
        (0, 0.0, 2.0, 0, 8, 0),
        (0, 1.0, 0.5, 0, 8, 0),  # begins while the first runs: 1 s after its begin
        (0, 2.5, 1.0, 0, 8, 0),  # 0.5 s after the end of the first
        (1, 1.0, 1.0, 0, 8, 0),
        (1, 4.0, 1.0, 0, 8, 0),
        (1, 5.0, 1.0, 0, 8, 0),  # at once
    ])  # fmt: skip
    assert _idle_s(log).tolist() == [0, 1.0, 0.5, 0, 2.0, 0]


def test_calls_belong_to_the_step_in_which_they_begin():
    log = log_of([(0, t, 0.1, 0, 8, 0) for t in (0.5, 1.0, 1.9, 2.0, 3.0, 3.5)]
                 + [(1, 2.0, 0.1, 0, 8, 0), (2, 2.0, 0.1, 0, 8, 0)])  # fmt: skip
    steps = StepTimes(ints(0, 0, 1), ints(4, 5, 5), np.array([1.0, 2.0, 1.5]), np.ones(3), {})
    assert _steps_of_calls(log, steps).tolist() == [-1, 4, 4, 5, -1, -1, 5, -1]


def test_sends_and_the_recvs_they_meet_flow_one_way():
    """Ranks 0 and 1 are a pair in communicator 0; communicator 1 has three members."""
    members = ((0, 1), (0, 1, 2))
    op, rank, group = ints(1, 2, 1, 2, 0, 1), ints(0, 1, 1, 0, 0, 2), ints(0, 0, 0, 0, 1, 1)
    kind, flow, upper = _flows(("AllReduce", "Send", "Recv"), op, rank, group, members)
    assert kind.tolist() == [1, 1, 1, 1, 0, 1]
    assert flow.tolist() == [1, 1, 2, 2, 0, -1]
    assert upper.tolist() == [0, 1, 1, 0, 0, 0]
    both = _flows(("SendRecv",), ints(0, 0), ints(0, 1), ints(0, 0), ((0, 1),))
    assert [column.tolist() for column in both] == [[0, 0], [0, 0], [0, 0]]


def job_log(steps=60, slow=None, window=None, late_rank=None):
    """4 ranks that compute 1 s before an all-reduce of all, and 1 s before one of their pair.

    A pair's all-reduce takes 0.5 s, and ``slow`` times that for pair 1 in the window.
    """
    rows, begin = [], 0.0
    for step in range(steps):
        inside = window is None or window[0] <= step < window[1]
        compute = [1.5 if late_rank == r and inside else 1.0 for r in range(4)]
        latest = begin + max(compute)
        rows += [(r, begin + compute[r], latest + 0.2 - begin - compute[r], 0, 8, 0)
                 for r in range(4)]  # fmt: skip
        ends = []
        for r in range(4):
            seconds = 0.5 * (slow if slow and inside and r >= 2 else 1.0)
            rows.append((r, latest + 1.2, seconds, 0, 4, 1 + r // 2))
            ends.append(latest + 1.2 + seconds)
        begin = max(ends)
    rows.sort(key=lambda row: (row[1], row[0]))
    log = log_of(rows, communicators=("world", "low", "high"))
    starts = [row[1] for row in rows if row[0] == 0 and row[5] == 0]
    ranks = np.repeat(np.arange(4), steps - 1)
    start_s = np.concatenate(
        [[row[1] for row in rows if row[0] == r and row[5] == 0][:-1] for r in range(4)]
    )
    durations = np.concatenate(
        [np.diff([row[1] for row in rows if row[0] == r and row[5] == 0]) for r in range(4)]
    )
    number = np.tile(np.arange(steps - 1), 4)
    assert len(starts) == steps
    return log, StepTimes(ranks, number, start_s, durations, {})


def test_a_slow_group_of_a_window():
    log, steps = job_log(slow=2.0, window=(10, 40))
    [suspect] = who_from_calls(log, steps, 10, 40)
    assert (suspect.kind, suspect.ranks) == ("communication", (2, 3))
    assert suspect.factor == pytest.approx(2.0)
    assert suspect.share == pytest.approx(0.5 / 3.2)  # of steps of 1 + 1.2 + 1 s
    # 50 steps at most: 20 slow ones of them are no median
    assert who_from_calls(log, steps, 20) != ()
    assert who_from_calls(log, steps, 0, 10) == ()
    with pytest.raises(DetectError, match="no steps from 70 to 89"):
        who_from_calls(log, steps, 70, 90)


def test_the_last_50_steps_speak_where_no_window_is_given():
    log, steps = job_log(slow=2.0, window=(0, 9))
    assert who_from_calls(log, steps) == ()
    late, steps = job_log(slow=2.0, window=(20, 60))
    assert [s.ranks for s in who_from_calls(late, steps)] == [(2, 3)]


def test_a_rank_that_computes_longer():
    log, steps = job_log(late_rank=1)
    [suspect] = who_from_calls(log, steps)
    assert (suspect.kind, suspect.ranks) == ("compute", (1,))
    assert suspect.factor == pytest.approx(2.5 / 2.0)  # 1.5 and 1 s instead of 1 and 1


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ([(0, 1), (1, 1), (2, 1), (3, 1)], "all replicas of stage 1"),
        ([(2, 1)], "stage 1 of replica 2"),
        ([(2, 1), (2, 3)], "stages 1, 3 of replica 2"),
        ([(0, 1), (1, 1)], "dp 0, stage 1; dp 1, stage 1"),
        ([(0, i) for i in range(3)] + [(1, 0), (2, 0)],
         "dp 0, stage 0; dp 0, stage 1; dp 0, stage 2; dp 1, stage 0 and 1 more"),
    ],
)  # fmt: skip
def test_workers_in_words(workers, words):
    assert place_text(workers, SimpleNamespace(job=Job(4, 4))) == words


def test_the_only_replica_is_a_replica():
    assert place_text([(0, 1)], SimpleNamespace(job=Job(1, 4))) == "stage 1 of replica 0"


def test_workers_with_peers_in_words():
    """Two peers of each of two data-parallel ranks: four replicas."""
    measured = SimpleNamespace(job=Job(2, 4, tp_size=2, peers=2))
    assert place_text([(r, 1) for r in range(4)], measured) == "all replicas of stage 1"
    words = place_text([(1, 1), (2, 1)], measured)
    assert words == "dp 0, stage 1, peer 1; dp 1, stage 1, peer 0"


# Samples as they come.


def test_three_steps_again_are_a_restart():
    arrivals = Arrivals(1)
    seen = [step for s in (0, 1, 2, 3, 4) for step, _ in arrivals.add(s, 0, 1.0)]
    seen += [step for s in (1, 2) for step, _ in arrivals.add(s, 0, 1.0)]
    assert seen == [0, 1, 2, 3, 4]
    seen += [step for step, _ in arrivals.add(3, 0, 1.0)]
    assert seen == [0, 1, 2, 3, 4, 1, 2, 3]
    assert arrivals.late == 0
    list(arrivals.add(2, 0, 1.0))
    list(arrivals.end())
    assert arrivals.late == 1


# Validation.


def measured(gemm_ms=(), links_ms=(), host=lambda rank: f"h{rank}"):
    """Ranks and links with two equal rounds each; GPUs, whose median counts."""
    ranks = {rank for link in dict(links_ms) for rank in link} | set(range(len(gemm_ms)))
    return Measurements(
        gemm_s={rank: [ms / 1e3] * 3 for rank, ms in enumerate(gemm_ms)},
        link_s={link: [ms / 1e3] * 3 for link, ms in dict(links_ms).items()},
        places={rank: Place(host(rank), "A100") for rank in ranks},
        gemm=1, message_bytes=1, backend="nccl",
    )  # fmt: skip


@pytest.mark.parametrize(("slow", "named"), [(10.99, ()), (11.01, (2,))])
def test_products_are_slow_from_ten_percent_on(slow, named):
    verdict = judge(measured([10, 10, slow, 10, 10]))
    assert tuple(rank for found in verdict.slow_ranks for rank in found.ranks) == named


@pytest.mark.parametrize(("slow", "named"), [(12.49, 0), (12.51, 1)])
def test_links_are_slow_from_a_quarter_on(slow, named):
    ring = [link for one in ring_passes(range(5)) for link in one]
    times = dict.fromkeys(ring, 10.0) | {ring[0]: slow}
    verdict = judge(measured(links_ms=times))
    assert len(verdict.slow_links) == named


def test_where_products_scatter_five_deviations_count():
    """9, 10, 10, 10.5, 11: half of them lie 0.5 from the median; 5 x 1.4826 x 0.5 above it."""
    bar = 10 + 5 * 1.4826 * 0.5
    for slow, named in ((bar - 0.05, 0), (bar + 0.05, 1)):
        times = [9.5, 10, 10.5, 9.5, 10.5, 10, slow]
        assert len(judge(measured(times)).slow_ranks) == named


def test_of_two_nothing_is_usual():
    assert judge(measured([10, 20])).slow_ranks == ()
    assert [slow.ranks for slow in judge(measured([10, 10, 20])).slow_ranks] == [(2,)]


def test_most_may_be_slow_where_one_is_far_faster():
    """More than 1.5 times the fastest."""
    assert judge(measured([10, 14.9, 14.9, 14.9])).notes == ()
    [note] = judge(measured([10, 15.1, 15.1, 15.1])).notes
    assert "far below the median" in note


# Noise raises the bar.


def test_the_first_level_of_a_noisy_stream():
    """0.98 and 1.02 by turns: ten steps have a median of 1.

    Medians of five of them, two steps apart, are all 2% off. The deviation of a normal distribution
    with that median deviation is 1.4826 times as much; the next window moves it by a third (5 of 15
    steps) towards 1.2533 times its own 2%. Then six spreads count.
    """
    off = 0.02
    spread = 2 / 3 * 1.4826 * off + 1 / 3 * 1.2533 * off
    level = 1.0 * (1 + max(0.09 + 2.2 * spread, 6.0 * spread))
    for share, found in ((0.995, False), (1.005, True)):
        detector = Detector(1, warm_up=10)
        events = []
        for step in range(15):
            events += detector.update(step, [(0.98, 1.02)[step % 2]])
        for step in range(15, 18):
            events += detector.update(step, [level * share])
        assert [event.kind for event in events] == ["onset"] * found


def test_the_work_of_a_rank_is_the_middle_of_its_steps():
    """Two ranks, two calls a step, three steps: what lies before a call in the middle step.

    The larger of a rank's two places counts for both: 5 s twice, and 7 s twice.
    """
    idle_s = {0: ([1, 5, 9], [2, 3, 90]), 1: ([7, 0, 20], [4, 6, 5])}
    rows = [
        (rank, step, nth, seconds[step])
        for rank, places in idle_s.items()
        for nth, seconds in enumerate(places)
        for step in range(3)
    ]
    rank, step, nth, seconds = (np.array(column) for column in zip(*rows, strict=True))
    zeros = np.zeros(len(rows), dtype=np.int64)
    window = _Window(
        rank=rank, group=zeros, op=zeros, size=zeros, seconds=seconds.astype(float),
        idle_s=seconds.astype(float), nth=nth, step=step, kind=zeros, flow=zeros, upper=zeros,
        members=((0, 1),), names=("a",),
    )  # fmt: skip
    work = _work(window, {1: 0.5}, 3)
    assert work.rank.tolist() == [0, 1]
    assert work.seconds.tolist() == [2 * 5.0, 2 * 7.0]
    assert work.waited_for.tolist() == [0.0, 0.5]
    assert work.label[0] == work.label[1]
