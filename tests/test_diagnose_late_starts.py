"""Workers that begin steps late, by work of their hosts: named beside their peers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import paceline
from paceline.diagnose import diagnose
from paceline.diagnose.late_starts import late_starts
from paceline.errors import NotApplicableError
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.remedies.hide_delays import propose
from paceline.report.page.findings import findings_html
from paceline.report.terminal import screen
from paceline.results.document import JobReport
from paceline.results.headline import details, headline
from paceline.results.words.evidence import evidence_phrases
from recordings import RankStep, data_parallel_job


def job(folder, late_ms, *, steps=24, every=1, ranks=4, tail_ms=(), noise_ms=0.0, seed=0):
    """A recorded data-parallel job without a barrier: its gradients' exchange ties the ranks.

    Args:
        folder: of the recording.
        late_ms: (step, rank) -> ms of the host's work before the first operation.
        steps: of the job.
        every: one step in so many is profiled.
        ranks: of the job.
        tail_ms: [rank] further ms of the optimizer.
        noise_ms: spread of the host's work, all ranks.
        seed: of the noise.
    """
    rng = np.random.default_rng(seed)
    tail = [*tail_ms, *[0.0] * (ranks - len(tail_ms))]

    def step_of(number, rank):
        host = late_ms(number, rank) + noise_ms * rng.exponential()
        return RankStep(host=host, optimizer=6 + tail[rank])

    return data_parallel_job(folder, step_of, steps=steps, ranks=ranks, every=every)


def findings_of(trace):
    measured = from_trace(trace)
    result = paceline.analyze(measured)
    diagnosis = diagnose(measured, result)
    delay = next((f for f in diagnosis.findings if f.cause == "launch-delay"), None)
    return Case(measured, result, diagnosis), delay


@pytest.mark.parametrize("every", [1, 2])
def test_a_late_rank_is_named_with_its_share_and_gain(tmp_path, every):
    """Rank 2 loads data for 30 ms before each step of 70 ms."""
    trace = job(tmp_path, lambda _, rank: 30.0 * (rank == 2), every=every)
    case, delay = findings_of(trace)
    assert delay is not None
    assert delay.where["workers"] == [[2, 0]]
    assert delay.evidence["late_s"] == [pytest.approx(0.030, abs=1e-6)]
    assert delay.evidence["late_steps"] == [len(trace.steps)]
    assert delay.evidence["late_share"] == pytest.approx(0.3, abs=1e-4)
    assert "30.0% because worker dp 2, stage 0 begins steps late, by 30.0 ms in" in delay.text
    assert delay.confidence > 0.98
    assert not delay.ambiguous
    remedy = propose(case)
    assert remedy.change["workers"] == [[2, 0]]
    assert remedy.change["hide"] == ["late-workers"]
    assert "worker dp 2, stage 0" in remedy.action
    # a job without the fault takes this long
    healthy, _ = findings_of(job(tmp_path / "healthy", lambda *_: 0.0, every=every))
    assert remedy.step_time_s == pytest.approx(float(healthy.result.traced_s.mean()), abs=1e-6)


def test_one_of_two_ranks_is_named(tmp_path):
    _, delay = findings_of(job(tmp_path, lambda _, rank: 30.0 * (rank == 1), ranks=2))
    assert delay.where["workers"] == [[1, 0]]


def test_two_late_ranks_hide_each_other_and_are_named_together(tmp_path):
    late = {1: 30.0, 3: 20.0}
    case, delay = findings_of(job(tmp_path, lambda _, rank: late.get(rank, 0.0)))
    assert delay.where["workers"] == [[1, 0], [3, 0]]
    assert delay.evidence["late_s"] == pytest.approx([0.030, 0.020], abs=1e-6)
    assert "30.0% because 2 workers begin steps late, worker dp 1, stage 0 by 30.0 ms" in delay.text
    assert propose(case).step_time_s == pytest.approx(0.070, abs=1e-6)


def test_a_rank_that_is_late_now_and_then(tmp_path):
    """A collection before each fifth step: the steps that wait are a part of the same finding."""
    case, delay = findings_of(
        job(tmp_path, lambda n, rank: 100.0 * (rank == 3 and n % 5 == 4), steps=40)
    )
    assert delay.where["workers"] == [[3, 0]]
    assert delay.evidence["steps"] == list(range(4, 40, 5))
    odd = next(f for f in case.diagnosis.findings if f.id == "odd-steps")
    assert odd.part_of == "launch-delay"
    ids = [f.id for f in case.diagnosis.findings]
    assert ids.index("launch-delay") < ids.index("odd-steps")


def test_a_rank_that_still_runs_the_step_before_is_not_late(tmp_path):
    """Rank 1's optimizer takes 30 ms longer, so it begins 30 ms after the others."""
    case, delay = findings_of(job(tmp_path, lambda *_: 0.0, tail_ms=(0.0, 30.0)))
    assert float(case.measured.overlap_s.mean()) == pytest.approx(0.030, abs=1e-6)
    assert late_starts(case.measured, float(case.result.simulated_s.mean())) is None
    assert delay is None


