"""Kill -9 at random moments, by hand: python tests/monitor_durability.py [rounds] [postgresql://...].

Streams step times and uploads traces without a pause while the service is killed and started again,
then compares what was acknowledged with what is there.
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from monitor_lab import Server, Steps, check_steps

from paceline.client import Client


class Uploads(threading.Thread):
    """Uploads one new trace after the other, in small chunks; remembers the sessions."""

    def __init__(self, client: Client, name: str, folder: Path, pause_s: float = 0.3) -> None:
        super().__init__(daemon=True)
        self.client, self.name, self.folder, self.pause_s = client, name, folder, pause_s
        self.sessions: dict[str, int] = {}
        self.error: BaseException | None = None
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while not self._over.wait(self.pause_s):
                path = make_trace(self.folder, len(self.sessions))
                session = self.client.push_trace(self.name, path)
                self.sessions[hashlib.sha256(path.read_bytes()).hexdigest()] = session
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._over.set()
        self.join(120)
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


def run(rounds: int, folder: Path, store: str = "", seed: int = 0) -> dict[str, int]:
    """Kill the service ``rounds`` times; raises AssertionError where something is lost or twice."""
    import paceline.client

    paceline.client.CHUNK_BYTES = 4096  # many requests per trace
    random.seed(seed)
    server = Server(folder / "data", *(["--store", store] if store else [])).start()
    client = server.client(patience_s=300)
    streams = [Steps(client, f"steps-{n}") for n in range(2)]
    uploads = Uploads(client, "traces", folder)
    for thread in (*streams, uploads):
        thread.start()
    for _ in range(rounds):
        time.sleep(random.uniform(0.05, 2.0))
        server.kill()
        server.start()
    for thread in (*streams, uploads):
        thread.end()
    for session in uploads.sessions.values():
        found = client.wait(session, 300)
        assert found["status"] == "done", found
    listed = list(client.sessions("traces"))
    hashes = [session["sha256"] for session in listed]
    assert len(set(hashes)) == len(hashes)
    assert {s["sha256"]: s["id"] for s in listed}.items() >= uploads.sessions.items()
    for session in listed[:20]:
        assert client.result(session["id"])["slowdown"] == session["slowdown"]
    _check_events(client, streams)
    jobs = {job["name"]: job["id"] for job in client.jobs()}
    assert server.stop() == 0
    for stream in streams:
        check_steps(server.data, jobs[stream.name], stream)
        _check_series(server.data, jobs[stream.name], stream)
    return {
        "kills": rounds,
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


if __name__ == "__main__":
    n_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory(prefix="paceline-durability-") as scratch:
        print(run(n_rounds, Path(scratch), sys.argv[2] if len(sys.argv) > 2 else ""))
