"""One rank of small recorded training jobs: ``record_job.py KIND,KIND... RANK WORLD FOLDER``.

One after the other, each into the folder of its kind. Started by ``test_record_hooks.py``; gloo
over the loopback, one thread per rank.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import paceline.record as record

WIDTH, ROWS, MICROBATCHES, STEPS = 64, 16, 4, 6


class Slowed(nn.Module):
    """Layers whose forward and backward take as long as they are told, measured sleeps."""

    def __init__(self, sleep_s):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.sleep_s = sleep_s

    def forward(self, x):
        time.sleep(self.sleep_s)
        return Sleep.apply(self.layers(x * self.scale), self.sleep_s)


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sleep_s):
        ctx.sleep_s = sleep_s
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.sleep_s)
        return gradient, None


def pipeline(kind, rank, world, folder):
    from torch.distributed import pipelining

    pp = 2
    groups = [dist.new_group(list(range(first, first + pp))) for first in range(0, world, pp)]
    group, stage_rank = groups[rank // pp], rank % pp
    chunks = 2 if kind in ("interleaved", "zbv", "dualpipev") else 1
    parts = [Slowed(0.004 if stage_rank else 0.008) for _ in range(chunks)]
    places = [chunk * pp + stage_rank for chunk in range(chunks)]
    if kind in ("zbv", "dualpipev"):
        places = [stage_rank, 2 * pp - 1 - stage_rank]
    stages = [
        pipelining.PipelineStage(part, place, chunks * pp, torch.device("cpu"), group=group)
        for place, part in zip(places, parts, strict=True)
    ]
    names = {
        "1f1b": "Schedule1F1B",
        "gpipe": "ScheduleGPipe",
        "interleaved": "ScheduleInterleaved1F1B",
        "zb-h1": "ScheduleInterleavedZeroBubble",
        "zbv": "ScheduleZBVZeroBubble",
        "dualpipev": "ScheduleDualPipeV",
    }
    made = getattr(pipelining.schedules, names[kind])(
        stages[0] if kind in ("1f1b", "gpipe") else stages, MICROBATCHES, loss_fn=nn.MSELoss()
    )
    recorder = record.start(folder, every=2, sync_every=2)
    record.instrument_torch_pipelining(made)
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], 1e-2)
    x = torch.randn(ROWS, WIDTH)
    for number in range(STEPS):
        with recorder.step(number):
            optimizer.zero_grad()
            target = {"target": x} if chunks * pp - 1 in places else {}
            made.step(*([x] if stage_rank == 0 else []), **target)
            with recorder.op("optimizer"):
                optimizer.step()


def data_parallel(kind, rank, world, folder):
    # Rank 1 sleeps longer than a busy machine keeps rank 0 from waking up.
    model = Slowed(0.1 if rank else 0.005)
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
        for layer in (model.layers[0], model.layers[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    recorder = record.start(folder, every=2, sync_every=2)
    getattr(record, f"instrument_{kind}")(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for number in range(STEPS):
        with recorder.step(number):
            optimizer.zero_grad()
            for microbatch in range(2):
                last = microbatch == 1
                if kind == "ddp":
                    model.require_backward_grad_sync = last
                else:
                    model.set_requires_gradient_sync(last)
                model(torch.randn(ROWS, WIDTH)).square().mean().backward()
            with torch.no_grad():
                model(torch.randn(ROWS, WIDTH))
            optimizer.step()


def main(kinds, rank, world, folder):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{Path(folder) / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    for kind in kinds:
        job = data_parallel if kind in ("ddp", "fsdp") else pipeline
        job(kind, rank, world, str(Path(folder) / kind))
        record.current().close()
        dist.barrier()
    sys.stderr.flush()
    os._exit(0)  # past torch's teardown, which aborts now and then


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
