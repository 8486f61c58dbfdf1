"""PyTorch profiles: of a real gloo pipeline made here, and of CUDA ranks in their format."""

import copy
import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from import_files import PROFILED, ProfileWriter, dump, load, make_trace, only, same
from paceline.errors import PacelineError, TraceError
from paceline.graph.from_trace import from_trace
from paceline.sources import kineto
from paceline.sources.kineto_profile import read_profile
from paceline.trace import Job, OpKind, Trace
from pipeline_job import MICROBATCHES, SCHEDULES, STEPS

K = OpKind
JOB = Path(__file__).parent / "pipeline_job.py"
WRITTEN = PROFILED | {K.OPTIMIZER_CLIP_MAIN_GRAD}

fuzz = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def truth() -> Trace:
    return make_trace(WRITTEN)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profiles of a pipeline of two processes, a folder per schedule."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: profile)")
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    folder = tmp_path_factory.mktemp("gloo")
    command = [sys.executable, "-W", "ignore", str(JOB), str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank), "2"], stderr=subprocess.PIPE) for rank in range(2)
    ]
    try:
        for process in ranks:
            _, said = process.communicate(timeout=240)
            assert process.returncode == 0, said.decode()
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return folder


def profiles_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank*.json.gz"))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_real_pipeline(real: Path, schedule: str) -> None:
    paths = profiles_in(real / schedule)
    assert all(kineto.matches(path) for path in paths)
    imported = kineto.read(paths)
    trace = imported.trace
    chunks = 2 if schedule == "two" else 1
    assert trace.job == Job(dp_size=1, pp_size=2, vpp_size=chunks)
    assert trace.n_steps == STEPS
    assert imported.unplaced == {}
    counts = trace.counts[:, 0]
    n = MICROBATCHES * chunks
    assert (counts[..., K.FORWARD_COMPUTE] == n).all()
    assert (counts[..., K.BACKWARD_COMPUTE] == n).all()
    assert (counts[:, 0, K.FORWARD_SEND] == n).all()
    assert (counts[:, 1, K.FORWARD_RECV] == n).all()
    assert (counts[:, 1, K.FORWARD_SEND] == n - MICROBATCHES).all()
    assert (counts[..., K.OPTIMIZER] == 1).all()
    assert len(from_trace(trace).steps) == STEPS


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_microbatches_of_a_real_pipeline(real: Path, schedule: str) -> None:
    trace = kineto.read(profiles_in(real / schedule)).trace
    compute = trace.kind <= K.BACKWARD_COMPUTE
    for step in trace.steps:
        for pp in range(2):
            rows = np.flatnonzero(compute & (trace.step == step) & (trace.pp == pp))
            rows = rows[np.argsort(trace.start[rows])]
            order = [("FB"[trace.kind[r]], trace.chunk[r], trace.microbatch[r]) for r in rows]
            done = [(c, m) for way, c, m in order if way == "F"]
            assert sorted(done) == sorted((c, m) for way, c, m in order if way == "B")
            if schedule == "gpipe":
                assert [way for way, *_ in order] == ["F"] * MICROBATCHES + ["B"] * MICROBATCHES
            if schedule in ("1f1b", "one") and pp == 1:
                assert [(way, m) for way, _, m in order][:4] == [
                    *(("F", 0), ("B", 0), ("F", 1), ("B", 1))
                ] or schedule == "one"
            if schedule != "two":
                assert done == [(0, m) for m in range(MICROBATCHES)]
            else:
                assert done[:4] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_times_of_a_real_pipeline(real: Path, schedule: str) -> None:
    """Each forward of the modules, as they timed it, lies in the forward of the trace."""
    trace = kineto.read(profiles_in(real / schedule)).trace
    start = trace.start + np.repeat(trace.step_start_s, trace.counts.sum(axis=(1, 2, 3)))
    end = start + trace.end - trace.start
    for pp in range(2):
        timed = np.array(json.loads((real / schedule / f"forwards{pp}.json").read_text()))
        rows = np.flatnonzero((trace.kind == K.FORWARD_COMPUTE) & (trace.pp == pp))
        rows = rows[np.argsort(start[rows])]
        assert len(timed) == len(rows)
        assert (start[rows] < timed[:, 0] + 1e-3).all()
        assert (end[rows] > timed[:, 1] - 1e-3).all()
        assert (start[rows][1:] > timed[:-1, 1] - 1e-3).all()


