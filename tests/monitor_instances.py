"""Several real `paceline serve --instance` on one PostgreSQL and bucket."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from monitor_lab import Server, Steps, environment
from monitor_postgres import Postgres
from paceline.client import Client
from paceline.errors import MonitorError


class Instances:
    """Instances on one store, made and ended at will; and workers.

    Args:
        store: URL of the PostgreSQL.
        blobs: URL of the bucket.
        folder: their scratch folders and logs.
        options: of each, too.
        alone: one process that has the store to itself, and no workers.
    """

    def __init__(
        self, store: str, blobs: str, folder: Path, *options: str, alone: bool = False
    ) -> None:
        self.store, self.blobs, self.folder, self.options = store, blobs, folder, options
        self.alone = alone
        self.servers: list[Server] = []
        self.workers: list[subprocess.Popen] = []
        self.token = ""

    def add(self) -> Server:
        name = f"i{len(self.servers)}"
        shared = ["--store", self.store, "--blobs", self.blobs]
        shared += [] if self.alone else ["--instance", name]
        server = Server(self.folder / name, *shared, *self.options, token=self.token)
        self.servers.append(server)
        server.start()
        self.token = server.token
        return server

    def add_worker(self) -> subprocess.Popen:
        name = f"w{len(self.workers)}"
        command = [sys.executable, "-m", "paceline", "work", "--store", self.store]
        command += ["--blobs", self.blobs, "--instance", name, "--data", str(self.folder / name)]
        env = environment()
        path = self.folder / f"{name}.log"
        with path.open("ab") as log:
            worker = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        self.workers.append(worker)
        until = time.monotonic() + 180
        while b"working for" not in path.read_bytes():  # who starts it waits for the database
            assert worker.poll() is None, f"the worker did not start: {path.read_text()[-3000:]}"
            assert time.monotonic() < until, "the worker does not start"
            time.sleep(0.05)
        return worker

    def client(self, patience_s: float = 120.0) -> Client:
        """Goes to any instance that answers, as behind a load balancer."""
        return Balanced(self, patience_s)

    def owner(self) -> Server:
        """The instance that has most leases."""
        return max((s for s in self.servers if alive(s)), key=lambda s: len(self.leases(s)))

    def leases(self, server: Server) -> list[str]:
        """Those that an instance owns, as the store says."""
        from sqlalchemy import create_engine, text

        engine = create_engine(self.store.replace("postgresql:", "postgresql+psycopg:"))
        try:
            with engine.connect() as connection:
                query = text(
                    "SELECT leases.name FROM leases JOIN instances ON id = owner "
                    "WHERE instances.name = :name AND expires_at > extract(epoch from now())"
                )
                name = {"name": server.data.name}
                return list(connection.execute(query, name).scalars())
        finally:
            engine.dispose()

    def wait_balanced(self, timeout_s: float = 60.0) -> None:
        """Until each living instance has some shards."""
        until = time.monotonic() + timeout_s
        living = [server for server in self.servers if alive(server)]
        while not all(any("shard" in n for n in self.leases(server)) for server in living):
            assert time.monotonic() < until, "an instance has nothing to do"
            time.sleep(0.3)

    def __enter__(self) -> Instances:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            if server.process is not None and server.process.poll() is None:
                server.process.send_signal(signal.SIGCONT)
                server.kill()
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()


def alive(server: Server) -> bool:
    return server.process is not None and server.process.poll() is None


class Balanced(Client):
    """A client behind a load balancer: the next try goes to another instance."""

    def __init__(self, instances: Instances, patience_s: float) -> None:
        url = instances.servers[0].url
        super().__init__(url, instances.token, patience_s=patience_s, timeout_s=10.0)
        self._instances = instances

    def _json(self, method, path, body=None):
        patience_s, self._patience_s = self._patience_s, 0.0  # one try at each
        try:
            return self._try_all(method, path, body, time.monotonic() + patience_s)
        finally:
            self._patience_s = patience_s

    def _try_all(self, method, path, body, until):
        while True:
            living = [server for server in self._instances.servers if alive(server)]
            self.url = random.choice(living or self._instances.servers).url
            try:
                return super()._json(method, path, body)
            except MonitorError as error:
                if type(error) is not MonitorError or time.monotonic() > until:
                    raise
                time.sleep(0.1)


@contextlib.contextmanager
def several(folder: Path, n: int, *options: str, blobs: str = "") -> Iterator[Instances]:
    """``n`` instances on a PostgreSQL of their own, and a bucket that is a folder."""
    with Postgres() as database:
        bucket = blobs or f"file://{folder / 'bucket'}"
        (folder / "bucket").mkdir(exist_ok=True)
        with Instances(database.url, bucket, folder, *options) as instances:
            instances.database = database
            for _ in range(n):
                instances.add()
            instances.wait_balanced()
            yield instances


def check_log(store: str, job_id: int, steps: Steps) -> None:
    """Everything acknowledged is in the log that instances share, and nothing twice."""
    from sqlalchemy import create_engine, text

    from paceline.monitor.step_files import decode

    engine = create_engine(store.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        query = text("SELECT block FROM step_log WHERE job_id = :job ORDER BY position, seq")
        batches = [decode(bytes(b)) for b in connection.execute(query, {"job": job_id}).scalars()]
    engine.dispose()
    kept = {}
    for batch in batches:
        for step, rank, duration in zip(
            batch.steps.tolist(), batch.ranks.tolist(), batch.durations_s.tolist(), strict=True
        ):
            assert (step, rank) not in kept, "samples are there twice"
            kept[step, rank] = duration
    for step, times in steps.acknowledged.items():
        assert [kept.get((step, rank)) for rank in range(steps.ranks)] == times, step


def events_of(client: Client, name: str) -> list[tuple]:
    """What the detector said, without its numbers and times of the day.

    Hangs are left out: they rest on times of arrival, and a machine that stalls makes one.
    """
    rows = [
        (e["kind"], e["start"], e["step"], e["since_step"], tuple(e["ranks"]), e["factor"])
        for e in client.events(name)
        if e["kind"] != "hang"
    ]
    return sorted(rows)
