"""Dumps of PyTorch's flight recorder, of real jobs of two gloo ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import requires
from paceline.detect.steps_of_calls import step_times
from paceline.detect.who_calls import who_from_calls
from paceline.sources.call_logs.files import load_call_log

JOB = Path(__file__).parents[1] / "gloo_job.py"


def dumps_of_a_job(folder, *args):
    """Dumps of a job of two processes over gloo."""
    requires.installed("torch")
    env = os.environ | {"TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, JOB, folder, str(rank), *args], env=env)
        for rank in (0, 1)
    ]
    try:
        assert [rank.wait(120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    return folder


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return dumps_of_a_job(tmp_path_factory.mktemp("gloo"))


def test_real_dumps_as_pickle_and_json(real):
    log, notes = load_call_log([real / "nccl_trace_rank_0", real / "nccl_trace_rank_1"])
    assert notes == ()
    for rank, rows in log.of_ranks():
        assert rank in (0, 1)
        assert [log.ops[op] for op in log.op[rows]] == [
            "all_reduce",
            "all_reduce",
            "all_gather",
        ] * 12
        assert log.size[rows].tolist() == [64, 32, 64] * 12
    assert log.communicators == ("0:default_pg", "1:dp")
    text, _ = load_call_log([real / "trace_0.json", real / "trace_1.json"])
    assert (text.time_s == log.time_s).all()
    assert (text.codes() == log.codes()).all()


def test_the_steps_of_a_real_job_are_found(real):
    log, _ = load_call_log([real / "nccl_trace_rank_0", real / "nccl_trace_rank_1"])
    times = step_times(log)
    assert {rank: period.calls for rank, period in times.periods.items()} == {0: 3, 1: 3}
    assert times.duration_s.min() > 0.02  # each step sleeps for that long


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_the_order_of_arrivals_names_the_slow_rank_of_a_real_job(tmp_path, slow_rank):
    folder = dumps_of_a_job(tmp_path, str(slow_rank))
    log, _ = load_call_log([folder / f"nccl_trace_rank_{rank}" for rank in (0, 1)])
    assert log.duration_s is None
    (suspect,) = who_from_calls(log, step_times(log))
    assert (suspect.kind, suspect.ranks) == ("compute", (slow_rank,))
    assert suspect.factor == pytest.approx(2, rel=0.3)  # sleeps twice as long
    assert suspect.share == pytest.approx(0.5, rel=0.3)


def test_nobody_is_late_in_a_level_job(real):
    log, _ = load_call_log([real / "nccl_trace_rank_0", real / "nccl_trace_rank_1"])
    assert who_from_calls(log, step_times(log)) == ()
