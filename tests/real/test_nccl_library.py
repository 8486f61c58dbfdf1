"""The plugin in NVIDIA's own libnccl, on a machine without a GPU.

``native/nccl_job.c`` puts its own functions in the place of the CUDA runtime's that the library
holds, so that NCCL believes in a GPU whose memory is the host's. All that runs on the host is
NVIDIA's: the loading of the plugin, groups, plans, proxies, sockets. No kernel runs.

It needs the library of nvidia-nccl-cu12 (350 MB), which is not among the project's. docs/nccl.md
has the versions that were run.

    pip install --target SITE --no-deps nvidia-nccl-cu12==2.30.7
    PACELINE_NCCL_LIBRARY=SITE/nvidia/nccl/lib/libnccl.so.2 pytest tests/real/test_nccl_library.py
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from paceline.cli import nccl
from paceline.cli.main import run
from paceline.detect.steps_of_calls import step_times
from paceline.errors import TraceError
from paceline.sources.call_logs.files import load_call_log
from paceline.sources.call_logs.nccl_profiler import SUFFIX
from paceline.sources.call_logs.nccl_ranks import read_ranks
from paceline.sources.call_logs.nccl_steps import step_marks
from paceline.sources.call_logs.proxy_steps import operations

NATIVE = Path(__file__).parents[1] / "native"
LIBRARY = Path(os.environ.get("PACELINE_NCCL_LIBRARY", ""))
CC = shutil.which(os.environ.get("CC", "cc"))
RANKS, CALLS = 4, 6


def version() -> tuple[int, int]:
    """(27, 7) of NCCL 2.27.7."""
    if not LIBRARY.is_file():
        return 0, 0
    number = ctypes.c_int()
    ctypes.CDLL(str(LIBRARY)).ncclGetVersion(ctypes.byref(number))
    return number.value % 10_000 // 100, number.value % 100


MINOR, PATCH = version()
#: Of an AllReduce and of a send: floats.
COUNT = 1 << 18

pytestmark = [
    pytest.mark.skipif(not LIBRARY.is_file(), reason="PACELINE_NCCL_LIBRARY names no libnccl.so.2"),
    pytest.mark.skipif(CC is None, reason="no C compiler on this machine"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the jumps are those of x86-64"),
]

#: NCCL's parser wants an element to be one line.
TOPOLOGY = (
    '<system version="1">\n'
    '<cpu numaid="-1" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" '
    'modelid="85">\n'
    '<pci busid="0000:10:00.0" class="0x030200" vendor="0x10de" device="0x20b0" '
    'subsystem_vendor="0x10de" subsystem_device="0x134f" link_speed="16.0 GT/s PCIe" '
    'link_width="16">\n'
    '<gpu dev="0" sm="80" gdr="0"/>\n</pci>\n</cpu>\n</system>\n'
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    sources = sorted(nccl.NATIVE.glob("*.c"))
    nvml = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    for command in (
        [*nccl.FLAGS.split(), "-o", folder / nccl.PLUGIN, *sources],
        ["-rdynamic", "-pthread", "-o", folder / "job", NATIVE / "nccl_job.c", "-ldl"],
        [*nvml, "-o", folder / "libnvidia-ml.so.1", NATIVE / "fake_nvml.c"],
    ):
        subprocess.run([CC, *strict, *command], check=True)
    (folder / "topology.xml").write_text(TOPOLOGY)
    return folder


def plugin(path):
    """NCCL 2.27.3 opens no plugin by its path (`paceline nccl path` says so)."""
    if (MINOR, PATCH) >= (27, 5):
        return {"NCCL_PROFILER_PLUGIN": str(path)}
    return {"NCCL_PROFILER_PLUGIN": path.name, "LD_LIBRARY_PATH": str(path.parent)}


def start(built, folder, calls=CALLS, pause_ms=30, slow=None, name="id", **env):
    """The ranks of a job, a host each, whose only way is NCCL's sockets; ``slow`` sends 20 MB/s."""
    environment = {name: text for name, text in os.environ.items() if "NCCL" not in name}
    environment |= {
        "NCCL_TOPO_FILE": str(built / "topology.xml"),
        **dict.fromkeys(("NCCL_CUMEM_ENABLE", "NCCL_RAS_ENABLE"), "0"),
        **dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"), "1"),
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_MAX_NCHANNELS": "2",
        "NCCL_PROTO": "Simple",
        "NCCL_ALGO": "Ring",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": str(folder / "nccl.%h.%p"),
        "PACELINE_RECORD": str(folder),
        **plugin(built / nccl.PLUGIN),
        "PACELINE_NCCL_EVENTS": "0x105f",
        **env,
    }
    sizes = [str(RANKS), str(folder / name), str(calls), str(pause_ms)]
    return [
        subprocess.Popen(
            [built / "job", LIBRARY, built / "libnvidia-ml.so.1", str(rank), *sizes],
            env=environment
            | {"HOST": f"node{rank}", "NCCL_HOSTID": f"node{rank}", "RANK": str(rank)}
            | ({"SEND_MB_S": "20"} if rank == slow else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]


def finish(jobs, timeout_s=240.0):
    try:
        for rank, job in enumerate(jobs):
            text, _ = job.communicate(timeout=timeout_s)
            assert job.returncode == 0, text
            assert f"rank {rank} made" in text
    finally:
        stop(jobs)


def stop(jobs):
    for job in jobs:
        job.kill()
        job.communicate()


@pytest.fixture(scope="module")
def folder(built, tmp_path_factory):
    """A job of all-reduces and all-to-alls in which rank 2's NIC sends slowly."""
    folder = tmp_path_factory.mktemp("job")
    finish(start(built, folder, slow=2, ALL_TO_ALL="1"))
    return folder


@pytest.mark.skipif(MINOR == 27, reason="2.27 does not say so")
def test_nccl_loads_the_plugin_by_its_newest_interface(folder):
    newest = {27: 4, 28: 5, 29: 6, 30: 6}.get(MINOR, 7)
    text = next(folder.glob("nccl.node0.*")).read_text()
    assert f"PROFILER/Plugin: Loaded Paceline (v{newest})" in text


def test_all_that_nccl_tells_is_recorded_as_it_is(folder):
    processes, notes = read_ranks(sorted(folder.glob(f"*{SUFFIX}")))
    assert notes == []
    assert sorted(processes) == list(range(RANKS))
    for rank, process in processes.items():
        assert process.dropped == 0
        ((_, place, ranks),) = process.communicators.values()
        assert (place, ranks) == (rank, RANKS)
        records = process.records
        begun = records[records["what"] == 0]
        counts = Counter(begun["type"].tolist())
        assert set(counts) == {0, 1, 2, 3, 4, 6}  # no event of NCCL's API
        assert (counts[1], counts[2]) == (CALLS, CALLS * 2 * (RANKS - 1))
        colls = begun[begun["type"] == 1]
        assert colls["a"].tolist() == list(range(CALLS))
        assert {(row["func"], row["datatype"], row["algo"], row["proto"]) for row in colls} == {
            (b"AllReduce", b"ncclFloat32", b"RING", b"SIMPLE")
        }
        assert set(colls["b"].tolist()) == {COUNT}
        sends = begun[begun["type"] == 2]
        assert Counter(sends["func"].tolist()) == dict.fromkeys(
            (b"Send", b"Recv"), CALLS * (RANKS - 1)
        )
        assert set(sends["c"].tolist()) == set(range(RANKS)) - {rank}
        ended = records[(records["what"] == 1) & (records["type"] == 4)]
        assert len(np.unique(ended["handle"])) == counts[4]


def test_proxies_have_both_ends_and_all_steps(folder):
    processes, _ = read_ranks(sorted(folder.glob(f"*{SUFFIX}")))
    told = operations(processes)
    assert len(told) == sum(
        int(((one.records["type"] == 3) & (one.records["what"] == 0)).sum())
        for one in processes.values()
    )
    for rank in range(RANKS):
        for peer in range(RANKS):
            sent = told.is_send & (told.rank == rank) & (told.peer == peer)
            got = ~told.is_send & (told.rank == peer) & (told.peer == rank)
            assert int(told.size[sent].sum()) == int(told.size[got].sum())
            # NCCL 2.27 tells of no proxy operation of sends and recvs.
            known = rank != peer if MINOR > 27 else peer == (rank + 1) % RANKS
            assert (told.size[sent].sum() > 0) == known


def test_the_slow_direction_is_named_as_nccls_log_names_the_nic(folder, capsys):
    logs = map(str, folder.glob("nccl.*.*[0-9]"))
    assert run(["nccl", "waits", str(folder), "--nccl-log", *logs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    slow = [one for one in found["slow_network"] if one["send"] and one["send"]["host"] == "node2"]
    assert slow, found["slow_network"]
    assert slow[0]["send"]["name"] == "Socket/0"
    assert slow[0]["low"] > 2
    (row,) = [one for one in found["nics"] if (one["host"], one["direction"]) == ("node2", "send")]
    assert row["ratio"] > 2


def test_a_job_of_nccl_is_paused_and_goes_on(built, tmp_path):
    jobs = start(
        built, tmp_path, calls=1500, pause_ms=10, PACELINE_NCCL_POLL_MS="50",
        PACELINE_NCCL_EVENTS="0x4f",
    )  # fmt: skip
    try:
        while len(list(tmp_path.glob("pause/*.slot"))) < RANKS:
            assert all(job.poll() is None for job in jobs)
        times = {"hold_s": 1.0, "arrive_s": 20.0, "answer_s": 20.0, "silent_s": 10.0}
        asker = [sys.executable, Path(__file__).parents[1] / "pause_asker.py", tmp_path]
        done = subprocess.run(
            [*asker, json.dumps(times)], capture_output=True, text=True, timeout=120, check=False
        )
        result = json.loads(done.stdout)
        assert result.get("held"), (result, done.stderr)
        assert result["undisturbed"], result["why"]
        assert {one["reason"] for one in result["ranks"]} == {"go"}
        assert all(one["stopped_s"] >= 1.0 for one in result["ranks"])
        finish(jobs)
    finally:
        stop(jobs)


def test_a_communicator_that_is_split_off_is_one_of_its_own(built, tmp_path):
    """``ncclCommSplit`` by parity: its members, its calls, and the order in which they end."""
    finish(start(built, tmp_path, SPLIT="1"))
    processes, notes = read_ranks(sorted(tmp_path.glob(f"*{SUFFIX}")))
    assert notes == []
    identities = {}
    for rank, process in processes.items():
        assert process.dropped == 0
        (_, all_place, all_ranks), (part, place, ranks) = process.communicators.values()
        assert (all_place, all_ranks, place, ranks) == (rank, RANKS, rank // 2, RANKS // 2)
        identities.setdefault(rank % 2, set()).add(part)
        begun = process.records[(process.records["what"] == 0) & (process.records["type"] == 1)]
        of = Counter(zip(begun["communicator"].tolist(), begun["b"].tolist(), strict=True))
        assert of == {(1, COUNT): CALLS, (2, 1 << 16): CALLS}
    assert [len(one) for one in identities.values()] == [1, 1]
    assert identities[0] != identities[1]


def test_one_step_in_five_of_nccl_is_recorded_whole(built, tmp_path):
    """An AllReduce a step, then sends to all others."""
    every = 5
    asked = {"PACELINE_NCCL_EVERY": str(every), "PACELINE_NCCL_POLL_MS": "50"}
    finish(
        start(
            built,
            tmp_path,
            calls=250,
            pause_ms=10,
            ALL_TO_ALL="1",
            PACELINE_NCCL_EVENTS="0x4f",
            **asked,
        )
    )
    processes, _ = read_ranks(sorted(tmp_path.glob(f"*{SUFFIX}")))
    for process in processes.values():
        marks = step_marks(process.records)
        assert marks is not None
        assert process.skipped > 0
        assert process.dropped == 0
        assert (marks.calls, marks.every) == (1, every)
        assert marks.number.tolist() == list(range(250))
        sends = process.records[(process.records["what"] == 0) & (process.records["type"] == 2)]
        counts = Counter(marks.step_of(int(at)) for at in sends["time_ns"])
        whole = marks.number[marks.is_whole]
        assert len(whole) < 200
        assert [counts[int(step)] for step in whole] == [2 * (RANKS - 1)] * len(whole)
        # The proxies' and channels' records are those of calls that were recorded.
        begun = process.records[process.records["what"] == 0]
        parents = set(begun["parent"][np.isin(begun["type"], (3, 6))].tolist())
        assert parents <= set(begun["handle"][np.isin(begun["type"], (1, 2))].tolist())
    times = step_times(load_call_log([tmp_path])[0])
    assert len(times.table().steps) >= 245


def test_jobs_in_one_folder_are_told_apart(built, tmp_path):
    finish(start(built, tmp_path, name="first"))
    finish(start(built, tmp_path, name="second"))
    processes, notes = read_ranks(sorted(tmp_path.glob(f"*{SUFFIX}")))
    assert notes == ["4 processes of an earlier job are left out"]
    assert len({next(iter(one.communicators.values()))[0] for one in processes.values()}) == 1
    both = [start(built, tmp_path, calls=200, name=name) for name in ("third", "fourth")]
    for jobs in both:
        finish(jobs)
    with pytest.raises(TraceError, match=r"both ran as rank \d at the same time"):
        load_call_log([tmp_path])
