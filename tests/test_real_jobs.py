"""Real jobs of four gloo ranks, one of them slow, through torch 2.13's own FSDP, DDP, pipelines.

What is asserted holds on a busy machine, too; ``benchmarks/real_jobs.py`` holds S against the
measured times of the same jobs without the slow rank.
"""

import sys
from pathlib import Path

import pytest

import paceline
import requires
from paceline.diagnose import diagnose
from paceline.graph import from_trace

requires.installed("torch")
sys.path.insert(0, str(Path(__file__).parent / "real_jobs"))

from harness import factors_of, run

pytestmark = pytest.mark.alone

#: Case -> whether stages, not replicas, are the workers.
CASES = {
    "hsdp": False,
    "ddp": False,
    "interleaved": True,
    "tp-fsdp": False,
    "ep": False,
    "cp": False,
}


@pytest.mark.parametrize("case", CASES)
def test_the_slow_rank_of_a_real_job_is_named_and_nothing_changes(case, tmp_path):
    slow, _, _ = factors_of(3.0)
    plain = run(case, tmp_path / "plain", slow, steps=4)
    recorded = run(case, tmp_path / "recorded", slow, steps=4, recorded=True)
    assert recorded.losses == plain.losses  # bit by bit
    measured = from_trace(paceline.load(tmp_path / "recorded" / "run"))
    result = paceline.analyze(measured)
    assert measured.graph.programmed
    # A turn of a ring waits for one neighbour; the graph lets it wait for all of them.
    assert result.replay_error < (0.05 if case == "cp" else 0.01)
    assert result.discrepancy < 0.05
    by_rank = result.lasting.by_worker.ravel()
    assert by_rank.argmax() == 1
    assert by_rank[1] > 1.3
    first = diagnose(measured, result).findings[0]
    worst = first.where.get("stage", first.where.get("workers", [[None]])[0][0])
    assert (first.cause, worst) == ("stage-imbalance" if CASES[case] else "worker", 1)
    if case == "hsdp":
        kinds = {family: measured.graph.families[family].tolist() for family in (1, 2)}
        assert sorted(kinds.values()) == [[0, 0, 1, 1], [0, 1, 0, 1]]
    if case == "tp-fsdp":
        assert measured.job.peers == 2
        assert "dp 0, stage 0, peer 1" in first.text


def test_a_zero_bubble_pipeline_against_the_measured_job(tmp_path):
    """ZBV on four ranks: S is the slow job's step over that of the same work shared by all."""
    slow, level, healthy = factors_of(2.0)
    recorded = run("zbv", tmp_path / "slow", slow, steps=4, recorded=True)
    levelled = run("zbv", tmp_path / "level", level, steps=4)
    run("zbv", tmp_path / "healthy", healthy, steps=4, recorded=True)
    assert recorded.losses == levelled.losses  # bit by bit, with and without the recorder

    measured = from_trace(paceline.load(tmp_path / "slow" / "run"))
    result = paceline.analyze(measured)
    assert result.lasting.by_worker.ravel().argmax() == 1
    assert result.lasting.slowdown == pytest.approx(recorded.step_s / levelled.step_s, rel=0.1)
    assert result.replay_error < 0.05
    assert result.discrepancy < 0.05
    first = diagnose(measured, result).findings[0]
    assert (first.cause, first.where["stage"]) == ("stage-imbalance", 1)

    measured = from_trace(paceline.load(tmp_path / "healthy" / "run"))
    result = paceline.analyze(measured)
    assert result.lasting.by_worker.max() < 1.05
    assert diagnose(measured, result).findings == ()
