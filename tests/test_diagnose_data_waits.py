"""Waits for data: named as the cause."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import paceline
from paceline.detect.job import job_events
from paceline.detect.locate import locate_in_trace
from paceline.detect.who_host import who_from_hosts
from paceline.diagnose import diagnose
from paceline.errors import NotApplicableError
from paceline.graph import from_trace
from paceline.ledger import goodput
from paceline.remedies import REMEDIES, Case, advise, hide_delays
from paceline.remedies.load_ahead import propose
from paceline.report.terminal import screen
from paceline.results.document import JobReport
from paceline.results.headline import details, headline
from paceline.results.words.evidence import evidence_phrases
from paceline.results.words.readings import UNRECORDED
from paceline.results.words.shares import part_of
from recordings import RankStep, data_parallel_job


def job(folder, wait_ms, *, steps=24, ranks=4, meets=False, gc_ms=None):
    """A recorded data-parallel job whose ranks load their batches before the step.

    Args:
        folder: of the recording.
        wait_ms: (step, rank) -> ms of the rank's wait for its batch.
        steps: of the job.
        ranks: of the job.
        meets: whether all ranks meet behind the loading, in a collective that is not recorded, as
            the Trainer of transformers does to count the tokens.
        gc_ms: (step, rank) -> ms of the host's work before the optimizer; None: none.
    """
    return data_parallel_job(
        folder,
        lambda number, rank: RankStep(
            data=wait_ms(number, rank), late=gc_ms(number, rank) if gc_ms else 0.0
        ),
        steps=steps,
        ranks=ranks,
        meets=meets,
        measures=gc_ms is None,
    )


def case_of(trace):
    measured = from_trace(trace)
    result = paceline.analyze(measured)
    return Case(measured, result, diagnose(measured, result))


def data_finding(case):
    return next((f for f in case.diagnosis.findings if f.cause == "data-loading"), None)


def report_of(case):
    return JobReport.of(case.result, advise(case, REMEDIES))


@pytest.mark.parametrize("meets", [False, True])
def test_the_worker_that_waits_for_its_data_is_named(tmp_path, meets):
    """Rank 2 loads for 60 ms, the others for 1 ms: the step takes 130 ms in place of 71.

    Where all ranks meet behind the loading, the time lies between the steps of the trace.
    """
    trace = job(tmp_path, lambda _, rank: 60.0 if rank == 2 else 1.0, meets=meets)
    case = case_of(trace)
    finding = data_finding(case)
    assert finding.where == {"workers": [[2, 0]]}
    assert finding.share_of_step == pytest.approx(59 / 130, abs=0.02)
    assert finding.evidence["wait_s"] == [pytest.approx(0.060)]
    assert finding.evidence["peers_s"] == pytest.approx(0.001)
    assert "worker dp 2, stage 0 waits for its data: 60.0 ms a step (others 1.00 ms)" in (
        finding.text
    )
    remedy = propose(case)
    assert remedy.step_time_s == pytest.approx(0.071, abs=0.002)
    assert remedy.gain == pytest.approx(59 / 130, abs=0.02)
    assert remedy.change["bound"]
    assert any("worker dp 2, stage 0 60.0 ms" in phrase for phrase in evidence_phrases(finding))


@pytest.mark.parametrize(
    ("slow", "when", "n"),
    [
        (lambda step: step >= 16, "from step 16 on", 8),
        (lambda step: step < 8, "before step 8", 8),
        (lambda step: step % 3 == 0, "in 8 of 24 steps", 8),
    ],
)
def test_a_loader_that_is_slow_in_a_third_of_the_steps_is_named(tmp_path, slow, when, n):
    """Rank 2 loads for 60 ms in 8 of 24 steps, the others for 1: 19.7 ms a step in the mean."""
    trace = job(tmp_path, lambda step, rank: 60.0 if rank == 2 and slow(step) else 1.0)
    case = case_of(trace)
    finding = data_finding(case)
    assert finding.where == {"workers": [[2, 0]]}
    mean_s = n * 0.059 / 24
    text = f"{1e3 * mean_s:.1f} ms a step in the mean, 60.0 ms {when} (others 1.00 ms)"
    assert text in finding.text
    assert finding.share_of_step == pytest.approx(mean_s / (0.071 + mean_s), abs=0.02)
    assert len(finding.evidence["steps"]) == n
    assert f"a step of {n} slow ones" in " ".join(evidence_phrases(finding))


def test_a_long_first_wait_of_all_hides_no_slow_loader(tmp_path):
    """All ranks load their first batch for 5 s, before the trace; rank 2 is slow from 12 on."""

    def wait_ms(step, rank):
        slow = 60.0 if rank == 2 and step >= 12 else 1.0
        return 5000.0 if step == 0 else slow

    finding = data_finding(case_of(job(tmp_path, wait_ms)))
    assert finding.where == {"workers": [[2, 0]]}
    assert "60.0 ms in 13 of 24 steps (others 1.00 ms)" in finding.text


def test_waits_of_all_are_no_waits_of_the_named_worker(tmp_path):
    """Rank 2 waits 20 ms in all steps; all ranks wait 2 s in three of them, as at a new epoch."""
    rare = {7, 13, 19}
    trace = job(tmp_path, lambda step, rank: 2000.0 if step in rare else 20.0 if rank == 2 else 1.0)
    finding = data_finding(case_of(trace))
    assert finding.where == {"workers": [[2, 0]]}
    assert "worker dp 2, stage 0 waits for its data: 20.0 ms a step (others 1.00 ms)" in (
        finding.text
    )


def test_a_wait_of_another_worker_is_no_cost_of_the_named_one(tmp_path):
    """Rank 1 waits 60 ms in 8 steps, rank 2 in the 16 behind them: 16 of 24 waits are rank 2's."""
    trace = job(tmp_path, lambda step, rank: 60.0 if rank == (1 if step < 8 else 2) else 1.0)
    finding = data_finding(case_of(trace))
    assert finding.where == {"workers": [[2, 0]]}
    assert finding.share_of_step == pytest.approx(16 * 0.059 / 24 / 0.130, abs=0.02)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("n", [4, 6, 8, 12])
