"""The notebooks of ``examples/`` run as they are, cell by cell."""

import json
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    names: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # no output of another machine is kept
            exec(compile("".join(cell["source"]), f"{path.name}, {cell['id']}", "exec"), names)
    study = names["study"]
    assert study.summary["straggling"]["jobs"] == 3
    assert names["curve"].values[-1] >= 1
    assert (Path(study.address) / "report.html").is_file()
