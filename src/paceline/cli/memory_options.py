"""Options on memory that ``predict`` and ``plan`` share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from paceline.model.memory_rules import MemoryRules

#: Frameworks with launch files, as :data:`paceline.plan.launch.files.FRAMEWORKS`.
FRAMEWORKS = ("megatron", "nemo", "torchtitan", "deepspeed", "accelerate")
LOSSES = ("unfused", "in-place", "fused", "chunked")


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    memory = parser.add_argument_group("memory")
    memory.add_argument(
        "--reserve",
        metavar="PERCENT",
        type=_share,
        help="share of the GPUs' memory that stays free, for fragmentation (default 8%%)",
    )
    segments = memory.add_mutually_exclusive_group()
    segments.add_argument(
        "--expandable-segments",
        action="store_const",
        const=True,
        help="the job sets PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (default: not known; "
        "what fits with it alone is said apart)",
    )
    segments.add_argument(
        "--fixed-segments",
        dest="expandable_segments",
        action="store_const",
        const=False,
        help="the job does not: fragmentation takes 26.5%% of the memory",
    )
    memory.add_argument(
        "--loss",
        choices=LOSSES,
        help="how cross entropy is computed (default: in-place, as Megatron-Core; unfused, as "
        "PyTorch, with zero 3)",
    )


def memory_rules(args: argparse.Namespace, framework: str | None = None) -> MemoryRules:
    """The rules that the options give.

    Launch files set expandable segments.
    """
    from paceline.model.memory_rules import RESERVE, MemoryRules, Trainer

    reserve = RESERVE if args.reserve is None else args.reserve
    trainers: dict[str | None, Trainer] = {name: name for name in get_args(Trainer)}
    expandable = args.expandable_segments
    if expandable is None and framework is not None:
        expandable = True
    return MemoryRules(
        loss=args.loss,
        reserve=reserve,
        expandable_segments=expandable,
        trainer=trainers.get(framework),
    )


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage from 0 to below 100, as 8%")
    return share
