"""The entry point: parse, run a command, map errors to exit codes.

0: done; 1: a bug or out of memory; 2: the user can act on it; 130: interrupted; 141: the reader of
standard output went away.

Commands import what they need when they run, so that ``--help`` and completion are instantaneous.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence

from paceline import __version__
from paceline.cli.commands import HELP, module_of
from paceline.cli.parsers import CommandParser
from paceline.errors import PacelineError

DESCRIPTION = """\
How fast should a distributed training job be, why is it not, and what would each
fix gain?
"""

EXAMPLES = """\
examples:
  paceline analyze trace.parquet --job meta.yaml --out out/
  paceline diagnose trace.parquet --layers 9,9,9,9
  paceline remedy trace.parquet --list
  paceline fleet traces/ -o study/
  paceline timeline trace.parquet --scenario ideal -o ideal.json.gz
  paceline detect iterations.csv
  paceline mitigate trace.parquet --slow-worker 3,1,1.4
  paceline predict --model gpt3-175b --gpu a100-80g --gpus 1024 --tp 8 --pp 8 --global-batch 1536
  paceline plan --model llama3.1-405b --gpu h100 --gpus 16384 --global-batch 2048
  paceline layers timm:resnet50 --input 3x224x224 -o resnet50.layers.json
  paceline queue jobs.csv --gpus 1024 --compare fifo,backfill,srtf
  paceline synth --dp 8 --pp 4 --slow-worker 3,1,1.5 -o trace.parquet

`paceline COMMAND --help` describes a command.
"""


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser of all commands.

    Args:
        words: the arguments to parse; only the command that they name is loaded. None: all are
            loaded.
    """
    parser = CommandParser(
        prog="paceline",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    # No option before the command takes a value.
    named = None if words is None else next((w for w in words if not w.startswith("-")), "")
    for command, line in HELP.items():
        if named is None or command == named:
            module_of(command).add(subparsers)
        else:
            subparsers.add_parser(command, help=line)
    for command_parser in (parser, *subparsers.choices.values()):
        # Allowed before and after the command. The default is SUPPRESS, so that one place does not
        # reset the other.
        command_parser.add_argument(
            "--version",
            action="version",
            version=f"paceline {__version__}",
            help="show the version and exit",
        )
        command_parser.add_argument(
            "--debug",
            action="store_true",
            default=argparse.SUPPRESS,
            help="show the traceback of an error",
        )
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: that of the process); returns the exit code."""
    for name in ("stdout", "stderr"):  # closed by a daemon or cron: write to the null device
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 (for good)
    # Slurm and Kubernetes end jobs this way: leave through the handlers that clean up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(words)
    try:
        args = parser.parse_args(words)
    except SystemExit as stop:  # --help, --version, or a usage error that argparse has printed
        try:
            sys.stdout.flush()
        except OSError as error:
            return _fail(error, debug=False)
        return stop.code if isinstance(stop.code, int) else 2
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # if "×" cannot be shown, "?" replaces it
    try:
        code = int(args.run(args))
        sys.stdout.flush()
    except BaseException as error:
        return _fail(error, debug=getattr(args, "debug", False))
    return code


def _fail(error: BaseException, *, debug: bool) -> int:
    """Say what went wrong, in one line; returns the exit code."""
    if isinstance(error, OSError) and error.filename is None:
        # Likely standard output, which Python flushes once more at its end: discard that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 141
    if debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, PacelineError):
        _say(f"error: {error}")
        return 2
    if isinstance(error, OSError) and error.strerror:
        _say(f"error: {f'{error.filename}: ' if error.filename else ''}{error.strerror}")
        return 2
    if isinstance(error, MemoryError):
        _say("error: out of memory; take fewer steps or ranks at a time, or a larger machine")
        return 1
    hint = "" if debug else "run with --debug for the traceback; "
    _say(f"unexpected error: {type(error).__name__}: {error} ({hint}please report it)")
    return 1


def _say(message: str) -> None:
    # A name from a file may hold escape codes; keep them from the terminal.
    words = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(message.split()))
    print(f"paceline: {words}", file=sys.stderr)
