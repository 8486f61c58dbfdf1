"""``paceline fleet``: every trace of a folder or bucket, as one dataset and its figures."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from paceline.cli import case_input, engine_input, trace_input
from paceline.cli.commands import HELP
from paceline.cli.progress import ProgressBar
from paceline.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.fleet.rules import RuleOptions
    from paceline.fleet.run import RunOptions
    from paceline.fleet.study import Study

DESCRIPTION = """\
Analyse every trace of a folder or bucket into one dataset: study/jobs (a row per trace),
study/steps, summary.json and report.html. The report has the what-if paper's figures for these
jobs. After an interruption, the same command continues.
"""

EXAMPLES = """\
examples:
  paceline fleet traces/ -o study/
  paceline fleet s3://bucket/2026-10/ -o s3://bucket/study/
  paceline fleet --manifest jobs.csv -o study/ --min-gpus 128
  paceline fleet traces/ -o study/ --engine ray --address auto
  paceline fleet study/ --report
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "fleet",
        help=HELP["fleet"],
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "traces",
        metavar="TRACES",
        nargs="?",
        help="folder of traces, or an address that fsspec knows (s3://bucket/2026-10/)",
    )
    parser.add_argument(
        "--manifest",
        metavar="FILE",
        type=trace_input.file_name,
        help="CSV or parquet table of the traces: path, and job, meta, hosts, gpus, restarts, "
        "gpu_hours, max_seq_len, team, started or any label",
    )
    parser.add_argument("-o", "--output", metavar="STUDY", help="folder or address of the study")
    parser.add_argument(
        "--report",
        action="store_true",
        help="TRACES is a study: write its summary.json and report.html again, analyse nothing",
    )
    parser.add_argument(
        "--by",
        metavar="LABEL,...",
        type=_labels,
        help="group the jobs by these columns of the manifest, too",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if a trace could not be analysed"
    )
    _add_rules(parser)
    _add_analysis(parser)
    _add_engine(parser)
    parser.set_defaults(run=run)


