"""``paceline nccl pause``: stop all ranks of a running job, examine them, let them go on."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli import validate
from paceline.extras import pip_install

if TYPE_CHECKING:
    from paceline.detect.verdict import Measurements
    from paceline.pause.asker import Work
    from paceline.pause.validation import Measure

EPILOG = """\
examples:
  paceline nccl pause runs/job-17 --for 20s
  paceline nccl pause runs/job-17 --validate --ring --rounds 3
  paceline nccl pause runs/job-17 --for 60s --during 'srun --overlap paceline validate --ring'

All ranks stop after the same collective of their largest communicator. If a rank does not stop, the
others wait no longer than --arrive. The job goes on when the time is over, or when the validation
or command has ended. It also goes on if this command ends in any way. A line is added to
events.jsonl in the folder.
"""

#: Longer times are taken for a slip of the pen; a job allows a third of its smallest timeout.
MAX_S = 86_400.0

#: Variables that a job's shell exports for the plugin; other processes must not load it.
_OF_THE_JOB = ("NCCL_PROFILER_PLUGIN", "PACELINE_RECORD", "LD_PRELOAD")


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = actions.add_parser(
        "pause",
        help="stop all ranks of a running job at one collective for a while",
        description="Stop all ranks of a running job for a while, without a checkpoint.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", metavar="FOLDER", help="the folder that PACELINE_RECORD names in the job"
    )
    for name, default, text in (
        ("for", "20s", "longest time for which all ranks stop"),
        ("arrive", "10s", "longest wait of the first rank for the last"),
        ("wait", "60s", "longest wait until the job reaches a collective"),
    ):
        parser.add_argument(
            f"--{name}",
            dest=f"{name}_s",
            metavar="TIME",
            default=default,
            help=f"{text} (default {default})",
        )
    work = parser.add_mutually_exclusive_group()
    work.add_argument(
        "--validate",
        action="store_true",
        help="meanwhile test GPUs and links with processes on this machine (paceline validate)",
    )
    work.add_argument(
        "--during", metavar="COMMAND", help="meanwhile run this, such as srun on all hosts"
    )
    validate.add_shape(parser)
    validate.add_measurement(parser, timeout=False)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Pause, print, keep the event."""
    from paceline.errors import PauseError
    from paceline.pause.asker import Times, pause
    from paceline.pause.events import append_event, event_of
    from paceline.pause.validation import pause_and_validate

    if "://" in args.folder:
        raise PauseError(
            f"{args.folder} is no folder of a file system: ranks agree through files that are "
            "rewritten in place; give PACELINE_RECORD a shared folder"
        )
    folder = Path(args.folder)
    times = Times(
        hold_s=_seconds("--for", args.for_s),
        arrive_s=_seconds("--arrive", args.arrive_s),
        wait_s=_seconds("--wait", args.wait_s),
    )
    for name in _OF_THE_JOB:
        os.environ.pop(name, None)
    if args.validate:
        event = pause_and_validate(folder, times, _measure(args))
    else:
        more: dict[str, Any] = {}
        event = event_of(pause(folder, times, _work(args, more)), more)
        append_event(folder, event)
    print(json.dumps(event)) if args.json else _print(event)
    if event["kind"] != "paused":
        raise PauseError(f"{event['text']}; the job goes on")
    return 0


def _seconds(option: str, text: str) -> float:
    """The time that an option gives.

    Raises:
        PauseError: none, or one that no job allows.
    """
    from paceline.errors import PacelineError, PauseError
    from paceline.quantities import parse_quantity

    try:
        seconds = parse_quantity(text, "seconds")
    except PacelineError:
        seconds = 0.0
    if not 0 < seconds <= MAX_S:
        raise PauseError(f"{option} {text}: give a time from 0.001s to a day, such as 20s or 2min")
    return seconds


def _measure(args: argparse.Namespace) -> Measure:
    """Validates with processes on this machine.

    Raises:
        PauseError: PyTorch is not installed.
    """
    from paceline.detect.launch import validate_local
    from paceline.detect.validate import Effort
    from paceline.errors import PauseError

    if not validate.has_torch():
        raise PauseError(f"--validate needs PyTorch; install it: {pip_install('profile')}")

    def measure(ranks: int, most_s: float) -> Measurements:
        effort = Effort(args.gemm, args.bytes, args.rounds, most_s)
        passes = validate.plan_passes(args, list(range(ranks)))
        measured = validate_local(ranks, None, passes, effort=effort, backend=args.backend)
        if args.store:
            validate.keep(args.store, measured)
        return measured

    return measure


def _work(args: argparse.Namespace, more: dict[str, Any]) -> Work | None:
    """Work for the time of the pause; its results go to ``more``."""
    if args.during:
        return lambda slots, standing: _command(args.during, standing, more)
    return None


def _command(command: str, standing: Callable[[], bool], more: dict[str, Any]) -> None:
    """Run it in its own process group, which is ended when the ranks go on."""
    import signal

    process = subprocess.Popen(command, shell=True, start_new_session=True)
    while process.poll() is None and standing():
        time.sleep(0.05)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        more["error"] = f"{command}: ended, as the pause was over"
    more["exit_code"] = process.wait()


def _print(event: Mapping[str, Any]) -> None:
    if event["kind"] == "paused":
        print(event["text"])
    for one in event["ranks"]:
        stood = f"stood {one['stopped_s']:.2f} s" if one["stopped_s"] else "did not stop"
        reason = f" ({one['reason']})" if one["reason"] else ""
        place = f"{one['host']}, process {one['pid']}"
        print(f"rank {one['rank']} ({place}): {stood}, {one['state']}{reason}")
    for line in event.get("lines", ()):
        print(line)
    if "exit_code" in event:
        print(f"the command's exit code: {event['exit_code']}")
    if "error" in event:
        print(f"note: {event['error']}", file=sys.stderr)
