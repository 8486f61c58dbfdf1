"""A cause, its place and its remedy belong to one finding."""

from dataclasses import replace

import pytest

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.results.causes import cause_facts, cause_hosts, cause_place, cause_remedy
from paceline.results.document import JobReport
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.whatif import analyze


@pytest.fixture(scope="module")
def report():
    spec = SynthSpec(dp=6, pp=2, microbatches=4, steps=8, slow_workers=(SlowWorker(3, 1, 1.5),))
    measured = from_trace(synthesize(spec))
    result = analyze(measured)
    hosts = {(dp, pp): (f"node-{dp}", "0") for dp in range(6) for pp in range(2)}
    diagnosis = diagnose(measured, result, hosts)
    advice = advise(Case(measured, result, diagnosis), REMEDIES)
    return JobReport.of(result, advice, hosts=hosts)


def test_the_named_finding_has_place_hosts_and_remedy(report):
    assert cause_place(report, "worker") == "worker dp 3, stage 1; host node-3"
    assert cause_hosts(report, "worker") == "node-3"
    assert cause_remedy(report, "worker").remedy == "replace-worker"


@pytest.mark.parametrize("cause", [None, "unexplained", "gc", "fail-slow"])
def test_another_cause_has_not_the_place_of_a_finding(report, cause):
    """A job whose loss nobody explains may have a finding with a place beside it."""
    (worker, *others) = report.findings
    everywhere = tuple(replace(finding, where=worker.where) for finding in others)
    odd = replace(report, findings=(worker, *everywhere))
    assert "unexplained" in [finding.cause for finding in odd.findings]
    assert cause_place(odd, cause) is None
    assert cause_hosts(odd, cause) is None
    assert cause_remedy(odd, cause) is None


def test_the_causes_that_a_remedy_answers_have_place_and_gain(report):
    (worker,) = cause_facts(report)
    gain = cause_remedy(report, "worker").gain
    assert worker == {
        "cause": "worker",
        "place": "worker dp 3, stage 1; host node-3",
        "gain": pytest.approx(gain, abs=1e-6),
    }


def test_of_two_findings_of_a_cause_the_one_at_a_place_counts(report):
    worker = report.findings[0]
    other = replace(worker, id="other", where={**worker.where, "workers": [[5, 0]]})
    two = replace(report, findings=(worker, other))
    there = cause_place(report, "worker").replace("dp 3, stage 1", "dp 5, stage 0")
    assert cause_place(two, "worker", there) == there
    assert cause_remedy(two, "worker", there) is None  # no remedy answers it
    assert cause_place(two, "worker", "elsewhere") == cause_place(report, "worker")
