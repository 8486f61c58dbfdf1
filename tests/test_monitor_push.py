"""From a job to the monitor: `paceline push`, the recorder that pushes by itself, the alerts."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import requires

requires.installed("starlette")

import paceline.record as record
from installed import PACKAGES
from monitor_durability import make_trace
from monitor_web import Listener, eventually, monitor
from paceline.cli.main import run
from paceline.client import Client
from paceline.errors import MonitorError
from paceline.monitor import pusher, recording_tail
from paceline.monitor.pusher import Target, follow_recording, job_name
from paceline.monitor.store import sessions
from paceline.record import push as recorder_push
from paceline.sources import load, parquet
from paceline.synth import SlowWorker, SynthSpec, synthesize
from recordings import record_trace

EPILOG = Path(__file__).parents[1] / "deploy" / "slurm" / "paceline-epilog.sh"

JOB = """\
import sys, time
import paceline.record as record
with record.start(sys.argv[1], every=2, rank=0, world=1, dp=1, pp=1, flush_s=0.05) as recorder:
    for number in range(20):
        with recorder.step(number):
            with recorder.op("forward-compute", microbatch=0):
                time.sleep(0.002)
            with recorder.op("backward-compute", microbatch=0):
                time.sleep(0.004)
            with recorder.op("grads-reduce-scatter"):
                pass
print("trained")
"""


@pytest.fixture(autouse=True)
def no_monitor(monkeypatch):
    for name in ("PACELINE_MONITOR", "PACELINE_TOKEN", "PACELINE_JOB"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with monitor(tmp_path_factory.mktemp("monitor")) as site:
        yield site


@pytest.fixture
def url(site):
    return f"http://127.0.0.1:{site.port}"


@pytest.fixture
def client(site, url):
    return Client(url, site.token(), patience_s=20.0)


@pytest.fixture
def said(capsys, site, monkeypatch):
    """Runs a command with the token: exit code, output, errors."""
    monkeypatch.setenv("PACELINE_TOKEN", site.token())

    def said(*args):
        code = run([str(arg) for arg in args])
        out = capsys.readouterr()
        return code, out.out, out.err

    return said


def spec(**more):
    slow = (SlowWorker(0, 1, 1.3),)
    return SynthSpec(
        **{"dp": 2, "pp": 2, "microbatches": 4, "steps": 3, "slow_workers": slow, **more}
    )


def hours_in(session, gpus):
    """GPU-hours that the session's own steps lose."""
    steps = session["last_step"] - session["first_step"] + 1
    return session["waste"] * gpus * steps * session["step_s"] / 3600


