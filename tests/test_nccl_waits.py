"""Who waits for whom in the plugin's calls, alone and joined with a recording: small cases by hand.

A gloo job is joined in ``test_demo_live.py``, a real profile in ``real/test_nccl_joined.py``.
"""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

import requires
from paceline import synthesize
from paceline.blockfile import block, file_header
from paceline.cli.main import run
from paceline.detect.waits import wait_graph
from paceline.errors import DetectError, TraceError
from paceline.sources import load
from paceline.sources.call_logs import nccl_profiler
from paceline.sources.call_logs.joining import with_recording
from paceline.sources.call_logs.timed_calls import TimedCalls, read_folder, timed_calls
from paceline.sources.recording.files import read_files
from paceline.synth import SlowWorker
from paceline.trace import OpKind
from recordings import record_trace
from test_sources_recording import spec

HOST_S = 1.7e9


def calls_of(rows, members, basis, **fields):
    """Rows (rank, group, number, start, end), of one operation and 1,000 bytes."""
    rank, group, number, start, end = map(np.array, zip(*rows, strict=True))
    n = len(rank)
    columns = {
        "rank": rank, "group": group, "op": np.zeros(n, dtype=int), "number": number,
        "flow": np.zeros(n, dtype=int),
        "size": np.full(n, 1000), "host_s": start.astype(float), "start_s": start.astype(float),
        "end_s": end.astype(float), "ops": ("AllReduce",),
        "groups": tuple(f"g{i}" for i in range(len(members))), "members": np.array(members),
        "basis": basis, "notes": (),
    }  # fmt: skip
    return TimedCalls(**{**columns, **fields})


#: Ranks 0 and 1 come 3 s and 1 s before rank 2; the transfer takes 0.5 s. Twice.
THREE = [(0, 0, 0, 0.0, 3.5), (1, 0, 0, 2.0, 3.5), (2, 0, 0, 3.0, 3.5)]
AGAIN = [(rank, group, 1, start + 10, end + 10) for rank, group, _, start, end in THREE]


@pytest.mark.parametrize("basis", ["exact", "device"])
def test_waits_and_transfers_separate(basis):
    graph = wait_graph(calls_of([*THREE, *AGAIN], [3], basis))
    assert [(w.waits, w.late, w.seconds, w.calls) for w in graph.waits] == [
        (0, 2, 6.0, 2), (1, 2, 2.0, 2),
    ]  # fmt: skip
    assert graph.late_s == {2: 8.0}
    (row,) = graph.transfers
    assert (row.ranks, row.calls, row.transfer_s) == ((0, 1, 2), 2, 0.5)
    assert row.bus_bytes_per_s == pytest.approx(2 * 2 / 3 * 1000 / 0.5)
    assert graph.calls == 2
    assert json.loads(json.dumps(graph.to_mapping()))["transfers"][0]["ratio"] is None


def test_durations_need_no_common_clock():
    apart = [(r, g, n, start + 50 * r, end + 50 * r) for r, g, n, start, end in THREE]
    graph = wait_graph(calls_of(apart, [3], "device"))
    assert [(w.waits, w.late, w.seconds) for w in graph.waits] == [(0, 2, 3.0), (1, 2, 1.0)]


def test_from_hosts_alone_there_are_bounds_and_no_transfers():
    calls = calls_of(THREE, [3], "host", end_s=np.full(3, np.nan))
    graph = wait_graph(calls)
    assert [(w.waits, w.seconds) for w in graph.waits] == [(0, 3.0), (1, 1.0)]
    assert graph.transfers == ()


def test_a_group_whose_transfers_take_longer_than_its_likes_is_slow():
    rows = [
        (rank + 2 * group, group, number, number, number + (0.3 if group == 1 else 0.1))
        for group in range(3)
        for rank in (0, 1)
        for number in range(4)
    ]
    graph = wait_graph(calls_of(rows, [2, 2, 2], "exact"))
    assert (graph.transfers[0].group, graph.transfers[0].is_slow) == ("g1", True)
    assert graph.transfers[0].ratio == pytest.approx(3)
    assert sum(row.is_slow for row in graph.transfers) == 1


def test_calls_that_a_member_lacks_are_left_out():
    graph = wait_graph(calls_of([*THREE, *AGAIN[:2]], [3], "exact"))
    assert graph.calls == 1
    with pytest.raises(DetectError, match="files of all ranks"):
        wait_graph(calls_of(THREE[:2], [3], "exact"))


# Joined with a recording.


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    slow = synthesize(spec(steps=3, slow_workers=(SlowWorker(1, 0, 2.0),)))
    record_trace(slow, folder)
    trace = load(folder)
    return folder, trace, read_files(folder)


FLOWS = {2: 1, 4: 1, 3: -1, 5: -1, 6: 0, 7: 0}  # by OpKind


def plugin_of(trace, ahead_s=0.0):
    """The calls that a plugin would have seen of a trace."""
    rows = np.flatnonzero(np.isin(trace.kind, list(FLOWS)))
    base_s = trace.step_start_s[np.searchsorted(trace.steps, trace.step[rows])]
    host_s = base_s + trace.start[rows] + 20e-6 + ahead_s
    is_reduce = trace.kind[rows] == OpKind.GRADS_REDUCE_SCATTER
    n = len(rows)
    return TimedCalls(
        rank=trace.rank[trace.replica[rows], trace.pp[rows]],
        group=np.where(is_reduce, trace.pp[rows], 2), op=np.zeros(n, dtype=int),
        flow=np.array([FLOWS[kind] for kind in trace.kind[rows].tolist()]),
        number=trace.step[rows].astype(int), size=np.full(n, 4096), host_s=host_s, start_s=host_s,
        end_s=np.full(n, np.nan), ops=("ReduceScatter",), groups=("0x1", "0x2", "0x3"),
        members=np.array([2, 2, 99]), basis="host", notes=(),
    )  # fmt: skip


