"""``paceline diagnose``: the causes of a job's slowness, and the gain of each fix."""

from __future__ import annotations

import argparse
import sys

from paceline.cli import case_input, trace_input
from paceline.cli.case_input import CaseInput
from paceline.cli.commands import HELP

EPILOG = """\
examples:
  paceline diagnose trace.parquet --job meta.yaml
  paceline diagnose trace.parquet --seqlens seqlens.parquet --layers 9,9,9,9 --hosts hosts.csv
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "diagnose",
        help=HELP["diagnose"],
        description="Find the causes of a job's slowness and the share of the loss that each "
        "explains, where the time goes, and the gain of each remedy.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace_input.add_arguments(parser)
    case_input.add_steps(parser)
    case_input.add_arguments(parser)
    parser.add_argument(
        "--all", action="store_true", help="say why a remedy does not apply, for each of them"
    )
    case_input.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Diagnose and print."""
    from paceline.remedies import REMEDIES, advise
    from paceline.results.document import JobReport

    case = CaseInput.of(args, args.steps).case()
    report = JobReport.of(case.result, advise(case, REMEDIES))
    if args.json:
        from paceline.report.result_json import lines_of_json
        from paceline.results.keys import DIAGNOSIS_KEYS, WARNING_KEYS
        from paceline.results.record import write_record

        sys.stdout.write(lines_of_json(write_record(report, (*DIAGNOSIS_KEYS, *WARNING_KEYS))))
        return 0
    from paceline.report.terminal import print_lines, standard_output
    from paceline.report.why import diagnosis_lines

    console = standard_output()
    width = min(console.width, 120)
    lines = diagnosis_lines(report, width, args.gpu_hour_cost, every=args.all)
    print_lines(lines, console)
    return 0
