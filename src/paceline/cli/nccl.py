"""``paceline nccl``: the profiler plugin that NCCL loads into a job."""

from __future__ import annotations

import argparse
from pathlib import Path

#: Sources and, once built, the plugin.
NATIVE = Path(__file__).parents[1] / "native"
PLUGIN = "libpaceline-nccl.so"
FLAGS = "-std=c11 -O2 -fvisibility=hidden -shared -fPIC -pthread -Wl,-z,nodelete"

EPILOG = """\
examples:
  export NCCL_PROFILER_PLUGIN=$(paceline nccl path) PACELINE_RECORD=runs/job-17
  torchrun ... train.py
  paceline detect --collectives runs/job-17

NCCL 2.27 and later load it. docs/nccl.md says what each version tells.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "nccl",
        help="the profiler plugin for NCCL: records collectives of any framework",
        description="Print where the profiler plugin is that NCCL loads into a job.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("path",), help="print the path of the plugin")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the path, or how to build the plugin."""
    from paceline.errors import PacelineError

    path = NATIVE / PLUGIN
    if not path.is_file():
        raise PacelineError(
            f"the plugin is not built; build it: cc {FLAGS} -o {path} {NATIVE}/*.c "
            "(or, in a checkout, make native)"
        )
    print(path)
    return 0
