import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import paceline
from fleet_jobs import HERE, by_file, job, make_fleet, settled
from import_files import ProfileWriter, make_trace
from kineto_profiles import WRITTEN
from paceline.cli.main import run
from paceline.errors import FleetError, OutputError
from paceline.fleet import analysis, keys, perform
from paceline.fleet.columns import JOBS, STEPS, arrow_schema
from paceline.fleet.keys import AnalysisOptions
from paceline.fleet.lock import locked
from paceline.fleet.rules import RuleOptions
from paceline.fleet.run import fleet
from paceline.fleet.store import FolderStore
from paceline.fleet.study import Study
from paceline.graph import from_trace
from paceline.sources import write
from paceline.whatif import analyze
from recordings import record_trace


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    return make_fleet(tmp_path_factory.mktemp("fleet") / "traces")


@pytest.fixture(scope="module")
def study(traces, tmp_path_factory):
    return fleet(traces, tmp_path_factory.mktemp("study") / "study", run=HERE)


@pytest.fixture
def analysed(monkeypatch):
    """The traces that are analysed from now on, by name."""
    names, analyse = [], perform.analyse

    def count(trace, *arguments):
        names.append(trace.name)
        return analyse(trace, *arguments)

    monkeypatch.setattr(perform, "analyse", count)
    return names


def copied(study, tmp_path):
    return Path(shutil.copytree(study.address, tmp_path / "study"))


