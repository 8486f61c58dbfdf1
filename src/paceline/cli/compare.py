"""``paceline compare``: two traces of a job side by side, to see whether a fix worked."""

from __future__ import annotations

import argparse
import math
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from paceline.cli import case_input, trace_input
from paceline.cli.case_input import CaseInput
from paceline.cli.commands import HELP
from paceline.cli.numbers import parse_numbers
from paceline.cli.progress import ProgressBar
from paceline.cli.trace_input import TraceInput

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.comparison import Comparison

DESCRIPTION = """\
Analyse and diagnose two traces. Say how the step time changed and how much each cause, kind of
operation, stage, worker and host contributed, with 90% intervals. Unlike jobs are refused without
--anyway.
"""

EXAMPLES = """\
examples:
  paceline compare before.parquet after.parquet
  paceline compare before.parquet after.parquet --steps 10-40 -o comparison.html
  paceline compare before.parquet after.parquet --out out/
  paceline compare week1.parquet week2.parquet --hosts hosts.csv --json
  paceline compare dp2.parquet dp4.parquet --anyway
"""

_SIDES = ("before", "after")

#: Files of a folder that ``--out`` names, as ``analyze`` calls its own.
PAGE, DOCUMENT = "report.html", "result.json"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "compare",
        help=HELP["compare"],
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace_input.add_arguments(parser, name="before", help_text="the trace before the change")
    parser.add_argument(
        "after", metavar="AFTER", type=trace_input.file_name, help="the trace after the change"
    )
    parser.add_argument(
        "--job-after",
        metavar="YAML",
        type=trace_input.file_name,
        help="the job of AFTER, if it is not --job",
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="compare unlike jobs: by step; by microbatch where their numbers differ; by token if "
        "the tokens of both are given",
    )
    _add_known(parser)
    case_input.add_json(parser)
    parser.add_argument(
        "-o",
        "--output",
        "--out",
        type=trace_input.file_name,
        metavar="PATH",
        help="write the comparison as a page that opens from disk: a name with .html is the page, "
        f"any other a folder for {PAGE} and {DOCUMENT}",
    )
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")
    parser.set_defaults(run=run)


def _add_known(parser: argparse.ArgumentParser) -> None:
    """Options that describe both jobs, or one of them, in addition to the traces."""
    case_input.add_steps(parser)
    group = parser.add_argument_group("facts that the traces do not hold")
    group.add_argument(
        "--hosts",
        metavar="FILE",
        type=trace_input.file_name,
        help="where ranks run (CSV: rank, host, gpu), in both jobs",
    )
    for side in _SIDES:
        name = side.upper()
        parser.add_argument(
            f"--steps-{side}",
            metavar="N-M,...",
            type=parse_numbers,
            help=f"the steps of {name}, instead of --steps",
        )
        group.add_argument(
            f"--hosts-{side}",
            metavar="FILE",
            type=trace_input.file_name,
            help=f"where the ranks of {name} run, instead of --hosts",
        )
        group.add_argument(
            f"--seqlens-{side}",
            metavar="FILE",
            type=trace_input.file_name,
            help=f"sequence lengths of {name}: both jobs must have the same tokens, or times are "
            "per token",
        )
        group.add_argument(
            f"--tokens-{side}",
            metavar="N",
            type=_tokens,
            help=f"tokens of a step of {name}, where there are no sequence lengths",
        )
        group.add_argument(
            f"--layers-{side}",
            metavar="N,N,...",
            type=case_input.parse_layers,
            help=f"layers of each stage of {name}: the sums of both jobs must agree",
        )


def _tokens(text: str) -> float:
    try:
        tokens = float(text)
    except ValueError:
        tokens = math.nan
    if not (math.isfinite(tokens) and tokens > 0):
        raise argparse.ArgumentTypeError(f"{text!r} should be a positive number, such as 1048576")
    return tokens


