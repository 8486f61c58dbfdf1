"""``paceline record``: the files of a running recorder, and its switch."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.commands import HELP
from paceline.cli.trace_input import file_name

if TYPE_CHECKING:
    from paceline.sources.recording.files import RankFile

EPILOG = """\
examples:
  paceline record status runs/job-17
  paceline record off runs/job-17
  paceline record on runs/job-17 --every 50
  paceline record on runs/job-17 --now 5

The job records if its loop calls paceline.record (docs/record.md), or its trainer has our callback,
or PACELINE_RECORD names the folder (docs/integrations.md). The recorder looks for the switch once a
second; step times are kept while it is off.
"""


_NOTHING = (
    "no process records into it. If PACELINE_RECORD names it, the job's Python needs the start-up "
    "file paceline_record.pth. An editable install lacks that file (docs/integrations.md)"
)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "record",
        help=HELP["record"],
        description="Files of a running job's recorder, and its switch.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("status", "on", "off"), help="what to do")
    parser.add_argument("folder", metavar="FOLDER", type=file_name, help="the run's folder")
    parser.add_argument(
        "--every", type=int, metavar="N", help="with on: record the operations of every Nth step"
    )
    parser.add_argument(
        "--now",
        type=int,
        metavar="N",
        help="with on: record the operations of the next N steps at once, on all ranks",
    )
    parser.add_argument("--json", action="store_true", help="with status: print a JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show or switch."""
    from paceline.errors import TraceError

    if args.action == "status":
        for option in ("every", "now"):
            if getattr(args, option) is not None:
                raise TraceError(f"--{option} is for on")
        return _status(args.folder, as_json=args.json)
    if args.json:
        raise TraceError("--json is for status")
    if args.every is not None and (args.action == "off" or args.every < 1):
        raise TraceError("--every is for on, and counts from 1")
    if args.now is not None:
        if args.action == "off" or args.every is not None:
            raise TraceError("--now is for on, without --every")
        return _now(args.folder, args.now)
    from paceline.sources.recording.status import switch

    switch(args.folder, on=args.action == "on", every=args.every)
    print(f"{args.folder}: {args.action}, from about a second on")
    return 0


def _now(folder: Path, steps: int) -> int:
    """Ask for the next steps, counted from the newest step in the folder."""
    import numpy as np

    from paceline.sources.recording import load_recorded_step_times
    from paceline.sources.recording.status import record_now

    times = load_recorded_step_times(folder)
    step_s = float(np.nanmedian(times.duration_s[-50:]))
    until = record_now(folder, steps, last_step=int(times.steps[-1]), step_s=step_s)
    print(f"{folder}: from now on, the operations of all steps up to {until:,} will be recorded")
    return 0


def _status(folder: Path, *, as_json: bool) -> int:
    from paceline.errors import TraceError
    from paceline.sources.recording.files import read_files
    from paceline.sources.recording.status import summary

    if not folder.exists():
        raise TraceError(f"{folder} does not exist: {_NOTHING}")
    files = read_files(folder)
    status = summary(folder, files)
    if as_json:
        print(json.dumps(status, indent=2))
        return 0
    ranks_text = f"{status['ranks_seen']} of {status['ranks']} ranks"
    switch = f", switched {status['switch']}" if status["switch"] else ""
    print(
        f"{_printable(status['run'])}: {ranks_text}, "
        f"{status['common_steps']} steps on all of them{switch}"
    )
    if status["missing_ranks"]:
        print(f"no file of rank {', '.join(map(str, status['missing_ranks'][:16]))}")
    print("rank  host              steps   times  dropped      bytes     written  clock")
    for file in files:
        print(_line(file))
    for line in _notes(status):
        print(line)
    return 0


def _notes(status: dict[str, Any]) -> Iterator[str]:
    """The recorded parts of a job; for the others, how to record them."""
    for note in status["recorded"]:
        yield f"recorded: {_printable(note['recorded'])}{_ranks(note, status)}"
    for note in status["not_recorded"]:
        yield f"not recorded: {_printable(note['not_recorded'])}{_ranks(note, status)}"
        yield f"  {_printable(note['how'])}"


def _ranks(note: dict[str, Any], status: dict[str, Any]) -> str:
    """The ranks in this state, unless all are."""
    ranks = note["ranks"]
    if len(ranks) == status["ranks_seen"]:
        return ""
    more = ", ..." if len(ranks) > 8 else ""
    return f" (rank {', '.join(map(str, ranks[:8]))}{more})"


def _line(file: RankFile) -> str:
    clock = "-" if file.residual_ns is None else f"±{file.residual_ns / 1e3:.0f} us"
    host, age = _printable(file.meta.get("host"))[:16], f"{_age(file.age_s)} ago"
    torn = "  unfinished block at the end" if file.torn_bytes else ""
    return (
        f"{file.rank:4d}  {host:16s} {len(file.steps):6,d} "
        f"{len(file.times):7,d} {sum(file.dropped):8,d} {file.n_bytes:10,d} {age:>11s}  "
        f"{clock}{torn}"
    )


def _printable(name: object) -> str:
    """A name from a file, without the control characters of a terminal."""
    return "".join(c for c in str(name) if c.isprintable())


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
