"""``paceline work``: analyses sessions for the instances of a monitor."""

from __future__ import annotations

import argparse

from paceline.cli import monitor_config
from paceline.cli.commands import HELP
from paceline.errors import MonitorError

EPILOG = """\
examples:
  paceline work --store postgresql://paceline@db/paceline --blobs s3://traces/paceline
  paceline work --config monitor.yaml
  paceline work --config monitor.yaml --engine ray --address auto --workers 16

Any number of these, on any machines, take sessions from the store's queue. If a worker dies,
another takes its session. Ctrl-C and SIGTERM return the current session to the queue. With
--engine ray the workers are actors of a Ray cluster, which restarts actors that die.
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
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="where to work (default local)"
    )
    parser.add_argument(
        "--address", metavar="ADDRESS", help="of the Ray cluster (auto: the one here)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="workers on Ray (default 1)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Work until a signal."""
    monitor_config.check_installed()
    if args.engine != "ray" and (args.address is not None or args.workers is not None):
        raise MonitorError("--address and --workers are options of --engine ray")
    if args.workers is not None and args.workers < 1:
        raise MonitorError(f"--workers must be 1 or more, not {args.workers}")
    config = monitor_config.config_of(args, blobs=args.blobs, instance=args.instance or "work")
    from paceline.monitor.instances.worker import Worker, until_signal
    from paceline.monitor.log import configure

    configure(config.log_level)
    if args.engine == "ray":
        from paceline.monitor.instances.ray_workers import run_on_ray

        run_on_ray(config, args.address or "", args.workers or 1, until_signal)
        return 0
    with monitor_config.private():
        worker = Worker(config)
        print(f"working for {worker.public_store}", flush=True)
        worker.run_until_signal()
    return 0
