"""One rank of small real jobs: ``job.py JOBS WORLD RANK``.

Layers sleep for as long as they are told, so ranks do not compete for the cores; torch and gloo do
all else. JOBS is a JSON list of [case, folder, factors of the ranks, steps, seen, nics], ``seen``
being plain, recorded or profiled, and ``nics`` a list of [rank, bytes a second, steps]: in these
steps what the rank sends is paced to that rate by the kernel. At the end a line of JSON for each
job tells the times of the steps in seconds, and the losses.
"""

import contextlib
import json
import os
import socket
import stat
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH, ROWS = 32, 4
WIDE = 1024  # a layer is 4 MB: its transfer takes a share of the layer's time
MIDDLE, MIDDLE_ROWS = 512, 4096  # a layer is 1 MB, a message between stages 512 kB
MIDDLE_LAYERS = 3
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


class SplitLayer(Layer):
    """Takes as long for the gradient of its weights as for that of its input."""

    def forward(self, x):
        weight = Sleep.apply(self.linear.weight, 0.0, self.seconds)
        y = torch.tanh(nn.functional.linear(x, weight, self.linear.bias))
        return Sleep.apply(y, self.seconds, self.seconds)


class Ahead(nn.Sequential):
    """Asks FSDP for each layer's parameters before the layer in front of it runs."""

    def forward(self, x):
        units = [*self]
        for number, layer in enumerate(units):
            for following in units[number + 1 : number + 2]:
                following.unshard(async_op=True)
            x = layer(x)
        return x


def layers(factor, n=LAYERS, seconds=LAYER_S, width=WIDTH):
    return nn.Sequential(*(Layer(seconds * factor, width) for _ in range(n)))


#: Linux: bytes a second that a socket sends at most; TCP keeps to it without a queueing discipline.
SO_MAX_PACING_RATE = 47
UNPACED = 2**32 - 1  # unsigned


def pace(rate):
    """Limit what this process sends on each of its TCP connections, bytes a second."""
    limit = rate.to_bytes(4, sys.byteorder)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the listing's own is closed
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as connection:
                    if connection.family != socket.AF_UNIX:
                        connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, limit)


class Loop:
    """Runs and times steps, recorded or profiled or neither, the NIC slow in some."""

    def __init__(self, folder, rank, steps, seen, nics, degrees):
        self.nics = [(rate, slow) for of, rate, slow in nics if of == rank]
        self.steps, self.times, self.losses = steps, [], []
        self.recorder = self.profiler = None
        if seen == "recorded":
            import paceline.record as record

            options = {"steps": range(2, steps), "sync_every": 2, **degrees}
            self.recorder = record.start(folder / "run", **options)
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
            for rate, slow in self.nics:
                pace(rate if number in slow else UNPACED)
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
        if self.nics:  # the next job has the same connections
            pace(UNPACED)


def fsdp(case, rank, world, factor, loop):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    shape, names = (
        ((2, 2), ("replicate", "shard")) if case.startswith("hsdp") else ((world,), ("shard",))
    )
    mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)
    wide = "wide" in case
    width = WIDE if wide else MIDDLE if case.endswith("-middle") else WIDTH
    n = MIDDLE_LAYERS if width == MIDDLE else LAYERS
    model = layers(factor, n, seconds=WIDE_LAYER_S if wide else LAYER_S, width=width)
    if case == "fsdp-unshard":
        model = Ahead(*model)
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
    wide, n = (MIDDLE, MIDDLE_LAYERS) if case.endswith("-middle") else (wide, LAYERS)
    model = layers(factor, n, width=wide, seconds=WIDE_LAYER_S if wide == WIDE else LAYER_S)
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


def zero(case, rank, world, factor, loop):
    from zero_jobs import zero

    zero(case, rank, world, layers(factor), loop, ROWS, WIDTH)


class Block(nn.Module):
    """A tensor-parallel block: up, its rank's work, down."""

    def __init__(self, seconds):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.seconds = seconds

    def forward(self, x):
        return self.down(Sleep.apply(torch.tanh(self.up(x)), self.seconds, 2 * self.seconds))


