"""The README: every command runs as it is written, one after the other, in one folder.

``make demo`` is the Makefile's own recipe in an environment that counts as installed. ``pip`` looks
whether the extra exists. A service ends once it is ready.
"""

import os
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

import ports
import requires
from doc_pages import ROOT, blocks
from installed import PACKAGES
from test_docs_lessons import run

own_port = ports.own_port

BLOCKS = blocks((ROOT / "README.md").read_text(encoding="utf-8"))

#: A job of the reader's own: two ranks of DDP, the second one slow.
TRAIN = """
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(64, 64)
if dist.get_rank() == 1:
    model.register_forward_hook(lambda *_: time.sleep(0.02))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(24):
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""

PACELINE = """#!/bin/bash
if [ "$1" = serve ]; then
  {python} -m paceline "$@" & serving=$!
  until curl --fail --silent --output /dev/null http://127.0.0.1:8765/readyz; do
    kill -0 $serving || exit 1
    sleep 0.2
  done
  kill $serving && wait $serving
  exit 0
fi
exec {python} -m paceline "$@"
"""


@pytest.fixture(scope="module")
def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


@pytest.fixture
def folder(tmp_path, extras) -> Path:
    """A checkout whose ``.venv`` is made, with the commands of this very interpreter."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    python = shlex.quote(sys.executable)
    known = "|".join([r"'\.'", *(rf"'\.\[{extra}\]'" for extra in sorted(extras))])
    commands = {
        "paceline": PACELINE.format(python=python),
        "torchrun": f'#!/bin/sh\nexec {python} -m torch.distributed.run "$@"\n',
        "python": f'#!/bin/sh\nexec {python} "$@"\n',
        "pip": f'#!/bin/sh\nprintf "\'%s\'" "$2" | grep -qxE "{known}"\n',
    }
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name, text in commands.items():
        path = tmp_path / ".venv" / "bin" / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    (tmp_path / ".venv" / "installed").touch()
    return tmp_path


def test_every_block_is_run():
    assert {block.kind for block in BLOCKS} == {"sh", "python"}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<=\n\n) {4}\S", text), "a block without a fence runs in no test"


def test_the_readme_runs_as_it_is_written(folder, own_port):
    script = ["set -euo pipefail"]
    for block in BLOCKS:
        requires.installed(*block.needs)
        if "port" in block.notes:
            own_port(int(block.notes["port"]))
        if block.kind == "python":
            script.append(f"python - <<'END'\n{block.text}END")
        else:
            script.append(block.text)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PACELINE_")},
        "PATH": f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": PACKAGES,
    }
    status, out = run("\n".join(script), folder, environment)
    assert status == 0, out[-5000:]
    said = " ".join(out.split())
    phrases = [phrase for block in BLOCKS for phrase in block.shows]
    assert [phrase for phrase in phrases if phrase not in said] == [], out[-5000:]
    for made in ("demo-out/report.html", "report/report.html", "runs/job-17"):
        assert (folder / made).exists(), made
