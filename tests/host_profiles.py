"""Profiles of data-parallel ranks on the host, written from programs that a small clock runs.

Events are called and nested as torch 2.13 writes them (read off profiles of real gloo jobs): the
host launches a collective in a ``c10d::`` operator, gloo runs it in a ``gloo:`` range on a thread
of its own, and what the host waits for shows in no event.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from import_files import dump

HOST, GLOO = 11, 12

#: What gloo runs for what the host launches.
RUNS = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "all_reduce"}
RUNS |= {"allreduce_": "all_reduce", "barrier": "barrier"}

#: From the end of a transfer to the host's next operator.
AWAKE_MS = 0.05


class Host:
    """One rank: a program that yields where it waits.

    ``shards`` and ``replicas`` are the ranks of its groups, where it is sharded in hybrid.
    """

    def __init__(self, factor: float = 1.0, rank: int = 0) -> None:
        self.factor, self.rank, self.now = factor, rank, 0.0
        self.events: list[dict] = []
        self.launched: list[tuple[str, float, tuple[int, ...]]] = []
        self.shards: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()

    def event(self, name: str, begin: float, cat: str = "cpu_op", thread: int = HOST) -> dict:
        """An event from ``begin`` to now; milliseconds."""
        item = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "args": {}}
        item |= {"ts": begin * 1e3, "dur": (self.now - begin) * 1e3}
        self.events.append(item)
        return item

    def op(self, name: str, ms: float, inner: str = "") -> None:
        """An operator that computes, slow on a slow rank, with another at its end."""
        begin = self.now
        self.now += ms * self.factor
        if inner:
            at = self.now
            self.now += 0.01
            self.event(inner, at)
        self.event(name, begin)
        self.now += 0.01

    def launch(self, name: str, ranks: tuple[int, ...] = ()) -> int:
        """Launch a collective of some ranks, or of all; its number."""
        begin = self.now
        self.now += 0.02
        self.event(f"c10d::{name}", begin)
        self.launched.append((name, begin, ranks))
        return len(self.launched) - 1

    def annotation(self, name: str, begin: float) -> None:
        """A range that ends now."""
        self.event(name, begin, "user_annotation")


def run(program: Callable, factors: Sequence[float], transfer_ms: float) -> list[Host]:
    """Run a program on all ranks; transfers are queued, and end on all ranks at once.

    A barrier takes next to no time, since steps are measured behind it.

    The program is a generator over its host that yields numbers of launches to wait for.
    """
    hosts = [Host(factor, rank) for rank, factor in enumerate(factors)]
    running = {rank: program(host) for rank, host in enumerate(hosts)}
    waits: dict[int, int] = {}
    ends: list[list[float]] = [[] for _ in hosts]
    while running:
        for rank, steps in list(running.items()):
            while rank not in waits or waits[rank] < len(ends[rank]):
                if rank in waits:
                    hosts[rank].now = max(hosts[rank].now, ends[rank][waits.pop(rank)]) + AWAKE_MS
                try:
                    waits[rank] = next(steps)
                except StopIteration:
                    del running[rank]
                    break
        while any(_end_next(hosts, ends, rank, transfer_ms) for rank in range(len(hosts))):
            pass
    for host, of_rank in zip(hosts, ends, strict=True):
        for (name, begin, _), end in zip(host.launched, of_rank, strict=True):
            ranged = host.event(f"gloo:{RUNS[name]}", begin + 0.03, "user_annotation", GLOO)
            ranged["dur"] = (end - begin - 0.03) * 1e3
    return hosts


def _end_next(
    hosts: Sequence[Host], ends: Sequence[list[float]], rank: int, transfer_ms: float
) -> bool:
    """End a rank's next transfer, if all of its ranks have launched it."""
    number = len(ends[rank])
    if len(hosts[rank].launched) <= number:
        return False
    name, _, ranks = hosts[rank].launched[number]
    members = ranks or range(len(hosts))
    if any(len(hosts[m].launched) <= number or len(ends[m]) < number for m in members):
        return False
    launch = max(hosts[m].launched[number][1] for m in members)
    before = max((ends[m][-1] for m in members if ends[m]), default=0.0)
    for m in members:
        ends[m].append(max(launch, before) + (0.05 if name == "barrier" else transfer_ms))
    return True