def test_with_a_recording_waits_are_those_of_the_trace(recorded):
    _, trace, files = recorded
    joined = with_recording(plugin_of(trace), trace, files)
    assert joined.basis == "exact"
    assert np.isfinite(joined.end_s).all()
    graph = wait_graph(joined)
    rows = np.flatnonzero(trace.kind == OpKind.GRADS_REDUCE_SCATTER)
    expected = 0.0
    for step in trace.steps:
        for stage in range(2):
            mine = rows[(trace.step[rows] == step) & (trace.pp[rows] == stage)]
            expected += float(trace.start[mine].max() - trace.start[mine].min())
    assert sum(wait.seconds for wait in graph.waits) == pytest.approx(expected, rel=1e-4)
    assert graph.calls == 2 * trace.n_steps
    slow = int(trace.rank[1, 0])
    assert max(graph.late_s, key=graph.late_s.get) == slow


def test_a_clock_that_was_set_is_refused(recorded):
    _, trace, files = recorded
    for ahead_s in (-0.2, 0.03, 5000.0):
        with pytest.raises(TraceError, match=r"clock|two runs"):
            with_recording(plugin_of(trace, ahead_s=ahead_s), trace, files)


def test_another_jobs_ranks_are_refused(recorded):
    _, trace, files = recorded
    calls = plugin_of(trace)
    other = TimedCalls(**{**vars(calls), "rank": calls.rank + 100})
    with pytest.raises(TraceError, match="ranks, runs or clocks differ"):
        with_recording(other, trace, files)


# The files and the command.


def plugin_file(path, rank, rows, file=1):
    """A process's file: a communicator of two, and rows (type, seq, peer, time in ns)."""
    meta = {"what": "nccl-profiler", "pid": rank + 1, "begun_ns": 1, "host": "a", "rank": rank,
            "file": file, "abi": 6}  # fmt: skip
    world = struct.pack("<QIiii32s", 7, 1, rank, 2, 1, b"")
    records = b"".join(
        struct.pack(
            "<qQQIHBBQQii16s16s16s8s", time_ns, n + 1, 0, 1, kind, 0, 0, seq, 256, peer, 0,
            func, b"ncclFloat32", b"", b"",
        )
        for n, (kind, seq, peer, time_ns, func) in enumerate(rows)
    )  # fmt: skip
    path.write_bytes(file_header(meta) + block(17, world.ljust(56, b"\0")) + block(16, records))


@pytest.fixture
def folder(tmp_path):
    ns = int(HOST_S * 1e9)
    for rank, late in ((0, 0), (1, 5_000_000)):
        peer, func = 1 - rank, b"Send" if rank == 0 else b"Recv"
        rows = [(1, n, 0, ns + n * 10**8 + late, b"AllReduce") for n in range(5)]
        rows += [(2, 0, peer, ns + n * 10**8 + 5 * 10**7, func) for n in range(5)]
        plugin_file(tmp_path / f"nccl-a-{rank + 1}-00000.nccl", rank, rows)
    return tmp_path


def test_hosts_alone_name_who_comes_late(folder, capsys):
    assert run(["nccl", "waits", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["basis"] == "host"
    assert found["calls"] == 10
    assert found["waits"][0]["late"] == 1
    assert found["waits"][0]["seconds"] == pytest.approx(0.025, rel=1e-3)
    assert found["links"] == []
    assert run(["nccl", "waits", str(folder)]) == 0
    assert "waits are bounds" in capsys.readouterr().out


def test_sends_meet_recvs_only_where_the_files_go_back_to_the_first(folder):
    whole = timed_calls(*read_folder(folder))
    assert {name: int(n) for name, n in zip(whole.groups, whole.members, strict=True)} == {
        "0x7": 2, "0x7:0>1": 2,
    }  # fmt: skip
    path = next(folder.glob("nccl-a-2-*"))
    plugin_file(path, 1, [(1, 0, 0, int(HOST_S * 1e9), b"AllReduce")], file=17)
    rotated = timed_calls(*read_folder(folder))
    assert rotated.groups == ("0x7",)
    assert any("left out" in note for note in rotated.notes)


def test_a_picture_is_written_and_not_replaced_unasked(folder, tmp_path, capsys):
    requires.installed("matplotlib")
    path = tmp_path / "waits.svg"
    assert run(["nccl", "waits", str(folder), "--plot", str(path)]) == 0
    assert path.read_bytes()[:5] == b"<?xml"
    assert run(["nccl", "waits", str(folder), "--plot", str(path)]) == 2
    assert "exists" in capsys.readouterr().err
    assert run(["nccl", "waits", str(folder), "--plot", str(path), "--force"]) == 0


def test_a_folder_without_the_plugins_files_is_refused(tmp_path, capsys):
    assert run(["nccl", "waits", str(tmp_path)]) == 2
    assert "PACELINE_RECORD" in capsys.readouterr().err


def test_the_last_stop_of_a_channel_counts():
    """A device may tell of a stop before the true one."""
    records = np.zeros(3, dtype=nccl_profiler._RECORD)
    records["handle"], records["parent"] = 7, 3
    records["what"] = nccl_profiler._START, nccl_profiler._STATE, nccl_profiler._STATE
    records["type"] = nccl_profiler._KERNEL
    records["state"] = 0, nccl_profiler._KERNEL_STOP, nccl_profiler._KERNEL_STOP
    records["a"], records["time_ns"] = (1_000, 1_500, 9_000), 1_000
    begin_s, end_s = nccl_profiler._device_spans(records)[3]
    assert end_s - begin_s == pytest.approx(8e-6)
