"""One rank of a small real job: ``job.py CASE RANK WORLD FOLDER FACTORS STEPS SEEN``.

Layers sleep for as long as they are told, so ranks do not compete for the cores; torch and gloo do
all else. FACTORS are those of the ranks, such as ``1,2,1,1``; SEEN is plain, recorded or profiled.
Prints the times of the steps in seconds and a digest of the losses.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH, ROWS = 32, 4
WIDE = 1024  # a layer is 4 MB: its transfer takes a share of the layer's time
LAYERS = 5
LAYER_S, WIDE_LAYER_S = 0.03, 0.06


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward_s, backward_s):
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Layer(nn.Module):
    def __init__(self, seconds, width=WIDTH):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seconds = seconds

    def forward(self, x):
        return Sleep.apply(torch.tanh(self.linear(x)), self.seconds, 2 * self.seconds)


def layers(factor, n=LAYERS, seconds=LAYER_S, width=WIDTH):
    return nn.Sequential(*(Layer(seconds * factor, width) for _ in range(n)))


class Loop:
    """Runs and times steps, recorded or profiled or neither."""

    def __init__(self, folder, rank, steps, seen):
        self.steps, self.times, self.losses = steps, [], []
        self.recorder = self.profiler = None
        if seen == "recorded":
            import paceline.record as record

            self.recorder = record.start(folder / "run", steps=range(2, steps), sync_every=2)
        elif seen == "profiled":
            from torch import profiler

            self.profiler = profiler.profile(
                activities=[profiler.ProfilerActivity.CPU],
                schedule=profiler.schedule(wait=1, warmup=1, active=steps - 2),
                on_trace_ready=lambda p: p.export_chrome_trace(str(folder / f"rank{rank}.json")),
            )
            self.profiler.start()

    def run(self, step):
        for number in range(self.steps):
            dist.barrier()
            began = time.perf_counter()
            if self.recorder is None:
                self.losses.append(step())
            else:
                with self.recorder.step(number):
                    self.losses.append(step())
            self.times.append(time.perf_counter() - began)
            if self.profiler is not None:
                self.profiler.step()


def fsdp(case, rank, world, factor, loop):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    shape, names = ((2, 2), ("replicate", "shard")) if case == "hsdp" else ((world,), ("shard",))
    mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)
    wide = "wide" in case
    width = WIDE if wide else WIDTH
    model = layers(factor, seconds=WIDE_LAYER_S if wide else LAYER_S, width=width)
    options = {"mesh": mesh}
    if case.endswith("-keep"):
        options["reshard_after_forward"] = False
    if case == "fsdp-mixed":
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    for layer in model:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    if "prefetch" in case:
        prefetch(list(model), int(case[-1]))
        model._set_unshard_async_op(True)
    if loop.recorder is not None:
        import paceline.record as record

        record.instrument_fsdp(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    microbatches = 3 if case.endswith(("-accumulate", "-each")) else 1
    x = torch.randn(ROWS, width)

    def step():
        optimizer.zero_grad()
        total = 0.0
        for microbatch in range(microbatches):
            last = microbatch == microbatches - 1
            model.set_requires_gradient_sync(last or case.endswith("-each"))
            loss = model(x).square().mean()
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        return total

    loop.run(step)


def prefetch(units, distance):
    """Gather units so many ahead, in both directions."""
    for order, ahead in (
        (units, lambda unit: unit.set_modules_to_forward_prefetch),
        (units[::-1], lambda unit: unit.set_modules_to_backward_prefetch),
    ):
        for i, unit in enumerate(order):
            if following := order[i + 1 : i + 1 + distance]:
                ahead(unit)(following)


def ddp(case, rank, world, factor, loop):
    wide = WIDE if "wide" in case else 128  # a layer is a bucket of 66 kB
    model = layers(factor, width=wide, seconds=WIDE_LAYER_S if wide == WIDE else LAYER_S)
    cap = {"ddp-one": 25, "ddp-wide": 3, "ddp-wide-each": 3, "ddp-wide-two": 8}.get(case, 0.05)
    cap = 25 if case == "ddp-wide-one" else cap
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=cap)
    if loop.recorder is not None:
        import paceline.record as record

        record.instrument_ddp(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    microbatches = 3 if case.endswith(("-accumulate", "-each")) else 1
    x = torch.randn(ROWS, wide)

    def step():
        optimizer.zero_grad()
        total = 0.0
        for microbatch in range(microbatches):
            last = microbatch == microbatches - 1
            model.require_backward_grad_sync = last or case.endswith("-each")
            loss = model(x).square().mean()
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        return total

    loop.run(step)


SCHEDULES = {"1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B"}


def pipeline(case, rank, world, factor, loop):
    from torch.distributed import pipelining

    chunks = 2 if case == "interleaved" else 1
    parts = [layers(factor, n=1) for _ in range(chunks)]
    stages = [
        pipelining.PipelineStage(part, chunk * world + rank, chunks * world, torch.device("cpu"))
        for chunk, part in enumerate(parts)
    ]
    schedule = getattr(pipelining, SCHEDULES[case])(
        stages if chunks > 1 else stages[0], n_microbatches=world, loss_fn=nn.MSELoss()
    )
    if loop.recorder is not None:
        import paceline.record as record

        record.instrument_torch_pipelining(schedule)
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], 1e-2)
    x = torch.randn(ROWS * world, WIDTH)

    def step():
        optimizer.zero_grad()
        losses = []
        last = {"target": x, "losses": losses} if rank == world - 1 else {}
        schedule.step(*([x] if rank == 0 else []), **last)
        if loop.recorder is None:
            optimizer.step()
        else:
            with loop.recorder.op("optimizer"):
                optimizer.step()
        return float(sum(losses)) if losses else 0.0

    loop.run(step)


def main(case, rank, world, folder, factors, steps, seen):
    rank, world, folder = int(rank), int(world), Path(folder)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    loop = Loop(folder, rank, int(steps), seen)
    factor = float(factors.split(",")[rank])
    kind = next(f for name, f in KINDS.items() if case.startswith(name))
    kind(case, rank, world, factor, loop)
    if loop.recorder is not None:
        loop.recorder.close()
    print(json.dumps({"times": loop.times, "losses": loop.losses}), flush=True)
    dist.barrier()
    os._exit(0)  # past torch's teardown, which aborts now and then


KINDS = {"fsdp": fsdp, "hsdp": fsdp, "ddp": ddp, "1f1b": pipeline, "interleaved": pipeline}

if __name__ == "__main__":
    main(*sys.argv[1:])
