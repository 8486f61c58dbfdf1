"""Validations by real processes on the loopback interface, and what they leave behind: nothing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import requires
from paceline.detect.join import joined_world
from paceline.detect.launch import validate_local
from paceline.detect.passes import ring_passes
from paceline.detect.validate import Effort, Injected
from paceline.detect.verdict import judge
from paceline.errors import DetectError

requires.installed("torch")

import peace

timed = peace.timed

#: Small, so that what is slow on purpose stands out on a host that does other work, too.
SMALL = Effort(gemm=192, message_bytes=1 << 16, rounds=5)


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def connected(pid, n):
    """Whether a process holds at least ``n`` sockets."""
    with contextlib.suppress(OSError):
        links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115 (sockets are no paths)
        return sum(link.startswith("socket:") for link in links) >= n
    return False


def until(true, seconds=60):
    """Wait; slow hosts are no failure, what never comes is one."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.alone
def test_a_slow_rank_and_a_slow_link_are_named(timed):
    # Far above the bound, which grows where the rounds scatter.
    injected = Injected(rank=2, factor=4.0, link=(0, 1), delay_s=0.1)
    before = children(os.getpid())
    measured = validate_local(4, effort=SMALL, injected=injected)
    assert sorted(measured.gemm_s) == [0, 1, 2, 3]
    assert sorted(measured.link_s) == sorted(
        link for each in ring_passes(range(4)) for link in each
    )
    assert all(len(rounds) == SMALL.rounds for rounds in measured.link_s.values())
    assert (measured.gemm, measured.message_bytes, measured.backend) == (192, 1 << 16, "gloo")
    assert children(os.getpid()) == before
    with timed():
        verdict = judge(measured)
        assert [slow.ranks for slow in verdict.slow_ranks[:1]] == [(2,)]
        assert verdict.slow_ranks[0].factor == pytest.approx(4.0, rel=0.3)
        assert [slow.ranks for slow in verdict.slow_links[:1]] == [(0, 1)]
        assert verdict.slow_links[0].seconds >= 0.1


@pytest.fixture
def validation():
    """A command that would go on for hours, and its workers."""
    started = []

    def start(world_size):
        size = ["--world-size", str(world_size), "--rounds", "1000000", "--timeout", "9999"]
        small = ["--gemm", "32", "--bytes", "1024", "--backend", "gloo"]
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", "validate", "--run", *size, *small],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        until(lambda: len(children(process.pid)) == world_size)
        workers = children(process.pid)
        # One socket to the store, one or more to each peer once they have met.
        until(lambda: all(connected(worker, world_size) for worker in workers))
        return process, workers

    yield start
    for process in started:
        process.kill()
        process.communicate()


@requires.on_linux
def test_a_worker_that_is_killed_is_named(validation):
    process, workers = validation(3)
    (victim,) = [w for w in workers if b"\0RANK=2\0" in Path(f"/proc/{w}/environ").read_bytes()]
    os.kill(victim, signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert err == (
        "paceline: error: rank 2 was killed by SIGKILL; the other processes were ended\n"
    )
    assert not any(map(alive, workers))


@requires.on_linux
def test_an_interrupt_leaves_no_process(validation):
    process, workers = validation(2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "")
    assert not any(map(alive, workers))


@requires.on_linux
def test_workers_end_with_a_parent_that_is_killed(validation):
    process, workers = validation(1)
    process.kill()
    process.wait()
    until(lambda: not any(map(alive, workers)))


def test_a_timeout_names_who_is_not_done():
    before = children(os.getpid())
    with pytest.raises(DetectError, match=r"more than 0.1 s; not done: rank 0, 1; give"):
        validate_local(2, effort=Effort(timeout_s=0.1))
    assert children(os.getpid()) == before


def test_a_rank_that_hangs_in_a_library_ends_itself():
    code = """
import sys, time
from types import SimpleNamespace
sys.modules["torch"] = SimpleNamespace(
    cuda=SimpleNamespace(is_available=lambda: False),
    distributed=SimpleNamespace(init_process_group=lambda *args, **options: time.sleep(99)),
)
from paceline.detect.join import validate_joined
from paceline.detect.validate import Effort
validate_joined([0], (), effort=Effort(timeout_s=0.1), backend="gloo")
"""
    joined = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **joined}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == (
        "paceline: error: rank 0: the validation hangs after 0.1 s; was a rank lost?\n"
    )


def test_a_worker_says_why_it_gives_up():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: set CUDA_VISIBLE_DEVICES to nothing")
    with pytest.raises(DetectError, match=r"failed: rank 0 has no GPU .*--backend gloo"):
        validate_local(1, backend="nccl")


def test_a_job_that_pauses_and_goes_on(tmp_path):
    script = Path(__file__).with_name("validation_job.py")
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    jobs = [
        subprocess.Popen([sys.executable, str(script), str(tmp_path), str(rank)], env=env)
        for rank in range(3)
    ]
    assert [job.wait(timeout=300) for job in jobs] == [0, 0, 0]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    for result in results:
        whole, subset = result["found"][:2]
        assert whole["gemm"] == [0, 1, 2]
        assert whole["links"] == [[0, 1], [1, 2], [2, 0]]
        assert whole["rounds"] == [2]
        assert (subset["gemm"], subset["links"]) == ([1, 2], [[2, 1]])
        assert result["found"][:2] == results[0]["found"][:2]  # all ranks have the same
        assert result["sum"] == 3.0
        assert result["untouched"]
        assert "rank 5 is not one of the 3" in result["stranger"]
    group, alone = results[0]["found"][2], results[1]["found"][2]
    assert group == results[2]["found"][2]
    assert (alone["gemm"], alone["links"]) == ([1], [])
    assert (group["gemm"], group["links"]) == ([0, 2], [[0, 2], [2, 0]])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gemm": 0}, "gemm must be 1 or more"),
        ({"message_bytes": -1}, "message_bytes must be 1 or more"),
        ({"rounds": 0}, "rounds must be 1 or more"),
        ({"timeout_s": float("nan")}, "timeout"),
    ],
)
def test_efforts_that_are_none(options, words):
    with pytest.raises(DetectError, match=words):
        Effort(**options)


@pytest.mark.parametrize("world_size", [0, 129])
def test_too_many_processes_for_one_machine(world_size):
    with pytest.raises(DetectError, match="1 to 128 processes"):
        validate_local(world_size)


def test_the_environment_of_a_job(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert joined_world() is None
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "here")):
        monkeypatch.setenv(name, value)
    with pytest.raises(DetectError, match="MASTER_PORT is not"):
        joined_world()
    monkeypatch.setenv("MASTER_PORT", "1")
    assert joined_world() == (1, 4)
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(DetectError, match="RANK=4 is not below"):
        joined_world()
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(DetectError, match="whole numbers"):
        joined_world()
