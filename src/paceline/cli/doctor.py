"""``paceline doctor``: versions, extras, GPU, compiler, and whether each feature works here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.cli.case_input import add_json
from paceline.cli.commands import HELP
from paceline.extras import pip_install

if TYPE_CHECKING:
    from paceline.doctor import Checkup

EPILOG = """\
examples:
  paceline doctor
  paceline doctor --torch       # asks PyTorch for GPUs, which takes seconds
  paceline doctor --json        # to send along with a report of an error

The exit code is 0 if the base install is complete, otherwise 1. Packages of extras may be missing.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "doctor",
        help=HELP["doctor"],
        description="Say which features work on this machine, and what to install for the others.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--torch", action="store_true", help="import PyTorch and ask it for GPUs")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Examine and print."""
    from paceline import __version__
    from paceline.doctor import examine

    checkup = examine(__version__, ask_torch=args.torch)
    if args.json:
        from paceline.report.result_json import lines_of_json

        sys.stdout.write(lines_of_json(checkup.to_mapping()))
    else:
        for line in lines(checkup):
            print(line)
    return 0 if checkup.healthy else 1


def lines(checkup: Checkup) -> Iterator[str]:
    """The checkup for people."""
    from paceline.doctor import python_fits

    versions, machine = checkup.versions, checkup.machine
    yield f"paceline {versions['paceline']}, Python {versions['python']}, {versions['system']}"
    if not python_fits():
        yield "Paceline is not tested on this Python: use 3.11 to 3.13"
    yield f"{machine['cores']} cores, {machine['memory_bytes'] / 2**30:.1f} GiB of memory"
    for gpu in checkup.gpus:
        yield f"GPU: {gpu.name} ({gpu.driver})"
    if not checkup.gpus:
        yield "GPU: none"
    if checkup.torch is not None:
        said = checkup.torch
        names = ", ".join(said["gpus"]) or said["problem"] or "no GPU"
        yield f"PyTorch {said['version'] or 'cannot be imported'}: {names}"
    for tool, path in checkup.tools.items():
        yield f"{tool}: {path or 'none'}"
    if not checkup.base:
        yield f"Paceline was not installed by pip, so its packages are unknown: {pip_install()}"
    for package in checkup.base:
        found = package.version or "absent"
        yield f"{package.name} {found}" + (
            "" if package.fits else f" (needed {package.requirement})"
        )
    yield ""
    yield "works here:"
    for feature in checkup.features:
        if feature.works:
            yield f"  yes  {feature.name}"
    for feature in checkup.features:
        if not feature.works:
            yield f"  no   {feature.name}"
            yield f"       missing: {feature.missing}; {feature.install}"
