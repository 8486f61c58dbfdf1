"""Step times into instances: python benchmarks/monitor_load.py [--instances 3] [--seconds 20].

Jobs of 8 ranks tell 10 steps in a batch. They are sent

  alone     a batch in a request, as a job does by itself;
  together  200 jobs in a request, as a host or a project does;

as fast as they are acknowledged, by clients in processes of their own. What is said: requests and
samples a second, and the processor time of service and database by sample. With ``--kill`` one of
several instances is killed in the middle.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from monitor_instances import Instances, several
from monitor_lab import Server

#: Of each job; --ranks changes the first.
RANKS, STEPS, JOBS_TOGETHER = 8, 10, 200


def body_of(jobs: list[int], batch: int, *, together: bool) -> bytes:
    """A request, msgpack with columns as bytes."""
    from msgspec import msgpack

    first = batch * STEPS
    columns = {
        "steps": np.repeat(np.arange(first, first + STEPS, dtype="<i8"), RANKS).tobytes(),
        "ranks": np.tile(np.arange(RANKS, dtype="<i4"), STEPS).tobytes(),
        "durations_s": np.random.default_rng(batch).normal(1.0, 0.01, RANKS * STEPS).tobytes(),
    }
    one = {"source": "s/0", "batch": batch, "world": RANKS, **columns}
    if not together:
        return msgpack.encode(one)
    return msgpack.encode({"batches": [{"job": f"job-{job}", **one} for job in jobs]})


def send(
    ports: list[int], token: str, jobs: list[int], until: float, together: bool, results: Any
) -> None:
    """Send until a time; told are requests and samples that were acknowledged, and failures."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/msgpack"}
    connection, place, n, samples, failures, batch = None, os.getpid(), 0, 0, 0, 0
    took = []
    while time.time() < until:
        groups = [jobs] if together else [[job] for job in jobs]
        for group in groups:
            path = "/api/v1/steps" if together else f"/api/v1/jobs/job-{group[0]}/steps"
            content = body_of(group, batch, together=together)
            while time.time() < until:
                try:
                    if connection is None:
                        port = ports[place % len(ports)]
                        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                    began = time.perf_counter()
                    connection.request("POST", path, content, headers)
                    answer = connection.getresponse()
                    told = json.loads(answer.read())
                    if answer.status == 200:
                        took.append(time.perf_counter() - began)
                        parts = told["batches"] if together else [told]
                        samples += sum(part.get("accepted", 0) for part in parts)
                        n += 1
                        break
                    failures += 1
                    time.sleep(0.2)
                except (OSError, http.client.HTTPException):
                    failures += 1
                    connection, place = None, place + 1
        batch += 1
    results.put((n, samples, failures, took))


