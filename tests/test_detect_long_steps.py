"""Steps that are long again and again, but start no episode."""

import json

import numpy as np
import pytest

import requires
from paceline.detect.long_steps import MIN_RUNS, long_steps
from test_cli_detect import said, written

N = 2000
STEP = np.arange(N)


def log(is_long, factor, sigma=0.01):
    rng = np.random.default_rng(3)
    return np.where(is_long, factor, 1.0) * np.exp(rng.normal(0, sigma, N))


@pytest.mark.parametrize(
    ("every", "in_a_row", "factor"), [(20, 4, 1.4), (50, 6, 1.4), (100, 1, 4.0), (400, 8, 6.0)]
)
def test_regular_ones_have_their_period_and_cost(every, in_a_row, factor):
    is_long = STEP % every < in_a_row
    found = long_steps(log(is_long, factor))
    assert (found.every, found.in_a_row, found.rows) == (every, in_a_row, is_long.sum())
    assert found.factor == pytest.approx(factor, rel=0.02)
    assert found.lost_s == pytest.approx((factor - 1) * is_long.sum(), rel=0.03)
    assert f"every {every} steps" in found.explain()


@pytest.mark.parametrize(("n", "every"), [(20_000, 1000), (20_000, 5000), (4000, 1000)])
def test_rare_ones_that_keep_a_beat_are_found_beside_spikes(n, every):
    """A checkpoint every 1,000 steps, of 8 steps in the mean, costs less than 1%."""
    rng = np.random.default_rng(5)
    x = np.exp(rng.normal(0, 0.02, n))
    at = np.arange(every - 1, n, every)
    x[at] += every / 1000 * (3 + rng.exponential(5, len(at)))
    x[0] += 60  # compiles
    spikes = rng.random(n) < 0.001
    spikes[0] = False
    x[spikes] *= 1.4
    found = long_steps(x)
    assert (found.every, found.in_a_row, found.of) == (every, 1, n)
    assert abs(found.rows - len(at)) <= 1
    assert found.lost_s == pytest.approx(x[at].sum() - len(at), rel=0.1)
    assert found.lost_share < 0.01
    x[at[3:]] = 1.0  # three are none
    assert long_steps(x) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_period_is_found_beside_levels_of_a_busy_machine(seed):
    """As on two gloo ranks: a collection of 170 ms in each fourth step, steps of 110 to 190 ms."""
    rng = np.random.default_rng(seed)
    levels = np.repeat(
        rng.permutation([0.110, 0.150, 0.190, 0.135, 0.105, 0.120, 0.200, 0.115]), 30
    )
    pauses = np.where(np.arange(240) % 4 == 0, rng.normal(0.170, 0.015, 240), 0.0)
    found = long_steps(levels * rng.lognormal(0, 0.1, 240) + pauses)
    assert found.every == 4
    assert 0.85 * pauses.sum() < found.lost_s < 1.05 * pauses.sum()


@pytest.mark.parametrize("seed", range(20))
def test_rare_spikes_at_random_keep_no_beat(seed):
    rng = np.random.default_rng(seed)
    x = np.exp(rng.normal(0, 0.02, 20_000))
    x[rng.random(len(x)) < rng.uniform(0.0003, 0.003)] *= rng.uniform(2, 20)
    found = long_steps(x)
    assert found is None or found.every is None


def test_irregular_ones_have_no_period():
    is_long = np.random.default_rng(1).random(N) < 0.1
    found = long_steps(log(is_long, 2.0))
    assert found.every is None
    assert found.rows == is_long.sum()
    assert "irregularly" in found.explain()


@pytest.mark.parametrize("sigma", [0.0, 0.02, 0.15, 0.3])
def test_noise_has_none(sigma):
    assert long_steps(log(STEP < 0, 1.0, sigma)) is None


