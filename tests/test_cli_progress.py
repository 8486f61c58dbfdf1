import io

import pytest

from paceline.cli import progress
from paceline.cli.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def draw(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, show_after_s: float) -> str:
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(progress, "SHOW_AFTER_S", show_after_s)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar("simulating") as bar:
        for done in range(1, 5):
            bar(done, 4)
    return stderr.getvalue()


def test_long_work_on_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "simulating" in draw(monkeypatch, Terminal(), 0.0)


def test_short_work_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw(monkeypatch, Terminal(), 60.0) == ""


def test_files_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw(monkeypatch, io.StringIO(), 0.0) == ""
