"""The commands in hostile places: no standard output, no width, names with escape codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import requires
from paceline.cli.main import run

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synth") / "trace.parquet"
    size = ["--dp", "2", "--pp", "2", "--microbatches", "3", "--steps", "2"]
    assert run(["synth", *size, "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(trace: Path, tmp_path: Path, closed: str) -> None:
    """What is written goes nowhere, not into the file that takes the stream's number."""
    out = tmp_path / "out.json"
    command = f'exec "$0" -m paceline timeline "$1" --scenario ideal -o "$2" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(trace), str(out)],
        stderr=subprocess.PIPE,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert out.read_text().startswith("{")
    assert "wrote" not in out.read_text()


def test_no_standard_output_for_the_screen(trace: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -m paceline analyze "$1" >&-', sys.executable, str(trace)],
        stderr=subprocess.PIPE,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("columns", ["0", "1", "-5", "x"])
def test_odd_widths_print_the_screen(
    trace: Path, columns: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run(["analyze", str(trace)]) == 0
    out, err = capsys.readouterr()
    flowing = " ".join(out.split())
    assert "dp 2 × pp 2 on 4 GPUs" in flowing
    assert "share of T - T_ideal" in flowing
    assert err == ""


@pytest.mark.parametrize("command", [["analyze"], ["diagnose"], ["analyze", "--json"]])
def test_control_characters_in_a_name_do_not_reach_the_terminal(
    trace: Path, tmp_path: Path, capsys: Captured, command: list[str]
) -> None:
    """Clear the screen, set the title, a C1 code, a backspace, a right-to-left override."""
    name = r"a\e[2Jb\e]0;owned\ac\x9b31md\be\u202ef"
    job = tmp_path / "job.yaml"
    job.write_text(f'dp_size: 2\npp_size: 2\nname: "{name}"\n')
    assert run([*command, str(trace), "--job", str(job)]) == 0
    out, err = capsys.readouterr()
    assert not set(out + err) & set("\x1b\x07\x08\x9b\u202e")
    if command == ["analyze"]:
        assert "a[2Jb]0;ownedc31mdef: dp 2" in out


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("way", ["same", "link", "relative"])
def test_a_timeline_does_not_replace_its_trace(
    trace: Path,
    tmp_path: Path,
    way: str,
    force: list[str],
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = tmp_path / "mine.parquet"
    mine.write_bytes(trace.read_bytes())
    monkeypatch.chdir(tmp_path)
    output = {"same": mine, "link": tmp_path / "link", "relative": Path("mine.parquet")}[way]
    if way == "link":
        output.symlink_to(mine)
    argv = ["timeline", str(mine), "--scenario", "ideal", "-o", str(output), *force]
    assert run(argv) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert mine.read_bytes() == trace.read_bytes()


@pytest.mark.parametrize("name", ["", " ", "-"])
@pytest.mark.parametrize(
    "command",
    [
        ["analyze", "{trace}", "--out", "{name}"],
        ["analyze", "{trace}", "--job", "{name}"],
        ["analyze", "{name}"],
        ["timeline", "{trace}", "--scenario", "ideal", "-o", "{name}"],
        ["synth", "-o", "{name}"],
    ],
)
def test_a_name_that_is_none_is_refused(
    trace: Path,
    tmp_path: Path,
    command: list[str],
    name: str,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unset shell variable must not fill the current folder."""
    monkeypatch.chdir(tmp_path)
    assert run([part.format(trace=trace, name=name) for part in command]) == 2
    message = "give a name" if name == "-" else "the name is empty"
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_force_does_not_write_over_the_trace(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    named_like_a_result = tmp_path / "result.json"
    named_like_a_result.write_bytes(trace.read_bytes())
    assert run(["analyze", str(named_like_a_result), "--out", str(tmp_path), "--force"]) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert named_like_a_result.read_bytes() == trace.read_bytes()


def test_ctrl_c_while_the_commands_are_loaded_is_quiet() -> None:
    code = """
import sys
class CtrlC:
    def find_spec(self, name, *_):
        if name == "paceline.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
from paceline.cli.start import run
sys.exit(run())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_help_that_cannot_be_printed_is_an_error() -> None:
    full = requires.full_device()
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m paceline --help >{full}', sys.executable],
        stderr=subprocess.PIPE,
        # argparse passes over errors where every line is written at once
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        check=False,
        timeout=300,
    )
    assert done.returncode == 2
    assert done.stderr == b"paceline: error: No space left on device\n"
