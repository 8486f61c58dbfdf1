"""Reports of single ranks, on profiles small enough to check by hand."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from import_files import dump
from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.ranks import rank_report
from paceline.ranks.intervals import union
from paceline.sources.kineto.device import Work, work_of

Captured = pytest.CaptureFixture[str]


def event(category: str, name: str, start_us: float, end_us: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0,
        "tid": 1,
        "ts": start_us,
        "dur": end_us - start_us,
        "args": args,
    }


def kernel(
    name: str, launch_us: float, start_us: float, end_us: float, stream: int = 7
) -> list[dict[str, Any]]:
    """A kernel, and the call of 2 us that launched it."""
    number = kernel.count = kernel.count + 1  # type: ignore[attr-defined]
    return [
        event("cuda_runtime", "cudaLaunchKernel", launch_us, launch_us + 2, correlation=number),
        event("kernel", name, start_us, end_us, correlation=number, stream=stream),
    ]


kernel.count = 0  # type: ignore[attr-defined]


def two_steps() -> dict[str, Any]:
    """Step 1: computes 100 to 200, communicates 150 to 300. Step 2: copies 390 to 400, computes."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "Accelerator 9000"}],
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 64},
        "traceEvents": [
            event("user_annotation", "ProfilerStep#1", 50, 310),
            event("user_annotation", "ProfilerStep#2", 310, 600),
            *kernel("gemm", 90, 100, 200),
            *kernel("ncclDevKernel_AllReduce_Sum_f32", 140, 150, 300, stream=20),
            event("cuda_runtime", "cudaMemcpyAsync", 360, 362, correlation=900),
            event("gpu_memcpy", "Memcpy HtoD", 390, 400, correlation=900, stream=7),
            *kernel("gemm", 395, 410, 500),
        ],
    }


def test_where_the_time_of_each_step_went(tmp_path: Path) -> None:
    report = rank_report(dump(two_steps(), tmp_path / "rank3.json"))
    rank = report.ranks[0]
    assert (rank.rank, rank.world_size, rank.device_name) == (3, 64, "Accelerator 9000")
    first, second = (step.device for step in rank.steps)
    assert [step.step_s for step in rank.steps] == pytest.approx([260e-6, 290e-6])
    assert first is not None
    assert second is not None
    assert rank.device is not None
    # 100 to 390: 100 computing, 100 more communicating, 60 until the copy is launched, 30 behind.
    assert first.window_s == pytest.approx(290e-6)
    assert first.compute_s == pytest.approx(100e-6)
    assert first.communication_exposed_s == pytest.approx(100e-6)
    assert first.communication_hidden_s == pytest.approx(50e-6)
    assert first.idle_host_s == pytest.approx(60e-6)
    assert first.idle_device_s == pytest.approx(30e-6)
    # 390 to 500: the copy, 10 of delay though the kernel was launched, the kernel.
    assert second.window_s == pytest.approx(110e-6)
    assert second.memory_exposed_s == pytest.approx(10e-6)
    assert (second.idle_host_s, second.idle_delay_s) == pytest.approx((0, 10e-6))
    assert rank.device.window_s == pytest.approx(400e-6)
    assert [(k.name, k.count) for k in rank.kernels[:1]] == [("gemm", 2)]
    assert rank.kernels[0].total_s == pytest.approx(190e-6)
    assert rank.kernels[0].share == pytest.approx(190 / 350)
    assert rank.launches.count == 4
    assert rank.launches.delay_median_s == pytest.approx((8e-6 + 13e-6) / 2)


def test_without_the_last_step(tmp_path: Path) -> None:
    rank = rank_report(dump(two_steps(), tmp_path / "rank3.json"), last_step=False).ranks[0]
    assert rank.device is not None
    assert [step.number for step in rank.steps] == [1]
    assert rank.device.window_s == pytest.approx(200e-6)


def test_notes_say_what_more_ranks_would_tell(tmp_path: Path) -> None:
    notes = rank_report(dump(two_steps(), tmp_path / "rank3.json")).notes
    assert any("1 of 64 ranks" in note for note in notes)
    assert any("waits for other ranks" in note for note in notes)


