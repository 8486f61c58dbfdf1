"""``paceline presets``: all names, and those with a word."""

import json

import pytest

from paceline.cli.main import build_parser, run
from paceline.model.cluster_presets import CLUSTER_PRESETS
from paceline.model.llm_contexts import CONTEXTS
from paceline.model.llm_presets import LLM_PRESETS
from paceline.networks.presets import PRESETS

Captured = pytest.CaptureFixture[str]


def test_all_names(capsys: Captured) -> None:
    assert run(["presets", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)
    assert names == {
        "schema": 1,
        "models": list(LLM_PRESETS),
        "clusters": list(CLUSTER_PRESETS),
        "networks": list(PRESETS),
    }
    assert run(["presets"]) == 0
    out = capsys.readouterr().out
    words = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert words >= {*LLM_PRESETS, *CLUSTER_PRESETS, *PRESETS}
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["llama3.1-8b"])
    assert row == ["llama3.1-8b", "8.03", "32", "4,096", "8,192", "131,072"]


def test_names_with_a_word(capsys: Captured) -> None:
    assert run(["presets", "H100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "GPUs and clusters: for --gpu, cluster: of a job file, preset:"
    assert [line.split()[0] for line in lines[2:]] == ["h100", "h100-pcie"]
    assert run(["presets", "zzz"]) == 2
    assert "no preset has 'zzz' in its name" in capsys.readouterr().err


def test_a_wrong_name_and_the_help_say_how_to_list_them(capsys: Captured) -> None:
    argv = ["plan", "--model", "llama9", "--gpu", "h100", "--gpus", "8", "--global-batch", "8"]
    assert run(argv) == 2
    assert "(`paceline presets` lists all)" in capsys.readouterr().err
    for command in ("plan", "predict", "optimal"):
        with pytest.raises(SystemExit):
            build_parser().parse_args([command, "--help"])
        assert "`paceline presets`" in " ".join(capsys.readouterr().out.split())


def test_longest_samples() -> None:
    """Each name is a preset; a learned table is as long as the model was trained with."""
    assert set(CONTEXTS) <= set(LLM_PRESETS)
    assert all(LLM_PRESETS[name].context == context for name, context in CONTEXTS.items())
    assert all(llm.context == 0 or llm.context >= llm.seq_len for llm in LLM_PRESETS.values())
    assert LLM_PRESETS["gpt3-175b"].context == 2048
