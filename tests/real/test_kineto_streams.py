"""Stream waits of a real CUDA profile against the edges that HTA finds in it.

The only real files with ``Stream Wait Event`` are of one GPU: HTA's ``critical_path`` (commit
f4d0062). A second stream's kernels stand for the collectives of a job.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import requires
from import_files import dump
from paceline.sources.kineto.profile import read_profile
from paceline.sources.kineto.streams import MainStream

FOLDER = requires.data(
    *("real", "hta", "critical_path"),
    origin="tests/data/critical_path of facebookresearch/HolisticTraceAnalysis, commit f4d0062",
)


def with_collectives(name: str, stream: int, folder: Path) -> tuple[MainStream, dict[int, float]]:
    """The main stream, kernels of another one named as NCCL's; correlation -> launch in seconds."""
    value = json.loads(gzip.decompress(next((FOLDER / name).glob("*.gz")).read_bytes()))
    launched = {}
    for event in value["traceEvents"]:
        args = event.get("args", {})
        if event.get("cat") == "kernel" and args.get("stream") == stream:
            event["name"] = f"ncclDevKernel_{event['name']}"
        if event.get("cat") == "cuda_runtime":
            launched[args["correlation"]] = event["ts"] * 1e-6
    found = read_profile(dump(value, folder / "rank0.json")).stream
    assert found is not None
    return found, launched


def test_waits_between_streams_are_those_of_hta(tmp_path: Path) -> None:
    """HTA's edges of AlexNet's forward: 5560 -> 5597, 5594 -> 5604, 5606 -> 5629 (correlations)."""
    stream, launched = with_collectives("alexnet", 20, tmp_path)
    row = {
        number: int(np.flatnonzero(stream.launch_s == at_s)[0])
        for number, at_s in launched.items()
        if at_s in stream.launch_s
    }
    assert stream.bounds[5597].behind == row[5560]
    assert stream.bounds[5604].behind == row[5594]
    assert stream.bounds[5606].before == row[5629]
    assert all(bound.before > bound.behind for bound in stream.bounds.values())


def test_a_copy_may_be_what_waits(tmp_path: Path) -> None:
    """HTA's edge between GPU events: kernel 27 on stream 20 -> memset 1411 on stream 24."""
    stream, launched = with_collectives("cuda_event_sync_multi_stream", 24, tmp_path)
    assert len(stream.launch_s) >= 1
    assert set(stream.bounds) == {1413}
    assert launched[1411] < launched[1413]
    assert stream.launch_s[stream.bounds[1413].behind] == pytest.approx(launched[27], abs=1e-7)
