"""Lines of the pages that need more than a file: a service, a running job, another tool's files.

Each scene makes what its lines name, in a folder of its own, and runs the lines as the page has
them. Only absolute folders, and the numbers of processes, stand for those of the test. A line that
goes on until Ctrl-C runs in a process of its own, which is ended so once it has said what it must.
:data:`NOT_RUN` names what no scene can run, and why; ``test_docs_commands.py`` holds that every
line of every page is of one kind.
"""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

import kineto_profiles
import nsight_files
import ports
import ras_files
import requires
import rocpd_files
import test_nccl_network
import test_sources_chakra
import xpu_timer_files
from call_logs import of_trace
from doc_pages import DOCS, ROOT, blocks, command_lines
from fleet_jobs import make_fleet
from import_files import ProfileWriter, dump, load, timelines
from installed import PACKAGES
from jobs import Spec, make_rows
from otlp_spans import WITH_SPANS, requests_of
from paceline.cli import nccl
from paceline.cli.main import run
from paceline.hosts import HostStore
from paceline.hosts.result import Result
from paceline.sources import parquet
from paceline.synth import SlowWorker, SynthSpec, synthesize
from plugin_files import rank_file
from recordings import record_trace
from test_cli_mitigate import SCENARIO
from test_sources_nccl_metrics import four
from test_telemetry import range_json, smi
from test_timer_logs import iteration, min_max
from test_watch import Job as WatchedJob

own_port = ports.own_port

#: Lines that no scene runs: page and pattern of the line -> why, and the test of the like of it.
NOT_RUN = {
    ("demo", "--live"): "two minutes of training beside an idle machine: test_demo_live.py",
    ("fleet", "--engine ray"): "a Ray cluster: test_fleet_ray.py",
    ("fleet", "s3://"): "a bucket: test_fleet_buckets.py",
    ("operate", "^paceline (serve|work)"): "PostgreSQL, S3 and Ray: test_monitor_instances.py",
    ("monitor", "--store postgresql:"): "a PostgreSQL of this name: test_cli_admin.py",
    ("nccl", "--recording|--profiles"): "a job of torch with the plugin: test_demo_live.py, real/",
    ("networks", "--layers .*v100|v100.profile"): "a V100: test_networks_compute.py",
}

#: Scene -> page and pattern of the lines that it runs.
SCENES = {
    "alerts": [("alerts", "^paceline alerts")],
    "serve": [("monitor", "^paceline serve$")],
    "tokens": [("monitor", "admin token"), ("sign-on", "admin (token|account)")],
    "backup": [("monitor", "^paceline admin (backup|restore /)")],
    "push": [("monitor", "^paceline push")],
    "otlp": [("otlp", "")],
    "watch": [("watch", "watch runs/"), ("watch|how-to/a-gpu-is-slow", r"watch \S+$")],
    "plugin": [("nccl", r"detect|watch|path|waits \S+$|record on")],
    "nics": [("nccl", "--nccl-log")],
    "pause": [("pause|nccl", "nccl pause"), ("watch", "--pause")],
    "stream": [("detect|mitigate|watch", r"detect - |detect -$|--follow|train\.log --json")],
    "calls": [("detect", r"--collectives (nccl\.parquet|/var|ras-1|window)|--collectives window")],
    "who": [("detect", r"--trace .*meta\.yaml")],
    "running": [("detect", "--running")],
    "telemetry": [("telemetry|how-to/a-gpu-is-slow", "telemetry")],
    "ranks": [("import", "^paceline ranks")],
    "import": [("import", "^paceline (import|times|analyze)")],
    "recorded": [("tutorial|how-to/.*", "(record|analyze) .*/shared/")],
    "trace parts": [("trace-format", r"traces/ --steps|rank-\*")],
    "validate": [("validate", "^paceline validate --world")],
    "torchrun": [("how-to/a-gpu-is-slow", "^paceline validate"), ("validate", "--both-ways")],
    "hosts": [("validate|how-to/a-gpu-is-slow", "^paceline hosts")],
    "fleet": [("fleet|fleet-figures", "--manifest|--report")],
    "goodput": [("goodput", "--totals")],
    "mitigate": [("mitigate", "--simulate")],
    "profile": [("profile", "")],
    "optimal": [("plan", "^paceline optimal")],
    "plan page": [("plan", "--serve")],
    "study": [("queue", "--study")],
    "elastic": [("how-to/my-queue", "elasticflow")],
    "machine": [("install|tutorial", "^paceline (doctor|completion)")],
}

