"""Messages name a command that installs what is missing."""

from pathlib import Path

import pytest

from paceline import extras

ROOT = Path(__file__).parents[1]


def test_a_checkout_is_named_by_its_folder():
    assert extras.pip_install("monitor") == f"pip install '{ROOT}[monitor]'"
    assert extras.pip_install() == f"pip install {ROOT}"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ("", "pip install 'paceline[plot]'"),
        ("/a b/paceline", "pip install '/a b/paceline[plot]'"),
        ("git+https://h/p.git", "pip install 'paceline[plot] @ git+https://h/p.git'"),
    ],
)
def test_where_it_came_from(origin, command, monkeypatch):
    monkeypatch.setattr(extras, "_origin", lambda: origin)
    assert extras.pip_install("plot") == command


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        (None, ""),
        ('{"url": "https://h/paceline-1.whl", "archive_info": {}}', "https://h/paceline-1.whl"),
        ('{"url": "https://h/p.git", "vcs_info": {"vcs": "git"}}', "git+https://h/p.git"),
        ('{"url": "file:///nowhere/at/all", "dir_info": {}}', ""),
        ("{", ""),
    ],
)
def test_what_pip_wrote_down(text, origin, monkeypatch, tmp_path):
    class Distribution:
        def read_text(self, name):
            assert name == "direct_url.json"
            return text

    monkeypatch.setattr(extras, "_CHECKOUT", tmp_path)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Distribution())
    extras._origin.cache_clear()
    try:
        assert extras._origin() == origin
    finally:
        extras._origin.cache_clear()