def tensor(case, rank, world, factor, loop):
    """Tensor parallelism by torch's DTensor; beside FSDP2 in fsdp-tp."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import parallel

    sharded = case == "tp-fsdp"
    shape = (world // 2, 2) if sharded else (1, world)
    mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(*(Block(LAYER_S * factor) for _ in range(LAYERS)))
    for block in model:
        plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
        parallel.parallelize_module(block, mesh["tp"], plan)
    if sharded:
        for block in model:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    if loop.recorder is not None:
        import paceline.record as record

        (record.instrument_fsdp if sharded else record.instrument_model)(model)
        record.instrument_groups(tensor=mesh["tp"], each=not case.endswith("sums"))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    x = torch.randn(ROWS, WIDTH)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    loop.run(step)


class Experts(nn.Module):
    """A layer of experts, one a rank: tokens go to them and come back, as torchtitan sends them."""

    def __init__(self, seconds, group):
        super().__init__()
        self.linear, self.seconds, self.group = nn.Linear(WIDTH, WIDTH), seconds, group

    def forward(self, x):
        from torch.distributed import _functional_collectives as funcol

        sent = funcol.all_to_all_single_autograd(x, None, None, self.group)
        done = Sleep.apply(torch.tanh(self.linear(sent)), self.seconds, 2 * self.seconds)
        return funcol.all_to_all_single_autograd(done, None, None, self.group)


def experts(case, rank, world, factor, loop):
    """Expert parallelism beside DDP, whose parameters are all alike here."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    group = groups[rank // 2]
    model = nn.Sequential(*(Experts(LAYER_S * factor, group) for _ in range(LAYERS)))
    model = nn.parallel.DistributedDataParallel(model)
    if loop.recorder is not None:
        import paceline.record as record

        record.instrument_ddp(model)
        record.instrument_groups(expert=group)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    x = torch.randn(ROWS, WIDTH)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    loop.run(step)


class Ring(torch.autograd.Function):
    """Keys go once around the ring of context-parallel ranks, a sleep for each of them."""

    @staticmethod
    def forward(ctx, x, seconds, group):
        ctx.seconds, ctx.group = seconds, group
        return ring(x, seconds, group)

    @staticmethod
    def backward(ctx, gradient):
        return ring(gradient.contiguous(), 2 * ctx.seconds, ctx.group), None, None


def ring(x, seconds, group):
    ranks = dist.get_process_group_ranks(group)
    place, total, held = ranks.index(dist.get_rank()), torch.zeros_like(x), x.clone()
    for turn in range(len(ranks)):
        works, taken = [], torch.empty_like(held)
        if turn < len(ranks) - 1:
            onwards, back = ranks[(place + 1) % len(ranks)], ranks[place - 1]
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, held, onwards, group),
                    dist.P2POp(dist.irecv, taken, back, group),
                ]
            )
        time.sleep(seconds / len(ranks))
        total = total + held
        for work in works:
            work.wait()
        held = taken
    return total / len(ranks)


class Attention(nn.Module):
    def __init__(self, seconds, group):
        super().__init__()
        self.linear, self.seconds, self.group = nn.Linear(WIDTH, WIDTH), seconds, group

    def forward(self, x):
        return Ring.apply(torch.tanh(self.linear(x)), self.seconds, self.group)


def context(case, rank, world, factor, loop):
    """Context parallelism by a ring of transfers, and DDP over all ranks."""
    group = dist.new_group(list(range(world)))
    model = nn.Sequential(*(Attention(LAYER_S * factor, group) for _ in range(LAYERS)))
    model = nn.parallel.DistributedDataParallel(model)
    if loop.recorder is not None:
        import paceline.record as record

        record.instrument_ddp(model)
        record.instrument_groups(context=group)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    x = torch.randn(ROWS, WIDTH)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    loop.run(step)


#: Case -> schedule of torch, chunks of a stage.
SCHEDULES = {
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "zb-h1": ("ScheduleInterleavedZeroBubble", 1),
    "zbv": ("ScheduleZBVZeroBubble", 2),
    "dualpipev": ("ScheduleDualPipeV", 2),
}


