import argparse
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline
import requires
from paceline.cli import analyze, completion
from paceline.cli.main import build_parser, run
from paceline.errors import TraceError
from paceline.results.document import JobReport
from paceline.sources import load
from paceline.whatif import analyze as analyse

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synth") / "trace.parquet"
    size = ["--dp", "3", "--pp", "2", "--microbatches", "4", "--steps", "3"]
    assert run(["synth", *size, "--slow-worker", "2,1,1.5", "-o", str(path)]) == 0
    return path


def fails(argv: list[str], capsys: Captured, code: int = 2) -> str:
    """The only line that a failing command prints."""
    assert run(argv) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("paceline: ")
    assert err.count("\n") == 1
    return err


def test_the_screen(trace: Path, capsys: Captured) -> None:
    assert run(["analyze", str(trace)]) == 0
    out, err = capsys.readouterr()
    assert "dp 3 × pp 2" in out
    assert "Stragglers make steps" in out
    assert err == ""


def test_json_is_all_there_is_on_standard_output(trace: Path, capsys: Captured) -> None:
    assert run(["analyze", str(trace), "--json", "--steps", "1-2", "--no-diagnose"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == JobReport.of(analyse(load(trace, steps=[1, 2]))).to_mapping()
    assert err == ""


def test_steps_that_are_not_there_are_a_warning(trace: Path, capsys: Captured) -> None:
    assert run(["analyze", str(trace), "--json", "--steps", "2,7,9"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["steps"] == [2]
    assert any("2 of the steps asked for" in warning for warning in document["warnings"])


def test_a_range_asks_for_the_steps_within_it(trace: Path, capsys: Captured) -> None:
    assert run(["analyze", str(trace), "--json", "--steps", "2-9"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["steps"] == [2]
    assert not any("asked for" in warning for warning in document["warnings"])


def test_workers_of_every_step_on_demand(trace: Path, capsys: Captured) -> None:
    assert run(["analyze", str(trace), "--json", "--per-step-workers"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [len(table) for table in document["by_worker_by_step"].values()] == [2, 2, 2]


def test_out_is_filled_once(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "new" / "out"
    argv = ["analyze", str(trace), "--out", str(out)]
    assert run(argv) == 0
    assert f"wrote {out / 'result.json'}" in capsys.readouterr().err
    document = json.loads((out / "result.json").read_text())
    numbers = JobReport.of(analyse(load(trace))).to_mapping()
    assert {key: document[key] for key in numbers} == numbers
    assert {"findings", "remedies", "waterfall"} <= set(document)
    assert (out / "by_worker.csv").read_text().startswith("dp,pp,slowdown\n2,1,1.")
    ideal = json.loads(gzip.decompress((out / "ideal.json.gz").read_bytes()))
    assert ideal["otherData"]["scenario"] == "ideal"
    (out / "result.json").write_text("mine")
    assert "exists already (and 3 more)" in fails(argv, capsys)
    assert (out / "result.json").read_text() == "mine"
    assert run([*argv, "--force"]) == 0
    assert json.loads((out / "result.json").read_text()) == document


@pytest.mark.parametrize("scenario", ["traced", "replayed", "ideal", "without:worker=2,1"])
def test_timelines(trace: Path, tmp_path: Path, capsys: Captured, scenario: str) -> None:
    path = tmp_path / "t.json.gz"
    argv = ["timeline", str(trace), "--scenario", scenario, "-o", str(path), "--replicas", "0,2"]
    assert run(argv) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"wrote {path}: ")
    assert "note: step 0 only, the first of 3" in err
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert document["otherData"]["replicas"] == [0, 2]
    assert "exists already" in fails(argv, capsys)
    assert run([*argv, "--force", "--steps", "1-2"]) == 0
    assert capsys.readouterr().err == ""


def test_timelines_are_plain_json_unless_named_gz(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert run(["timeline", str(trace), "--scenario", "ideal", "-o", str(path)]) == 0
    assert json.loads(path.read_text())["traceEvents"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_knows_every_command(shell: str, capsys: Captured) -> None:
    assert run(["completion", shell]) == 0
    out = capsys.readouterr().out
    for name in ("analyze", "timeline", "synth", "completion", "ignore-kinds"):
        assert name in out


def test_bash_accepts_its_completion(capsys: Captured) -> None:
    run(["completion", "bash"])
    script = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=300)


def test_the_installation_of_bashs_completion_works_in_an_empty_home(tmp_path: Path) -> None:
    """As the help and the tutorial write it."""
    stub = 'paceline() { echo "# $*"; }\n'
    tutorial = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")
    begin = tutorial.index("mkdir -p ~/.local/share/bash")
    lessons = tutorial[begin : tutorial.index("```", begin)].replace("\n$ ", "\n")
    help_text = completion.EPILOG.partition("bash   ")[2].partition("  zsh")[0]
    for number, text in enumerate((lessons, help_text)):
        home = tmp_path / str(number)
        home.mkdir()
        script = stub + "\n".join(line.strip() for line in text.splitlines())
        subprocess.run(
            ["bash", "-ec", script], env={**os.environ, "HOME": str(home)}, check=True, timeout=300
        )
        file = home / ".local" / "share" / "bash-completion" / "completions" / "paceline"
        assert file.read_text(encoding="utf-8") == "# completion bash\n"


def write_table(path: Path, **columns: pa.Array) -> None:
    pq.write_table(pa.table(columns), path)


def broken(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path, Path], None]:
    """Writes a trace with something changed, without the stored job."""

    def write(source: Path, path: Path) -> None:
        table = pq.read_table(source).replace_schema_metadata(None)
        pq.write_table(change(table), path)

    return write


def set_column(name: str, change: Callable[[list[object]], list[object]]) -> object:
    def apply(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        values = table.column(name).to_pylist()
        return table.set_column(place, name, pa.array(change(values)))

    return apply


BAD_FILES = {
    "text": (lambda _, path: path.write_text("hello"), "is not a trace file"),
    "log of Megatron": (
        lambda _, path: path.write_text(Path("examples/train.log").read_text()),
        "is a log, which holds no operations of a trace; for its step times: paceline detect /",
    ),
    "log of a loop": (
        lambda _, path: path.write_text("step 1: loss 2.5\nstep 2: loss 2.4, 0.1 s\n"),
        "is a log, which holds no operations of a trace; for its step times: paceline detect /",
    ),
    "text on a step": (
        lambda _, path: path.write_text("see step 7 of 1.5\n"),
        "is not a trace file",
    ),
    "empty file": (lambda _, path: path.write_bytes(b""), "is not a"),
    "no rows": (broken(lambda table: table.slice(0, 0)), "has no rows"),
    "columns": (
        broken(lambda table: table.drop_columns(["seq_id", "mc"])),
        "lacks the columns seq_id, mc",
    ),
    "kind": (
        broken(set_column("optype", lambda v: ["warp-drive", *v[1:]])),
        "unknown operation kinds: warp-drive; drop them with --ignore-kinds warp-drive",
    ),
    "nan": (
        broken(set_column("duration", lambda v: [float("nan"), *v[1:]])),
        "no finite duration",
    ),
    "negative": (
        broken(set_column("duration", lambda v: [-1.0, *v[1:]])),
        "negative duration",
    ),
    "no whole step": (
        broken(lambda table: table.filter(pa.compute.not_equal(table["optype"], "forward-send"))),
        "missing",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_traces(name: str, trace: Path, tmp_path: Path, capsys: Captured) -> None:
    write, message = BAD_FILES[name]
    path = tmp_path / "bad.pq"
    if name == "text" or "log" in name or name == "text on a step":
        path = tmp_path / "bad.txt"
    write(trace, path)
    assert message in fails(["analyze", str(path)], capsys)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["analyze", "absent.parquet"], "error: absent.parquet does not exist"),
        (["analyze", "."], ". is a folder"),
        (["analyze", "TRACE", "--job", "absent.yaml"], "absent.yaml cannot be read"),
        (["analyze", "TRACE", "--job", "TRACE"], "it is not a text file"),
        (["analyze", "TRACE", "--steps", "70-80"], "none of the 11 steps asked for"),
        (["analyze", "TRACE", "--out", "TRACE"], "is a file; --out takes a folder"),
        (["timeline", "TRACE", "--scenario", "best", "-o", "x"], "'best' is no scenario"),
        (["timeline", "TRACE", "--scenario", "best", "-o", "x"], "also be traced or replayed"),
        (["timeline", "TRACE", "--scenario", "only:stage=2", "-o", "x"], "no stage 2"),
        (["timeline", "TRACE", "--scenario", "only:kind=x", "-o", "x"], "no kind 'x'"),
        (["timeline", "TRACE", "--scenario", "ideal", "-o", "no/x"], "no does not exist"),
        (["timeline", "TRACE", "--scenario", "ideal", "-o", "."], "is a folder"),
        (
            ["timeline", "TRACE", "--scenario", "ideal", "-o", "x", "--replicas", "3"],
            "no replica 3",
        ),
        (["timeline", "TRACE", "--scenario", "ideal", "-o", "x", "--steps", "9"], "step 9 is not"),
    ],
)
def test_errors_are_one_line_and_exit_2(
    argv: list[str],
    message: str,
    trace: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fails([str(trace) if word == "TRACE" else word for word in argv], capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_contradicts_the_trace(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("dp_size: 5\npp_size: 2\n")
    error = fails(["analyze", str(trace), "--job", str(job)], capsys)
    assert "contradicts the job: dp_size is 5, the trace has dp ranks 0 to 2" in error


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["analyze"], "the following arguments are required: TRACE"),
        (["analyze", "t", "--steps", "5-1"], "argument --steps: the range 5-1 runs backwards"),
        (["analyze", "t", "--steps", "x"], "argument --steps: 'x' is neither a number nor a range"),
        (["analyze", "t", "--ignore-kinds", "a,,b"], "argument --ignore-kinds: a kind is missing"),
        (["analyze", "t", "--fast"], "paceline analyze: error: unrecognized arguments: --fast"),
        (["detect", "t", "--patern", "x"], "--patern x (did you mean --pattern? paceline detect"),
        (["detect", "t", "--patern=x"], "--patern=x (did you mean --pattern? paceline detect"),
        (["nccl", "pause", "f", "--zzz"], "usage: paceline nccl pause"),
        (["detect", "a", "b"], "paceline detect: error: unrecognized arguments: b\n"),
        (["--fly", "detect"], "usage: paceline [-h] [--version] [--debug] COMMAND"),
        (["timeline", "t"], "the following arguments are required: --scenario, -o/--output"),
        (["completion", "fish"], "must be bash, zsh or tcsh, not 'fish'"),
        (["fly"], "there is no such command: 'fly' (paceline --help lists them)"),
        (["anlyze"], "there is no such command: 'anlyze' (did you mean analyze? paceline --help"),
    ],
)
def test_usage_errors_exit_2(argv: list[str], message: str, capsys: Captured) -> None:
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def choices(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.Action]]:
    """(Words before the value, the action) of all arguments with choices."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from choices(child, (*words, name))
        elif action.choices:
            yield (*words, *action.option_strings[-1:]), action


def test_all_choices_are_named_in_a_line_where_the_value_is_none_of_them(
    capsys: Captured,
) -> None:
    found = list(choices(build_parser()))
    assert len(found) > 30
    for words, action in found:
        assert run([*words, "no-such-choice"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), words
        assert "'no-such-choice'" in err
        assert [name for name in map(str, action.choices or ()) if name not in err] == []


@pytest.mark.parametrize(
    "argv", [["plan", "--gpus"], ["plan", "--top", "x"], ["plan", "--recompute", "some"]]
)
def test_a_bad_value_is_told_in_a_line(argv: list[str], capsys: Captured) -> None:
    assert run(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"paceline plan: error: argument {argv[1]}: ")
    assert err.count("\n") == 1


def test_no_command_shows_the_help_and_exits_2(capsys: Captured) -> None:
    assert run([]) == 2
    assert "commands:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["--version"], ["analyze", "--version"], ["--debug", "--version"]]
)
def test_version_before_and_after_the_command(argv: list[str], capsys: Captured) -> None:
    assert run(argv) == 0
    assert capsys.readouterr().out == f"paceline {paceline.__version__}\n"


@pytest.mark.parametrize(
    "argv", [["--debug", "analyze", "absent"], ["analyze", "absent", "--debug"]]
)
def test_debug_before_and_after_the_command(argv: list[str], capsys: Captured) -> None:
    assert run(argv) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("paceline: error: absent does not exist\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            RuntimeError("[bold]odd[/]\nthing"),
            1,
            "paceline: unexpected error: RuntimeError: [bold]odd[/] thing (run with --debug for "
            "the traceback; please report it)\n",
        ),
        (MemoryError(), 1, "paceline: error: out of memory; take fewer steps"),
        (TraceError("a very " + "long " * 50 + "line"), 2, "paceline: error: a very long long"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_else_may_happen(
    error: BaseException,
    code: int,
    message: str,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(analyze, "run", fail)
    assert run(["analyze", "t"]) == code
    err = capsys.readouterr().err
    assert err.startswith(message)
    assert err.count("\n") == (0 if message == "" else 1)


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_error(trace: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "paceline", "analyze", str(trace), *arguments]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, check=False, timeout=300
        )
    assert done.returncode == 141
    assert done.stderr == b""


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_full_disk_behind_standard_output(trace: Path, arguments: list[str]) -> None:
    full = requires.full_device()
    command = [sys.executable, "-m", "paceline", "analyze", str(trace), *arguments]
    with full.open("wb") as file:
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.PIPE, check=False, timeout=300
        )
    assert done.returncode == 2
    assert done.stderr == b"paceline: error: No space left on device\n"


def test_a_terminal_without_unicode_gets_question_marks(trace: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "analyze", str(trace)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0
    assert b"dp 3 ? pp 2" in done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize("name", ["AR", "SE", "ST"])
def test_real_jobs(name: str, capsys: Captured, tmp_path: Path) -> None:
    folder = requires.data("whatif")
    inputs = [str(folder / f"trace-{name}.parquet"), "--job", str(folder / f"meta-{name}.yaml")]
    assert run(["analyze", *inputs, "--out", str(tmp_path)]) == 0
    assert f"{name}: dp " in capsys.readouterr().out
    published = json.loads((folder / f"result-{name}.json").read_text())
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["launch_slowdown"] == pytest.approx(published["launch_slowdown"], rel=1e-4)
