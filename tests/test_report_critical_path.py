"""The critical path on the terminal, in result.json, on the page and from the command line."""

import gzip
import json
from pathlib import Path

import pytest

from paceline.cli.main import run
from paceline.report.critical_path import path_lines
from paceline.report.page.path import path_html
from paceline.results.path import PATH, PathSummary
from paceline.sources import parquet
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.whatif import WhatIf, analyze

SPEC = SynthSpec(dp=3, pp=2, microbatches=4, steps=2, slow_workers=(SlowWorker(2, 1, 1.5),))


@pytest.fixture(scope="module")
def result() -> WhatIf:
    return analyze(synthesize(SPEC))


def screen(result: WhatIf, width: int = 200) -> list[str]:
    path = PathSummary.of(result.critical_path)
    return [line.plain for line in path_lines(path, result.job, width)]


def test_the_terminal_says_what_the_step_consists_of(result: WhatIf) -> None:
    title, kinds, worker = screen(result)
    assert title.startswith("critical path: ")
    shares = [float(entry.rpartition(" ")[2].rstrip("%")) for entry in kinds.split(", ")]
    assert sum(shares) == pytest.approx(100, abs=len(shares) / 2)
    assert kinds.startswith("backward-compute ")
    assert kinds.endswith("between operations 0%")
    assert worker.startswith("worker dp 2, stage 1 has ")
    assert ", the most in 2 of 2 steps; " in worker
    assert worker.endswith("of 6 workers are on it or within 1% of the step")
    assert all(len(line) <= 60 for line in screen(result, 60))


def test_a_job_of_one_worker_and_one_step_has_nobody_to_name() -> None:
    alone = analyze(synthesize(SynthSpec(dp=1, pp=1, microbatches=4, steps=1)))
    assert len(screen(alone)) == 2
    page = path_html(PathSummary.of(alone.critical_path), alone.job)
    assert "path_text" in page
    assert "worker" not in page["path_text"]


def test_json_has_shares_that_sum_to_one(result: WhatIf) -> None:
    mapping = json.loads(json.dumps(PATH.write(PathSummary.of(result.critical_path))))
    for key in ("by_sort", "by_kind", "by_stage"):
        assert sum(mapping[key].values()) == pytest.approx(1, rel=1e-9)
        for step in mapping["by_step"].values():
            assert sum(step[key].values()) == pytest.approx(1, rel=1e-9)
    assert sum(share for _, _, share in mapping["by_worker"]) == pytest.approx(1, rel=1e-9)
    assert mapping["by_worker"][0][:2] == [2, 1]
    assert mapping["leading_worker"] == {
        "dp": 2,
        "pp": 1,
        "share": mapping["by_worker"][0][2],
        "steps": 2,
    }
    assert mapping["leading_kind"]["kind"] == "backward-compute"
    assert list(mapping["step_s"]) == list(mapping["by_step"]) == ["0", "1"]
    assert mapping["step_s"]["0"] == pytest.approx(result.traced_s[0], rel=1e-9)
    slack = mapping["slack"]
    assert slack["steps"] == [0, 1]
    assert slack["by_worker"][1][2] == pytest.approx(0, abs=1e-9)
    assert slack["by_kind"]["forward-compute"]["least"] == pytest.approx(0, abs=1e-9)
    assert slack["by_stage"]["0"]["median"] > 0
    assert slack["median_by_worker"][0][0] > 0


def test_the_page_names_the_workers_on_the_path(result: WhatIf) -> None:
    page = path_html(PathSummary.of(result.critical_path), result.job)
    assert page["path_workers"].index("dp 2, stage 1") < page["path_workers"].index("dp 2, stage 0")
    assert "2 of 2" in page["path_workers"]
    assert page["path_kinds"].index("backward-compute") < page["path_kinds"].index(">optimizer<")
    assert page["path_text"].startswith("<p>Worker dp 2, stage 1 has ")


def test_several_scenarios_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = synthesize(SPEC)
    path, output = tmp_path / "trace.parquet", tmp_path / "all.json.gz"
    with path.open("wb") as file:
        parquet.writer(trace)(file)
    scenarios = "actual,simulated,ideal,only:worker=2,1"
    argv = ["timeline", str(path), "--scenario", scenarios, "--steps", "1", "-o", str(output)]
    assert run(argv) == 0
    assert f"{4 * len(trace) // 2:,} operations" in capsys.readouterr().out
    document = json.loads(gzip.decompress(output.read_bytes()))
    assert document["otherData"]["scenario"] == scenarios
    assert document["otherData"]["steps"] == [1]
    names = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert "only:worker=2,1: dp 0 · stage 0" in names
    assert run(["timeline", str(path), "--scenario", "ideal,best", "-o", str(output)]) == 2
    assert "'best' is no scenario" in capsys.readouterr().err
