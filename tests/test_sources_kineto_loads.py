"""PyTorch profiles whose ranks wait for their data loader."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gpu_profiles
import paceline
from gpu_profiles import MAIN_THREAD, Gpu, fsdp_step, without_waits
from host_profiles import LAYER_MS, UNITS, Host, backward, ddp, forward, run, stepped, write
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.sources import kineto
from paceline.trace import OpKind

K = OpKind
LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LOAD_MS = 60.0


def load(host: Host, ms: float) -> None:
    """A loss is logged; then the loader sleeps and collates the batch, with operators."""
    host.op("aten::item", 0.01)
    begin = host.now
    host.now += ms
    for _ in range(4):
        host.op("aten::stack", 0.05)
    host.annotation(LOAD, begin)


def loading(host: Host) -> Iterator[int]:
    """Rank 2 waits for each of two batches; the first backward exchanges nothing."""
    for microbatch in range(2):
        load(host, LOAD_MS if host.rank == 2 else 1.0)
        if microbatch:
            yield from ddp(host)
        else:
            for _ in range(UNITS):
                forward(host)
            for _ in range(UNITS):
                backward(host)


def forwards_ms(trace: paceline.Trace, dp: int) -> list[float]:
    """Length of each forward of a replica."""
    rows = (trace.kind == K.FORWARD_COMPUTE) & (trace.dp == dp)
    return ((trace.end - trace.start)[rows] * 1e3).tolist()


def test_the_worker_that_waits_for_its_data_is_named(tmp_path: Path) -> None:
    """Its forwards are as long as the others', and no worker is slow."""
    trace = kineto.read(write(run(stepped(loading, 8), (1.0,) * 4, 2.0), tmp_path)).trace
    for dp in range(4):
        assert forwards_ms(trace, dp) == pytest.approx([UNITS * LAYER_MS] * 16, rel=0.02)
    assert trace.data_wait_s is not None
    waits_ms = np.broadcast_to(np.array([2.48, 2.48, 120.48, 2.48])[None, :, None], (8, 4, 1))
    assert trace.data_wait_s * 1e3 == pytest.approx(waits_ms, abs=1e-6)
    measured = from_trace(trace)
    result = paceline.analyze(measured)
    findings = diagnose(measured, result).findings
    named = next(f for f in findings if not f.part_of)
    assert (named.cause, named.where) == ("data-loading", {"workers": [[2, 0]]})
    assert named.evidence["wait_s"] == [pytest.approx(0.12048)]
    assert {f.cause for f in findings} == {"data-loading", "launch-delay"}
    assert result.slowdown == pytest.approx(1.0, abs=0.01)


def test_a_load_within_a_forward_cuts_it(tmp_path: Path) -> None:
    def step(host: Host) -> Iterator[int]:
        for _ in range(UNITS):
            forward(host)
        load(host, LOAD_MS)
        yield from ddp(host)

    trace = kineto.read(write(run(stepped(step), (1.0,) * 4, 2.0), tmp_path)).trace
    assert forwards_ms(trace, 0) == pytest.approx([UNITS * LAYER_MS] * 6, rel=0.02)


def test_loads_of_other_threads_are_no_wait(tmp_path: Path) -> None:
    """A thread that loads ahead, or a loader within another one, adds nothing."""
    hosts = run(stepped(ddp), (1.0,) * 4, 2.0)
    for host in hosts:
        host.now = 3.0
        host.annotation(LOAD, 1.0)
        host.annotation(LOAD, 2.0)
        host.event(LOAD, 0.0, "user_annotation", thread=13)
    waits = kineto.read(write(hosts, tmp_path)).trace.data_wait_s
    assert waits is not None
    assert waits[0].ravel().tolist() == pytest.approx([0.002] * 4)
    assert (waits[1:] == 0).all()


def loading_gpu(gpu: Gpu, number: int, step: gpu_profiles.Step) -> None:
    """A kernel for the logged loss, then the wait for data, before the step's own kernels."""
    begin = gpu.host
    gpu.kernel(0.5, MAIN_THREAD)
    loaded = gpu.host + 0.006
    gpu.host += LOAD_MS
    gpu.event("user_annotation", LOAD, loaded, gpu.host, MAIN_THREAD)
    step(gpu, number)
    ranged = next(e for e in gpu.events if e["name"] == f"ProfilerStep#{number}")
    ranged["dur"] += ranged["ts"] - begin * 1e3
    ranged["ts"] = begin * 1e3


@pytest.mark.parametrize("step", [gpu_profiles.step, fsdp_step])
@pytest.mark.parametrize("streamed", [True, False])
def test_the_forward_of_a_gpu_begins_behind_the_load(
    tmp_path: Path, step: gpu_profiles.Step, streamed: bool
) -> None:
    paths, _ = gpu_profiles.job(tmp_path, 1.0, partial(loading_gpu, step=step))
    if not streamed:
        for path in paths:
            without_waits(path)
    trace = kineto.read(paths).trace
    assert trace.data_wait_s is not None
    assert trace.data_wait_s * 1e3 == pytest.approx(
        np.full((trace.n_steps, 2, 1), LOAD_MS), abs=0.1
    )
    forwards = forwards_ms(trace, 0)
    assert sum(forwards) < trace.n_steps * LOAD_MS
