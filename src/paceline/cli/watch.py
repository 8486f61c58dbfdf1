"""``paceline watch``: from an onset to a plan, while the job runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from paceline.cli.commands import HELP
from paceline.cli.trace_input import file_name

EPILOG = """\
examples:
  paceline watch runs/job-17
  paceline watch runs/job-17 --json --events events.jsonl
  paceline watch runs/job-17 --collectives nccl-logs/
  paceline watch runs/job-17 --once

The folder is one that the job's recorder writes (docs/record.md), or Paceline's NCCL plugin
(docs/nccl.md): its calls tell period, step times, onset and who. An onset in its step times asks
all ranks for the operations of the next steps, these name who is slow, the validator in the job, if
it has one (docs/watch.md), confirms that between two steps, and the planner says what to do.
"""
#: The recorder writes once a second.
_LOOK_S = 0.5


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "watch",
        help=HELP["watch"],
        description="Watch the folder of a recorded run, and follow a fail-slow to its plan.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="FOLDER", type=file_name, help="the run's folder")
    parser.add_argument(
        "--collectives",
        metavar="LOG",
        nargs="+",
        type=file_name,
        default=[],
        help="call logs of the job, read at an onset: they may name who is slow before a trace",
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        type=int,
        default=4,
        help="profiled steps to ask for at an onset (default 4)",
    )
    parser.add_argument(
        "--no-validation", action="store_true", help="do not ask the job's validator"
    )
    parser.add_argument(
        "--overheads",
        metavar="LIST",
        help="seconds that strategies cost once, as of paceline mitigate, such as s2=5,s4=never",
    )
    parser.add_argument(
        "--events", metavar="FILE", type=file_name, help="append each event as a line of JSON"
    )
    parser.add_argument("--once", action="store_true", help="read what is there, then end")
    parser.add_argument("--json", action="store_true", help="print a JSON object per event")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look, print, wait."""
    from paceline.cli.mitigate import parse_overheads
    from paceline.errors import TraceError
    from paceline.watch import CallsWatch, Watch, has_calls

    if args.steps < 1:
        raise TraceError(f"--steps must be 1 or more, not {args.steps}")
    if not args.folder.is_dir():
        raise TraceError(f"{args.folder} is no folder; give the one that the recorder writes to")
    watch: Watch | CallsWatch
    if has_calls(args.folder) and not any(args.folder.glob("rank-*")):
        watch = CallsWatch(args.folder)
    else:
        watch = Watch(
            args.folder,
            collectives=args.collectives,
            overheads=parse_overheads(args.overheads),
            steps=args.steps,
            validate=not args.no_validation,
        )
    if not args.json:
        print(f"watching {args.folder}; Ctrl-C ends", file=sys.stderr)
    while True:
        for news in watch.look():
            line = json.dumps(news.to_mapping())
            print(line if args.json else news.line(), flush=True)
            if args.events:
                _append(args.events, line)
        if args.once:
            return 0
        time.sleep(_LOOK_S)


def _append(path: Path, line: str) -> None:
    from paceline.errors import OutputError

    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from None
