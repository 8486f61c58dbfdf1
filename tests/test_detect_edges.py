"""Detectors on streams without noise, where every number can be worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student

from paceline.detect import bocd
from paceline.detect.bocd import Bocd
from paceline.detect.detector import Detector
from paceline.detect.event import Event
from paceline.detect.job import job_events
from paceline.errors import DetectError

# The detector. Healthy steps take 1 s; without noise a level counts from 9% on, and the shortest
# window, of 5 steps, is sure with its third.


def stream(*parts):
    """Parts (steps, seconds) one after the other, [step, 1]."""
    return np.concatenate([np.full(n, seconds) for n, seconds in parts])[:, None]


def events_of(x, detector=None, every=1, first=0):
    detector = detector or Detector(x.shape[1])
    return [event for i, row in enumerate(x) for event in detector.update(first + every * i, row)]


def test_an_episode_to_the_step_and_the_second():
    onset, relief = events_of(stream((1000, 1.0), (600, 1.3), (100, 1.0)))
    assert (onset.kind, onset.step, onset.since_step) == ("onset", 1002, 1000)
    assert onset.factor == pytest.approx(1.3, rel=1e-4)  # the level drifts by 1/100,000 a step
    assert onset.lost_s == pytest.approx(3 * 0.3, rel=1e-3)
    assert onset.healthy_s == pytest.approx(1.0, rel=1e-4)
    # healthy from 1600 on; 7 of the last 9 steps must say so
    assert (relief.kind, relief.step, relief.since_step) == ("relief", 1606, 1600)
    assert relief.lost_s == pytest.approx(600 * 0.3, rel=1e-3)
    assert relief.factor == pytest.approx(1.3, rel=1e-4)


def test_step_numbers_may_have_gaps():
    onset, relief = events_of(stream((100, 1.0), (60, 1.3), (20, 1.0)), every=10, first=5)
    assert (onset.step, onset.since_step) == (5 + 1020, 5 + 1000)
    assert (relief.step, relief.since_step) == (5 + 1660, 5 + 1600)


@pytest.mark.parametrize(
    ("level", "options", "found"),
    [
        (1.0995, {}, False),
        (1.1005, {}, True),
        (1.1995, {"threshold": 0.2}, False),
        (1.2005, {"threshold": 0.2}, True),
    ],
)
def test_the_threshold(level, options, found):
    x = stream((200, 1.0), (400, level))
    events = events_of(x, Detector(1, **options))
    assert [event.kind for event in events] == ["onset"] * found


@pytest.mark.parametrize(
    ("slow_s", "healed_s", "relieved"),
    [
        (1.3, 1.049, "relief"),  # within 5% of health
        (1.3, 1.06, "partial-relief"),
        (1.3, 1.18, "partial-relief"),  # 9% below the level before
        (1.3, 1.20, None),
        (1.1005, 1.049, "relief"),  # 5% at least
        (1.1005, 1.051, None),
    ],
)
def test_relief_is_near_health_and_else_partial(slow_s, healed_s, relieved):
    kinds = [e.kind for e in events_of(stream((200, 1.0), (100, slow_s), (30, healed_s)))]
    assert kinds[1:] == ([relieved] if relieved else [])


@pytest.mark.parametrize("healthy", [6, 7])
def test_seven_of_nine_steps_are_relief(healthy):
    x = stream((200, 1.0), (100, 1.3), (healthy, 1.0), (100, 1.3))
    kinds = [event.kind for event in events_of(x)]
    assert kinds[:2] == (["onset"] if healthy == 6 else ["onset", "relief"])


@pytest.mark.parametrize(
    ("pause_s", "slow", "step"),
    [
        (5.01, 5, None),  # the five steps after a pause warm up again
        (5.01, 7, None),
        (5.01, 8, 308),  # three that count
        (4.99, 2, None),  # no pause, but three samples that differ this much are no level
        (4.99, 3, 303),  # nor four a pause: slow itself
    ],
)
def test_a_pause_and_the_steps_behind_it_are_no_evidence(pause_s, slow, step):
    events = events_of(stream((300, 1.0), (1, pause_s), (slow, 1.3), (50, 1.0)))
    assert [e.step for e in events if e.kind == "onset"] == ([] if step is None else [step])


def test_a_level_above_half_of_a_pause_goes_on_being_none():
    """5.5 s, then 2.6 s: what stays above half of the pause does not begin another one."""
    onset = events_of(stream((300, 1.0), (1, 5.5), (30, 2.6)))[0]
    assert (onset.step, onset.factor) == (308, pytest.approx(2.6, rel=0.2))


def test_an_episodes_own_pauses_are_not_charged():
    """Five times the episode's level is a pause: 6.5 s, here."""
    plain = events_of(stream((200, 1.0), (100, 1.3), (30, 1.0)))[1]
    paused = stream((200, 1.0), (100, 1.3), (30, 1.0))
    paused[250] = 6.6
    assert events_of(paused)[1].lost_s == pytest.approx(plain.lost_s - 0.3)
    paused[250] = 6.4
    assert events_of(paused)[1].lost_s == pytest.approx(plain.lost_s + 5.1)


