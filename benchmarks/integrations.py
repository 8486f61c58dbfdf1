"""What the callback of the Hugging Face Trainer costs: trainings with it and without it, in turns.

    python benchmarks/integrations.py [--rounds 20] [--steps 40] [--sleep 0.1]

Needs transformers and accelerate. Two gloo ranks train a small transformer under DDP, 2
microbatches a step. A round is three trainings in turning order, each by a Trainer and a model of
its own: without the callback, with 10% of the steps profiled (the default), with all of them. A
training's number is the median over its steps from the end of one to the end of the next, callbacks
included; what is printed is the mean over rounds of the paired difference, outer tenths left out,
with its standard error. CPU time is that of rank 0's training thread. ``--sleep``: the forwards of
a step sleep that many seconds in all, for step times on a busy machine; 0 (the default) shows the
CPU time best.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from record import share

SRC = Path(__file__).parents[1] / "src"
MODES = {"off": None, "10%": 10, "every step": 1}
MICROBATCHES, WARM_UP = 2, 5


def train(rounds: int, steps: int, sleep_s: float) -> dict[str, dict[str, list[list[float]]]]:
    """[what][mode] medians of wall and CPU seconds of the trainings' steps."""
    import torch
    from torch import nn
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers import logging as hf_logging

    import paceline.integrations

    logging.disable(logging.WARNING)
    hf_logging.set_verbosity_error()
    torch.set_num_threads(1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            time.sleep(sleep_s / MICROBATCHES)
            return {"loss": self.net(x).square().mean()}

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.marks: list[tuple[float, float]] = []

        def on_step_end(self, *_: object, **__: object) -> None:
            self.marks.append((time.perf_counter(), time.thread_time()))

    data = [{"x": torch.randn(8, 32)} for _ in range(4 * MICROBATCHES * steps)]

    def training(every: int | None, folder: str) -> list[float]:
        args = TrainingArguments(
            output_dir=f"{folder}/out",
            per_device_train_batch_size=2,
            gradient_accumulation_steps=MICROBATCHES,
            max_steps=steps,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            ddp_find_unused_parameters=False,
        )
        trainer = Trainer(Model(), args, train_dataset=data)
        if every is not None:
            recorder = paceline.integrations.transformers.Recorder(f"{folder}/run", every=every)
            trainer.add_callback(recorder)
        clock = Clock()
        trainer.add_callback(clock)  # behind the recorder: its end of a step counts
        trainer.train()
        marks = clock.marks[WARM_UP:]
        both = pairwise(marks)
        apart = [(after[0] - before[0], after[1] - before[1]) for before, after in both]
        return [statistics.median(one) for one in zip(*apart, strict=True)]

    found: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    names = list(MODES)
    for i in range(-1, rounds):
        for k in range(len(names)):
            mode = names[(i + k) % len(names)]
            folder = tempfile.mkdtemp()
            medians = training(MODES[mode], folder)
            shutil.rmtree(folder, ignore_errors=True)
            if i >= 0:  # the first round warms up
                found[mode].append(medians)
    return {"medians": found}


def run(*args: object) -> dict[str, dict[str, list[list[float]]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fixed = {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    fixed |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", *map(str, args)],
            env={**os.environ, **fixed, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    out, _ = zip(*(rank.communicate() for rank in ranks), strict=True)
    return json.loads(out[0].splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--child", nargs=3)
    args = parser.parse_args()
    if args.child:
        rounds, steps, sleep_s = args.child
        print(json.dumps(train(int(rounds), int(steps), float(sleep_s))))
        return
    medians = run(args.rounds, args.steps, args.sleep)["medians"]
    print(f"{args.rounds} rounds, trainings of {args.steps} steps, {MICROBATCHES} microbatches")
    print(f"{'':12s} {'step':>11s} {'over off':>17s} {'CPU time':>11s} {'over off':>20s}")
    off_s, off_cpu_s = zip(*medians["off"], strict=True)
    for mode in MODES:
        step_s, cpu_s = zip(*medians[mode], strict=True)
        over, error = share(step_s, off_s)
        over_cpu, error_cpu = share(cpu_s, off_cpu_s)
        cpu_ms = 1e3 * statistics.median(off_cpu_s)
        print(
            f"{mode:12s} {1e3 * statistics.median(step_s):8.2f} ms "
            f"{100 * over:+8.2f}% ±{100 * error:5.2f}% {1e3 * statistics.median(cpu_s):8.3f} ms "
            f"{over_cpu * cpu_ms:+8.3f} ±{error_cpu * cpu_ms:6.3f} ms"
        )


if __name__ == "__main__":
    main()
