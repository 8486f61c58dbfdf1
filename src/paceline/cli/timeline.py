"""``paceline timeline``: draw a job, as measured or as simulated, for Perfetto."""

from __future__ import annotations

import argparse
import sys

from paceline.cli import trace_input
from paceline.cli.commands import HELP
from paceline.cli.numbers import parse_numbers
from paceline.cli.trace_input import TraceInput

EPILOG = """\
scenarios:
  traced            the operations as recorded (no arrows, no critical path)
  actual, replayed  simulated with measured durations and launch delays: the job as it was
  simulated, measured
                    simulated with measured durations, without launch delays
  ideal             simulated with the ideal duration of each kind: no stragglers
  only:X            X as measured, all else ideal
  without:X         X ideal, all else as measured
with X one of kind=LABEL, stage=N, replica=N, worker=DP,PP
Several, with commas between them, lie above one another in one file.

examples:
  paceline timeline trace.parquet --scenario actual,simulated,ideal --steps 7 -o step7.json.gz
  paceline timeline trace.parquet --scenario ideal -o ideal.json.gz
  paceline timeline trace.parquet --scenario without:worker=3,1 --steps 5-6 -o fixed.json.gz

Open the file in https://ui.perfetto.dev (it stays in your browser) or chrome://tracing.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "timeline",
        help=HELP["timeline"],
        description="Write the begin and end of every operation, measured or simulated, as a "
        "Chrome trace.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace_input.add_arguments(parser)
    parser.add_argument(
        "--scenario",
        metavar="S[,S...]",
        required=True,
        help="the scenarios to draw; see below",
    )
    trace_input.add_output(parser, "the file to write; gzipped if its name ends in .gz")
    parser.add_argument(
        "--steps",
        metavar="N-M,...",
        type=parse_numbers,
        help="draw these steps, by number (default: the first that is analysed)",
    )
    parser.add_argument(
        "--replicas",
        metavar="N-M,...",
        type=parse_numbers,
        help="draw these data-parallel ranks (default: all)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw and write."""
    from paceline.files import check_not_input, check_targets, write_files
    from paceline.report.perfetto import trace_writer
    from paceline.report.timeline import draw, scenarios_of

    scenarios_of(args.scenario)
    check_not_input([args.output], [args.trace, args.job])
    check_targets([args.output], force=args.force)
    trace = TraceInput.of(args).load()
    drawing = draw(
        trace,
        args.scenario,
        steps=args.steps,
        replicas=args.replicas,
        keep_clocks=args.keep_clocks,
    )
    compress = args.output.suffix == ".gz"
    writer = trace_writer(drawing.scenes, trace.job, drawing.about, compress=compress)
    write_files({args.output: writer}, force=args.force)
    for note in drawing.notes:
        print(f"note: {note}", file=sys.stderr)
    n_events = sum(len(scene.events) for scene in drawing.scenes)
    print(f"wrote {args.output}: {n_events:,} operations; open it in ui.perfetto.dev")
    return 0
