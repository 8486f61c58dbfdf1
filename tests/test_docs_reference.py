"""The reference that `make docs` writes has every command, option, exported name and exception."""

import argparse
import importlib.util
import re
from pathlib import Path

import pytest

import paceline
from paceline import errors
from paceline.cli.main import build_parser
from paceline.model.cluster_presets import CLUSTER_PRESETS
from paceline.model.llm_presets import LLM_PRESETS

EXTENSION = Path(__file__).parents[1] / "docs" / "_ext" / "paceline_reference.py"


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("paceline_reference", EXTENSION)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pages(reference, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # so that it is as it was, afterwards
    return reference.command_pages()


def parsers(reference, parser):
    yield parser
    for _, _, child in reference.subcommands(parser):
        yield from parsers(reference, child)


def test_choices_are_the_words_that_a_reader_types(pages):
    assert "`--format {text,json}`" in pages["predict"]
    assert [name for name, page in pages.items() if re.search("`(True|False)`", page)] == []


def test_each_command_has_a_page_with_all_its_options(reference, pages):
    commands = {name: child for name, _, child in reference.subcommands(build_parser())}
    assert set(pages) == set(commands)
    for name, command in commands.items():
        for parser in parsers(reference, command):
            assert re.search(rf"^#+ {parser.prog}$", pages[name], re.M)
            shown = [a for a in parser._actions if a.help != argparse.SUPPRESS]
            options = [option for action in shown for option in action.option_strings]
            assert [o for o in options if f"`{o}" not in pages[name]] == []


def test_each_command_names_a_page_that_explains_it(reference, pages):
    assert set(reference.GUIDES) <= set(pages)
    for name, page in pages.items():
        (guide,) = re.findall(r"^More about it: \[.*\]\(\.\./\.\./(.+)\)\.$", page, re.M)
        text = (EXTENSION.parents[1] / guide).read_text("utf-8")
        assert f"paceline {name}" in text, guide


def test_the_list_of_commands_has_them_all_and_the_exit_codes(reference):
    index = reference.commands_index()
    rows = re.findall(r"^\| \[`paceline ([\w-]+)`\]\(\1\.md\) \| (.+) \|$", index, re.M)
    assert [name for name, _ in rows] == [n for n, _, _ in reference.subcommands(build_parser())]
    assert re.findall(r"^\| (\d+) \|", index, re.M) == ["0", "1", "2", "130", "141"]


def test_an_option_is_shown_with_its_value_its_help_and_its_default(pages):
    assert "`--micro-batch N`\n: samples of one microbatch \\(default 1\\)\n" in pages["predict"]
    assert "`--port" not in pages["predict"]


def test_help_is_text_but_for_what_is_in_backticks(reference):
    assert reference.markdown("a*b* of `x|y` at <z>") == r"a\*b\* of `x|y` at \<z\>"
    assert reference.markdown("a lone ` tick") == r"a lone \` tick"


def test_each_exported_name_is_documented(reference):
    page = reference.python_page()
    for name in set(paceline.__all__) - {"__version__"}:
        assert f"\n## {name}\n" in page
        assert reference.directive(name, getattr(paceline, name)) in page
        assert (getattr(paceline, name).__doc__ or "").strip(), f"{name} has no docstring"


def test_each_exception_is_documented(reference):
    names = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    page = reference.exceptions_page()
    assert len(names) > 15
    for name in names:
        assert f".. autoexception:: paceline.errors.{name}\n" in page
        assert re.search(rf"\b{name}\b", page[: page.index("{eval-rst}")]), f"{name}: not in tree"


def test_presets_are_listed_with_their_numbers(reference):
    page = reference.presets_page()
    assert "| `llama3.1-8b` | 8.03 | 32 | 4,096 | 8,192 | 131,072 |" in page
    assert "| `h100` | H100 SXM5 80GB | 80 | 989 | 8 | 6.88 |" in page
    names = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    assert set(names) >= {*LLM_PRESETS, *CLUSTER_PRESETS}
    assert "`resnet50`" in page


def test_the_page_of_the_presets_is_up_to_date(reference):
    """Readers of the repository have it without a build."""
    page = EXTENSION.parents[1] / "reference" / "presets.md"
    assert page.read_text(encoding="utf-8") == reference.presets_page(), "make docs writes it"
