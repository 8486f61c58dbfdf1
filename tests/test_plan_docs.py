"""The counts in docs/plan.md are those of a search."""

import re
from pathlib import Path

import pytest

from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.plan.search import search

DOC = Path(__file__).parents[1] / "docs" / "plan.md"


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
