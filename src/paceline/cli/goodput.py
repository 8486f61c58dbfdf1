"""``paceline goodput``: where did a job's wall time go?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from paceline.cli.commands import HELP
from paceline.cli.trace_input import file_name

EPILOG = """\
examples:
  paceline goodput train.log
  paceline goodput runs/job-17
  paceline goodput start-1.log start-2.log --gpus 1024
  paceline goodput train.log --slowdown 1.14 --events events.jsonl --json
  paceline goodput --fleet job-17.log job-18.log
  paceline goodput --totals badput.json

Logs of one job, one or several, each with one start or several: Megatron-LM, MLPerf, records of
Google's ml-goodput-measurement and NVIDIA's one logger, trainer_state.json, the folder of a
recorded run; of other logs, as
paceline detect reads them, only steps, restarts and lost steps are known. A row that the logs do
not show is a question mark, not 0. --slowdown is S of paceline analyze; a recorded run tells it by
its profiled steps.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "goodput",
        help=HELP["goodput"],
        description="Divide a job's wall time into productive steps, stragglers, fail-slows, "
        "restarts, lost steps, checkpoints, evaluation, data, start-up, compilation, idle time.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("logs", metavar="LOG", nargs="+", type=file_name, help="logs of the job")
    parser.add_argument(
        "--events",
        metavar="FILE",
        type=file_name,
        help="output of paceline detect --json; default: the detector runs on the logs' steps",
    )
    parser.add_argument(
        "--slowdown",
        metavar="S",
        type=float,
        help="S from an analysis of typical steps, for the stragglers; default: that of a recorded "
        "run's own typical steps",
    )
    parser.add_argument(
        "--pattern", metavar="REGEX", help="a regular expression for a step's line, as in detect"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="REGEX",
        help="a regular expression for dated lines of checkpoints: a group duration_s, duration_ms "
        "or duration in the line of the end, or groups begin and end of two lines",
    )
    parser.add_argument("--evaluation", metavar="REGEX", help="the same for evaluations")
    parser.add_argument("--gpus", metavar="N", type=int, help="GPUs of the job, for GPU-hours")
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument(
        "--fleet", action="store_true", help="each LOG is a separate job; also prints their sum"
    )
    inputs.add_argument(
        "--totals",
        action="store_true",
        help="LOG is a JSON object of totals from another tool: badput by type, or metrics of one "
        "logger",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, divide the time, print."""
    from paceline.errors import DetectError
    from paceline.ledger import goodput
    from paceline.ledger.fleet import fleet_ledger
    from paceline.ledger.totals import read_totals

    if args.totals:
        patterns = args.pattern or args.checkpoint or args.evaluation
        if len(args.logs) > 1 or args.events or args.slowdown is not None or patterns:
            raise DetectError(
                "--totals takes one file and cannot be combined with --events, --slowdown, "
                "--pattern, --checkpoint or --evaluation"
            )
        ledgers = {str(args.logs[0]): read_totals(args.logs[0], gpus=args.gpus)}
    else:
        if args.fleet and args.events:
            raise DetectError(
                "--events belong to one job; without them the detector runs on each job"
            )
        jobs = [[log] for log in args.logs] if args.fleet else [args.logs]
        ledgers = {
            str(logs[0]): goodput(
                logs,
                events=_events(args.events),
                slowdown=args.slowdown,
                pattern=args.pattern,
                checkpoint=args.checkpoint,
                evaluation=args.evaluation,
                gpus=args.gpus,
            )
            for logs in jobs
        }
    if not args.fleet:
        (ledger,) = ledgers.values()
        print(json.dumps(ledger.to_mapping()) if args.json else "\n".join(ledger.lines()))
        return 0
    fleet = fleet_ledger(list(ledgers.values()))
    if args.json:
        jobs_json = {name: ledger.to_mapping() for name, ledger in ledgers.items()}
        print(json.dumps({"fleet": fleet.to_mapping(), "jobs": jobs_json}))
        return 0
    for name, ledger in ledgers.items():
        print(f"{name}: {ledger.lines()[0]}")
    print("\n".join(fleet.lines()))
    return 0


def _events(path: Path | None) -> list[dict[str, Any]] | None:
    if path is None:
        return None
    from paceline.sources.run_logs.files import json_objects

    return json_objects(path)