class TestCommand:
    def test_a_trace_is_pushed_once_and_waited_for(self, said, client, url, tmp_path):
        path = make_trace(tmp_path, 0)
        args = ("push", path, "--to", url, "--name", "trace-1", "--label", "team=vision")
        code, out, err = said(*args, "--wait")
        assert (code, err) == (0, "")
        assert "pushed 1 session of trace-1" in out
        assert "This job wastes" in out
        code, out, _ = said(*args, "--json")
        assert code == 0
        [number] = json.loads(out)["sessions"]
        assert [row["id"] for row in client.sessions("trace-1")] == [number]
        assert client.job("trace-1")["labels"] == {"team": "vision"}

    def test_a_recording_is_pushed_with_its_step_times(self, said, client, url, tmp_path):
        record_trace(synthesize(spec()), tmp_path / "job-17")
        code, out, _ = said("push", tmp_path / "job-17", "--to", url)
        assert (code, out) == (
            0,
            f"pushed 1 session and 12 step times of job-17: {url}/jobs/job-17\n",
        )
        assert said("push", tmp_path / "job-17", "--to", url)[0] == 0  # counts once
        eventually(lambda: client.steps("job-17")["step"] == [0, 1, 2])
        assert client.steps("job-17")["samples"] == [4, 4, 4]
        [row] = client.sessions("job-17")
        found = client.wait(row["id"])
        assert (found["status"], found["first_step"], found["last_step"]) == ("done", 0, 2)
        assert client.job("job-17")["degrees"]["dp_size"] == 2
        # The recording may be over: the job does not become silent.
        assert client.job("job-17")["status"] == "new"
        assert said("push", tmp_path / "job-17", "--to", url, "--end")[0] == 0
        assert client.job("job-17")["status"] == "ended"
        assert found["gpu_hours_lost"] == pytest.approx(hours_in(found, 4))

    def test_a_long_recording_is_pushed_to_its_end(self, said, url, tmp_path, monkeypatch):
        monkeypatch.setattr("paceline.monitor.recording_tail._READ_BYTES", 4000)
        record_trace(synthesize(spec(steps=30)), tmp_path / "long")
        code, out, _ = said("push", tmp_path / "long", "--to", url)
        assert code == 0
        assert out.startswith("pushed 1 session and 120 step times of long")

    def test_what_cannot_be_pushed_is_said_in_a_line(
        self, said, client, url, tmp_path, monkeypatch
    ):
        (tmp_path / "text").write_text("no trace")
        (tmp_path / "ghost.parquet").write_text("no trace")
        whole = make_trace(tmp_path, 1).read_bytes()
        (tmp_path / "half.parquet").write_bytes(whole[: len(whole) // 2])
        (tmp_path / "empty").mkdir()
        for args, message in (
            ((tmp_path / "text", "--to", url), "no parquet trace"),
            ((tmp_path / "ghost.parquet", "--to", url), "no parquet file, or an incomplete one"),
            ((tmp_path / "half.parquet", "--to", url), "no parquet file, or an incomplete one"),
            ((tmp_path / "nothing", "--to", url), "does not exist"),
            ((tmp_path / "empty", "--to", url), "no recording yet"),
            ((tmp_path / "empty",), "give --to"),
            ((tmp_path / "empty", "--to", "host:1"), "no address of a monitor"),
            ((tmp_path / "empty", "--to", url, "--session-steps", "0"), "must be 1 or more"),
            ((tmp_path / "empty", "--to", url, "--job", tmp_path / "text"), "knows its job"),
            ((tmp_path / "empty", "--to", url, "--end", "--follow"), "for a job that is over"),
        ):
            code, _, err = said("push", *args)
            assert (code, err.count("\n")) == (2, 1), err
            assert message in err
        assert not {"ghost", "half"} & {job["name"] for job in client.jobs()}
        monkeypatch.setenv("PACELINE_TOKEN", "pcl_wrong")
        code, _, err = said("push", make_trace(tmp_path, 0), "--to", url)
        assert code == 2
        assert "the token is not known; set PACELINE_TOKEN to one that is good" in err
        assert "pcl_wrong" not in err
        monkeypatch.delenv("PACELINE_TOKEN")
        code, _, err = said("push", make_trace(tmp_path, 0), "--to", url)
        assert code == 2
        assert "a token is needed; set PACELINE_TOKEN (paceline admin token create" in err


class TestFollow:
    def test_a_growing_recording_is_pushed_as_it_grows(self, client, tmp_path, monkeypatch):
        monkeypatch.setattr(pusher, "LOOK_S", 0.02)
        monkeypatch.setattr(pusher, "LAST_S", 0.02)
        folder, over, found = tmp_path / "run", threading.Event(), []
        target = Target(client, "grows")
        thread = threading.Thread(
            target=lambda: found.append(
                follow_recording(
                    target, folder, lambda _: None, session_steps=2, stopped=over.is_set
                )
            )
        )
        thread.start()
        try:
            record_trace(synthesize(spec(steps=5)), folder)
            eventually(lambda: len(client.steps("grows")["step"]) == 5 if known(client) else False)
            record_trace(synthesize(spec(steps=4, seed=1)), folder, session="two")  # again from 0
            eventually(lambda: client.steps("grows")["step"] == [*range(5), *range(4)])
            assert client.steps("grows")["lost"] == [True] * 5 + [False] * 4
        finally:
            over.set()
            thread.join(60)
        assert found[0].samples == 4 * 9
        rows = [client.wait(row["id"]) for row in client.sessions("grows")]
        assert {row["status"] for row in rows} == {"done"}
        assert sorted((row["first_step"], row["last_step"]) for row in rows) == [(0, 3), (0, 4)]
        assert client.job("grows")["status"] == "ended"

    def test_a_service_that_is_away_is_waited_for(self, site, tmp_path, monkeypatch):
        monkeypatch.setattr(pusher, "LOOK_S", 0.02)
        monkeypatch.setattr(pusher, "LAST_S", 0.02)
        record_trace(synthesize(spec()), tmp_path / "run")
        calls, over, said = [], threading.Event(), []

        class Away(Client):
            def _json(self, method, path, body=None):
                calls.append(path)
                if len(calls) < 12:
                    raise MonitorError("away")
                if path.endswith("/end"):
                    return {}
                over.set()
                return super()._json(method, path, body)

        target = Target(Away(f"http://127.0.0.1:{site.port}", site.token()), "away")
        done = follow_recording(target, tmp_path / "run", said.append, stopped=over.is_set)
        assert (len(done.sessions), done.samples) == (1, 12)
        assert said == ["away"]  # not every time

    def test_names_are_made_to_fit(self):
        assert job_name("my run/17 ä") == "my-run-17"
        assert job_name("../..") == "job"
        assert len(job_name("x" * 300)) == 100


def timed_recording(folder, steps, every):
    """One rank that waits 3 ms for its data before each step."""
    with record.start(folder, every=every, rank=0, world=1, dp=1, pp=1, flush_s=0.05) as recorder:
        recorder.measures_data = True
        for number in range(steps):
            recorder.data_ns += 3_000_000 + number
            with recorder.step(number):
                for kind in ("forward-compute", "backward-compute"):
                    with recorder.op(kind, microbatch=0):
                        time.sleep(0.0005)
                with recorder.op("grads-reduce-scatter"):
                    pass


def test_a_session_keeps_the_waits_for_data_and_the_ends_of_the_steps_before(tmp_path, monkeypatch):
    """Of all profiled steps, of more than one session, and behind many others."""
    monkeypatch.setattr(recording_tail, "_KEPT_TIMES", 3)
    timed_recording(tmp_path / "run", 48, every=5)
    whole = load(tmp_path / "run")
    tail = recording_tail.RecordingTail(tmp_path / "run")
    while tail.look():
        pass
    profiled = tail.ready()
    assert len(profiled) > 6
    assert len(tail._files["rank-00000-0.blocks"].spans) < 48
    for steps in (profiled[:4], profiled[4:]):
        tail.cut(steps, tmp_path / f"part-{steps[0]}")
        part = load(tmp_path / f"part-{steps[0]}")
        parquet.write(part, tmp_path / f"trace-{steps[0]}.parquet")
        of_whole = np.isin(whole.steps, steps)
        for trace in (part, load(tmp_path / f"trace-{steps[0]}.parquet")):
            assert trace.steps.tolist() == steps
            assert trace.data_wait_s == pytest.approx(whole.data_wait_s[of_whole], abs=1e-6)
            ends = trace.previous_end_s - trace.step_start_s[:, None, None]
            whole_ends = (whole.previous_end_s - whole.step_start_s[:, None, None])[of_whole]
            assert np.isfinite(whole_ends[1:]).all()
            assert ends == pytest.approx(whole_ends, abs=2e-3, nan_ok=True)
        tail.forget(max(steps))
    assert not tail.ready()


def known(client):
    return any(job["name"] == "grows" for job in client.jobs())


class TestRecorder:
    def train(self, folder, **env):
        done = subprocess.run(
            [sys.executable, "-c", JOB, str(folder)],
            env={**os.environ, "PYTHONPATH": PACKAGES, **env},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
        return done

    def test_it_pushes_by_itself(self, site, url, client, tmp_path):
        env = {"PACELINE_MONITOR": url, "PACELINE_TOKEN": site.token("push"), "PACELINE_JOB": "own"}
        self.train(tmp_path / "run", **env)
        eventually(
            lambda: any(j["name"] == "own" and j["status"] == "ended" for j in client.jobs()), 60
        )
        assert client.steps("own")["step"] == list(range(20))
        [row] = client.sessions("own")
        found = client.wait(row["id"])
        assert (found["status"], found["first_step"], found["last_step"]) == ("done", 0, 19)
        log = (tmp_path / "run" / "push.log").read_text()
        assert "pushed 1 session and 20 step times of own" in log
        assert env["PACELINE_TOKEN"] not in log

    def test_what_slurm_says_is_with_the_job_and_its_epilog_ends_it(
        self, site, url, client, tmp_path
    ):
        env = {"PACELINE_MONITOR": url, "PACELINE_TOKEN": site.token("push"), "PACELINE_JOB": "sl"}
        slurm = {"SLURM_JOB_ID": "77", "SLURM_JOB_PARTITION": "gold", "SLURMD_NODENAME": "gpu-17"}
        slurm |= {"SLURM_JOB_USER": "alice", "SLURM_LOCALID": "0", "SLURM_CLUSTER_NAME": "here"}
        self.train(tmp_path / "run", **env, **slurm)
        eventually(lambda: [j["status"] for j in client.jobs() if j["name"] == "sl"] == ["ended"])
        (job,) = (j for j in client.jobs() if j["name"] == "sl")
        assert job["labels"] == {
            "slurm_job": "77", "queue": "gold", "user": "alice", "cluster": "here",
        }  # fmt: skip
        [row] = client.sessions("sl")
        meta = sessions.by_id(site.service.engine, row["id"], "*")["meta"]
        assert meta["hosts"] == {"0": ["gpu-17", "local rank 0"]}
        client.wait(row["id"])
        others = {"72": {"slurm_job": "770"}, "73": {"slurm_job": "77", "cluster": "other"}}
        client.push_steps("sl", [100], [0], [0.1], source="again", world=1)  # runs once more
        for name, labels in others.items():
            client.register(name, gpus=1, labels=labels)
        eventually(lambda: [j["status"] for j in client.jobs() if j["name"] == "sl"] == ["running"])
        if not shutil.which("curl"):
            pytest.skip("no curl: apt-get install curl")
        conf = tmp_path / "paceline.conf"
        conf.write_text(f"PACELINE_MONITOR={url}\nPACELINE_TOKEN={site.token('push')}\n")
        given = {"PACELINE_CONF": str(conf), "SLURM_JOB_ID": "77", "SLURM_CLUSTER_NAME": "here"}
        assert subprocess.run(["sh", EPILOG], env=given, timeout=60, check=False).returncode == 0
        statuses = {job["name"]: job["status"] for job in client.jobs()}
        assert statuses["sl"] == "ended"
        assert all(statuses[name] != "ended" for name in others)

    def test_labels_end_jobs_of_the_own_project_only(self, site):
        for project in ("mine", "theirs"):
            body = {"name": "x", "labels": {"slurm_job": "5"}}
            path = f"/api/v1/jobs?project={project}"
            assert site.ask("POST", path, token=site.token(), body=body).status == 200
        mine, body = site.token("push", "mine"), {"labels": {"slurm_job": "5"}}
        assert site.ask("POST", "/api/v1/ended", token=mine, body=body).json == {"ended": ["x"]}
        assert site.ask("POST", "/api/v1/ended", token=mine, body=body).json == {"ended": []}
        path = "/api/v1/ended?project=theirs"
        assert site.ask("POST", path, token=mine, body=body).status == 404
        for bad in ({}, {"labels": {}}, {"labels": {"a": 1}}, {"labels": {'a"b': "c"}}):
            assert site.ask("POST", "/api/v1/ended", token=mine, body=bad).status == 400
        rows = site.ask("GET", "/api/v1/jobs?project=theirs", token=site.token()).json["jobs"]
        assert [row["status"] for row in rows] == ["new"]

    @pytest.mark.parametrize("address", ["http://127.0.0.1:1", "nonsense", "http://[", "\u00e4"])
    def test_training_does_not_notice_a_monitor_that_is_not_there(self, tmp_path, address):
        done = self.train(tmp_path / "run", PACELINE_MONITOR=address)
        assert done.stderr == ""
        assert len(list((tmp_path / "run").glob("rank-*.blocks"))) == 1

    def test_only_rank_0_starts_it_and_only_once(self, tmp_path, monkeypatch):
        started = []

        class Child:
            def __init__(self, command, **more):
                started.append((command, more["env"]))

            def poll(self):
                return None

        monkeypatch.setattr(recorder_push.subprocess, "Popen", Child)
        monkeypatch.setattr(recorder_push, "_children", {})
        env = {
            "PACELINE_MONITOR": "http://u",
            "PACELINE_TOKEN": "pcl_x",
            "PACELINE_SESSION_STEPS": "7",
        }
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        for rank in (1, 0, 0):
            with record.start(tmp_path, rank=rank, world=2, dp=2, pp=1):
                pass
        [(command, given)] = started
        assert "pcl_x" not in " ".join(command)
        assert "http://u" not in " ".join(command)
        assert command[-2:] == ["--session-steps", "7"]
        assert given["PACELINE_TOKEN"] == "pcl_x"

    def test_a_process_that_cannot_be_started_is_a_line_in_the_log(
        self, tmp_path, monkeypatch, caplog
    ):
        def fail(*_, **__):
            raise OSError("no more processes")

        monkeypatch.setattr(recorder_push.subprocess, "Popen", fail)
        monkeypatch.setenv("PACELINE_MONITOR", "http://u")
        with record.start(tmp_path, rank=0, world=1, dp=1, pp=1) as recorder:
            assert recorder.is_on
        assert "not pushed to the monitor: no more processes" in caplog.text


def test_the_demos_fail_slow_is_one_alert_and_the_relief_ends_it(tmp_path):
    """The step times of `paceline demo --live`: slowed, half mitigated, relieved."""
    hook = Listener()
    rules = tmp_path / "alerts.yaml"
    rules.write_text(
        "group_wait_s: 0\nrules:\n  fail-slow: {hold_s: 2, lost_s: 0}\n"
        f"channels:\n  demo: {{type: webhook, url: '{hook.url}', rules: [fail-slow]}}\n"
    )
    rng = np.random.default_rng(0)
    with monitor(tmp_path / "data", alerts=str(rules), base_url="http://here") as site:
        client = Client(f"http://127.0.0.1:{site.port}", site.token())
        client.register("demo", gpus=4)
        parts = ((1.0, 60), (1.8, 10), (1.05, 12), (1.25, 30), (1.0, 40))
        factors = np.repeat([factor for factor, _ in parts], [n for _, n in parts])
        times = 0.25 * factors[:, None] * (1 + 0.01 * rng.normal(size=(len(factors), 4)))
        steps, ranks = np.repeat(np.arange(len(factors)), 4), np.tile(np.arange(4), len(factors))
        columns = [column.tolist() for column in (steps, ranks, times.ravel())]
        healthy, slow = 4 * parts[0][1], 4 * (parts[0][1] + parts[1][1])

        def push(begin, end):
            some = [column[begin:end] for column in columns]
            client.push_steps("demo", *some, source="s/0", world=4)

        push(0, healthy)  # the job runs before it is slow
        ask = ("GET", "/api/v1/jobs/demo")
        eventually(lambda: site.ask(*ask, token=site.token()).json["status"] == "running")
        push(healthy, slow)  # a service that is busy may judge all events after the last relief
        hook.wait(1)
        push(slow, len(steps))
        told = hook.wait(2)
        kinds = [event["kind"] for event in client.events("demo")][::-1]
        # Half the ranks are 5% above health for a while: partly relieved, then worse.
        assert kinds == [*("onset", "partial-relief", "relief", "worsening", "onset", "relief")]
        time.sleep(0.5)
        assert [one["status"] for one in told] == ["firing", "resolved"]
        assert len(hook.received) == 2
        assert "Fail-slow" in told[0]["alerts"][0]["headline"]
        assert told[0]["alerts"][0]["url"].startswith("http://here/jobs/demo")
    hook.close()


def test_the_demos_monitor_shows_the_job(tmp_path):
    requires.installed("torch")
    from paceline.demo.processes import Shape, Training
    from paceline.demo.watched import SESSION_STEPS, Watched

    with Watched("", tmp_path / "monitor") as watched:
        env = {**watched.environment, "PYTHONPATH": PACKAGES}
        with Training(tmp_path / "job", Shape(1, 1, 2, 0.001, 0.002), env) as job:
            job.wait_for(SESSION_STEPS + 5)
            job.stop()
            steps = job.steps_done()
        result = watched.result(tmp_path / "job")
        assert [s.last_step for s in result.sessions][-1] == steps - 1
        assert all(0 < s.seen_after_s <= s.analysed_after_s for s in result.sessions)
        # The job's row follows its steps with every tick of the detectors.
        eventually(lambda: watched.client.job(watched.name)["last_step"] == steps - 1)
        assert result.url == watched.url


@requires.on_linux
def test_a_demo_that_is_killed_leaves_no_monitor_behind(tmp_path):
    requires.installed("torch")
    folder = tmp_path / "run"
    demo = subprocess.Popen(
        [sys.executable, "-m", "paceline", "demo", "--live", "--monitor", "-o", str(folder)],
        env={**os.environ, "PYTHONPATH": PACKAGES},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def running():
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and str(folder) in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
        return set(found) - {demo.pid}

    try:
        eventually(running)
    finally:
        demo.kill()
        demo.wait()
    eventually(lambda: not running())


def test_a_demo_with_a_monitor_that_is_none_says_so(said, url, site, monkeypatch):
    requires.installed("torch")
    code, _, err = said("demo", "--live", "--monitor", "nonsense")
    assert (code, "no address of a monitor" in err) == (2, True)
    monkeypatch.setenv("PACELINE_TOKEN", site.token("push"))
    code, _, err = said("demo", "--live", "--monitor", url)
    assert (code, "read is needed" in err) == (2, True)