def test_a_recv_does_not_end_before_its_send_began(real: Path) -> None:
    trace = kineto.read(profiles_in(real / "one")).trace

    def at(kind: OpKind, pp: int) -> np.ndarray:
        return np.flatnonzero((trace.kind == kind) & (trace.pp == pp))

    for send, recv, pp in (
        (K.FORWARD_SEND, K.FORWARD_RECV, 0),
        (K.BACKWARD_SEND, K.BACKWARD_RECV, 1),
    ):
        sent, received = at(send, pp), at(recv, 1 - pp)
        assert (trace.end[received] >= trace.start[sent]).all()
        both = np.maximum(trace.start[sent], trace.start[received])
        late = np.minimum(trace.end[sent], trace.end[received]) > both
        assert np.abs(trace.end[sent] - trace.end[received])[late].max(initial=0.0) < 1e-6


def test_a_real_profile_in_any_order_and_unpacked(real: Path, tmp_path: Path) -> None:
    paths = []
    for path in profiles_in(real / "1f1b"):
        value = load(path)
        random.Random(2).shuffle(value["traceEvents"])
        paths.append(dump(value, tmp_path / path.name.removesuffix(".gz")))
    same(kineto.read(paths).trace, kineto.read(profiles_in(real / "1f1b")).trace, within_s=1e-9)


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
    assert imported.confidence == pytest.approx(1.0 if ranges else kineto.CERTAINTY_RUNS)


def test_chunks_without_ranges_follow_the_interleaved_order(tmp_path: Path) -> None:
    truth = make_trace(WRITTEN, pp=4, vpp=2, microbatches=8)
    imported = kineto.read(ProfileWriter(truth).write(tmp_path), truth.job)
    same(imported.trace, only(truth, PROFILED))
    assert imported.confidence == pytest.approx(kineto.CERTAINTY_CHUNKS)


def test_clocks_are_aligned_on_the_ends_of_collectives(tmp_path: Path, truth: Trace) -> None:
    ahead_s = {1: 3600.25, 2: -7.5, 3: 0.004}
    paths = ProfileWriter(truth, ahead_s).write(tmp_path)
    imported = kineto.read(paths)
    same(imported.trace, only(truth, PROFILED), within_s=5e-6)
    assert any("3.6e+06 ms apart" in note for note in imported.notes)


def strip(path: Path, gone) -> None:
    """Rewrite a profile without the events of which ``gone`` is true."""
    value = load(path)
    value["traceEvents"] = [event for event in value["traceEvents"] if not gone(event)]
    dump(value, path)


def is_collective(event: dict) -> bool:
    name = event["args"].get("Collective name")
    return name is not None and name not in ("send", "recv")


def test_another_clock_without_collectives_is_refused(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth, {3: 3600.0}).write(tmp_path)
    for path in paths:
        strip(path, is_collective)
    with pytest.raises(TraceError, match=r"rank 3 works from .* they never meet"):
        kineto.read(paths)


def test_steps_by_the_optimizer(tmp_path: Path, truth: Trace) -> None:
    """Without ProfilerStep the first step cannot be known to be whole."""
    paths = ProfileWriter(truth).write(tmp_path)
    for path in paths:
        strip(path, lambda event: event["name"].startswith("ProfilerStep"))
    imported = kineto.read(paths)
    rest = only(truth.select_steps([1, 2]), PROFILED)
    np.testing.assert_array_equal(imported.trace.counts, rest.counts)
    assert np.abs(imported.trace.end - imported.trace.start - rest.end + rest.start).max() < 2e-6
    assert imported.notes[0] == "steps are the Optimizer.step ranges"
    assert imported.confidence < kineto.CERTAINTY_RUNS


@pytest.mark.parametrize("gone", ["ProfilerStep", ("ProfilerStep", "Optimizer")])
@pytest.mark.parametrize("order", ["autograd first", "reversed", "shuffled"])
def test_the_main_thread_does_not_depend_on_the_order_of_the_file(
    tmp_path: Path, gone: str | tuple[str, ...], order: str
) -> None:
    """Without ProfilerStep it is the thread of the updates, else that of the earliest launch."""
    paths = ProfileWriter(make_trace(WRITTEN, steps=5)).write(tmp_path)
    for path in paths:
        strip(path, lambda event: event["name"].startswith(gone))
    expected = kineto.read(paths).trace
    for path in paths:
        value = load(path)
        events = value["traceEvents"]
        if order == "autograd first":
            events.sort(key=lambda event: event["tid"] != ProfileWriter.AUTOGRAD)
        elif order == "reversed":
            events.reverse()
        else:
            random.Random(path.name).shuffle(events)
        dump(value, path)
    same(kineto.read(paths).trace, expected, within_s=1e-9)


