"""Step times that repeat every few steps: what is learned, and what a fail-slow then costs."""

import numpy as np
import pytest

import requires
from paceline.detect import columns
from paceline.detect.cycles import MAX_PERIOD, find_cycle
from paceline.detect.detector import Detector
from paceline.detect.refinement import Refinement


def cycle_of(values, newest=100, known=0):
    """Period and shares of the cycle in samples, of which the last is the newest."""
    shares = np.zeros(MAX_PERIOD)
    v = np.log(np.asarray(values, dtype=float))[::-1].copy()
    return find_cycle(v, len(v), newest, known, shares), shares


def noisy(pattern, steps, spread=0.01, seed=3):
    rng = np.random.default_rng(seed)
    pattern = np.array(pattern)
    return pattern[np.arange(steps) % len(pattern)] * rng.lognormal(0, spread, steps)


def events_of(times):
    detector = Detector(1)
    return [event for step, x in enumerate(times) for event in detector.update(step, [x])]


@pytest.mark.parametrize(
    "pattern", [[1, 1, 1.5], [1, 1, 1, 1.5], [22, 26, 34, 38, 60], [1, 2, 3, 1, 2, 5, 4, 1, 1, 1.5]]
)
def test_a_cycle_is_found(pattern):
    period, shares = cycle_of(noisy(pattern, 64), newest=63)
    assert period == len(pattern)
    logs = np.log(pattern)
    assert shares[:period] == pytest.approx(logs - logs.mean(), abs=0.03)


@pytest.mark.parametrize("seed", range(20))
def test_noise_and_pairs_are_no_cycle(seed):
    assert cycle_of(noisy([1.0], 64, 0.1, seed))[0] == 0
    assert cycle_of(noisy([1.0, 1.3], 64, 0.03, seed))[0] == 0


def test_a_level_that_changes_and_a_spike_hide_no_cycle():
    times = noisy([1, 1, 1.5, 1.2], 64)
    times[40:] *= 1.6
    times[20] *= 30
    assert cycle_of(times, newest=63)[0] == 4


def test_a_known_cycle_stays_while_it_explains_the_samples():
    times = noisy([1, 1, 1.5], 64)
    _, shares = cycle_of(times, newest=63)
    v = np.log(times)[::-1].copy()
    assert find_cycle(v, 14, 63, 3, shares) == 3  # too few samples to judge
    flat = np.log(noisy([1.0], 64, 0.02))[::-1].copy()
    assert find_cycle(flat, 64, 63, 3, shares) == 0


@pytest.mark.parametrize("pattern", [[1, 1, 1, 1.5], [1.0] * 9 + [3.0], [1.0] * 49 + [4.0]])
def test_a_fail_slow_among_longer_steps_costs_what_it_adds(pattern):
    """Accumulated gradients, checkpoints: their time is no fail-slow's."""
    times = noisy(pattern, 900)
    times[400:700] *= 1.2
    onset, relief = events_of(times)
    assert (onset.kind, relief.kind) == ("onset", "relief")
    assert abs(onset.since_step - 400) <= 1
    assert onset.factor == pytest.approx(1.2, rel=0.03)
    assert relief.factor == pytest.approx(1.2, rel=0.02)
    # The geometric mean of a cycle is up to 2% below its mean.
    assert relief.lost_s == pytest.approx(times[400:700].sum() / 6, rel=0.1)


def test_a_real_run_that_repeats_every_five_steps():
    """modded-nanogpt on 8 GPUs: 39, 65, 63, 62 and 85 ms over and over, made 1.3x slower."""
    with np.load(requires.data("step-series", "step_series.npz")) as file:
        first = int(file["offsets"][418]) + 1460
        times = file["duration_s"][first : first + 600].astype(float)
    assert np.median(times[4::5]) > 1.25 * np.median(times)
    times[300:] *= 1.3
    (onset,) = events_of(times)
    assert 299 <= onset.since_step <= 301
    assert onset.factor == pytest.approx(1.3, rel=0.03)


@pytest.mark.parametrize(("period", "extra_s"), [(5, 0.12), (4, 0.06), (1, 0.0)])
def test_the_usual_healthy_step_of_a_cycle_is_its_median(period, extra_s):
    """A job of a newcomer: 88 ms, and every fifth step 120 ms longer. Its level was 103 ms."""
    rng = np.random.default_rng(0)
    times = 0.088 * rng.normal(1, 0.01, (300, 2))
    times[period - 1 :: period] += extra_s
    detector = Detector(2)
    for step, of_ranks in enumerate(times):
        detector.update(step, of_ranks)
    np.testing.assert_allclose(detector.healthy_s, np.median(times, axis=0), rtol=0.01)


def with_stalls(every, seed):
    """[step] 200 steps of 128.5 ms, 200 that wait 44.6 ms for data, 200 of 128.5 ms.

    One step in ``every`` (0 = none) stalls for 200 ms, in which the wait for data passes, too.
    """
    rng = np.random.default_rng(seed)
    times = 0.1285 * rng.lognormal(0, 0.01, 600)
    times[200:400] += 0.0446
    if every:
        times[every // 2 :: every] = 0.3285 * rng.lognormal(
            0, 0.01, len(times[every // 2 :: every])
        )
    return times


@pytest.mark.parametrize("every", [0, 3, 4, 7, 10, 15, 50])
@pytest.mark.parametrize("seed", range(3))
def test_a_fail_slow_beside_stalls_has_the_ratio_of_medians_and_its_loss(every, seed):
    """Newcomer 15: 1.31x (1.29 to 1.32) beside a stall in each tenth step; medians 1.349x."""
    times = with_stalls(every, seed)
    detector = Detector(1)
    refinement = Refinement(detector)
    for step, x in enumerate(times):
        refinement.take(detector.update(step, [x]))
    onset, relief = refinement.events()
    slow, healthy = times[200:400], times[:200]
    ratio = np.median(slow) / np.median(healthy)
    assert (onset.kind, relief.kind) == ("onset", "relief")
    assert abs(onset.since_step - 200) <= 1
    assert abs(relief.since_step - 400) <= 1
    assert onset.refined.low <= ratio <= onset.refined.high
    assert onset.refined.factor == pytest.approx(ratio, rel=0.012)
    # The healthy samples are whole cycles, and the loss is that of the told steps.
    cycles = healthy[-(180 // max(every, 1)) * max(every, 1) :]
    told = times[onset.since_step : relief.since_step]
    assert relief.lost_s == pytest.approx((told - cycles.mean()).sum(), rel=0.01)
    assert relief.factor == pytest.approx(slow.mean() / healthy.mean(), rel=0.01)


def test_a_state_of_version_5_goes_on_with_the_levels_of_its_cycle():
    """Its levels were at the mean place of the cycle, and its mean was that of levelled samples."""
    times = with_stalls(4, 0)
    detector = Detector(1)
    for step, x in enumerate(times[:150]):
        detector.update(step, [x])
    state = detector.state_dict()
    floats, period = state["floats"].copy(), int(state["wholes"][0, columns.PERIOD])
    cycle = floats[0, columns.CYCLE : columns.CYCLE + period]
    assert period == 4
    ratio = np.exp(np.median(cycle))
    floats[0, [columns.HEALTHY_S, columns.LEVEL_S, columns.MIDDLE_S, columns.RISEN_FROM_S]] /= ratio
    floats[0, columns.MEAN] *= ratio / np.exp(cycle).mean()
    older = Detector.from_state_dict({**state, "version": 5, "floats": floats})
    np.testing.assert_allclose(older.state_dict()["floats"], state["floats"], rtol=1e-12)
