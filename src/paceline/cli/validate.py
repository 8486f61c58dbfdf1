"""``paceline validate``: which GPU or link is slow?"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.commands import HELP
from paceline.cli.numbers import parse_numbers
from paceline.extras import pip_install

if TYPE_CHECKING:
    from paceline.detect.passes import Pass
    from paceline.detect.verdict import Measurements

EPILOG = """\
examples:
  paceline validate --world-size 16 --ring
  paceline validate --world-size 4 --run
  torchrun --nproc-per-node 8 --no-python paceline validate --ring --both-ways

Without --run the passes are only printed. With it, a process for each rank starts on this machine.
Started by torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are set) it joins the others and
rank 0 prints. A slow rank or link is no error: the exit code is 0.
"""

#: More ranks than any job has: a typing error.
MAX_RANKS = 1_000_000


def _order(text: str) -> list[int]:
    """Ranks as written, ``0-7,12``: the order counts."""
    return [rank for numbers in text.split(",") for rank in parse_numbers(numbers)]


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "validate",
        help=HELP["validate"],
        description="Test each rank by matrix products, and each link of a ring or tree by "
        "messages. The number of passes does not grow with the ranks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="number of ranks (under torchrun: its own)"
    )
    parser.add_argument(
        "--ranks",
        type=_order,
        metavar="LIST",
        help="only these ranks, in the order of the ring or tree, such as 0-7,12 (default: all)",
    )
    add_shape(parser)
    parser.add_argument(
        "--run",
        dest="start",  # ``run`` is the command's function
        action="store_true",
        help="start the processes on this machine and measure",
    )
    add_measurement(parser, timeout=True)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Declare which links are tested."""
    shape = parser.add_mutually_exclusive_group()
    for name, text in (
        ("ring", "links of a ring (default): 2 passes, 3 for an odd number of ranks"),
        ("tree", "links of NCCL's first binary tree: 4 passes"),
        ("double-tree", "links of both of NCCL's binary trees: 8 passes"),
    ):
        shape.add_argument(
            f"--{name}", dest="shape", action="store_const", const=name, default="ring", help=text
        )
    parser.add_argument(
        "--both-ways", action="store_true", help="each link in both directions: twice the passes"
    )


def add_measurement(parser: argparse.ArgumentParser, *, timeout: bool) -> None:
    """Declare sizes and repeats of the measurement, and the file for its results."""
    measure = parser.add_argument_group("measurement")
    measure.add_argument(
        "--gemm", type=int, metavar="N", help="N x N matrices (default 384 on CPUs, 4096 on GPUs)"
    )
    measure.add_argument(
        "--bytes", type=int, metavar="N", help="message size (default 4 MiB on CPUs, 64 on GPUs)"
    )
    measure.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="repeat all N times (default 5)"
    )
    measure.add_argument(
        "--backend",
        choices=("auto", "gloo", "nccl"),
        default="auto",
        help="default: nccl if each rank has a GPU, otherwise gloo",
    )
    if timeout:
        measure.add_argument(
            "--timeout", type=float, default=120.0, metavar="S", help="seconds (default 120)"
        )
    measure.add_argument(
        "--store",
        metavar="FILE",
        help="keep the results of each host in this file (paceline hosts)",
    )


def run(args: argparse.Namespace) -> int:
    """Plan, measure where that is wanted, print."""
    from paceline.detect.join import joined_world

    joined = joined_world()
    world_size, ranks = _ranks(args, joined)
    passes = plan_passes(args, ranks)
    measured = _measure(args, joined is not None, world_size, ranks, passes)
    if joined and joined[0] > 0:
        return 0  # rank 0 prints it for all
    kept = keep(args.store, measured) if args.store and measured is not None else ""
    if args.json:
        print(json.dumps(_mapping(args, ranks, passes, measured)))
        return 0
    links = sum(map(len, passes))
    print(f"{args.shape} of {len(ranks):,} ranks: {len(passes)} passes, {links:,} links")
    for number, pass_links in enumerate(passes, 1):
        print(f"pass {number}: {' '.join(f'{source}->{to}' for source, to in pass_links)}")
    if measured is not None:
        print_verdict(measured)
        if kept:
            print(kept)
    elif not has_torch():
        print("note: nothing was measured, PyTorch is not installed", file=sys.stderr)
    else:
        print(
            f"note: nothing was measured; --run starts {world_size:,} processes here, torchrun "
            "on any number of hosts",
            file=sys.stderr,
        )
    return 0