def test_rare_waits_of_random_workers_name_nobody(tmp_path, ranks, n):
    """Rare waits of 100 ms hit ranks at random; some rank has most of them."""
    rng = random.Random(n)
    hit = {step: rng.randrange(ranks) for step in rng.sample(range(60), n)}
    trace = job(
        tmp_path,
        lambda step, rank: 100.0 if hit.get(step) == rank else 1.0,
        ranks=ranks,
        steps=60,
    )
    finding = data_finding(case_of(trace))
    assert finding is None or finding.where == {}


def test_a_single_long_wait_names_nobody(tmp_path):
    """One wait of a second is no proof against rank 2; the job's usual waits are 20 ms."""
    trace = job(tmp_path, lambda step, rank: 1000.0 if (step, rank) == (9, 2) else 20.0 + rank % 2)
    finding = data_finding(case_of(trace))
    assert finding.where == {}
    assert finding.evidence["steps"] == "all"


def test_the_waits_explain_launch_delays(tmp_path):
    case = case_of(job(tmp_path, lambda _, rank: 60.0 * (rank == 2)))
    delay = next(f for f in case.diagnosis.findings if f.id == "launch-delay")
    assert delay.part_of == "data-loading"
    data, report = data_finding(case), report_of(case)
    for more, told in ((0.02, "most of it is the data loading above"), (-0.02, "part of the data")):
        changed = replace(delay, share_of_step=data.share_of_step + more)
        assert part_of(changed, report).startswith(told)


def test_all_workers_that_wait_are_not_named(tmp_path):
    case = case_of(job(tmp_path, lambda *_: 30.0))
    finding = data_finding(case)
    assert finding.where == {}
    assert "workers wait for their data: 30.0 ms a step" in finding.text
    assert finding.share_of_step == pytest.approx(0.3, abs=0.02)


def test_waits_behind_other_work_cost_nothing(tmp_path):
    """Short waits, or a recording without them: no finding and no remedy."""
    for name, wait in (("short", 0.2), ("none", 0.0)):
        case = case_of(job(tmp_path / name, lambda *_, wait=wait: wait))
        assert data_finding(case) is None
        with pytest.raises(NotApplicableError):
            propose(case)


def test_the_headline_names_the_data(tmp_path):
    case = case_of(job(tmp_path, lambda _, rank: 60.0 * (rank == 2), meets=True))
    report = report_of(case)
    assert headline(report) == (
        f"Data loading costs {data_finding(case).share_of_step:.1%} of the step: dp 2, stage 0 "
        "waits 60.0 ms a step. No lasting straggler beside it (0.0%)."
    )
    assert "(saves at most 4" in details(report)[-1]
    text = " ".join(" ".join(line.plain for line in screen(report, 120, colour=False)).split())
    assert "load the batches of worker dp 2, stage 0 ahead" in text


