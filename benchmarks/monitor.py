"""Load on the monitor from a second process: python benchmarks/monitor.py [--seconds 20].

1. Step times: 10,000 ranks, 50,000 samples a second in batches, kept up for a while: what is
   accepted, how long a batch takes, memory, processor time.
2. Sessions: 20 traces of 100,000 operations pushed at once: until all are analysed, peak memory of
   the service and its analyses together.
3. Lists: 2,000 jobs and 20,000 sessions in the store: how long the API's lists and, where they are
   installed, the pages take (median, p95).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from monitor_lab import Server

RANKS, SAMPLES_PER_S, STEPS_PER_BATCH = 10_000, 50_000, 5


def bench_steps(folder: Path, seconds: float) -> None:
    """Steps of all ranks, sent as the recorder of a job does."""
    with Server(folder / "steps") as server:
        client = server.client()
        client.register("large", gpus=RANKS)
        rng = np.random.default_rng(0)
        ranks = list(range(RANKS)) * STEPS_PER_BATCH
        every_s = RANKS * STEPS_PER_BATCH / SAMPLES_PER_S
        took, late, first, cpu = [], [], time.perf_counter(), _cpu_s(server.process.pid)
        for batch in range(int(seconds / every_s)):
            step = batch * STEPS_PER_BATCH
            steps = np.repeat(np.arange(step, step + STEPS_PER_BATCH), RANKS).tolist()
            durations = rng.normal(1.0, 0.01, len(ranks)).round(6).tolist()
            pause_s = first + batch * every_s - time.perf_counter()
            late.append(max(0.0, -pause_s))
            time.sleep(max(0.0, pause_s))
            begin = time.perf_counter()
            client.push_steps(
                "large", steps, ranks, durations, source="s/0", batch=batch, world=RANKS
            )
            took.append(time.perf_counter() - begin)
        whole = time.perf_counter() - first
        cpu = _cpu_s(server.process.pid) - cpu
        n = len(took) * len(ranks)
        last = len(took) * STEPS_PER_BATCH - 1
        while client.job("large")["last_step"] != last:
            time.sleep(0.1)
        behind = time.perf_counter() - first - whole
        print(f"step times: {n:,} samples in {whole:.1f} s = {n / whole:,.0f}/s of {RANKS:,} ranks")
        print(f"  a batch of {len(ranks):,}: {_times(took)}; sent late by {max(late):.2f} s at most")
        print(f"  last step shown {behind:.1f} s after its batch; {server.memory_mib():.0f} MiB")
        print(f"  the service took {cpu / whole:.2f} of a core")


def bench_sessions(folder: Path, sessions: int, ops: int) -> None:
    """Traces pushed at once."""
    paths = [_trace(folder, seed, ops) for seed in range(sessions)]
    with Server(folder / "sessions") as server:
        peak = [0.0]
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.1):
                peak[0] = max(peak[0], server.memory_mib())

        watcher = threading.Thread(target=watch)
        watcher.start()
        client = server.client()
        begin = time.perf_counter()
        with ThreadPoolExecutor(sessions) as pool:
            numbers = list(pool.map(lambda p: client.push_trace(f"job-{p.stem}", p), paths))
        pushed = time.perf_counter() - begin
        found = [client.wait(number) for number in numbers]
        whole = time.perf_counter() - begin
        over.set()
        watcher.join()
    assert all(session["status"] == "done" for session in found), found
    print(
        f"sessions: {sessions} of {ops:,} operations pushed in {pushed:.1f} s, analysed in "
        f"{whole:.1f} s; {peak[0]:.0f} MiB at most, service and analyses together"
    )


def bench_lists(folder: Path, jobs: int, sessions: int) -> None:
    """Lists of a store that has been in use for long."""
    server = Server(folder / "lists").start()
    server.stop()
    _fill(folder / "lists", jobs, sessions)
    paths = ["/api/v1/jobs?limit=100", "/api/v1/jobs?limit=100&after=1500", "/api/v1/events"]
    paths += ["/api/v1/jobs/job-1234", "/api/v1/jobs/job-1234/sessions"]
    pages = ["/", "/?sort=waste", "/?q=job-12", "/jobs/job-1234", "/fleet"]
    with server:
        print(f"lists: {jobs:,} jobs, {sessions:,} sessions")
        for path in [*paths, *pages]:
            took = [_get(server, path) for _ in range(40)]
            if None not in took:
                print(f"  {path}: {_times(took)}")


def _fill(data: Path, jobs: int, sessions: int) -> None:
    from sqlalchemy import insert

    from paceline.monitor.config import Config
    from paceline.monitor.store import tables
    from paceline.monitor.store.database import open_database
    from paceline.monitor.store.jobs import summarise

    random.seed(0)
    engine = open_database(Config(data=data).store_url)
    now = time.time()
    with engine.begin() as connection:
        rows = [
            {
                "project": "default",
                "name": f"job-{n}",
                "created_at": now - 1e6,
                "seen_at": now - random.random() * 1e5,
                "gpus": 2 ** random.randint(3, 12),
                "status": "running",
                "degrees": {"dp_size": 8, "pp_size": 4},
                "labels": {"team": f"team-{n % 7}"},
                "trend": [],
                "gpu_hours_lost": 0.0,
                "n_sessions": 0,
            }
            for n in range(jobs)
        ]
        connection.execute(insert(tables.jobs), rows)
        rows = []
        for n in range(sessions):
            slowdown = 1 + random.expovariate(8)
            rows.append(
                {
                    "job_id": n % jobs + 1,
                    "sha256": f"{n:064x}",
                    "size_bytes": 1,
                    "file_name": "trace.parquet",
                    "meta": {},
                    "created_at": now - random.random() * 1e6,
                    "status": "done",
                    "attempts": 1,
                    "slowdown": slowdown,
                    "waste": 1 - 1 / slowdown,
                    "cause": random.choice(["worker", "gc", "stage-imbalance", "link"]),
                    "headline": "This job wastes some of its GPUs: a worker is slow.",
                    "gpu_hours_lost": random.random(),
                    "step_s": 1.0,
                }
            )
        connection.execute(insert(tables.sessions), rows)
        for job_id in range(1, jobs + 1):
            summarise(connection, job_id)
    engine.dispose()


def _get(server: Server, path: str) -> float | None:
    headers = {"Authorization": f"Bearer {server.token}"}
    request = urllib.request.Request(server.url + path, headers=headers)
    begin = time.perf_counter()
    try:
        with urllib.request.urlopen(request) as answer:
            answer.read()
    except urllib.error.HTTPError:
        return None
    return time.perf_counter() - begin


def _trace(folder: Path, seed: int, ops: int) -> Path:
    from paceline.sources import parquet
    from paceline.synth import SlowWorker, SynthSpec, synthesize

    spec = SynthSpec(seed=seed, slow_workers=(SlowWorker(seed % 8, seed % 4, 1.4),))
    per_step = len(synthesize(SynthSpec(steps=1)))
    trace = synthesize(SynthSpec(**{**vars(spec), "steps": max(1, round(ops / per_step))}))
    path = folder / f"{seed}.parquet"
    parquet.write(trace, path)
    return path


def _times(took: list[float]) -> str:
    middle, high = np.percentile(took, [50, 95])
    return f"{middle * 1e3:.0f} ms, p95 {high * 1e3:.0f} ms"


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--ops", type=int, default=100_000)
    parser.add_argument("--only", choices=("steps", "sessions", "lists"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
        if args.only in (None, "steps"):
            bench_steps(Path(scratch), args.seconds)
        if args.only in (None, "sessions"):
            bench_sessions(Path(scratch), args.sessions, args.ops)
        if args.only in (None, "lists"):
            bench_lists(Path(scratch), 2000, 20_000)
