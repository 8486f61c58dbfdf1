"""The shim before a fake libnccl with NCCL's names: what it records, passes on, and pauses.

Its signatures were compared by a compiler with nccl.h of NCCL and RCCL: docs/nccl.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from paceline.cli import nccl
from paceline.cli.main import run as main
from paceline.pause.asker import Times, pause
from paceline.pause.records import read_slot
from paceline.sources.call_logs.files import load_call_log
from paceline.sources.call_logs.nccl_profiler import SUFFIX, read_processes

NATIVE = Path(__file__).parent / "native"
CC = shutil.which(os.environ.get("CC", "cc"))
RANKS, STEPS = 4, 20

#: Calls of a step: (function, elements); see framework.c.
STEP = (
    *(("AllGather", 16), ("ReduceScatter", 32), ("Send", 8), ("Recv", 8), ("AllReduce", 64)),
    *(("Broadcast", 4), ("Broadcast", 4), ("Reduce", 4)),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if CC is None:
        pytest.skip("no C compiler on this machine")
    folder = tmp_path_factory.mktemp("shim")
    flags = ["-std=c11", f"-I{nccl.NATIVE}", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
    shared = [*flags, "-shared", "-fPIC"]
    nccl_link = [f"-L{folder}", "-l:libnccl.so.2", f"-Wl,-rpath,{folder}"]
    job = NATIVE / "shim_job.c"
    for command in (
        [*nccl.FLAGS.split(), *flags, "-o", folder / nccl.SHIM, *nccl.sources(True), "-ldl"],
        [*shared, "-o", folder / "libnccl.so.2", NATIVE / "fake_nccl.c"],
        [*shared, "-o", folder / "framework.so", NATIVE / "framework.c", *nccl_link],
        [*flags, "-o", folder / "opened", job, "-ldl"],
        [*flags, "-DLINKED", "-o", folder / "linked", job, NATIVE / "framework.c", *nccl_link],
    ):
        subprocess.run([CC, *command], check=True)
    return folder


def start(
    built: Path, how: str, folder: Path, ranks: int, steps: int, **env: str
) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key != "RANK"}
    environment |= {"PACELINE_RECORD": str(folder), "PACELINE_NCCL_POLL_MS": "20"}
    environment |= {"LD_PRELOAD": str(built / nccl.SHIM), **env}
    return subprocess.Popen(
        [built / how, built / "framework.so", str(ranks), str(steps)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module", params=["opened", "linked"])
def recorded(built: Path, request: pytest.FixtureRequest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    process = start(built, request.param, folder, RANKS, STEPS)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return folder, out


def test_every_call_reaches_the_library_once(recorded: tuple[Path, str]) -> None:
    _, out = recorded
    expected = f"{len(STEP) * STEPS} calls, {STEPS} groups"
    assert sorted(out.splitlines()) == [f"rank {rank}: {expected}" for rank in range(RANKS)]


def test_every_call_is_recorded_once_with_what_it_moves(recorded: tuple[Path, str]) -> None:
    folder, _ = recorded
    processes = read_processes(sorted(folder.glob(f"*{SUFFIX}")))
    assert len(processes) == RANKS
    for process in processes:
        starts = process.records[process.records["what"] == 0]
        calls = starts[np.isin(starts["type"], (1, 2))]
        rows = [(row["func"].decode(), int(row["b"])) for row in calls]
        assert rows == list(STEP) * STEPS
        stopped = process.records[process.records["what"] == 1]
        assert set(stopped["handle"].tolist()) == set(starts["handle"].tolist())
        grouped = calls[calls["parent"] > 0]
        assert len(grouped) == 4 * STEPS, "nested groups are one group"


def test_the_communicators_have_the_same_identity_on_their_ranks(
    recorded: tuple[Path, str],
) -> None:
    folder, _ = recorded
    processes = read_processes(sorted(folder.glob(f"*{SUFFIX}")))
    places = [place for process in processes for place in process.communicators.values()]
    sizes = {name: ranks for name, _, ranks in places}
    assert sorted(sizes.values()) == [2, 2, 4]
    members = {name: sorted(rank for one, rank, _ in places if one == name) for name in sizes}
    assert sorted(map(tuple, members.values())) == [(0, 1), (0, 1), (0, 1, 2, 3)]


def test_it_is_a_call_log_that_says_where_its_times_are_from(recorded: tuple[Path, str]) -> None:
    folder, _ = recorded
    log, notes = load_call_log([folder])
    assert len(log) == RANKS * STEPS * len(STEP)
    assert log.duration_s is None
    assert [note for note in notes if "shim" in note]
    sizes = {(log.ops[op], size) for op, size in zip(log.op, log.size, strict=True)}
    assert ("ReduceScatter", 64) in sizes, "bfloat16"
    assert ("Reduce", 32) in sizes, "float64"


def test_the_calls_of_newer_nccl_and_of_rccl_are_recorded_once(built: Path, tmp_path: Path) -> None:
    process = start(built, "opened", tmp_path, RANKS, 3, NEWER="1")
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    newer = (
        *(("AlltoAll", 8), ("AlltoAll", 8), ("Gather", 4), ("Scatter", 4)),
        *(("AllReduce", 2), ("AllReduce", 2), ("AlltoAllv", 0)),
    )
    processes = read_processes(sorted(tmp_path.glob(f"*{SUFFIX}")))
    assert len(processes) == RANKS
    for process in processes:
        starts = process.records[process.records["what"] == 0]
        calls = starts[np.isin(starts["type"], (1, 2)) & (starts["b"] != 3)]
        rows = [(row["func"].decode(), int(row["b"])) for row in calls]
        assert rows == [*STEP, *newer] * 3
    shrunk = [
        (name, rank)
        for process in processes
        for name, rank, ranks in process.communicators.values()
        if ranks == RANKS - 1
    ]
    assert len({name for name, _ in shrunk}) == 1, "one identity"
    assert sorted(rank for _, rank in shrunk) == list(range(RANKS - 1))


def test_the_job_is_paused_behind_the_end_of_a_group(built: Path, tmp_path: Path) -> None:
    process = start(built, "opened", tmp_path, RANKS, 100_000)
    try:
        while len(list(tmp_path.glob("pause/*.slot"))) < RANKS:
            assert process.poll() is None
            time.sleep(0.02)
        result = pause(tmp_path, Times(0.3, 40.0, 60.0, 60.0, 30.0))
        slots = [read_slot(path) for path in tmp_path.glob("pause/*.slot")]
    finally:
        with suppress(ProcessLookupError):
            process.kill()  # its ranks end with it
        process.communicate(timeout=60)
    assert result.undisturbed
    assert len(result.ranks) == RANKS
    assert {slot.place.number for slot in slots if slot} == {result.number}
    # Of four collectives of the world in a step the first is in a group, the others are not.
    assert re.match(r"(ReduceScatter|Broadcast|Reduce) ", slots[0].place.signature)


def test_beside_the_plugin_it_is_off(built: Path, tmp_path: Path) -> None:
    plugin = f"/somewhere/{nccl.PLUGIN}"
    process = start(built, "linked", tmp_path, 2, 3, NCCL_PROFILER_PLUGIN=plugin)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert f"{len(STEP) * 3} calls" in out
    assert list(tmp_path.iterdir()) == []


def test_only_ncclss_names_are_taken(built: Path) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm")
    lines = subprocess.check_output([nm, "-D", "--defined-only", built / nccl.SHIM], text=True)
    names = {line.split()[-1] for line in lines.splitlines()}
    collectives = {"AllReduce", "ReduceScatter", "AllGather", "Broadcast", "Bcast", "Reduce"}
    collectives |= {"AlltoAll", "AllToAll", "Gather", "Scatter", "AlltoAllv", "AllToAllv"}
    collectives |= {
        f"{name}Config" for name in collectives - {"Bcast", "AllToAll"} if name[-1] != "v"
    }
    collectives.add("AllReduceWithBias")
    made = {"CommInitRank", "CommInitRankConfig", "CommInitRankScalable", "CommInitAll"}
    made.add("CommShrink")
    rest = {"Send", "Recv", "GroupStart", "GroupEnd", "CommSplit", "CommDestroy", "CommAbort"}
    assert names == {f"nccl{name}" for name in collectives | made | rest}
    assert (built / nccl.SHIM).stat().st_size < 200_000


def test_path_of_the_shim_or_how_to_build_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nccl, "NATIVE", tmp_path)
    assert main(["nccl", "path", "--shim"]) == 2
    assert "the shim is not built; build it: cc" in capsys.readouterr().err
    (tmp_path / nccl.SHIM).touch()
    assert main(["nccl", "path", "--shim"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / nccl.SHIM}\n"
