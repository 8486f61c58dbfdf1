"""The largest cost comes first, also where S leaves it out: waits between operations."""

from dataclasses import replace

import pytest

from paceline.diagnose import Finding, diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.report.page.fall import key_numbers
from paceline.report.terminal import screen
from paceline.report.why import diagnosis_lines
from paceline.results.document import JobReport
from paceline.results.headline import MAX_LENGTH, headline, largest_cost, named_cause
from paceline.results.words.waits import waits_share
from paceline.synth import SynthSpec, synthesize
from paceline.trace.warning import BETWEEN_STEPS, Warning
from paceline.whatif import analyze
from recordings import RankStep, data_parallel_job


def report_of(trace):
    measured = from_trace(trace)
    result = analyze(measured)
    return JobReport.of(
        result, advise(Case(measured, result, diagnose(measured, result)), REMEDIES)
    )


@pytest.fixture(scope="module")
def healthy():
    """A job without findings."""
    report = report_of(synthesize(SynthSpec(dp=4, pp=1, microbatches=4, steps=20, noise=0.0)))
    return replace(report, findings=())


def wait(
    name="launch-delay", share=0.12, *, cause=None, sure=1.0, where=(), part_of="", **evidence
):
    return Finding(
        name, cause or name, "", None, share, (share, share), sure, dict(where), evidence,
        part_of=part_of,
    )  # fmt: skip


def odd_steps(share=0.115, **of):
    return wait("odd-steps", share, cause="drift", steps=[2, 5, 9], waits=True, **of)


LATE = {"where": {"workers": [[1, 0]]}, "late_s": [0.3], "late_steps": [8], "late_share": 0.14}
LATER = {
    "where": {"workers": [[1, 0], [3, 0]]}, "late_s": [0.3, 0.2], "late_steps": [20, 20],
    "late_share": 0.3,
}  # fmt: skip
HOST = {"where": {"workers": [[1, 0]]}, "delay_s": [0.3], "delayed_steps": 10}
DATA = {"where": {"workers": [[2, 0]]}, "wait_s": [0.121], "steps": [1, 7, 14]}
ALL_WAIT = {"wait_s": [0.03], "steps": "all"}


@pytest.mark.parametrize(
    ("findings", "told"),
    [
        (
            [wait("data-loading", 0.157, **DATA)],
            "Data loading costs 15.7% of the step: dp 2, stage 0 waits 121 ms in 3 of 20 steps",
        ),
        (
            [wait("data-loading", 0.3, **ALL_WAIT)],
            "Data loading costs 30.0% of the step: workers wait 30.0 ms a step",
        ),
        (
            [wait("data-loading", 0.3, **{**DATA, "where": {"workers": [[2, 0], [3, 0]]}})],
            "Data loading costs 30.0% of the step: 2 workers wait (most: dp 2, stage 0) 121 ms in "
            "3 of 20 steps",
        ),
        (
            [wait(share=0.15, **LATE)],
            "Late starts cost 14.0% of the step: dp 1, stage 0 begins 300 ms late in 8 of 20 steps",
        ),
        (
            [wait(share=0.3, **LATER)],
            "Late starts cost 30.0% of the step: dp 1, stage 0 and 1 more begin 300 ms late",
        ),
        (
            [wait(share=0.154, **HOST)],
            "Waits between operations cost 15.4% of the step: the host of dp 1, stage 0 delays "
            "operations 300 ms in 10 of 20 steps",
        ),
        (
            [wait(where={"group": {"kind": "optimizer"}})],
            "Waits between operations cost 12.0% of the step, most of it before optimizer",
        ),
        (
            [wait(sure=0.6), odd_steps(part_of="launch-delay")],
            "Waits between operations cost 12.0% of the step, most of it in 3 of 20 steps "
            "(checkpoint?)",
        ),
        (
            [odd_steps(0.168, sure=0.8)],
            "Likely waits in 3 of 20 steps (checkpoint?) cost 16.8% of the step",
        ),
    ],
)
def test_the_first_sentence_is_the_wait(healthy, findings, told):
    report = replace(healthy, findings=tuple(findings))
    text = headline(report)
    assert text.startswith(f"{told}.")
    assert len(text) <= max(MAX_LENGTH, len(told) + 1)
    assert named_cause(report) == findings[0].cause
    lines = " ".join(line.plain for line in screen(report, 200, colour=False)[1:3])
    assert lines.startswith(f"{told}. No lasting straggler beside it (0.0%)")


@pytest.mark.parametrize(
    "finding",
    [
        wait(share=0.029),  # small
        wait(share=0.19, sure=0.6),  # not sure
        wait("odd-steps", 0.2, cause="drift", steps=[1]),  # these steps compute longer
        wait(part_of="worker"),
    ],
)
def test_other_findings_are_not_first(healthy, finding):
    report = replace(healthy, findings=(finding,))
    assert largest_cost(report) is None


def test_stragglers_that_cost_more_come_first(healthy):
    """Of a step of 100 ms, stragglers cost 10."""
    ideal = {step: 0.9 * s for step, s in healthy.step_time_s.ideal.items()}
    lossy = replace(
        healthy, slowdown=1 / 0.9, slowdown_lasting=1.1, waste=0.1,
        step_time_s=replace(healthy.step_time_s, ideal=ideal),
    )  # fmt: skip
    for share, is_first in ((0.08, False), (0.12, True)):
        findings = (odd_steps(share),)
        report = replace(lossy, findings=findings)
        assert headline(report).startswith("Waits in 3 of 20 steps") is is_first
        assert headline(report).endswith("Stragglers waste 10%.") is is_first


def test_a_pause_between_steps_comes_first_unless_data_is_loaded_there(healthy):
    pause = Warning(BETWEEN_STEPS, "", {"share": 0.3})
    told = "Pauses between steps take 30.0% of the time"
    for share, is_pause in ((0.02, True), (0.28, False)):
        data = wait("data-loading", share, **ALL_WAIT)
        report = replace(healthy, warnings=(pause,), findings=(data,))
        assert headline(report).startswith(told) is is_pause
        assert headline(report).startswith("Data loading costs 28.0%") is not is_pause


def test_waste_says_what_waits_cost_beside_it(tmp_path):
    """Rank 2 waits 120 ms for its data in every seventh step of 70 ms."""
    trace = data_parallel_job(
        tmp_path, lambda n, rank: RankStep(data=120.0 * (rank == 2 and n % 7 == 6)), steps=70,
        ranks=4, measures=True,
    )  # fmt: skip
    report = report_of(trace)
    true = 10 * 0.12 / (10 * 0.12 + 70 * 0.070)
    assert waits_share(report) == pytest.approx(true, abs=0.01)  # data and delays count once
    told = f"waits between operations not included: {waits_share(report):.1%} of the step"
    assert headline(report).startswith("Data loading costs 19")
    assert f"({told})" in " ".join(line.plain for line in screen(report, 200, colour=False))
    assert f"({told})" in diagnosis_lines(report, 200)[0].plain
    assert told in key_numbers(report, None)


def test_waste_without_waits_says_nothing_of_them(healthy):
    assert "not included" not in key_numbers(healthy, None)
