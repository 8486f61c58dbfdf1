"""``paceline validate``: passes printed, measured under a launcher, and wrong input."""

import importlib.util
import json
import os
import socket
import subprocess
import sys

import pytest

import requires
from paceline.cli import validate
from paceline.cli.main import run
from paceline.detect.verdict import Measurements, Place
from paceline.extras import pip_install
from paceline.hosts import HostStore


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def said(capsys, *args):
    code = run(["validate", *map(str, args)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_passes_of_a_ring(capsys):
    code, out, err = said(capsys, "--world-size", 5, "--ring")
    assert code == 0
    assert out.splitlines() == [
        "ring of 5 ranks: 3 passes, 5 links",
        "pass 1: 0->1 2->3",
        "pass 2: 1->2 3->4",
        "pass 3: 4->0",
    ]
    assert err.startswith("note: nothing was measured")
    assert err.count("\n") == 1


def test_the_order_of_ranks_counts(capsys):
    _, out, _ = said(capsys, "--world-size", 16, "--ranks", "12,0-2")
    assert out.splitlines()[1:] == ["pass 1: 12->0 1->2", "pass 2: 0->1 2->12"]


def test_trees(capsys):
    tree = said(capsys, "--world-size", 16, "--tree")[1]
    assert tree.startswith("tree of 16 ranks: 4 passes, 15 links\n")
    both = said(capsys, "--world-size", 16, "--double-tree", "--both-ways")[1]
    assert both.startswith("double-tree of 16 ranks: 16 passes, ")


def test_json_of_a_plan(capsys):
    code, out, _ = said(capsys, "--ranks", "0-3", "--json")
    assert code == 0
    assert json.loads(out) == {
        "shape": "ring",
        "ranks": [0, 1, 2, 3],
        "passes": [[[0, 1], [2, 3]], [[1, 2], [3, 0]]],
        "measured": None,
        "verdict": None,
    }


def test_without_torch(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else find(name, *a)
    )
    code, out, err = said(capsys, "--world-size", 2)
    assert code == 0
    assert "pass 1: 0->1" in out
    assert "PyTorch is not installed" in err
    code, out, err = said(capsys, "--world-size", 2, "--run")
    assert (code, out) == (2, "")
    assert pip_install("profile") in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "the ranks are missing"),
        (["--world-size", 0], "must be 1 to 1,000,000, not 0"),
        (["--world-size", 10**9], "must be 1 to 1,000,000"),
        (["--world-size", 4, "--ranks", "0-4"], "names rank 4 of a world of 4"),
        (["--ranks", "1,2,1"], "rank 1 is named twice"),
        (["--ranks", "3-1"], "runs backwards"),
        (["--ranks", "a"], "neither a number nor a range"),
        (["--ring", "--tree", "--world-size", 4], "not allowed with"),
    ],
)
def test_what_is_wrong(capsys, args, words):
    code, out, err = said(capsys, *args)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--gemm", 0, "gemm must be 1 or more"),
        ("--bytes", 0, "message_bytes must be 1 or more"),
        ("--rounds", -1, "rounds must be 1 or more"),
        ("--timeout", "nan", "timeout"),
        ("--world-size", 500, "1 to 128 processes"),
    ],
)
def test_what_cannot_be_measured(capsys, option, value, words):
    requires.installed("torch")
    code, out, err = said(capsys, "--world-size", 2, "--run", option, value)
    assert (code, out) == (2, "")
    assert words in err


def test_a_world_of_another_size(capsys, monkeypatch):
    joined = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in joined.items():
        monkeypatch.setenv(name, value)
    code, _, err = said(capsys, "--world-size", 8)
    assert code == 2
    assert "--world-size 8, but WORLD_SIZE=4 is set" in err


def test_under_a_launcher_rank_0_prints():
    requires.installed("torch")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "paceline", "validate", "--tree", "--rounds", "2", "--json"]
    joined = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    small = ["--gemm", "64", "--bytes", "4096", "--backend", "gloo"]
    ranks = [
        subprocess.Popen(
            [*command, *small],
            env={**os.environ, **joined, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    out = [each.communicate(timeout=300)[0] for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0]
    document = json.loads(out[0].splitlines()[-1])
    assert document["passes"] == [[[1, 0]]]
    assert [each["rank"] for each in document["measured"]["ranks"]] == [0, 1]
    assert document["measured"]["links"][0]["seconds"] > 0
    assert document["measured"]["gemm"] == 64
    assert "of two nothing says which is usual" in document["verdict"]["notes"][0]
    assert "{" not in out[1]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (2, "4 results of 1 host in {path}, all without a verdict: fewer than 3 of a kind"),
        (3, "6 results of 1 host in {path}\n"),
    ],
)
def test_the_results_kept_are_told(capsys, monkeypatch, tmp_path, ranks, words):
    places = {rank: Place("vm", "CPU") for rank in range(ranks)}
    gemm_s = {rank: [1.0] for rank in range(ranks)}
    link_s = {(rank, (rank + 1) % ranks): [1.0] for rank in range(ranks)}
    measured = Measurements(gemm_s, link_s, places, 64, 64, "gloo")
    monkeypatch.setattr(validate, "_measure", lambda *args: measured)
    path = tmp_path / "hosts.sqlite"
    code, out, _ = said(capsys, "--world-size", ranks, "--run", "--store", path)
    assert code == 0
    assert f"kept: {words.format(path=path)}" in out
    assert {row.peers for row in HostStore(path).results("vm")} == {ranks}