@pytest.mark.parametrize(("warm_up", "known"), [(50, 50), (10, 10), (512, 512)])
def test_the_warm_up(warm_up, known):
    detector = Detector(1, warm_up=warm_up)
    for step in range(known):
        assert np.isnan(detector.healthy_s).all()
        detector.update(step, [2.0])
    assert detector.healthy_s == pytest.approx(2.0)


@pytest.mark.parametrize("warm_up", [9, 513])
def test_warm_ups_out_of_range(warm_up):
    with pytest.raises(DetectError, match="warm_up must be from 10 to 512"):
        Detector(1, warm_up=warm_up)


@pytest.mark.parametrize(("threshold", "good"), [(0.0, False), (9.99, True), (10.0, False)])
def test_thresholds_out_of_range(threshold, good):
    if good:
        assert Detector(1, threshold=threshold).threshold == threshold
        return
    with pytest.raises(DetectError, match="threshold must be above 0 and below 10"):
        Detector(1, threshold=threshold)


@pytest.mark.parametrize("ranks", [True, 0, -1, 2.0, "2"])
def test_ranks_are_whole_numbers(ranks):
    for detector in (Detector, Bocd):
        with pytest.raises(DetectError, match="ranks must be a whole number"):
            detector(ranks)


def test_the_healthy_level_follows_a_drift_and_no_episode():
    """The median of all up to 512 steps, then by 1/100,000 a step; not while slow."""
    detector = Detector(1)
    events_of(stream((512, 1.0)), detector)
    events_of(stream((100, 1.05)), detector, first=512)
    assert detector.healthy_s == pytest.approx((1 + 1e-5) ** 100, rel=1e-9)
    before = detector.healthy_s
    events_of(stream((50, 1.5)), detector, first=612)
    assert detector.slow.all()
    assert detector.healthy_s == pytest.approx(before * (1 + 1e-5) ** 3, rel=1e-8)
    low = Detector(1)
    events_of(stream((512, 1.0), (100, 0.95)), low)
    assert low.healthy_s == pytest.approx((1 - 1e-5) ** 100, rel=1e-9)


@pytest.mark.parametrize("odd", ["missing", "pause"])
def test_steps_that_are_no_evidence_do_not_move_the_level(odd):
    """Neither a missing sample, which repeats the last, nor the five steps behind a pause."""
    detector = Detector(1)
    events_of(stream((512, 1.0), (1, 1.05 if odd == "missing" else 5.5)), detector)
    before = detector.healthy_s
    more = [np.nan] * 50 if odd == "missing" else [1.05] * 5
    events_of(np.array(more)[:, None], detector, first=513)
    assert detector.healthy_s == pytest.approx(before, rel=1e-12)
    events_of(stream((1, 1.05)), detector, first=600)
    assert detector.healthy_s == pytest.approx(before * (1 + 1e-5), rel=1e-12)


def test_the_first_anchor_is_a_median_that_grows():
    """After 50 steps theirs; every 16 steps that of all so far, until there are 512."""
    detector = Detector(1)
    x = np.where(np.arange(64) < 40, 1.0, 1.04)[:, None]
    events_of(x, detector)
    assert detector.healthy_s == pytest.approx(1.0)
    events_of(stream((15, 1.04)), detector, first=64)
    assert detector.healthy_s == pytest.approx(1.0)  # 79 steps: no look yet
    events_of(stream((1, 1.04)), detector, first=79)
    assert detector.healthy_s == pytest.approx(1.02)  # at 80, 40 of each: their middle


def test_ten_steps_without_a_sample_are_silence():
    detector = Detector(2)
    events_of(np.ones((100, 2)), detector)
    silent = events_of(np.tile([1.0, np.nan], (25, 1)), detector, first=100)
    assert [(e.kind, e.rank, e.step, e.since_step) for e in silent] == [("silent", 1, 109, 100)]


