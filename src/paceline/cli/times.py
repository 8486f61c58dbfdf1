"""``paceline times``: times that hosts measured, from files that do not make a trace."""

from __future__ import annotations

import argparse
import json

from paceline.cli.commands import HELP
from paceline.cli.trace_input import file_name

EPILOG = """\
examples:
  paceline times runs/job-18                # Megatron-LM's spans, of one rank or of all
  paceline times train.log --json

Step times, computes per rank and late ranks, from the hosts' own clocks. If all ranks sent all
spans, paceline import makes a trace, which shows more.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "times",
        help=HELP["times"],
        description="Report times that hosts measured: step times, computes per rank, late ranks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", type=file_name, help="files, or folders of them"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read and print."""
    from paceline.detect.host_times import report_times
    from paceline.report.host_times import times_lines
    from paceline.sources.host_times import load_host_times

    report = report_times(load_host_times(args.paths))
    if args.json:
        print(json.dumps(report.to_mapping()))
    else:
        print("\n".join(times_lines(report)))
    return 0