def test_waits_are_kept_in_a_file_of_the_trace(tmp_path):
    trace = job(tmp_path / "run", lambda _, rank: 60.0 * (rank == 2))
    path = tmp_path / "trace.parquet"
    paceline.write(trace, path)
    again = paceline.load(path)
    assert again.data_wait_s == pytest.approx(trace.data_wait_s)
    assert again.select_steps([3, 5]).data_wait_s[:, 2, 0] == pytest.approx([0.06, 0.06])
    assert data_finding(case_of(again)) is not None


def test_an_older_recording_has_no_waits(tmp_path):
    trace = job(tmp_path, lambda *_: 0.0, gc_ms=lambda *_: 0.0)
    assert trace.data_wait_s is None


def test_the_worker_whose_host_delays_an_operation_is_named(tmp_path):
    """Rank 1 collects garbage for 50 ms before its optimizer; the step takes 120 ms, not 70."""
    trace = job(tmp_path, lambda *_: 0.0, steps=120, gc_ms=lambda _, rank: 50.0 * (rank == 1))
    case = case_of(trace)
    delay = next(f for f in case.diagnosis.findings if f.cause == "launch-delay")
    assert delay.where["workers"] == [[1, 0]]
    assert "before optimizer of worker dp 1, stage 0: 50.0 ms" in delay.text
    hidden = next(
        remedy for remedy in advise(case, REMEDIES).remedies if remedy.remedy == "hide-delays"
    )
    assert hidden.step_time_s == pytest.approx(0.070, abs=0.002)
    assert hidden.gain == pytest.approx(50 / 120, abs=0.02)
    assert who_from_hosts(case.measured, case.result).ranks == (1,)


@pytest.mark.parametrize("of_ms", [(25.0, 25.0, 25.0, 25.0), (25.0, 27.0, 26.0, 24.0)])
def test_where_all_workers_wait_alike_a_collective_may_not_be_recorded(tmp_path, of_ms):
    """All ranks wait before the optimizer for one that is late to the loop's own all-reduce."""
    trace = job(tmp_path, lambda *_: 0.0, gc_ms=lambda _, rank: of_ms[rank])
    case = case_of(trace)
    delay = next(f for f in case.diagnosis.findings if f.cause == "launch-delay")
    assert "workers" not in delay.where
    assert delay.evidence["alike_s"] == pytest.approx(min(of_ms) / 1e3, abs=2e-6)
    said = "most of it before optimizer, where all workers wait alike (2"
    assert said in delay.text
    report = report_of(case)
    text = " ".join(" ".join(line.plain for line in screen(report, 120, colour=False)).split())
    for part in (said, UNRECORDED):
        assert part in text
    assert f"P{UNRECORDED[1:]}." in details(report)
    assert "log, copy to the host and synchronise less often before optimizer, or in a" in text


@pytest.mark.parametrize("of_ms", [(5.0, 25.0, 25.0, 25.0), (25.0, 36.0, 25.0, 25.0)])
def test_workers_that_wait_differently_wait_in_no_collective(tmp_path, of_ms):
    trace = job(tmp_path, lambda *_: 0.0, gc_ms=lambda _, rank: of_ms[rank])
    delay = next(f for f in case_of(trace).diagnosis.findings if f.cause == "launch-delay")
    assert "alike" not in delay.text
    assert "alike_s" not in delay.evidence


def test_a_fail_slow_of_a_loader_names_its_rank(tmp_path):
    """From step 40 on rank 2's loader is slow. Its peers wait for it in the exchange."""
    folder = tmp_path / "run"
    trace = job(folder, lambda step, rank: 60.0 * (rank == 2 and step >= 40) + 1.0, steps=80)
    durations = np.repeat(np.where(np.arange(80) < 40, 0.071, 0.131)[:, None], 4, axis=1)
    detector = paceline.Detector(4)
    raw = [
        event for step, row in enumerate(durations) for event in detector.update(step, list(row))
    ]
    events = job_events(raw, 4)
    (event, *_) = locate_in_trace(events, trace)
    assert [s.kind for s in event.suspects] == ["data-loading"]
    assert event.suspects[0].ranks == (2,)
    assert "waits 61.0 ms a step for its data, the others 1.00 ms" in event.suspects[0].text


