"""``paceline nccl pause``: all ranks of a running job stop, are examined, and go on."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli import validate

if TYPE_CHECKING:
    from paceline.pause.asker import Pause, Work
    from paceline.pause.records import Slot

EPILOG = """\
examples:
  paceline nccl pause runs/job-17 --for 20s
  paceline nccl pause runs/job-17 --validate --ring --rounds 3
  paceline nccl pause runs/job-17 --for 60s --during 'srun --overlap paceline validate --ring'

All ranks stop after the same collective of their largest communicator. If one does not, none waits
longer than --arrive. The job goes on when the time is over, the command or validation has ended, or
this command ends, however it ends. A line is added to events.jsonl in the folder.
"""

#: Variables that a job's shell exports for the plugin; processes beside the job must not load it.
_OF_THE_JOB = ("NCCL_PROFILER_PLUGIN", "PACELINE_RECORD", "LD_PRELOAD")

#: Left for the processes of a validation to end before the job goes on.
_END_S = 1.0


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = actions.add_parser(
        "pause",
        help="stop all ranks of a running job at one collective, then let them go on",
        description="Stop all ranks of a running job for a while, without a checkpoint.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="FOLDER", help="what PACELINE_RECORD names in the job")
    for name, default, text in (
        ("for", "20s", "how long all stand, at most"),
        ("arrive", "10s", "how long the first to stop waits for the last"),
        ("wait", "60s", "how long to wait for the job to reach a collective"),
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
        help="meanwhile test GPUs and links by processes on this machine (paceline validate)",
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
    from paceline.pause.events import append_event, event_of, text_of
    from paceline.quantities import parse_quantity

    if "://" in args.folder:
        raise PauseError(
            f"{args.folder} is no folder of a file system: ranks agree through files that are "
            "rewritten in place; give PACELINE_RECORD a shared folder"
        )
    folder = Path(args.folder)
    times = Times(
        hold_s=parse_quantity(args.for_s, "seconds"),
        arrive_s=parse_quantity(args.arrive_s, "seconds"),
        wait_s=parse_quantity(args.wait_s, "seconds"),
    )
    for name in _OF_THE_JOB:
        os.environ.pop(name, None)
    found: dict[str, Any] = {}
    result = pause(folder, times, _work(args, times.hold_s, found), accept=_accept(args))
    event = event_of(result, found)
    append_event(folder, event)
    if args.json:
        print(json.dumps(event))
    else:
        _print(result, found)
    if not result.held:
        raise PauseError(f"{text_of(result)}; the job goes on")
    return 0


def _accept(args: argparse.Namespace) -> Callable[[Sequence[Slot]], None]:
    """The checks before anyone stops."""
    import socket

    from paceline.errors import PauseError

    def check(slots: Sequence[Slot]) -> None:
        here = socket.gethostname()
        away = sorted({slot.host for slot in slots if slot.host != here})
        if args.validate and away:
            raise PauseError(
                f"ranks run on {', '.join(away[:4])}, and --validate tests this machine, {here}; "
                "run the validation on all hosts: --during 'srun --overlap paceline validate'"
            )

    if args.validate and not validate.has_torch():
        raise PauseError("--validate needs PyTorch; install it: pip install 'paceline[profile]'")
    return check


def _work(args: argparse.Namespace, hold_s: float, found: dict[str, Any]) -> Work | None:
    """Work for the time of the pause; its results go to ``found``."""
    if args.validate:
        return lambda slots, standing: _validate(args, len(slots), hold_s, found)
    if args.during:
        return lambda slots, standing: _command(args.during, standing, found)
    return None


def _validate(args: argparse.Namespace, n: int, hold_s: float, found: dict[str, Any]) -> None:
    from paceline.detect.launch import validate_local
    from paceline.detect.validate import Effort
    from paceline.detect.verdict import judge
    from paceline.errors import PacelineError

    try:
        effort = Effort(args.gemm, args.bytes, args.rounds, max(hold_s - _END_S, 0.1))
        passes = validate.plan_passes(args, list(range(n)))
        measured = validate_local(n, None, passes, effort=effort, backend=args.backend)
        found["measured"], found["verdict"] = measured.to_mapping(), judge(measured).to_mapping()
        found["lines"] = judge(measured).lines()
        if args.store:
            validate.keep(args.store, measured)
    except PacelineError as error:
        found["error"] = str(error)


def _command(command: str, standing: Callable[[], bool], found: dict[str, Any]) -> None:
    """Run it in a group of its own, which ends when the ranks go on."""
    import signal

    process = subprocess.Popen(command, shell=True, start_new_session=True)
    while process.poll() is None and standing():
        time.sleep(0.05)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        found["error"] = f"{command}: ended, as the pause was over"
    found["exit_code"] = process.wait()


def _print(result: Pause, found: dict[str, Any]) -> None:
    from paceline.pause.events import text_of

    if result.held:
        print(text_of(result))
    for one in result.ranks:
        stood = f"stood {one.stopped_s:.2f} s" if one.stopped_s else "did not stop"
        reason = f" ({one.reason})" if one.reason else ""
        print(f"rank {one.rank} ({one.host}, process {one.pid}): {stood}, {one.state}{reason}")
    print(*found.get("lines", ()), sep="\n", end="\n" if found.get("lines") else "")
    if "exit_code" in found:
        print(f"the command's exit code: {found['exit_code']}")
    if "error" in found:
        print(f"note: {found['error']}", file=sys.stderr)
