"""``paceline demo``: a real, small training job, slowed, diagnosed and healed on this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paceline.cli import nccl, trace_input
from paceline.cli.commands import HELP
from paceline.extras import pip_install

EPILOG = """\
examples:
  paceline demo --live
  paceline demo --live -o demo-run       # keeps the recording: paceline analyze demo-run/job
  paceline demo --live --monitor         # with a monitor of its own; says where its page is
  paceline demo --live --monitor http://host:8765     # with a running one (PACELINE_TOKEN)

Takes about two minutes. Needs PyTorch: pip install 'paceline[profile]'. (Without it: make demo.)
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "demo",
        help=HELP["demo"],
        description="Train a small GPT on this machine (four processes, 2 replicas x 2 stages) "
        "and record it. Slow one rank down on purpose, and show that analysis, detector, "
        "validation and planner find and repair it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--live", action="store_true", required=True, help="on a running job")
    parser.add_argument(
        "-o",
        "--out",
        metavar="FOLDER",
        type=trace_input.file_name,
        help="keep the recordings in this new folder",
    )
    parser.add_argument(
        "--monitor",
        nargs="?",
        const="",
        metavar="URL",
        help="push to the monitor at URL; without URL, to one that runs during the demo",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON at the end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it, telling what happens."""
    import tempfile
    from importlib.util import find_spec

    from paceline.errors import DemoError, OutputError

    if find_spec("torch") is None:
        raise DemoError(f"the live demo needs PyTorch; install it: {pip_install('profile')}")
    out: Path | None = args.out
    if out is not None and out.exists():
        raise OutputError(f"{out} exists already; name a new folder")
    if out is not None:
        return _live(args, out)
    with tempfile.TemporaryDirectory(prefix="paceline-demo-") as folder:
        return _live(args, Path(folder))


def _live(args: argparse.Namespace, folder: Path) -> int:
    from contextlib import nullcontext

    from paceline.demo.live import run_live
    from paceline.demo.watched import Watched
    from paceline.report.result_json import lines_of_json

    def say(text: str) -> None:
        print(text, file=sys.stderr if args.json else sys.stdout, flush=True)

    watch = nullcontext() if args.monitor is None else Watched(args.monitor, folder / "monitor")
    with watch as watched:
        result = run_live(folder, say, watched=watched, plugin=nccl.find(nccl.PLUGIN))
    if args.json:
        sys.stdout.write(lines_of_json(result.to_mapping()))
    elif args.out is not None:
        print(f"The recording is kept: paceline analyze {folder / 'job'}")
    return 0