@pytest.mark.parametrize("pp", [1, 2])
def test_a_thread_that_launches_forwards_and_backwards_is_refused(tmp_path: Path, pp: int) -> None:
    paths = ProfileWriter(make_trace(WRITTEN, pp=pp)).write(tmp_path)
    for path in paths:
        value = load(path)
        for event in value["traceEvents"]:
            if event["tid"] == ProfileWriter.AUTOGRAD:
                event["tid"] = ProfileWriter.MAIN
        dump(value, path)
    with pytest.raises(TraceError, match=r"rank0\.json\.gz has no kernels of another thread"):
        kineto.read(paths)


def test_runs_of_no_microbatch_are_told(tmp_path: Path, truth: Trace) -> None:
    """A kernel right after the last backward of step 1: the gradients' norm."""
    paths = ProfileWriter(truth).write(tmp_path)
    assert "0 short runs and 0 after a step's last backward" in kineto.read(paths).notes[-1]
    value = load(paths[0])
    events = value["traceEvents"]
    step = next(event for event in events if event["name"] == "ProfilerStep#1")
    updates = next(
        event["ts"]
        for event in events
        if event["name"].startswith("Optimizer.step") and event["ts"] > step["ts"]
    )
    common = {"ph": "X", "pid": 0, "tid": ProfileWriter.MAIN, "ts": updates - 1, "dur": 0.5}
    common["args"] = {"correlation": 10**6}
    events.append(common | {"cat": "cuda_runtime", "name": "cudaLaunchKernel"})
    events.append(common | {"cat": "kernel", "name": "norm"})
    dump(value, paths[0])
    imported = kineto.read(paths)
    same(imported.trace, only(truth, PROFILED))
    assert "0 short runs and 1 after a step's last backward" in imported.notes[-1]


def test_steps_by_the_period_of_the_communication(tmp_path: Path) -> None:
    truth = make_trace(WRITTEN, steps=5)
    paths = ProfileWriter(truth).write(tmp_path)
    for path in paths:
        strip(path, lambda event: event["name"].startswith(("ProfilerStep", "Optimizer")))
    imported = kineto.read(paths)
    # One begins after the collective in front of the first transfer; the last has no end.
    assert imported.trace.n_steps == 4
    inner = truth.select_steps([0, 1, 2, 3])
    transfers = [K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE, K.FORWARD_SEND, K.BACKWARD_RECV]
    for kind in transfers:
        np.testing.assert_array_equal(imported.trace.counts[..., kind], inner.counts[..., kind])
    got, expected = (
        (t.end - t.start)[t.kind == K.BACKWARD_COMPUTE] for t in (imported.trace, inner)
    )
    assert np.abs(got - expected).max() < 2e-6
    assert imported.notes[0] == "steps are the period"


def test_no_way_to_tell_the_steps_is_refused(tmp_path: Path) -> None:
    paths = ProfileWriter(make_trace(WRITTEN, steps=1)).write(tmp_path)
    for path in paths:
        strip(path, lambda event: event["name"].startswith(("ProfilerStep", "Optimizer")))
    with pytest.raises(TraceError, match=r"no ProfilerStep#N .* call prof\.step\(\)"):
        kineto.read(paths)