@pytest.mark.parametrize(
    ("steps", "last", "samples", "since"),
    [
        (range(0, 800, 10), 590, [1.0, np.nan], 600),  # one step in ten is recorded
        ([*range(60), *range(1000, 1020)], 59, [1.0, np.nan], 1000),
        ([*range(600), *range(300, 320)], 599, [1.0, np.nan], 300),  # a restart
        (range(0, 800, 10), 590, [np.nan, np.nan], 600),
        (range(0, 800, 10), -1, [1.0, np.nan], 0),
    ],
)
def test_silence_begins_with_the_first_step_without_a_sample(steps, last, samples, since):
    detector, events, has_ended = Detector(2), [], last < 0
    before = -1
    for step in steps:
        if step < before:
            detector.go_back()
        events += detector.update(step, samples if has_ended else [1.0, 1.0])
        has_ended |= step == last
        before = step
    found = [(event.rank, event.since_step) for event in events if event.kind == "silent"]
    assert found[-1] == (1, since)


@pytest.mark.parametrize(
    ("seconds", "jumps"), [(1e-12, False), (0.9e-12, True), (-1.0, True), (1e12, False),
                           (1.1e12, True)]
)  # fmt: skip
def test_durations_that_no_clock_gives(seconds, jumps):
    [*events] = events_of(stream((100, 1.0), (1, seconds)))
    assert [event.kind for event in events] == ["clock-jump"] * jumps


def test_a_rank_that_joins_in_the_warm_up_has_a_level_of_its_own():
    x = np.ones((120, 2))
    x[:30, 1] = np.nan
    x[30:, 1] = 3.0
    detector = Detector(2)
    events_of(x[:79], detector)
    assert np.isnan(detector.healthy_s[1]) or detector.healthy_s[1] == 3
    events_of(x[79:], detector, first=79)
    assert detector.healthy_s == pytest.approx([1.0, 3.0])


def test_states_go_on_to_the_bit():
    x = stream((300, 1.0), (1, 5.5), (100, 1.3), (50, 1.0), (100, 1.4))
    for cut in (30, 60, 303, 350, 420):
        first = Detector(1)
        head = events_of(x[:cut], first)
        second = Detector.from_state_dict(first.state_dict())
        assert head + events_of(x[cut:], second, first=cut) == events_of(x)


# Bayesian online change points, beside a table of all runs (Adams and MacKay 2007, Algorithm 1).


def test_the_posterior_of_runs_equals_a_plain_table():
    x = np.concatenate([[2.0] * 60, 2.0 + 0.1 * np.random.default_rng(0).normal(size=40)])
    detector = Bocd(1)
    for step, value in enumerate(x[:50]):
        detector.update(step, [value])
    runs = {50: (0.0, 0, 1.0, 1e-3)}  # begin: log chance, steps, mean, beta; alpha 1 + steps / 2
    for step, value in enumerate(x[50:], start=50):
        detector.update(step, [value])
        off = value / 2.0
        after = {}
        for begin, (log, n, mean, beta) in runs.items():
            kappa, alpha = 1 + n, 1 + n / 2
            scale = math.sqrt(beta * (kappa + 1) / (alpha * kappa))
            chance = log + student.logpdf(off, 2 * alpha, mean, scale)
            new = (mean * kappa + off) / (kappa + 1)
            more = kappa * (off - mean) ** 2 / (2 * (kappa + 1))
            after[begin] = (chance, n + 1, new, beta + more)
        total = math.log(sum(math.exp(log) for log, *_ in after.values()))
        runs = {b: (log - total + math.log(1 - 1e-3), *rest) for b, (log, *rest) in after.items()}
        runs[step + 1] = (math.log(1e-3), 0, 1.0, 1e-3)
    alive = np.isfinite(detector._log[0])
    assert alive.sum() == len(runs) == 51
    table = dict(zip(detector._start[0, alive].tolist(), np.flatnonzero(alive), strict=True))
    for begin, (log, n, mean, beta) in runs.items():
        at = table[begin]
        assert detector._log[0, at] == pytest.approx(log, abs=1e-9)
        assert detector._n[0, at] == n
        assert detector._mean[0, at] == pytest.approx(mean)
        assert detector._beta[0, at] == pytest.approx(beta)


