import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import paceline

PUBLIC = {
    "Job",
    "JobReport",
    "OpKind",
    "PacelineError",
    "Part",
    "Cluster",
    "Comparison",
    "Detector",
    "LLM",
    "Ledger",
    "Plan",
    "Prediction",
    "RanksReport",
    "Scenario",
    "SynthSpec",
    "Throughputs",
    "Trace",
    "WhatIf",
    "__version__",
    "analyze",
    "cluster_preset",
    "compare",
    "fleet",
    "from_trace",
    "goodput",
    "integrations",
    "job_list",
    "llm_preset",
    "load",
    "measure",
    "plot",
    "predict",
    "rank_report",
    "read_jobs",
    "read_network",
    "read_throughputs",
    "replay_queue",
    "synthesize",
    "write",
}
HEAVY = ("numpy", "numba", "pyarrow", "rich", "yaml", "shtab", "inspect", "logging", "socket")


def loaded_by(statement: str) -> set[str]:
    """Heavy modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    return set(done.stdout.split())


def test_public_names_are_exactly_these() -> None:
    assert set(paceline.__all__) == PUBLIC
    assert sorted(paceline.__all__) == sorted(set(paceline.__all__))
    assert set(dir(paceline)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(paceline, name)
    assert name == "__version__" or value.__name__.rpartition(".")[2] == name


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        paceline.nothing  # noqa: B018 (it raises)


def test_version_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert paceline.__version__ == project["project"]["version"]


@pytest.mark.parametrize(
    "statement",
    [
        "import paceline",
        "import paceline.cli.main",
        "from paceline.cli.main import run; run(['--help'])",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(statement: str) -> None:
    code = (
        f"import os; sys.stdout = open(os.devnull, 'w'); {statement}; sys.stdout = sys.__stdout__"
    )
    assert loaded_by(code) == set()


@pytest.mark.parametrize(("words", "loaded"), [(["--help"], set()), (["ranks", "-h"], {"ranks"})])
def test_only_the_named_command_is_loaded(words: list[str], loaded: set[str]) -> None:
    code = f"""
import contextlib, io, sys
from paceline.cli.commands import HELP, module_of
from paceline.cli.main import run
with contextlib.redirect_stdout(io.StringIO()):
    run({words})
names = {{command: f"paceline.cli.{{command}}" for command in HELP}}
print(*(command for command, name in names.items() if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == loaded


def test_the_interface_of_the_readme() -> None:
    spec = paceline.SynthSpec(dp=2, pp=2, microbatches=2, steps=1)
    trace = paceline.synthesize(spec)
    result = paceline.analyze(trace)
    assert isinstance(trace, paceline.Trace)
    assert isinstance(result, paceline.WhatIf)
    assert result.slowdown > 0.9
