"""What recording costs: one training, run by run with the recorder on and off in turns.

    python benchmarks/record.py [--rounds 150] [--steps 10]

Trains a small transformer on the CPU (torch, one thread); forwards and backwards of 8 microbatches
and the optimizer are recorded by ``record.op``. A round is three runs of some steps in turning
order: without a recorder, with 10% of the steps profiled (the default), with all of them. All runs
are of one process, so that they share what else the machine does. A share is the mean over rounds
of the paired difference of medians, outer tenths left out, with its standard error. Work of the
writer's thread may fall into another run; its CPU time is told apart. On a busy machine look at
the CPU time of the training thread, which does not count what it waits. Last that of one operation
and of one batch alone, and what a recorder keeps in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
MODES = ("off", "10%", "every step")
MICROBATCHES = 8
BATCHES = ("no line", "nothing records", "not profiled", "in a block")


def train(rounds: int, steps: int) -> dict[str, object]:
    """[mode][round] median step time of a run, and of its CPU time; writers' CPU s; bytes."""
    import torch
    from torch import nn

    import paceline.record as record

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    x = torch.randn(1, 32, 128)
    with tempfile.TemporaryDirectory() as folder:
        recorders = {"off": Off()}
        for mode, every in (("10%", 10), ("every step", 1)):
            recorders[mode] = record.Recorder(f"{folder}/{every}", every=every)
        number = dict.fromkeys(MODES, 0)

        def step(mode: str) -> tuple[float, float]:
            recorder = recorders[mode]
            begin, cpu = time.perf_counter(), time.thread_time()
            with recorder.step(number[mode]):
                optimizer.zero_grad()
                for m in range(MICROBATCHES):
                    with recorder.op("forward-compute", microbatch=m):
                        loss = model(x).square().mean()
                    with recorder.op("backward-compute", microbatch=m):
                        loss.backward()
                with recorder.op("optimizer"):
                    optimizer.step()
            number[mode] += 1
            return time.perf_counter() - begin, time.thread_time() - cpu

        for _ in range(10):
            step("off")
        times: dict[str, list[float]] = {mode: [] for mode in MODES}
        cpu_times: dict[str, list[float]] = {mode: [] for mode in MODES}
        for i in range(rounds):
            for k in range(len(MODES)):
                mode = MODES[(i + k) % len(MODES)]
                wall, cpu = zip(*(step(mode) for _ in range(steps)), strict=True)
                times[mode].append(statistics.median(wall))
                cpu_times[mode].append(statistics.median(cpu))
        writing, size = {"off": 0.0}, {"off": 0.0}
        for mode, every in (("10%", 10), ("every step", 1)):
            thread = recorders[mode]._writer._thread
            clock = time.pthread_getcpuclockid(thread.ident)
            writing[mode] = time.clock_gettime(clock) / number[mode]
            recorders[mode].close()
            files = Path(f"{folder}/{every}").iterdir()
            size[mode] = sum(file.stat().st_size for file in files) / number[mode]
    return {"times": times, "cpu_times": cpu_times, "writing": writing, "bytes": size}


class Off:
    """No recorder at all."""

    def step(self, number: int) -> Off:
        return self

    def op(self, kind: str, microbatch: int = -1) -> Off:
        return self

    def __enter__(self) -> Off:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def close(self) -> None:
        return None


def per_op(ops: int, steps: int) -> dict[str, float]:
    """us of processor time for one recorded operation and for one that is not."""
    import paceline.record as record

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, every in (("recorded", 1), ("not profiled", 10**9)):
            recorder = record.start(f"{folder}/{every}", every=every, flush_s=0.2)
            best = []
            for number in range(1, steps + 1):
                begin = time.thread_time()
                with recorder.step(number):
                    for m in range(ops):
                        with recorder.op("forward-compute", microbatch=m):
                            pass
                best.append((time.thread_time() - begin) / ops)
            recorder.close()
            found[name] = 1e6 * statistics.median(best)
    return found


