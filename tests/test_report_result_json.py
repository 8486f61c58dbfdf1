import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advised_jobs import job
from paceline.graph import from_trace
from paceline.report import folder
from paceline.report.result_json import dumps, json_writer, worker_csv_writer
from paceline.results.document import JobReport
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.whatif import WhatIf, analyze

KEYS = [
    "schema",
    "job",
    "steps",
    "slowdown",
    "slowdown_paper",
    "slow_mode_shares",
    "waste",
    "discrepancy",
    "launch_slowdown",
    "step_time_s",
    "by_step",
    "by_kind",
    "by_stage",
    "by_replica",
    "by_worker",
    "by_kind_by_step",
    "by_stage_by_step",
    "by_replica_by_step",
    "slowest_workers",
    "m_w",
    "m_w_paper",
    "m_s",
    "m_w_only",
    "m_s_only",
    "replay_error",
    "launch_delay",
    "critical_path",
    "clamped",
    "clock_offsets_s",
    "step_modes",
    "not_judged",
    "left_out_steps",
    "warnings",
    "warning_details",
    "microbatches",
]


def to_mapping(result: WhatIf, **options: bool) -> dict[str, Any]:
    return JobReport.of(result, **options).to_mapping()


@pytest.fixture(scope="module")
def spec() -> SynthSpec:
    return SynthSpec(dp=3, pp=2, microbatches=4, steps=2, slow_workers=(SlowWorker(2, 1, 1.5),))


@pytest.fixture(scope="module")
def result(spec: SynthSpec) -> WhatIf:
    return analyze(synthesize(spec))


def test_keys_are_those_of_schema_1(result: WhatIf) -> None:
    mapping = to_mapping(result)
    assert list(mapping) == KEYS
    assert mapping["schema"] == 1
    assert list(to_mapping(result, per_step_workers=True)) == [*KEYS, "by_worker_by_step"]


def test_both_slowdowns_and_the_kinds_between_them_are_written(result: WhatIf) -> None:
    mapping = to_mapping(result)
    assert mapping["slowdown_paper"] == mapping["slowdown"]
    assert mapping["slow_mode_shares"] == {}
    assert mapping["step_modes"] is None
    other = job("two references").result
    mapping = to_mapping(other)
    assert mapping["slowdown_paper"] == other.slowdown_paper < mapping["slowdown"]
    assert mapping["slow_mode_shares"]["grads-reduce-scatter"] == 0.5
    mapping = to_mapping(job("two modes").result)
    assert mapping["step_modes"]["slow_steps"] == [1, 3, 6, 8, 11, 13, 16, 18]
    assert mapping["step_modes"]["ratio"] == pytest.approx(1.5, rel=0.02)


def test_numbers_are_those_of_the_result(result: WhatIf) -> None:
    mapping = to_mapping(result, per_step_workers=True)
    assert mapping["slowdown"] == result.slowdown
    assert mapping["job"] == result.job.to_mapping()
    assert mapping["steps"] == result.steps.tolist()
    assert mapping["by_worker"][1][2] == result.by_worker[1, 2] > 1.2
    assert mapping["by_stage"] == {"0": result.by_stage[0], "1": result.by_stage[1]}
    assert list(mapping["by_replica"]) == ["0", "1", "2"]
    assert mapping["slowest_workers"][0] == [2, 1, result.by_worker[1, 2]]
    second = str(result.steps[1])
    assert mapping["step_time_s"]["traced"][second] == result.traced_s[1]
    assert mapping["by_kind_by_step"][second] == {
        kind: values[1] for kind, values in result.by_kind_by_step.items()
    }
    assert mapping["by_stage_by_step"][second] == {
        "0": result.by_stage_by_step[1, 0],
        "1": result.by_stage_by_step[1, 1],
    }
    assert mapping["by_replica_by_step"][second]["2"] == result.by_replica_by_step[1, 2]
    assert mapping["by_worker_by_step"][second] == result.by_worker_by_step[1].tolist()
    assert set(mapping["launch_delay"]) == {"by_kind", "step_start"}
    assert set(mapping["clamped"]) == {"transfer", "launch_delay"}
    clocks = mapping["clock_offsets_s"]
    assert set(clocks) == {"std", "corrected", "by_worker"}
    assert clocks["by_worker"][1][2] == result.clocks.offset_s[2, 1]


def test_text_is_json_and_the_same_mapping(result: WhatIf) -> None:
    assert json.loads(dumps(JobReport.of(result))) == to_mapping(result)


def test_what_is_not_finite_becomes_null(result: WhatIf) -> None:
    by_worker = result.by_worker.copy()
    by_worker[0, 0] = np.nan
    broken = replace(result, by_worker=by_worker, slowdown=float("inf"), m_w=None)
    mapping = json.loads(dumps(JobReport.of(broken)))
    assert mapping["by_worker"][0][0] is None
    assert mapping["by_worker"][0][1] == result.by_worker[0, 1]
    assert mapping["slowdown"] is None
    assert mapping["m_w"] is None


def test_workers_table_has_the_worst_first_and_ties_by_stage(result: WhatIf) -> None:
    tied = replace(result, by_worker=np.array([[1.0, 1.5, 1.0], [1.5, 1.0, 2.0]]))
    file = io.BytesIO()
    worker_csv_writer(JobReport.of(tied))(file)
    rows = list(csv.reader(io.StringIO(file.getvalue().decode())))
    assert rows[0] == ["dp", "pp", "slowdown"]
    assert rows[1:4] == [["2", "1", "2.0"], ["1", "0", "1.5"], ["0", "1", "1.5"]]
    assert len(rows) == 7


def test_writer_writes_what_dumps_says(result: WhatIf) -> None:
    file = io.BytesIO()
    report = JobReport.of(result, per_step_workers=True)
    json_writer(report)(file)
    assert file.getvalue().decode() == dumps(report)


def test_folder_holds_the_three_files(result: WhatIf, spec: SynthSpec, tmp_path: Path) -> None:
    report, measured = JobReport.of(result), from_trace(synthesize(spec))
    notes = folder.write_folder(report, result, measured, tmp_path / "new" / "out")
    names = sorted(path.name for path in (tmp_path / "new" / "out").iterdir())
    assert names == ["by_worker.csv", "ideal.json.gz", "result.json"]
    assert len(notes) == 1
    assert notes[0].startswith("wrote ")


def test_numbers_are_written_even_if_the_ideal_is_too_large_to_draw(
    result: WhatIf, spec: SynthSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.report.perfetto.MAX_EVENTS", 5)
    report, measured = JobReport.of(result), from_trace(synthesize(spec))
    notes = folder.write_folder(report, result, measured, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "by_worker.csv",
        "result.json",
    ]
    assert "ideal.json.gz is not written" in notes[0]
