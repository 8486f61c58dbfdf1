"""The recorder in the training loop: what it keeps, when, and that it never harms."""

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import paceline.record as record
from installed import PACKAGES
from paceline import load
from paceline.blockfile import PROGRAM, TIMES, read_file, read_header
from paceline.record import writer
from paceline.record.recorder import is_drawn
from paceline.sources.recording import load_recorded_step_times
from paceline.sources.recording.files import read_files
from recordings import SetClock, play, recorder

OPS = [("forward-compute", 0, 0, 10, 20), ("backward-compute", 0, 0, 20, 45)]


@pytest.fixture(autouse=True)
def launcher(monkeypatch):
    for names in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("SLURM_JOB_ID",)):
        for name in names:
            monkeypatch.delenv(name, raising=False)


def loop(rec, numbers, fail_at=None):
    for number in numbers:
        with rec.step(number):
            with rec.op("forward-compute", microbatch=0):
                pass
            with rec.op("backward-compute", microbatch=0):
                if number == fail_at:
                    raise KeyError("the user's own")
            rec.launch("grads-reduce-scatter").done()


def path_of(folder, rank=0, attempt=0):
    return folder / f"rank-{rank:05d}-{attempt}.blocks"


def kinds_of(path):
    return [kind for kind, _ in read_file(path).blocks]


def test_importing_it_costs_nothing():
    code = "import paceline.record, sys; print({'numpy', 'torch', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": PACKAGES}, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("set()", "")


def test_one_step_of_ten_and_all_step_times(tmp_path):
    rec = record.start(tmp_path)
    assert record.current() is rec
    loop(rec, range(25))
    rec.close()
    assert load(tmp_path).steps.tolist() == [0, 16, 22]
    times = load_recorded_step_times(tmp_path)
    assert times.steps.tolist() == list(range(25))
    assert (times.duration_s > 0).all()


@pytest.mark.parametrize("every", [1, 2, 3, 10, 50])
def test_profiled_steps_fall_evenly_on_what_recurs(every):
    """An evaluation in each tenth step fell on all profiled steps, or on none (newcomer 15)."""
    drawn = np.array([number for number in range(2000 * every) if is_drawn(number, every)])
    assert (drawn // every).tolist() == list(range(2000))
    for period in (2, 3, 7, 10, 20, 50):
        shares = np.bincount(drawn % period, minlength=period) / len(drawn)
        assert shares == pytest.approx(1 / period, rel=0.12)


def test_chosen_steps(tmp_path):
    rec = record.start(tmp_path, steps={3, 4})
    loop(rec, range(6))
    rec.close()
    assert load(tmp_path).steps.tolist() == [3, 4]


def test_operations_outside_a_profiled_step_are_nothing(tmp_path):
    rec = record.start(tmp_path, every=2)
    with rec.op("forward-compute"):
        assert not rec.is_profiling
    with rec.step(1), rec.op("no such kind"):
        assert rec.launch("optimizer").track("work") == "work"
    assert rec.is_on
    rec.close()


def test_a_step_that_raises_is_left_out_and_its_error_goes_on(tmp_path):
    rec = record.start(tmp_path, every=1)
    with pytest.raises(KeyError, match="the user's own"):
        loop(rec, range(5), fail_at=3)
    loop(rec, [4])
    rec.close()
    assert load_recorded_step_times(tmp_path).steps.tolist() == [0, 1, 2, 4]


def test_a_restarted_rank_writes_beside(tmp_path):
    for _ in range(2):
        rec = record.start(tmp_path, every=1)
        loop(rec, [0])
        rec.close()
    assert path_of(tmp_path).exists()
    assert path_of(tmp_path, attempt=1).exists()


def test_the_place_from_the_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "13")
    monkeypatch.setenv("SLURM_NTASKS", "16")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    rec = record.start(tmp_path, pp=2, tp=2)
    loop(rec, [0])
    rec.close()
    meta = read_header(path_of(tmp_path, 13))
    expected = {"rank": 13, "world": 16, "dp": 4, "pp": 2, "tp": 2, "dp_rank": 2, "pp_rank": 1}
    assert expected.items() <= meta.items()
    assert (meta["run"], meta["session"]) == ("77", "77.2")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "4796b138-2f40-40e0-96e5-aac62ccb95a5")
    rec = record.start(tmp_path, rank=2)
    loop(rec, [0])
    rec.close()
    meta = read_header(path_of(tmp_path, 2))  # torchrun's own name says nothing; the folder's does
    assert meta["run"] == tmp_path.name
    assert meta["session"] == "4796b138-2f40-40e0-96e5-aac62ccb95a5.0"
    rec = record.start(tmp_path, rank=1, run="mine")
    loop(rec, [0])
    rec.close()
    meta = read_header(path_of(tmp_path, 1))
    assert (meta["rank"], meta["world"], meta["run"]) == (1, 4, "mine")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rank": 4, "world": 4}, "rank 4 of 4 does not fit"),
        ({"world": 6, "pp": 4}, "does not fit dp 1 x pp 4"),
        ({"every": 0}, "every counts from 1"),
        ({"rank": "x"}, "ValueError"),
        ({"device": "cuda"}, "recorder switched off"),
    ],
)
def test_wrong_arguments_are_one_line_and_no_recorder(tmp_path, caplog, given, words):
    rec = record.start(tmp_path, **given)
    loop(rec, range(3))
    rec.close()
    assert not rec.is_on
    (line,) = caplog.records
    assert words in line.message
    assert "\n" not in line.message


