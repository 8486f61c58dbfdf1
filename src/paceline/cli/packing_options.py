"""Options of the commands that take a language model: how documents fill its samples."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.model.packing import Packing

#: Names of the options in the parsed arguments.
NAMES = ("documents", "padding")


def add_packing(group: Any) -> None:
    """Declare the options."""
    group.add_argument(
        "--documents",
        metavar="TOKENS,...",
        help="lengths of the documents packed into a sample, each attending to itself alone: the "
        "length of all (900), a list, or with counts (512x30,4096x2)",
    )
    group.add_argument(
        "--padding", metavar="SHARE", type=float, help="share of a sample's tokens that is padding"
    )


def packing_of(args: argparse.Namespace) -> Packing | None:
    """How documents fill the samples; None where no option says.

    Raises:
        ModelError: a value is wrong.
    """
    if args.documents is None and args.padding is None:
        return None
    from paceline.model.packing import Packing, documents_of

    documents = documents_of(args.documents) if args.documents is not None else ()
    return Packing(documents=documents, padding=args.padding or 0.0)
