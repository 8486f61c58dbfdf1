"""Logs with few samples: a slowdown within the warm-up, and an end that cannot be judged."""

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.detect.few_samples import may_hide_rise, warm_up_before_rise
from paceline.ledger import goodput
from requires import data as real

THRESHOLD = 0.1


def series(samples, rise_at, factor, noise, seed=0):
    x = np.random.default_rng(seed).normal(0.1, 0.1 * noise, samples)
    x[rise_at:] *= factor
    return x


@pytest.mark.parametrize("rise_at", [10, 14, 19])
def test_a_clear_rise_within_the_warm_up_is_found(rise_at):
    found = warm_up_before_rise(series(32, rise_at, 1.6, 0.1), 20, THRESHOLD)
    assert abs(found - rise_at) <= 1


def test_a_log_shorter_than_the_warm_up_may_show_a_rise():
    assert warm_up_before_rise(series(45, 20, 1.4, 0.02), 50, THRESHOLD) == 20


def test_noise_is_no_rise():
    for seed in range(300):
        for noise in (0.02, 0.3):
            assert warm_up_before_rise(series(32, 32, 1.0, noise, seed), 20, THRESHOLD) == 20


def test_noise_may_hide_a_rise_in_few_samples():
    assert may_hide_rise(series(32, 32, 1.0, 0.3), 20, THRESHOLD)
    assert not may_hide_rise(series(32, 32, 1.0, 0.01), 20, THRESHOLD)
    assert not may_hide_rise(series(41, 41, 1.0, 0.3), 20, THRESHOLD)


def written(path, seconds):
    lines = [f"it={5 * n:04d} loss 1.1 step time {x * 1e3:.1f}ms" for n, x in enumerate(seconds)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_command_and_goodput_find_it(capsys, tmp_path):
    path = written(tmp_path / "own.log", series(32, 14, 1.64, 0.15))
    assert run(["detect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "slower since step 70;" in out
    assert "1 fail-slow, slow at the end" in out
    lost_s = float(out.rsplit(" s lost in all", 1)[0].rsplit(" ", 1)[1])
    assert lost_s == pytest.approx(0.064 * 18 * 5, rel=0.2)
    assert goodput(path).seconds["fail_slow"] == pytest.approx(lost_s, abs=0.06)


def test_few_noisy_samples_are_not_called_healthy(capsys, tmp_path):
    path = written(tmp_path / "own.log", series(32, 32, 1.0, 0.3))
    assert run(["detect", str(path)]) == 0
    assert (
        "32 samples (160 steps) of 1 rank: 0 fail-slows, not judged (in this noise a slowdown "
        "within the first 20 samples, the warm-up, may not show; 9 more samples (45 steps) are "
        "needed)"
    ) in capsys.readouterr().out
    assert run(["detect", str(written(path, series(60, 60, 1.0, 0.1)))]) == 0
    assert "0 fail-slows, healthy at the end" in capsys.readouterr().out


def test_real_runs_have_no_rise_in_their_first_samples():
    """Each 5th step of the first 160 of 689 real runs; and the same with a rise from step 65 on."""
    with np.load(real("step-series", "step_series.npz")) as data:
        runs = np.split(data["duration_s"].astype(float), data["offsets"][1:-1])
    starts = [steps[:160:5] for steps in runs if len(steps) >= 200]
    assert not any(warm_up_before_rise(x, 20, THRESHOLD) != 20 for x in starts)
    slow = [np.where(np.arange(32) >= 13, 1.4 * x, x) for x in starts]
    found = sum(warm_up_before_rise(x, 20, THRESHOLD) != 20 for x in slow)
    untold = sum(may_hide_rise(x, 20, THRESHOLD) for x in slow)
    assert found >= 0.8 * len(starts)
    missed = [
        x
        for x in slow
        if warm_up_before_rise(x, 20, THRESHOLD) == 20 and not may_hide_rise(x, 20, THRESHOLD)
    ]
    assert len(missed) <= 0.01 * len(starts), untold