#: A folder of somebody's at the root of the file system.
ROOTED = re.compile(r"(?<![\w.:/])/(?=(?:shared|var|root|srv|etc|backups)/)")


def page_name(path: Path) -> str:
    """``how-to/my-queue``."""
    return path.relative_to(DOCS).with_suffix("").as_posix()


def _matches(page: str, line: str, pages: str, pattern: str) -> bool:
    return bool(re.fullmatch(pages, page) and re.search(pattern, line))


def kinds_of(page: str, line: str) -> list[str]:
    """The scenes that run a line, and the reason not to."""
    scenes = [
        name for name, kept in SCENES.items() if any(_matches(page, line, *one) for one in kept)
    ]
    return scenes + [why for one, why in NOT_RUN.items() if _matches(page, line, *one)]


def lines_of(scene: str) -> list[str]:
    """Lines of the pages that the scene runs."""
    return [
        line
        for path in sorted(DOCS.rglob("*.md"))
        for line in dict.fromkeys(command_lines(path.read_text(encoding="utf-8")))
        if scene in kinds_of(page_name(path), line)
    ]


class Stage:
    """A folder to run lines in."""

    def __init__(self, folder: Path, capsys, monkeypatch) -> None:
        self.folder, self.capsys, self.monkeypatch = folder, capsys, monkeypatch
        monkeypatch.chdir(folder)

    def place(self, name: str) -> Path:
        """Where a path of a page lies here."""
        path = Path(ROOTED.sub(f"{self.folder}/", name))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def words(self, line: str) -> list[str]:
        """Of the line as a shell would give them, behind ``paceline``."""
        found = []
        for word in shlex.split(ROOTED.sub(f"{self.folder}/", line))[1:]:
            root = Path("/") if word[0] == "/" else self.folder
            files = sorted(root.glob(word.lstrip("/"))) if "*" in word else []
            found += map(str, files) if files else [word]
        return found

    def run(self, line: str, stdin: str = "") -> str:
        """What it prints; it must succeed."""
        self.capsys.readouterr()
        self.monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        status = run(self.words(line))
        said = self.capsys.readouterr()
        assert status == 0, f"{line}: exit code {status}\n{said.err[-2000:]}"
        return said.out

    @contextlib.contextmanager
    def started(self, line: str, *before: str, until: str):
        """A process of its own, until it has said this; Ctrl-C ends it well."""
        program = before or (sys.executable, "-m", "paceline")
        with (self.folder / "said.txt").open("w+") as said:
            process = subprocess.Popen(
                [*program, *self.words(line)],
                env=os.environ | {"PYTHONPATH": PACKAGES, "PYTHONUNBUFFERED": "1"},
                stdout=said,
                stderr=subprocess.STDOUT,
            )

            def text() -> str:
                said.seek(0)
                return said.read()

            try:
                end = time.monotonic() + 240
                while until not in text():
                    assert process.poll() is None, f"{line}: ended early\n{text()}"
                    assert time.monotonic() < end, f"{line}: never said {until!r}\n{text()}"
                    time.sleep(0.1)
                yield text
                process.send_signal(signal.SIGINT)
                assert process.wait(120) in (0, 130), text()
            finally:
                process.kill()
                process.wait()


@pytest.fixture
def stage(tmp_path, capsys, monkeypatch) -> Stage:
    return Stage(tmp_path, capsys, monkeypatch)


def test_every_scene_has_lines_and_a_test():
    assert [name for name in SCENES if not lines_of(name)] == []
    tests = {name for name in globals() if name.startswith("test_")}
    assert {f"test_{name.replace(' ', '_')}" for name in SCENES} <= tests


# The monitor.


def monitor_extra() -> None:
    requires.installed("starlette", "uvicorn", "sqlalchemy", "msgspec", "prometheus_client")


