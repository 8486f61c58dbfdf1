"""``paceline watch``: follows a fail-slow from its onset to a plan, while the job runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli import validate
from paceline.cli.commands import HELP
from paceline.cli.trace_input import file_name
from paceline.extras import pip_install

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.watch.examiner import Examine
    from paceline.watch.news import News

EPILOG = """\
examples:
  paceline watch runs/job-17
  paceline watch runs/job-17 --json --events events.jsonl
  paceline watch runs/job-17 --collectives nccl-logs/
  paceline watch runs/job-17 --once
  paceline watch runs/job-17 --pause       # a job with the NCCL plugin, on this machine

The folder is written by the job's recorder (docs/record.md), or by Paceline's NCCL plugin
(docs/nccl.md): its calls show period, step times, onset and slow rank. At an onset in the step
times, all ranks record the operations of the next steps, which show the slow rank. The validator in
the job, if it has one (docs/watch.md), confirms it between two steps. Then the planner says what to
do. With --pause all ranks stop at one collective instead, while other processes on the same GPUs
are validated (docs/pause.md).
"""
#: The recorder writes once a second.
_LOOK_S = 0.5
#: Events that the monitor cannot see in step times, and the time limit to send one.
_FOR_MONITORS = ("paused", "not-paused", "validated", "not-validated")
_PATIENCE_S = 10.0


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
        help="call logs of the job, read at an onset: they may show the slow rank before a trace",
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
        "--no-stacks",
        action="store_true",
        help="at a hang, do not read the stacks of the job's processes on this host (py-spy)",
    )
    parser.add_argument(
        "--pause",
        action="store_true",
        help="after an onset, stop all ranks at one collective with the NCCL plugin, and validate "
        "meanwhile; at most once in 10 minutes",
    )
    for name, default, text in (
        ("for", "20s", "longest time for which all ranks stop"),
        ("arrive", "10s", "longest wait of the first rank for the last"),
    ):
        parser.add_argument(
            f"--pause-{name}",
            metavar="TIME",
            default=default,
            help=f"with --pause: {text} (default {default})",
        )
    parser.add_argument(
        "--monitor",
        metavar="URL",
        nargs="?",
        const="",
        help="report pauses and validations to a monitor (default: $PACELINE_MONITOR; "
        "$PACELINE_TOKEN)",
    )
    parser.add_argument(
        "--name", metavar="JOB", help="the job's name there (default: $PACELINE_JOB, the folder's)"
    )
    parser.add_argument(
        "--overheads",
        metavar="LIST",
        help="one-off costs of strategies in seconds, as in paceline mitigate, such as "
        "s2=5,s4=never",
    )
    parser.add_argument(
        "--events", metavar="FILE", type=file_name, help="append each event as a line of JSON"
    )
    parser.add_argument("--once", action="store_true", help="read the present files, then end")
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
    overheads = parse_overheads(args.overheads)
    examine = _examine(args) if args.pause else None
    watch: Watch | CallsWatch
    if has_calls(args.folder) and not any(args.folder.glob("rank-*")):
        watch = CallsWatch(
            args.folder, overheads=overheads, examine=examine, stacks=not args.no_stacks
        )
    else:
        watch = Watch(
            args.folder,
            collectives=args.collectives,
            overheads=overheads,
            steps=args.steps,
            validate=not args.no_validation,
            examine=examine,
            stacks=not args.no_stacks,
        )
    tell = _teller(args)
    if not args.json:
        print(f"watching {args.folder}; Ctrl-C ends", file=sys.stderr)
    while True:
        said = watch.look()
        for news in said:
            line = json.dumps(news.to_mapping())
            print(line if args.json else news.line(), flush=True)
            if args.events:
                _append(args.events, line)
            if news.kind in _FOR_MONITORS:
                tell(news)
        if args.once and not any(news.kind == "pause-asked" for news in said):
            return 0
        time.sleep(_LOOK_S)


def _teller(args: argparse.Namespace) -> Callable[[News], None]:
    """Reports to the monitor, if there is one; if it does not answer, the watch goes on.

    Raises:
        MonitorError: no address.
    """
    from paceline.client import Client
    from paceline.errors import MonitorError

    if args.monitor is None:
        return lambda news: None
    url = args.monitor or os.environ.get("PACELINE_MONITOR", "")
    client = Client(url, patience_s=_PATIENCE_S)
    name = args.name or os.environ.get("PACELINE_JOB") or args.folder.resolve().name

    def tell(news: News) -> None:
        ranks = news.fields.get("confirmed", ())
        try:
            client.push_event(name, news.kind, news.step, news.text, at=news.at_s, ranks=ranks)
        except MonitorError as error:
            print(f"note: the monitor was not told: {error}", file=sys.stderr)

    return tell


def _examine(args: argparse.Namespace) -> Examine:
    """Pauses the job and validates its ranks with processes on this machine.

    Raises:
        PauseError: the plugin does not write there, or PyTorch is not installed.
    """
    from paceline.errors import PauseError
    from paceline.pause.asker import Times, check_folder
    from paceline.pause.validation import measure_here, pause_and_validate
    from paceline.quantities import parse_quantity

    check_folder(args.folder)
    if not validate.has_torch():
        raise PauseError(f"--pause needs PyTorch; install it: {pip_install('profile')}")
    times = Times(
        hold_s=parse_quantity(args.pause_for, "seconds"),
        arrive_s=parse_quantity(args.pause_arrive, "seconds"),
    )
    return lambda: pause_and_validate(args.folder, times, measure_here)


def _append(path: Path, line: str) -> None:
    from paceline.errors import OutputError

    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from None
