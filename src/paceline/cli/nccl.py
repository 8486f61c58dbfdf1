"""``paceline nccl``: the profiler plugin that NCCL loads into a job, and the pause of that job."""

from __future__ import annotations

import argparse
import re
import sys
from importlib import metadata
from pathlib import Path

from paceline.cli.commands import HELP

#: Sources and, once built, the plugin.
NATIVE = Path(__file__).parents[1] / "native"
PLUGIN = "libpaceline-nccl.so"
SHIM = "libpaceline-nccl-shim.so"
FLAGS = "-std=c11 -O2 -fvisibility=hidden -shared -fPIC -pthread -Wl,-z,nodelete"

#: Packages that bring NCCL's library, as PyTorch's wheels need them.
_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")

EPILOG = """\
examples:
  export NCCL_PROFILER_PLUGIN=$(paceline nccl path) PACELINE_RECORD=runs/job-17
  torchrun ... train.py
  paceline detect --collectives runs/job-17
  LD_PRELOAD=$(paceline nccl path --shim) PACELINE_RECORD=runs/job-17 torchrun ... train.py
  paceline nccl pause runs/job-17 --for 20s
  paceline nccl pause runs/job-17 --validate
  paceline nccl waits runs/job-17

NCCL 2.27 and later load the plugin; the shim is for older versions and RCCL. `path` says so where
this environment's NCCL needs another setting. docs/nccl.md lists the events of each version.
docs/pause.md describes the pause.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    from paceline.cli import nccl_pause, nccl_waits

    parser = subparsers.add_parser(
        "nccl",
        help=HELP["nccl"],
        description="The profiler plugin that NCCL loads into a job: print its path, pause the "
        "job, show which ranks wait for which.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    path = actions.add_parser("path", help="print the path of the plugin, or of the shim")
    path.add_argument(
        "--shim",
        action="store_true",
        help="path of the library for LD_PRELOAD: NCCL before 2.27, and RCCL",
    )
    path.set_defaults(run=run)
    nccl_pause.add(actions)
    nccl_waits.add(actions)


def sources(shim: bool) -> list[Path]:
    """The files of the plugin, or of the shim."""
    files = sorted(NATIVE.glob("*.c"))
    if not shim:
        return files
    return [*(NATIVE / "shim").glob("*.c"), *(file for file in files if file.stem != "plugin")]


def find(name: str) -> Path | None:
    """The plugin or the shim, as :data:`PLUGIN` and :data:`SHIM` name them; None: not built."""
    path = NATIVE / name
    return path if path.is_file() else None


def run(args: argparse.Namespace) -> int:
    """Print the path, or how to build it."""
    from paceline.errors import PacelineError

    name = SHIM if args.shim else PLUGIN
    path = find(name)
    if path is None:
        files = " ".join(map(str, sources(args.shim)))
        raise PacelineError(
            f"the {'shim' if args.shim else 'plugin'} is not built; build it: "
            f"cc {FLAGS} -o {NATIVE / name} {files} -ldl (or, in a checkout, make native)"
        )
    print(path)
    if not args.shim:
        for note in notes_of(path):
            print(f"paceline: note: {note}", file=sys.stderr)
    return 0


def notes_of(plugin: Path) -> list[str]:
    """Settings that the NCCL beside Paceline needs other than the plugin's path."""
    notes = []
    for package in _PACKAGES:
        try:
            text = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        version = tuple(int(number) for number in re.findall(r"\d+", text)[:3])
        if version < (2, 27):
            notes.append(
                f"NCCL {text} ({package}) cannot take this plugin; use the shim: "
                "LD_PRELOAD=$(paceline nccl path --shim)"
            )
        elif version < (2, 27, 5):
            # openPluginLib of v2.27.3-1, src/plugin/plugin_open.cc; mended in v2.27.5-1.
            notes.append(
                f"NCCL {text} ({package}) opens no plugin by its path; set "
                f"NCCL_PROFILER_PLUGIN={PLUGIN} LD_LIBRARY_PATH={plugin.parent}:$LD_LIBRARY_PATH"
            )
    return notes