def test_alerts(stage):
    monitor_extra()
    from monitor_alerts import fire
    from monitor_web import Listener, monitor
    from paceline.monitor.store import jobs
    from paceline.monitor.store.tables import alerts

    hook = Listener()
    (stage.folder / "alerts.yaml").write_text(
        f"channels: {{hook: {{type: webhook, url: '{hook.url}'}}}}"
    )
    (stage.folder / "monitor.yaml").write_text("alerts: alerts.yaml\ndata: data\n")
    with monitor(stage.folder / "data") as site:
        job = jobs.register(site.service.engine, "llm", "job-1", time.time())
        now = time.time()
        fields = {"fingerprint": "f", "rule": "slow-job", "project": "llm", "job_id": job.id}
        fields |= {"importance": "warning", "labels": {}, "headline": "job-1: slow"}
        fields |= {"status": "firing", "started_at": now, "updated_at": now}
        number = fire(site.service.engine, fields, now)
        with site.service.engine.begin() as connection:
            connection.execute(alerts.update().where(alerts.c.id == number).values(id=17))
    for line in lines_of("alerts"):
        for _ in range(3 if "--comment" in line and "silence" in line else 1):  # --end 3 follows
            said = stage.run(line)
        if "list" in line:
            assert "job-1" in said
    hook.close()
    assert len(hook.received) == 1


def test_serve(stage, own_port):
    monitor_extra()
    own_port(8765)
    for line in lines_of("serve"):
        with stage.started(line, until="pcl_") as text:
            assert "listening on http://127.0.0.1:8765, data in paceline-data" in text()


def test_tokens(stage):
    monitor_extra()
    from monitor_web import monitor

    with monitor(stage.folder / "paceline-data"):
        pass
    said = ""
    for line in lines_of("tokens"):
        for _ in range(3 if "token create" in line else 1):  # revoke 3 follows
            said += stage.run(line)
    assert said.count("pcl_") == 7
    assert "job-17" in said


def test_backup(stage):
    monitor_extra()
    from monitor_web import monitor

    config = stage.place("/etc/paceline/monitor.yaml")
    config.write_text(f"data: {stage.folder / 'data'}\n")
    stage.place("/backups/x")
    stage.place("/srv/new")
    with monitor(stage.folder / "data"):
        for line in lines_of("backup"):
            stage.run(line)
    assert (stage.place("/srv/new") / "paceline.db").is_file()


