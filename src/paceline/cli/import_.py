"""``paceline import``: files of other tools in, a trace out."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from paceline.cli import trace_input
from paceline.cli.commands import HELP
from paceline.cli.numbers import parse_numbers
from paceline.cli.trace_input import file_name

if TYPE_CHECKING:
    from paceline.sources.imported import Imported

#: The names of ``paceline.sources.importers.IMPORTERS``, copied, because importing that module
#: would slow --help down.
FORMATS = ("recording", "otlp", "ndtimeline", "kineto")

EPILOG = """\
examples:
  paceline import traces/*.json.gz -o trace.parquet
  paceline import timelines/ --format ndtimeline --job meta.yaml -o trace.parquet

Give the files of all ranks of one run, or their folder. The trace file holds the job's degrees,
so that `paceline analyze trace.parquet` needs no --job. docs/import.md lists what each format
contains.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "import",
        help=HELP["import"],
        description="Turn profiles and timelines of all ranks into one trace file, and say which "
        "share of them was used.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", type=file_name, help="files, or folders of them"
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="the files' format (default: by their content)"
    )
    parser.add_argument(
        "--job",
        metavar="YAML",
        type=file_name,
        help="the job's degrees of parallelism (dp_size, pp_size, ...); default: from the files",
    )
    parser.add_argument(
        "--steps", metavar="N-M,...", type=parse_numbers, help="only these steps, by number"
    )
    trace_input.add_output(parser, "the parquet file to write")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Import and write."""
    from paceline.files import check_not_input, check_targets
    from paceline.sources import parquet, read_job
    from paceline.sources.importers import find_files

    check_targets([args.output], force=args.force)
    importer, files, n_left_out = find_files(args.paths, args.format)
    recorded = [blocks for path in files if path.is_dir() for blocks in path.glob("*.blocks")]
    check_not_input([args.output], [*files, *recorded, args.job])
    job = None if args.job is None else read_job(args.job)
    steps = None if args.steps is None else frozenset(args.steps)
    imported = importer.read(files, job, steps)
    parquet.write(imported.trace, args.output, force=args.force)
    if args.json:
        report = {"format": importer.name, "files": len(files), "files_left_out": n_left_out}
        print(json.dumps(report | imported.to_mapping()))
    else:
        noun = "folder" if all(path.is_dir() for path in files) else "file"
        print(f"{args.output}: from {len(files)} {importer.name} {noun}{'s' * (len(files) > 1)}")
        if n_left_out:
            print(f"  {n_left_out} other files in the folder left out")
        print(_report(imported))
    return 0


def _report(imported: Imported) -> str:
    trace, job = imported.trace, imported.trace.job
    chunks = f", {job.vpp_size} chunks each" if job.vpp_size > 1 else ""
    lines = [
        f"  {len(trace):,} operations, {trace.n_steps} steps, dp {job.dp_size} × pp {job.pp_size}"
        f"{chunks}",
        f"  {imported.matched:,} events matched, {sum(imported.unplaced.values()):,} not placed, "
        f"confidence {imported.confidence:.2f}",
    ]
    lines += [f"    {n:,} {reason}" for reason, n in sorted(imported.unplaced.items())]
    lines += [f"  note: {note}" for note in (*imported.notes, *trace.warnings)]
    return "\n".join(lines)