def cpu_s(pids: list[int]) -> float:
    """Processor time of processes, seconds."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) / 100
    return total


def bench(
    servers: list[Server],
    token: str,
    others: list[int],
    *,
    together: bool,
    seconds: float,
    clients: int,
    n_jobs: int,
    kill: Server | None = None,
) -> None:
    """Send and say what became of it."""
    ports, pids = [server.port for server in servers], [s.process.pid for s in servers]
    shares = [list(range(n_jobs))[i::clients] for i in range(clients)]
    if together:
        shares = [share[:JOBS_TOGETHER] for share in shares]
    results: Any = multiprocessing.Queue()
    before, db_before = cpu_s(pids), cpu_s(others)
    until = time.time() + seconds
    senders = [
        multiprocessing.Process(target=send, args=(ports, token, share, until, together, results))
        for share in shares
    ]
    began = time.perf_counter()
    for sender in senders:
        sender.start()
    spent = 0.0
    if kill is not None:
        time.sleep(seconds / 2)
        spent = cpu_s([kill.process.pid])
        kill.kill()
    told = [results.get() for _ in senders]
    whole = time.perf_counter() - began
    for sender in senders:
        sender.join()
    cpu, db = cpu_s(pids) + spent - before, cpu_s(others) - db_before
    n, samples, failures = (sum(column) for column in list(zip(*told, strict=True))[:3])
    took = np.concatenate([row[3] for row in told])
    kind = f"together ({len(shares[0])} jobs a request)" if together else "alone"
    print(
        f"{kind}: {n / whole:,.0f} requests/s, {samples / whole:,.0f} samples/s; "
        f"{failures} tries failed; {np.median(took) * 1e3:.0f} ms, "
        f"p95 {np.percentile(took, 95) * 1e3:.0f} ms"
    )
    print(
        f"  processor: services {cpu:.1f} s = {cpu / max(n, 1) * 1e3:.2f} ms a request, "
        f"{cpu / max(samples, 1) * 1e6:.2f} us a sample; database {db:.1f} s"
    )


def database_pids(folder: Path) -> list[int]:
    """The postmaster: its children's time is its own once they end."""
    pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    tasks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, tasks)]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=3, help="0: a single service on SQLite")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=800)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--only", choices=("alone", "together"))
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument(
        "--running", action="store_true", help="each instance has judged a long job before"
    )
    args = parser.parse_args()
    globals()["RANKS"] = args.ranks
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
        folder = Path(scratch)
        options = ("--config", str(config_of(folder)))
        kinds = [kind == "together" for kind in ("alone", "together") if args.only in (None, kind)]
        if not args.instances:
            with Server(folder / "one", *options) as server:
                run(args, kinds, [server], server.token, [], None)
            return
        with several(folder, args.instances, *options) as instances:
            run(args, kinds, instances.servers, instances.token, [], instances)


def config_of(folder: Path) -> Path:
    """Limits that the load does not reach."""
    path = folder / "monitor.yaml"
    path.write_text("step_samples_per_minute: 1000000000\nlog_level: warning\n")
    return path


def run(
    args: argparse.Namespace,
    kinds: list[bool],
    servers: list[Server],
    token: str,
    others: list[int],
    instances: Instances | None,
) -> None:
    """All kinds of load, one after the other."""
    if args.running:
        _run_long_jobs(servers[0], args.instances)
    for together in kinds:
        others = database_pids(instances.database.folder) if instances else []
        kill = servers[-1] if args.kill and together and len(servers) > 1 else None
        bench(
            servers,
            token,
            others,
            together=together,
            seconds=args.seconds,
            clients=args.clients,
            n_jobs=args.jobs,
            kill=kill,
        )
        if instances is not None:
            wait_seen(instances)


def _run_long_jobs(server: Server, instances: int) -> None:
    """Jobs of 400 steps, until each instance has one: a service has machine code from then on."""
    client = server.client(patience_s=120)
    names = [f"long-{n}" for n in range(8 * max(1, instances))]
    for name in names:
        steps = np.repeat(np.arange(400), 8).tolist()
        times = np.random.default_rng(1).normal(1.0, 0.01, len(steps)).tolist()
        client.push_steps(name, steps, list(range(8)) * 400, times, source="s/0", world=8)
    until = time.monotonic() + 300
    while any(client.job(name)["last_step"] != 399 for name in names):
        assert time.monotonic() < until, "the long jobs are not judged"
        time.sleep(0.5)


def wait_seen(instances: Instances) -> None:
    """Until the detectors have seen all that is in the log."""
    from sqlalchemy import create_engine, text

    engine = create_engine(instances.store.replace("postgresql:", "postgresql+psycopg:"))
    query = text("SELECT count(*) FROM jobs WHERE last_step IS NULL")
    began = time.perf_counter()
    with engine.connect() as connection:
        while connection.execute(query).scalar() and time.perf_counter() - began < 120:
            connection.rollback()
            time.sleep(0.3)
    engine.dispose()
    print(f"  all jobs have steps {time.perf_counter() - began:.1f} s after the end")


if __name__ == "__main__":
    main()