def test_the_rank_that_communicates_least(tmp_path: Path) -> None:
    """It may come late: the others' kernels run while they wait for it."""
    other = two_steps()
    other["distributedInfo"]["rank"] = 5
    for item in other["traceEvents"]:
        if item["name"].startswith("nccl"):
            item["ts"], item["dur"] = 250, 50
    paths = [dump(two_steps(), tmp_path / "rank3.json"), dump(other, tmp_path / "rank5.json")]
    notes = rank_report(paths).notes
    assert any("50.0 µs on rank 5, 150 µs on rank 3" in note for note in notes)
    assert not any("rank 5, " in note for note in rank_report(paths[:1]).notes)


def test_a_launch_that_is_not_in_the_file(tmp_path: Path) -> None:
    value = two_steps()
    value["traceEvents"].append(event("kernel", "graph", 550, 560, correlation=5555, stream=7))
    value["traceEvents"] = [e for e in value["traceEvents"] if "Step#" not in e["name"]]
    report = rank_report(dump(value, tmp_path / "rank3.json"))
    assert report.ranks[0].launches.missing == 1
    assert report.ranks[0].device is not None
    assert report.ranks[0].device.idle_device_s == pytest.approx((30 + 10 + 50) * 1e-6)
    assert any("the launches of 1 events are not in the files" in note for note in report.notes)
    assert any("without ProfilerStep#N" in note for note in report.notes)


def test_operators_where_no_device_ran(tmp_path: Path, capsys: Captured) -> None:
    events = [
        event("cpu_op", "aten::linear", 0, 100),
        event("cpu_op", "aten::addmm", 10, 90),
        event("cpu_op", "aten::relu", 100, 120),
    ]
    path = dump({"traceEvents": events}, tmp_path / "cpu.json")
    rank = rank_report(path).ranks[0]
    assert rank.device is None
    assert [(k.name, k.count) for k in rank.operators] == [("aten::linear", 1), ("aten::relu", 1)]
    assert rank.operators[0].total_s == pytest.approx(100e-6)
    assert run(["ranks", str(path)]) == 0
    said = capsys.readouterr().out
    assert "rank not told: cpu.json" in said
    assert said.startswith("times of the host only: no event of a device is in the files")
    assert said.count("no event of a device") == 1
    assert "idle: host" not in said


