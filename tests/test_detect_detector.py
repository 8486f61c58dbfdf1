"""The detector, one step at a time: what it must find, and what it must not take for slow."""

import numpy as np
import pytest

import requires
from paceline import Detector
from paceline.detect.bocd import Bocd
from paceline.detect.job import job_events
from paceline.detect.limits import SILENT_AFTER
from paceline.detect.who import spans
from paceline.errors import DetectError


def noise(steps, ranks=1, cov=0.02, seed=0):
    return np.random.default_rng(seed).normal(1.0, cov, (steps, ranks))


def events_of(x, **options):
    detector = Detector(x.shape[1], **options)
    return [event for step, row in enumerate(x) for event in detector.update(step, row)]


def test_an_episode_has_an_onset_a_relief_a_factor_and_a_loss():
    x = noise(3000)
    x[1000:1600] *= 1.3
    onset, relief = events_of(x)
    assert (onset.kind, onset.rank, onset.since_step) == ("onset", 0, 1000)
    assert 1001 <= onset.step <= 1004
    assert onset.factor == pytest.approx(1.3, rel=0.03)
    assert onset.lost_s == pytest.approx(0.3 * (onset.step - 999), rel=0.15)
    assert (relief.kind, relief.since_step) == ("relief", 1600)
    assert relief.step <= 1610
    assert relief.factor == pytest.approx(1.3, rel=0.02)
    assert relief.lost_s == pytest.approx(0.3 * 600, rel=0.03)
    assert onset.explain().startswith(f"step {onset.step:,}: rank 0 is 1.")
    assert "since step 1,000" in onset.explain()


def test_it_comes_back():
    x = noise(4000)
    x[1000:1400] *= 1.25
    x[2500:2900] *= 1.5
    kinds = [(event.kind, event.since_step) for event in events_of(x)]
    assert kinds == [("onset", 1000), ("relief", 1400), ("onset", 2500), ("relief", 2900)]


def test_only_the_slow_rank_is_named():
    x = noise(2000, ranks=16)
    x[900:, 5] *= 1.2
    assert [(event.kind, event.rank) for event in events_of(x)] == [("onset", 5)]


@pytest.mark.parametrize("seed", range(5))
def test_a_ladder_of_steps_under_ten_percent_is_found(seed):
    x = noise(4000, seed=seed)
    for begin in (1000, 1300, 1600):
        x[begin:] *= 1.07
    onset = events_of(x)[0]
    assert onset.kind == "onset"
    assert 1300 <= onset.step < 1700


