"""``paceline push``: a trace or a recording goes to the monitor."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from paceline.cli import case_input, trace_input
from paceline.cli.commands import HELP

if TYPE_CHECKING:
    from paceline.monitor.pusher import Pushed, Target

EPILOG = """\
examples:
  paceline push runs/job-17 --to http://host:8765
  paceline push runs/job-17 --to http://host:8765 --follow
  paceline push trace.parquet --job meta.yaml --to http://host:8765 --wait

The token is taken from the environment: PACELINE_TOKEN (scope push; --wait needs admin, or reads
that are public). PACELINE_MONITOR stands for --to. An interrupted push continues where it stopped,
and a trace or batch that is pushed twice counts once. (If a job has pushed its own recording, a
push by hand adds one session of all its profiled steps.) A push without --follow does not tell
that the job runs, so that a finished job does not become silent; --end tells that it is over.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "push",
        help=HELP["push"],
        description="Send a trace, or a recording's profiled steps and step times, to a service "
        "that `paceline serve` runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target",
        metavar="TRACE",
        type=trace_input.file_name,
        help="a trace (parquet), or the folder of a recording",
    )
    parser.add_argument("--to", metavar="URL", help="the service (default: $PACELINE_MONITOR)")
    parser.add_argument("--name", metavar="JOB", help="the job's name (default: as in the data)")
    parser.add_argument(
        "--project", metavar="PROJECT", default="", help="the project, if the token has several"
    )
    parser.add_argument(
        "--job", metavar="YAML", type=trace_input.file_name, help="the trace's degrees"
    )
    parser.add_argument(
        "--hosts",
        metavar="FILE",
        type=trace_input.file_name,
        help="where ranks run (CSV: rank, host, gpu), so that findings name machines",
    )
    parser.add_argument(
        "--label",
        metavar="KEY=VALUE",
        type=_label,
        action="append",
        default=[],
        help="a label of the job, such as team=vision; may be given again",
    )
    parser.add_argument(
        "--follow", action="store_true", help="keep pushing while the recording grows"
    )
    parser.add_argument(
        "--session-steps",
        metavar="N",
        type=int,
        default=10,
        help="with --follow: profiled steps of a session (default 10)",
    )
    parser.add_argument("--end", action="store_true", help="then tell the service: the job is over")
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--wait", action="store_true", help="wait for the analysis, print its end")
    case_input.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Push, and print a summary."""
    from paceline.client import Client
    from paceline.errors import MonitorError
    from paceline.monitor.pusher import Target

    url = args.to or os.environ.get("PACELINE_MONITOR", "")
    if not url:
        raise MonitorError(
            "the service is missing; give --to http://host:8765, or set PACELINE_MONITOR"
        )
    if not args.follow and not args.target.exists():
        raise MonitorError(f"{args.target} does not exist")
    if args.session_steps < 1:
        raise MonitorError("--session-steps must be 1 or more")
    if args.end and args.follow:
        raise MonitorError("--end is for a job that is over, and --follow for one that runs")
    hosts = {}
    if args.hosts:
        from paceline.sources.hosts import read_hosts

        hosts = read_hosts(args.hosts)
    client = Client(url, project=args.project, on_wait=_say_waiting)
    target = Target(client, args.name or "", dict(args.label), hosts)
    pushed = _push(args, target)
    if not args.json:
        print(_arrived(client.url, pushed), flush=True)  # a wait may be refused
    sessions = [client.wait(number) for number in pushed.sessions] if args.wait else []
    if args.end:
        client.end(pushed.name)
    _show(args, pushed, sessions)
    return 0 if all(session["status"] == "done" for session in sessions) else 2


def _say_waiting(reason: str) -> None:
    print(f"paceline: {reason}; trying again for two minutes", file=sys.stderr, flush=True)


def _push(args: argparse.Namespace, target: Target) -> Pushed:
    from paceline.errors import MonitorError
    from paceline.monitor import pusher

    if args.follow:
        os.nice(10)  # the job goes first
        return pusher.follow_recording(
            target,
            args.target,
            lambda text: print(f"paceline: {text}", file=sys.stderr, flush=True),
            parent=args.parent,
            session_steps=args.session_steps,
        )
    if args.target.is_dir():
        if args.job is not None:
            raise MonitorError("a recording knows its job; --job is for a trace file")
        return pusher.push_recording(target, args.target)
    degrees = None
    if args.job is not None:
        from paceline.sources import read_job

        degrees = read_job(args.job).to_mapping()
    return pusher.push_file(target, args.target, degrees)


def _arrived(url: str, pushed: Pushed) -> str:
    counts = [f"{len(pushed.sessions)} session{'s' * (len(pushed.sessions) != 1)}"]
    counts += [f"{pushed.samples:,} step times"] if pushed.samples else []
    return f"pushed {' and '.join(counts)} of {pushed.name}: {url}/jobs/{pushed.name}"


def _show(args: argparse.Namespace, pushed: Pushed, sessions: list[dict[str, object]]) -> None:
    if args.json:
        summary = {"job": pushed.name, "sessions": pushed.sessions, "samples": pushed.samples}
        print(json.dumps({**summary, **({"results": sessions} if args.wait else {})}))
        return
    for session in sessions:
        print(
            session["headline"] if session["status"] == "done" else f"failed: {session['reason']}"
        )


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} should be KEY=VALUE")
    return key, value
