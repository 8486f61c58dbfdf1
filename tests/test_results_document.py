"""The report document: what is written is read again, old documents too, and bad ones are named."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from advised_jobs import JOBS, job
from advised_jobs import report_of as document_of
from paceline.errors import PacelineError, ResultError
from paceline.plan.expect import Expectation
from paceline.results.document import JobReport
from paceline.results.record import equal_values
from paceline.results.schema import json_schema, text
from paceline.trace import warning
from paceline.trace.warning import LAUNCH_DELAYS, NO_PEERS, Warning
from paceline.units import seconds
from schema_check import violations

SCHEMA_FILE = Path(__file__).parents[1] / "docs" / "result.schema.json"

EXPECTATION = Expectation(
    *("llama", "tp 1", 1.0, 2.0, 1.5, 2.0, 1.1, 1.2, 1.5, 1.3, 1.4),
    by_kind={"forward-compute": None},
    by_stage=(1.0, 2.0),
)


def report_of(name: str, **options) -> JobReport:
    return document_of(job(name), **options)


def written(report: JobReport) -> dict:
    """What a reader of the file sees."""
    return json.loads(json.dumps(report.to_mapping(), allow_nan=False))


@pytest.fixture(scope="module")
def document() -> dict:
    return written(report_of("worker", per_step_workers=True, expectation=EXPECTATION))


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("per_step_workers", [False, True])
def test_what_is_written_is_read_again(name, per_step_workers):
    report = report_of(name, per_step_workers=per_step_workers, expectation=EXPECTATION)
    again = JobReport.from_mapping(written(report))
    assert again == report
    for field in fields(report):
        assert equal_values(getattr(again, field.name), getattr(report, field.name)), field.name
    assert written(again) == written(report)


def test_an_analysis_without_a_diagnosis_is_read_again():
    report = JobReport.of(job("worker").result)
    again = JobReport.from_mapping(written(report))
    assert again == report
    assert again.findings is None
    assert "findings" not in written(report)


def test_reports_of_unlike_jobs_are_unlike():
    report = report_of("worker")
    assert report != report_of("workers")
    by_worker = report.by_worker.copy()
    by_worker[0, 0] += 0.1
    assert report != replace(report, by_worker=by_worker)
    assert report != replace(report, findings=report.findings[:-1])
    assert report != "worker"


def test_what_is_no_number_is_read_as_nan_and_equals_itself():
    known = job("worker").result
    by_worker = known.by_worker.copy()
    by_worker[0, 0] = np.nan
    report = JobReport.of(
        replace(known, by_worker=by_worker, slowdown_paper=float("nan"), m_w=None)
    )
    again = JobReport.from_mapping(written(report))
    assert again == report
    assert np.isnan(again.by_worker[0, 0])
    assert np.isnan(again.slowdown_paper)
    assert again.m_w is None


def test_verdicts_are_those_of_the_analysis():
    for name in JOBS:
        report, result = report_of(name), job(name).result
        for verdict in ("straggling", "healthy", "doubtful", "even"):
            assert getattr(report, verdict) == getattr(result, verdict), (name, verdict)
        assert (report.step_modes is None) == (result.step_modes is None)


def test_workers_by_step_are_exact_where_they_are_kept_and_else_the_smaller_reading():
    result = job("worker").result
    exact = report_of("worker", per_step_workers=True).workers_by_step
    assert equal_values(exact, result.by_worker_by_step)
    estimate = report_of("worker").workers_by_step
    smaller = min(result.by_stage_by_step[2, 1], result.by_replica_by_step[2, 3])
    assert estimate.shape == exact.shape
    assert estimate[2, 1, 3] == smaller


NEW = (
    *("slowdown_paper", "slow_mode_shares", "step_modes", "not_judged", "launch_slowdown"),
    *("critical_path", "warning_details", "microbatches", "hints", "hosts", "architecture"),
    *("by_kind_by_step", "clock_offsets_s", "left_out_steps", "m_w_paper", "clamped", "waterfall"),
)


def test_a_document_of_an_earlier_version_is_read(document):
    old = {key: value for key, value in document.items() if key not in NEW}
    names = ("id", "cause", "text", "share", "share_of_step", "interval", "confidence")
    old["findings"] = [{name: entry[name] for name in names} for entry in document["findings"]]
    names = ("remedy", "text", "findings", "step_time_s", "gain", "interval")
    old["remedies"] = [{name: entry[name] for name in names} for entry in document["remedies"]]
    report = JobReport.from_mapping(old)
    assert report.slowdown_paper == report.slowdown == document["slowdown"]
    assert report.critical_path is None
    assert report.waterfall is None
    assert report.findings[0].evidence == {}
    assert report.remedies[0].change == {}
    assert report.even
    assert [w.text for w in report.warnings] == document["warnings"]
    assert {w.code for w in report.warnings} <= {""}


def test_step_modes_of_older_documents_come_from_the_step_times():
    report = report_of("two modes")
    old = written(report)
    del old["step_modes"]
    assert JobReport.from_mapping(old).step_modes == report.step_modes is not None


def test_keys_of_later_versions_are_left_out(document):
    more = {**document, "mood": "bad", "job": {**document["job"], "colour": "red"}}
    more["findings"] = [{**finding, "mood": "bad"} for finding in document["findings"]]
    assert JobReport.from_mapping(more) == JobReport.from_mapping(document)


def put(document: dict, path: str, value: object) -> dict:
    """The document with another value under ``path``."""
    changed = json.loads(json.dumps(document))
    *parents, last = path.split(".")
    place = changed
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[int(last) if isinstance(place, list) else last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", 2),
        ("schema", "1"),
        ("job", []),
        ("job", {}),
        ("job.dp_size", "8"),
        ("job.dp_size", 0),
        ("steps", [0.5]),
        ("slowdown", "1.1"),
        ("slowdown", True),
        ("by_step", {"first": 1.0}),
        ("by_kind.forward-compute", []),
        ("by_worker", [1.0]),
        ("by_worker", [[1.0]]),
        ("by_worker", [[1.0], [1.0, 2.0]]),
        ("by_worker", "x"),
        ("step_time_s.traced", {}),
        ("step_time_s.ideal", [1.0]),
        ("step_time_s.simulated", {"0": 1.0}),
        ("steps", []),
        ("by_step", {"0": 1.0}),
        ("by_stage_by_step", {}),
        ("by_stage_by_step.1", {"0": 1.0}),
        ("by_replica_by_step.2", {}),
        ("by_worker_by_step.0", [[1.0]]),
        ("by_worker_by_step", {}),
        ("slowest_workers.0", [1, 2]),
        ("critical_path.slack.near_workers", None),
        ("critical_path.by_step.0.worker", [0]),
        ("findings.0.interval", [0.1]),
        ("findings.0.where", 3),
        ("remedies.0.notes", "none"),
        ("remedies.0.architecture", 0),
        ("waterfall.drops.0.name", 7),
        ("expected.by_stage", [1.0]),
        ("hosts", {"x": ["a", "0"]}),
        ("hosts", {"0,0": "a"}),
        ("warnings", [1]),
    ],
)
def test_a_bad_field_is_named(document, path, value):
    with pytest.raises(ResultError) as caught:
        JobReport.from_mapping(put(document, path, value))
    assert path.split(".")[0] in str(caught.value)
    assert caught.value.field.split(".")[0] == path.split(".")[0]
    assert isinstance(caught.value, PacelineError)


def test_a_missing_field_is_named(document):
    with pytest.raises(ResultError, match=r"by_worker: is missing"):
        JobReport.from_mapping({k: v for k, v in document.items() if k != "by_worker"})
    with pytest.raises(ResultError, match=r"findings\.0\.id: is missing"):
        JobReport.from_mapping({**document, "findings": [{}]})


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_what_is_no_document_is_refused(value):
    with pytest.raises(ResultError, match="must be an object"):
        JobReport.from_mapping(value)


def test_the_published_schema_is_that_of_the_code():
    assert SCHEMA_FILE.read_text() == text(), "run python -m paceline.results.schema"


@pytest.mark.parametrize("name", JOBS)
def test_documents_hold_to_the_schema(name):
    report = report_of(name, per_step_workers=True, expectation=EXPECTATION)
    assert list(violations(json_schema(), written(report))) == []


def test_the_schema_refuses_what_is_not_the_document(document):
    schema = json_schema()
    for path, value in (("slowdown", "x"), ("by_worker", 1), ("findings.0.id", 3), ("schema", 7)):
        assert list(violations(schema, put(document, path, value)))
    assert list(violations(schema, {k: v for k, v in document.items() if k != "steps"}))
    assert set(document) <= set(schema["properties"])


@pytest.mark.parametrize("name", JOBS)
def test_a_remedy_says_action_and_effect(name):
    for remedy in report_of(name).every_remedy:
        assert remedy.text == f"{remedy.action}: {remedy.effect}"
        least, most = ("at least ", "at most ") if remedy.is_bound else ("", "")
        assert remedy.effect.startswith(
            f"a step takes {least}{seconds(remedy.step_time_s)} instead"
        )
        assert f"(saves {most}{remedy.gain:.1%} of the step)" in remedy.effect


def test_warnings_have_codes_and_the_numbers_of_their_texts():
    report = report_of("launch delays")
    codes = {each.code: each for each in report.warnings}
    doubt = codes[LAUNCH_DELAYS]
    assert f"{doubt.numbers['discrepancy']:.1%}" in doubt.text
    assert doubt.numbers["discrepancy"] == report.discrepancy
    again = JobReport.from_mapping(written(report))
    assert again.warnings == report.warnings
    assert NO_PEERS in {w.code for name in JOBS for w in report_of(name).warnings}
    assert all(w.code for name in JOBS for w in report_of(name).warnings)


def test_a_warning_of_a_reader_has_a_text_alone():
    known = job("worker").result
    warned = replace(known, doubts=(Warning("", "imported from x files"), *known.doubts))
    assert JobReport.of(warned).warnings[0] == Warning("", "imported from x files")


def test_every_code_of_a_warning_is_documented():
    page = (SCHEMA_FILE.parent / "result-json.md").read_text()
    constants = {name: value for name, value in vars(warning).items() if name.isupper()}
    codes = {value for value in constants.values() if isinstance(value, str)}
    assert codes >= {w.code for name in JOBS for w in report_of(name).warnings} | warning.USUAL
    assert [code for code in sorted(codes) if f"`{code}`" not in page] == []