def test_a_row_has_the_numbers_of_analyze(study, traces, capsys):
    for number, row in enumerate(study.jobs.to_pylist()):
        assert run(["analyze", str(traces / f"trace-{number}.parquet"), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        names = {"slowdown", "waste", "discrepancy", "m_w", "m_s", "m_w_only", "launch_slowdown"}
        assert {name: row[name] for name in names} == {name: result[name] for name in names}
        assert dict(row["slowdown_by_kind"]) == result["by_kind"]
        assert [f["cause"] for f in row["causes"]] == [f["cause"] for f in result["findings"]]
        assert [f["share"] for f in row["causes"]] == [f["share"] for f in result["findings"]]
        assert row["cause"] == ("worker" if number % 2 else "healthy")
        assert row["slowdown_judged"] == row["slowdown"]  # passes are whole, as in the paper
        gains = [remedy["gain"] for remedy in result["remedies"]]
        assert row["remedy_gain"] == max(gains, default=None)
        assert [row["slowdown_low"], row["slowdown_high"]] == result["slowdown_interval"]
        assert row["gpu_hours"] == pytest.approx(
            4 * sum(result["step_time_s"]["traced"].values()) / 3600
        )
        steps = [step for step in study.steps.to_pylist() if step["key"] == row["key"]]
        assert {str(step["step"]): step["slowdown"] for step in steps} == result["by_step"]


def test_the_judged_slowdown_is_that_of_analyze(capsys, tmp_path):
    """Recorded on a noisy machine: most of S passes from worker to worker."""
    noisy, output = Path(__file__).parent / "noisy_sessions", tmp_path / "study"
    options = ["--processes", "0", "--max-discrepancy", "1"]
    assert run(["fleet", str(noisy), "-o", str(output), *options]) == 0
    capsys.readouterr()
    for row in Study(str(output)).jobs.to_pylist():
        assert run(["analyze", row["path"]]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert f"Without it, S is {row['slowdown_judged']:.3f}." in said
        assert row["slowdown_judged"] < row["slowdown"] - 0.1


def test_a_study_of_a_version_without_a_column_is_read(study, tmp_path):
    output = copied(study, tmp_path)
    for file in (output / "jobs").iterdir():
        table = pq.read_table(file)
        pq.write_table(table.drop_columns(["slowdown_judged"]), file)
    older = Study(str(output))
    assert set(older.jobs["slowdown_judged"].to_pylist()) == {None}
    assert older.summary["straggling"]["jobs"] == study.summary["straggling"]["jobs"]


def test_tables_have_the_documented_columns(study):
    assert study.jobs.schema.equals(arrow_schema(JOBS))
    assert study.steps.schema.equals(arrow_schema(STEPS))
    file = next(Path(study.address, "jobs").iterdir())
    assert pq.read_schema(file).field("gpu_hours").metadata[b"unit"] == b"h"


def test_a_study_that_is_done_analyses_nothing(study, traces, tmp_path, analysed):
    out = copied(study, tmp_path)
    again = fleet(traces, out, run=HERE)
    assert analysed == []
    assert again.jobs.equals(study.jobs)


def test_only_a_trace_that_changed_is_analysed_again(study, traces, tmp_path, analysed):
    folder = Path(shutil.copytree(traces, tmp_path / "traces"))
    out = tmp_path / "study"
    fleet(folder, out, run=HERE)
    analysed.clear()
    write(job(7), folder / "trace-1.parquet", force=True)
    again = fleet(folder, out, run=HERE)
    assert analysed == ["trace-1.parquet"]
    rows = by_file(again.jobs)
    assert rows["trace-1.parquet"]["slowdown"] < 1.1 < study.jobs["slowdown"][1].as_py()
    assert rows["trace-0.parquet"]["slowdown"] == study.jobs["slowdown"][0].as_py()


def test_a_changed_job_file_or_option_is_another_result(traces, tmp_path, analysed):
    folder = Path(shutil.copytree(traces, tmp_path / "traces"))
    fleet(folder, tmp_path / "study", run=HERE)
    (folder / "meta-2.yaml").write_text("{dp_size: 2, pp_size: 2, world_size: 64, name: big}")
    analysed.clear()
    again = fleet(folder, tmp_path / "study", run=HERE)
    assert analysed == ["trace-2.parquet"]
    assert by_file(again.jobs)["trace-2.parquet"]["gpus"] == 64
    one_step = fleet(
        folder, tmp_path / "study", analysis=AnalysisOptions(steps=(0,)), run=HERE, rules=RULES
    )
    assert len(analysed) == 4
    assert one_step.jobs["steps"].to_pylist() == [1, 1, 1]


RULES = RuleOptions(min_steps=1)


def test_rules_change_rows_without_another_analysis(study, traces, tmp_path, analysed):
    out = copied(study, tmp_path)
    with pytest.raises(FleetError, match=r"none of 3 jobs counts \(steps: 3\)"):
        fleet(traces, out, rules=RuleOptions(min_steps=3), run=HERE)
    rows = Study(out).jobs.to_pylist()
    assert {(row["status"], row["rule"]) for row in rows} == {("discarded", "steps")}
    assert rows[0]["error"] == "2 whole steps, fewer than 3"
    assert rows[0]["slowdown"] == study.jobs["slowdown"][0].as_py()
    assert analysed == []


def test_a_study_that_was_interrupted_goes_on(study, traces, tmp_path, analysed):
    out = tmp_path / "study"

    def interrupt(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fleet(traces, out, run=HERE, progress=interrupt)
    with pytest.raises(FleetError, match="is not complete; run the same command again"):
        Study(out)
    resumed = fleet(traces, out, run=HERE)
    assert len(analysed) == len(set(analysed)) == 3
    assert settled(resumed.jobs) == settled(study.jobs)
    assert resumed.steps.equals(study.steps)


def test_without_its_memory_of_keys_a_study_reads_but_does_not_analyse(
    study, traces, tmp_path, analysed
):
    out = copied(study, tmp_path)
    shutil.rmtree(out / "keys")
    assert fleet(traces, out, run=HERE).jobs.equals(study.jobs)
    assert analysed == []


def test_a_trace_that_is_there_twice_counts_once(traces, tmp_path):
    folder = make_fleet(tmp_path / "traces", (0,))
    shutil.copy(folder / "trace-0.parquet", folder / "trace-1.parquet")
    study = fleet(folder, tmp_path / "study", run=HERE)
    assert study.jobs["rule"].to_pylist() == [None, "copy"]
    assert study.steps.num_rows == 2


def test_traces_that_cannot_be_analysed_keep_rows_with_reasons(tmp_path, capsys, monkeypatch):
    def file_digest(path):
        if path.name == "trace-locked.parquet":  # as root even a file of mode 0 can be read
            raise PermissionError(13, "Permission denied")
        return keys.file_digest(path)

    monkeypatch.setattr(perform, "file_digest", file_digest)
    folder = make_fleet(tmp_path / "traces", (0,))
    whole = (folder / "trace-0.parquet").read_bytes()
    (folder / "trace-cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "trace-empty.parquet").write_bytes(b"")
    (folder / "trace-text.parquet").write_text("no parquet at all")
    (folder / "trace-locked.parquet").write_bytes(whole)
    (folder / "trace-nojob.parquet").write_bytes(whole + b"\0")
    (folder / "meta-nojob.yaml").write_text("{pp_size: 2}")
    (folder / "notes.txt").write_text("what is what")
    arguments = ["fleet", str(folder), "-o", str(tmp_path / "study"), "--processes", "0"]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert "1 of 6 jobs analysed; left out: degrees 1, corrupt 4\n" in out
    assert err.splitlines()[-2:] == [
        "1 file beside the traces left unread",
        "5 traces could not be analysed; the column error says why",
    ]
    rows = by_file(Study(tmp_path / "study").jobs)
    assert rows["trace-nojob.parquet"]["rule"] == "degrees"
    assert rows["trace-nojob.parquet"]["error"].endswith(
        "lacks dp_size; give the degrees of the job"
    )
    for name in ("cut", "empty", "text"):
        row = rows[f"trace-{name}.parquet"]
        assert (row["status"], row["rule"]) == ("failed", "corrupt")
        assert row["error"].startswith("the trace ")
    assert rows["trace-locked.parquet"]["error"] == "it cannot be read: Permission denied"
    assert run([*arguments, "--strict"]) == 1


def test_the_first_failing_trace_does_not_change_the_schema(tmp_path):
    folder = make_fleet(tmp_path / "traces", (1,))
    (folder / "a.parquet").write_bytes(b"")
    study = fleet(folder, tmp_path / "study", run=HERE)
    assert study.jobs.schema.equals(arrow_schema(JOBS))
    assert study.jobs["status"].to_pylist() == ["failed", "analysed"]


def test_two_studies_at_once_are_refused(study, traces, tmp_path):
    out = copied(study, tmp_path)
    with (
        locked(FolderStore(out)),
        pytest.raises(FleetError, match=rf"is in use by process {os.getpid()} on "),
    ):
        fleet(traces, out, run=HERE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda out: out.write_text("x"), "a file is in the way"),
        (lambda out: (out.mkdir(), (out / "thesis.tex").write_text("x")), "is not empty and no"),
        (
            lambda out: (out.mkdir(), (out / "study.json").write_text('{"a": 1}')),
            "is not of a study",
        ),
        (
            lambda out: (out.mkdir(), (out / "study.json").write_text('{"schema": 99}')),
            "later version",
        ),
    ],
)
def test_a_foreign_folder_is_refused(traces, tmp_path, make, message):
    make(tmp_path / "out")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((FleetError, OutputError), match=message):
        fleet(traces, tmp_path / "out", run=HERE)
    assert sorted(tmp_path.rglob("*")) == before


def test_folders_without_traces_are_refused(tmp_path):
    for make, message in (
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "has no files"),
        (lambda path: (path / "a.txt").write_text("x"), "1 files, but none is a trace"),
    ):
        make(tmp_path / "traces")
        with pytest.raises(FleetError, match=message):
            fleet(tmp_path / "traces", tmp_path / "study", run=HERE)
    assert not (tmp_path / "study").exists()


def test_the_package_can_be_called(study, traces, tmp_path):
    out = copied(study, tmp_path)
    again = paceline.fleet(str(traces), out=str(out), run=HERE)
    assert again.jobs.num_rows == 3


def test_a_bug_costs_one_row(traces, tmp_path, monkeypatch):
    original = analysis._measured

    def measured(trace, *arguments):
        if trace.name == "trace-1.parquet":
            raise ZeroDivisionError("by zero")
        return original(trace, *arguments)

    monkeypatch.setattr(analysis, "_measured", measured)
    row = by_file(fleet(traces, tmp_path / "study", run=HERE).jobs)["trace-1.parquet"]
    assert (row["rule"], row["error"]) == ("internal", "ZeroDivisionError: by zero")


def test_names_that_are_no_text_and_links_that_lead_up_do_no_harm(tmp_path):
    folder = make_fleet(tmp_path / "traces", (0, 1))
    (folder / "up").symlink_to(folder)
    strange = os.fsdecode(os.fsencode(folder) + b"/trace-\xff.parquet")
    (folder / "trace-1.parquet").rename(strange)
    study = fleet(folder, tmp_path / "study", run=HERE)
    names = [Path(path).name for path in study.jobs["path"].to_pylist()]
    assert names == ["trace-0.parquet", "trace-\\udcff.parquet"]


def test_files_of_ranks_in_a_folder_are_one_trace(tmp_path):
    folder = make_fleet(tmp_path / "traces", (0,))
    (folder / "profiled").mkdir()
    ProfileWriter(make_trace(WRITTEN)).write(folder / "profiled")
    record_trace(job(1), folder / "recorded")
    (folder / "notes.log").write_text("no trace")
    study = fleet(folder, tmp_path / "study", run=HERE)
    names = [Path(path).name for path in study.jobs["path"].to_pylist()]
    assert names == ["profiled", "recorded", "trace-0.parquet"]
    assert study.jobs["status"].to_pylist() == ["analysed"] * 3
    assert study.jobs["slowdown"][1].as_py() == pytest.approx(
        analyze(from_trace(job(1))).slowdown, abs=1e-4
    )
    assert study.about["ignored_files"] == 1
