"""A Sphinx extension: reference pages from the code, written before the build reads its sources.

The command line comes from its parser, the Python API from ``paceline.__all__``, the exceptions
from ``paceline.errors``, the presets from the tables of models, GPUs and networks. Git ignores
these pages but the last one, which readers of the repository need.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import paceline
from paceline import errors
from paceline.cli import main
from paceline.report.presets import presets

if TYPE_CHECKING:
    from sphinx.application import Sphinx

#: Where the pages go, below the folder of the sources.
FOLDER = Path("reference")
#: argparse wraps usage lines to the width of the terminal.
COLUMNS = "92"

#: Command -> the page that explains it, where that has another name than the command.
GUIDES = {
    "admin": "monitor",
    "analyze": "whatif",
    "calibrate": "predict",
    "completion": "tutorial",
    "diagnose": "diagnosis",
    "doctor": "tutorial",
    "hosts": "validate",
    "layers": "networks",
    "optimal": "plan",
    "presets": "plan",
    "push": "record",
    "ranks": "import",
    "remedy": "remedies",
    "serve": "monitor",
    "synth": "trace-format",
    "timeline": "report",
    "times": "import",
    "work": "operate",
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir)))
    app.connect("autodoc-process-docstring", _as_rst, priority=400)  # before napoleon's
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(docs: Path) -> None:
    """Write all generated pages, and remove those of commands that are gone."""
    folder = docs / FOLDER
    shutil.rmtree(folder / "commands", ignore_errors=True)
    pages = {f"commands/{name}.md": text for name, text in command_pages().items()}
    pages["commands/index.md"] = commands_index()
    pages["python.md"] = python_page()
    pages["exceptions.md"] = exceptions_page()
    pages["presets.md"] = presets_page()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def subcommands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """(name, help, parser) of each command that a parser has."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            about = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                yield name, about.get(name, ""), child


def command_pages() -> dict[str, str]:
    """Command -> its page."""
    os.environ["COLUMNS"] = COLUMNS
    return {
        name: command_page(child, GUIDES.get(name, name))
        for name, _, child in subcommands(main.build_parser())
    }


def command_page(parser: argparse.ArgumentParser, guide: str) -> str:
    """All that a command's parser knows, its own commands below it, and where more is said."""
    more = f"More about it: [{guide}.md](../../{guide}.md).\n"
    return "\n".join([*_describe(parser, 1), _EXIT_LINE, "", more])


_EXIT_LINE = "Exit codes: [those of all commands](index.md#exit-codes), if nothing above says more."


def _describe(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} {parser.prog}\n"
    yield f"{markdown(parser.description or '')}\n"
    usage = parser.format_usage().removeprefix("usage: ").replace("\n       ", "\n").rstrip()
    yield f"```text\n{usage}\n```\n"
    for group in parser._action_groups:
        rows = [
            action
            for action in group._group_actions
            if action.help is not argparse.SUPPRESS
            and not isinstance(action, argparse._SubParsersAction)
        ]
        if rows:
            yield f"**{(group.title or 'options').capitalize()}**\n"
            if group.description:
                yield f"{markdown(group.description)}\n"
            for action in rows:
                yield f"{_signature(action)}\n: {_about(action, parser)}\n"
    if parser.epilog:
        yield f"```text\n{parser.epilog.strip()}\n```\n"
    for _, _, child in subcommands(parser):
        yield from _describe(child, level + 1)


def _signature(action: argparse.Action) -> str:
    """``-o FILE, --output FILE`` as code."""
    if not action.option_strings:
        name = action.metavar if isinstance(action.metavar, str) else action.dest
        return f"`{name}`"
    value = ""
    if action.nargs != 0:
        names = action.metavar or _choices(action) or action.dest.upper()
        value = " " + (" ".join(names) if isinstance(names, tuple) else names)
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def _choices(action: argparse.Action) -> str:
    return "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""


