"""Seconds that two findings show count once: the second finding is a part of the first one."""

import numpy as np
import pytest

from paceline.diagnose import diagnose, diagnosis, outside
from paceline.diagnose.finding import Finding
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.report.page.findings import findings_html
from paceline.report.terminal import screen
from paceline.results.document import JobReport
from paceline.whatif import analyze
from recordings import RankStep, data_parallel_job


def case_of(trace):
    measured = from_trace(trace)
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result))


def whole_findings(case):
    return [f for f in case.diagnosis.findings if f.share is None and not f.part_of]


def finding(name, *, cause="drift", cost_s=None, steps=(), part_of=""):
    return Finding(
        name, cause, "", None, 0.1, (0.1, 0.1), 1.0, {}, {"steps": list(steps)},
        part_of=part_of, cost_s=cost_s,
    )  # fmt: skip


def test_waits_of_few_steps_are_a_part_of_the_waits(tmp_path):
    """Rank 0 writes a checkpoint for 400 ms before each 25th step; these were two costs."""
    saved = (24, 49, 74)
    trace = data_parallel_job(
        tmp_path,
        lambda n, rank: RankStep(host=400.0 * (rank == 0 and n in saved)),
        steps=75,
        ranks=4,
    )
    case = case_of(trace)
    delay, odd = (
        next(f for f in case.diagnosis.findings if f.id == name)
        for name in ("launch-delay", "odd-steps")
    )
    assert odd.evidence["steps"] == list(saved)
    assert odd.evidence["waits"] is True
    assert odd.part_of == "launch-delay"
    assert whole_findings(case) == [delay]
    true = 3 * 0.4 / (3 * 0.4 + 75 * 0.070)
    assert delay.share_of_step == pytest.approx(true, abs=0.01)
    report = JobReport.of(case.result, advise(case, REMEDIES))
    lines = " ".join(line.plain for line in screen(report, 120, colour=False))
    told = "part of the waits between operations above"
    assert f"– – {told}: 3 of 75 steps wait" in " ".join(lines.split())
    assert f'<a href="#finding-launch-delay">{told.capitalize()}</a>' in findings_html(report)


def test_short_waits_for_data_are_a_part_of_longer_delays(tmp_path):
    """Rank 2 waits 8 ms for its data, and its host 30 ms before the optimizer."""
    trace = data_parallel_job(
        tmp_path,
        lambda _, rank: RankStep(data=8.0 * (rank == 2), late=30.0 * (rank == 2)),
        steps=24,
        ranks=4,
        measures=True,
    )
    case = case_of(trace)
    found = {f.id: f for f in case.diagnosis.findings}
    assert found["data-loading"].part_of == "launch-delay"
    assert [f.id for f in whole_findings(case)] == ["launch-delay"]
    assert found["launch-delay"].share_of_step == pytest.approx(38 / 108, abs=0.01)


def test_longer_steps_are_a_part_of_the_cause_that_takes_their_time():
    steps = np.arange(10)
    excess = np.where(steps < 2, 1.0, 0.0)
    odd = finding("odd-steps", cost_s=excess, steps=(0, 1))
    slow = finding("worker", cause="worker", cost_s=np.where(steps < 4, 0.9, 0.0))
    assert outside._as_part(odd, [slow], steps).part_of == "worker"
    always = finding("worker", cause="worker", cost_s=np.full(10, 0.9))
    assert not outside._as_part(odd, [always], steps).part_of
    rest = finding("unexplained", cause="unexplained", cost_s=excess)
    assert not outside._as_part(odd, [rest], steps).part_of


def test_a_part_of_a_part_is_told_behind_it():
    whole, part = finding("data-loading"), finding("launch-delay", part_of="data-loading")
    small, other = finding("odd-steps", part_of="launch-delay"), finding("trend")
    ordered = diagnosis._parts_behind([small, part, whole, other])
    assert [f.id for f in ordered] == ["data-loading", "launch-delay", "odd-steps", "trend"]
