"""A log that does not grow any more; a real job that hangs, and where its ranks stand."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import requires
from paceline.cli.main import run
from paceline.detect import stacks
from paceline.detect.hang import hang_of, is_overdue
from paceline.detect.missing_calls import absent_ranks, waiting_calls
from paceline.errors import DetectError, TraceError
from paceline.extras import pip_install
from paceline.sources.recording import load_recorded_step_times
from paceline.trace.calls import CallLog
from paceline.watch import Watch

#: As in hang_job.py, which imports torch.
HANGS_AT = 70


@pytest.mark.parametrize(
    ("waited_s", "usual_s", "step_s", "overdue"),
    [(34, 1, 1, False), (35, 1, 1, True), (1000, 10, 400, False), (35, 1, float("nan"), False)],
)
def test_three_steps_and_half_a_minute_more_than_usual(waited_s, usual_s, step_s, overdue):
    assert is_overdue(waited_s, usual_s, step_s) is overdue


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("step,duration_s\n" + "".join(f"{n},{1 + n % 3 / 100}\n" for n in range(80)))
    return path


def aged(path, seconds):
    at = time.time() - seconds
    os.utime(path, (at, at))
    return str(path)


def test_a_log_that_is_not_written_any_more_is_a_hang_only_if_the_job_runs(log, capsys):
    assert run(["detect", aged(log, 600), "--running", "--json"]) == 0
    (event,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (event["kind"], event["step"], event["lost_s"]) == ("hang", 80, pytest.approx(600, 0.1))
    assert run(["detect", aged(log, 600), "--json"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["detect", aged(log, 600), "--running"]) == 0
    assert "step 80 has not ended after 10" in capsys.readouterr().out


def test_a_log_that_grows_is_none(log, capsys):
    assert run(["detect", aged(log, 5), "--running"]) == 0
    assert "no hang: the last line came 5" in capsys.readouterr().out
    assert run(["detect", "-", "--running"]) == 2


def calls(*of_ranks, communicators=("tp", "dp")):
    """Each rank's calls: (communicator, how many, seconds of the last)."""
    rows = [
        (rank, last_s - n + 1 + k, group)
        for rank, groups in enumerate(of_ranks)
        for group, n, last_s in groups
        for k in range(n)
    ]
    rank, time_s, group = (np.array(column) for column in zip(*sorted(rows), strict=True))
    zero = np.zeros(len(rank), dtype=np.int64)
    return CallLog(rank, time_s.astype(float), zero, zero, group, ("all_reduce",), communicators)


def test_who_lacks_the_last_call_has_not_arrived():
    log = calls([(0, 30, 100.0)], [(0, 30, 100.1)], [(0, 29, 99.0)], [(0, 30, 100.2)])
    (call,) = waiting_calls(log)
    assert (call.absent, call.behind, call.waiting) == ((2,), (1,), (0, 1, 3))
    assert call.since_s == 100.2
    assert call.explain() == (
        "all_reduce of tp: rank 2 did not come (1 call behind), ranks 0-1, 3 did"
    )
    assert waiting_calls(calls([(0, 30, 100.0)], [(0, 30, 100.1)])) == ()


def test_a_log_that_begins_later_is_not_behind():
    """The flight recorder keeps the newest calls of each rank: counts say nothing."""
    assert waiting_calls(calls([(0, 30, 100.0)], [(0, 17, 100.1)])) == ()
    (call,) = waiting_calls(calls([(0, 30, 100.0)], [(0, 17, 98.1)]))
    assert (call.absent, call.behind) == ((1,), (2,))


def test_ranks_whose_clocks_differ_are_not_accused():
    """Half a second apart is half a step: nothing says which of two calls is the same."""
    assert waiting_calls(calls([(0, 30, 100.0)], [(0, 30, 99.5)])) == ()


def test_who_waits_elsewhere_is_not_the_one():
    """Rank 1 does not come to tp, so rank 0 waits there and does not come to dp."""
    tp = [[(0, 30, 100.0)], [(0, 29, 99.0)]]
    dp = [[(1, 29, 99.0)], [], [(1, 30, 100.0)]]
    log = calls(tp[0] + dp[0], tp[1], dp[2])
    assert [call.absent for call in waiting_calls(log)] == [(1,), (0,)]
    assert absent_ranks(waiting_calls(log)) == (1,)


