"""DualPipe's real profile (deepseek-ai/profile-data, commit 4496024, ``train.json``).

The figures are counted here microsecond by microsecond, by nothing of the package.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import requires
from paceline.errors import TraceError
from paceline.ranks import rank_report
from paceline.sources import load


@pytest.fixture(scope="module")
def profile() -> Path:
    return requires.public("deepseek-ai/profile-data", "4496024", "train.json", "dualpipe")


@pytest.fixture(scope="module")
def painted(profile: Path) -> dict[tuple[str, bool], np.ndarray]:
    """(direction, whether it communicates) -> [microsecond] whether any of its kernels runs."""
    events = json.loads(profile.read_text())["traceEvents"]
    launched = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e["args"]
    }
    ranges = [
        (e["ts"], e["ts"] + e["dur"], e["name"][-2])
        for e in events
        if e.get("cat") == "user_annotation" and re.fullmatch(r"\w+\([FBW]\)", e["name"])
    ]
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    first = min(e["ts"] for e in work)
    length = max(e["ts"] + e["dur"] for e in work) - first
    painted = {(way, c): np.zeros(length, dtype=bool) for way in "FBW-" for c in (True, False)}
    painted |= {("copies of " + way, False): np.zeros(length, dtype=bool) for way in "FBW-"}
    for e in work:
        at = launched[e["args"]["correlation"]]
        way = next((way for low, high, way in ranges if low <= at < high), "-")
        key = (way, "internode::" in e["name"])
        key = key if e["cat"] == "kernel" else ("copies of " + way, False)
        painted[key][e["ts"] - first : e["ts"] - first + e["dur"]] = True
    return painted


def test_directions_equal_a_count_by_microsecond(profile, painted) -> None:
    passes = rank_report(profile).ranks[0].passes
    computing = np.any([painted[way, False] for way in "FBW-"], axis=0)
    for way, work in zip("FBW", passes.ways, strict=True):
        beside = np.any([painted[other, False] for other in "FBW" if other != way], axis=0)
        told = painted[way, True]
        assert work.ranges == {"F": 16, "B": 16, "W": 8}[way]
        assert work.compute_s == pytest.approx(painted[way, False].sum() * 1e-6, abs=2e-6)
        assert work.communication_s == pytest.approx(told.sum() * 1e-6, abs=2e-6)
        assert work.communication_exposed_s == pytest.approx(
            (told & ~computing).sum() * 1e-6, abs=2e-6
        )
        assert work.communication_beside_s == pytest.approx((told & beside).sum() * 1e-6, abs=2e-6)
    ways = [
        painted[way, True] | painted[way, False] | painted["copies of " + way, False]
        for way in "FBW"
    ]
    at_once = np.sum(ways, axis=0)
    assert passes.any_s == pytest.approx((at_once >= 1).sum() * 1e-6, abs=2e-6)
    assert passes.at_once_s == pytest.approx((at_once >= 2).sum() * 1e-6, abs=2e-6)
    assert passes.at_once_share == pytest.approx(0.858, abs=0.001)
    assert len(passes.ranges) == 10


def test_a_block_without_stage_and_microbatch_is_no_trace(profile) -> None:
    with pytest.raises(TraceError, match="1 profile is here, but the job has 64 ranks"):
        load(profile)
