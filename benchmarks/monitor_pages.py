"""The monitor's pages with a full store: python benchmarks/monitor_pages.py [--jobs N ...].

2,000 jobs and 20,000 sessions, each job's latest one with a result of its own, 20,000 step times
and 100 events; asked for by a second process over HTTP. A job's page is asked for cold (nobody has
seen that session) and warm. `benchmarks/monitor.py` prints the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from monitor_lab import Server

STEPS, EVENTS, ASKED = 20_000, 100, 60


def bench_pages(folder: Path, n_jobs: int, n_sessions: int) -> None:
    """Fill a store, serve it, ask for pages."""
    data = folder / "pages"
    fill(data, n_jobs, n_sessions)
    with Server(data) as server:
        print(f"pages: {n_jobs:,} jobs, {n_sessions:,} sessions")
        names = [f"job-{i * 17 % n_jobs}" for i in range(ASKED)]
        get(server, "/")
        show("jobs", [get(server, path) for path in ["/"] * ASKED])
        show("jobs, page 20", [get(server, path) for path in ["/?page=20"] * ASKED])
        show("jobs, search", [get(server, path) for path in ["/?q=core+garbage"] * ASKED])
        show("job, cold", [get(server, f"/jobs/{name}") for name in names])
        show("job, warm", [get(server, f"/jobs/{name}") for name in names[-40:]])
        show("job, 1,024 workers, cold", [get(server, f"/jobs/wide-{i}") for i in range(4)])
        show("job, 1,024 workers, warm", [get(server, f"/jobs/wide-{i % 4}") for i in range(20)])
        show("compare", [get(server, f"/jobs/{name}/compare") for name in names])
        show("fleet", [get(server, "/fleet") for _ in range(20)])
        show("alerts", [get(server, "/alerts") for _ in range(20)])
        print(f"  the service has {server.memory_mib():.0f} MiB")


def fill(data: Path, n_jobs: int, n_sessions: int) -> None:
    """Jobs of all kinds with results made by the real analysis."""
    from monitor_fleet import DAY_S, Monitor, analysed, synthetic
    from paceline.monitor.store.tables import alerts, events
    from paceline.synth import SlowWorker, SynthSpec, synthesize

    wide = SynthSpec(dp=256, pp=4, microbatches=8, steps=10, slow_workers=(SlowWorker(40, 2, 1.8),))
    made, large = synthetic(), analysed(synthesize(wide))
    now = time.time()
    data.mkdir(parents=True)
    monitor = Monitor(data, clock=lambda: now)
    each = n_sessions // n_jobs
    rng = np.random.default_rng(0)
    jobs = [(f"job-{i}", made[i % len(made)]) for i in range(n_jobs - 4)]
    for k, (name, analysis) in enumerate([*jobs, *((f"wide-{i}", large) for i in range(4))]):
        labels = {"team": ("core", "research")[k % 2]}
        job_id = monitor.add_job(name, labels=labels, seen_at=now - k, status="ended")
        for i in range(each):
            at = now - DAY_S * (each - i) + k
            monitor.add_session(job_id, at, analysis, result=i >= each - 2)
        monitor.sum_up(job_id, [analysis.columns["slowdown"]] * each, analysis)
        for i in range(EVENTS if k % 20 == 0 else 3):
            row = {"job_id": job_id, "at": now - i, "kind": "onset", "step": 1000 + 100 * i}
            monitor.add(events, **row, since_step=990 + 100 * i, text="rank 3 is 1.3x slower")
        if k % 40 == 0:
            row = {"fingerprint": str(k), "rule": "slow-job", "project": "default"}
            row |= {"importance": "high", "headline": "slow", "status": "firing"}
            monitor.add(alerts, job_id=job_id, **row, started_at=now, updated_at=now)
        monitor.add_steps(job_id, rng.normal(2.0, 0.02, STEPS), 2.0)
    monitor.close()


def get(server: Server, path: str) -> float:
    """Seconds until the whole page is here."""
    headers = {"Authorization": f"Bearer {server.token}", "Accept": "text/html"}
    request = urllib.request.Request(server.url + path, headers=headers)
    begin = time.perf_counter()
    with urllib.request.urlopen(request) as answer:
        size = len(answer.read())
    assert size > 1000, path
    return time.perf_counter() - begin


def show(name: str, took: list[float]) -> None:
    """A line."""
    middle, high = np.percentile(took, [50, 95]) * 1e3
    print(f"  {name}: {middle:.0f} ms, p95 {high:.0f} ms, first {took[0] * 1e3:.0f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--sessions", type=int, default=20_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
        bench_pages(Path(scratch), args.jobs, args.sessions)
