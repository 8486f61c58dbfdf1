"""A real pipeline job on gloo, profiled: ``python pipeline_job.py FOLDER RANK WORLD``.

Runs each schedule for some steps; writes ``FOLDER/SCHEDULE/rankN.json.gz``, the profile, and
``FOLDER/SCHEDULE/forwardsN.json``: when the modules' forwards ran, as [start, end] in seconds.
"""

import json
import os
import sys
import time
from pathlib import Path

MICROBATCHES, STEPS, WIDTH = 4, 3, 192
SCHEDULES = ("gpipe", "1f1b", "one", "two")  # one and two: interleaved, with so many chunks


def main(folder: Path, rank: int, world: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    for name in SCHEDULES:
        (folder / name).mkdir(exist_ok=True)
        run(folder / name, name, rank, world)
        dist.barrier()
    dist.destroy_process_group()


def run(folder: Path, name: str, rank: int, world: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import pipelining
    from torch.profiler import ProfilerActivity, profile, schedule

    chunks = 2 if name == "two" else 1
    forwards: list[tuple[float, float]] = []
    models = [model(forwards) for _ in range(chunks)]
    stages = [
        pipelining.PipelineStage(module, rank + world * i, world * chunks, torch.device("cpu"))
        for i, module in enumerate(models)
    ]
    kind = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}.get(
        name, pipelining.ScheduleInterleaved1F1B
    )
    pipeline = kind(
        stages[0] if name in ("gpipe", "1f1b") else stages, MICROBATCHES, loss_fn=squared
    )
    optimizer = torch.optim.SGD(torch.nn.ModuleList(models).parameters(), lr=1e-3)
    inputs = torch.randn(64 * MICROBATCHES, WIDTH)
    cycle = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=cycle, acc_events=True) as profiler:
        for step in range(STEPS + 1):
            if step == 1:
                forwards.clear()
            optimizer.zero_grad()
            if rank == 0:
                pipeline.step(inputs)
            else:
                pipeline.step(target=inputs, losses=[])
            dist.all_reduce(torch.zeros(1))
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json.gz"))
    (folder / f"forwards{rank}.json").write_text(json.dumps(forwards))


def model(forwards: list[tuple[float, float]]):
    import torch

    class Timed(torch.nn.Sequential):
        def forward(self, value):
            begin = time.time()
            value = super().forward(value)
            forwards.append((begin, time.time()))
            return value

    return Timed(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))


def squared(output, target):
    return ((output - target) ** 2).mean()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
