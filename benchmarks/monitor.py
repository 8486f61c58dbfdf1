"""Load on the monitor from a second process: python benchmarks/monitor.py [--seconds 20].

1. Step times: 10,000 ranks, 50,000 samples a second in batches, kept up for a while: what is
   accepted, how long a batch takes, memory, processor time.
2. Sessions: 20 traces of 100,000 operations pushed at once: until all are analysed, peak memory of
   the service and its analyses together.
3. Bodies: a batch of 10,000 step times decoded and checked, per encoding, beside `json.loads`.
4. Pages: 2,000 jobs and 20,000 sessions in the store: how long they take (`monitor_pages.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from monitor_pages import bench_pages

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
        took, late, cpu = [], [], _cpu_s(server.process.pid)
        first = time.perf_counter()
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
        print(
            f"  a batch of {len(ranks):,}: {_times(took)}; sent late by {max(late):.2f} s at most"
        )
        print(f"  last step shown {behind:.1f} s after its batch; {server.memory_mib():.0f} MiB")
        print(f"  the service took {cpu / whole:.2f} of a core")


def bench_bodies(samples: int = 10_000, times: int = 50) -> None:
    """A batch as rows, as columns, and with columns as bytes."""
    from msgspec import msgpack

    from paceline.monitor.web.bodies import Body, check_values
    from paceline.monitor.web.pushed import batch_of

    steps = np.repeat(np.arange(5), samples // 5)
    ranks = np.tile(np.arange(samples // 5), 5)
    durations = np.random.default_rng(0).normal(1.0, 0.01, samples).round(6)
    columns = {"steps": steps, "ranks": ranks, "durations_s": durations}
    lists = {"batch": 1, **{name: values.tolist() for name, values in columns.items()}}
    rows = {"batch": 1, "samples": list(zip(*list(lists.values())[1:], strict=True))}
    kinds = {"steps": "<i8", "ranks": "<i4", "durations_s": "<f8"}
    packed = {name: values.astype(kinds[name]).tobytes() for name, values in columns.items()}

    def median_ms(work: Callable[[], object]) -> float:
        took = []
        for _ in range(times):
            begin = time.perf_counter()
            work()
            took.append(time.perf_counter() - begin)
        return float(np.median(took)) * 1e3

    def parse(content: bytes, is_msgpack: bool) -> object:
        if not is_msgpack:
            check_values(content)
        return batch_of(Body(content, is_msgpack), lambda: 0.0)

    print(f"bodies: a batch of {samples:,} step times, median of {times}")
    for name, values in (("rows", rows), ("columns", lists)):
        text, binary = json.dumps(values).encode(), msgpack.encode(values)
        print(
            f"  {name}: JSON {median_ms(partial(parse, text, False)):.2f} ms (json.loads alone "
            f"{median_ms(partial(json.loads, text)):.2f}), msgpack "
            f"{median_ms(partial(parse, binary, True)):.2f} ms"
        )
    binary = msgpack.encode({"batch": 1, **packed})
    print(f"  columns as bytes: msgpack {median_ms(partial(parse, binary, True)):.2f} ms")


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
    parser.add_argument("--only", choices=("steps", "sessions", "bodies", "pages"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
        if args.only in (None, "steps"):
            bench_steps(Path(scratch), args.seconds)
        if args.only in (None, "sessions"):
            bench_sessions(Path(scratch), args.sessions, args.ops)
        if args.only in (None, "bodies"):
            bench_bodies()
        if args.only in (None, "pages"):
            bench_pages(Path(scratch), 2000, 20_000)