def write(hosts: Sequence[Host], folder: Path, groups: Sequence[dict] | None = None) -> list[Path]:
    """The profiles of a job's ranks."""
    ranks = list(range(len(hosts)))
    groups = groups or [{"pg_name": "0", "pg_desc": "default_pg", "ranks": ranks}]
    paths = []
    for rank, host in enumerate(hosts):
        mesh = {"mesh_replicate": host.replicas, "mesh_shard": host.shards}
        own = [
            {"pg_name": str(number), "pg_desc": name, "ranks": list(members)}
            for number, (name, members) in enumerate(mesh.items(), 1)
            if members
        ]
        info = {"rank": rank, "world_size": len(hosts), "pg_config": [*groups, *own]}
        value = {"distributedInfo": info, "traceEvents": host.events}
        paths.append(dump(value, folder / f"rank{rank}.json"))
    return paths


def stepped(step: Callable, steps: int = 3) -> Callable:
    """A program of several steps, each behind a barrier, as ``ProfilerStep#N``."""

    def program(host: Host):
        for number in range(steps):
            begin = host.now
            host.op("aten::empty", 0.01)
            yield host.launch("barrier")
            yield from step(host)
            began = host.now
            host.op("aten::add_", 0.5)
            host.annotation("Optimizer.step#SGD.step", began)
            host.annotation(f"ProfilerStep#{number}", begin)
            host.now += 0.02

    return program


UNITS, LAYER_MS = 3, 20.0


def forward(host: Host, ms: float = LAYER_MS) -> None:
    host.op("aten::linear", 0.1)
    host.op("Sleep", ms, "aten::clone")


def backward(host: Host, ms: float = 2 * LAYER_MS) -> None:
    begin = host.now
    host.op("SleepBackward", ms, "aten::clone")
    host.event("autograd::engine::evaluate_function: SleepBackward", begin)


def ddp(host: Host, barrier: bool = False):
    """Buckets are launched as gradients come, and awaited behind the backward."""
    for _ in range(UNITS):
        forward(host)
    if barrier:
        yield host.launch("barrier")
    buckets = []
    for _ in range(UNITS):
        backward(host)
        begin = host.now
        host.op("torch::autograd::AccumulateGrad", 0.05)
        buckets.append(host.launch("allreduce_"))
        host.event("autograd::engine::evaluate_function: AccumulateGrad", begin)
        host.now += 0.02
    yield from buckets


def fsdp(host: Host, microbatches: int = 1):
    """FSDP2: gathers that block, the next one behind the unit's own; scatters that block."""
    for microbatch in range(microbatches):
        for unit in range(UNITS):
            yield from gather(host, unit)
            copy_out(host, unit)
            forward(host)
        for unit in reversed(range(UNITS)):
            begin = host.now
            if unit == UNITS - 1:
                yield from gather(host, unit)
            copy_out(host, unit)
            if unit:
                yield from gather(host, unit - 1)
            host.op("SleepBackward", 2 * LAYER_MS, "aten::clone")
            host.event("autograd::engine::evaluate_function: SleepBackward", begin)
            if microbatch == microbatches - 1:
                yield from scatter(host, unit)
        if microbatches > 1:
            host.op("aten::item", 0.02)


def hsdp(host: Host):
    """Four ranks: FSDP2 in pairs of neighbours; behind each scatter the pairs sum their shards."""
    first = host.rank // 2 * 2
    host.shards, host.replicas = (first, first + 1), (host.rank % 2, host.rank % 2 + 2)
    yield from fsdp(host)


def gather(host: Host, unit: int, blocks: bool = True):
    begin = host.now
    host.op("fsdp::all_gather_copy_in", 0.05)
    number = host.launch("_allgather_base_", host.shards)
    if blocks:
        yield number
    host.now += 0.02
    host.annotation(f"FSDP::all_gather ({unit})", begin)
    host.now += 0.02
    return number


def copy_out(host: Host, unit: int) -> None:
    begin = host.now
    host.now += 0.01
    host.op("fsdp::split_with_sizes_copy", 0.05)
    host.annotation(f"FSDP::all_gather_copy_out ({unit})", begin)


def scatter(host: Host, unit: int):
    """The last unit's runs in a callback behind the last gradient."""
    begin = host.now
    host.op("fsdp::chunk_cat", 0.05)
    yield host.launch("_reduce_scatter_base_", host.shards)
    host.op("aten::div_", 0.05)
    if host.replicas:
        yield host.launch("allreduce_", host.replicas)
        host.op("aten::div_", 0.05)
    host.annotation(f"FSDP::post_backward_reduce ({unit})", begin)
    name = "autograd::engine::evaluate_function: RegisterPostBackwardFunctionBackward"
    if unit:
        host.event(name, begin)
    else:
        host.annotation("FSDP::root_post_backward_callback", begin)