def _add_rules(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("rules for the jobs that count (the others keep their rows)")
    for name, kind, default, about in (
        ("--max-restarts", _whole, 15, "most restarts of a job that counts"),
        ("--max-discrepancy", _share, 0.05, "largest difference between simulation and trace"),
        ("--min-steps", _whole, 2, "fewest whole steps of a trace"),
        ("--min-gpus", _whole, 0, "fewest GPUs of a job; the paper takes 128"),
    ):
        group.add_argument(
            name, metavar="N", type=kind, default=default, help=f"{about} (default: {default})"
        )


def _add_analysis(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how each trace is analysed (as by paceline analyze)")
    case_input.add_steps(group)
    group.add_argument(
        "--ignore-kinds",
        metavar="KIND,...",
        type=trace_input.parse_kinds,
        default=(),
        help="drop operations of these kinds",
    )
    group.add_argument(
        "--keep-clocks", action="store_true", help="do not correct clock offsets between workers"
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine, and its limits")
    engine_input.add_engine(group, "processes here")
    group.add_argument(
        "--processes",
        metavar="N",
        type=_whole,
        help="processes of the local engine; 0: this process alone (default: one per processor)",
    )
    group.add_argument(
        "--timeout", metavar="TIME", type=_seconds, help="time limit for one trace (90 s, 5 min)"
    )
    group.add_argument(
        "--memory",
        metavar="SIZE",
        type=_bytes,
        help="memory that analyses on one machine may take (default: 80%% of the free memory)",
    )
    group.add_argument(
        "--again",
        action="store_true",
        help="repeat the analysis of traces that exceeded a limit or whose process was killed",
    )


def run(args: argparse.Namespace) -> int:
    """Analyse, and print a summary."""
    if args.report:
        return _report_again(args)
    if args.output is None:
        raise FleetError("give the study's folder or address: -o study/")
    from paceline.fleet.keys import AnalysisOptions
    from paceline.fleet.run import fleet
    from paceline.report import fleet as fleet_page

    steps = None if args.steps is None else tuple(args.steps)
    with redirect_stdout(sys.stderr), ProgressBar("analysing") as progress:  # Ray prints there
        study = fleet(
            args.traces,
            args.output,
            manifest=args.manifest,
            analysis=AnalysisOptions(steps, tuple(args.ignore_kinds), args.keep_clocks),
            rules=_rules(args),
            run=_run_options(args),
            by=args.by or (),
            progress=progress,
        )
    page = fleet_page.write(study)
    counts = study.about["counts"]
    print(f"{args.output}: {_sentence(counts)}")
    _print_finding(study)
    print(f"report: {page}")
    return _report_failures(counts, study.about["ignored_files"], strict=args.strict)


def _report_again(args: argparse.Namespace) -> int:
    """Write summary and page of an existing study."""
    from paceline.fleet.study import Study
    from paceline.report import fleet as fleet_page

    if args.traces is None or args.output is not None or args.manifest is not None:
        raise FleetError("--report takes only the study: paceline fleet study/ --report")
    study = Study(args.traces, by=args.by)
    study.write_summary()
    page = fleet_page.write(study)
    _print_finding(study)
    print(f"report: {page}")
    return 0


def _print_finding(study: Study) -> None:
    from paceline.report.fleet_coverage import left_out

    print(_finding(study.summary))
    words = left_out(study.summary, study.about.get("rules", {}))
    if words:
        print(words)


def _finding(summary: Mapping[str, Any]) -> str:
    """The study's result, in a sentence."""
    from paceline.results.words.names import cause_name
    from paceline.units import percent

    numbers = summary["straggling"]
    slow, wasted = numbers["straggling"], numbers["gpu_hours_wasted"]
    text = f"{percent(slow.value or 0)} of the jobs straggle"
    if numbers["slow_with_passing"].value != slow.value:
        text += f" ({percent(numbers['slow_with_passing'].value or 0)} with variation that passes)"
    if wasted.value is not None:
        hours = summary["coverage"]["gpu_hours"]
        shown = f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"
        text += f"; {percent(wasted.value)} of {shown} GPU-hours"
        text += " are wasted"
    if summary["causes"]:
        text += f"; most by: {cause_name(summary['causes'][0]['cause'])}"
    return text


def _labels(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _rules(args: argparse.Namespace) -> RuleOptions:
    from paceline.fleet.rules import RuleOptions

    return RuleOptions(args.max_restarts, args.max_discrepancy, args.min_steps, args.min_gpus)


def _run_options(args: argparse.Namespace) -> RunOptions:
    from paceline.fleet.run import RunOptions

    return RunOptions(
        args.engine, args.address, args.processes, args.timeout, args.memory, args.again
    )


def _sentence(counts: Mapping[str, int]) -> str:
    """The number of jobs that count, and the rules that exclude the others."""
    from paceline.fleet.columns import RULES
    from paceline.units import count

    total = sum(counts.values())
    reasons = [f"{rule.name} {counts[rule.name]:,}" for rule in RULES if counts.get(rule.name)]
    left_out = f"; left out: {', '.join(reasons)}" if reasons else ""
    return f"{counts.get('analysed', 0):,} of {count(total, 'job')} analysed{left_out}"


def _report_failures(counts: Mapping[str, int], n_ignored: int, *, strict: bool) -> int:
    from paceline.fleet.columns import FAILED, RULES
    from paceline.units import count

    n_failed = sum(counts.get(rule.name, 0) for rule in RULES if rule.status == FAILED)
    if n_ignored:
        print(f"{count(n_ignored, 'file')} beside the traces left unread", file=sys.stderr)
    if n_failed:
        text = "could not be analysed; the column error says why"
        print(f"{count(n_failed, 'trace')} {text}", file=sys.stderr)
    return 1 if strict and n_failed else 0


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise argparse.ArgumentTypeError(f"{text!r} should be a whole number from 0 on")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not share >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} should be a share from 0 on, such as 0.05")
    return share


def _seconds(text: str) -> float:
    return _quantity(text, "seconds")


def _bytes(text: str) -> int:
    return int(_quantity(text, "bytes"))


def _quantity(text: str, measure: str) -> float:
    from paceline.errors import QuantityError
    from paceline.quantities import parse_quantity

    try:
        value = parse_quantity(text, measure)
    except QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} should be above 0")
    return value
