"""Periods of calls, begins of steps, and who is slow: beside plain tables and by hand."""

import random
from dataclasses import replace

import numpy as np
import pytest

from paceline.detect.period import (
    _banded_edits,
    _candidates,
    _damage,
    _lag_edits,
    _near,
    _without_head,
    find_period,
)
from paceline.detect.step_starts import (
    _agreement,
    _begins_between,
    _first_whole,
    _phase,
    _resume,
    _walk,
    nearest,
    starts_of_steps,
)
from paceline.detect.who import (
    Transfers,
    Work,
    find_suspects,
    name_ranks,
    number,
    spans,
    spoken_span,
    waited_for,
)

# The period of calls.


def edits(a, b):
    """Levenshtein's distance, the whole table."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, right in enumerate(b, start=1):
            cost = min(row[j] + 1, row[j - 1] + 1, before + (left != right))
            before, row[j] = row[j], cost
    return row[-1]


@pytest.mark.parametrize("seed", range(20))
def test_distances_near_the_diagonal_are_those_of_the_whole_table(seed):
    rng = random.Random(seed)
    n = rng.randint(4, 14)
    a = [rng.randrange(3) for _ in range(n)]
    b = [x for x in a if rng.random() > 0.15] + [rng.randrange(3) for _ in range(3)]
    drift = len(a) + len(b)  # so wide that nothing is cut off
    row = _banded_edits(np.array(a), np.array(b), drift, 1e9, 0.0)
    for d, cost in enumerate(row.tolist()):
        place = n + d - drift
        if 0 <= place <= len(b):
            assert cost == edits(a, b[:place])
        else:
            assert cost == n + 1


@pytest.mark.parametrize(("drift", "cost"), [(0, 10), (3, 3)])
def test_a_narrow_band_sees_no_more_than_its_drift(drift, cost):
    """Three calls lie in front: three edits where the band is wide enough."""
    a, b = np.arange(10), np.append([90, 91, 92], np.arange(10))
    row = _banded_edits(a, b, drift, 1e9, 0.0)
    assert len(row) == 2 * drift + 1
    assert row[-1] == cost
    same = _banded_edits(a, a, drift, 1e9, 0.0)
    assert same[drift] == 0


def test_comparisons_are_given_up():
    """Every call differs: after i calls there are i edits, more than 2 with the third."""
    a, b = np.zeros(10), np.ones(10)
    assert (_banded_edits(a, b, 0, 2.0, 0.0) == 11).all()
    assert _banded_edits(a, b, 0, 10.0, 0.0).tolist() == [10]
    assert _banded_edits(a, b, 0, 0.0, 1.0).tolist() == [10]
    assert _banded_edits(a, b, 0, 0.0, 0.9).tolist() == [11]


@pytest.mark.parametrize(("at", "damage"), [(None, 0), (1, 1), (9, 1), (22, 1)])
def test_edits_that_make_repetitions(at, damage):
    x = np.tile([0, 1, 2, 3, 4], 5)
    if at is not None:
        x[at] = 9
    assert _damage(x, 5, 9) == damage
    assert _damage(np.delete(x, 12), 5, 9) == damage + 1


def test_calls_before_the_loop_are_cut_off():
    loop = np.tile([1, 2, 3], 8)
    assert _without_head(np.append([8, 9], loop)).tolist() == loop.tolist()
    assert _without_head(np.append([8, 1, 9, 1], loop)).tolist() == [1, *loop.tolist()]
    assert _without_head(loop).tolist() == loop.tolist()
    # only in the first quarter: later it is one call by mistake
    late = np.insert(loop, 8, 9)
    assert _without_head(late).tolist() == late.tolist()


@pytest.mark.parametrize(
    ("calls", "repetitions", "period"),
    [(10, 2, 10), (10, 1, None), (10, 3, 10), (1, 2, 1)],
)
def test_two_repetitions_are_needed(calls, repetitions, period):
    found = find_period(np.tile(np.arange(calls), repetitions))
    assert (found.calls if found else None) == period
    if found:
        assert (found.confidence, found.repetitions) == (1.0, repetitions)


@pytest.mark.parametrize(("longest", "found"), [(29, False), (30, True)])
def test_the_longest_period(longest, found):
    assert (find_period(np.tile(np.arange(30), 5), longest=longest) is not None) == found


@pytest.mark.parametrize(("exchanged", "found"), [(5, True), (7, False)])
def test_one_call_in_twenty_may_be_wrong(exchanged, found):
    """Of 100 calls in periods of 20."""
    x = np.tile(np.arange(20), 5)
    x[np.arange(exchanged) * 9 + 30] = 100 + np.arange(exchanged)
    period = find_period(x)
    assert (period is not None) == found
    if period:
        assert (period.calls, period.confidence) == (20, pytest.approx(0.95))


def test_one_wrong_call_needs_three_and_a_half_repetitions():
    x = np.tile(np.arange(4), 4)[:14]
    x[6] = 9
    assert find_period(x).calls == 4
    assert find_period(x[:13]) is None


# Where steps begin.


def test_the_nearest_of_some_times():
    times = np.array([1.0, 2.0, 4.0])
    assert nearest(times, np.array([0.0, 1.4, 1.6, 2.9, 3.1, 9.0])).tolist() == [0, 0, 1, 1, 2, 2]
    assert nearest(times, np.array([1.0, 2.0, 4.0])).tolist() == [0, 1, 2]


def test_the_first_undamaged_period():
    names = np.array([0, 1, 9, 3, 0, 1, 2, 3, 0, 1, 2, 3])
    assert _first_whole(names, 4) == 3
    assert _first_whole(np.tile(np.arange(4), 3), 4) == 0
    assert _first_whole(np.arange(5), 4) == 0


def calls_of(steps, at=2, pause_s=5.0, calls=4):
    """Names and times of calls 1 s apart, with a pause before call ``at`` of each step."""
    names = np.tile(np.arange(calls), steps)
    time_s = np.cumsum(np.where(names == at, pause_s, 1.0))
    return names, time_s


@pytest.mark.parametrize("at", range(4))
def test_a_step_begins_after_the_longest_pause(at):
    names, time_s = calls_of(6, at=at)
    start_s = starts_of_steps(names, time_s, 4, None)
    begins = np.flatnonzero(names == at)
    assert start_s.tolist() == time_s[begins].tolist()


@pytest.mark.parametrize("at", range(4))
def test_a_reference_moves_the_begin(at):
    names, time_s = calls_of(6, at=0)
    reference = time_s[np.flatnonzero(names == at)] + 0.1
    start_s = starts_of_steps(names, time_s, 4, reference)
    assert set(start_s.tolist()) == set(time_s[names == at].tolist())


def test_the_phase_by_the_pause_and_by_a_reference():
    _, time_s = calls_of(6, at=3)
    begins = np.arange(0, 24, 4)
    assert _phase(begins, time_s, 4, None) == 3
    assert _phase(begins, time_s, 4, time_s[begins + 1]) == 1
    assert _phase(begins, time_s, 4, time_s[-1:] + 9) == 0  # of another time: says nothing


def test_a_step_whose_first_call_is_missing_began_before_its_second():
    """Calls 1 s apart, 10 to a step: the begin is 1 s before what is there."""
    names, time_s = calls_of(8, at=0, calls=10)
    whole = starts_of_steps(names, time_s, 10, None)
    kept = np.arange(80) != 40
    assert starts_of_steps(names[kept], time_s[kept], 10, None) == pytest.approx(whole)


def test_the_next_undamaged_step():
    template = np.arange(4)
    names = np.array([0, 1, 2, 3, 9, 9, 0, 1, 2, 3, 0, 1, 2])
    assert _resume(names, template, 1, 1) == 6
    assert _resume(names, template, 6, 1) == 6
    assert _resume(names, template, 7, 1) == -1
    assert _resume(names, template, 5, -1) == 0
    assert _resume(names, template, 6, -1) == 6
    assert _resume(names, template, 10, 1) == -1
    assert _resume(names[:10], template, 6, 1) == 6  # the last four calls are a whole step
    assert _resume(names[:4], template, 0, -1) == 0


@pytest.mark.parametrize(
    ("wrong", "begins"),
    [(0, [4, 8]), (2, [4, 8]), (3, [])],
)
def test_steps_too_damaged_to_be_seen(wrong, begins):
    """Three steps of four calls: 12 wanted; each wrong call is one too few and one too many.

    Up to 40% of 12 may be off: 4.8.
    """
    names = np.tile(np.arange(4), 4)
    names[1 : 1 + wrong] = 4
    assert _begins_between(0, 12, names, np.arange(4)) == begins


# Who.


def test_numbers_of_rows():
    assert number(np.array([5, 5, 7, 7]), np.array([1, 2, 1, 1])).tolist() == [0, 1, 2, 2]


def test_ranks_in_words():
    assert spans([3]) == "3"
    assert spans([2, 0, 1, 5, 7, 8]) == "0-2, 5, 7-8"
    assert spans(range(0, 16, 2)) == "0, 2, 4, 6, 8, 10, 12, 14"
    assert spans(range(0, 18, 2)).endswith("12, 14 and 1 more runs")
    assert (name_ranks((3,)), name_ranks((3, 4))) == ("rank 3", "ranks 3-4")
    assert (spoken_span(np.array([4, 4])), spoken_span(np.array([8, 4]))) == ("4", "4 to 8")


@pytest.mark.parametrize(
    ("seconds", "step_s", "waited", "named"),
    [
        (1.11, 2.0, 0.9, True),
        (1.09, 2.0, 0.9, False),  # 1.1 times its like
        (1.2, 19.9, 0.9, True),  # 1% of the step
        (1.2, 20.1, 0.9, False),
        (1.5, 2.0, 0.41, True),
        (1.5, 2.0, 0.39, False),  # others wait for it in 40% of the calls
    ],
)
def test_when_a_rank_is_slow(seconds, step_s, waited, named):
    work = Work(
        np.arange(3), np.zeros(3, dtype=np.int64), np.array([1.0, seconds, 1.0]),
        np.array([0.0, waited, 0.0]),
    )  # fmt: skip
    empty = np.zeros(0, dtype=np.int64)
    nothing = Transfers(empty, empty, empty, np.zeros(0), (), ())
    suspects = find_suspects(nothing, work, step_s, 1)
    assert [suspect.ranks for suspect in suspects] == ([(1,)] if named else [])
    if named:
        assert suspects[0].factor == pytest.approx(seconds)
        assert suspects[0].share == pytest.approx((seconds - 1) / step_s)
    alone = replace(work, label=np.arange(3))
    assert find_suspects(nothing, alone, step_s, 1) == ()


@pytest.mark.parametrize(("window_s", "named"), [(49.0, True), (51.0, False)])
def test_a_group_that_costs_under_one_percent_has_no_name(window_s, named):
    """0.5 s of the window."""
    transfers = Transfers(
        np.arange(3), np.zeros(3, dtype=np.int64), np.full(3, 8), np.array([1.0, 1.0, 1.5]),
        ("a", "b", "c"), ((0, 1), (2, 3), (4, 5)),
    )  # fmt: skip
    empty = np.zeros(0, dtype=np.int64)
    no_work = Work(empty, empty, np.zeros(0), np.zeros(0))
    suspects = find_suspects(transfers, no_work, window_s, 1)
    assert [suspect.ranks for suspect in suspects] == ([(4, 5)] if named else [])
    assert len(find_suspects(transfers, no_work, window_s / 2, 2)) == named


# Agreement around a call, by a plain table.


def agreement(names, template):
    """Share of the calls around each that are as around the begin of a step.

    The calls next to it count 0.85^0.5, those behind them 0.85 of that, up to 32 on either side
    or half a step.
    """
    calls, n = len(template), len(names)
    reach = min(calls // 2, 32)
    table = np.zeros(n)
    for place in range(n):
        agree = weight = after = 0.0
        for offset in range(-reach, reach):
            if not 0 <= place + offset < n:
                continue
            counts = 0.85 ** abs(offset + 0.5)
            weight += counts
            if names[place + offset] == template[offset % calls]:
                agree += counts
                after += counts * (offset >= 0)
        share = agree / weight
        first = names[place] == template[0]
        at_an_end = place < min(reach, 8) or place >= n - min(reach, 8)
        if at_an_end and not first:
            share = 0.0
        if not first and after < 0.2 * agree:
            share = 0.0
        table[place] = share + 0.1 * first
    return table


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("calls", [4, 9, 30, 80])
def test_agreement_equals_a_plain_table(seed, calls):
    rng = np.random.default_rng(seed)
    template = rng.integers(0, 5, calls)
    names = np.tile(template, 4)
    damaged = rng.random(len(names)) < 0.1
    names[damaged] = rng.integers(0, 5, damaged.sum())
    names = np.delete(names, rng.integers(0, len(names), 3))
    assert _agreement(names, template) == pytest.approx(agreement(names, template))


def test_begins_are_found_in_a_damaged_log():
    """Of a step of 12 calls: one call missing, one extra, an evaluation of 30 others between."""
    step = np.array([0, 1, 1, 2, 3, 1, 1, 4, 5, 1, 6, 6])
    names = np.tile(step, 10)
    begins = np.arange(0, 120, 12)
    pieces = [names[:29], names[30:67], [9], names[67:84], np.full(30, 8), names[84:]]
    damaged = np.concatenate(pieces)
    shift = np.array([0, 0, 0, -1, -1, -1, 0, 30, 30, 30])
    time_s = np.arange(len(damaged), dtype=float)
    time_s += np.cumsum(np.isin(np.arange(len(damaged)), begins + shift)) * 5.0
    found = starts_of_steps(damaged, time_s, 12, None)
    assert found.tolist() == time_s[begins + shift].tolist()


@pytest.mark.parametrize(("pause_s", "moved"), [(6.0, 1), (4.0, 0)])
def test_half_of_the_usual_pause_marks_the_begin_of_a_step(pause_s, moved):
    """Steps of 40 calls alike but for the last; step 3 has one more, behind which it pauses.

    The usual pause is 10 s. Beside a pause that counts, two of the calls around it matter less.
    """
    step = np.array([1] * 39 + [2])
    begins = 40 * np.arange(6)
    names = np.concatenate([np.tile(step, 3), [1], np.tile(step, 3)])
    gaps_s = np.ones(len(names))
    gaps_s[begins[[0, 1, 2]]] = 10.0
    gaps_s[begins[[4, 5]] + 1] = 10.0
    gaps_s[121] = pause_s
    time_s = np.cumsum(gaps_s)
    found = starts_of_steps(names, time_s, 40, None)
    expected = begins + np.array([0, 0, 0, moved, 1, 1])
    assert found.tolist() == time_s[expected].tolist()


def test_candidates_are_the_best_lag_and_its_parts():
    """Lags 1 to 40; the best is 24: its halves, thirds ... within 8 calls or half of a lag."""
    lags = np.arange(1, 41)
    rate = np.full(40, 0.5)
    rate[23] = 0.01
    rate[[11, 12]] = 0.04, 0.09
    chosen = _candidates(lags, rate).tolist()
    assert 24 in chosen
    assert 12 in chosen
    assert 13 not in chosen  # over twice the rate of the best near it
    assert set(chosen) <= set(range(1, 33))
    assert np.flatnonzero(_near(lags, 24.0)).tolist() == list(range(15, 32))
    assert lags[_near(lags, 6.0)].tolist() == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("seed", range(4))
def test_edits_between_a_sequence_and_itself_later(seed):
    """Beside the whole table of distances; infinite for lags at which most calls differ."""
    rng = np.random.default_rng(seed)
    x = np.tile(rng.integers(0, 4, 10), 6)
    x[rng.integers(0, 60, 2)] = 7
    lags = np.arange(1, 31)
    found = _lag_edits(x, lags)
    best = found.min()
    for lag in (10, 20, 30):
        distance = edits(x[:-lag], x[lag:])
        if distance <= 4 * best:
            assert found[lag - 1] == distance
    assert np.isinf(found[:3]).all()


@pytest.mark.parametrize(
    ("own_s", "share"),
    [(0.49, 1.0), (0.51, 0.0)],
)
def test_who_waits_under_half_as_long_as_the_median_is_waited_for(own_s, share):
    """Of three that wait 1 s, ``own_s`` and 3 s the median is 1 s."""
    found = waited_for(
        np.zeros(3, dtype=np.int64), np.arange(3), np.zeros(3, dtype=np.int64),
        np.array([1.0, own_s, 3.0]),
    )  # fmt: skip
    assert found == {0: 0.0, 1: share, 2: 0.0}


def test_the_begin_nearest_to_where_it_is_due():
    """Two places look alike, one call before and two after: the nearer one begins the step."""
    template = np.arange(6)
    names = np.concatenate([np.tile(template, 2), [9], np.tile(template, 2)])
    score = np.zeros(len(names))
    score[[0, 6, 11, 14, 18, 24]] = 1.0
    assert _walk(names, template, 0, score, 1)[:3] == [0, 6, 11]