def test_the_least_probable_of_64_runs_makes_room():
    detector = Bocd(1)
    rng = np.random.default_rng(0)
    for step in range(50 + 63):
        detector.update(step, [1 + 0.02 * rng.normal()])
    assert np.isfinite(detector._log).all()
    before = set(detector._start[0].tolist())
    detector.update(113, [1.0])
    after = set(detector._start[0].tolist())
    assert after - before == {114}
    assert len(before - after) == 1
    assert np.exp(detector._log).sum() == pytest.approx(1)


def test_a_change_point_is_verified_after_50_steps():
    onset, relief = events_of(stream((600, 2.0), (400, 2.6), (200, 2.0)), Bocd(1))
    assert (onset.kind, onset.step, onset.since_step) == ("onset", 649, 600)
    assert onset.factor == pytest.approx(1.3)
    assert (onset.lost_s, onset.healthy_s) == (pytest.approx(50 * 0.6), pytest.approx(2.0))
    assert (relief.kind, relief.step, relief.since_step) == ("relief", 1049, 1000)
    assert relief.factor == pytest.approx(1.3)
    assert relief.lost_s == pytest.approx(400 * 0.6)


@pytest.mark.parametrize(("level", "found"), [(2.198, False), (2.202, True)])
def test_means_must_differ_by_ten_percent(level, found):
    events = events_of(stream((600, 2.0), (200, level)), Bocd(1))
    assert [event.kind for event in events] == ["onset"] * found


def test_numbers_of_steps_and_missing_samples():
    x = stream((600, 2.0), (400, 2.6))
    x[610:613] = np.nan
    x[700] = -1.0
    [onset] = events_of(x, Bocd(1), every=3)
    assert (onset.step, onset.since_step) == (3 * 649, 3 * 600)
    assert onset.lost_s == pytest.approx(50 * 0.6)


def test_only_a_slower_rank_begins_an_episode():
    (event,) = events_of(stream((600, 2.0), (200, 1.5)), Bocd(1))
    assert event.kind == "faster"
    x = np.concatenate([stream((600, 2.0), (100, 2.0)), stream((600, 2.0), (100, 2.6))], axis=1)
    assert [event.rank for event in events_of(x, Bocd(2))] == [1]


def test_sums_of_logarithms():
    values = np.log(np.array([[1.0, 3.0], [0.5, 0.5]])) + 1000
    assert bocd._log_sum(values) == pytest.approx([1000 + math.log(4), 1000])


# Events of the job.


def onset(rank, step, since=None, factor=1.5, lost=1.0):
    return Event("onset", rank, step, step if since is None else since, factor, lost, 1.0)


@pytest.mark.parametrize(("apart", "merged"), [(20, 1), (21, 2)])
def test_onsets_up_to_20_steps_apart_are_one(apart, merged):
    events = job_events([onset(0, 100), onset(1, 100 + apart)], 4)
    assert len(events) == merged


def test_what_one_event_of_several_ranks_says():
    events = [
        onset(2, 105, 100, 1.5, 3.0),
        onset(0, 101, 98, 1.3, 9.0),
        onset(1, 110, 99, 1.4, 5.0),
    ]
    [event] = job_events(events, 4)
    assert (event.step, event.since_step, event.ranks) == (101, 99, (0, 1, 2))
    assert (event.factor, event.lost_s, event.of) == (1.4, 9.0, 4)
    # 20 steps from the last of them, not from the first
    assert len(job_events([*events, onset(3, 130)], 4)) == 1
    # a rank that is slow again begins another event
    assert len(job_events([*events, onset(2, 112)], 4)) == 2


def test_kinds_are_kept_apart():
    relief = replace(onset(0, 101), kind="relief")
    assert [event.kind for event in job_events([onset(0, 100), relief], 1)] == ["onset", "relief"]


def test_who_an_event_of_the_job_names():
    [some] = job_events([onset(1, 100)], 4)
    [all_] = job_events([onset(0, 100), onset(1, 100)], 2)
    [one] = job_events([onset(0, 100)], 1)
    assert some.explain().startswith("step 100: rank 1: 1.50x slower since step 100; why: unknown")
    assert all_.explain().startswith("step 100: 1.50x slower since step 100; who: unknown")
    assert one.explain().startswith("step 100: 1.50x")  # the only rank needs no name
    assert replace(one, ranks=(7,)).explain().startswith("step 100: rank 7: 1.50x")
    assert replace(all_, kind="silent").explain().startswith("step 100: all ranks: no sample")
    assert replace(one, kind="silent").explain().startswith("step 100: no sample")


# Windows: more than half of a window's steps must be slow.


