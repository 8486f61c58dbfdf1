"""Every real profile under every command that reads files: an answer, or one line that says why.

The files are test data of facebookresearch/HolisticTraceAnalysis (MIT, commit f4d0062) and of
AMD-AGI/TraceLens (MIT, commit 171dd74). Most are of one rank of several.
"""

from pathlib import Path

import pytest

import requires
from paceline.cli.main import run

REAL = requires.data("real")
FILES = sorted(
    str(path.relative_to(REAL))
    for folder in ("hta", "tracelens")
    for path in (REAL / folder).rglob("*.gz")
)
#: The one that a trace can be made of: five steps of a job of one GPU.
WHOLE = "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
#: Profiles of the host whose collectives ran on a device that they do not time.
UNSEEN = {
    "hta/mixed_files/rank_non_gpu.json.gz": "6 collectives that the host launched on nccl",
    "hta/rank_non_gpu/rank_non_gpu.json.gz": "6 collectives that the host launched on nccl",
    "hta/mtia_trace_single_rank/mtia_rank_0.json.gz": "98 collectives .* launched on hccl",
}
#: What is no profile.
OTHERS = ("hta/memory_analysis/memory_timeline.raw.gz", "et.json.gz")

Captured = pytest.CaptureFixture[str]


def refused(capsys: Captured, *arguments: str) -> str:
    """The one line with which a command refuses its input."""
    assert run([*arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("paceline: error: ")
    return line


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_trace_says_so(name: str, tmp_path: Path, capsys: Captured) -> None:
    saved = str(tmp_path / "trace.parquet")
    if name == WHOLE:
        assert run(["import", str(REAL / name), "-o", saved]) == 0
        return
    line = refused(capsys, "import", str(REAL / name), "-o", saved)
    assert not Path(saved).exists()
    if not name.endswith(OTHERS):
        assert "paceline ranks" in line or "ProfilerStep" in line or "main one" in line


@pytest.mark.parametrize("name", UNSEEN)
def test_host_times_of_a_device_s_job_are_no_trace(name: str, capsys: Captured) -> None:
    line = refused(capsys, "analyze", str(REAL / name))
    assert UNSEEN[name].split(" .* ")[0] in line
    assert UNSEEN[name].split(" .* ")[-1] in line


@pytest.mark.parametrize("command", [("times",), ("detect", "--collectives")])
@pytest.mark.parametrize("name", FILES)
def test_what_has_no_steps_and_calls(name: str, command: tuple[str, ...], capsys: Captured) -> None:
    line = refused(capsys, *command, str(REAL / name))
    assert "Parquet" not in line
    if not name.endswith(OTHERS):
        assert "it is a PyTorch profile: see paceline import and paceline ranks" in line
