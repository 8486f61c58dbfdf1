"""``paceline analyze``: what stragglers cost a job, and which parts of it cost it."""

from __future__ import annotations

import argparse
import sys

from paceline.cli import case_input, trace_input
from paceline.cli.progress import ProgressBar

DESCRIPTION = """\
Simulate the traced job with its stragglers and without; say how much they cost, and
which kinds of operation, stages, replicas, workers and steps cost it.
"""

EXAMPLES = """\
examples:
  paceline analyze trace.parquet --job meta.yaml --out out/
  paceline analyze trace.parquet --steps 10-20,25 --json
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "analyze",
        help="what stragglers cost a job, and which parts of it cost it",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace_input.add_arguments(parser)
    case_input.add_steps(parser)
    case_input.add_arguments(parser)
    parser.add_argument(
        "--no-diagnose",
        action="store_true",
        help="leave out causes, remedies and the report; the numbers only",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=trace_input.file_name,
        help="write result.json, by_worker.csv, report.html and ideal.json.gz (for Perfetto) into "
        "this folder",
    )
    case_input.add_json(parser, "result.json")
    parser.add_argument(
        "--per-step-workers",
        action="store_true",
        help="add the slowdown of every worker in every step to result.json",
    )
    parser.add_argument("--force", action="store_true", help="overwrite files in --out")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Analyse, print, and write what is asked for."""
    from paceline.graph import from_trace
    from paceline.whatif import analyze

    if args.out is not None:
        from paceline.report.folder import check_folder, write_folder

        check_folder(args.out, force=args.force)
    # The trace itself is let go before the analysis: it is as large as what is made of it.
    measured = from_trace(trace_input.load_trace(args, args.steps), keep_clocks=args.keep_clocks)
    with ProgressBar("simulating") as progress:
        result = analyze(measured, progress=progress)
    advice = None
    if not args.no_diagnose:
        from paceline.remedies import REMEDIES, advise

        advice = advise(case_input.diagnosed(args, measured, result), REMEDIES)
    notes: tuple[str, ...] = ()
    if args.out is not None:
        notes = write_folder(
            result,
            measured,
            args.out,
            advice=advice,
            hosts=case_input.hosts(args, measured),
            gpu_hour_cost=args.gpu_hour_cost,
            per_step_workers=args.per_step_workers,
            force=args.force,
        )
    if args.json:
        from paceline.report.result_json import dumps

        sys.stdout.write(dumps(result, advice, per_step_workers=args.per_step_workers))
    else:
        from paceline.report.terminal import print_result

        print_result(result, advice=advice)
    for note in notes:
        print(note, file=sys.stderr)
    return 0
