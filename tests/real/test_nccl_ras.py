"""Who has not arrived, from statuses that NCCL 2.28.9 gave on GPUs.

The files are test data of ray-project/ray (Apache-2.0), below ``python/ray/train/v2/tests``: a job
of four A10G with one rank held back on purpose (commit e9aa0dd), and three of 2026-06-19 that stand
as constants in a test (commit 0365b56), one of them with a process that does not answer. NVIDIA's
documentation of NCCL v2.30.7-1 prints one, too.
"""

import ast
import textwrap
from pathlib import Path

import pytest

import requires
from paceline.detect.not_arrived import NotArrived, not_arrived
from paceline.sources import nccl_ras

FOLDER = "python/ray/train/v2/tests"


def constant(name: str) -> str:
    file = f"{FOLDER}/test_nccl_ras_callback.py"
    path = requires.public("ray-project/ray", "0365b56", file, "ray")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return str(ast.literal_eval(node.value))
    raise AssertionError(name)


def read(folder: Path, text: str) -> NotArrived:
    path = folder / "status.json"
    path.write_text(text)
    assert nccl_ras.matches(path)
    return not_arrived([nccl_ras.read(path)])


def test_the_rank_that_was_held_back_is_behind() -> None:
    file = f"{FOLDER}/data/health/ncclras_a10g_mismatch.json"
    path = requires.public("ray-project/ray", "e9aa0dd", file, "ray")
    result = not_arrived([nccl_ras.read(path), nccl_ras.read(path)])
    ((lag,),) = (standing.lags for standing in result.standings)
    assert (lag.rank, lag.behind, lag.launched) == (1, {"AllReduce": 1}, 0)
    assert result.moves is False
    assert [(who.host, who.pid) for who in result.who] == [("10.0.109.86", 6247)]


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("HEALTHY_RAS_JSON", []),
        ("DEAD_RANK_RAS_JSON", [("10.0.77.184", 10017)]),
        ("MULTI_COMM_RAS_JSON", [("10.0.77.184", 10207)]),
    ],
)
def test_statuses_of_june(tmp_path: Path, name: str, who: list[tuple[str, int]]) -> None:
    result = read(tmp_path, constant(name))
    assert [(process.host, process.pid) for process in result.who] == who
    assert sum(not standing.is_level for standing in result.standings) == len(who)


def test_the_documentation_s_status(tmp_path: Path) -> None:
    page = requires.source(
        "NVIDIA/nccl", "v2.30.7-1", "docs/userguide/source/troubleshooting/ras.rst"
    )
    text = page[page.index('  {\n    "nccl_version"') :].partition("\n\n")[0]
    result = read(tmp_path, textwrap.dedent(text))
    (standing,) = result.standings
    assert [(rank.rank, rank.why) for rank in standing.gone] == [(1, "unresponsive")]
    assert [who.pid for who in result.who] == [1524345]
