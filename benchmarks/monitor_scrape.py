"""/metrics and rounds of alerts with a full store: python benchmarks/monitor_scrape.py [--slow N].

5,000 jobs of 64 GPUs with an analysed session each, 1,000 of them slow with 20 changes of level.
Measured in one process: a scrape in each format, the first round of alerts (each slow job fires),
and the next round (nothing has changed). ``--busy N`` has N more threads that compute without a
pause, as the detectors of many jobs do. With ``--postgres`` in a PostgreSQL of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import pstats
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sqlalchemy import Engine, insert

from paceline.monitor.alerts.engine import Alerts
from paceline.monitor.blobs import FileBlobs
from paceline.monitor.bus import Bus
from paceline.monitor.config import Config
from paceline.monitor.store.database import open_database
from paceline.monitor.store.tables import alerts, events, jobs, sessions
from paceline.monitor.web.envelope import HttpCounts
from paceline.monitor.web.metrics import Metrics
from paceline.monitor.web.security import Principal

#: Changes of level of a slow job, and ranks of an event.
CHANGES, RANKS = 20, 64
FORMATS = {"text": "", "OpenMetrics": "application/openmetrics-text; version=1.0.0"}
NOW = 1_790_000_000.0


def fill(engine: Engine, n_jobs: int, n_slow: int) -> None:
    """Running jobs with a session each; the first ones are slow."""
    columns = {"project": "default", "created_at": NOW - 86_400, "seen_at": NOW - 5}
    columns |= {"status": "running", "gpus": RANKS, "last_step": 5_000, "step_s": 1.5}
    columns |= {"healthy_s": 1.0, "slowdown": 1.2, "waste": 1 / 6, "cause": "worker"}
    columns |= {"degrees": {"dp_size": 16, "pp_size": 4, "tp_size": 1}, "labels": {"team": "core"}}
    job_rows = [
        {"id": k, "name": f"job-{k}", "slow_since_step": 990 if k <= n_slow else None, **columns}
        for k in range(1, n_jobs + 1)
    ]
    done = {"size_bytes": 1000, "file_name": "trace.parquet", "status": "done", "step_s": 1.5}
    done |= {"created_at": NOW - 7200, "finished_at": NOW - 7100, "slowdown": 1.05, "waste": 0.05}
    done |= {"cause": "worker", "headline": "Worker dp 3, stage 1 is slow."}
    done |= {"meta": {"hosts": {str(rank): [f"node-{rank // 8}", "0"] for rank in range(RANKS)}}}
    session_rows = [{"job_id": k, "sha256": f"{k}", **done} for k in range(1, n_jobs + 1)]
    event = {"start": 0, "factor": 1.5, "lost_s": 300.0, "text": "step 1,000: 1.50x slower"}
    event_rows = [
        {
            **event,
            "job_id": k,
            "at": NOW - 1000 + i,
            "kind": "onset" if i == 0 else "worsening",
            "step": 1000 + 10 * i,
            "since_step": 990 + 10 * i,
            "ranks": list(range(RANKS)),
        }
        for k in range(1, n_slow + 1)
        for i in range(CHANGES)
    ]
    with engine.begin() as connection:
        for table, rows in ((jobs, job_rows), (sessions, session_rows), (events, event_rows)):
            connection.execute(insert(table), rows)


def service_of(data: Path, store: str) -> Any:
    """The parts of a service that metrics and alerts use."""
    config = Config(data=data, store=store)
    engine = open_database(config.store_url)
    return SimpleNamespace(
        config=config,
        engine=engine,
        blobs=FileBlobs(data / "blobs"),
        bus=Bus(),
        clock=lambda: NOW,
        started_at=NOW - 86_400,
        detectors=SimpleNamespace(n_waiting=0),
        may_send=lambda: None,
    )


def scrape(service: Any) -> None:
    """Each format, three times."""
    principal = Principal("bench", scope="read", project="*")
    metrics = Metrics(service, "0")
    for name, accept in FORMATS.items():
        took = []
        for _ in range(3):
            begin = time.perf_counter()
            text, _kind = metrics.text(HttpCounts(), principal, accept)
            took.append(time.perf_counter() - begin)
        lines = text.count(b"\n")
        print(f"  /metrics, {name}: {min(took):.2f} s, first {took[0]:.2f} s ({lines:,} lines)")


def rounds(service: Any) -> None:
    """The first round of alerts, and the next."""
    judges = Alerts(service)
    for name in ("first round of alerts", "next round"):
        begin = time.perf_counter()
        judges.tick(service.clock())
        print(f"  {name}: {time.perf_counter() - begin:.1f} s")
    with service.engine.connect() as connection:
        n = len(connection.execute(alerts.select()).all())
    print(f"  alerts that fire: {n:,}")


@contextlib.contextmanager
def busy(n: int) -> Iterator[None]:
    """Threads that keep the interpreter busy meanwhile."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(10_000))

    threads = [threading.Thread(target=compute) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def main() -> None:
    """Fill a store and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--slow", type=int, default=1000)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print the costliest functions")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-bench-"))
        store = ""
        if args.postgres:
            from monitor_postgres import Postgres

            store = stack.enter_context(Postgres()).url
        service = service_of(Path(scratch), store)
        stack.callback(service.engine.dispose)
        fill(service.engine, args.jobs, args.slow)
        kind = service.engine.dialect.name
        print(f"{kind}: {args.jobs:,} jobs, {args.slow:,} slow, {args.busy} busy threads")
        profile = cProfile.Profile()
        with busy(args.busy), profile if args.profile else contextlib.nullcontext():
            scrape(service)
            rounds(service)
        if args.profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