def _about(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """The help of an argument, with its choices and its default where the help names none."""
    words = parser._get_formatter()._expand_help(action) if action.help else ""
    parts = [markdown(words)] if words else []
    if action.choices and action.metavar and "{" not in str(action.metavar):
        parts.append("one of " + ", ".join(f"`{choice}`" for choice in action.choices))
    default = action.default
    shown = default not in (None, False, True, argparse.SUPPRESS, [], ())
    if shown and "default" not in words and action.nargs != 0:
        parts.append(f"default: `{default}`")
    return "; ".join(parts) or f"one of `{_choices(action)}`"


def markdown(text: str) -> str:
    """Plain text as Markdown: nothing is markup but what stands in backticks."""
    pieces = " ".join(text.split()).split("`")
    if len(pieces) % 2 == 0:  # a lone backtick
        return _escaped("`".join(pieces))
    return "".join(
        f"`{piece}`" if number % 2 else _escaped(piece) for number, piece in enumerate(pieces)
    )


def _escaped(text: str) -> str:
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


def commands_index() -> str:
    """The list of all commands, and the exit codes that they share."""
    lines = ["# Commands\n", "```{toctree}\n:hidden:\n"]
    commands = list(subcommands(main.build_parser()))
    lines += [name for name, _, _ in commands]
    lines += ["```\n", "| command | what it does |", "|---|---|"]
    lines += [
        f"| [`paceline {name}`]({name}.md) | {markdown(about)} |" for name, about, _ in commands
    ]
    codes = inspect.cleandoc(main.__doc__ or "").split("\n\n")[1]
    rows = (entry.strip().partition(": ") for entry in codes.rstrip(".").split(";"))
    lines += ["\n## Exit codes\n", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {markdown(meaning)} |" for code, _, meaning in rows]
    return "\n".join([*lines, ""])


def python_page() -> str:
    """Every name of ``paceline.__all__``, from its docstring."""
    lines = ["# Python\n", "```python\nimport paceline\n```\n"]
    lines.append("These names are the public interface; each is imported when it is first used.\n")
    for name in sorted(paceline.__all__, key=str.lower):
        if name != "__version__":
            lines.append(f"## {name}\n")
            lines.append(f"```{{eval-rst}}\n{directive(name, getattr(paceline, name))}\n```\n")
    lines.append("## \\_\\_version\\_\\_\n\nThe version of Paceline, as text.\n")
    return "\n".join(lines)


def directive(name: str, value: object) -> str:
    """What documents an exported name."""
    if isinstance(value, ModuleType):
        if callable(value):
            from paceline.fleet import run

            return f".. autofunction:: {run.__name__}.{name}"
        # Members that are imported when first used need packages that may not be here.
        lazy = any(member not in vars(value) for member in value.__all__)
        return f".. automodule:: paceline.{name}\n" + ("" if lazy else "   :members:")
    if inspect.isclass(value):
        only_here = "   :no-index:\n" if issubclass(value, errors.PacelineError) else ""
        return f".. autoclass:: paceline.{name}\n   :members:\n{only_here}"
    return f".. autofunction:: paceline.{name}"


def exceptions_page() -> str:
    """The tree of exceptions as its module draws it, and each of them."""
    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    lines = ["# Exceptions\n", f"```text\n{inspect.cleandoc(tree)}\n```\n", "```{eval-rst}"]
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, Exception):
            lines.append(f".. autoexception:: paceline.errors.{name}\n   :show-inheritance:\n")
    return "\n".join([*lines, "```", ""])


def presets_page() -> str:
    """Names that ``--model``, ``--gpu`` and ``paceline layers`` take, with their main numbers."""
    lines = [
        "# Presets\n",
        "`make docs` writes this page from the code; `paceline presets` prints the same.\n",
        "*Sequence*: tokens of a sample if you give none. *Longest*: positions in the model's own "
        "config, where a source gives them; predictions warn of longer samples.\n",
        "Models outside this list: give the path of their `config.json`. Clusters outside it: "
        "write [a cluster file](../predict.md#a-job-file).\n",
    ]
    for table in presets():
        lines.append(f"## {table.title}\n\nFor {table.usage}.\n")
        lines += [f"| {' | '.join(table.head)} |", "|---" * len(table.head) + "|"]
        for name, *cells in table.rows:
            lines.append(f"| {' | '.join((f'`{name}`', *map(_cell, cells)))} |")
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """A number as it is; words as Markdown."""
    return text if re.fullmatch(r"[\d,.]+|–", text) else markdown(text)


def _as_rst(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Docstrings are for readers of the code: an indented block is code, a bar is a bar."""
    text: list[str] = []
    for number, line in enumerate(lines):
        before = [earlier for earlier in lines[:number] if earlier.strip()]
        first = line.startswith("    ") and number > 0 and not lines[number - 1].strip()
        if first and before and not before[-1].startswith((" ", "\t")):
            text += ["::", ""]
        pieces = line.split("``")
        pieces[::2] = [piece.replace("|", r"\|") for piece in pieces[::2]]
        text.append("``".join(pieces))
    lines[:] = text
