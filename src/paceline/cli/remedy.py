"""``paceline remedy``: the gain of one change to the job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli import case_input, trace_input
from paceline.cli.case_input import CaseInput
from paceline.cli.commands import HELP

if TYPE_CHECKING:
    from paceline.remedies import Case, RemedyKind

EPILOG = """\
examples:
  paceline remedy trace.parquet --list
  paceline remedy trace.parquet stage-layout --layers 9,9,9,9 --min-layers 1
  paceline remedy trace.parquet sequence-balance --max-tokens 32768
"""

#: Options of remedies: flag, value, meaning.
OPTIONS: tuple[tuple[str, type, str, str], ...] = (
    ("--min-layers", int, "N", "stage-layout: layers that every stage keeps at least"),
    ("--max-layers", int, "N", "stage-layout: layers that a stage's memory holds at most"),
    ("--max-tokens", int, "N", "sequence-balance: tokens that a microbatch holds at most"),
    ("--chunks", int, "N", "interleave: chunks per stage"),
    ("--buckets", int, "N", "overlap-dp: parts in which a chunk's gradients are reduced"),
    ("--every-steps", int, "N", "planned-gc: steps between collections"),
    ("--distance", int, "N", "prefetch: number of units by which gathers run ahead"),
    ("--bucket-size", float, "X", "bucket-size: factor on the present size (0.5, 2, 4, ...)"),
    ("--latency-us", float, "US", "bucket-size, shard-groups: time of a very small all-reduce"),
    ("--shard", int, "N", "shard-groups: ranks that share one copy of the parameters"),
    ("--ranks-per-node", int, "N", "shard-groups: ranks (GPUs) of a node"),
    (
        "--node-speedup",
        float,
        "X",
        "shard-groups: speed of links within a node over that of a network adapter",
    ),
    ("--backend", str, "NAME", "shard-groups: nccl or gloo"),
    ("--hide", str, "KIND", "hide-delays: late-workers, step-start, a kind of operation, or all"),
)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "remedy",
        help=HELP["remedy"],
        description="Predict by simulation the gain of a change to the job.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace_input.add_arguments(parser)
    # Not nargs="?": if options stand before the name, argparse would take it as missing.
    name = parser.add_argument("remedy", metavar="[REMEDY]", help="name of the remedy, see --list")
    name.required = False
    parser.add_argument(
        "--list", action="store_true", help="all remedies, and which of them apply to this trace"
    )
    case_input.add_steps(parser)
    case_input.add_arguments(parser)
    options = parser.add_argument_group("options of single remedies")
    for flag, kind, metavar, text in OPTIONS:
        options.add_argument(flag, type=kind, metavar=metavar, help=text)
    options.add_argument(
        "--assignment-out",
        type=Path,
        metavar="FILE",
        help="sequence-balance: write which sequence goes where (parquet)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    case_input.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict and print; a remedy that does not apply is no error."""
    from paceline.errors import NotApplicableError, RemedyError
    from paceline.files import check_not_input, check_targets
    from paceline.remedies import REMEDIES

    kinds = {kind.name: kind for kind in REMEDIES}
    if args.list or args.remedy is None:
        return _list(args, REMEDIES)
    if args.remedy not in kinds:
        raise RemedyError(f"there is no remedy {args.remedy!r}; known are {', '.join(kinds)}")
    if args.assignment_out:
        check_not_input([args.assignment_out], [args.trace, args.job, args.seqlens])
        check_targets([args.assignment_out], force=args.force)
    case = _case(args)
    try:
        remedy = kinds[args.remedy].proposed(case)
    except NotApplicableError as reason:
        _print_reason(args, str(reason))
        return 0
    if args.assignment_out and args.remedy == "sequence-balance":
        from paceline.remedies.sequence_search import balance_of

        balance_of(case).write(args.assignment_out, force=args.force)
    if args.json:
        _print_json({"applies": True, **remedy.to_mapping(), **_warnings(case)})
        return 0
    from paceline.report.terminal import print_lines, standard_output
    from paceline.report.why import remedy_lines

    console = standard_output()
    width, reduces = min(console.width, 120), case.measured.graph.all_reduces
    n_steps = len(case.result.steps)
    print_lines(remedy_lines(remedy, width, n_steps, all_reduces=reduces), console)
    _print_warnings(case)
    return 0


def _print_reason(args: argparse.Namespace, reason: str) -> None:
    if args.json:
        _print_json({"remedy": args.remedy, "applies": False, "reason": reason})
    else:
        print(f"{args.remedy} does not apply: {reason}")


def _warnings(case: Case) -> dict[str, Any]:
    from paceline.results.document import JobReport
    from paceline.results.keys import WARNING_KEYS
    from paceline.results.record import write_record

    return write_record(JobReport.of(case.result), WARNING_KEYS)


def _print_warnings(case: Case) -> None:
    from paceline.report.terminal import print_lines, standard_output
    from paceline.report.warnings import doubt_lines

    console = standard_output()
    print_lines(doubt_lines(case.result, min(console.width, 120)), console)


def _print_json(mapping: dict[str, Any]) -> None:
    from paceline.report.result_json import lines_of_json

    sys.stdout.write(lines_of_json(mapping))


def _case(args: argparse.Namespace) -> Case:
    names = [flag[2:].replace("-", "_") for flag, *_ in OPTIONS]
    options: dict[str, Any] = {n: getattr(args, n) for n in names if getattr(args, n) is not None}
    return CaseInput.of(args, args.steps).case(options)


def _list(args: argparse.Namespace, kinds: tuple[RemedyKind, ...]) -> int:
    from paceline.remedies import propose_all

    case = _case(args)
    proposed, refused = propose_all(case, kinds)
    by_list = {
        architecture: [r for r in proposed if r.architecture == architecture]
        for architecture in (False, True)
    }
    if args.json:
        _print_json(
            {
                "remedies": [r.to_mapping() for r in by_list[False]],
                "architecture": [r.to_mapping() for r in by_list[True]],
                "refused": refused,
                **_warnings(case),
            }
        )
        return 0
    gains = {r.remedy: r.gain for r in proposed}
    for architecture in (False, True):
        if architecture:
            print("changes of the job's architecture:")
        for kind in (kind for kind in kinds if kind.architecture == architecture):
            gain = f"{gains[kind.name]:6.1%}" if kind.name in gains else f"{'-':>6}"
            print(f"{gain}  {kind.name:20} {kind.summary}")
            if kind.name in refused:
                print(f"        {'':20} {refused[kind.name]}")
    _print_warnings(case)
    return 0
