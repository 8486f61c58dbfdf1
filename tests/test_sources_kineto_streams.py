"""PyTorch profiles of data-parallel GPUs that have stream waits (enable_cuda_sync_events)."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import paceline
from import_files import dump
from paceline.errors import TraceError
from paceline.graph import from_trace
from paceline.sources import kineto
from paceline.sources.kineto.host import HostEvents
from paceline.sources.kineto.streams import Bound, DeviceEvent, StreamWait, main_stream
from paceline.trace import OpKind

K = OpKind
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


def test_the_program_is_what_streams_waited_for(tmp_path: Path) -> None:
    paths, _ = job(tmp_path, 1.0)
    imported = kineto.read(paths)
    trace = imported.trace
    assert trace.program is not None
    rows = np.flatnonzero((trace.step == 1) & (trace.dp == 0))
    rows = rows[np.argsort(trace.program.issued[rows])]
    labels = [K(kind).label for kind in trace.kind[rows]]
    gather, scatter = "params-all-gather", "grads-reduce-scatter"
    forward, backward = "forward-compute", "backward-compute"
    assert labels == [
        *(gather, gather, gather, forward, forward, forward),
        *(backward, scatter, backward, scatter, backward, scatter, "optimizer"),
    ]
    awaited = dict(zip(range(len(rows)), trace.program.awaited[rows].tolist(), strict=True))
    assert [awaited[n] for n in (0, 1, 2)] == [2, 3, 4]
    assert [awaited[n] for n in (7, 9, 11)] == [11, 11, 11]
    assert any("streams waited for others" in note for note in imported.notes)


@pytest.mark.parametrize("slow", [1.0, 2.0])
@pytest.mark.parametrize("run_step", [step, fsdp_step])
def test_a_slow_gpu_of_a_sharded_job(tmp_path: Path, slow: float, run_step: Step) -> None:
    """Against the same job with both ranks at the mean."""
    paths, step_ms = job(tmp_path, slow, run_step)
    result = paceline.analyze(from_trace(kineto.read(paths).trace))
    assert result.discrepancy < 0.01
    assert result.replay_error < 0.005
    assert result.slowdown == pytest.approx(step_ms / level(slow, run_step), rel=0.02)
    if slow > 1:
        assert int(np.argmax(result.by_worker)) == 1


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


def test_rules_of_fsdp_give_the_program_of_its_stream_waits(tmp_path: Path) -> None:
    paths, _ = job(tmp_path, 1.5, fsdp_step)
    recorded = kineto.read(paths)
    for path in paths:
        without_waits(path)
    by_rule = kineto.read(paths)
    programs = [imported.trace.program for imported in (recorded, by_rule)]
    first, second = programs
    assert first is not None
    assert second is not None
    assert len(recorded.trace) == len(by_rule.trace)
    assert (recorded.trace.kind == by_rule.trace.kind).all()
    assert recorded.trace.start == pytest.approx(by_rule.trace.start, abs=1e-9)
    assert first.issued.tolist() == second.issued.tolist()
    assert first.awaited.tolist() == second.awaited.tolist()
    assert any("told by the rules of torch 2.13" in note for note in by_rule.notes)
    assert by_rule.confidence < recorded.confidence


def test_groups_of_some_ranks_are_refused(tmp_path: Path) -> None:
    """HSDP: two pairs of ranks, each with gathers of its own."""
    paths, _ = job(tmp_path, 1.0, fsdp_step)
    four = []
    for rank in range(4):
        value = json.loads(paths[rank % 2].read_text())
        pair = [0, 1] if rank < 2 else [2, 3]
        groups = [{"pg_name": "0", "pg_desc": "mesh_shard", "ranks": pair}]
        value["distributedInfo"] = {"rank": rank, "world_size": 4, "pg_config": groups}
        four.append(dump(value, tmp_path / f"rank{rank}.json"))
    with pytest.raises(TraceError, match=r"the process group 0 has 2 of the 4 data-parallel"):
        kineto.read(four)


def test_ranks_with_and_without_stream_waits(tmp_path: Path) -> None:
    paths, _ = job(tmp_path, 1.0)
    without_waits(paths[1])
    with pytest.raises(TraceError, match=r"rank1\.json has no stream waits, other ranks'"):
        kineto.read(paths)


def test_waits_go_through_other_streams() -> None:
    """Compute -> copy-in -> gather -> back, with nothing launched on the stream between."""
    events = [
        DeviceEvent(1, 7, 1, 2),
        DeviceEvent(3, 7, 3, 4),
        DeviceEvent(8, 20, 8, 9, 500),
        DeviceEvent(13, 7, 13, 14),
        DeviceEvent(14, 7, 14, 15),
    ]
    waits = [
        StreamWait(wait_s=4, stream=16, record_s=2, recorded_on=7),
        StreamWait(wait_s=7, stream=20, record_s=6, recorded_on=16),
        StreamWait(wait_s=12, stream=7, record_s=9, recorded_on=20),
    ]
    found = main_stream(events, waits)
    assert found is not None
    assert found.bounds == {500: Bound(behind=0, before=2)}


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("FSDP::all_gather", ""),
        ("FSDP::all_gather (layers.0, layers.1)", "layers.0, layers.1"),
        ("FSDP::all_gather (layers.0) [pg=8]", "layers.0 pg=8"),
        ("FSDP::all_gather [pg=8]", "pg=8"),
    ],
)
def test_names_of_units(name: str, unit: str) -> None:
    """As torch 2.13's ``FSDPParamGroup._with_fqn`` writes them."""
    host = HostEvents()
    host.annotation(name, "1", 1.0, 2.0)
    ranges = host.fsdp(0.0)
    assert ranges is not None
    assert [item.unit for item in ranges.gathers] == [unit]
    host = HostEvents()
    host.annotation(name.replace("all_gather", "all_gather_copy_out"), "1", 1.0, 2.0)
    assert host.fsdp(0.0) is None
