"""The plugin's calls joined with a PyTorch profile of a real job on NCCL.

``hta/nccl_parser_config/nccl_data.json.gz`` (HolisticTraceAnalysis, commit f4d0062) is rank 0 of a
DDP job of two A100. No NCCL runs here: the harness gives the profile's collectives to the plugin,
each as long after the first as it was launched. Rank 1 is the same profile with begins moved.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import requires
from paceline.cli.main import run
from paceline.detect.waits import wait_graph
from paceline.errors import DetectError, TraceError
from paceline.sources.call_logs.joining import SPREAD_S, with_profiles
from paceline.sources.call_logs.timed_calls import read_folder, timed_calls
from paceline.sources.kineto.profile import read_profile
from pause_stress import build

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from nccl_gpu import KERNEL_BAR, compare

CC = shutil.which(os.environ.get("CC", "cc"))

#: Its collectives, in ms; rank 1 begins so much later, and its clock is so far ahead.
N, LATE_S, AHEAD_S = 21, 200e-6, 3.7

#: A busy machine launches late.
ATTEMPTS = 10

pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler on this machine")


@pytest.fixture(scope="module")
def profile():
    return read_profile(requires.data("real", "hta", "nccl_parser_config", "nccl_data.json.gz"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("native"), CC)


def replay(built, profile, folder, rank=0, repeat=1):
    """The plugin's files of a rank whose launches are as far apart as the profile's."""
    collectives = sorted(profile.collectives, key=lambda one: one.launch_s)
    base_s = collectives[0].launch_s
    lines, launch_s = [], []
    for turn in range(repeat):
        for one in collectives:
            reduces = one.name.startswith("allreduce")
            name, datatype = ("AllReduce", "ncclFloat32") if reduces else ("Broadcast", "ncclInt8")
            width = 4 if one.elements > 1000 else 8  # the smaller broadcast is of Long
            count = one.elements if reduces else one.elements * width
            times = [
                round((at - base_s + turn * 5 + 100) * 1e9)
                for at in (one.launch_s, one.start_s, one.end_s)
            ]
            launch_s.append(times[0] / 1e9)
            lines.append(" ".join(map(str, (name, datatype, count, *times))))
    for attempt in range(ATTEMPTS):
        files = folder.parent / f"{folder.name}-{rank}-{attempt}"
        subprocess.run(
            [built.harness, built.plugin, "6", "replay", str(rank)],
            env={**os.environ, "PACELINE_RECORD": str(files), "RANK": str(rank)},
            input="\n".join(lines), text=True, check=True, timeout=120,
        )  # fmt: skip
        late_s = np.sort(timed_calls(*read_folder(files)).host_s) - launch_s
        if np.median(np.abs(late_s - np.median(late_s))) < SPREAD_S / 2:
            shutil.copytree(files, folder, dirs_exist_ok=True)
            return
    pytest.skip(f"this machine is busy: launches are late in each of {ATTEMPTS} attempts")


def of_rank_1(folder):
    """The profile with another rank, clock, and later begins of its collectives."""
    path = requires.data("real", "hta", "nccl_parser_config", "nccl_data.json.gz")
    with gzip.open(path, "rt") as file:
        content = json.load(file)
    content["distributedInfo"]["rank"] = 1
    for event in content["traceEvents"]:
        if "ts" in event:
            event["ts"] += AHEAD_S * 1e6
        if event.get("cat") == "kernel" and "nccl" in event["name"].lower():
            late_us = min(LATE_S * 1e6, event["dur"] / 2)
            event["ts"] += late_us
            event["dur"] -= late_us
    (folder / "rank-1.json").write_text(json.dumps(content))
    return folder / "rank-1.json"


def test_begins_and_ends_are_the_kernels(built, profile, tmp_path):
    replay(built, profile, tmp_path)
    calls = timed_calls(*read_folder(tmp_path))
    joined = with_profiles(calls, [profile])
    kernels = sorted(profile.collectives, key=lambda one: one.launch_s)
    assert len(kernels) == N
    order = np.argsort(joined.host_s)
    assert joined.start_s[order].tolist() == [one.start_s for one in kernels]
    assert joined.end_s[order].tolist() == [one.end_s for one in kernels]
    assert joined.basis == "exact"
    # The job ran in 2024.
    assert any("off the plugin's; matched by the order" in note for note in joined.notes)
    with pytest.raises(DetectError, match="files of all ranks"):
        wait_graph(joined)


def test_the_benchmark_for_gpus_compares_each_call_with_its_kernel(built, profile, tmp_path):
    replay(built, profile, tmp_path)
    errors = compare(tmp_path, [profile.path])
    assert len(errors) == N
    assert errors.max() < KERNEL_BAR


def test_the_rank_that_begins_later_is_waited_for(built, profile, tmp_path, capsys):
    other = of_rank_1(tmp_path)
    folder = tmp_path / "job"
    replay(built, profile, folder, 0)
    replay(built, read_profile(other), folder, 1)
    assert run(["nccl", "waits", str(folder), "--profiles", str(profile.path), str(other),
                "--json"]) == 0  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    (wait,) = found["waits"]
    assert (wait["waits"], wait["late"], wait["calls"]) == (0, 1, N)
    late_s = [min(LATE_S, (one.end_s - one.start_s) / 2) for one in profile.collectives]
    assert wait["seconds"] == pytest.approx(sum(late_s), abs=N * 2e-6)
    largest = max(found["transfers"], key=lambda row: row["size"])
    assert largest["size"] == 7875584 * 4
    kernels = [one for one in profile.collectives if one.elements == 7875584]
    took_s = np.median([one.end_s - one.start_s for one in kernels]) - LATE_S
    assert largest["transfer_s"] == pytest.approx(took_s, abs=2e-6)
    assert largest["bus_bytes_per_s"] == pytest.approx(7875584 * 4 / took_s, rel=1e-2)
    assert any("3.7e+03 ms apart" in note for note in found["notes"])


def test_a_profile_that_fits_at_two_places_is_refused(built, profile, tmp_path):
    replay(built, profile, tmp_path, repeat=2)
    with pytest.raises(TraceError, match=r"at several places.*synchronise"):
        with_profiles(timed_calls(*read_folder(tmp_path)), [profile])


def test_another_jobs_calls_are_refused(built, profile, tmp_path):
    subprocess.run(
        [built.harness, built.plugin, "6", "replay", "0"],
        env={**os.environ, "PACELINE_RECORD": str(tmp_path)},
        input="AllReduce ncclFloat32 64 0 10 20\n" * 30, text=True, check=True,
    )  # fmt: skip
    with pytest.raises(TraceError, match="nowhere in rank 0's calls"):
        with_profiles(timed_calls(*read_folder(tmp_path)), [profile])