def test_ladders_of_many_small_steps_are_found():
    """A ramp is no noise, however slowly it climbs (faster than drift); a ladder on four ranks."""
    levels = []
    for share, every in [(0.01, 100), (0.02, 200), (0.03, 300), (0.05, 1000)]:
        rungs = np.log(1.35) // np.log(1 + share)
        level = (1 + share) ** np.clip((np.arange(12_000) - 1000) // every + 1, 0, rungs)
        levels += [level] * 4
    x = np.tile(noise(12_000, 4, seed=7), 4) * np.column_stack(levels)
    onsets = [event for event in events_of(x) if event.kind == "onset"]
    assert sorted(event.rank for event in onsets) == list(range(16))
    assert all(levels[event.rank][event.step] <= 1.2 for event in onsets)


def test_the_loss_counts_from_the_healthy_mean_of_a_job_that_became_faster():
    """The median of 128 samples still holds the slower ones; its share of the mean was too low."""
    x = noise(500)
    x[:250] *= np.interp(np.arange(250), [0, 200], [1.06, 1.0])[:, None]
    x[250:450] *= 1.45
    onset, relief = events_of(x)
    assert (onset.kind, relief.kind) == ("onset", "relief")
    lost_s = x[250:450].sum() - 200 * x[15:250].mean()
    assert relief.lost_s == pytest.approx(lost_s, rel=0.015)
    assert relief.factor == pytest.approx(x[250:450].mean() / x[15:250].mean(), rel=0.01)


@pytest.mark.parametrize("factor", [4.9, 5.0, 5.1, 6.0, 10.0, 50.0])
def test_a_level_above_that_of_pauses_is_a_fail_slow(factor):
    x = noise(1500, cov=0.01)
    x[600:1000] *= factor
    onset, relief = events_of(x)
    assert (onset.kind, onset.since_step) == ("onset", 600)
    assert onset.step <= 608
    assert (relief.kind, relief.since_step) == ("relief", 1000)
    assert relief.lost_s == pytest.approx((factor - 1) * 400, rel=0.03)


def test_a_pause_is_not_charged_to_the_episode_around_it():
    x = noise(900, cov=0.01)
    x[300:600] *= 1.2
    x[450] = 600.0
    onset, relief = events_of(x)
    assert (onset.since_step, relief.since_step) == (300, 600)
    assert relief.factor == pytest.approx(1.2, rel=0.02)
    assert relief.lost_s == pytest.approx(0.2 * 299, rel=0.05)
    x = noise(900, cov=0.01)
    x[300] = 200.0
    x[301:401] *= 2
    onset, relief = events_of(x)
    assert (onset.since_step, relief.since_step) == (301, 401)
    assert relief.lost_s == pytest.approx(100, rel=0.05)


def test_samples_of_every_third_step_are_enough():
    x = noise(1500, cov=0.01)
    x[600:1000] *= 1.5
    x[np.arange(1500) % 3 != 0] = np.nan
    onset, relief = events_of(x)
    assert (onset.since_step, onset.kind, relief.kind) == (600, "onset", "relief")
    assert onset.step <= 607
    assert 1000 <= relief.since_step <= 1002


def test_a_missing_sample_is_no_evidence():
    x = noise(1500, cov=0.01)
    x[600:1200] *= 1.5
    x[900] = 1.0
    x[901:908] = np.nan  # not seven healthy steps
    assert [(e.kind, e.since_step) for e in events_of(x)] == [("onset", 600), ("relief", 1200)]
    x = noise(1500, cov=0.01)
    x[600] = 3.0
    x[601:608] = np.nan  # nor seven slow ones
    assert events_of(x) == []


def test_a_rank_that_joins_late_has_its_own_median():
    x = noise(3000, 2, cov=0.05)
    x[:250, 1] = np.nan
    x[2000:] *= 1.15
    onsets = {event.rank: event for event in events_of(x) if event.kind == "onset"}
    assert sorted(onsets) == [0, 1]
    assert onsets[1].healthy_s == pytest.approx(1.0, rel=0.01)


def test_a_job_that_goes_back_to_a_checkpoint_goes_on():
    detector = Detector(1)
    x = noise(1500)[:, 0]
    for step in range(1500):
        detector.update(step, x[step : step + 1])
    detector.go_back()
    events = [e for step in range(20) for e in detector.update(step, x[step : step + 1] * 1.5)]
    assert [(event.kind, event.since_step) for event in events] == [("onset", 0)]


def test_spikes_checkpoints_and_pauses_are_no_fail_slows():
    jobs = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        jobs.append(noise(8000, ranks=8, seed=seed))
        jobs[-1][rng.random(jobs[-1].shape) < 0.002] *= 2.5  # spikes
    x = np.hstack(jobs)
    x[499::500] *= 1.9  # checkpoints
    x[2000] *= 40  # evaluation
    x[5000] *= 300  # a restart, and the steps in which it warms up
    x[5001:5004] *= 1.6
    assert events_of(x) == []


def test_a_drift_of_five_percent_in_ten_thousand_steps_is_none():
    x = noise(12000, ranks=4) * np.linspace(1, 1.06, 12000)[:, None]
    assert events_of(x) == []


def test_benign_steps_below_ten_percent_are_none():
    x = noise(6000, ranks=4)
    x[2000:3500] *= 1.06
    assert events_of(x) == []


def test_a_rank_that_falls_silent_is_an_event_and_no_crash():
    x = noise(600, ranks=3)
    x[300:400, 1] = np.nan
    (event,) = events_of(x)
    assert (event.kind, event.rank, event.since_step) == ("silent", 1, 300)
    assert event.step == 300 + SILENT_AFTER - 1
    x[:] = noise(600, ranks=3)
    x[::7, 2] = np.nan  # now and then a sample is missing
    assert events_of(x) == []


def test_clocks_that_jump():
    x = noise(300, ranks=2)
    x[100, 0], x[200, 1] = -3.0, 0.0
    assert [(e.kind, e.rank, e.step) for e in events_of(x)] == [
        ("clock-jump", 0, 100),
        ("clock-jump", 1, 200),
    ]


def test_nothing_is_said_in_the_warm_up():
    x = noise(49)
    x[20:] *= 2
    assert events_of(x) == []


def test_one_rank_and_numbers_of_steps_with_gaps():
    x = noise(2000)[:, 0]
    x[1000:] *= 1.5
    detector = Detector(1)
    events = [e for i, value in enumerate(x) for e in detector.update(10 * i, [value])]
    assert events[0].since_step == 10_000
    assert detector.slow.tolist() == [True]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Detector(0), "ranks must be a whole number >= 1"),
        (lambda: Detector(2, threshold=0), "threshold must be above 0"),
        (lambda: Detector(2, warm_up=3), "warm_up must be from 10 to 512"),
        (lambda: Detector(2).update(0, [1.0]), "step 0 has 1 durations for 2 ranks"),
    ],
)
def test_wrong_arguments(call, said):
    with pytest.raises(DetectError, match=said):
        call()


