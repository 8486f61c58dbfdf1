import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fleet_jobs import HERE, make_fleet, settled
from paceline.errors import FleetError
from paceline.fleet import analysis, perform, results
from paceline.fleet.analysis import Analysis, analyse
from paceline.fleet.keys import AnalysisOptions, analysis_version
from paceline.fleet.run import RunOptions, fleet
from paceline.fleet.store import FolderStore
from paceline.fleet.supervisor import Supervisor
from paceline.fleet.task import Settings, Task


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    return make_fleet(tmp_path_factory.mktemp("fleet"))


def kill(supervisor: Supervisor, times: int, then=lambda: None) -> threading.Thread:
    """Kill the worker process of a supervisor, each time a new one, as the kernel would."""

    def work():
        last = None
        for _ in range(times):
            while supervisor._process is None or supervisor._process.pid == last:
                time.sleep(0.005)
            last = supervisor._process.pid
            os.kill(last, signal.SIGKILL)
        then()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.fixture
def blocked(tmp_path):
    """A task whose trace nobody ever finishes to write."""
    path = tmp_path / "trace.parquet"
    os.mkfifo(path)
    return Task(str(path), "trace.parquet")


def settings(tmp_path, **options):
    return Settings(str(tmp_path / "study"), analysis_version(), AnalysisOptions(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "slurm"}, "there is no engine 'slurm'"),
        ({"engine": "ray", "processes": 2}, "is the local engine's"),
        ({"address": "auto"}, "is that of a Ray cluster"),
        ({"processes": -1}, "must not be below 0"),
        ({"processes": 0, "timeout_s": 1}, "need processes of their own"),
        ({"timeout_s": 0}, "must be above 0 s"),
        ({"memory_bytes": 1 << 20}, "must be at least 256 MiB"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(FleetError, match=message):
        RunOptions(**options)


def test_processes_and_this_one_make_the_same_tables(traces, tmp_path):
    here = fleet(traces, tmp_path / "here", run=HERE)
    local = fleet(traces, tmp_path / "local", run=RunOptions(processes=2))
    assert settled(local.jobs) == settled(here.jobs)
    assert local.steps.equals(here.steps)
    assert len(set(local.jobs["place"].to_pylist())) == 2


def test_a_process_that_is_killed_three_times_is_a_row(blocked, tmp_path):
    supervisor = Supervisor(settings(tmp_path))
    thread = kill(supervisor, 3)
    outcome = supervisor.run(blocked)
    thread.join()
    assert (outcome.key, outcome.rule) == ("", "killed")
    assert outcome.error == "its process was killed 3 times, at last by SIGKILL"


def test_a_task_whose_process_was_killed_is_done_by_another(blocked, traces, tmp_path):
    supervisor = Supervisor(settings(tmp_path))
    thread = kill(supervisor, 1, lambda: (traces / "trace-0.parquet").replace(blocked.path))
    outcome = supervisor.run(blocked)
    thread.join()
    Path(blocked.path).rename(traces / "trace-0.parquet")
    supervisor.close()
    supervisor.let_go()
    assert results.read(FolderStore(tmp_path / "study"), outcome.key)["row"]["steps"] == 2


def test_a_trace_that_takes_too_long_is_a_row(blocked, tmp_path):
    outcome = Supervisor(settings(tmp_path, timeout_s=0.05)).run(blocked)
    assert outcome.rule == "timeout"
    assert outcome.error == "it took longer than the 0.05 s it may (--timeout)"


@pytest.mark.parametrize(
    ("rule", "before", "now", "still"),
    [
        ("timeout", {"timeout_s": 10}, (10, None), True),
        ("timeout", {"timeout_s": 10}, (11, None), False),
        ("timeout", {"timeout_s": 10}, (None, None), False),
        ("memory", {"memory_bytes": 10}, (None, 9), True),
        ("memory", {"memory_bytes": 10}, (None, 11), False),
        ("killed", {}, (None, None), True),
    ],
)
def test_what_exceeded_a_limit_is_tried_under_a_higher_one(rule, before, now, still):
    assert results.exceeds_still({"rule": rule, "limits": before}, *now) is still


def test_a_row_of_a_limit_lasts_until_an_analysis_replaces_it(traces, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(perform, "analyse", lambda *_: Analysis({}, {}, "killed", "killed"))
        with pytest.raises(FleetError, match=r"none of 3 jobs counts \(killed: 3\)"):
            fleet(traces, tmp_path / "study", run=HERE)
    with pytest.raises(FleetError, match=r"none of 3 jobs counts \(killed: 3\)"):
        fleet(traces, tmp_path / "study", run=HERE)
    study = fleet(traces, tmp_path / "study", run=RunOptions(processes=0, again=True))
    assert study.jobs["status"].to_pylist() == ["analysed"] * 3


def test_a_driver_that_is_killed_goes_on_with_the_same_command(traces, tmp_path):
    out = tmp_path / "study"
    command = [sys.executable, "-m", "paceline", "fleet", str(traces), "-o", str(out)]
    driver = subprocess.Popen([*command, "--processes", "0"])
    while not list(out.glob("results/*/*.json")):
        time.sleep(0.001)
    driver.kill()
    driver.wait()
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("results/*/*.json")}
    study = fleet(traces, out, run=HERE)
    after = {path.name: path.stat().st_mtime_ns for path in out.glob("results/*/*.json")}
    assert before.items() <= after.items()
    assert settled(study.jobs) == settled(fleet(traces, tmp_path / "whole", run=HERE).jobs)


def test_a_trace_that_needs_too_much_memory_is_a_row(traces):
    outcome = analyse(traces / "trace-1.parquet", None, None, AnalysisOptions(), 100 << 20)
    assert outcome.rule == "memory"
    assert outcome.error == (
        "its 184 operations need about 0.1 GiB of memory, and it may take 0.1 GiB (--memory)"
    )


def test_memory_that_runs_out_is_a_row(traces, monkeypatch):
    def measured(*_):
        raise MemoryError

    monkeypatch.setattr(analysis, "_measured", measured)
    outcome = analyse(traces / "trace-1.parquet", None, None, AnalysisOptions(), 8 << 30)
    assert (outcome.rule, outcome.error) == (
        "memory",
        "it needs more memory than the 8.0 GiB it may take",
    )
