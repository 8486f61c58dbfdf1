"""``paceline completion``: a script with which a shell completes commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from paceline.cli.commands import HELP

EPILOG = """\
install:
  bash   mkdir -p ~/.local/share/bash-completion/completions
         paceline completion bash > ~/.local/share/bash-completion/completions/paceline
  zsh    paceline completion zsh > DIR/_paceline     (DIR: one of the folders in $fpath)
  tcsh   paceline completion tcsh > ~/.paceline.tcsh, and source it in ~/.tcshrc
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "completion",
        help=HELP["completion"],
        description="Print the script that completes commands, options and file names.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from paceline.cli.main import build_parser

    paths = {
        "TRACE": shtab.FILE,
        "BEFORE": shtab.FILE,
        "AFTER": shtab.FILE,
        "YAML": shtab.FILE,
        "FILE": shtab.FILE,
        "DIR": shtab.DIRECTORY,
    }
    parser = build_parser()
    _complete_paths(parser, paths)
    print(shtab.complete(parser, args.shell))
    return 0


def _complete_paths(parser: argparse.ArgumentParser, paths: Mapping[str, object]) -> None:
    """Tell shtab which arguments are paths; here rather than in ``add``, which must stay fast."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_paths(command, paths)
        elif isinstance(action.metavar, str) and action.metavar in paths:
            action.complete = paths[action.metavar]  # type: ignore[attr-defined]  # shtab reads it
