"""The arguments that choose where the work runs: in this process, or on a Ray cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.plan.mapper import Mapper


def add_engine(container: argparse._ActionsContainer, local: str = "this process") -> None:
    """--engine and --address."""
    container.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help=f"{local}, or a Ray cluster (default: local)",
    )
    container.add_argument(
        "--address",
        metavar="ADDRESS",
        default="",
        help="address of the Ray cluster; auto: the cluster of this machine (default: Ray is "
        "started here)",
    )


@contextmanager
def mapper_of(args: argparse.Namespace) -> Iterator[Mapper]:
    """Choose the engine that maps a function over items."""
    from paceline.errors import FleetError

    if args.engine == "local":
        if args.address:
            raise FleetError("--address is the address of a Ray cluster: add --engine ray")
        yield map
        return
    from paceline.fleet.ray_cluster import RayCluster

    # Ray prints messages about its nodes on standard output, which is kept for the result.
    with redirect_stdout(sys.stderr), RayCluster(args.address) as cluster:
        yield cluster.map
