"""Every ``paceline`` line of the README and of docs/ is one that the parser takes, and is run."""

import argparse
import re
import shlex

import pytest

from doc_pages import call, command_lines, inline_calls, lessons
from paceline.cli.main import build_parser
from test_docs import PAGES, ROOT
from test_docs_examples import PAGES as EXAMPLES
from test_docs_scenes import NOT_RUN, kinds_of, page_name

LESSONS = lessons()

PARSED = {
    path: list(command_lines(path.read_text("utf-8"))) for path in [ROOT / "README.md", *PAGES]
}
LINES = [(path, line) for path, lines in PARSED.items() for line in lines]


def test_calls_are_found_wherever_they_stand():
    assert (
        call("    paceline analyze x --out out/      # or your own")
        == "paceline analyze x --out out/"
    )
    assert call("$ PACELINE_RECORD=a paceline record on runs") == "paceline record on runs"
    assert (
        call("tail -f a | paceline detect - --ranks 8 --json")
        == "paceline detect - --ranks 8 --json"
    )
    assert call("torchrun --no-python paceline validate --ring") == "paceline validate --ring"
    assert call("pip install paceline") == ""
    assert call("paceline: error: no such file") == ""


def test_all_pages_have_been_read():
    assert len(LINES) > 150
    assert {line.split()[1] for _, line in LINES} >= set(commands(build_parser()))


@pytest.mark.parametrize("path", [p for p in PARSED if PARSED[p]], ids=lambda p: p.stem)
def test_the_parser_takes_every_line(path, capsys):
    refused = []
    for line in PARSED[path]:
        words = [_value(word) for word in shlex.split(line)[1:]]
        try:
            build_parser().parse_args(words)
        except SystemExit as stop:
            if stop.code:
                refused.append(f"{line}\n  {capsys.readouterr().err.splitlines()[-1]}")
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_each_line_runs_in_a_test_or_says_why_not(path):
    """In a lesson, with the files of its page, or in one scene; else ``NOT_RUN`` has the reason."""
    page = page_name(path)
    taught = {
        line for block in lessons_of(page) for line in command_lines(f"\n```sh\n{block}```\n")
    }
    unsaid = [
        (line, kinds)
        for line in PARSED[path]
        for kinds in [kinds_of(page, line)]
        if len(kinds) != 1 and not (not kinds and (line in taught or page in EXAMPLES))
    ]
    assert unsaid == []


def test_each_reason_is_that_of_a_line():
    kinds = [
        kind for path in PAGES for line in PARSED[path] for kind in kinds_of(page_name(path), line)
    ]
    assert set(NOT_RUN.values()) <= set(kinds)
    assert sum(kind in NOT_RUN.values() for kind in kinds) < 20


def lessons_of(page: str) -> list[str]:
    """The ``sh`` blocks of a page that runs as a lesson."""
    return [
        block.text
        for name, blocks in LESSONS.items()
        if name == page or name.startswith(f"{page}/")
        for block in blocks
        if block.kind == "sh"
    ]


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return {name: child for group in groups for name, child in group.choices.items()}


def options(parser: argparse.ArgumentParser) -> set[str]:
    """All options of a command and of the commands below it."""
    own = {option for action in parser._actions for option in action.option_strings}
    return own.union(*(options(child) for child in commands(parser).values()))


@pytest.mark.parametrize("path", PARSED, ids=lambda p: p.stem)
def test_commands_and_options_in_the_prose_exist(path):
    known = commands(build_parser())
    wrong = []
    for line in inline_calls(path.read_text("utf-8")):
        name = line.split()[1].rstrip(",;:.")
        if name not in known:
            wrong.append(line)
            continue
        given = set(re.findall(r"(?<!\S)--?[a-z][\w-]*", line))
        wrong += [f"{line}: {option}" for option in given - options(known[name])]
    assert wrong == []


def _value(word: str) -> str:
    """A number where the page has a letter for one."""
    return re.sub(r"^N$", "1", word)
