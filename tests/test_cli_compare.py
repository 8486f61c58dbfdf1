"""``paceline compare``: exit codes, what it takes, what it writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import paceline
import requires
from paceline.cli.main import run
from paceline.synth import SlowWorker, SynthSpec, synthesize
from recordings import record_trace

Captured = pytest.CaptureFixture[str]

SLOW = SynthSpec(dp=4, pp=2, microbatches=4, steps=8, slow_workers=(SlowWorker(3, 1, 1.5),))
HEALTHY = SynthSpec(dp=4, pp=2, microbatches=4, steps=8, seed=1)
NARROW = SynthSpec(dp=2, pp=2, microbatches=8, steps=8, seed=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for name, spec in (("slow", SLOW), ("healthy", HEALTHY), ("narrow", NARROW)):
        paceline.write(synthesize(spec), folder / f"{name}.parquet")
    ranks = synthesize(SLOW).rank.ravel().tolist()
    lines = [f"{rank},node{rank // 2},{rank % 2}" for rank in ranks]
    (folder / "hosts.csv").write_text("\n".join(["rank,host,gpu", *lines]) + "\n")
    return folder


@pytest.fixture
def compare(folder: Path, capsys: Captured):
    """Runs the command on names of files in the folder; returns (exit code, out, err)."""

    def command(before: str, after: str, *more: str) -> tuple[int, str, str]:
        files = [str(folder / f"{name}.parquet") for name in (before, after)]
        code = run(["compare", *files, *more])
        return (code, *capsys.readouterr())

    return command


def test_the_fix_worked(compare, folder) -> None:
    code, out, err = compare("slow", "healthy", "--hosts", str(folder / "hosts.csv"))
    assert (code, err) == (0, "")
    assert out.startswith("The step became ")
    assert "shorter (90%: " in out
    assert "dp 3, stage 1 (node3, GPU 1)" in out
    assert "node3 (2 workers)" in out
    code, out, _ = compare("healthy", "slow")
    assert " longer (90%: " in out


def test_nothing_changed(compare) -> None:
    code, out, _ = compare("slow", "slow")
    assert code == 0
    assert out.startswith("No difference: both traces contain identical steps.")
    code, out, _ = compare("slow", "slow", "--steps-before", "0-3", "--steps-after", "4-7")
    assert out.startswith("No difference that these steps can show")


def test_unlike_jobs_are_refused_with_a_line_for_each_difference(compare) -> None:
    code, out, err = compare("slow", "narrow")
    assert (code, out) == (2, "")
    assert err.splitlines()[:3] == [
        "paceline: error: these jobs differ, so their steps cannot be compared:",
        "  dp: 4 before, 2 after",
        "  microbatches: 4 per replica before, 8 per replica after",
    ]
    assert "--anyway" in err
    code, out, _ = compare("slow", "narrow", "--anyway")
    assert code == 0
    assert out.startswith("A microbatch takes ")
    assert "8 GPUs before, 4 after" in out


def test_what_is_known_beside_the_traces_has_to_agree(compare) -> None:
    layers = ["--layers-before", "9,9", "--layers-after", "9,8"]
    tokens = ["--tokens-before", "1e6", "--tokens-after", "2e6"]
    for more, said in ((layers, "layers: 18 before, 17 after"), (tokens, "tokens: 1,000,000 per")):
        code, _, err = compare("slow", "healthy", *more)
        assert code == 2
        assert said in err
    code, out, _ = compare("slow", "healthy", *tokens, "--anyway", "--json")
    assert code == 0
    assert json.loads(out)["unit"] == "token"


def test_sequence_lengths_give_the_tokens(tmp_path, capsys: Captured) -> None:
    names = [str(tmp_path / name) for name in ("a.parquet", "b.parquet", "a.lengths", "b.lengths")]
    size = ["--dp", "2", "--pp", "2", "--microbatches", "4", "--steps", "5"]
    for i, tokens in ((0, "8192"), (1, "16384")):
        more = ["--seqlens-out", names[i + 2], "--max-tokens", tokens]
        assert run(["synth", *size, *more, "-o", names[i]]) == 0
    lengths = ["--seqlens-before", names[2], "--seqlens-after", names[3]]
    assert run(["compare", *names[:2], *lengths]) == 2
    assert "tokens: " in capsys.readouterr().err
    assert run(["compare", *names[:2], *lengths, "--anyway", "--json"]) == 0
    out = capsys.readouterr().out
    document = json.loads(out)
    assert document["unit"] == "token"
    assert document["time"]["before_s"] < 1e-3


def test_steps_of_both_and_of_each(compare) -> None:
    document = json.loads(compare("slow", "healthy", "--steps", "2-5", "--json")[1])
    assert document["before"]["steps"] == document["after"]["steps"] == [2, 3, 4, 5]
    more = ["--steps", "2-5", "--steps-after", "0,6-7"]
    document = json.loads(compare("slow", "healthy", *more, "--json")[1])
    assert document["before"]["steps"] == [2, 3, 4, 5]
    assert document["after"]["steps"] == [0, 6, 7]
    assert document["verdict"] == "unknown"
    code, _, err = compare("slow", "healthy", "--steps", "100-200")
    assert code == 2
    assert "none of the 101 steps" in err


def test_json_has_the_warnings_of_both_sides(compare) -> None:
    document = json.loads(compare("slow", "healthy", "--format", "json")[1])
    for side in ("before", "after"):
        assert document["warnings"][side] == document[side]["warnings"]
        assert document["warnings"][side]


def test_the_page_is_written_once(compare, folder, tmp_path) -> None:
    page = tmp_path / "comparison.html"
    for name in ("-o", "--output", "--out"):
        page.unlink(missing_ok=True)
        code, out, err = compare("slow", "healthy", name, str(page))
        assert (code, err) == (0, f"wrote {page}\n")
        assert page.read_text().startswith("<!DOCTYPE html>")
    assert out.startswith("The step became")
    written = page.read_bytes()
    code, out, err = compare("slow", "healthy", "-o", str(page))
    assert (code, out) == (2, "")
    assert "exists already" in err
    assert page.read_bytes() == written
    assert compare("healthy", "slow", "-o", str(page), "--force")[0] == 0
    assert page.read_bytes() != written
    code, out, _ = compare("slow", "healthy", "-o", str(page), "--force", "--json")
    assert json.loads(out)["verdict"] == "shorter"


def test_a_name_without_html_is_a_folder(compare, tmp_path) -> None:
    target = tmp_path / "made" / "out"
    code, out, err = compare("slow", "healthy", "--out", str(target))
    assert (code, err) == (0, f"wrote {target}\n")
    assert {path.name for path in target.iterdir()} == {"report.html", "result.json"}
    assert (target / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads((target / "result.json").read_text())["text"] in " ".join(out.split())
    code, _, err = compare("slow", "healthy", "--out", str(target))
    assert code == 2
    assert "exists already (and 1 more)" in err
    assert compare("slow", "healthy", "--out", str(target), "--force")[0] == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{folder}/folder.html", "is a folder"),
        ("{folder}/absent/page.html", "does not exist"),
        ("{folder}/note", "is a file; --out takes a folder, or the name of a page (.html)"),
        ("{folder}/slow.parquet", "is an input of this command"),
        ("{folder}/hosts.csv", "is an input of this command"),
        ("", "the name is empty"),
        ("-", "give a name"),
    ],
)
def test_places_where_no_page_can_be_are_said_before_the_work(
    compare, folder, monkeypatch, name, said
) -> None:
    monkeypatch.setattr("paceline.cli.compare._compare", lambda _: pytest.fail("too late"))
    (folder / "folder.html").mkdir(exist_ok=True)
    (folder / "note").touch()
    hosts = str(folder / "hosts.csv")
    output = name.format(folder=folder)
    code, _, err = compare("slow", "healthy", "--hosts", hosts, "--force", f"--out={output}")
    assert code == 2
    assert said in err


@requires.not_as_root
def test_a_folder_that_may_not_be_written_to_is_said(compare, tmp_path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    code, _, err = compare("slow", "healthy", "-o", str(closed / "page.html"))
    assert code == 2
    assert "may not be written to" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tokens-before", "-1"], "positive number"),
        (["--tokens-after", "nan"], "positive number"),
        (["--layers-before", "9,x"], "whole numbers"),
        (["--steps-after", "9-1"], "9-1"),
        (["--hosts", "/nowhere.csv"], "cannot be read"),
        (["--seqlens-before", "/nowhere.parquet"], "does not exist"),
        (["--job-after", "/nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_arguments_that_are_wrong_are_said(compare, arguments, said) -> None:
    code, out, err = compare("slow", "healthy", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_files_that_are_no_traces_are_said(folder, tmp_path, capsys: Captured) -> None:
    empty = tmp_path / "empty.parquet"
    empty.touch()
    good = str(folder / "slow.parquet")
    for pair in ([good, str(empty)], [str(empty), good], [good, str(tmp_path / "absent")]):
        assert run(["compare", *pair]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("paceline: error: ")


def test_a_folder_of_recordings_is_a_trace(folder, tmp_path, capsys: Captured) -> None:
    record_trace(synthesize(SynthSpec(dp=2, pp=2, microbatches=3, steps=4)), tmp_path / "run")
    assert run(["compare", str(tmp_path / "run"), str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "no-difference"


def test_a_job_file_for_one_side_or_both(folder, tmp_path, capsys: Captured) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("dp_size: 4\npp_size: 2\ntp_size: 8\n")
    files = [str(folder / "slow.parquet"), str(folder / "healthy.parquet")]
    assert run(["compare", *files, "--job", str(job)]) == 0
    assert run(["compare", *files, "--job-after", str(job)]) == 2
    assert "tp: 1 before, 8 after" in capsys.readouterr().err


def test_interrupted_is_quiet(folder) -> None:
    code = """
import os, signal, sys
from paceline.cli.main import run
import paceline.comparison.analysis as module
module.cause_means = lambda *_: os.kill(os.getpid(), signal.SIGINT)
sys.exit(run(sys.argv[1:]))
"""
    files = [str(folder / "slow.parquet"), str(folder / "healthy.parquet")]
    done = subprocess.run(
        [sys.executable, "-c", code, "compare", *files],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
