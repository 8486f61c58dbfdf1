"""The real jobs: the causes that their owners know of."""

import pytest

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.sources import load
from paceline.whatif import analyze


@pytest.fixture(scope="module")
def found(real_jobs):
    def one(job):
        measured = from_trace(
            load(real_jobs / f"trace-{job}.parquet", job=real_jobs / f"meta-{job}.yaml")
        )
        findings = diagnose(measured, analyze(measured)).findings
        return [f for f in findings if f.cause != "unexplained"]

    return one


def test_ar_has_one_slow_worker(found):
    (finding,) = found("AR")
    assert finding.cause == "worker"
    assert finding.where["workers"] == [[0, 0]]
    assert finding.share == pytest.approx(0.95, abs=0.03)
    assert finding.evidence["worst_slowdown"] == pytest.approx(1.979, abs=0.001)
    assert finding.confidence == 1.0


def test_st_has_a_long_last_stage(found):
    (finding,) = found("ST")
    assert finding.cause == "stage-imbalance"
    assert finding.where == {"stage": 3}
    assert finding.share == pytest.approx(0.89, abs=0.03)
    # The paper's section 5.2 reads 2.07 and 1.41 off such a job.
    assert finding.evidence["forward_ratio"] == pytest.approx(2.07, abs=0.02)
    assert finding.evidence["backward_ratio"] == pytest.approx(1.41, abs=0.02)
    assert finding.evidence["m_stage"] == pytest.approx(1.219, abs=0.001)


def test_se_has_sequence_lengths_first_and_the_last_stage_second(found):
    first, second = found("SE")
    assert (first.cause, second.cause) == ("sequence-length", "stage-imbalance")
    assert first.share == pytest.approx(0.77, abs=0.04)
    assert second.share == pytest.approx(0.16, abs=0.03)
    assert second.where == {"stage": 1}
    assert first.evidence["correlation"] == pytest.approx(0.994, abs=0.002)