def test_what_does_not_recur_is_none():
    few = MIN_RUNS - 1
    assert long_steps(log(STEP % (N // few + 1) == 5, 50.0)) is None
    start = np.where(STEP == 0, 500.0, np.where(STEP % 200 == 50, 1.5, 1.0))
    assert long_steps(log(STEP >= 0, start)) is None  # the first step is nearly all of it
    assert long_steps(log(STEP >= N // 2, 1.3)) is None  # a level, which events tell
    assert long_steps(log(STEP % 2 == 0, 1.3)) is None  # odd and even: neither is usual
    assert long_steps(np.full(20, 1.0)) is None
    assert long_steps(np.full(N, np.nan)) is None


def test_rows_that_are_the_mean_of_some_steps_count_them():
    found = long_steps(log(STEP % 20 == 0, 2.0), steps_per_row=10)
    assert found.every == 200
    assert found.lost_s == pytest.approx(10 * 100, rel=0.03)
    assert "5% of the rows of 10 steps take 2.00x" in found.explain()


def test_real_runs_that_validate_every_so_often_show_it():
    """modded-nanogpt: their names, or their clock, tell of validations within the timed steps."""
    found = {}
    with np.load(requires.data("step-series", "step_series.npz")) as file:
        offsets, seconds = file["offsets"], file["duration_s"].astype(float)
        for number, name in enumerate(file["run"].tolist()):
            found[name] = long_steps(seconds[offsets[number] : offsets[number + 1]])
    told = {name: each for name, each in found.items() if each is not None}
    assert len(told) < 0.1 * len(found)
    (every_five,) = [each for name, each in told.items() if "val_every_five_before" in name]
    assert every_five.every == 5
    assert every_five.rows / every_five.of == pytest.approx(0.2, abs=0.005)
    rare = [each.every for name, each in told.items() if "noallreduce" in name]
    assert set(rare) == {125}  # val_loss_every of its script
    assert all("result_" not in name for name in told)  # MLPerf: the clock stops in evaluations


def test_a_log_without_an_episode_has_lost_no_gpu_hours(capsys, tmp_path):
    rows = list(zip(STEP.tolist(), log(STEP < 0, 1.0).tolist(), strict=True))
    path = written(tmp_path / "healthy.csv", "step,duration_s", rows)
    assert said(capsys, path, "--gpus", 8)[1].endswith("at the end, 0 GPU-hours lost in all\n")


def test_the_command_tells_them_behind_the_events(capsys, tmp_path):
    rows = list(zip(STEP.tolist(), log(STEP % 20 < 4, 1.4).tolist(), strict=True))
    path = written(tmp_path / "log.csv", "step,duration_s", rows)
    code, out, _ = said(capsys, path)
    assert code == 0
    assert out.splitlines()[-1].startswith("long steps: 20% of the steps take 1.40x")
    code, out, _ = said(capsys, path, "--json")
    *told, last = map(json.loads, out.splitlines())
    assert {each["burst"] for each in told if each["kind"] == "onset"} == {True}
    assert not any(each["burst"] for each in told if each["kind"] != "onset")
    assert (last["kind"], last["every"], last["in_a_row"]) == ("long-steps", 20, 4)
    code, out, _ = said(capsys, path, "--gpus", 64)
    *_, end, _ = out.splitlines()
    bursts = out.count("in the end: a burst, the median of its")
    assert bursts == 1  # the period is learnt from the first three, two of them in the warm-up
    assert end.startswith("2,000 steps of 1 rank: 0 fail-slows and 1 burst, healthy")
    reliefs = [line for line in out.splitlines() if "healthy again" in line]
    lost = [line.split(" lost")[0].split()[-2:] for line in reliefs]
    lost_s = sum(float(number) * {"s": 1, "ms": 1e-3}[unit] for number, unit in lost)
    assert float(end.split()[-5].strip("(")) == pytest.approx(lost_s * 64 / 3600, rel=0.02)
    rows = [(step, seconds, 1000 + 400 * (step % 20 < 4)) for step, seconds in rows]
    path = written(tmp_path / "work.csv", "step,duration_s,tokens", rows)
    assert "long steps" not in said(capsys, path)[1]  # by plan