@pytest.mark.parametrize(
    ("pattern", "step"),
    [
        ([1.3, 1.3, 1.3], 302),
        ([1.3, 1.0, 1.3, 1.0, 1.3], None),  # every second one: a pattern, no level
        ([1.3, 1.3, 1.0, 1.0, 1.3], 304),
        ([1.3, 1.3, 1.0, 1.0, 1.0, 1.3], None),  # two of five, three of seven
        ([1.3, 1.0, 1.0] * 100, None),  # a third of any window
        ([1.0, 1.3, 1.3, 1.0, 1.0, 1.3, 1.3], 305),  # three of the last five
        ([1.3, 1.3, 1.0, 1.0, 1.0, 1.3, 1.3], 306),  # four of seven
    ],
)
def test_more_than_half_of_a_window_is_slow(pattern, step):
    x = np.concatenate([np.ones(300), pattern, np.ones(20)])[:, None]
    events = events_of(x)
    assert [e.step for e in events if e.kind == "onset"] == ([] if step is None else [step])


@pytest.mark.parametrize(
    ("before", "since"),
    [
        ([], 300),
        ([4.0, 1.0, 1.0, 1.0], 304),  # one slow step before does not begin it
        ([1.3, 1.0, 1.0, 1.0], 304),
        ([1.3, 1.3, 1.0], 300),  # two slow steps do, beside one healthy
    ],
)
def test_where_an_episode_began(before, since):
    x = np.concatenate([np.ones(300), before, np.full(30, 1.3)])[:, None]
    onset = next(e for e in events_of(x) if e.kind == "onset")
    assert onset.since_step == since


def test_an_onset_counts_the_seconds_since_its_begin():
    """1.3, 1.3, 1.0, 1.3: sure with the fourth; its factor is their median's."""
    x = np.concatenate([np.ones(300), [1.3, 1.3, 1.0, 1.3]])[:, None]
    [found] = events_of(x)
    assert found.factor == pytest.approx(1.3, rel=1e-4)
    assert found.lost_s == pytest.approx(3 * 0.3, rel=1e-3)


def test_samples_that_agree_stand_for_missing_ones():
    """Three slow samples in a row are enough, whatever is missing between them."""
    slow = np.full(30, np.nan)
    slow[::3] = 1.3
    x = np.concatenate([np.ones(300), slow])[:, None]
    found = [e for e in events_of(x) if e.kind == "onset"]
    assert len(found) == 1
    assert found[0].step == 306
    assert found[0].factor == pytest.approx(1.3, rel=1e-3)


def test_a_sample_that_disagrees_starts_anew():
    slow = np.full(12, np.nan)
    slow[[0, 3, 6, 9]] = 1.3, 1.0, 1.0, 1.3
    x = np.concatenate([np.ones(300), slow, np.ones(20)])[:, None]
    assert [e for e in events_of(x) if e.kind == "onset"] == []


def test_in_an_episode_missing_steps_cost_nothing():
    whole = stream((200, 1.0), (100, 1.3), (30, 1.0))
    gaps = whole.copy()
    gaps[250:255] = np.nan
    lost = [events_of(x)[-1].lost_s for x in (whole, gaps)]
    assert lost[1] == pytest.approx(lost[0] - 5 * 0.3, rel=1e-4)


def test_a_second_episode_has_its_own_losses():
    x = stream((200, 1.0), (50, 1.3), (100, 1.0), (80, 1.5), (30, 1.0))
    events = events_of(x)
    assert [event.kind for event in events] == ["onset", "relief"] * 2
    assert [event.since_step for event in events] == [200, 250, 350, 430]
    assert events[1].lost_s == pytest.approx(50 * 0.3, rel=1e-3)
    assert events[3].lost_s == pytest.approx(80 * 0.5, rel=1e-3)
    assert events[3].factor == pytest.approx(1.5, rel=1e-3)


def test_ranks_are_judged_each_on_its_own():
    """Rank 0 is slow from 200 on, rank 2 from 300 on, by other factors; rank 1 never."""
    x = np.ones((400, 3)) * [1.0, 2.0, 4.0]
    x[200:, 0] *= 1.3
    x[300:, 2] *= 1.5
    events = events_of(x)
    assert [(e.rank, e.step, e.since_step) for e in events] == [(0, 202, 200), (2, 302, 300)]
    assert [e.factor for e in events] == pytest.approx([1.3, 1.5], rel=1e-4)
    assert [e.healthy_s for e in events] == pytest.approx([1.0, 4.0], rel=1e-4)
    assert events[1].lost_s == pytest.approx(3 * 2.0, rel=1e-3)
