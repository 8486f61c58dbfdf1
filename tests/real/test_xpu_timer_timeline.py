"""Timelines written with xpu_timer's own messages.

``hook.proto`` is that of intelligent-machine-learning/dlrover (Apache-2.0, commit 7c3e964); names
and the code of a kernel lie beside a timeline as its ``dumpTraceMeta`` writes them.
"""

import random
from pathlib import Path

import pytest

import proto_file
import requires
from paceline.ranks import rank_report
from paceline.sources.call_logs.files import load_call_log

PROTO = "xpu_timer/xpu_timer/protos/hook.proto"
BEGIN_US = 1_780_000_000_000_000
RANKS, STEPS, GEMM_US, LATE_US = 4, 40, 700, 300


def timelines(folder: Path) -> list[Path]:
    """A job whose last rank multiplies for longer; the others wait for its sums."""
    requires.installed("google")
    text = requires.source("intelligent-machine-learning/dlrover", "7c3e964", PROTO)
    traces_of = proto_file.messages(text)["KernelTraces"]
    draw, paths = random.Random(5), []
    for rank in range(RANKS):
        traces = traces_of(pid=100 + rank, rank=rank)
        for step in range(STEPS):
            begin = BEGIN_US + 2000 * step
            lasted = GEMM_US + LATE_US * (rank == RANKS - 1)
            kernel = traces.traces.add(kernel_type=0, trace_code=3, start_us=begin, dur_us=lasted)
            kernel.delay_us, kernel.trace_id = draw.randrange(50, 90), step
            kernel.mm_debug.shapes.extend([1, 512, 512, 512])
            kernel.mm_debug.dtype, kernel.mm_debug.lds[:] = "bf16", [512, 512, 512]
            start = begin + lasted
            until = begin + GEMM_US + LATE_US + 200
            kernel = traces.traces.add(
                kernel_type=1, trace_code=4, start_us=start, dur_us=until - start
            )
            kernel.delay_us = lasted
            kernel.nccl_debug.comm_hash = 2**63 + 11
            kernel.nccl_debug.input_size_in_bytes, kernel.nccl_debug.ranks = 1 << 20, RANKS
            kernel.nccl_debug.seq, kernel.nccl_debug.dtype = step, "bf16"
        traces.host_traces.add(start_us=BEGIN_US, dur_us=40, name="GC").gc_debug.collected = 7
        path = folder / f"{rank:05}-{RANKS:05}.timeline"
        path.write_bytes(traces.SerializeToString())
        names = "3,xpu_timer_mm_bmnk_1_512_512_512\n4,xpu_timer_ncclAllReduce\n"
        path.with_name(path.name + ".meta").write_text(names + "xpu_timer_host_trace,GC\n")
        paths.append(path)
    return paths


def test_all_events_are_read(tmp_path: Path) -> None:
    report = rank_report(timelines(tmp_path))
    assert [rank.rank for rank in report.ranks] == list(range(RANKS))
    for rank in report.ranks:
        late = LATE_US * (rank.rank == RANKS - 1)
        kernels = {kernel.name: (kernel.count, kernel.total_s) for kernel in rank.kernels}
        assert len(kernels) == 2
        gemm = kernels["mm_bmnk_1_512_512_512"]
        assert gemm == (STEPS, pytest.approx(STEPS * (GEMM_US + late) * 1e-6))
        exposed = STEPS * (LATE_US + 200 - late) * 1e-6
        assert kernels["ncclAllReduce"] == (STEPS, pytest.approx(exposed))
        assert rank.device is not None
        assert rank.device.compute_s == pytest.approx(gemm[1])
        assert rank.device.communication_exposed_s == pytest.approx(exposed)


def test_who_comes_late(tmp_path: Path) -> None:
    timelines(tmp_path)
    log, _ = load_call_log([tmp_path])
    assert len(log.rank) == RANKS * STEPS
    arrived = log.time_s.reshape(RANKS, STEPS)
    assert arrived[-1] - arrived[0] == pytest.approx(LATE_US * 1e-6, abs=1e-6)
