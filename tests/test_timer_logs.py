"""Timers in text logs: lines as Megatron-LM's and DeepSpeed's own code formats them."""

import contextlib
import math

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.detect.host_times import report_times
from paceline.errors import TraceError
from paceline.sources.host_times import load_host_times

#: As Megatron-LM core 0.20.0 prints its arguments, steps and timers (``--timing-log-option all``).
ARGUMENTS = """\
  pipeline_model_parallel_size .................... 2
  world_size ...................................... 4
"""


def iteration(number, ms, launcher=""):
    return (
        f"{launcher} [2026-08-22 10:00:01.000000] iteration {number:8d}/     100 | consumed "
        f"samples: {8 * number:12d} | elapsed time per iteration (ms): {ms:.1f} | learning rate: "
        "1.0E-04 | global batch size:     8 |\n"
    )


def min_max(least, most, launcher=""):
    name = "forward-compute ".ljust(48, ".")
    return (
        f"{launcher}(min, max) time across ranks (ms):\n"
        f"{launcher}    {name}: ({least:.2f}, {most:.2f})\n"
    )


def all_ranks(**times):
    text = "times across ranks (ms):\n"
    for name, ms in times.items():
        text += f"  {name.replace('_', '-')}:\n"
        text += "".join(f"     rank {rank:2d}: {value:.2f}\n" for rank, value in enumerate(ms))
    return text


def report(tmp_path, text, name="train.log"):
    path = tmp_path / name
    path.write_text(text)
    return report_times(load_host_times([path]))


@pytest.mark.parametrize("launcher", ["", "[default7]:", "3: "])
def test_steps_and_the_range_over_ranks(tmp_path, launcher):
    text = "".join(
        iteration(10 * n, 1000 + n, launcher) + min_max(100, 150, launcher) for n in (1, 2, 3)
    )
    got = report(tmp_path, text)
    assert got.steps == 3
    assert got.measures["step"] == pytest.approx((1.002, 1.001, 1.003))
    assert got.measures["forward-compute"] == pytest.approx((0.125, 0.1, 0.15))
    assert got.imbalance["forward-compute"] == pytest.approx(1.5)
    assert math.isnan(got.imbalance["step"])
    assert got.ranks == ()
    assert any("--timing-log-option all" in note for note in got.notes)


def test_max_alone_has_no_range(tmp_path):
    name = "optimizer ".ljust(48, ".")
    text = iteration(1, 900) + f"max time across ranks (ms):\n    {name}: 12.50\n"
    got = report(tmp_path, text)
    assert got.measures["optimizer"] == pytest.approx((0.0125,) * 3)
    assert math.isnan(got.imbalance["optimizer"])


def test_all_ranks_name_the_slow_one_among_its_stage(tmp_path):
    blocks = [
        iteration(n, 1000)
        + all_ranks(forward_compute=(10, 10, 20, 33), backward_compute=(20, 20, 40, 66))
        for n in range(1, 5)
    ]
    got = report(tmp_path, ARGUMENTS + "".join(blocks))
    assert [rank.group for rank in got.ranks] == ["stage 0", "stage 0", "stage 1", "stage 1"]
    assert [rank.stands_out for rank in got.ranks] == [False, False, False, True]
    assert got.ranks[3].factor == pytest.approx(99 / 60)


def test_a_restart_repeats_steps(tmp_path):
    got = report(tmp_path, iteration(5, 1000) + iteration(5, 1200))
    assert got.measures["step"][0] == pytest.approx(1.2)
    assert any("1 steps are there twice" in note for note in got.notes)


def test_deepspeeds_wall_clock_breakdown(tmp_path):
    micro = "[Rank 0] time (ms) | fwd_microstep: 9.00 | bwd_microstep: 18.00\n"
    whole = "[Rank 0] time (ms) | fwd: 10.00 | bwd: 20.00 | bwd_inner: 15.00 | step: 3.00\n"
    got = report(tmp_path, (micro + whole) * 4)
    assert (got.format, got.steps) == ("deepspeed log", 4)
    assert got.measures["step"] == pytest.approx((0.033,) * 3)
    assert got.measures["backward"][0] == pytest.approx(0.02)
    assert any("rank 0 only" in note for note in got.notes)


def test_deepspeeds_pipeline_engine(tmp_path):
    line = "steps: {} loss: 2.3000 iter time (s): {:.3f} samples/sec: 9.000\n"
    got = report(tmp_path, line.format(10, 1.5) + line.format(20, 1.7))
    assert got.measures["step"] == pytest.approx((1.6, 1.5, 1.7))
    assert any("steps_per_print" in note for note in got.notes)


def test_timers_of_deepspeeds_pipeline_engine_are_sums_of_the_steps_behind(tmp_path):
    timers = "[Rank 0] time (ms) | fwd: 400.00 | bwd: 800.00 | bwd_inner: 1.00 | step: 20.00\n"
    line = "steps: {} loss: 2.3000 iter time (s): {:.3f} samples/sec: 9.000\n"
    got = report(tmp_path, timers + line.format(30, 0.15) + timers + line.format(40, 0.17))
    assert got.steps == 2
    assert got.measures["step"] == pytest.approx((0.16, 0.15, 0.17))
    assert got.measures["forward"] == pytest.approx((0.04,) * 3)
    # How many steps one line alone counts is not known.
    alone = report(tmp_path, timers + line.format(30, 0.15))
    assert set(alone.measures) == {"step"}


def test_the_command_prints_a_table(tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_text(iteration(1, 1000) + min_max(100, 150))
    assert run(["times", str(path)]) == 0
    out = capsys.readouterr().out
    assert "slowest 1.50 times the fastest" in out


@pytest.mark.parametrize("text", [ARGUMENTS, "time (ms) | fwd: 1.00\n", min_max(1, 2)])
def test_logs_without_a_step_are_refused(tmp_path, text):
    with pytest.raises(TraceError, match="has no step"):
        report(tmp_path, text)


@pytest.mark.parametrize("last", ["900.0", "130.25"])
def test_a_log_that_ends_within_a_number_is_told(tmp_path, last):
    text = "".join(iteration(n, 900.0) + min_max(100.5, 130.25) for n in range(1, 5))
    path = tmp_path / "train.log"
    path.write_text(text)
    assert not any("ends within a line" in note for note in load_host_times([path]).notes)
    path.write_text(text[: text.rindex(last) + 1])
    cut = load_host_times([path])
    assert "ends within a line" in cut.notes[0]
    for table in (*cut.seconds.values(), *cut.ranges.values()):
        assert not (table < 0.1).any()  # nothing of a number's first digit


def test_a_rank_of_too_many_digits_is_no_rank(tmp_path):
    text = iteration(1, 1000) + all_ranks(optimizer=(1, 2)) + f"  rank {'9' * 20}: 1.00\n"
    path = tmp_path / "train.log"
    path.write_text(text)
    assert load_host_times([path]).ranks.tolist() == [0, 1]


def test_no_damaged_line_breaks_the_reader(tmp_path):
    whole = (ARGUMENTS + iteration(1, 1000) + all_ranks(optimizer=(1, 2, 3, 4))) * 2
    random = np.random.default_rng(1)
    for _ in range(200):
        at, length = random.integers(0, len(whole), 2) // (1, 20)
        damaged = whole[:at] + "\x00ÿ€("[: random.integers(0, 4)] + whole[at + length :]
        with contextlib.suppress(TraceError):  # any other error fails the test
            report(tmp_path, damaged)