def per_batch(batches: int, rounds: int) -> dict[str, float]:
    """us of processor time that ``record.batches`` adds to one batch, median over the rounds."""
    import paceline.record as record

    def took(data: Iterator[int]) -> float:
        begin = time.thread_time()
        for _ in data:
            pass
        return (time.thread_time() - begin) / batches

    times: dict[str, list[float]] = {name: [] for name in BATCHES}
    for _ in range(rounds):
        times["no line"].append(took(iter(range(batches))))
        times["nothing records"].append(took(record.batches(iter(range(batches)))))
    with tempfile.TemporaryDirectory() as folder, record.start(folder, every=2) as recorder:
        for number in range(2 * rounds):
            data = record.batches(iter(range(batches)))
            with recorder.step(number):
                if number % 2:
                    times["not profiled"].append(took(data))
                else:
                    with recorder.op("forward-compute", microbatch=0):
                        times["in a block"].append(took(data))
    plain = statistics.median(times.pop("no line"))
    return {name: 1e6 * (statistics.median(of)) - 1e6 * plain for name, of in times.items()}


def memory() -> dict[str, float]:
    """Growth of the process in MB: with a recorder, and with its buffer full."""
    import paceline.record as record
    from paceline.record import writer

    before = resident()
    with tempfile.TemporaryDirectory() as folder:
        recorder = record.start(folder, every=1, flush_s=3600)
        started = resident()
        number = 0
        while recorder._writer.dropped_steps < 5:
            with recorder.step(number):
                for m in range(500):
                    with recorder.op("forward-compute", microbatch=m):
                        pass
            number += 1
        full = resident()
        recorder.close()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "waiting": writer.MAX_WAITING,
        "started": started - before,
        "full": full - before,
        "while it is written": peak - before,
    }


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def share(times: list[float], off: list[float]) -> tuple[float, float]:
    """How much longer than off, and the standard error of that; the outer tenths left out."""
    apart = sorted(a / b - 1 for a, b in zip(times, off, strict=True))
    cut = len(apart) // 10
    kept = apart[cut : len(apart) - cut]
    return statistics.mean(kept), statistics.stdev(kept) / len(kept) ** 0.5


def run(*args: object) -> dict[str, object]:
    env = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", *map(str, args)]
    out = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--child", nargs="+")
    args = parser.parse_args()
    if args.child:
        what, *more = args.child
        told = {"train": train, "per_op": per_op, "per_batch": per_batch, "memory": memory}[what]
        print(json.dumps(told(*(int(a) if a.isdecimal() else a for a in more))))
        return
    found = run("train", args.rounds, args.steps)
    times = found["times"]
    print(f"{args.rounds} rounds, runs of {args.steps} steps, {2 * MICROBATCHES + 1} ops a step")
    print(
        f"{'':12s} {'step':>10s} {'over off':>17s} {'in CPU time':>17s} {'writer, CPU':>12s} "
        f"{'a step':>12s}"
    )
    for mode in MODES:
        step_s = statistics.median(times[mode])
        over, error = share(times[mode], times["off"])
        over_cpu, error_cpu = share(found["cpu_times"][mode], found["cpu_times"]["off"])
        writing = found["writing"][mode] / step_s
        print(
            f"{mode:12s} {1e3 * step_s:7.2f} ms {100 * over:+8.2f}% ±{100 * error:5.2f}% "
            f"{100 * over_cpu:+8.2f}% ±{100 * error_cpu:5.2f}% "
            f"{100 * writing:11.3f}% {found['bytes'][mode]:6.0f} bytes"
        )
    cost = run("per_op", 500, 40)
    print(
        f"one op, CPU time: recorded {cost['recorded']:.2f} us, in a step not profiled "
        f"{cost['not profiled']:.2f} us"
    )
    added = run("per_batch", 1000, 40)
    print(
        f"one batch by record.batches, CPU time: {added['nothing records']:+.2f} us where nothing "
        f"records, {added['not profiled']:+.2f} us in a step, {added['in a block']:+.2f} us in a "
        "block of a profiled one"
    )
    used = run("memory")
    print(
        f"memory: {used['started']:.1f} MB started, {used['full']:.1f} MB with {used['waiting']:,} "
        f"ops waiting, {used['while it is written']:.1f} MB at most while they are written"
    )


if __name__ == "__main__":
    main()