def test_an_unknown_kind_switches_off(tmp_path, caplog):
    rec = record.start(tmp_path, every=1)
    loop(rec, [0])
    with rec.step(1), rec.op("forward"), rec.op("backward"):
        pass
    loop(rec, range(2, 9))
    (line,) = caplog.records
    assert "no kind of operation is called 'forward'; use forward-compute" in line.message
    assert not rec.is_on


def test_what_cannot_be_packed_switches_off(tmp_path, caplog):
    rec = record.start(tmp_path, every=1, flush_s=0.01)
    with rec.step(0), rec.op("forward-compute", microbatch="first"):
        pass
    until(lambda: caplog.records)
    loop(rec, range(1, 4))
    (line,) = caplog.records
    assert "recorder switched off, training goes on" in line.message


def until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_a_folder_that_cannot_be_written(tmp_path, caplog, monkeypatch):
    (tmp_path / "file").touch()
    rec = record.start(tmp_path / "file" / "run")
    loop(rec, range(3))
    assert "recorder switched off" in caplog.records[-1].message

    def read_only(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(writer.os, "open", read_only)
    rec = record.start(tmp_path / "run")
    monkeypatch.undo()
    loop(rec, range(3))
    assert "Read-only file system" in caplog.records[-1].message
    assert len(caplog.records) == 2


def test_a_full_disk_is_one_line_and_the_rest_reads_back(tmp_path, caplog, monkeypatch):
    rec = record.start(tmp_path, every=1, flush_s=0.01)
    loop(rec, [0, 1])
    until(lambda: path_of(tmp_path).stat().st_size > 0)
    really = os.write
    room = [100]

    def write(file, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = data[: room[0]]
        room[0] -= len(part)
        return really(file, part)

    monkeypatch.setattr(writer.os, "write", write)
    loop(rec, range(2, 40))
    until(lambda: caplog.records)
    loop(rec, range(40, 43))
    rec.close()
    (line,) = caplog.records
    assert "No space left on device" in line.message
    read = load(tmp_path)
    assert set(read.steps.tolist()) >= {0, 1}
    assert any("unfinished block" in warning for warning in read.warnings)


def test_a_slow_disk_drops_whole_steps_and_counts_them(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MAX_WAITING", 20)
    gate = threading.Event()
    really = writer._append

    def slow(file, data):
        gate.wait(120)
        really(file, data)

    monkeypatch.setattr(writer, "_append", slow)
    rec = record.start(tmp_path, every=1, flush_s=0.01)
    loop(rec, range(50))
    gate.set()
    rec.close()
    kept = load(tmp_path).steps.tolist()
    assert kept[:5] == [0, 1, 2, 3, 4]
    assert len(kept) < 50
    assert load(tmp_path).counts.sum() == 3 * len(kept)
    warnings = load(tmp_path).warnings
    assert (
        f"{50 - len(kept)} profiled steps of single ranks were dropped while recording" in warnings
    )
    times = load_recorded_step_times(tmp_path)
    lost = 50 - len(times.steps)
    assert lost > 0
    assert times.warnings == (f"{lost} step times were dropped because the disk was slow",)


def test_a_step_of_too_many_operations_is_dropped(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(record.program, "MAX_OPS", 2)
    clock = SetClock()
    rec = recorder(tmp_path, clock)
    play(rec, clock, 0, OPS, (0, 50))
    play(rec, clock, 1, [*OPS, ("optimizer", -1, -1, 45, 48)], (100, 150))
    play(rec, clock, 2, OPS, (200, 250))
    rec.close()
    (line,) = caplog.records
    assert line.message == "step 1 has over 2 operations: only its time is kept"
    assert load(tmp_path).steps.tolist() == [0, 2]
    assert load_recorded_step_times(tmp_path).steps.tolist() == [0, 1, 2]


def test_an_operation_that_never_ends_costs_its_step_only(tmp_path):
    rec = record.start(tmp_path, every=1)
    loop(rec, [0])
    with rec.step(1):
        rec.launch("forward-send", 0)
    loop(rec, [2])
    rec.close()
    assert load(tmp_path).steps.tolist() == [0, 2]
    assert load_recorded_step_times(tmp_path).steps.tolist() == [0, 1, 2]


def test_steps_pass_one_whose_operation_has_no_end(tmp_path):
    rec = record.start(tmp_path, every=1, flush_s=3600)
    with rec.step(0):
        sent = rec.launch("forward-send", 0)
    loop(rec, [1])
    rec._writer._flush()
    assert load_recorded_step_times(tmp_path).steps.tolist() == [0, 1]
    assert load(tmp_path).steps.tolist() == [1]
    sent.done()
    rec._writer._flush()
    (file,) = read_files(tmp_path)
    assert file.steps.tolist() == [1, 0]
    assert load_recorded_step_times(tmp_path).warnings == ()  # no time is written twice
    rec.close()


def test_operations_without_an_end_are_given_up_in_time(tmp_path, monkeypatch, caplog):
    rec = record.start(tmp_path, every=1, flush_s=3600)
    with rec.step(0):
        rec.launch("forward-send", 0)
    rec._writer._flush()
    assert rec._writer._put - rec._writer._taken == 2
    monkeypatch.setattr(writer, "PATIENCE_S", 0.0)
    rec._writer._flush()
    assert rec._writer._put == rec._writer._taken
    (file,) = read_files(tmp_path)
    assert file.dropped == (1, 0)
    (line,) = caplog.records
    assert "the operations of step 0 are not recorded" in line.message
    assert "(forward-send)" in line.message
    rec.close()


@pytest.mark.parametrize("number", ["x", None, 0.5, "%d"])
@pytest.mark.parametrize("exchange", [False, True])
def test_a_step_that_is_no_number_is_a_line(tmp_path, caplog, number, exchange):
    rec = record.start(tmp_path, every=1)
    rec._exchange = object() if exchange else None
    loop(rec, [number, 1], fail_at="none")
    assert not rec.is_on
    assert "recorder switched off, training goes on: TypeError" in caplog.records[0].message
    assert len(caplog.records) <= 2


def test_steps_below_0_are_a_line_and_not_recorded(tmp_path, caplog):
    rec = record.start(tmp_path, every=1)
    loop(rec, [-5, -4, 0, 1])
    rec.close()
    (line,) = caplog.records
    assert line.message == "step -5 is not recorded: steps count from 0"
    assert load(tmp_path).steps.tolist() == [0, 1]
    assert load_recorded_step_times(tmp_path).steps.tolist() == [0, 1]


def test_switching_while_it_runs(tmp_path):
    from paceline.sources.recording.status import switch

    rec = record.start(tmp_path, every=1, flush_s=0.01)
    loop(rec, [0])
    switch(tmp_path, on=False)
    until(lambda: not rec._on)
    loop(rec, [1])
    switch(tmp_path, on=True, every=5)
    until(lambda: rec._on)
    loop(rec, [2, 8])
    switch(tmp_path, on=True)
    until(lambda: rec._every == 1)
    loop(rec, [9])
    rec.close()
    assert load(tmp_path).steps.tolist() == [0, 8, 9]
    assert load_recorded_step_times(tmp_path).steps.tolist() == [0, 1, 2, 8, 9]


def test_a_broken_control_file_changes_nothing(tmp_path):
    (tmp_path / "control.json").write_text("{")
    rec = record.start(tmp_path, every=1)
    loop(rec, [0])
    rec.close()
    for number, broken in enumerate(("[1]", "[" * 100_000), 1):
        (tmp_path / "control.json").write_text(broken)
        rec = record.start(tmp_path, every=1)
        loop(rec, [number])
        rec.close()
    assert load(tmp_path).steps.tolist() == [0, 1, 2]


KILLED = """
import sys, time
import paceline.record as record
rec = record.start(sys.argv[1], every=1, flush_s=0.05)
number = 0
while True:
    with rec.step(number):
        for m in range(4):
            with rec.op("forward-compute", m): pass
            with rec.op("backward-compute", m): time.sleep(0.001)
    number += 1
    print(number, flush=True)
"""


def test_kill_9_loses_what_is_not_flushed_only(tmp_path):
    job = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={"PYTHONPATH": PACKAGES},
        stdout=subprocess.PIPE,
        text=True,
    )
    with job:
        for line in job.stdout:
            if int(line) == 100:
                break
        until(lambda: path_of(tmp_path).stat().st_size > 20_000)
        job.send_signal(signal.SIGKILL)
    steps = load(tmp_path).steps
    assert steps.tolist() == list(range(len(steps)))
    assert len(steps) > 50
    assert set(kinds_of(path_of(tmp_path))) == {PROGRAM, TIMES}


def test_a_forked_child_does_not_write(tmp_path):
    rec = record.start(tmp_path, every=1)
    loop(rec, [0])
    child = os.fork()
    if child == 0:
        loop(rec, range(1, 5))
        rec.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    rec.close()
    assert load(tmp_path).steps.tolist() == [0]


def test_a_process_that_just_ends_has_written_all(tmp_path):
    code = (
        "import sys, paceline.record as record\n"
        "rec = record.start(sys.argv[1], every=1)\n"
        "for n in range(3):\n"
        "    with rec.step(n), rec.op('forward-compute', 0): pass\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env={"PYTHONPATH": PACKAGES}, check=True
    )
    assert load_recorded_step_times(tmp_path).steps.tolist() == [0, 1, 2]


def test_clocks_that_cannot_be_compared_are_one_line(tmp_path, caplog, monkeypatch):
    class NoGloo:
        def get_rank(self):
            return 0

        def get_world_size(self):
            return 2

        def new_group(self, **_):
            raise RuntimeError("no interface\nfound")

    monkeypatch.setattr(record.recorder, "process_group", NoGloo)
    rec = record.start(tmp_path, every=1, world=1)
    loop(rec, range(3))
    rec.close()
    (line,) = caplog.records
    assert line.message == "clocks are not compared: RuntimeError: no interface found"
    assert load(tmp_path).steps.tolist() == [0, 1, 2]


def test_the_log_is_quiet_when_all_is_well(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    rec = record.start(tmp_path)
    loop(rec, range(3))
    rec.close()
    assert caplog.records == []
