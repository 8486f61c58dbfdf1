"""What the hooks of DDP cost: steps with operations and without them, in turns, in one process.

    python benchmarks/hooks.py [--pairs 750] [--microbatches 2] [--sleep 0.1]

Two gloo ranks train a small transformer (24 parameters) under DDP; every other step is profiled. A
number is a median over the steps of rank 0, their difference the median over neighbours with its
standard error. CPU time is that of the training thread. ``--sleep``: the forwards of a step sleep
that many seconds in all, to show the share of a longer step.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
WARM_UP = 100


def train(pairs: int, microbatches: int, sleep_s: float) -> list[tuple[float, float]]:
    """(wall, CPU) seconds of the steps; those with even numbers are profiled."""
    import torch
    import torch.distributed as dist
    from torch import nn

    import paceline.record as record

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(2, 8, 32)
    n_steps = WARM_UP + 2 * pairs
    recorder = record.start(tempfile.mkdtemp(), steps=range(0, n_steps, 2), sync_every=0)
    record.instrument_ddp(model)
    times = []
    for number in range(n_steps):
        wall, cpu = time.perf_counter(), time.thread_time()
        with recorder.step(number):
            for m in range(microbatches):
                model.require_backward_grad_sync = m == microbatches - 1
                time.sleep(sleep_s / microbatches)
                model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        times.append((time.perf_counter() - wall, time.thread_time() - cpu))
    recorder.close()
    return times[WARM_UP:]


def run(*args: object) -> list[tuple[float, float]]:
    """Rank 0's times."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fixed = {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    fixed |= {"WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", *map(str, args)],
            env={**os.environ, **fixed, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    out, _ = zip(*(rank.communicate() for rank in ranks), strict=True)
    return json.loads(out[0].splitlines()[-1])


def show(name: str, times_s: tuple[float, ...]) -> None:
    profiled, off = times_s[::2], times_s[1::2]
    off_s = statistics.median(off)
    differences = sorted(a - b for a, b in zip(profiled, off, strict=True))
    n = len(differences)
    # Standard error of a median, from the order statistics around it.
    half = n**0.5 / 2
    error_s = (differences[int(n / 2 + half)] - differences[int(n / 2 - half)]) / 2
    more_s = statistics.median(differences)
    print(
        f"{name:5s} off {1e3 * off_s:8.3f} ms, "
        f"profiled {1e3 * more_s:+7.3f} ±{1e3 * error_s:6.3f} ms = {100 * more_s / off_s:+5.2f}%"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=750)
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--child", nargs=3)
    args = parser.parse_args()
    if args.child:
        pairs, microbatches, sleep_s = args.child
        print(json.dumps(train(int(pairs), int(microbatches), float(sleep_s))))
        return
    wall_s, cpu_s = zip(*run(args.pairs, args.microbatches, args.sleep), strict=True)
    print(f"{args.pairs} pairs of steps, {args.microbatches} microbatches")
    show("wall", wall_s)
    show("CPU", cpu_s)


if __name__ == "__main__":
    main()
