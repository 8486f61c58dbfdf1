"""PyTorch profiles of two simulated GPUs that shard parameters, with stream waits or without."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from import_files import dump

MAIN_THREAD, AUTOGRAD = 1, 2
COMPUTE, GATHER, SCATTER = 7, 20, 24
GROUPS = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]
UNITS = 3


class Gpu:
    """A rank's events, milliseconds; the host runs ahead, a call each 0.01 ms.

    Streams run what is launched in order, and wait as told. Collectives end together: their ends
    are given.
    """

    def __init__(self, factor: float, ends: dict[int, float]) -> None:
        self.events: list[dict] = []
        self.factor, self.ends = factor, ends
        self.free = {COMPUTE: 0.0, GATHER: 0.0, SCATTER: 0.0}
        self.recorded: dict[int, tuple[int, float]] = {}
        self.host, self.n_calls, self.starts = 0.0, 0, []

    def event(self, cat: str, name: str, begin: float, end: float, tid: int, **args) -> None:
        times = {"ts": begin * 1e3, "dur": (end - begin) * 1e3}
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "args": args} | times
        )

    def call(self, name: str, tid: int) -> int:
        self.n_calls += 1
        self.host += 0.01
        self.event(
            "cuda_runtime", name, self.host, self.host + 0.005, tid, correlation=self.n_calls
        )
        return self.n_calls

    def kernel(self, ms: float, tid: int) -> None:
        number = self.call("cudaLaunchKernel", tid)
        begin = max(self.free[COMPUTE], self.host + 0.005)
        self.free[COMPUTE] = begin + ms * self.factor
        end = self.free[COMPUTE]
        self.event("kernel", "gemm", begin, end, COMPUTE, correlation=number, stream=COMPUTE)

    def collective(self, name: str, stream: int, tid: int) -> None:
        number = self.call("cudaLaunchKernelExC", tid)
        begin = max(self.free[stream], self.host + 0.005)
        end = self.ends.get(len(self.starts), begin + 4)
        self.starts.append(begin)
        self.free[stream] = end
        args = {"Collective name": name, "Process Group Name": "0", "In msg nelems": 8}
        args |= {"Seq": len(self.starts), "correlation": number, "stream": stream}
        self.event("kernel", "ncclDevKernel", begin, end, stream, **args)

    def record(self, stream: int, tid: int) -> int:
        number = self.call("cudaEventRecord", tid)
        self.recorded[number] = (stream, self.free[stream])
        return number

    def wait(self, stream: int, record: int, tid: int) -> None:
        other, until = self.recorded[record]
        number = self.call("cudaStreamWaitEvent", tid)
        self.free[stream] = max(self.free[stream], until)
        names = {"wait_on_stream": other, "wait_on_cuda_event_record_corr_id": record}
        args = {"stream": stream, "correlation": number} | names
        self.event("cuda_sync", "Stream Wait Event", self.host, self.host + 0.001, stream, **args)


def step(gpu: Gpu, number: int) -> None:
    """FSDP2: gathers two ahead of their use, scatters awaited by the optimizer."""
    begin = gpu.host
    done = gpu.record(COMPUTE, MAIN_THREAD)
    gpu.wait(GATHER, done, MAIN_THREAD)
    gathered = []
    for unit in range(UNITS):
        if unit == 0:
            gpu.collective("_allgather_base", GATHER, MAIN_THREAD)
            gathered.append(gpu.record(GATHER, MAIN_THREAD))
        if unit + 1 < UNITS:
            gpu.collective("_allgather_base", GATHER, MAIN_THREAD)
            gathered.append(gpu.record(GATHER, MAIN_THREAD))
        gpu.wait(COMPUTE, gathered[unit], MAIN_THREAD)
        gpu.kernel(10, MAIN_THREAD)
    scattered = []
    for _ in range(UNITS):
        gpu.kernel(20, AUTOGRAD)
        done = gpu.record(COMPUTE, AUTOGRAD)
        gpu.wait(SCATTER, done, AUTOGRAD)
        gpu.collective("_reduce_scatter_base", SCATTER, AUTOGRAD)
        scattered.append(gpu.record(SCATTER, AUTOGRAD))
    for record in scattered:
        gpu.wait(COMPUTE, record, AUTOGRAD)
    update = gpu.host
    gpu.kernel(2, MAIN_THREAD)
    end = gpu.host + 0.006
    gpu.event("user_annotation", "Optimizer.step#SGD.step", update, end, MAIN_THREAD)
    gpu.host = max(gpu.free.values())  # as prof.step() would wait
    gpu.event("user_annotation", f"ProfilerStep#{number}", begin, gpu.host, MAIN_THREAD)


@contextmanager
def fsdp_range(gpu: Gpu, name: str, unit: int, tid: int) -> Iterator[None]:
    """Unit 0 is the root, which has no name."""
    begin = gpu.host + 0.006
    yield
    named = f"FSDP::{name}" if unit <= 0 else f"FSDP::{name} (layers.{unit})"
    gpu.event("user_annotation", named, begin, gpu.host + 0.006, tid)


def fsdp_step(gpu: Gpu, number: int) -> None:
    """The streams and ranges of FSDP2 as in torch 2.13, ``_fsdp_param_group.py``."""
    begin = gpu.host
    with fsdp_range(gpu, "root_pre_forward", -1, MAIN_THREAD):
        gpu.wait(GATHER, gpu.record(COMPUTE, MAIN_THREAD), MAIN_THREAD)
    before = -1

    def unshard(unit: int, tid: int) -> int:
        with fsdp_range(gpu, "all_gather", unit, tid):
            gpu.collective("_allgather_base", GATHER, tid)
            return gpu.record(GATHER, tid)

    def copy_out(unit: int, gathered: int, tid: int) -> int:
        with fsdp_range(gpu, "all_gather_copy_out", unit, tid):
            gpu.wait(COMPUTE, gathered, tid)
            gpu.kernel(1, tid)
        return gpu.record(COMPUTE, tid)

    for unit in range(UNITS):
        gathered = unshard(unit, MAIN_THREAD)
        if before >= 0:
            gpu.wait(GATHER, before, MAIN_THREAD)
        before = copy_out(unit, gathered, MAIN_THREAD)
        gpu.kernel(10, MAIN_THREAD)
    gpu.wait(GATHER, before, AUTOGRAD)
    gathered, reduced = unshard(UNITS - 1, AUTOGRAD), -1
    for unit in reversed(range(UNITS)):
        gpu.wait(GATHER, copy_out(unit, gathered, AUTOGRAD), AUTOGRAD)
        if unit:
            gathered = unshard(unit - 1, AUTOGRAD)
        gpu.kernel(20, AUTOGRAD)
        if reduced >= 0:
            with fsdp_range(gpu, "post_backward_rs_wait", unit, AUTOGRAD):
                gpu.wait(COMPUTE, reduced, AUTOGRAD)
        with fsdp_range(gpu, "post_backward_reduce", unit, AUTOGRAD):
            gpu.kernel(1, AUTOGRAD)
            gpu.wait(SCATTER, gpu.record(COMPUTE, AUTOGRAD), AUTOGRAD)
            gpu.collective("_reduce_scatter_base", SCATTER, AUTOGRAD)
            reduced = gpu.record(SCATTER, AUTOGRAD)
    with fsdp_range(gpu, "root_post_backward_callback", -1, AUTOGRAD):
        gpu.wait(COMPUTE, reduced, AUTOGRAD)
    update = gpu.host + 0.006
    gpu.kernel(2, MAIN_THREAD)
    end = gpu.host + 0.006
    gpu.event("user_annotation", "Optimizer.step#SGD.step", update, end, MAIN_THREAD)
    gpu.host = max(gpu.free.values())
    gpu.event("user_annotation", f"ProfilerStep#{number}", begin, gpu.host, MAIN_THREAD)


Step = Callable[[Gpu, int], None]


def job(folder: Path, slow: float, run_step: Step = step) -> tuple[list[Path], float]:
    """Two ranks, the second slower; their files, and the step time in ms.

    Collectives end 4 ms behind the later start: run again with the ends until nothing moves.
    """
    ends: dict[int, float] = {}
    for _ in range(40):
        gpus = [Gpu(1.0, ends), Gpu(slow, ends)]
        for gpu in gpus:
            for number in range(3):
                run_step(gpu, number)
        before = ends
        ends = {n: max(both) + 4 for n, both in enumerate(zip(*(g.starts for g in gpus)))}  # noqa: B905
        if ends == before:
            break
    paths = []
    for rank, gpu in enumerate(gpus):
        info = {"rank": rank, "world_size": 2, "pg_config": GROUPS}
        value = {"distributedInfo": info, "traceEvents": gpu.events}
        paths.append(dump(value, folder / f"rank{rank}.json"))
    return paths, max(gpu.host for gpu in gpus) / 3


def level(slow: float, run_step: Step) -> float:
    """Step time in ms with both ranks at the mean."""
    ends: dict[int, float] = {}
    gpu = Gpu((1 + slow) / 2, ends)
    for number in range(3):
        run_step(gpu, number)
    return gpu.host / 3


def without_waits(path: Path) -> None:
    value = json.loads(path.read_text())
    value["traceEvents"] = [e for e in value["traceEvents"] if e["cat"] != "cuda_sync"]
    dump(value, path)