def test_the_event_names_who_has_not_told_the_step():
    steps, ranks = np.array([7, 8]), np.arange(3)
    event = hang_of(steps, ranks, np.array([[1.0, 1, 1], [1.0, np.nan, 1]]), 99.0, 1.0)
    assert (event.step, event.ranks) == (8, (1,))
    assert "rank 1 did not arrive" in event.explain()
    event = hang_of(steps, ranks, np.ones((2, 3)), 99.0, 1.0)
    assert (event.step, event.ranks) == (9, (0, 1, 2))


def dumped(*frames, thread="MainThread", pid=5):
    """As py-spy 0.4.2 writes a thread."""
    rows = [
        {
            **dict.fromkeys(("module", "locals"), None),
            **dict.fromkeys(("is_entry", "is_shim_entry"), False),
            "name": name,
            "filename": f"/a/{file}",
            "short_filename": file,
            "line": line,
        }
        for name, file, line in frames
    ]
    return {
        "pid": pid,
        "thread_id": 1,
        "thread_name": thread,
        "os_thread_id": pid + 1000,
        "active": False,
        "owns_gil": False,
        "frames": rows,
        "process_info": None,
    }


def fake_pyspy(tmp_path, script):
    path = tmp_path / "py-spy"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


def test_equal_stacks_are_one_group(tmp_path):
    waits, works = ("all_reduce", "c10d.py", 9), ("load", "data.py", 3)
    main = ("<module>", "job.py", 1)
    idle = dumped(("wait", "threading.py", 1), thread="helper")
    for pid, frame in ((5, waits), (6, works), (7, waits)):
        (tmp_path / f"{pid}.json").write_text(json.dumps([idle, dumped(frame, main)]))
    answer = fake_pyspy(tmp_path, f"for last; do :; done; exec cat {tmp_path}/$last.json")
    result = stacks.stacks_of({0: 5, 1: 6, 2: 7}, pyspy=answer)
    assert result.lines() == [
        "rank 1: load (data.py:3) < <module> (job.py:1)",
        "ranks 0, 2: all_reduce (c10d.py:9) < <module> (job.py:1)",
    ]
    assert [group["pids"] for group in result.to_mapping()["groups"]] == [[6], [5, 7]]


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("echo 'Permission Denied: Try running again' >&2; exit 1", "may not look into process"),
        ("echo '[]'", "py-spy saw no Python thread"),
        ("echo 'Error: Failed to find python version' >&2; exit 1", "Error: Failed to find"),
        ("echo not json", "py-spy saw no Python thread"),
    ],
)
def test_why_there_is_no_stack_is_said(tmp_path, script, note):
    mine = os.getpid()
    (line,) = stacks.stacks_of({3: mine}, pyspy=fake_pyspy(tmp_path, script)).lines()
    assert line.startswith("note: rank 3: no stack: ")
    assert note in line


def test_without_py_spy_or_processes_one_line_says_so(monkeypatch):
    monkeypatch.setattr(stacks, "find_pyspy", lambda: None)
    assert pip_install("hang") in stacks.stacks_of({0: 5}).lines()[0]
    assert "no process of the job" in stacks.stacks_of({}).lines()[0]


def proc_of(folder, processes):
    """A folder like /proc: pid -> (parent, program, environment)."""
    for pid, (parent, program, environment) in processes.items():
        process = folder / str(pid)
        process.mkdir(parents=True)
        (process / "exe").symlink_to(f"/usr/bin/{program}")
        (process / "stat").write_text(f"{pid} (a) b) S {parent} 0 0")
        text = "".join(f"{name}={value}\0" for name, value in environment.items())
        (process / "environ").write_text(text)
    return folder


