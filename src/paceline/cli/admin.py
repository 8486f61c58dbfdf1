"""``paceline admin``: tokens, accounts, backups and clearing up of a monitor."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from paceline.cli import admin_access, monitor_config
from paceline.cli.commands import HELP
from paceline.cli.trace_input import file_name

if TYPE_CHECKING:
    from paceline.client import Client

EPILOG = """\
examples:
  paceline admin token create job-17 --scope push --project llm --days 30
  paceline admin token list
  paceline admin token revoke 3
  paceline admin account create ci --scope push --project llm
  paceline admin account token 1 --days 90
  paceline admin audit --project llm
  paceline admin backup /backups/monitor.tar
  paceline admin restore /backups/monitor.tar --data /srv/paceline
  paceline admin check
  paceline admin grafana -o paceline-dashboard.json
  paceline admin session analyse 412 --to http://host:8765
  paceline admin job remove job-17 --to http://host:8765

session and job ask the running service (PACELINE_MONITOR stands for --to, the token is
PACELINE_TOKEN: scope push to analyse, admin to remove). The others work on the store itself: give
the --config, --store or --data of paceline serve. The service may run or not.
Only restore and gc need it stopped (it clears up by itself).
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "admin",
        help=HELP["admin"],
        description="Commands for the operators of the monitor.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    admin_access.add(actions)
    _add_files(actions)
    _add_service(actions)
    parser.set_defaults(run=run)


def _add_files(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    backup = actions.add_parser("backup", help="write all data into one file; the service may run")
    backup.add_argument("file", type=file_name, help="tar file to write")
    backup.add_argument("--force", action="store_true", help="replace the file if it exists")
    restore = actions.add_parser("restore", help="restore a backup into an empty place")
    restore.add_argument("file", type=file_name, help="tar file that backup wrote")
    gc = actions.add_parser(
        "gc", help="remove data that is too old, over the limits, or without an owner"
    )
    check = actions.add_parser(
        "check", help="read everything on disk; exit code 1 if anything is damaged"
    )
    for action, act in ((backup, _backup), (restore, _restore), (gc, _gc), (check, _check)):
        monitor_config.add_arguments(action)
        action.set_defaults(act=act)
    grafana = actions.add_parser("grafana", help="the Grafana dashboard for /metrics (JSON)")
    grafana.add_argument("-o", "--out", metavar="FILE", type=file_name, help="write it here")
    grafana.add_argument("--force", action="store_true", help="replace the file if it exists")
    grafana.set_defaults(act=_grafana)


def _add_service(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    session = actions.add_parser("session", help="analyse a session again, or remove it")
    session.add_argument("verb", choices=("analyse", "remove"))
    session.add_argument("id", type=int, help="its number")
    job = actions.add_parser("job", help="remove a job with all its data")
    job.add_argument("verb", choices=("remove",))
    job.add_argument("name")
    job.add_argument("--project", default="", help="the project, if the token has several")
    for action, act in ((session, _session), (job, _job)):
        action.add_argument("--to", metavar="URL", help="the service (default: $PACELINE_MONITOR)")
        action.set_defaults(act=act)


def run(args: argparse.Namespace) -> int:
    """Do the action."""
    return int(args.act(args))


def _backup(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.files import check_targets, write_files
    from paceline.monitor.backup import write_backup

    check_targets([args.file], force=args.force)
    engine = monitor_config.engine_of(config)
    done: dict[str, int] = {}
    write_files(
        {args.file: lambda file: done.update(write_backup(config, engine, file))}, force=args.force
    )
    size = f"{done['rows']:,} rows and {done['files']:,} files, {done['bytes'] / 1e6:,.1f} MB"
    print(f"wrote {args.file}: {size}")
    if config.blobs:
        print(f"traces and results are in {config.blobs}: back that up as well", file=sys.stderr)
    return 0


def _restore(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.backup import restore_backup

    with monitor_config.private():
        done = restore_backup(config, args.file)
    print(f"restored {done['rows']:,} rows and {done['files']:,} files into {config.data}")
    return 0


def _gc(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    monitor_config.engine_of(config).dispose()  # an error if there is no store
    from paceline.monitor.service import Service

    service = Service(config)  # not started; it holds the data folder, so that no other does
    try:
        done = service.retention.collect(time.time())
    finally:
        service.stop()
    print(
        f"removed {done.sessions:,} sessions, {done.events:,} events, {done.uploads:,} uploads, "
        f"{done.strays:,} stray files; emptied {done.emptied:,} sessions; "
        f"freed {done.freed_bytes / 1e6:,.1f} MB"
    )
    return 0


def _check(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.check import problems

    lines = list(problems(config, monitor_config.engine_of(config)))
    for line in lines:
        print(line)
    if not lines:
        print("nothing is damaged")
    return 1 if lines else 0


def _client(args: argparse.Namespace, project: str = "") -> Client:
    from paceline.client import Client
    from paceline.errors import MonitorError

    url = args.to or os.environ.get("PACELINE_MONITOR", "")
    if not url:
        raise MonitorError("say where the service is: --to http://host:8765, or PACELINE_MONITOR")
    return Client(url, project=project, patience_s=30.0)


def _session(args: argparse.Namespace) -> int:
    client = _client(args)
    if args.verb == "analyse":
        client.analyse_again(args.id)
        print(f"session {args.id} waits for its analysis")
    else:
        client.remove_session(args.id)
        print(f"session {args.id} is removed")
    return 0


def _job(args: argparse.Namespace) -> int:
    _client(args, args.project).remove_job(args.name)
    print(f"{args.name} is removed")
    return 0


def _grafana(args: argparse.Namespace) -> int:
    from importlib.resources import files

    from paceline.files import text_writer, write_files

    text = files("paceline.monitor").joinpath("grafana.json").read_text(encoding="utf-8")
    if args.out is None:
        print(text, end="")
    else:
        write_files({args.out: text_writer(text)}, force=args.force)
    return 0
