"""docs/step-graph.md holds the drawings that the graphs of synthesised jobs give."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from step_graph import DRAWINGS, drawing, program

PAGE = (ROOT / "docs" / "step-graph.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("title", DRAWINGS)
def test_the_page_has_the_drawing(title):
    assert f"## {title}\n" in PAGE
    assert f"```text\n{program(title)}\n\n{drawing(title)}\n```" in PAGE


def test_a_drawing_by_hand():
    """Buckets of two layers: forwards of 45 ms, backwards of 60 ms, reductions of 75 ms."""
    assert program("DDP, ZeRO 1 and 2") == "F0 F1 F2 F3 B0 B1 S0 B2 B3 S1 |S0 |S1 N |N O"
    compute, reduces = drawing("DDP, ZeRO 1 and 2").splitlines()
    at = len("compute         ")
    assert compute[at + 18 :].startswith("[B0---[B1---[B2---[B3---")
    assert reduces[at + 30 :] == "[S0-----    [S1-----"
