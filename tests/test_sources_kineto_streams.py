"""PyTorch profiles of data-parallel GPUs that have stream waits (enable_cuda_sync_events)."""

import json
from pathlib import Path

import numpy as np
import pytest

import paceline
from gpu_profiles import Step, fsdp_step, job, level, step, without_waits
from import_files import dump
from paceline.errors import TraceError
from paceline.graph import from_trace
from paceline.sources import kineto
from paceline.sources.kineto.host import HostEvents
from paceline.sources.kineto.streams import Bound, DeviceEvent, StreamWait, main_stream
from paceline.trace import OpKind

K = OpKind


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
    assert any("follow the rules of torch 2.13" in note for note in by_rule.notes)
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
