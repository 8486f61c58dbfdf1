"""``paceline ranks``: a report on profiles of single ranks, without the rest of the job."""

from __future__ import annotations

import argparse
import json

from paceline.cli.commands import HELP
from paceline.cli.trace_input import file_name

EPILOG = """\
examples:
  paceline ranks rank0.pt.trace.json.gz
  paceline ranks traces/ --json
  paceline ranks report.sqlite

For profiles of torch.profiler and exports of Nsight Systems, of any ranks of a job. PyTorch
profiles of all ranks show more: slow ranks, and the gain of each fix; see paceline import.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "ranks",
        help=HELP["ranks"],
        description="Break down the time of each rank's device, step by step: computing, exposed "
        "and hidden communication, copies, idle time, the kernels that take longest.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", type=file_name, help="profiles, or folders of them"
    )
    parser.add_argument(
        "--without-last-step",
        action="store_true",
        help="leave out the last ProfilerStep of each file, as HTA does",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, and print."""
    from paceline.ranks import rank_report
    from paceline.sources.devices import FORMATS
    from paceline.sources.importers import files_of

    _, files, n_left_out = files_of(args.paths, None, FORMATS)
    report = rank_report(files, last_step=not args.without_last_step)
    if args.json:
        print(json.dumps({**report.to_mapping(), "files_left_out": n_left_out}))
        return 0
    from paceline.report.ranks import ranks_lines
    from paceline.report.terminal import print_lines, standard_output

    console = standard_output()
    print_lines(ranks_lines(report, console.width), console)
    if n_left_out:
        print(f"{n_left_out} other files in the folder left out")
    return 0
