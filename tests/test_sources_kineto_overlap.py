"""PyTorch profiles of data-parallel GPUs whose buckets of gradients overlap the backward."""

import json
from pathlib import Path

import numpy as np
import pytest

import paceline
from import_files import dump
from paceline.errors import TraceError
from paceline.graph import from_trace
from paceline.sources import kineto
from paceline.trace import OpKind

K = OpKind
MAIN, AUTOGRAD = 1, 2
GROUPS = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]
STEP_MS = 100.0


class Gpu:
    """A rank's events; milliseconds."""

    def __init__(self) -> None:
        self.events: list[dict] = []

    def event(self, cat: str, name: str, begin: float, end: float, tid: int = MAIN, **args) -> None:
        times = {"ts": begin * 1e3, "dur": (end - begin) * 1e3}
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "args": args} | times
        )

    def kernel(self, launch: float, begin: float, end: float, tid: int, **args) -> None:
        name = "ncclDevKernel_AllReduce" if args else "gemm"
        self.event("cuda_runtime", "cudaLaunchKernel", launch, launch + 0.1, tid)
        self.events[-1]["args"] = {"correlation": len(self.events)}
        self.event("kernel", name, begin, end, 7, correlation=len(self.events), **args)

    def bucket(self, number: int, launch: float, begin: float, end: float) -> None:
        names = {"Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": 8}
        self.kernel(launch, begin, end, AUTOGRAD, Seq=number, **names)


def ranks(folder: Path, slow: float = 1.0) -> list[Path]:
    """Forward 10 to 30 ms; backward of two kernels of 20 ms, a bucket behind each; an optimizer.

    On rank 1 kernels take ``slow`` times as long; buckets end 5 ms behind the later rank's start.
    A copy of reduced gradients follows, then the optimizer.
    """
    paths = []
    later = 1 + max(0.0, slow - 1)
    for rank, factor in enumerate((1.0, slow)):
        gpu = Gpu()
        for step in range(3):
            t = step * STEP_MS * later
            gpu.event("user_annotation", f"ProfilerStep#{step}", t, t + STEP_MS * later)
            forward, half, full = (t + 10 + ms * factor for ms in (20, 40, 60))
            one, two = (t + 10 + ms * later + 5 for ms in (40, 60))
            gpu.kernel(t + 1, t + 10, forward, MAIN)
            gpu.kernel(t + 2, forward, half, AUTOGRAD)
            gpu.bucket(2 * step, t + 3, half, one)
            gpu.kernel(t + 4, half, full, AUTOGRAD)
            gpu.bucket(2 * step + 1, t + 5, full, two)
            gpu.event("gpu_memcpy", "Memcpy DtoD", two + 1, two + 2, 7)
            gpu.event("user_annotation", "Optimizer.step#SGD.step", t + 6, t + 8)
            gpu.kernel(t + 7, two + 2, two + 4, MAIN)
        info = {"rank": rank, "world_size": 2, "pg_config": GROUPS}
        value = {"distributedInfo": info, "traceEvents": gpu.events}
        paths.append(dump(value, folder / f"rank{rank}.json"))
    return paths


def test_the_backward_is_cut_where_buckets_start(tmp_path: Path) -> None:
    imported = kineto.read(ranks(tmp_path))
    trace = imported.trace
    rows = np.flatnonzero((trace.step == 1) & (trace.dp == 0))
    assert trace.program is not None
    rows = rows[np.argsort(trace.program.issued[rows])]
    ops = [
        (K(trace.kind[row]).label, *np.round(1e3 * np.array([trace.start[row], trace.end[row]]), 2))
        for row in rows
    ]
    assert ops == [
        ("forward-compute", 0, 20),
        ("backward-compute", 20, 40),
        ("grads-reduce-scatter", 40, 45),
        ("backward-compute", 40, 60),
        ("grads-reduce-scatter", 60, 65),
        ("backward-compute", 65, 67),  # the copy of reduced gradients, behind all buckets
        ("optimizer", 67, 69),
    ]
    assert trace.program.awaited[rows].tolist() == [-1, -1, 4, -1, 4, -1, -1]
    assert any("has no stream events, so by DDP's rule" in note for note in imported.notes)


def test_a_slow_gpu(tmp_path: Path) -> None:
    """Truth: both at the mean take 15 ms more of 69; the slow one 30 ms more."""
    result = paceline.analyze(from_trace(kineto.read(ranks(tmp_path, 1.5)).trace))
    assert result.slowdown == pytest.approx((69 + 30) / (69 + 15), rel=0.005)
    assert result.discrepancy < 0.01
    assert result.replay_error < 0.001
    assert int(np.argmax(result.by_worker)) == 1


def test_a_step_without_computes_is_refused(tmp_path: Path) -> None:
    paths = ranks(tmp_path)
    value = json.loads(paths[1].read_text())
    computes = [e for e in value["traceEvents"] if e["name"] in ("gemm", "Optimizer.step#SGD.step")]
    gone = [e for e in computes if e["ts"] >= 2 * STEP_MS * 1e3]
    value["traceEvents"] = [e for e in value["traceEvents"] if e not in gone]
    dump(value, paths[1])
    with pytest.raises(TraceError, match="dp 1, stage 0 has no ops in step 2"):
        kineto.read(paths)


def test_gathers_within_a_pass_leave_passes_whole(tmp_path: Path) -> None:
    """What waits for them only stream events say."""
    paths = ranks(tmp_path)
    for path in paths:
        text = path.read_text()
        one = text.index("allreduce")
        path.write_text(text[:one] + "allgather" + text[one + len("allreduce") :])
    assert kineto.read(paths).trace.program is None


def test_all_to_alls_within_a_pass_are_doubted_by_name(tmp_path: Path) -> None:
    """Computes hold what ranks wait there, so the slow one looks like the others."""
    paths = ranks(tmp_path)
    sure = kineto.read(paths).confidence
    for path in paths:
        text = path.read_text()
        one = text.index("allreduce")
        path.write_text(text[:one] + "all_to_allv" + text[one + len("allreduce") :])
    imported = kineto.read(paths)
    assert any("all-to-alls run within forwards and backwards" in n for n in imported.notes)
    assert imported.confidence <= 0.5 * sure


def test_ranges_of_dualpipe_are_refused_by_name(tmp_path: Path) -> None:
    """As deepseek-ai/profile-data (commit 4496024) has them in train.json."""
    paths = ranks(tmp_path)
    value = json.loads(paths[0].read_text())
    gpu = Gpu()
    for number, name in enumerate(("attn(F)", "mlp(B)", "dispatch(F)", "mlp(W)")):
        gpu.event("user_annotation", name, 1 + number, 2 + number)
    value["traceEvents"] += gpu.events
    dump(value, paths[0])
    with pytest.raises(TraceError, match=r"DualPipe's 'attn\(F\)'.*microbatch.*paceline ranks"):
        kineto.read(paths)


def test_a_forward_beside_a_backward_is_refused(tmp_path: Path) -> None:
    """Two passes that run at once, though no range says so."""
    paths = ranks(tmp_path)
    value = json.loads(paths[1].read_text())
    gpu = Gpu()
    gpu.events = value["traceEvents"]
    gpu.kernel(STEP_MS + 5.5, STEP_MS + 35, STEP_MS + 55, MAIN)
    gpu.kernel(STEP_MS + 5.6, STEP_MS + 70, STEP_MS + 75, AUTOGRAD)
    dump(value, paths[1])
    message = "rank1.json, step 1: a backward-compute and a forward-compute overlap by 20 ms"
    with pytest.raises(TraceError, match=message):
        kineto.read(paths)