def test_goodput_of_a_recording_has_the_waits(tmp_path):
    """24 steps of 130 ms, 60 of them the wait of rank 2; before, all of it was productive."""
    job(tmp_path, lambda _, rank: 60.0 * (rank == 2))
    ledger = goodput(tmp_path)
    assert ledger.seconds["data_waits"] == pytest.approx(24 * 0.060)
    assert ledger.seconds["productive"] == pytest.approx(24 * 0.070, abs=0.02)
    assert any("longest ones of the ranks" in note for note in ledger.notes)


def test_goodput_of_a_recording_without_waits(tmp_path):
    job(tmp_path, lambda *_: 0.0, gc_ms=lambda *_: 0.0)
    assert goodput(tmp_path).seconds["data_waits"] is None


def slow_loader_and_stall(step, rank, loads=True, stalls=True):
    """Rank 2 loads for 40 ms in half of the steps; rank 0 writes for 200 ms in each tenth one."""
    data = 40.0 if loads and rank == 2 and step >= 50 else 1.0
    return RankStep(data=data, host=200.0 * (stalls and rank == 0 and step % 10 == 9))


def two_faults(folder, **which):
    trace = data_parallel_job(
        folder,
        lambda n, rank: slow_loader_and_stall(n, rank, **which),
        steps=100,
        ranks=3,
        measures=True,
    )
    return case_of(trace)


def test_a_slow_loader_and_another_workers_stall_are_two_causes(tmp_path):
    """Each has its worker, its cost and its remedy, and no second counts twice."""
    case = two_faults(tmp_path / "both")
    healthy_s, mean_s = (
        float(two_faults(tmp_path / name, loads=loads, stalls=loads).result.lasted_s.mean())
        for name, loads in (("healthy", False), ("again", True))
    )
    without_stall_s = float(two_faults(tmp_path / "loads", stalls=False).result.lasted_s.mean())
    findings = {f.id: f for f in case.diagnosis.findings}
    data, delay, odd = (findings[name] for name in ("data-loading", "launch-delay", "odd-steps"))
    assert data.where == {"workers": [[2, 0]]}
    assert delay.where["workers"] == [[0, 0]]
    assert not data.part_of
    assert not delay.part_of
    assert delay.evidence["late_s"] == [pytest.approx(0.2, abs=1e-3)]
    assert delay.evidence["late_steps"] == [10]
    saved = (mean_s - without_stall_s) / mean_s
    assert delay.evidence["late_share"] == pytest.approx(saved, abs=0.005)
    assert data.share_of_step + delay.share_of_step == pytest.approx(
        (mean_s - healthy_s) / mean_s, abs=0.02
    )
    assert odd.part_of == "launch-delay"
    assert odd.where == {"workers": [[0, 0]]}
    assert "10 of 100 steps wait for worker dp 0, stage 0, which begins late, " in odd.text
    stall = hide_delays.propose(case)
    assert stall.change["hide"] == ["late-workers"]
    assert stall.gain == pytest.approx(saved, abs=0.005)
    report = report_of(case)
    assert headline(report).startswith("Data loading costs 18.0% of the step: dp 2, stage 0 waits")
    load_ahead = next(r for r in report.remedies if r.remedy == "load-ahead")
    assert load_ahead.gain <= data.share_of_step + 0.001
    wide = hide_delays.propose(replace(case, options={"hide": "all"}))
    assert any("waits for data, a finding of their own" in note for note in wide.notes)


@pytest.mark.parametrize("loads", [True, False])
def test_each_of_two_faults_alone_keeps_its_worker(tmp_path, loads):
    case = two_faults(tmp_path, loads=loads, stalls=not loads)
    first = next(f for f in case.diagnosis.findings if not f.part_of and f.cause != "unexplained")
    assert first.cause == ("data-loading" if loads else "launch-delay")
    assert first.where["workers"] == [[2, 0] if loads else [0, 0]]
    assert "beside" not in first.evidence


def test_steps_of_two_lengths_by_a_slow_loader_are_a_part_of_its_finding(tmp_path):
    """Rank 2's loader is slow in half of the steps, so the median step is a slow one."""
    findings = two_faults(tmp_path, stalls=False).diagnosis.findings
    modes = next(f for f in findings if f.id == "two-modes")
    assert modes.part_of == "data-loading"
    assert not modes.ambiguous
