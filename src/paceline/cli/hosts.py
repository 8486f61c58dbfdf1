"""``paceline hosts``: results of validations per host, and the hosts to take out of service."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.commands import HELP
from paceline.cli.trace_input import file_name

if TYPE_CHECKING:
    from paceline.hosts.store import HostStore

EPILOG = """\
examples:
  paceline hosts list
  paceline hosts history gpu-012
  paceline hosts cordon --format slurm | sh
  paceline hosts cordon --format kubernetes
  paceline hosts forget gpu-012                  # after a repair

Results come from validations (paceline validate --store FILE, or a validator in the job,
docs/validate.md). The file is --store, or $PACELINE_HOSTS, or hosts.sqlite.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "hosts",
        help=HELP["hosts"],
        description="Results of validations per host, and which hosts have a slow GPU or port.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "action", choices=("list", "history", "cordon", "forget"), help="what to do"
    )
    parser.add_argument("host", metavar="HOST", nargs="?", help="host, for history and forget")
    parser.add_argument("--store", metavar="FILE", type=file_name, help="file of the results")
    parser.add_argument(
        "--format",
        choices=("names", "slurm", "kubernetes"),
        help="form of cordon's output (default names)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def store_path(path: Path | None) -> Path:
    """The file of results that the options name."""
    return path or Path(os.environ.get("PACELINE_HOSTS") or "hosts.sqlite")


def run(args: argparse.Namespace) -> int:
    """Open, ask, print."""
    from paceline.errors import DetectError
    from paceline.hosts.store import HostStore

    if (args.host is None) == (args.action in ("history", "forget")):
        raise DetectError("history and forget take a HOST; list and cordon take none")
    if args.format and args.action != "cordon":
        raise DetectError("--format is for cordon")
    store = HostStore(store_path(args.store), must_exist=True)
    if args.action == "history":
        return _history(store, args.host, as_json=args.json)
    if args.action == "forget":
        count = store.forget(args.host)
        print(json.dumps({"forgotten": count}) if args.json else f"{count:,} results forgotten")
        return 0
    return _verdicts(args, store)


def _verdicts(args: argparse.Namespace, store: HostStore) -> int:
    from paceline.hosts.cordon import cordon_lines, slow_hosts
    from paceline.hosts.verdict import judge_units

    results = store.results()
    if not results:
        print(f"note: {store.no_results}", file=sys.stderr)
    verdicts = judge_units(results)
    slow = slow_hosts(verdicts)
    last_s = {result.host: result.at_s for result in results}
    hosts = sorted(last_s)
    if args.json:
        chosen = hosts if args.action == "list" else sorted(slow)
        rows = [
            {
                "host": host,
                "slow": host in slow,
                "units": [v.to_mapping() for v in verdicts if v.host == host],
            }
            for host in chosen
        ]
        print(json.dumps({"hosts": rows}))
    elif args.action == "cordon":
        for line in cordon_lines(verdicts, args.format or "names"):
            print(line)
    else:
        for host in hosts:
            words = "; ".join(v.explain() for v in slow.get(host, ()))
            if not words:
                most = max((v.results for v in verdicts if v.host == host), default=0)
                words = _nothing_slow(most)
            print(f"{host:24s} {_day(last_s[host])}  {words}")
    return 0


def _nothing_slow(validations: int) -> str:
    """The words for a host without a slow GPU, by the most validations of one of its GPUs."""
    from paceline.hosts.result import MIN_PEERS
    from paceline.hosts.verdict import RECENT

    if not validations:
        return f"not judged: fewer than {MIN_PEERS} of a kind were measured at once"
    if validations < RECENT:
        return f"nothing slow so far; {validations} of the {RECENT} validations for a verdict"
    return "nothing slow"


def _history(store: HostStore, host: str, *, as_json: bool) -> int:
    from paceline.errors import DetectError

    results = store.results(host)
    if not results and not store.results():
        raise DetectError(store.no_results)
    if not results:
        raise DetectError(
            f"{store.path} has no results of {host}; paceline hosts list names its hosts"
        )
    for r in results:
        if as_json:
            print(json.dumps({"at_s": r.at_s, "run": r.run, "gpu": r.gpu, "device": r.device,
                              "test": r.test, "seconds": r.seconds, "ratio": r.ratio,
                              "peers": r.peers}))  # fmt: skip
        else:
            print(
                f"{_day(r.at_s)}  GPU {r.gpu:2d}  {r.test:12s} {r.seconds * 1e3:10.3f} ms "
                f"{r.ratio:6.3f}x of {r.peers}  {r.run}"
            )
    return 0


def _day(at_s: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(at_s).strftime("%Y-%m-%d %H:%M")
