"""All kinds of load at once: python benchmarks/monitor_soak.py [--rate 10000] [--seconds 1800].

Clients tell the steps of 5,000 jobs of 8 ranks, 200 jobs in a request, at ``--rate`` samples a
second in all (0: as fast as they are acknowledged). Traces are uploaded, evenly over the time, and
pages are asked for. ``--kill`` kills one of the instances in the middle. Printed every
``--every`` seconds and at the end: samples, processor time of services and database by sample,
resident memory of each instance, uploads, times of pages. What was acknowledged is counted in the
store at the end.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from monitor_load import (
    JOBS_TOGETHER,
    RANKS,
    STEPS,
    body_of,
    config_of,
    cpu_s,
    database_pids,
)

from monitor_durability import make_trace
from monitor_instances import Instances, alive, several
from monitor_lab import Server, resident_mib

PAGES = ("/", "/jobs/job-0", "/jobs/job-17?start=0", "/alerts", "/fleet")


class Told(multiprocessing.Process):
    """Sends the steps of some jobs at a rate; counts what is acknowledged."""

    def __init__(self, ports: list[int], token: str, jobs: list[int], rate: float, until: float):
        super().__init__(daemon=True)
        self.ports, self.token, self.jobs = ports, token, jobs
        self.rate, self.until = rate, until
        self.samples: Any = multiprocessing.Value("q", 0)
        self.failures: Any = multiprocessing.Value("q", 0)

    def run(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/msgpack"}
        connection, place, batch, due = None, os.getpid(), 0, time.time()
        groups = [
            self.jobs[at : at + JOBS_TOGETHER] for at in range(0, len(self.jobs), JOBS_TOGETHER)
        ]
        while time.time() < self.until:
            for group in groups:
                content = body_of(group, batch, together=True)
                done = False
                while not done and time.time() < self.until:
                    try:
                        if connection is None:
                            port = self.ports[place % len(self.ports)]
                            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                        connection.request("POST", "/api/v1/steps", content, headers)
                        answer = connection.getresponse()
                        answer.read()
                        done = answer.status == 200
                        if not done:
                            self.failures.value += 1
                            time.sleep(0.5)
                    except (OSError, http.client.HTTPException):
                        self.failures.value += 1
                        connection, place = None, place + 1
                n_samples = len(group) * RANKS * STEPS
                self.samples.value += n_samples if done else 0
                if self.rate:
                    due += n_samples / self.rate
                    time.sleep(max(0.0, due - time.time()))
            batch += 1


class Uploads(threading.Thread):
    """Uploads traces, evenly over the time."""

    def __init__(self, instances: Instances, folder: Path, n: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.client, self.folder, self.n, self.seconds = instances.client(300), folder, n, seconds
        self.sessions: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        begin = time.monotonic()
        try:
            for number in range(self.n):
                path = make_trace(self.folder, number)
                self.sessions.append(self.client.push_trace(f"traces-{number % 20}", path))
                due = begin + (number + 1) * self.seconds / self.n
                time.sleep(max(0.0, due - time.monotonic()))
        except BaseException as error:
            self.error = error


class Pages(threading.Thread):
    """Asks for pages; notes how long each took."""

    def __init__(self, servers: list[Server], token: str) -> None:
        super().__init__(daemon=True)
        self.servers, self.token = servers, token
        self.took_s: list[float] = []
        self.failures = 0
        self.over = threading.Event()

    def run(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "text/html"}
        number = 0
        while not self.over.wait(0.5):
            number += 1
            living = [server for server in self.servers if alive(server)]
            server, path = living[number % len(living)], PAGES[number % len(PAGES)]
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            began = time.perf_counter()
            try:
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status in (200, 404):
                    self.took_s.append(time.perf_counter() - began)
                else:
                    self.failures += 1
            except (OSError, http.client.HTTPException):
                self.failures += 1
            finally:
                connection.close()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--rate", type=float, default=0.0, help="samples a second; 0: no limit")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--uploads", type=int, default=200)
    parser.add_argument("--every", type=float, default=60.0)
    parser.add_argument("--kill", action="store_true")
    args = parser.parse_args()
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="paceline-soak-") as scratch:
        folder = Path(scratch)
        with several(folder, args.instances, "--config", str(config_of(folder))) as instances:
            _run(args, folder, instances)


def _run(args: argparse.Namespace, folder: Path, instances: Instances) -> None:
    servers = instances.servers
    ports, until = [server.port for server in servers], time.time() + args.seconds
    shares = [list(range(args.jobs))[i :: args.clients] for i in range(args.clients)]
    rate = args.rate / args.clients
    senders = [Told(ports, instances.token, share, rate, until) for share in shares]
    uploads = Uploads(instances, folder, args.uploads, args.seconds)
    pages = Pages(servers, instances.token)
    began, killed_s, killed = time.time(), 0.0, None
    for thread in (*senders, uploads, pages):
        thread.start()
    before = {s: cpu_s([s.process.pid]) for s in servers}
    db_before = cpu_s(database_pids(instances.database.folder))
    next_at = began + args.every
    while time.time() < until:
        time.sleep(1.0)
        if args.kill and killed is None and time.time() > began + args.seconds / 2:
            killed = servers[-1]
            killed_s = cpu_s([killed.process.pid]) - before.pop(killed)
            killed.kill()
        if time.time() >= next_at:
            next_at += args.every
            _say(args, began, servers, before, killed_s, db_before, senders, uploads, pages,
                 instances)  # fmt: skip
    for sender in senders:
        sender.join()
    pages.over.set()
    _say(args, began, servers, before, killed_s, db_before, senders, uploads, pages, instances)
    uploads.join(600)
    assert uploads.error is None, uploads.error
    _count(instances, sum(sender.samples.value for sender in senders))
    client = instances.client(300)
    states = [client.wait(number, 600)["status"] for number in uploads.sessions]
    print(f"sessions: {len(states)}, all done: {set(states) <= {'done'}}")


def _say(
    args: argparse.Namespace,
    began: float,
    servers: list[Server],
    before: dict[Server, float],
    killed_s: float,
    db_before: float,
    senders: list[Told],
    uploads: Uploads,
    pages: Pages,
    instances: Instances,
) -> None:
    spent = killed_s + sum(cpu_s([s.process.pid]) - cpu for s, cpu in before.items())
    database = cpu_s(database_pids(instances.database.folder)) - db_before
    samples = sum(sender.samples.value for sender in senders)
    failures = sum(sender.failures.value for sender in senders)
    memory = ", ".join(f"{resident_mib(s.process.pid):.0f}" for s in servers if alive(s))
    took = np.array(pages.took_s or [0.0]) * 1e3
    seconds = time.time() - began
    print(
        f"{seconds:.0f} s: {samples:,} samples, {samples / seconds:,.0f}/s, {failures} tries "
        f"failed; services {spent:.1f} s, database {database:.1f} s of processor: "
        f"{spent / max(samples, 1) * 1e6:.2f} and {database / max(samples, 1) * 1e6:.2f} us a "
        f"sample; RSS {memory} MiB; {len(uploads.sessions)} uploads; {len(took)} pages, median "
        f"{np.median(took):.0f} ms, p95 {np.percentile(took, 95):.0f} ms, {pages.failures} failed; "
        f"load {os.getloadavg()[0]:.0f}",
        flush=True,
    )


def _count(instances: Instances, acknowledged: int) -> None:
    """Samples in the log against those that were acknowledged."""
    from sqlalchemy import create_engine, text

    engine = create_engine(instances.store.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        n_batches = connection.execute(text("SELECT count(*) FROM step_log")).scalar_one()
    engine.dispose()
    stored = n_batches * RANKS * STEPS
    assert stored >= acknowledged, (stored, acknowledged)  # more: an answer that was lost
    print(f"acknowledged {acknowledged:,} samples; in the log {stored:,}")


if __name__ == "__main__":
    main()
