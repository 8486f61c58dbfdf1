"""Execution traces of PyTorch and Chakra: what is linked with times, and what says no times."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import requires
from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.ranks import rank_report
from paceline.sources.devices import chakra
from xpu_timer_files import message, varint

Captured = pytest.CaptureFixture[str]


def node(name: str, start_us: float | None = None, lasted_us: float = 0.0, **more: Any) -> Any:
    """A node of the host; with ``cat`` one of the device."""
    times = {} if start_us is None else {"ts": start_us, "inclusive_dur": lasted_us}
    return {"id": 2, "name": name, "ctrl_deps": 1, "inputs": {"values": []}, **times, **more}


def kernel(name: str, start_us: float, lasted_us: float, stream: int = 7) -> Any:
    return node(name, start_us, lasted_us, cat="kernel", ph="X", stream=stream)


def linked(path: Path, *nodes: Any) -> Path:
    """As ``chakra_trace_link`` writes it."""
    text = {"schema": "1.0.1", "pid": 5, "time": "2026-11-23 05:00:00", "nodes": nodes}
    path.write_text(json.dumps(text, indent=4))
    return path


def one_rank(path: Path) -> Path:
    """Computes 100 to 200, communicates 150 to 300, copies 390.5 to 400; a step from 90 to 410."""
    return linked(
        path,
        node("[pytorch|profiler|execution_trace|thread]"),
        node("ProfilerStep#3", 90, 320),
        node("aten::mm", 95, 10),
        kernel("gemm", 100, 100),
        kernel("ncclDevKernel_AllReduce_Sum_f32", 150, 150, stream=20),
        node("Memcpy DtoH (Device -> Pinned)", 390.5, 9.5, cat="gpu_memcpy", stream=7),
    )


def converted(path: Path) -> Path:
    """As ``chakra_converter`` writes it: messages, each behind its length, without start times."""
    metadata = message((2, message((1, b"schema"), (29, b"1.0.1"))), (2, message((1, b"pid"))))
    gemm = message((1, 3), (2, b"gemm"), (3, 4), (7, 100))
    path.write_bytes(b"".join(varint(len(part)) + part for part in (metadata, gemm)))
    return path


def test_where_the_time_of_a_linked_trace_went(tmp_path: Path) -> None:
    report = rank_report(one_rank(tmp_path / "a.json"))
    (rank,) = report.ranks
    device = rank.device
    assert device is not None
    assert device.window_s == pytest.approx(300e-6)
    assert device.compute_s == pytest.approx(100e-6)
    assert device.communication_hidden_s == pytest.approx(50e-6)
    assert device.communication_exposed_s == pytest.approx(100e-6)
    assert device.memory_exposed_s == pytest.approx(9.5e-6)
    assert [(step.number, step.step_s) for step in rank.steps] == [(3, pytest.approx(320e-6))]
    assert rank.launches.count == 0
    assert any("neither launches nor the rank" in note for note in report.notes)


def test_times_since_1970_keep_their_microseconds(tmp_path: Path) -> None:
    begin_us = 1_689_360_808_083_239
    (rank,) = rank_report(linked(tmp_path / "a.json", kernel("gemm", begin_us, 5))).ranks
    assert rank.kernels[0].total_s == pytest.approx(5e-6, abs=1e-12)


def test_execution_traces_without_times_are_refused(tmp_path: Path) -> None:
    path = linked(tmp_path / "et.json", node("aten::mm"))
    with pytest.raises(TraceError, match="says what ran, not when; link it with chakra_trace_link"):
        rank_report(path)
    with pytest.raises(TraceError, match="how long nodes took but not when they began"):
        rank_report(converted(tmp_path / "rank.0.et"))


def test_no_trace_can_be_made(tmp_path: Path, capsys: Captured) -> None:
    path = one_rank(tmp_path / "a.json")
    assert run(["import", str(path), "-o", str(tmp_path / "a.parquet")]) == 2
    assert "is an execution trace, which does not say microbatches" in capsys.readouterr().err


@pytest.mark.parametrize("changed", [{"ts": -5}, {"ts": "soon"}, {"inclusive_dur": 1e18}])
def test_times_that_are_none(tmp_path: Path, changed: Any) -> None:
    path = linked(tmp_path / "a.json", kernel("gemm", 5, 5) | changed)
    with pytest.raises(TraceError, match="gemm"):
        rank_report(path)


def test_what_the_observer_of_torch_writes(tmp_path: Path) -> None:
    requires.installed("torch")
    import torch
    from torch.profiler import ExecutionTraceObserver

    observer = ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "et.json"))
    observer.start()
    torch.ones(2) + torch.ones(2)
    observer.stop()
    observer.unregister_callback()
    assert chakra.matches(tmp_path / "et.json")
    with pytest.raises(TraceError, match="says what ran, not when"):
        rank_report(tmp_path / "et.json")


def test_a_real_execution_trace() -> None:
    path = requires.data(
        *("real", "hta", "execution_trace", "benchmark_simple_add_et.json.gz"),
        origin="tests/data/execution_trace of facebookresearch/HolisticTraceAnalysis, f4d0062",
    )
    with gzip.open(path, "rt") as file:
        assert len(json.load(file)["nodes"]) > 20
    with pytest.raises(TraceError, match="says what ran, not when"):
        rank_report(path)
