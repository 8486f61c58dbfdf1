"""``paceline import``: formats are recognised, the report is printed, the trace can be analysed."""

import json
import pickle
from pathlib import Path

import pytest

from import_files import PROFILED, ProfileWriter, dump, load, make_trace, only, same, timelines
from paceline.cli import import_
from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.sources import load as load_trace
from paceline.sources.importers import IMPORTERS, find_files
from paceline.trace import OpKind, Trace
from recordings import record_trace

Captured = pytest.CaptureFixture[str]
WRITTEN = PROFILED | {OpKind.OPTIMIZER_CLIP_MAIN_GRAD}


@pytest.fixture(scope="module")
def truth() -> Trace:
    return make_trace(WRITTEN)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "files"
    path.mkdir()
    return path


def names(paths: list[Path]) -> list[str]:
    return [str(path) for path in paths]


def test_the_formats_are_those_of_the_importers() -> None:
    assert tuple(importer.name for importer in IMPORTERS) == import_.FORMATS


def test_profiles_become_a_trace_that_can_be_analysed(
    folder: Path, truth: Trace, capsys: Captured
) -> None:
    out = folder.parent / "trace.parquet"
    paths = ProfileWriter(truth).write(folder)
    assert run(["import", *names(paths), "-o", str(out)]) == 0
    told = capsys.readouterr().out
    assert f"{out}: from 4 kineto files" in told
    assert "3 steps, dp 2 × pp 2" in told
    assert "0 not placed, confidence 0.80" in told
    assert "note: steps are the ProfilerStep ranges" in told
    same(load_trace(out), only(truth, PROFILED))
    assert run(["analyze", str(out)]) == 0
    assert "dp 2 × pp 2" in capsys.readouterr().out


