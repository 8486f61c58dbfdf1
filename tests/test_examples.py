"""The notebooks of ``examples/`` run as they are, cell by cell."""

import json
from pathlib import Path

import pytest

from paceline.cli import main

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a notebook; returns the names that it leaves."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def run_notebook(name: str) -> dict:
        path = EXAMPLES / f"{name}.ipynb"
        names: dict = {}
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == []  # no output of another machine is kept
                exec(compile("".join(cell["source"]), f"{path.name}, {cell['id']}", "exec"), names)
        return names

    return run_notebook


def test_a_fleet(run):
    names = run("fleet")
    study = names["study"]
    assert study.summary["straggling"]["jobs"] == 3
    assert names["curve"].values[-1] >= 1
    assert (Path(study.address) / "report.html").is_file()


def test_a_slow_job(run):
    names = run("slow-job")
    assert (names["dp"], names["pp"]) == (2, 1)
    assert names["diagnosis"].findings[0].cause == "worker"
    assert names["advice"].remedies[0].remedy == "replace-worker"


def test_which_plan(run):
    names = run("which-plan")
    found = names["found"]
    assert found.step_time_s[0] <= names["prediction"].step_time_s
    assert all(found.plan(i).gpus == 64 for i in range(3))


def test_the_log_of_the_readme(capsys):
    assert main.run(["detect", str(EXAMPLES / "train.log")]) == 0
    out = capsys.readouterr().out
    assert "1.39x slower since step 90" in out
    assert "healthy again since step 120, after 1.40x on average; 24 s lost" in out
    assert "  in the end: 1.39x (1.38 to 1.41; 36 samples)" in out  # digits of the other factors
    assert "150 steps of 1 rank: 1 fail-slow, healthy at the end, 24 s lost in all" in out


def test_every_notebook_has_a_test():
    tests = Path(__file__).read_text(encoding="utf-8")
    assert [p.stem for p in EXAMPLES.glob("*.ipynb") if f'run("{p.stem}")' not in tests] == []
