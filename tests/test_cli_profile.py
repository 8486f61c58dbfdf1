import warnings
from pathlib import Path

import pytest

import requires
from paceline.cli.main import run
from paceline.model.profile import load_profile

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", autouse=True)
def _torch():
    requires.installed("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


TINY = ["--device", "cpu", "--threads", "1", "--quick", "--limit", "60"]
SHAPES = ["--hidden", "64", "--seq-len", "16", "--micro-batch", "1"]


def fails(argv: list[str], capsys: Captured) -> str:
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("paceline: error: ")
    assert err.count("\n") == 1
    return err


def test_a_profile_is_written_and_said(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "cpu.profile.json"
    assert run(["profile", "-o", str(path), *TINY, *SHAPES]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"{path}: ")
    assert "operators on" in out
    assert "in fp32" in out
    profile = load_profile(path)
    assert profile.shapes["hidden"] == (64,)
    assert profile.shapes["seq_len"] == (16,)
    assert profile.device_kind == "cpu"
    before = path.read_bytes()
    assert "exists already" in fails(["profile", "-o", str(path), *TINY, *SHAPES], capsys)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--hidden", "100"], "hidden 100 cannot be profiled: choose a multiple of 64"),
        (["--hidden", "0"], "--hidden must be at least 1, not 0"),
        (["--tp", "3", "--hidden", "256"], "heads 4 not divisible by tp 3"),
        (["--model", "gpt5"], "no model preset 'gpt5'"),
        (["--model", "gpt3-175b", "--hidden", "64"], "--model and --hidden contradict"),
        (["--limit", "0"], "--limit must be above 0, not 0"),
        (["--limit", "nan"], "--limit must be above 0, not nan"),
        (["--threads", "-2"], "--threads must be above 0, not -2"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(
    arguments: list[str], what: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "x.json"
    assert what in fails(["profile", "-o", str(path), "--device", "cpu", *arguments], capsys)
    assert not path.exists()


def test_a_gpu_that_is_not_there(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    argv = ["profile", "-o", str(tmp_path / "x.json"), "--device", "cuda"]
    assert "sees no GPU" in fails(argv, capsys)


def test_no_folder_to_write_to_is_found_before_the_work(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "none" / "x.json"
    assert "the folder" in fails(["profile", "-o", str(path), *TINY, *SHAPES], capsys)