def test_a_folder_of_timelines_as_json(folder: Path, truth: Trace, capsys: Captured) -> None:
    out = folder.parent / "trace.parquet"
    timelines(truth, folder)
    (folder / "README.txt").write_text("what this is")
    (folder / ".hidden.json").write_text("[")
    assert run(["import", str(folder), "-o", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "ndtimeline"
    assert (report["files"], report["files_left_out"]) == (2, 1)
    assert report["matched"] == len(truth)
    assert report["unplaced"] == {}
    assert report["confidence"] == 0.95
    assert report["steps"] == [0, 1, 2]
    assert report["job"]["dp_size"] == 2
    same(load_trace(out), truth)


def test_what_is_not_placed_is_listed(folder: Path, truth: Trace, capsys: Captured) -> None:
    paths = timelines(truth, folder)
    events = load(paths[0])
    own = {"name": "tokenize", "ph": "X", "pid": 0, "ts": 1.0, "dur": 1.0}
    dump([*events, own | {"args": {"rank": 0, "step": 0, "pp": 0}}], paths[0])
    assert run(["import", *names(paths), "-o", str(folder / "t.parquet")]) == 0
    told = capsys.readouterr().out
    assert "1 not placed" in told
    assert "    1 with the metric 'tokenize', which is not known" in told


def test_the_job_and_steps(folder: Path, capsys: Captured) -> None:
    truth = make_trace(pp=2, vpp=2)
    paths = timelines(truth, folder)
    out, job = folder / "t.parquet", folder / "job.yaml"
    job.write_text("dp_size: 2\npp_size: 2\nvpp_size: 2\n")
    argv = ["import", *names(paths), "--job", str(job), "--steps", "1-2", "-o", str(out)]
    assert run(argv) == 0
    assert "dp 2 × pp 2, 2 chunks each" in capsys.readouterr().out
    same(load_trace(out), truth.select_steps([1, 2]))
    assert run([*argv[:-4], "--steps", "7", "-o", str(folder / "no.parquet")]) == 2
    assert "none of the steps asked for; it has 0 to 2" in capsys.readouterr().err


def test_an_existing_file_is_not_overwritten(folder: Path, truth: Trace, capsys: Captured) -> None:
    paths = timelines(truth, folder)
    out = folder / "t.parquet"
    out.write_text("mine")
    assert run(["import", *names(paths), "-o", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert run(["import", *names(paths), "-o", str(paths[0]), "--force"]) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert run(["import", *names(paths), "-o", str(out), "--force"]) == 0
    same(load_trace(out), truth)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "is not recording or otlp or ndtimeline or kineto"),
        ("[]", "is not recording or otlp"),
        ('[{"name": "x"}]', "is not recording or otlp"),
        (None, "does not exist"),
    ],
)
def test_files_of_no_known_format(
    tmp_path: Path, content: str | None, message: str, capsys: Captured
) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    assert run(["import", str(path), "-o", str(tmp_path / "t.parquet")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "t.parquet").exists()


def test_logs_of_collectives_are_sent_to_detect(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "nccl_trace_rank_0.json"
    path.write_text(json.dumps({"version": "2.10", "entries": [{"collective_seq_id": 1}]}))
    assert run(["import", str(path), "-o", str(tmp_path / "t.parquet")]) == 2
    said = capsys.readouterr().err
    assert "a dump of the flight recorder, which has no computes" in said
    assert "paceline detect --collectives" in said


def test_a_folder_of_logs_of_collectives_too(tmp_path: Path, capsys: Captured) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    entry = {"version": "2.10", "entries": [{"collective_seq_id": 1}]}
    (dumps / "a.txt").write_text("what this is")
    (dumps / "nccl_trace_rank_0").write_bytes(pickle.dumps(entry))
    assert run(["import", str(dumps), "-o", str(tmp_path / "t.parquet")]) == 2
    assert f"pass {dumps} to paceline detect --collectives" in capsys.readouterr().err
    assert run(["import", str(dumps), "--format", "kineto", "-o", str(tmp_path / "t")]) == 2
    assert "no file in it is kineto" in capsys.readouterr().err


def test_the_folder_of_a_recorded_run(tmp_path: Path, capsys: Captured) -> None:
    record_trace(make_trace(), tmp_path / "run")
    assert run(["import", str(tmp_path / "run"), "-o", str(tmp_path / "t.parquet")]) == 0
    assert "from 1 recording folder" in capsys.readouterr().out


def test_the_format_can_be_given(folder: Path, truth: Trace, capsys: Captured) -> None:
    path = folder / "a.json"
    path.write_text('[{"name": "x", "ph": "X", "ts": 1, "dur": 1}]')
    out = ["-o", str(folder / "t.parquet")]
    assert run(["import", str(path), "--format", "ndtimeline", *out]) == 2
    assert "has no NDTimeline metric" in capsys.readouterr().err
    assert run(["import", str(path), "--format", "kineto", *out]) == 2
    assert "has no distributedInfo with a rank" in capsys.readouterr().err


def test_formats_do_not_mix(folder: Path, truth: Trace) -> None:
    paths = [*timelines(truth, folder), ProfileWriter(truth).write(folder)[0]]
    with pytest.raises(TraceError, match=r"several formats \(.* is ndtimeline, .* is kineto\)"):
        find_files(paths)
    importer, found, left_out = find_files([folder], "kineto")
    assert importer.name == "kineto"
    assert len(found) == 4
    assert left_out == 2


def test_a_folder_without_any(folder: Path) -> None:
    (folder / "a.txt").write_text("x")
    with pytest.raises(TraceError, match="is a folder without a trace"):
        find_files([folder])


def test_damage_is_an_error_of_one_line(folder: Path, truth: Trace, capsys: Captured) -> None:
    paths = ProfileWriter(truth).write(folder)
    paths[1].write_bytes(paths[1].read_bytes()[:-20])
    assert run(["import", *names(paths), "-o", str(folder / "t.parquet")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{paths[1].name} is cut off: its gzip stream has no end" in said


def test_force_does_not_write_over_a_recording(folder: Path, capsys: Captured) -> None:
    record_trace(make_trace(PROFILED), folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    (blocks, *_) = sorted(folder.glob("*.blocks"))
    assert run(["import", str(folder), "-o", str(blocks), "--force"]) == 2
    assert f"{blocks} is an input of this command" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