def run(args: argparse.Namespace) -> int:
    """Analyse both, print, and write the page if it is asked for."""
    from paceline.errors import ComparisonError

    _check_output(args)
    try:
        comparison = _compare(args)
    except ComparisonError as error:
        from paceline.report.comparison import refusal_lines

        first, *rest = refusal_lines(error)
        print(f"paceline: error: {first}", *rest, sep="\n", file=sys.stderr)
        return 2
    if args.output is not None:
        _write(comparison, args.output, force=args.force)
    if args.json:
        from paceline.report.comparison import dumps

        sys.stdout.write(dumps(comparison))
    else:
        from paceline.report.comparison import comparison_lines
        from paceline.report.terminal import print_lines, standard_output

        console = standard_output()
        print_lines(comparison_lines(comparison, min(console.width, 132)), console)
    if args.output is not None:
        print(f"wrote {args.output}", file=sys.stderr)
    return 0


def _targets(output: Path) -> list[Path]:
    """The page alone, or the page and the document in a folder."""
    if output.suffix.lower() in (".html", ".htm"):
        return [output]
    return [output / PAGE, output / DOCUMENT]


def _write(comparison: Comparison, output: Path, *, force: bool) -> None:
    from paceline.files import make_folder, text_writer, write_files
    from paceline.report.comparison import dumps, page_writer

    page, *document = _targets(output)
    if document:
        make_folder(output)
    writers = {page: page_writer(comparison)}
    writers |= {path: text_writer(dumps(comparison)) for path in document}
    write_files(writers, force=force)


def _check_output(args: argparse.Namespace) -> None:
    """Before the long work: may the files be written?"""
    from paceline.errors import OutputError
    from paceline.files import check_folder_of, check_not_input, check_targets

    if args.output is None:
        return
    inputs = ("before", "after", "job", "job_after", "hosts")
    sides = (f"{what}_{side}" for what in ("hosts", "seqlens") for side in _SIDES)
    targets = _targets(args.output)
    check_not_input([args.output, *targets], [getattr(args, name) for name in (*inputs, *sides)])
    if len(targets) > 1 and args.output.exists() and not args.output.is_dir():
        raise OutputError(
            f"{args.output} is a file; --out takes a folder, or the name of a page (.html)"
        )
    check_targets(targets, force=args.force)
    if len(targets) == 1 or args.output.is_dir():
        check_folder_of(targets[0])


def _compare(args: argparse.Namespace) -> Comparison:
    from paceline.comparison import check_alike, compare

    before, after = (_side(args, side) for side in _SIDES)
    measured_before, measured_after = before.trace.measured(), after.trace.measured()
    if not args.anyway:
        check_alike(measured_before, measured_after)  # before the analysis, which may take a while
    case_before, case_after = before.analyzed(measured_before), after.analyzed(measured_after)
    with Bars() as bars:
        return compare(
            case_before,
            case_after,
            anyway=args.anyway,
            hosts_before=before.places(measured_before),
            hosts_after=after.places(measured_after),
            tokens_before=args.tokens_before,
            tokens_after=args.tokens_after,
            names=(str(args.before), str(args.after)),
            progress=bars.bar,
        )


class Bars:
    """A progress bar for each piece of work in turn."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def bar(self, what: str) -> ProgressBar:
        """The next one."""
        self._stack.close()
        return self._stack.enter_context(ProgressBar(what))

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _side(args: argparse.Namespace, side: str) -> CaseInput:
    """One trace and its facts: its own options, otherwise the options for both."""
    trace = TraceInput(
        path=getattr(args, side),
        job=(args.job_after if side == "after" else None) or args.job,
        steps=getattr(args, f"steps_{side}") or args.steps,
        ignore_kinds=args.ignore_kinds,
        keep_clocks=args.keep_clocks,
    )
    return CaseInput(
        trace,
        layers=getattr(args, f"layers_{side}"),
        seqlens=getattr(args, f"seqlens_{side}"),
        hosts=getattr(args, f"hosts_{side}") or args.hosts,
    )