def _ranks(args: argparse.Namespace, joined: tuple[int, int] | None) -> tuple[int, list[int]]:
    """The number of ranks, and those to test."""
    from paceline.errors import DetectError

    world_size, ranks = args.world_size, args.ranks
    if joined is not None:
        if world_size not in (None, joined[1]):
            raise DetectError(f"--world-size {world_size}, but WORLD_SIZE={joined[1]} is set")
        world_size = joined[1]
    if world_size is None:
        if ranks is None:
            raise DetectError(
                "the ranks are missing: give --world-size N, or --ranks; or start it by torchrun "
                "on all hosts (docs/validate.md)"
            )
        world_size = max(ranks) + 1
    if not 1 <= world_size <= MAX_RANKS:
        raise DetectError(f"--world-size must be 1 to {MAX_RANKS:,}, not {world_size:,}")
    if ranks is None:
        ranks = list(range(world_size))
    if max(ranks) >= world_size:
        raise DetectError(f"--ranks names rank {max(ranks):,} of a world of {world_size:,}")
    return world_size, ranks


def plan_passes(args: argparse.Namespace, ranks: list[int]) -> tuple[Pass, ...]:
    """The passes of the shape that was asked for."""
    from paceline.detect import passes

    plan = {
        "ring": passes.ring_passes,
        "tree": passes.tree_passes,
        "double-tree": passes.double_tree_passes,
    }[args.shape]
    return plan(ranks, both_ways=args.both_ways)


def _measure(
    args: argparse.Namespace,
    joined: bool,
    world_size: int,
    ranks: list[int],
    passes: tuple[Pass, ...],
) -> Measurements | None:
    """The measurements; None if no measurement is asked for, or none is possible.

    Raises:
        DetectError: --run without PyTorch, or an error of the validation.
    """
    from paceline.errors import DetectError

    if not (args.start or joined):
        return None
    if not has_torch():
        if args.start:
            raise DetectError(f"--run needs PyTorch; install it: {pip_install('profile')}")
        return None
    from paceline.detect.join import validate_joined
    from paceline.detect.launch import validate_local
    from paceline.detect.validate import Effort

    effort = Effort(args.gemm, args.bytes, args.rounds, args.timeout)
    if joined:
        return validate_joined(ranks, passes, effort=effort, backend=args.backend)
    return validate_local(world_size, ranks, passes, effort=effort, backend=args.backend)


def keep(path: str, measured: Measurements) -> str:
    """Add the measurements to the results of their hosts; returns a sentence on them."""
    from paceline.detect.event import counted
    from paceline.hosts.result import MIN_PEERS, results_of
    from paceline.hosts.store import HostStore

    results = results_of(measured, run="validate", at_s=time.time())
    HostStore(Path(path)).add(results)
    hosts = counted(len({result.host for result in results}), "host")
    single = sum(not result.is_compared for result in results)
    line = f"kept: {counted(len(results), 'result')} of {hosts} in {path}"
    if not single:
        return line
    which = "all" if single == len(results) else f"{single:,}"
    return (
        f"{line}, {which} without a verdict: fewer than {MIN_PEERS} of a kind were measured "
        "(paceline hosts history HOST shows them)"
    )


def has_torch() -> bool:
    """Whether PyTorch is installed; it is not imported."""
    return importlib.util.find_spec("torch") is not None


def print_verdict(measured: Measurements) -> None:
    """Print the measurements, and the ranks and links that stand out."""
    from paceline.detect.verdict import judge

    gemm, size = measured.gemm, measured.message_bytes
    print(f"measured ({measured.backend}): {gemm} x {gemm} matrices, messages of {size:,} bytes")
    print(*judge(measured).lines(), sep="\n")


def _mapping(
    args: argparse.Namespace,
    ranks: list[int],
    passes: tuple[Pass, ...],
    measured: Measurements | None,
) -> dict[str, Any]:
    from paceline.detect.verdict import judge

    plan = {"shape": args.shape, "ranks": ranks, "passes": passes}
    if measured is None:
        return {**plan, "measured": None, "verdict": None}
    return {
        **plan,
        "measured": measured.to_mapping(),
        "verdict": judge(measured).to_mapping(),
    }