def test_ranks_that_load_alike_are_not_named(tmp_path):
    _, delay = findings_of(job(tmp_path, lambda *_: 30.0))
    assert delay is None


@pytest.mark.parametrize("seed", range(6))
def test_noise_of_hosts_names_nobody(tmp_path, seed):
    case, delay = findings_of(job(tmp_path, lambda *_: 0.0, noise_ms=8.0, seed=seed))
    assert delay is None or "workers" not in delay.where
    with pytest.raises(NotApplicableError):
        propose(replace(case, options={"hide": "late-workers"}))


def test_without_the_steps_before_the_name_is_hedged(tmp_path):
    trace = job(tmp_path, lambda _, rank: 30.0 * (rank == 2), every=2)
    case, delay = findings_of(
        replace(trace, previous_end_s=None, step_start_s=np.full(len(trace.steps), np.nan))
    )
    assert delay.where["workers"] == [[2, 0]]
    assert delay.confidence <= 0.6
    assert delay.ambiguous.startswith("some ranks still run the step before")
    assert propose(case).interval[0] <= 0


def test_readers_see_the_late_rank(tmp_path):
    case, delay = findings_of(job(tmp_path, lambda _, rank: 30.0 * (rank == 2)))
    report = JobReport.of(case.result, advise(case, REMEDIES))
    assert headline(report) == (
        "Late starts cost 30.0% of the step: dp 2, stage 0 begins 30.0 ms late. "
        "No lasting straggler beside it (0.0%)."
    )
    assert "(saves 30.0% of the step" in details(report)[-1]
    phrases = "; ".join(evidence_phrases(delay))
    assert "worker dp 2, stage 0 by 30.0 ms in 24 steps" in phrases
    assert "if all began with their peers, a step would lose 30.0%" in phrases
    lines = " ".join(line.plain for line in screen(report, 120, colour=False))
    assert "30.0% because worker dp 2, stage 0 begins steps late" in " ".join(lines.split())
    assert "dp&nbsp;2, stage&nbsp;0" in findings_html(report)
    assert JobReport.from_mapping(report.to_mapping()).findings == report.findings


def test_a_late_rank_is_named_beside_stragglers_of_no_known_cause(tmp_path):
    case, _ = findings_of(job(tmp_path, lambda _, rank: 30.0 * (rank == 2)))
    report = JobReport.of(case.result, advise(case, REMEDIES))
    faster = {step: 0.9 * s for step, s in report.step_time_s.ideal.items()}
    times = replace(report.step_time_s, ideal=faster)
    lossy = replace(report, slowdown=1 / 0.9, slowdown_lasting=1.1, waste=0.1, step_time_s=times)
    assert headline(lossy) == (
        "Late starts cost 30.0% of the step: dp 2, stage 0 begins 30.0 ms late. Stragglers waste "
        "10%."
    )
    # stragglers that cost more than the late rank come first
    slower = {step: 0.4 * s for step, s in report.step_time_s.ideal.items()}
    worse = replace(lossy, step_time_s=replace(times, ideal=slower))
    assert headline(worse).startswith("This job wastes")