def test_operators_of_equal_begin_show_where_they_differ(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "at::native::vectorized_elementwise_kernel<4, at::native::"
    names = [
        *(
            f"autograd::engine::evaluate_function: {name}"
            for name in ("MulBackward0", "NegBackward")
        ),
        *(f"{long}{name}" for name in ("AddFunctor<float>", "MulFunctor<float>")),
    ]
    events = [event("cpu_op", name, 10 * n, 10 * n + 9) for n, name in enumerate(names)]
    assert run(["ranks", str(dump({"traceEvents": events}, tmp_path / "cpu.json"))]) == 0
    said = capsys.readouterr().out
    assert "  MulBackward0 " in said
    assert "  NegBackward " in said
    assert "at::native::ve…AddFunctor<floa " in said
    assert "at::native::ve…MulFunctor<floa " in said


def test_packed_or_not(tmp_path: Path) -> None:
    plain = dump(two_steps(), tmp_path / "rank3.json")
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    reports = [rank_report(path).ranks[0].to_mapping() for path in (plain, packed)]
    assert reports[0] | {"file": ""} == reports[1] | {"file": ""}


def test_what_is_refused(tmp_path: Path, capsys: Captured) -> None:
    path = dump(two_steps(), tmp_path / "rank3.json")
    with pytest.raises(TraceError, match="are both of rank 3"):
        rank_report([path, path])
    other = two_steps() | {"distributedInfo": {"rank": 1, "world_size": 8}}
    with pytest.raises(TraceError, match="jobs of 8 and 64 ranks"):
        rank_report([path, dump(other, tmp_path / "rank1.json")])
    empty = dump({"traceEvents": [{"ph": "M", "name": "process_name"}]}, tmp_path / "empty.json")
    with pytest.raises(TraceError, match="no kernels, no operators and no ProfilerStep"):
        rank_report(empty)
    with pytest.raises(TraceError, match="no profile is given"):
        rank_report([])
    value = two_steps()
    value["traceEvents"][3]["dur"] = -1
    with pytest.raises(TraceError, match="event 3: dur -1 is negative"):
        rank_report(dump(value, tmp_path / "negative.json"))
    assert run(["ranks", str(tmp_path / "absent.json")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_what_kernels_do() -> None:
    named = {
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": Work.COMMUNICATION,
        "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)": Work.COMMUNICATION,
        "void deep_ep::intranode::combine<__nv_bfloat16>(int)": Work.COMMUNICATION,
        "Memcpy DtoD (Device -> Device)": Work.MEMORY,
        "dma_request": Work.MEMORY,
        "job_exe": Work.OTHER,
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n": Work.COMPUTE,
    }
    assert {name: work_of(name) for name in named} == named


def test_union_against_a_grid() -> None:
    """Intervals on whole numbers, counted one by one."""
    random = np.random.default_rng(5)
    for _ in range(200):
        start = random.integers(0, 40, random.integers(0, 12)).astype(float)
        end = start + random.integers(0, 9, len(start))
        cells = {n for a, b in zip(start, end, strict=True) for n in range(int(a), int(b))}
        merged = union(start, end)
        assert merged.length_s == len(cells)
        assert (merged.start_s[1:] > merged.end_s[:-1]).all()
        assert merged.within(10, 25).length_s == len(cells & set(range(10, 25)))


def block() -> dict[str, Any]:
    """A forward computes 100 to 200 and sends 200 to 300, a backward computes 180 to 260.

    The gradient of weights computes 320 to 400, a kernel of no range 390 to 410.
    """
    given = two_steps()
    given["traceEvents"] = [
        event("user_annotation", "1F1B", 0, 90),
        event("user_annotation", "mlp(F)", 0, 20),
        event("user_annotation", "dispatch(F)", 8, 12),  # inside: its kernel is its own
        event("user_annotation", "mlp(B)", 20, 40),
        event("user_annotation", "mlp(W)", 40, 60),
        *kernel("gemm", 2, 100, 200),
        *kernel("ncclDevKernel_SendRecv", 9, 200, 300, stream=20),
        *kernel("gemm", 22, 180, 260, stream=8),
        *kernel("gemm", 42, 320, 400),
        *kernel("norm", 70, 390, 410, stream=9),
    ]
    return given


def test_what_ran_for_each_direction(tmp_path: Path, capsys: Captured) -> None:
    path = dump(block(), tmp_path / "rank3.json")
    passes = rank_report(path).ranks[0].passes
    assert passes is not None
    forward, backward, weight = passes.ways
    assert [work.name for work in passes.ways] == ["forward", "backward", "weight"]
    assert (forward.ranges, forward.compute_s) == (2, pytest.approx(100e-6))
    assert forward.communication_s == pytest.approx(100e-6)
    assert forward.communication_beside_s == pytest.approx(60e-6)  # the backward's, 200 to 260
    assert forward.communication_exposed_s == pytest.approx(40e-6)
    assert forward.communication_hidden_s == pytest.approx(60e-6)
    assert (backward.compute_s, weight.compute_s) == pytest.approx((80e-6, 80e-6))
    by_name = {work.name: work for work in passes.ranges}
    assert list(by_name) == ["mlp(F)", "dispatch(F)", "mlp(B)", "mlp(W)"]
    assert by_name["mlp(F)"].communication_s == 0
    assert by_name["dispatch(F)"].compute_s == 0
    # Forward 100 to 300 and backward 180 to 260 share 80 of 280.
    assert passes.any_s == pytest.approx(280e-6)
    assert passes.at_once_s == pytest.approx(80e-6)
    assert passes.elsewhere_s == pytest.approx(20e-6)
    assert run(["ranks", str(path)]) == 0
    assert "28.6% of the time with any of these passes" in capsys.readouterr().out


def test_without_such_ranges_or_launches_no_direction_is_told(tmp_path: Path) -> None:
    assert rank_report(dump(two_steps(), tmp_path / "plain.json")).ranks[0].passes is None
    given = block()
    given["traceEvents"] = [e for e in given["traceEvents"] if e["cat"] != "cuda_runtime"]
    assert rank_report(dump(given, tmp_path / "rank3.json")).ranks[0].passes is None
