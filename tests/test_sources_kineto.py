"""PyTorch profiles of CUDA ranks, in their format: ops, places and clocks."""

import json
from pathlib import Path

import numpy as np
import pytest

import kineto_profiles
from import_files import PROFILED, ProfileWriter, dump, load, make_trace, only, same
from kineto_profiles import WRITTEN, strip
from paceline.errors import TraceError
from paceline.sources import kineto
from paceline.sources.kineto.profile import read_profile
from paceline.trace import Job, OpKind, Trace

K = OpKind
truth = kineto_profiles.truth


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"pp": 4, "microbatches": 6},
        {"schedule": "gpipe", "dp": 3, "pp": 3},
        {"pp": 1},
    ],
)
@pytest.mark.parametrize("ranges", [False, True])
def test_round_trip_of_cuda_profiles(tmp_path: Path, spec: dict, ranges: bool) -> None:
    truth = make_trace(WRITTEN, **spec)
    imported = kineto.read(ProfileWriter(truth, ranges=ranges).write(tmp_path))
    same(imported.trace, only(truth, PROFILED))
    assert imported.unplaced == {}
    assert imported.confidence == pytest.approx(1.0 if ranges else kineto.notes.CERTAINTY_RUNS)


def test_chunks_without_ranges_follow_the_interleaved_order(tmp_path: Path) -> None:
    truth = make_trace(WRITTEN, pp=4, vpp=2, microbatches=8)
    imported = kineto.read(ProfileWriter(truth).write(tmp_path), truth.job)
    same(imported.trace, only(truth, PROFILED))
    assert imported.confidence == pytest.approx(kineto.notes.CERTAINTY_CHUNKS)


def test_clocks_are_aligned_on_the_ends_of_collectives(tmp_path: Path, truth: Trace) -> None:
    ahead_s = {1: 3600.25, 2: -7.5, 3: 0.004}
    paths = ProfileWriter(truth, ahead_s).write(tmp_path)
    imported = kineto.read(paths)
    same(imported.trace, only(truth, PROFILED), within_s=5e-6)
    assert any("3.6e+06 ms apart" in note for note in imported.notes)


def is_collective(event: dict) -> bool:
    name = event["args"].get("Collective name")
    return name is not None and name not in ("send", "recv")


def test_another_clock_without_collectives_is_refused(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth, {3: 3600.0}).write(tmp_path)
    for path in paths:
        strip(path, is_collective)
    with pytest.raises(TraceError, match=r"rank 3 works from .* they never meet"):
        kineto.read(paths)


def test_the_job_gives_places_where_groups_have_no_names(tmp_path: Path, truth: Trace) -> None:
    """Megatron's order of ranks: data parallel before pipeline."""
    order = np.array([[0, 2], [1, 3]])
    renumbered = {int(a): int(b) for a, b in zip(truth.rank.ravel(), order.ravel(), strict=True)}
    paths = []
    for path in ProfileWriter(truth).write(tmp_path):
        value = load(path)
        info = value["distributedInfo"]
        info["rank"] = renumbered[info["rank"]]
        for group in info["pg_config"]:
            group |= {"pg_desc": "undefined", "ranks": sorted(map(renumbered.get, group["ranks"]))}
        paths.append(dump(value, path))
    with pytest.raises(TraceError, match="do not name their process groups by purpose; pass --job"):
        kineto.read(paths)
    imported = kineto.read(paths, Job(dp_size=2, pp_size=2))
    kinds = PROFILED - {K.EMBEDDING_GRADS_ALL_REDUCE}
    np.testing.assert_array_equal(imported.trace.counts, only(truth, kinds).counts)
    assert imported.trace.rank.tolist() == order.tolist()
    with pytest.raises(TraceError, match="rank 2, but the job has 2 ranks"):
        kineto.read(paths, Job(dp_size=2, pp_size=1))