def test_steps_must_grow():
    detector = Detector(1)
    detector.update(5, [1.0])
    with pytest.raises(DetectError, match="step 5 comes after step 5"):
        detector.update(5, [1.0])


def test_memory_of_a_rank_is_bounded():
    detector = Detector(1000)
    for step, row in enumerate(noise(600, ranks=1000)):
        detector.update(step, row)
    held = sum(v.nbytes for v in vars(detector).values() if isinstance(v, np.ndarray))
    assert held / 1000 < 64 * 1024


def test_ranks_that_slow_down_together_are_one_event_of_the_job():
    x = noise(2000, ranks=32)
    x[1000:1500] *= 1.4
    events = job_events(events_of(x), 32)
    assert [(e.kind, len(e.ranks), e.since_step) for e in events] == [
        ("onset", 32, 1000),
        ("relief", 32, 1500),
    ]
    # All ranks are slow: none is named.
    said = f"step {events[0].step:,}: 1.40x slower since step 1,000; who: unknown, run paceline"
    assert events[0].explain().startswith(said)
    assert spans([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


@pytest.mark.parametrize(
    ("name", "healthy_flagged", "p50", "p95"),
    [("comp", 0, 3, 5), ("comm", 1, 3, 35), ("benign", 2, 0, 0)],
)
def test_labelled_streams(name, healthy_flagged, p50, p95):
    """All episodes, hardly an alarm on healthy series, within a few steps (README of the data)."""
    import runpy

    folder = requires.data("fail-slow")
    score = runpy.run_path(str(folder / "score.py"))["score"]
    with np.load(folder / f"dev_{name}.npz") as data:
        x = data["x"].T
        onsets = [[] for _ in range(x.shape[1])]
        for event in events_of(x):
            if event.kind == "onset":
                onsets[event.rank].append(event.step)
        found = score(data, onsets)
    assert found["false_positive_series"] <= healthy_flagged
    assert found["episodes_found"] == found["episodes"]
    assert (found["delay_p50"] or 0) <= p50
    assert (found["delay_p95"] or 0) <= p95


@pytest.mark.parametrize("detector", [Detector, Bocd])
def test_durations_that_cannot_be(detector):
    """Also those that single precision cannot hold."""
    x = noise(1000, cov=0.01)
    x[300:309, 0] = 1e300, 1e-300, np.inf, -np.inf, -1.0, 0.0, 1e13, 1e-13, np.nan
    found = detector(1)
    events = [event for step, row in enumerate(x) for event in found.update(step, row)]
    assert {event.kind for event in events} <= {"clock-jump"}
    assert len(events) == (8 if detector is Detector else 0)


@pytest.mark.parametrize("detector", [Detector, Bocd])
@pytest.mark.parametrize(
    ("step", "row"), [("a", [1.0]), (1.5, [1.0]), (1, ["x"]), (1, [[None, {}]])]
)
def test_what_is_no_step_is_refused(detector, step, row):
    with pytest.raises(DetectError, match="step"):
        detector(1).update(step, row)
