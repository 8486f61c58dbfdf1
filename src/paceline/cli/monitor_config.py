"""The options that choose a monitor, shared by serve, alerts and admin."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.trace_input import file_name
from paceline.errors import MonitorError
from paceline.extras import pip_install

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from paceline.monitor.config import Config
    from paceline.monitor.store.audit import Actor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--config, --store and --data."""
    parser.add_argument(
        "--config",
        metavar="YAML",
        type=file_name,
        help="settings (docs/monitor.md); options override them",
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="database: sqlite:///FILE or postgresql://USER@HOST/NAME (default: SQLite in --data)",
    )
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        type=file_name,
        help="folder of traces, results and step times (default paceline-data)",
    )


def config_of(args: argparse.Namespace, **changes: Any) -> Config:
    """The settings of the file, overridden by the options.

    Raises:
        MonitorError: a setting is wrong, or the monitor's libraries are missing.
    """
    check_installed()
    from paceline.monitor.config import Config, load_config

    options = {"store": args.store, "data": args.data, **changes}
    options = {name: value for name, value in options.items() if value is not None}
    if args.config is not None:
        return load_config(Path(args.config), **options)
    return Config(**options)


def actor() -> Actor:
    """The system's user, for the log of acts."""
    import getpass

    from paceline.monitor.store.audit import Actor

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        name = str(os.getuid())
    return Actor(name, "command")


def engine_of(config: Config) -> Engine:
    """The store of a monitor that exists.

    Raises:
        MonitorError: there is none, or it cannot be used.
    """
    from paceline.monitor.store.database import open_database

    if not config.store and not (config.data / "paceline.db").is_file():
        raise MonitorError(
            f"{config.data} holds no monitor; give the --data or --config of paceline serve"
        )
    return open_database(config.store_url, pooled=False)  # a command makes few connections


def check_installed() -> None:
    """Make sure that the libraries of the extra are installed.

    Raises:
        MonitorError: one is missing.
    """
    from importlib.util import find_spec

    names = (
        "starlette",
        "uvicorn",
        "sqlalchemy",
        "alembic",
        "jinja2",
        "msgspec",
        "fsspec",
        "prometheus_client",
    )
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise MonitorError(
            f"{missing[0]} is not installed; the monitor needs: {pip_install('monitor')}"
        )


@contextmanager
def private() -> Iterator[None]:
    """Keep users' data from other users of this machine."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
