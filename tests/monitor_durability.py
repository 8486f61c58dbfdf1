"""Is anything lost that was acknowledged? python tests/monitor_durability.py [kills|postgres|disk].

Streams step times and uploads traces without a pause, in small chunks, while

  kills      the service is killed with -9 at random moments and started again;
  postgres   the store is a PostgreSQL, and it or the service is killed at random moments;
  disk       the data folder is a tmpfs of 300 MiB (needs root) that is filled up and emptied.

Then what was acknowledged is compared with what is there.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paceline.client
from monitor_lab import Server, Steps, check_steps
from monitor_postgres import Postgres
from paceline.client import Client

#: Small, so that a trace takes several requests.
CHUNK_BYTES = 4096


class Uploads(threading.Thread):
    """Uploads one new trace after the other, in small chunks; remembers the sessions."""

    def __init__(self, client: Client, name: str, folder: Path, pause_s: float = 0.3) -> None:
        super().__init__(daemon=True)
        self.client, self.name, self.folder, self.pause_s = client, name, folder, pause_s
        self.sessions: dict[str, int] = {}
        self.error: BaseException | None = None
        self._over, self._hurry = threading.Event(), threading.Event()

    def hurry(self) -> None:
        """Upload the next trace without the rest of the pause."""
        self._hurry.set()

    def run(self) -> None:
        try:
            while not self._is_over():
                path = make_trace(self.folder, len(self.sessions))
                session = self.client.push_trace(self.name, path)
                self.sessions[hashlib.sha256(path.read_bytes()).hexdigest()] = session
        except BaseException as error:
            self.error = error

    def _is_over(self) -> bool:
        self._hurry.wait(self.pause_s)
        self._hurry.clear()
        return self._over.is_set()

    def end(self) -> None:
        self._over.set()
        self._hurry.set()
        self.join(300)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def make_trace(folder: Path, seed: int) -> Path:
    """A small trace of a job with a slow worker; another one for every seed."""
    from paceline.sources import parquet
    from paceline.synth import SlowWorker, SynthSpec, synthesize

    path = folder / f"{seed}.parquet"
    if not path.exists():
        slow = (SlowWorker(0, 1, 1.3),)
        spec = SynthSpec(dp=2, pp=2, microbatches=4, steps=3, seed=seed, slow_workers=slow)
        parquet.write(synthesize(spec), path)
    return path


def kills(server: Server, rounds: int) -> None:
    """The service dies and comes back."""
    for _ in range(rounds):
        time.sleep(random.uniform(0.05, 2.0))
        server.kill()
        server.start()


def postgres_stops(database: Postgres) -> Callable[[Server, int], None]:
    """The database stops or crashes under load, or the service does, or both."""

    def trouble(server: Server, rounds: int) -> None:
        for _ in range(rounds):
            time.sleep(random.uniform(0.05, 2.0))
            what = random.choice(("database", "service", "both"))
            if what != "database":
                server.kill()
            if what != "service":
                database.stop(random.choice(("fast", "immediate")))
                time.sleep(random.uniform(0.0, 1.5))
                database.start()
            if what != "database":
                server.start()

    return trouble


def full_disk(folder: Path) -> Callable[[Server, int], None]:
    """The disk is filled to the last byte, and emptied; sometimes the service dies meanwhile."""

    def trouble(server: Server, rounds: int) -> None:
        ballast = folder / "ballast"
        for number in range(rounds):
            time.sleep(random.uniform(0.2, 1.0))
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            time.sleep(random.uniform(0.5, 2.0))
            if number % 10 == 9:
                server.kill()
            ballast.unlink()
            if number % 10 == 9:
                server.start()

    return trouble


def run(
    trouble: Callable[[Server, int], None],
    rounds: int,
    data: Path,
    traces: Path,
    store: str = "",
    seed: int = 0,
) -> dict[str, int]:
    """Make trouble ``rounds`` times; raises AssertionError where something is lost or twice."""
    random.seed(seed)
    with Server(data, *(["--store", store] if store else [])) as server:
        return _run(server, trouble, rounds, traces)


def _run(
    server: Server, trouble: Callable[[Server, int], None], rounds: int, traces: Path
) -> dict[str, int]:
    client = server.client(patience_s=300)
    streams = [Steps(client, f"steps-{n}", pause_s=0.01) for n in range(2)]
    uploads = Uploads(client, "traces", traces)
    for thread in (*streams, uploads):
        thread.start()
    trouble(server, rounds)
    for thread in (*streams, uploads):
        thread.end()
    for session in uploads.sessions.values():
        found = client.wait(session, 300)
        assert found["status"] == "done", found
    listed = list(client.sessions("traces"))
    hashes = [session["sha256"] for session in listed]
    assert len(set(hashes)) == len(hashes)
    assert {s["sha256"]: s["id"] for s in listed}.items() >= uploads.sessions.items()
    for session in listed:
        assert client.result(session["id"])["slowdown"] == session["slowdown"]
    _check_events(client, streams)
    jobs = {job["name"]: job["id"] for job in client.jobs()}
    assert server.stop() == 0
    for stream in streams:
        check_steps(server.data, jobs[stream.name], stream)
        _check_series(server.data, jobs[stream.name], stream)
    return {
        "rounds": rounds,
        "batches": sum(len(stream.acknowledged) for stream in streams),
        "sessions": len(uploads.sessions),
    }


def _check_events(client: Client, streams: list[Steps]) -> None:
    """Every stream has become slow once: one onset, though detectors were cut off at any moment."""
    for stream in streams:
        if len(stream.acknowledged) < stream.slow_from + 50:
            continue
        until = time.monotonic() + 30
        while not (onsets := [e for e in client.events(stream.name) if e["kind"] == "onset"]):
            assert time.monotonic() < until, f"no onset of {stream.name}"
            time.sleep(0.2)
        assert len(onsets) == 1, onsets
        assert abs(onsets[0]["since_step"] - stream.slow_from) <= 3, onsets


def _check_series(data: Path, job_id: int, stream: Steps) -> None:
    from paceline.monitor.step_files import StepFiles

    series = StepFiles(data / "steps").series(job_id, points=0)
    last = len(stream.acknowledged) - 1
    # A batch that was stored but not acknowledged may be there once more at the end.
    assert series.step.tolist()[: last + 1] == list(range(last + 1)), len(series.step)
    assert (series.samples == stream.ranks).all()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A tmpfs."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("kills", "postgres", "disk"), default="kills")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=os.getpid())
    args = parser.parse_args()
    begin = time.monotonic()
    paceline.client.CHUNK_BYTES = CHUNK_BYTES
    with (
        tempfile.TemporaryDirectory(prefix="paceline-durability-") as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        how, data, store = kills, folder / "data", ""
        if args.what == "postgres":
            database = stack.enter_context(Postgres())
            how, store = postgres_stops(database), database.url
        elif args.what == "disk":
            disk = stack.enter_context(small_disk(folder / "disk"))
            how, data = full_disk(disk), disk / "data"
        found = run(how, args.rounds, data, folder, store, args.seed)
    print(f"{args.what}, seed {args.seed}: {found}; {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
