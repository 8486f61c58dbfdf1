"""Analyses in processes of their own: what comes out, and what a bad trace can and cannot do."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import requires

requires.installed("starlette")

from sqlalchemy import delete
from sqlalchemy.exc import OperationalError

from monitor_durability import make_trace
from monitor_web import eventually, monitor
from paceline.monitor import analysis_pool
from paceline.monitor import bus as module
from paceline.monitor.analysis_pool import Analyses
from paceline.monitor.blobs import FileBlobs
from paceline.monitor.bucket import open_blobs
from paceline.monitor.bus import Bus
from paceline.monitor.config import Config
from paceline.monitor.store import jobs, sessions, tables
from paceline.monitor.store.database import open_database
from paceline.monitor.uploads import Uploads


class Site:
    """A pool of analyses on a store of its own."""

    def __init__(self, folder, **settings):
        self.config = Config(data=folder, analysis_processes=1, **settings)
        self.engine = open_database(self.config.store_url)
        self.blobs = open_blobs("", folder)
        self.uploads = Uploads(self.config, self.engine, self.blobs)
        self.job = jobs.register(self.engine, "default", "job", 1.0)
        self.done = []
        self.pool = None

    def start(self):
        told = lambda *numbers: self.done.append(numbers)  # noqa: E731 (short)
        self.pool = Analyses(self.config, self.engine, self.blobs, Bus(), time.time, told)
        self.pool.start()
        return self

    def add(self, data, now, meta=None):
        path = self.config.data / f"{now}.new"
        path.write_bytes(data)
        return self.uploads.adopt(self.job.id, path, "trace.parquet", meta or {}, now)

    def row(self, number):
        return sessions.by_id(self.engine, number, "*")

    def wait(self, *numbers, timeout=300):
        over = ("done", "failed")
        eventually(lambda: all(self.row(n)["status"] in over for n in numbers), timeout)
        return [self.row(n) for n in numbers]


@pytest.fixture
def make(tmp_path):
    sites = []

    def make(**settings):
        sites.append(Site(tmp_path, **settings))
        return sites[-1]

    yield make
    for site in sites:
        if site.pool is not None:
            site.pool.stop()
        site.engine.dispose()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


#: An analysis that has been done before it began.
SUMMARY = """
import json, pathlib, sys
names = "first_step last_step step_s steps_s slowdown waste best_gain gpus".split()
names += "slowdown_lasting slowdown_healthy place cause_gain".split()
summary = dict.fromkeys(names, 1) | {"cause": "gc", "headline": "x", "degrees": {}, "facts": None}
summary["data_loading"] = None
pathlib.Path(sys.argv[2], "summary.json").write_text(json.dumps(summary))
"""


def fake(monkeypatch, code):
    """Analyses run this instead."""
    real = analysis_pool.subprocess.Popen

    def popen(command, **more):
        return real([command[0], "-c", code, *command[3:]], **more)

    monkeypatch.setattr(analysis_pool.subprocess, "Popen", popen)


def test_a_session_has_what_analyze_says(tmp_path, folder):
    from paceline.diagnose import diagnose
    from paceline.graph import from_trace
    from paceline.sources import load
    from paceline.whatif import analyze

    path = make_trace(folder, 0)
    measured = from_trace(load(path))
    expected = analyze(measured)
    found = diagnose(measured, expected)
    with monitor(tmp_path / "data") as site:
        job = jobs.register(site.service.engine, "default", "job", site.service.clock() - 3600)
        with site.service.engine.begin() as connection:
            connection.execute(tables.jobs.update().values(status="running"))
        copy = tmp_path / "copy"
        copy.write_bytes(path.read_bytes())
        hosts = {"hosts": {str(n): [f"node-{n}", "0"] for n in range(4)}}
        now = site.service.clock()
        number = site.service.uploads.adopt(job.id, copy, "x", hosts, now)
        site.service.tell_session(job, number)
        token = site.token()
        url = f"/api/v1/sessions/{number}"
        eventually(lambda: site.ask("GET", url, token=token).json["status"] == "done")
        row = site.ask("GET", url, token=token).json
        assert row["slowdown"] == pytest.approx(expected.slowdown)
        assert row["waste"] == pytest.approx(expected.waste)
        assert row["cause"] == found.findings[0].cause == "worker"
        assert row["gpu_hours_lost"] == pytest.approx(expected.waste * 4, rel=1e-3)  # of an hour
        assert row["headline"].startswith("This job wastes")
        result = site.ask("GET", f"{url}/result", token=token)
        assert result.json["slowdown"] == row["slowdown"]
        assert ["node-0", "0"] in result.json["hosts"].values()
        report = site.ask("GET", f"{url}/report", token=token)
        assert b"<html" in report.body
        assert "sandbox" in report.headers["content-security-policy"]
        assert site.ask("GET", f"{url}/perfetto", token=token).body[:2] == b"\x1f\x8b"
        shown = site.ask("GET", "/api/v1/jobs/job", token=token).json
        assert (shown["gpus"], shown["n_sessions"], shown["trend"]) == (4, 1, [row["slowdown"]])
        assert shown["degrees"]["dp_size"] == 2


def test_a_session_of_a_job_without_live_steps_counts_its_own_steps(make, monkeypatch):
    fake(monkeypatch, SUMMARY)  # 1 GPU wastes all of 1 s
    site = make().start()
    first = site.add(b"a", 2.0)
    site.pool.wake()
    site.wait(first)
    second = site.add(b"b", 422.0)
    site.pool.wake()
    (row,) = site.wait(second)
    assert row["gpu_hours_lost"] == row["gpu_hours_lost_most"] == pytest.approx(1 / 3600)


def test_a_session_stands_for_the_steps_between_its_first_and_its_last(make, monkeypatch):
    """Steps 1 to 11 of 1 s, of which a part was profiled; half of each step waits for data."""
    more = 'summary |= {"last_step": 11, "steps_s": 6, "waste": 0.2, "slowdown": 1.25}\n'
    more += 'summary |= {"data_loading": 0.5, "slowdown_healthy": None}\n'
    fake(monkeypatch, SUMMARY.replace("pathlib.Path(sys", f"{more}pathlib.Path(sys"))
    site = make().start()
    number = site.add(b"a", 2.0)
    site.pool.wake()
    (row,) = site.wait(number)
    assert row["data_loading"] == 0.5
    assert row["gpu_hours_lost"] == pytest.approx(11 * (1 - 0.5 * 0.8) / 3600)


def test_a_trace_that_is_none_fails_with_the_reason(make):
    site = make().start()
    bad, good_degrees = site.add(b"PAR1 and no more", 2.0), {"job": {"dp_size": "x"}}
    worse = site.add(b"PAR1 wrong degrees", 3.0, good_degrees)
    site.pool.wake()
    first, second = site.wait(bad, worse)
    assert (first["status"], second["status"]) == ("failed", "failed")
    assert "parquet" in first["reason"]
    assert "the job that was pushed" in second["reason"]
    for row in (first, second):
        assert "\n" not in row["reason"]
        assert str(site.config.data) not in row["reason"]
    assert "trace.parquet" in first["reason"]
    assert site.done == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("import os; os.abort()", "was killed by SIGABRT"),
        ("print(1 / 0)", "unexpectedly: ZeroDivisionError"),
        ("raise MemoryError", "more than 1024 MiB"),
        ("import time; time.sleep(60)", "more than 0.5 s"),
        ("print('and no summary')", "could not be run: FileNotFoundError"),
    ],
)
def test_whatever_happens_to_a_worker_happens_to_its_trace_alone(make, monkeypatch, code, reason):
    monkeypatch.setattr(analysis_pool, "_ATTEMPTS", 1)
    fake(monkeypatch, code)
    site = make(analysis_seconds=0.5 if "sleep" in code else 60.0)
    number = site.add(b"PAR1", 2.0)
    site.start()
    row = site.wait(number)[0]
    assert row["status"] == "failed"
    assert reason in row["reason"]


def test_a_large_meta_reaches_the_analysis(make, folder):
    site = make().start()
    hosts = {str(rank): [f"node-{rank}.example.org", "0"] for rank in range(10_000)}
    number = site.add(make_trace(folder, 0).read_bytes(), 1.0, {"hosts": hosts})
    [row] = site.wait(number)
    assert row["status"] == "done"
    assert "node-" in row["headline"]


def test_memory_of_an_analysis_is_bounded(make, monkeypatch):
    limit = (
        "from paceline.monitor.analysis_process import _limit\n"
        "_limit(200 << 20)\n"
        "bytearray(1 << 30)"
    )
    fake(monkeypatch, limit)
    site = make()
    number = site.add(b"PAR1", 2.0)
    site.start()
    assert "memory" in site.wait(number)[0]["reason"]


def test_the_newest_comes_first(make, monkeypatch):
    fake(monkeypatch, "import sys; print('this one', file=sys.stderr); sys.exit(2)")
    site = make()
    numbers = [site.add(b"PAR1 %d" % n, float(n)) for n in range(4)]
    site.start()
    ended = [row["finished_at"] for row in site.wait(*numbers)]
    assert ended == sorted(ended, reverse=True)


def test_a_job_removed_during_its_analysis_stays_removed(make, monkeypatch):
    fake(monkeypatch, SUMMARY)
    site = make()
    real = Analyses._analyse

    def removed_meanwhile(pool, row, folder):
        summary = real(pool, row, folder)
        with site.engine.begin() as connection:
            connection.execute(delete(tables.jobs))
        return summary

    monkeypatch.setattr(Analyses, "_analyse", removed_meanwhile)
    site.add(b"PAR1", 1.0)
    site.start()
    eventually(lambda: not jobs.list_jobs(site.engine, "*", -1, 10))
    eventually(lambda: not site.pool._busy)
    assert jobs.list_jobs(site.engine, "*", -1, 10) == []
    assert site.done == []


def test_what_the_end_cut_off_is_done_at_the_next_start(make, monkeypatch):
    fake(monkeypatch, "import time; time.sleep(60)")
    site = make()
    number = site.add(b"PAR1", 2.0)
    site.start()
    eventually(lambda: site.row(number)["status"] == "running")
    begun = time.monotonic()
    site.pool.stop()
    assert time.monotonic() - begun < 30  # it did not wait for the analysis
    assert (site.row(number)["status"], site.row(number)["attempts"]) == ("queued", 0)
    with site.engine.begin() as connection:  # and as kill -9 leaves it
        connection.exec_driver_sql("UPDATE sessions SET status = 'running'")
    monkeypatch.undo()
    fake(monkeypatch, "import sys; print('no', file=sys.stderr); sys.exit(2)")
    site.start()
    assert site.wait(number)[0]["reason"] == "no"


def test_a_full_disk_is_no_fault_of_the_trace(make, monkeypatch, folder):
    monkeypatch.setattr(analysis_pool, "_PAUSE_S", 0.05)
    real, fails = FileBlobs.take, [1]

    def take(self, path, key):
        if key.startswith("results/") and fails[0]:
            fails[0] -= 1
            raise OSError(28, "No space left on device")
        real(self, path, key)

    monkeypatch.setattr(FileBlobs, "take", take)
    site = make()
    number = site.add(make_trace(folder, 1).read_bytes(), 2.0)
    site.start()
    row = site.wait(number)[0]
    assert (row["status"], row["attempts"]) == ("done", 2)
    assert site.done == [(site.job.id, number)]


@pytest.mark.parametrize("name", ["start_next", "by_id", "learn", "before"])
def test_a_store_that_goes_away_at_any_moment_delays_and_no_more(make, monkeypatch, folder, name):
    monkeypatch.setattr(analysis_pool, "_PAUSE_S", 0.05)
    where = analysis_pool.jobs if name in ("by_id", "learn") else analysis_pool.sessions
    real, calls = getattr(where, name), []

    def away(*args, **more):
        found = real(*args, **more)  # done, but the answer is lost
        calls.append(found)
        if len(calls) <= 2 and (name != "start_next" or found is not None):
            raise OperationalError("", {}, Exception("gone"))
        return found

    fake(monkeypatch, SUMMARY)
    site = make()
    number = site.add(b"PAR1", 2.0)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, away)
        site.start()
        row = site.wait(number)[0]
    assert row["status"] == "done", row
    eventually(lambda: site.done == [(site.job.id, number)])  # told behind the row


def test_an_outcome_waits_for_a_store_that_is_away(make, monkeypatch):
    fake(monkeypatch, "import sys; print('no', file=sys.stderr); sys.exit(2)")
    real, calls = sessions.finish, []

    def finish(*args):
        calls.append(args)
        if len(calls) < 3:
            raise OSError("the store is away")
        return real(*args)

    monkeypatch.setattr(analysis_pool.sessions, "finish", finish)
    site = make()
    number = site.add(b"PAR1", 2.0)
    site.start()
    assert site.wait(number)[0]["status"] == "failed"
    assert len(calls) == 3


@requires.on_linux
def test_workers_end_with_the_service():
    """PR_SET_PDEATHSIG: a killed service leaves no analysis behind."""
    code = (
        "import subprocess, sys, time\n"
        "code = 'from paceline.monitor.analysis_process import _limit; _limit(1 << 40); '\n"
        "code += 'import time; print(1, flush=True); time.sleep(60)'\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()

    def is_gone():
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    eventually(is_gone)


def test_bus_forgets_no_one_and_keeps_up_with_none_too_slow():
    async def story():
        bus = Bus()
        mine, all_ = bus.subscribe("one"), bus.subscribe()

        def publish():
            for n in range(300):
                bus.publish("one", "job", {"n": n})
                bus.publish("two", "job", {"n": n})

        thread = threading.Thread(target=publish)
        thread.start()
        thread.join()
        await asyncio.sleep(0)
        found = [await mine.next(0.1) for _ in range(module.MAX_WAITING)]
        assert [m.data["n"] for m in found] == list(range(300 - module.MAX_WAITING, 300))
        assert {m.project for m in found} == {"one"}
        assert await mine.next(0.01) is None
        mine.close()
        bus.publish("one", "job", {"n": -1})
        assert await mine.next(0.01) is None
        bus.close()
        assert bus.closed
        while (last := await all_.next(1.0)) is not None:
            newest = last
        assert newest.data == {"n": -1}

    asyncio.run(story())
