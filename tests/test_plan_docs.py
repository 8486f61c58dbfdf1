"""docs/plan.md and docs/predict.md: counts are those of a search, job files are read as written."""

import json
import re
from pathlib import Path

import pytest

from paceline.cli.main import run
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.plan.search import search

DOC = Path(__file__).parents[1] / "docs" / "plan.md"
PREDICT = DOC.with_name("predict.md").read_text(encoding="utf-8")
#: Python of both pages, as blocks of lines.
SNIPPETS = [
    re.sub("^    ", "", block, flags=re.M)
    for page in (DOC.read_text(encoding="utf-8"), PREDICT)
    for block in re.findall(r"(?<=\n\n)(?: {4}.*\n)+", page)
    if re.match(r" +(?:import|from) \w", block)
]
#: The page's lines that say a model, each for a job file of its own.
MODELS = re.findall(r"^    (model: \{.+\})$", PREDICT, re.M)


@pytest.mark.parametrize(
    ("row", "model", "gpus", "batch"),
    [
        ("Llama 3.1 405B on 16,384 H100s", "llama3.1-405b", 16384, 2048),
        ("DeepSeek-V3 on 2,048 H100s", "deepseek-v3", 2048, 15360),
    ],
)
def test_counts_of_the_speed_table(row: str, model: str, gpus: int, batch: int) -> None:
    cells = re.search(rf"^\| {re.escape(row)} \| ([\d,]+) \| ([\d,]+) \|", DOC.read_text(), re.M)
    assert cells is not None
    legal, fit = (int(cell.replace(",", "")) for cell in cells.groups())
    result = search(llm_preset(model), cluster_preset("h100"), gpus, batch)
    assert (len(result.legal), len(result)) == (legal, fit)


def test_the_job_file_of_the_page_runs_and_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``predict`` and ``plan`` read it: its plan is among the best of the search."""
    block = re.search(r"^    model: llama3.*?(?=^\S)", PREDICT, re.M | re.S)
    assert block is not None
    path = tmp_path / "job.yaml"
    path.write_text(re.sub("^    ", "", block[0], flags=re.M))
    assert run(["predict", str(path)]) == 0
    predicted = capsys.readouterr().out
    assert "memory: fits," in predicted
    name = re.search(r"^tp\d+ .*?(?= ·)", predicted, re.M)
    assert name is not None
    assert run(["plan", str(path), "--top", "5", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert name[0] in [plan["plan"] for plan in plans]


def test_lines_that_say_a_model_were_found() -> None:
    assert len(MODELS) >= 5


@pytest.mark.parametrize("line", MODELS, ids=range(len(MODELS)))
def test_a_line_that_says_a_model_is_a_job_file(line: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{line}\ncluster: h100\ngpus: 8\nplan: {{global_batch: 8}}\n")
    assert run(["predict", str(path)]) == 0


@pytest.mark.parametrize("code", SNIPPETS, ids=range(len(SNIPPETS)))
def test_python_runs_as_it_is_written(code: str) -> None:
    exec(code, {})


def test_python_was_found() -> None:
    assert len(SNIPPETS) >= 2
