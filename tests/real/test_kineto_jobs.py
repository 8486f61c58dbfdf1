"""Profiles of real data-parallel gloo jobs of four ranks, one of them twice as slow."""

import sys
from pathlib import Path

import pytest

import paceline
from paceline.diagnose import diagnose
from paceline.graph import Measured, from_trace
from paceline.sources import kineto

sys.path.insert(0, str(Path(__file__).parents[1] / "real_jobs"))
from harness import factors_of, run

pytestmark = pytest.mark.alone

SLOW, STEPS = factors_of(3.0)[0], 4


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


@pytest.mark.parametrize("case", ["fsdp-accumulate", "hsdp"])
def test_the_slow_rank_of_a_real_profile(tmp_path: Path, case: str) -> None:
    """What S is worth, ``benchmarks/real_jobs.py --kineto`` measures."""
    run(case, tmp_path, SLOW, profiled=True, steps=STEPS)
    job = measured(tmp_path)
    assert job.graph.has_families == (case == "hsdp")
    result = paceline.analyze(job)
    assert result.lasting is not None
    assert result.lasting.by_worker.argmax() == 1
    assert result.discrepancy < 0.05
    assert result.replay_error < 0.05
    causes = [(f.cause, f.where) for f in diagnose(job, result).findings]
    assert causes[0] == ("worker", {"workers": [[1, 0]]})
