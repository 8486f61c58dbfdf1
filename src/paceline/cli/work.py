"""``paceline work``: analyses sessions for the instances of a monitor."""

from __future__ import annotations

import argparse

from paceline.cli import monitor_config
from paceline.cli.commands import HELP

EPILOG = """\
examples:
  paceline work --store postgresql://paceline@db/paceline --blobs s3://traces/paceline
  paceline work --config monitor.yaml

Any number of these, on any machines, take sessions from the store's queue. If a worker dies,
another takes its session. Ctrl-C and SIGTERM return the current session to the queue.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "work",
        help=HELP["work"],
        description="Take sessions from the queue of a monitor, analyse them, store the results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    monitor_config.add_arguments(parser)
    parser.add_argument("--blobs", metavar="URL", help="place of traces and results")
    parser.add_argument("--instance", metavar="NAME", help="name of this worker (default work)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Work until a signal."""
    monitor_config.check_installed()
    config = monitor_config.config_of(args, blobs=args.blobs, instance=args.instance or "work")
    from paceline.monitor.instances.worker import Worker
    from paceline.monitor.log import configure

    configure(config.log_level)
    with monitor_config.private():
        worker = Worker(config)
        print(f"working for {worker.public_store}", flush=True)
        worker.run_until_signal()
    return 0