def test_processes_are_found_by_the_rank_their_launcher_set(tmp_path):
    job = {"WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    ranks = [{**job, "RANK": str(rank)} for rank in range(2)]
    proc = proc_of(
        tmp_path / "one",
        {
            10: (1, "bash", ranks[0]),
            11: (10, "python3.11", ranks[0]),
            12: (11, "python3.11", ranks[0]),  # a data loader
            13: (1, "python3.11", ranks[1]),
            14: (1, "python3.11", {}),
        },
    )
    assert stacks.find_processes(proc=proc) == {0: 11, 1: 13}
    assert stacks.ranks_of_pids([14, 13], proc=proc) == {0: 14, 1: 13}
    with pytest.raises(DetectError, match="no process 99"):
        stacks.ranks_of_pids([99], proc=proc)
    host = socket.gethostname()
    headers = [
        {"rank": 0, "host": host, "pid": 11},
        {"rank": 1, "host": "elsewhere", "pid": 13},
        {"rank": 2, "host": host, "pid": 13},  # the number is another rank's by now
    ]
    assert stacks.processes_of(headers, proc=proc) == {0: 11}
    other = {20: (1, "python3.11", {"RANK": "0", "WORLD_SIZE": "4"})}
    proc_of(proc, other)
    assert stacks.find_processes(4, proc=proc) == {0: 20}
    with pytest.raises(DetectError, match="2 jobs run on this host"):
        stacks.find_processes(proc=proc)


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A real job that hangs: its folder, and the process of each rank."""
    requires.installed("torch")
    folder = tmp_path_factory.mktemp("hang")
    (folder / "dumps").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(Path(__file__).with_name("hang_job.py")), str(folder)]
    ranks = [subprocess.Popen(command, env=os.environ | where | {"RANK": str(r)}) for r in (0, 1)]
    try:
        yield folder, ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()


@pytest.fixture
def pyspy():
    if stacks.find_pyspy() is None:
        pytest.skip("py-spy is not installed: pip install 'paceline[hang]'")


class Clock:
    ahead_s = 0.0

    def __call__(self):
        return time.time() + self.ahead_s


def has_told(folder, step):
    """Whether both ranks have written a step's time."""
    try:
        table = load_recorded_step_times(folder / "run")
    except TraceError:  # it has not begun to write
        return False
    return (
        table.duration_s.shape[1] == 2
        and table.steps[-1] == step
        and not np.isnan(table.duration_s[-1]).any()
    )


def test_a_real_job_that_hangs(job, pyspy, capsys):
    """Watched, by its recording, and by the dumps of its flight recorder."""
    folder, ranks = job
    clock = Clock()
    watch = Watch(folder / "run", clock=clock)
    wait_until((folder / "run").is_dir)

    def looked():
        watch.look()
        return has_told(folder, HANGS_AT - 1)

    wait_until(looked)
    watch.look()
    clock.ahead_s = 60.0
    (hang,) = watch.look()
    assert watch.look() == []  # told once
    said = hang.to_mapping()
    assert (said["kind"], said["step"], said["ranks"]) == ("hang", HANGS_AT, [0, 1])
    groups = {tuple(group["ranks"]): group for group in said["stacks"]["groups"]}
    assert set(groups) == {(0,), (1,)}
    names = {
        rank: [frame["function"] for frame in groups[rank,]["threads"][0]["frames"]]
        for rank in (0, 1)
    }
    assert names[0][0] == "all_reduce"
    assert names[1][:2] == ["stuck", "train_step"]
    assert [groups[rank,]["pids"] for rank in (0, 1)] == [[p.pid] for p in ranks]
    assert "rank 1: stuck (hang_job.py:" in hang.line()
    assert all("T" not in state_of(process.pid) for process in ranks)  # nobody was stopped

    (folder / "dump").touch()
    dumps = [folder / "dumps" / f"nccl_trace_rank_{rank}" for rank in (0, 1)]
    wait_until(lambda: all(dump.exists() for dump in dumps))
    for path in (*dumps, *(folder / "run").iterdir()):
        aged(path, 600)
    logs = [str(dump) for dump in dumps]
    assert run(["detect", "--collectives", *logs, "--running", "--json"]) == 0
    hang = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (hang["kind"], hang["ranks"], hang["waiting"][0]["waiting"]) == ("hang", [1], [0])
    named = ["--pid", *(str(process.pid) for process in ranks)]
    assert run(["detect", str(folder / "run"), "--running", *named]) == 0
    out = capsys.readouterr().out
    assert f"step {HANGS_AT} has not ended" in out
    assert "  rank 1: stuck (hang_job.py:" in out
    assert run(["detect", str(folder / "run"), "--running", "--no-stacks", "--json"]) == 0
    # On a busy machine an onset may stand before the hang.
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["stacks"] is None


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_recorded_job_that_has_ended_does_not_hang(tmp_path):
    header = {"rank": 0, "host": socket.gethostname(), "pid": 2**22 - 1}
    assert stacks.is_here(header)
    assert stacks.processes_of([header]) == {}