def test_a_rank_with_fewer_steps(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    strip(paths[2], lambda event: event["name"] == "ProfilerStep#2")
    with pytest.raises(TraceError, match="dp 1, stage 0 has no ops in step 2, others have"):
        kineto.read(paths)
    assert kineto.read(paths, steps=frozenset({0, 1})).trace.n_steps == 2


def test_a_missing_rank(tmp_path: Path, truth: Trace, real: Path) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    with pytest.raises(TraceError, match="of dp 1, stage 1 no rank's profile is here; 3 files"):
        kineto.read(paths[:3])
    with pytest.raises(TraceError, match="1 profiles of 2 ranks are here, rank 1's is missing"):
        kineto.read(profiles_in(real / "one")[:1])


def test_a_rank_given_twice(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    with pytest.raises(TraceError, match="are both of rank 0"):
        kineto.read([*paths, paths[0]])


def test_profiles_of_two_jobs(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    value = load(paths[1])
    value["distributedInfo"]["world_size"] = 8
    dump(value, paths[1])
    with pytest.raises(TraceError, match="of jobs of 4 and 8 ranks; give files of one run"):
        kineto.read(paths)


def test_a_send_that_is_missing(tmp_path: Path, truth: Trace) -> None:
    """Of dp 0's stage 0 in step 1, the kernel is there but not the call."""
    paths = ProfileWriter(truth).write(tmp_path)
    value = load(paths[0])
    sends = [
        event
        for event in value["traceEvents"]
        if event["name"] == "record_param_comms" and event["args"]["Collective name"] == "send"
    ]
    value["traceEvents"].remove(sends[5])
    dump(value, paths[0])
    with pytest.raises(
        TraceError, match="dp 0, stage 0 sent 3 forwards in step 1, stage 1 received"
    ):
        kineto.read(paths)


def test_a_truncated_gzip(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    paths[3].write_bytes(paths[3].read_bytes()[:-30])
    with pytest.raises(TraceError, match=r"rank3\.json\.gz is cut off"):
        kineto.read(paths)


def test_a_profile_without_a_rank(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    value = load(paths[0])
    del value["distributedInfo"]
    dump(value, paths[0])
    with pytest.raises(TraceError, match="no distributedInfo with a rank; profile after"):
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("PP:0I3", r"splits backwards in two \(I, W\)"),
        ("PP:(0F1;0B0)OVERLAP_F_B", "which a trace has no kind for"),
    ],
)
def test_schedules_that_a_trace_cannot_hold(
    tmp_path: Path, truth: Trace, name: str, message: str
) -> None:
    paths = ProfileWriter(truth, ranges=True).write(tmp_path)
    value = load(paths[0])
    event = next(e for e in value["traceEvents"] if e["name"] == "PP:0B3")
    event["name"] = name
    dump(value, paths[0])
    with pytest.raises(TraceError, match=message):
        kineto.read(paths)


def test_v_schedules_are_refused(real: Path, tmp_path: Path) -> None:
    """Stages 0 and 3 on rank 0, 1 and 2 on rank 1."""
    paths = []
    for path in profiles_in(real / "two"):
        value = load(path)
        for event in value["traceEvents"]:
            for old, new in (("PP:2", "PP:x"), ("PP:3", "PP:2"), ("PP:x", "PP:3")):
                event["name"] = event["name"].replace(old, new)
        paths.append(dump(value, tmp_path / path.name))
    with pytest.raises(TraceError, match="only schedules that deal the stages out in turns"):
        kineto.read(paths)


def test_data_parallelism_on_cpu(tmp_path: Path) -> None:
    """Two ranks, in milliseconds: forward 0 to 10, backward 10 to 30, gradients 25 to 40 + rank."""

    def event(name: str, begin_ms: float, end_ms: float, cat: str = "cpu_op") -> dict:
        times = {"ts": begin_ms * 1e3, "dur": (end_ms - begin_ms) * 1e3}
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "args": {}} | times

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
    expected = [(K.FORWARD_COMPUTE, 0, 10), (K.BACKWARD_COMPUTE, 10, 30)]
    ends = (40, 41)  # 1 ms is noise between hosts, no offset of the clocks
    for rank in range(2):
        scatter = (K.GRADS_REDUCE_SCATTER, 25, ends[rank])
        assert got[4 * rank : 4 * rank + 4] == [*expected, scatter, (K.OPTIMIZER, 42, 45)]


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


@fuzz
@given(data=st.data())
def test_fuzzed_files(tmp_path: Path, truth: Trace, data: st.DataObject) -> None:
    paths = ProfileWriter(truth.select_steps([0])).write(tmp_path)
    content = bytearray(gzip.decompress(paths[0].read_bytes()))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + 1] = data.draw(st.binary(max_size=3) | st.sampled_from([b"9" * 30, b"-"]))
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    paths[0].write_bytes(bytes(content))
    try:
        kineto.matches(paths[0])
        assert len(kineto.read(paths).trace)
    except PacelineError as error:
        assert str(error)  # noqa: PT017 (a file may survive)


@fuzz
@given(data=st.data())
def test_fuzzed_values(tmp_path: Path, truth: Trace, data: st.DataObject) -> None:
    """Values of a good file are replaced by others of any type: a trace or a PacelineError."""
    paths = ProfileWriter(truth.select_steps([0]), ranges=data.draw(st.booleans())).write(tmp_path)
    value = load(paths[1])
    odd = st.sampled_from(
        [None, True, -1, 0, 1, 10**400, 2**31, 1e308, float("nan"), "", "x", "3", [], {}, [[1]]]
    )
    for _ in range(data.draw(st.integers(1, 4))):
        place = value
        while place:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = data.draw(st.sampled_from(keys))
            if (
                not isinstance(place[key], dict | list)
                or not place[key]
                or data.draw(st.booleans())
            ):
                place[key] = copy.deepcopy(data.draw(odd))
                break
            place = place[key]
    dump(value, paths[1])
    try:
        kineto.matches(paths[1])
        assert len(kineto.read(paths).trace)
    except PacelineError as error:
        assert str(error)  # noqa: PT017
