"""``paceline presets``: names of models, GPUs and networks that other commands take."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from paceline.cli.case_input import add_json
from paceline.cli.commands import HELP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.report.presets import Presets

EPILOG = """\
examples:
  paceline presets
  paceline presets qwen         # names that contain this word

sequence: tokens of a sample without --seq-len. longest: positions in the model's own config;
"not known" where no copy of it was found, so that longer samples bring no warning.
Models outside the list: --model takes a config.json. Clusters outside it: --cluster takes a file.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "presets",
        help=HELP["presets"],
        description="List the models, GPUs and networks that Paceline knows by name.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("word", nargs="?", default="", metavar="WORD", help="part of the names")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the names."""
    from paceline.errors import ModelError
    from paceline.report.presets import presets

    tables = [table.containing(args.word) for table in presets()]
    if not any(table.rows for table in tables):
        raise ModelError(f"no preset has {args.word!r} in its name; leave it out to list all")
    if args.json:
        from paceline.report.result_json import lines_of_json

        names = {table.kind: [row[0] for row in table.rows] for table in tables}
        sys.stdout.write(lines_of_json({"schema": 1, **names}))
        return 0
    print("\n\n".join("\n".join(_lines(table)) for table in tables if table.rows))
    return 0


def _lines(table: Presets) -> Iterator[str]:
    yield f"{table.title}: for {table.usage.replace('`', '')}"
    rows = (table.head, *table.rows)
    widths = [max(len(row[k]) for row in rows) for k in range(len(table.head))]
    for row in rows:
        cells = [
            cell.ljust(width) if k < table.texts else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()
