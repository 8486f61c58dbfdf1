"""A trace of one step, or of a few: what it cannot show is not told as known."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.report.page.fall import key_numbers
from paceline.report.page.findings import findings_html, remedies_html
from paceline.report.why import diagnosis_lines
from paceline.results.document import JobReport
from paceline.results.headline import details, headline
from paceline.results.words.shares import interval_text
from paceline.synth import SynthSpec, synthesize
from paceline.whatif import analyze


def report_of(steps):
    """A job whose steps begin late, and do not run into each other."""
    spec = SynthSpec(dp=4, pp=1, microbatches=8, steps=steps, launch_delay=(0.4, 0.5))
    measured = replace(from_trace(synthesize(spec)), open_overlap_s=0.0)
    result = analyze(measured)
    advice = advise(Case(measured, result, diagnose(measured, result)), REMEDIES)
    return JobReport.of(result, advice)


def delay_of(report):
    return next(f for f in report.diagnosis.findings if f.cause == "launch-delay")


@pytest.mark.parametrize(("steps", "most"), [(1, 2 / 3), (2, 3 / 4), (3, 4 / 5), (4, 1.0)])
def test_a_few_steps_do_not_show_for_sure_that_their_wait_returns(steps, most):
    """Laplace's rule of succession: (n + 1) / (n + 2)."""
    assert delay_of(report_of(steps)).confidence == pytest.approx(most)


def test_one_step_has_no_interval():
    """A newcomer's page: "90%: 61.2% to 61.2%", "nearly certain (over 99%)"."""
    report = report_of(1)
    assert headline(report).startswith("Possibly waits between operations cost")
    texts = {
        "details": " ".join(details(report)),
        "findings": findings_html(report),
        "remedies": remedies_html(report),
        "numbers": key_numbers(report, None),
        "terminal": " ".join(str(line) for line in diagnosis_lines(report, 400)),
    }
    for name, text in texts.items():
        assert "90%: unknown from one step" in text, name
        assert "nearly certain" not in text, name


def test_several_steps_have_one():
    low, high = np.float64(0.6), np.float64(0.62)
    assert interval_text((low, high), 2) == "90%: 60.0% to 62.0%"
    assert interval_text((low, low), 2, " of the step") == "90%: 60.0% to 60.0% of the step"
    assert interval_text((low, high), 1) == "90%: 60.0% to 62.0%"  # of several readings
    assert interval_text((low, low), 1, " of the step") == "90%: unknown from one step"
    assert "90%: unknown" not in " ".join(str(line) for line in diagnosis_lines(report_of(3), 400))
