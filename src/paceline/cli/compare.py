"""``paceline compare``: two traces of a job side by side, to see whether a fix worked."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paceline.cli import case_input, trace_input


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "compare",
        help="two traces side by side: did the fix work?",
        description="Analyse and diagnose two traces; print step times, S, waste and what each "
        "cause costs, side by side.",
    )
    trace_input.add_arguments(parser, name="before", help_text="the trace before the change")
    parser.add_argument("after", metavar="AFTER", type=Path, help="the trace after the change")
    parser.add_argument(
        "--job-after", metavar="YAML", type=Path, help="the job of AFTER, if another than --job"
    )
    case_input.add_json(parser)
    parser.set_defaults(run=run, steps=None, layers=None, seqlens=None, hosts=None)


def run(args: argparse.Namespace) -> int:
    """Analyse both and print."""
    from paceline.remedies import advise

    sides = []
    for trace, job in ((args.before, args.job), (args.after, args.job_after or args.job)):
        given = argparse.Namespace(**{**vars(args), "trace": trace, "job": job})
        case = case_input.load_case(given)
        sides.append((case.result, advise(case, ())))
    if args.json:
        from paceline.report.result_json import lines_of_json, to_mapping

        names = ("before", "after")
        both = {n: to_mapping(*side) for n, side in zip(names, sides, strict=True)}
        sys.stdout.write(lines_of_json(both))
        return 0
    from paceline.report.terminal import print_lines, standard_output
    from paceline.report.why import compare_lines

    console = standard_output()
    print_lines(compare_lines(sides[0], sides[1], min(console.width, 120)), console)
    return 0
