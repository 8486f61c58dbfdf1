"""A real `paceline serve` in a process of its own, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from installed import PACKAGES
from paceline.client import Client


def environment() -> dict[str, str]:
    """Of a process of ours; the folder PACELINE_TEST_SITE goes before the packages."""
    folders = [
        os.environ.get("PACELINE_TEST_SITE", ""),
        PACKAGES,
        os.environ.get("PYTHONPATH", ""),
    ]
    path = os.pathsep.join(filter(None, folders))
    return os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


class Server:
    """Started, killed and started again on one data folder and port."""

    def __init__(self, data: Path, *options: str, token: str = "") -> None:
        self.data, self.options, self.token = data, options, token
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None
        self.log = data.parent / f"{data.name}.log"

    def start(self, timeout_s: float = 180.0) -> Server:
        command = [sys.executable, "-m", "paceline", "serve", "--data", str(self.data)]
        command += ["--bind", f"127.0.0.1:{self.port}", *self.options]
        env = environment()
        with self.log.open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        until = time.monotonic() + timeout_s
        while True:
            said = self.log.read_bytes()[begin:].decode()
            if "listening on" in said and (self.token or "token" in said):
                break
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not start: {said[-3000:]}")
            time.sleep(0.02)
        if not self.token:
            self.token = re.search(r"pcl_[A-Za-z0-9_-]+", said)[0]
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)

    def client(self, **options) -> Client:
        return Client(self.url, self.token, **options)

    def memory_mib(self) -> float:
        """Of the service and of its analyses, resident."""
        return sum(resident_mib(pid) for pid in (self.process.pid, *_children(self.process.pid)))

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


class Steps(threading.Thread):
    """Streams step times for ever, from step 0 on; remembers what was acknowledged."""

    def __init__(
        self, client: Client, name: str, ranks: int = 4, slow_from: int = 300, pause_s: float = 0.0
    ) -> None:
        super().__init__(daemon=True)
        self.client, self.name, self.ranks, self.pause_s = client, name, ranks, pause_s
        self.slow_from = slow_from
        self.acknowledged: dict[int, list[float]] = {}
        self.error: BaseException | None = None
        self._rng = np.random.default_rng(len(name))
        self._over = threading.Event()

    def durations(self) -> list[float]:
        slow = 1.3 if len(self.acknowledged) >= self.slow_from else 1.0
        noise = self._rng.normal(1.0, 0.005, self.ranks)
        return np.float32(slow * noise).astype(float).tolist()

    def run(self) -> None:
        try:
            while not self._over.wait(self.pause_s):
                step = len(self.acknowledged)
                times = self.durations()
                self.client.push_steps(
                    self.name,
                    [step] * self.ranks,
                    list(range(self.ranks)),
                    times,
                    source="start/0",
                    batch=step,
                    world=self.ranks,
                )
                self.acknowledged[step] = times
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._over.set()
        self.join(120)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def stored_samples(data: Path, job_id: int) -> list[tuple[int, int, float]]:
    """All samples in a job's step files, as they lie there."""
    from paceline.monitor.step_files import StepFiles

    files = StepFiles(data / "steps")
    with files.of(job_id) as file:
        found = [
            sample
            for batch in file.read()
            for sample in zip(
                batch.steps.tolist(), batch.ranks.tolist(), batch.durations_s.tolist(), strict=True
            )
        ]
    files.close()
    return found


def check_steps(data: Path, job_id: int, steps: Steps) -> None:
    """Everything acknowledged is there, and nothing twice."""
    found = stored_samples(data, job_id)
    places = [(step, rank) for step, rank, _ in found]
    assert len(set(places)) == len(places), "samples are there twice"
    kept = {(step, rank): duration for step, rank, duration in found}
    for step, times in steps.acknowledged.items():
        assert [kept.get((step, rank)) for rank in range(steps.ranks)] == times, step


def free_port() -> int:
    """A port that stays free while its server is away: none that connections out are given."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    found = []
    for task in tasks.iterdir():
        text = (task / "children").read_text()
        found += [int(part) for part in text.split()]
    return found


def resident_mib(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0
