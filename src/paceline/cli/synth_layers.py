"""Options of ``paceline synth`` for jobs that compute and communicate layer by layer."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.synth import Layers

#: Options whose value is a number, with their meaning.
_NUMBERS = (
    ("layers", int, "N", "layers of each chunk (default 4, if any of these options is given)"),
    ("prefetch", int, "N", "number of units by which gathers run ahead (default 1)"),
    ("shard", int, "N", "HSDP: ranks that share one copy of the parameters (default: all)"),
    ("buckets", int, "N", "DDP: gradient buckets, reduced while the backward runs (default 1)"),
    ("cp", int, "N", "context-parallel ranks (default 1)"),
    ("ep", int, "N", "ranks that exchange tokens of experts (default 1: no experts)"),
    ("expert_imbalance", float, "CV", "variation of the experts' computes (default 0)"),
)


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group(
        "programs: launches and waits, layer by layer (docs/trace-format.md)",
        "With any of these options, each tensor- or context-parallel rank is a worker.",
    )
    for name, kind, metavar, text in _NUMBERS:
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)
    for name, text in (
        ("fsdp", "shard parameters: gather each layer's before it, reduce its gradients behind it"),
        ("no-reshard", "gather parameters once a step, not for every pass"),
        ("accumulate", "only the last microbatch reduces its gradients"),
    ):
        group.add_argument(f"--{name}", action="store_true", help=text)


def layers_of(args: argparse.Namespace) -> Layers | None:
    """Options for operations within passes; None where no option asks for it."""
    from paceline.synth import Layers

    given = {name: getattr(args, name) for name, *_ in _NUMBERS}
    given = {name: value for name, value in given.items() if value is not None}
    if not (given or args.fsdp or args.no_reshard or args.accumulate):
        return None
    return Layers(**given, fsdp=args.fsdp, reshard=not args.no_reshard, accumulate=args.accumulate)