def test_push(stage, own_port):
    monitor_extra()
    from monitor_lab import Server

    own_port(8765)
    record_trace(
        synthesize(SynthSpec(dp=2, pp=2, microbatches=4, steps=6)), stage.folder / "runs" / "job-17"
    )
    assert run(["synth", "--dp", "2", "--pp", "2", "-o", "trace.parquet"]) == 0
    (stage.folder / "meta.yaml").write_text("dp_size: 2\npp_size: 2\n")
    server = Server(stage.folder / "data")
    server.port, server.url = 8765, "http://127.0.0.1:8765"
    with server:
        stage.monkeypatch.setenv("PACELINE_TOKEN", server.token)
        for line in lines_of("push"):
            stage.run(line)
        asked = urllib.request.Request(
            f"{server.url}/api/v1/jobs", headers={"Authorization": f"Bearer {server.token}"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            names = {job["name"] for job in json.load(answer)["jobs"]}
        assert names == {"job-17", "trace"}


def test_otlp(stage, own_port):
    requires.installed("opentelemetry.proto")
    own_port(4318)
    receive, *others = lines_of("otlp")
    rows = make_rows(Spec(pp=2, microbatches=(3, 3), steps=3, **WITH_SPANS))
    with stage.started(receive, until="listening on"):
        for body in requests_of(rows):
            request = urllib.request.Request(
                "http://127.0.0.1:4318/v1/traces",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            assert urllib.request.urlopen(request, timeout=60).status == 200
    for line in others:
        stage.run(line)
    assert (stage.folder / "trace.parquet").is_file()


# A job that runs.


def test_watch(stage):
    (stage.folder / "nccl-logs").mkdir()
    calls_with_a_slow_rank(stage.folder / "nccl-logs" / "nccl.parquet")
    for line in lines_of("watch"):
        folder = Path(stage.words(line)[1])
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.parent.mkdir(parents=True)
        job = WatchedJob(folder)
        job.run(90)
        if "--once" in line:
            assert "slower since step 70" in stage.run(line)
            continue
        with stage.started(line, until="slower since step 70"):
            pass
    assert (stage.folder / "events.jsonl").is_file()


def plugin_job(folder: Path) -> None:
    """A job of four ranks with the NCCL plugin; rank 2 is late from its first step on."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(4):
        rank_file(folder, rank, late_ns=3_000_000 if rank == 2 else 0)


def test_plugin(stage):
    (stage.folder / nccl.PLUGIN).touch()
    stage.monkeypatch.setattr(nccl, "NATIVE", stage.folder)
    for name in ("/shared/runs/job-17", "runs/job-17"):
        plugin_job(stage.place(name))
    for line in lines_of("plugin"):
        if " watch " in line:
            with stage.started(line, until="watching"):
                pass
            continue
        said = stage.run(line)
        if "waits" in line:
            assert "rank 2" in said
    assert json.loads((stage.folder / "runs/job-17/control.json").read_text())["every"] == 50


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    from pause_stress import build

    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    return build(tmp_path_factory.mktemp("native"), compiler)


def test_pause(stage, built):
    """Eight processes run the plugin; ``srun`` is a script that starts what it is given here."""
    requires.installed("torch")
    from pause_stress import RANKS, Job

    srun = stage.folder / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "" "$@"\n')
    srun.chmod(0o755)
    stage.monkeypatch.setenv("PATH", f"{srun.parent}{os.pathsep}{os.environ['PATH']}")
    stage.monkeypatch.setenv("PYTHONPATH", PACKAGES)
    for name in ("/shared/runs/job-17", "runs/job-17"):
        job = Job(built, stage.place(name))
        try:
            while len(list(job.folder.glob("pause/*.slot"))) < RANKS:
                time.sleep(0.02)
            for line in lines_of("pause"):
                if ("/shared/" in line) != name.startswith("/"):
                    continue
                if " watch " in line:
                    with stage.started(line, until="watching"):
                        pass
                    continue
                assert "left (go)" in stage.run(line)
        finally:
            job.end()


network_built = test_nccl_network.built


def test_nics(stage, network_built):
    """A harness plays a job whose rank 5 sends slowly; NCCL's log names its NIC."""
    folder, log = stage.place("runs/job-17"), stage.place("/shared/logs/nccl.1")
    folder.mkdir()
    test_nccl_network.write_log(test_nccl_network.play(network_built, folder, "send", 5), log)
    for line in lines_of("nics"):
        assert "IB/1 of node1, send: slow" in stage.run(line)


# Logs and other tools' files.


def calls_with_a_slow_rank(path: Path) -> None:
    """60 healthy steps, then 60 with a slow worker."""
    healthy = SynthSpec(dp=4, pp=2, microbatches=4, steps=60)
    slow = replace(healthy, slow_workers=(SlowWorker(3, 1, 2),))
    tables, begin_s = [], 0.0
    for trace in (synthesize(healthy), synthesize(slow)):
        log = of_trace(trace)
        names = np.array(log.ops)[log.op], np.array(log.communicators)[log.communicator]
        columns = {"rank": log.rank, "time_s": log.time_s + begin_s, "op": names[0]}
        columns |= {"size": log.size, "communicator": names[1], "duration_s": log.duration_s}
        tables.append(pa.table(columns))
        begin_s += float(trace.traced_step_s().sum())
    pq.write_table(pa.concat_tables(tables), path)


def step_lines(n: int = 400, ranks: int = 1) -> str:
    """JSON lines of steps that become 1.4x slow in their middle."""
    noise = 1 + 0.003 * np.random.default_rng(5).standard_normal((n, ranks))
    return "".join(
        json.dumps({"step": step, "rank": rank, "duration_s": s * (1.4 if step >= n // 2 else 1)})
        + "\n"
        for step, row in enumerate(noise.tolist())
        for rank, s in enumerate(row)
    )


def test_stream(stage):
    parquet.write(
        synthesize(SynthSpec(dp=16, pp=1, microbatches=4, steps=4)), stage.folder / "trace.parquet"
    )
    shutil.copy(ROOT / "examples" / "train.log", stage.folder)
    for line in lines_of("stream"):
        ranks = int(match[1]) if (match := re.search(r"--ranks (\d+)", line)) else 1
        said = stage.run(line, step_lines(ranks=ranks))
        if "detect" in line:
            assert "onset" in said or "slower since step" in said


def test_calls(stage):
    calls_with_a_slow_rank(stage.folder / "nccl.parquet")
    shutil.copy(stage.folder / "nccl.parquet", stage.folder / "window.parquet")
    healthy = SynthSpec(dp=4, pp=2, microbatches=4, steps=60)
    slow = replace(healthy, slow_workers=(SlowWorker(3, 1, 2),))
    seconds = [s for spec in (healthy, slow) for s in synthesize(spec).traced_step_s().tolist()]
    (stage.folder / "iterations.csv").write_text(
        "step,duration_s\n" + "".join(f"{step},{s}\n" for step, s in enumerate(seconds))
    )
    means = stage.place("/var/lib/node_exporter/nccl_inspector")
    means.mkdir()
    four(means, 62, 100, 101, 102)
    for number, counts in ((1, 5), (2, 5)):
        members = [ras_files.rank(n, counts=counts - (n == 2)) for n in range(4)]
        ras_files.saved(
            stage.folder / f"ras-{number}.json",
            ras_files.communicator(members),
            at=f"2026-06-11 13:0{number}:53",
        )
    for line in lines_of("calls"):
        said = stage.run(re.sub(r" \[.*?\]", "", line))  # what may be left out
        assert re.search("rank 7|rank 2|GPU0", said), line


def test_who(stage):
    """A log of 120 steps, and a trace of four of the slow ones by the same numbers."""
    healthy = SynthSpec(dp=4, pp=2, microbatches=4, steps=60)
    slow = synthesize(replace(healthy, slow_workers=(SlowWorker(3, 1, 2),)))
    seconds = [*synthesize(healthy).traced_step_s().tolist(), *slow.traced_step_s().tolist()]
    (stage.folder / "iterations.csv").write_text(
        "step,duration_s\n" + "".join(f"{step},{s}\n" for step, s in enumerate(seconds))
    )
    parquet.write(replace(slow, steps=slow.steps + 60), stage.folder / "trace.parquet")
    (stage.folder / "meta.yaml").write_text("dp_size: 4\npp_size: 2\n")
    for line in lines_of("who"):
        assert "rank 7 (stage 1 of replica 3)" in stage.run(line)


def test_running(stage):
    """Two ranks' dumps of PyTorch's flight recorder, and processes that hang."""
    from paceline.detect import stacks

    if stacks.find_pyspy() is None:
        pytest.skip("py-spy is not installed: pip install 'paceline[hang]'")
    import pickle

    from test_sources_flight_recorder import entry

    shutil.copy(ROOT / "examples" / "train.log", stage.folder)
    for rank in (0, 1):
        calls = [entry(n) for n in range(200 - rank)]
        dump = {"version": "2.4", "entries": calls, "pg_config": {"0": {"ranks": "[0, 1]"}}}
        (stage.folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))
    for path in stage.folder.iterdir():
        os.utime(path, (time.time() - 600,) * 2)
    hanging = "import threading\ndef stuck(): print(flush=True); threading.Event().wait()\nstuck()"
    processes = [
        subprocess.Popen([sys.executable, "-c", hanging], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        pids = [(process.stdout.readline(), str(process.pid))[1] for process in processes]
        for line in lines_of("running"):
            said = stage.run(line.replace("4711 4712", " ".join(pids)))
            if "--pid" in line:
                assert "stuck" in said
            assert "has not ended" in said or "rank 1" in said
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_telemetry(stage):
    for host in ("node1", "node2"):
        smi(stage.folder, host)
    at = 1795414200  # 2026-11-23T06:10 UTC
    rows = [("node17", str(gpu), [91 if gpu == 3 else 64] * 60) for gpu in range(8)]
    path = range_json(stage.folder / "dcgm.json", "DCGM_FI_DEV_GPU_TEMP", rows)
    answer = json.loads(path.read_text())
    for series in answer["data"]["result"]:
        series["values"] = [[at + 30 * n, value] for n, (_, value) in enumerate(series["values"])]
    path.write_text(json.dumps(answer))
    stage.monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    shutil.copy(ROOT / "examples" / "train.log", stage.folder)
    slow = SynthSpec(dp=8, pp=1, microbatches=4, steps=6, slow_workers=(SlowWorker(3, 0, 2),))
    parquet.write(synthesize(slow), stage.folder / "slow.parquet")
    (stage.folder / "hosts.csv").write_text(
        "rank,host,gpu\n" + "".join(f"{rank},node17,{rank}\n" for rank in range(8))
    )
    for line in lines_of("telemetry"):
        assert re.search("GPU 3", stage.run(line)), line


def test_ranks(stage):
    first, *_ = ProfileWriter(kineto_profiles.make_trace(kineto_profiles.WRITTEN)).write(
        stage.folder
    )
    dump(load(first), stage.folder / "rank0.pt.trace.json.gz")
    nsight_files.two_processes(stage.folder / "report.sqlite")
    (stage.folder / "host").mkdir()
    rocpd_files.write_rocpd(stage.folder / "host" / "908_results.db")
    timeline = stage.place("/root/timeline")
    timeline.mkdir()
    xpu_timer_files.one_rank(timeline)
    test_sources_chakra.one_rank(stage.folder / "linked.json")
    for line in lines_of("ranks"):
        assert "communication" in stage.run(line), line


def test_import(stage):
    for folder in ("traces", "timelines", "runs/job-18"):
        (stage.folder / folder).mkdir(parents=True)
    kept = kineto_profiles.make_trace(kineto_profiles.WRITTEN)
    ProfileWriter(kept).write(stage.folder / "traces")
    timelines(kineto_profiles.make_trace(steps=22), stage.folder / "timelines")
    (stage.folder / "meta.yaml").write_text("dp_size: 2\npp_size: 2\n")
    rows = make_rows(Spec(pp=2, microbatches=(3, 3), steps=3, **WITH_SPANS))
    (stage.folder / "runs/job-18/spans.json").write_text(
        "".join(json.dumps(body) + "\n" for body in requests_of(rows))
    )
    (stage.folder / "train.log").write_text(
        "".join(iteration(10 * n, 1000 + n) + min_max(100, 150) for n in range(1, 9))
    )
    for line in lines_of("import"):
        if "-o trace.parquet" in line:
            (stage.folder / "trace.parquet").unlink(missing_ok=True)
        stage.run(re.sub(r" \[.*?\]", "", line))


def test_recorded(stage):
    trace = synthesize(
        SynthSpec(dp=4, pp=2, microbatches=4, steps=6, slow_workers=(SlowWorker(3, 1, 1.5),))
    )
    record_trace(trace, stage.place("/shared/runs/job-17"))
    for line in lines_of("recorded"):
        said = stage.run(line)
        if "analyze" in line:
            assert "worker dp 3, stage 1 is 1.50x slow" in " ".join(said.split())


def test_trace_parts(stage):
    trace = synthesize(SynthSpec(dp=2, pp=2, microbatches=4, steps=40))
    (stage.folder / "traces").mkdir()
    moved = replace(trace, steps=trace.steps + 90)
    parquet.write(moved, stage.folder / "traces" / "trace.parquet")
    table = pq.read_table(stage.folder / "traces" / "trace.parquet")
    for pp in range(2):
        rows = table.filter(pa.compute.equal(table["stage"], pp))
        pq.write_table(rows, stage.folder / f"rank-{pp}.parquet")
    for line in lines_of("trace parts"):
        assert "waste" in stage.run(line)


# Validation and hosts.


def test_validate(stage):
    requires.installed("torch")
    for line in lines_of("validate"):
        assert "pass 2: 1->2" in stage.run(line)
    assert (stage.folder / "hosts.sqlite").is_file()


def test_torchrun(stage):
    """Two ranks on this machine stand for 8 and for 4 x 8."""
    requires.installed("torch")
    (stage.folder / "bin").mkdir()
    command = stage.folder / "bin" / "paceline"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m paceline "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    for line in lines_of("torchrun"):
        done = subprocess.run(
            [*launcher, "--standalone", "--no-python", *shlex.split(line)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        assert "ring of 2 ranks" in done.stdout


def test_hosts(stage):
    rng = np.random.default_rng(3)
    rows = [
        Result(100.0 * at, "job-17", f"gpu-{n:03}", gpu, "H100", "gemm", s, s, 32)
        for at in range(8)
        for n in range(10, 14)
        for gpu in range(8)
        for s in [
            (1.2 if (n, gpu) == (12, 5) else 1.0) * (1 + 0.003 * float(rng.standard_normal()))
        ]
    ]
    HostStore(stage.folder / "hosts.sqlite").add(rows)
    for line in lines_of("hosts"):
        said = stage.run(line)
        if "forget" in line:
            assert HostStore(stage.folder / "hosts.sqlite").results("gpu-012") == []
            HostStore(stage.folder / "hosts.sqlite").add(rows)
        elif "history" not in line:
            assert "gpu-012" in said, line


# Longer ones.


def test_fleet(stage):
    make_fleet(stage.folder, (0, 1))
    (stage.folder / "jobs.csv").write_text(
        "path,job,queue,model\ntrace-0.parquet,a,prod,8b\ntrace-1.parquet,b,dev,70b\n"
    )
    lines = sorted(lines_of("fleet"), key=lambda line: "--report" in line)
    for line in lines:
        if "--manifest" in line:
            shutil.rmtree(stage.folder / "study", ignore_errors=True)
        stage.run(line)
    assert (stage.folder / "study" / "report.html").is_file()


def test_goodput(stage):
    badput = {"PROGRAM_STARTUP": 10.0, "CUSTOM_BADPUT_EVENTS": {"EVAL_STEP": 5.0}}
    totals = {"goodput_time": {"TOTAL": 80.0}, "badput_time": badput, "max_productive_step": 40}
    totals |= {"total_elapsed_time": 100.0, "disruption_count": 0}
    (stage.folder / "badput.json").write_text(json.dumps(totals))
    for line in lines_of("goodput"):
        assert "80.0" in stage.run(line)


def test_mitigate(stage):
    (stage.folder / "scenario.yaml").write_text(SCENARIO)
    for line in lines_of("mitigate"):
        assert "times as much as the oracle" in stage.run(line)


def test_profile(stage):
    """On the CPU, where there is no GPU: ``--quick``, of one shape."""
    requires.installed("torch")
    (job,) = (
        block.text
        for block in blocks((DOCS / "tutorial.md").read_text(encoding="utf-8"))
        if block.notes.get("file") == "job.yaml"
    )
    (stage.folder / "job.yaml").write_text(job)
    few = " --quick --limit 60 --hidden 64 --seq-len 16 --micro-batch 1 --threads 1 --device cpu"
    measure, *others = lines_of("profile")
    assert "operators on" in stage.run(measure + few)
    for line in others:
        stage.run(line)


def test_optimal(stage):
    for line in lines_of("optimal"):
        assert "3360" in stage.run(line).replace(",", "")


def test_plan_page(stage):
    for line in lines_of("plan page"):
        with stage.started(line, until="Ctrl-C ends it") as text:
            url = re.search(r"http://\S+", text())[0]
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert b"<html" in answer.read()


def test_study(stage):
    windows = requires.data("cluster", "itp_windows_128.csv")
    stage.monkeypatch.setenv("PACELINE_SHARED", str(windows.parents[2]))
    stage.monkeypatch.setenv("XDG_CACHE_HOME", str(stage.folder / "cache"))
    for line in lines_of("study"):
        stage.run(line)


def test_elastic(stage):
    (jobs,) = (
        block.text
        for block in blocks((DOCS / "how-to" / "my-queue.md").read_text(encoding="utf-8"))
        if block.notes.get("file") == "elastic.csv"
    )
    (stage.folder / "elastic.csv").write_text(jobs)
    for line in lines_of("elastic"):
        assert "best" in stage.run(line)


def test_machine(stage):
    for line in lines_of("machine"):
        assert "paceline" in stage.run(line)