def test_data_parallelism_on_cpu(tmp_path: Path) -> None:
    """Two ranks, in milliseconds: forward 0 to 10, backward 10 to 30, gradients 24 to 40 + rank.

    The backward is cut where it launches them; nobody computes until they are there.
    """

    def event(name: str, begin_ms: float, end_ms: float, cat: str = "cpu_op") -> dict:
        times = {"ts": begin_ms * 1e3, "dur": (end_ms - begin_ms) * 1e3}
        thread = 2 if name.startswith("gloo:") else 1
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "args": {}} | times

    paths = []
    for rank in range(2):
        groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]
        events = [
            event("ProfilerStep#7", -1, 60, "user_annotation"),
            event("aten::linear", 0, 6),
            event("aten::mean", 7, 10),
            event("autograd::engine::evaluate_function: MeanBackward0", 10, 12),
            event("aten::mul", 11, 12),
            event("autograd::engine::evaluate_function: AddmmBackward0", 13, 30),
            event("c10d::allreduce_", 24, 25),
            event("gloo:all_reduce", 25, 40 + rank, "user_annotation"),
            event("Optimizer.step#SGD.step", 42, 45, "user_annotation"),
            event("aten::add_", 43, 44),
        ]
        info = {"rank": rank, "world_size": 2, "pg_config": groups}
        value = {"distributedInfo": info, "traceEvents": events, "baseTimeNanoseconds": 10**18}
        paths.append(dump(value, tmp_path / f"{rank}.json"))
    trace = kineto.read(paths).trace
    assert trace.job == Job(dp_size=2, pp_size=1)
    assert trace.steps.tolist() == [7]
    got = [
        (K(kind), round(begin * 1e3, 2), round(end * 1e3, 2))
        for kind, begin, end in zip(trace.kind, trace.start, trace.end, strict=True)
    ]
    expected = [(K.FORWARD_COMPUTE, 0, 10), (K.BACKWARD_COMPUTE, 10, 24)]
    expected.append((K.BACKWARD_COMPUTE, 24, 30))
    ends = (40, 41)  # 1 ms is noise between hosts, no offset of the clocks
    for rank in range(2):
        scatter = (K.GRADS_REDUCE_SCATTER, 24, ends[rank])
        assert got[5 * rank : 5 * rank + 5] == [*expected, scatter, (K.OPTIMIZER, 42, 45)]
    assert trace.program is not None
    assert trace.program.issued.tolist() == [0, 1, 3, 2, 4] * 2
    assert trace.program.awaited.tolist() == [-1, -1, -1, 3, -1] * 2


def test_a_batch_of_transfers_is_one_kernel(tmp_path: Path) -> None:
    """Megatron's batch_isend_irecv: two calls, then a kernel that does both."""
    args = {"Process Group Name": "7", "In msg nelems": 8}
    send = {"Collective name": "send", "Dst Rank": 1, **args}
    recv = {"Collective name": "recv", "Src Rank": 1, **args}
    common = {"ph": "X", "pid": 0, "tid": 1}
    events = [
        common | {"cat": "cpu_op", "name": "record_param_comms", "ts": 10, "dur": 1, "args": send},
        common | {"cat": "cpu_op", "name": "record_param_comms", "ts": 12, "dur": 1, "args": recv},
        common
        | {"cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "ts": 14, "dur": 1}
        | {"args": {"correlation": 5}},
        common
        | {"cat": "kernel", "name": "ncclDevKernel_SendRecv(args)", "ts": 20, "dur": 30}
        | {"args": {"correlation": 5}},
    ]
    groups = [{"pg_name": "7", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [3, 9]}]
    info = {"rank": 3, "world_size": 12, "pg_config": json.dumps(groups)}
    path = dump({"distributedInfo": info, "traceEvents": events}, tmp_path / "a.json")
    one, two = read_profile(path).transfers
    assert (one.sends, one.peer, two.sends, two.peer) == (True, 9, False, 9)
    assert (one.start_s, one.end_s) == (two.start_s, two.end_s) == pytest.approx((20e-6, 50e-6))
