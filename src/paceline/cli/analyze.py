"""``paceline analyze``: the cost of stragglers, and the parts of the job that cause it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from paceline.cli import case_input, trace_input
from paceline.cli.case_input import CaseInput
from paceline.cli.commands import HELP
from paceline.cli.progress import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paceline.files import Writer
    from paceline.model.cluster import Cluster
    from paceline.model.llm import LLM
    from paceline.model.plan import Plan

DESCRIPTION = """\
Simulate the traced job with its stragglers and without; say how much time they cost, by kind of
operation, stage, replica, worker and step.
"""

EXAMPLES = """\
examples:
  paceline analyze trace.parquet --job meta.yaml --out out/
  paceline analyze trace.parquet --steps 10-20,25 --json
  paceline analyze trace.parquet --expect job.yaml
  paceline analyze traces/ --steps 100-119

meta.yaml: the degrees of the traced job, such as {dp_size: 8, pp_size: 4, tp_size: 2}.
job.yaml: what `paceline predict` reads (docs/predict.md, A job file), such as
  model: llama3.1-8b
  cluster: h100
  gpus: 64
  plan: {tp: 2, pp: 4, micro_batch: 1, global_batch: 128}
"""


#: A folder of recordings becomes one file, which every command reads.
COMPACTED = "trace.parquet"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "analyze",
        help=HELP["analyze"],
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace_input.add_arguments(
        parser,
        help_text="the trace: a parquet file, a folder of such files or several of them (one per "
        "step or rank), the folder of a recording",
        several=True,
    )
    case_input.add_steps(parser)
    case_input.add_arguments(parser)
    parser.add_argument(
        "--no-diagnose",
        action="store_true",
        help="print the numbers only, without causes, remedies and report",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=trace_input.file_name,
        help="write result.json, by_worker.csv, report.html and ideal.json.gz (for Perfetto) into "
        "this folder; for a folder of recordings also trace.parquet",
    )
    case_input.add_json(parser, "result.json")
    parser.add_argument(
        "--per-step-workers",
        action="store_true",
        help="add the slowdown of every worker in every step to result.json",
    )
    parser.add_argument(
        "--expect",
        metavar="YAML",
        type=trace_input.file_name,
        help="the job's file for `paceline predict` (below): compare the trace with the model of "
        "its hardware",
    )
    parser.add_argument("--force", action="store_true", help="overwrite files in --out")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Analyse, print, and write the requested parts."""
    from paceline.whatif import analyze

    inputs = CaseInput.of(args, args.steps)
    compacts = args.out is not None and _is_recording(args.trace)
    if args.out is not None:
        from paceline.report.folder import check_folder, write_folder

        files = [*args.trace, args.job, args.seqlens, args.hosts, args.expect]
        check_folder(args.out, [COMPACTED] if compacts else [], files, force=args.force)
    expected = _expected_job(args)
    extra_files: dict[str, Writer] = {}
    if compacts:
        from paceline.graph import from_trace
        from paceline.sources import parquet

        trace = inputs.trace.load()
        extra_files[COMPACTED] = parquet.writer(trace)
        measured = from_trace(trace, keep_clocks=args.keep_clocks)
        del trace  # before the analysis: it is as large as the result
    else:
        measured = inputs.trace.measured()
    with ProgressBar("simulating") as progress:
        result = analyze(measured, progress=progress)
    advice = None
    if not args.no_diagnose:
        from paceline.remedies import REMEDIES, advise

        advice = advise(inputs.diagnosed(measured, result), REMEDIES)
    expectation = None
    if expected is not None:
        from paceline.plan.expect import expect

        llm, plan, cluster = expected
        expectation = expect(measured, result, llm, plan, cluster)
    from paceline.results.document import JobReport

    hosts = inputs.places(measured)
    report = JobReport.of(
        result, advice, expectation=expectation, hosts=hosts, per_step_workers=True
    )
    notes: tuple[str, ...] = ()
    if args.out is not None:
        notes = write_folder(
            report,
            result,
            measured,
            args.out,
            gpu_hour_cost=args.gpu_hour_cost,
            per_step_workers=args.per_step_workers,
            extra=extra_files,
            force=args.force,
        )
    if args.json:
        from paceline.report.result_json import dumps

        document = report if args.per_step_workers else report.without_workers_by_step()
        sys.stdout.write(dumps(document))
    else:
        from paceline.report.terminal import print_report

        print_report(report)
        if expectation is not None:
            from rich.text import Text

            from paceline.report.prediction import expectation_lines
            from paceline.report.terminal import print_lines, standard_output

            console = standard_output()
            print_lines([Text(""), *expectation_lines(expectation, console.width)], console)
    for note in notes:
        print(note, file=sys.stderr)
    return 0


def _is_recording(paths: Sequence[Path]) -> bool:
    """Whether a folder is given that is no dataset of parquet files."""
    from paceline.sources import dataset, recording

    if len(paths) > 1 or not paths[0].is_dir():
        return False
    return recording.matches(paths[0]) or not dataset.matches(paths[0])


def _expected_job(args: argparse.Namespace) -> tuple[LLM, Plan, Cluster] | None:
    """Model, plan and machines of ``--expect``; read before the long work."""
    if args.expect is None:
        return None
    from paceline.errors import PlanError
    from paceline.model.job_yaml import load_job
    from paceline.model.plan_check import check

    job = load_job(args.expect)
    if job.plan is None:
        raise PlanError(f"{args.expect} has no plan to compare the trace with")
    check(job.plan, job.llm)
    return job.llm, job.plan, job.cluster
