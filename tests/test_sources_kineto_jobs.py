"""Profiles of real data-parallel gloo jobs of four ranks, one of them twice as slow."""

import sys
from pathlib import Path

import pytest

import paceline
from paceline.diagnose import diagnose
from paceline.graph import Measured, from_trace
from paceline.sources import kineto

sys.path.insert(0, str(Path(__file__).parent / "real_jobs"))
from harness import STEPS, factors_of, run

pytestmark = pytest.mark.alone

SLOW, LEVEL, HEALTHY = factors_of(2.0)


@pytest.fixture(autouse=True)
def _torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: profile)")
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")


def measured(folder: Path) -> Measured:
    imported = kineto.read(sorted(folder.glob("rank*.json")))
    assert imported.unplaced == {}
    result = from_trace(imported.trace)
    assert len(result.steps) == STEPS - 2
    return result


@pytest.mark.parametrize("case", ["ddp", "fsdp", "fsdp-accumulate"])
def test_the_slow_rank_and_what_it_costs(tmp_path: Path, case: str) -> None:
    """Truth: the same work on ranks that are alike, profiled as well, before and after.

    On a busy machine these two differ by 10% and more, so the truth is no better known than that.
    """
    before = run(case, tmp_path / "before", LEVEL, profiled=True)
    slow = run(case, tmp_path / "slow", SLOW, profiled=True)
    after = run(case, tmp_path / "after", LEVEL, profiled=True)
    truth = sorted(slow.step_s / level.step_s for level in (before, after))
    job = measured(tmp_path / "slow")
    result = paceline.analyze(job)
    assert 0.9 * truth[0] < result.lasting.slowdown < 1.1 * truth[1]
    assert result.discrepancy < 0.05
    assert result.replay_error < 0.05
    causes = [(f.cause, f.where) for f in diagnose(job, result).findings]
    assert causes[0] == ("worker", {"workers": [[1, 0]]})


@pytest.mark.parametrize("case", ["ddp", "fsdp"])
def test_a_healthy_job(tmp_path: Path, case: str) -> None:
    run(case, tmp_path, HEALTHY, profiled=True)
    job = measured(tmp_path)
    result = paceline.analyze(job)
    assert result.lasting.slowdown < 1.05
    assert result.lasting.by_worker.max() < 1.05
    assert result.discrepancy < 0.05
    assert result.replay_error < 0.05
    assert [f for f in diagnose(job, result).findings if f.cause != "unexplained"] == []