def pipeline(case, rank, world, factor, loop):
    from torch.distributed.pipelining import PipelineStage, schedules

    name, chunks = SCHEDULES[case.removesuffix("-middle")]
    layer = Layer if case.startswith(("1f1b", "interleaved")) else SplitLayer
    parts = [nn.Sequential(layer(LAYER_S * factor)) for _ in range(chunks)]
    places = [chunk * world + rank for chunk in range(chunks)]
    if case in ("zbv", "dualpipev"):
        places = [rank, 2 * world - 1 - rank]
    stages = [
        PipelineStage(part, place, chunks * world, torch.device("cpu"))
        for place, part in zip(places, parts, strict=True)
    ]
    microbatches = 2 * world if case == "dualpipev" else world
    schedule = getattr(schedules, name)(
        stages[0] if case.startswith("1f1b") else stages, microbatches, loss_fn=nn.MSELoss()
    )
    if loop.recorder is not None:
        import paceline.record as record

        record.instrument_torch_pipelining(schedule)
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], 1e-2)
    rows = MIDDLE_ROWS if case.endswith("-middle") else ROWS
    x = torch.randn(rows * microbatches, WIDTH)

    def step():
        optimizer.zero_grad()
        losses = []
        last = {"target": x, "losses": losses} if chunks * world - 1 in places else {}
        schedule.step(*([x] if rank == 0 else []), **last)
        if loop.recorder is None:
            optimizer.step()
        else:
            with loop.recorder.op("optimizer"):
                optimizer.step()
        return float(sum(losses)) if losses else 0.0

    loop.run(step)


def sharded_pipeline(case, rank, world, factor, loop):
    """Two stages, each sharded by FSDP2 over two data-parallel ranks."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    model = layers(factor, n=2)
    for layer in model:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    group = mesh["pp"].get_group()
    stage = PipelineStage(model, mesh["pp"].get_local_rank(), 2, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.MSELoss())
    if loop.recorder is not None:
        import paceline.record as record

        record.instrument_torch_pipelining(schedule)
        record.instrument_fsdp(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    x = torch.randn(ROWS * 4, WIDTH)

    def step():
        optimizer.zero_grad()
        losses = []
        last = {"target": x, "losses": losses} if stage.is_last else {}
        schedule.step(*([x] if stage.is_first else []), **last)
        optimizer.step()
        return float(sum(losses)) if losses else 0.0

    loop.run(step)


def megatron(case, rank, world, factor, loop):
    from megatron_jobs import megatron

    megatron(case, rank, world, factor, loop, Layer, ROWS, WIDTH, LAYER_S)


def main(jobs, world, rank):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    jobs, world, rank = json.loads(jobs), int(world), int(rank)
    store = f"file://{jobs[0][1]}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    told = [run(*job, world, rank) for job in jobs]
    print("", *map(json.dumps, told), sep="\n", flush=True)
    dist.barrier()
    os._exit(0)  # past torch's teardown, which aborts now and then


def run(case, folder, factors, steps, seen, nics, world, rank):
    """One job; what it tells of its steps."""
    torch.manual_seed(0)
    loop = Loop(Path(folder), rank, steps, seen, nics, DEGREES.get(case, {}))
    kind = next(f for name, f in KINDS.items() if case.startswith(name))
    kind(case, rank, world, factors[rank], loop)
    if loop.recorder is not None:
        loop.recorder.close()
    dist.barrier()
    return {"times": loop.times, "losses": loop.losses}


DEGREES = {"tp": {"tp": 4}, "tp-sums": {"tp": 4}, "tp-fsdp": {"tp": 2}}
DEGREES |= {"cp": {"cp": 4}, "cp-odd": {"cp": 3}}

KINDS = {
    "pp-fsdp": sharded_pipeline,
    "tp": tensor,
    "ep": experts,
    "megatron": megatron,
    "cp": context,
    "fsdp": fsdp,
    "hsdp": fsdp,
    "ddp": ddp,
    "zero": zero,
    **dict.fromkeys(SCHEDULES, pipeline),
}

if __name__ == "__main__":
    main(*sys.argv[1:])
