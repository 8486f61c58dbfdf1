"""Ranks that are equal by nature: a real profile given twice."""

import gzip
import json
from pathlib import Path

import pytest

import paceline
import requires
from import_files import dump
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.sources import kineto


def test_identical_ranks_of_a_real_nccl_job(tmp_path: Path) -> None:
    """A profile of DDP on two GPUs, given twice."""
    source = requires.data(
        *("real", "hta", "nccl_parser_config", "nccl_data.json.gz"),
        origin="tests/data of facebookresearch/HolisticTraceAnalysis, commit f4d0062",
    )
    value = json.loads(gzip.decompress(source.read_bytes()))
    paths = []
    for rank in range(2):
        value["distributedInfo"]["rank"] = rank
        paths.append(dump(value, tmp_path / f"rank{rank}.json"))
    measured = from_trace(kineto.read(paths).trace)
    result = paceline.analyze(measured)
    assert result.slowdown == pytest.approx(1.0, abs=0.005)
    assert result.replay_error < 0.02
    assert diagnose(measured, result).findings == ()
