"""The tutorial and the how-tos: every ``sh`` block runs as it is written."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ports
import requires
from doc_pages import DOCS, lessons
from installed import PACKAGES

own_port = ports.own_port

LESSONS = lessons()
#: A line before the output of each block, with the block's number.
MARK = "=== block"


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> Path:
    """A folder with ``paceline`` and ``torchrun`` of this very interpreter."""
    folder = tmp_path_factory.mktemp("bin")
    for name, module in (("paceline", "paceline"), ("torchrun", "torch.distributed.run")):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        path.chmod(0o755)
    return folder


def test_the_text_before_a_file_says_its_name():
    """The comment that names it does not show on a page."""
    silent = []
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^<!-- file: (\S+) -->$", text, re.M):
            paragraph = text[: match.start()].rstrip().rpartition("\n\n")[2]
            if f"`{match[1]}`" not in paragraph:
                silent.append(f"{path.relative_to(DOCS)}: {match[1]}")
    assert silent == []


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_as_it_is_written(name, tmp_path, commands, own_port):
    script = ["set -euo pipefail"]
    for k, block in enumerate(LESSONS[name]):
        if "file" in block.notes:
            (tmp_path / block.notes["file"]).write_text(block.text, encoding="utf-8")
        if block.kind == "sh":
            requires.installed(*block.needs)
            if "port" in block.notes:
                own_port(int(block.notes["port"]))
            script += [f"echo; echo '{MARK} {k}'", block.text]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PACELINE_")},
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": PACKAGES,
    }
    status, out = run("\n".join([*script, "wait"]), tmp_path, environment)
    assert status == 0, out[-5000:]
    for k, block in enumerate(LESSONS[name]):
        said = " ".join(out.partition(f"{MARK} {k}\n")[2].partition(MARK)[0].split())
        assert [phrase for phrase in block.shows if phrase not in said] == [], out[-5000:]


def run(script: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit status and output of a script; what it leaves running is ended."""
    with (folder / "output.txt").open("w+") as out:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(300)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        return status, out.read()
