"""``paceline nccl waits``: which ranks wait for which, and how fast transfers are."""

from __future__ import annotations

import argparse
import json
import sys
from math import isnan
from typing import TYPE_CHECKING

from paceline.cli.trace_input import file_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.detect.nics import Network
    from paceline.detect.waits import WaitGraph
    from paceline.sources.call_logs.nccl_profiler import Process
    from paceline.sources.call_logs.proxy_links import Link
    from paceline.sources.call_logs.timed_calls import TimedCalls

EPILOG = """\
examples:
  paceline nccl waits runs/job-17
  paceline nccl waits runs/job-17 --recording runs/job-17
  paceline nccl waits runs/job-17 --profiles traces/rank-*.json.gz --json
  paceline nccl waits runs/job-17 --nccl-log logs/nccl.*

The plugin's times alone come from each device: the member whose call takes least came last. A
recording of the hooks or profiles of PyTorch's profiler, made at the same time by the same ranks,
have begins and ends on one clock: the wait ends when the last member begins.
"""

_BASES = {
    "exact": "begins and ends on one clock: a wait ends when the last member begins",
    "device": "times of each rank's device: the rank that waits least came last",
    "host": "times of the hosts only: waits are bounds, and transfers are not known",
}
#: Rows of a table.
_SHOWN = 10


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = actions.add_parser(
        "waits",
        help="which ranks wait for which in collectives, and how fast transfers are",
        description="A graph of the ranks that wait for each other, from the calls that the "
        "plugin recorded.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", metavar="FOLDER", type=file_name, help="what PACELINE_RECORD names in the job"
    )
    more = parser.add_mutually_exclusive_group()
    more.add_argument(
        "--recording",
        metavar="FOLDER",
        type=file_name,
        help="recording of the hooks in the same run (docs/record.md)",
    )
    more.add_argument(
        "--profiles",
        metavar="FILE",
        nargs="+",
        type=file_name,
        help="profiles of PyTorch's profiler, of the same run, a file per rank",
    )
    parser.add_argument(
        "--nccl-log",
        metavar="FILE",
        nargs="+",
        default=[],
        type=file_name,
        help="NCCL's log with NCCL_DEBUG=INFO: it names the NIC of each channel",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=file_name,
        help="also draw the graph of waits (.svg, .png or .pdf); by host beyond 64 ranks",
    )
    parser.add_argument("--force", action="store_true", help="replace FILE of --plot")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, match, print."""
    from paceline.detect.waits import wait_graph
    from paceline.sources.call_logs.proxy_links import links
    from paceline.sources.call_logs.proxy_steps import plugin_events
    from paceline.sources.call_logs.timed_calls import read_folder, timed_calls

    processes, notes = read_folder(args.folder)
    graph = wait_graph(_joined(args, timed_calls(processes, notes)))
    of_proxies = links(processes)
    nics = _nics(args, processes)
    events = plugin_events(processes)
    if args.plot is not None:
        from paceline.files import write_files
        from paceline.plot import figure_writer, waits

        hosts = {rank: str(process.meta.get("host")) for rank, process in processes.items()}
        axes = waits(graph, hosts)
        write_files({args.plot: figure_writer(axes, args.plot)}, force=args.force)
    if args.json:
        found = graph.to_mapping() | {"links": [link.to_mapping() for link in of_proxies]}
        found |= nics.to_mapping() | {"plugin_events": [one.to_mapping() for one in events]}
        print(json.dumps(found))
        return 0
    _print(graph, of_proxies)
    _print_nics(nics, bool(of_proxies))
    for note in (*graph.notes, *nics.notes):
        print(f"note: {note}", file=sys.stderr)
    return 0


def _nics(args: argparse.Namespace, processes: Mapping[int, Process]) -> Network:
    from paceline.detect.nic_names import name_nics
    from paceline.detect.nics import network
    from paceline.sources.call_logs.nccl_log import read_channels
    from paceline.sources.call_logs.proxy_steps import operations

    told = operations(processes)
    channels = read_channels(args.nccl_log) if args.nccl_log else ()
    return network(told, *name_nics(told, processes, channels))


def _joined(args: argparse.Namespace, calls: TimedCalls) -> TimedCalls:
    from paceline.sources.call_logs.joining import with_profiles, with_recording

    if args.recording is not None:
        from paceline.sources import load
        from paceline.sources.recording.files import read_files

        return with_recording(calls, load(args.recording), read_files(args.recording))
    if args.profiles is not None:
        from paceline.sources.kineto.profile import read_profile

        return with_profiles(calls, [read_profile(path) for path in args.profiles])
    return calls


def _print(graph: WaitGraph, of_proxies: tuple[Link, ...]) -> None:
    print(
        f"{graph.calls:,} calls of {len(graph.ranks):,} ranks within {graph.seconds:.3g} s; "
        f"{_BASES[graph.basis]}"
    )
    print("\nwaits        for     seconds   share    calls")
    for wait in graph.waits[:_SHOWN]:
        share = wait.seconds / graph.seconds if graph.seconds else 0.0
        print(
            f"rank {wait.waits:<6} {wait.late:>6} {wait.seconds:>11.4g} {share:>7.1%} "
            f"{wait.calls:>8,}"
        )
    if graph.transfers:
        print("\ntransfers                 bytes    calls  median ms          bus  its like")
    for row in graph.transfers[:_SHOWN]:
        like = "" if isnan(row.ratio) else f"{row.ratio:.2f}x"
        slow = "  slow" if row.is_slow else ""
        ends = row.group.partition(":")[2]  # of a send, its two places in the communicator
        ranks = f"{row.op} {ends or f'of {len(row.ranks)} ({row.ranks[0]}-{row.ranks[-1]})'}"
        print(
            f"{ranks:<20} {row.size:>10,} {row.calls:>8,} {row.transfer_s * 1e3:>10.4g} "
            f"{_speed(row.bus_bytes_per_s):>12} {like:>9}{slow}"
        )
    if of_proxies:
        print("\nlinks of proxies    told by   operations   at least  of the median")
    for link in of_proxies[:_SHOWN]:
        target = link.target if link.target >= 0 else "?"
        source = link.source if link.source >= 0 else "?"
        print(
            f"rank {source} to {target:<9} {link.told_by:<8} {link.operations:>11,} "
            f"{_speed(link.bytes_per_s):>12} {link.ratio:>13.2f}x"
        )


def _print_nics(nics: Network, has_proxies: bool) -> None:
    """NICs by direction, and the seconds for which the proxies' steps waited."""
    if not nics.rows:
        if has_proxies:
            print(
                "\nthe slow NIC, rail or direction is unknown: the proxies' times include waits "
                "for the GPU and the peer; PACELINE_NCCL_EVENTS=0x105f records them separately"
            )
        return
    print(
        "\nNICs                             transfers        speed  its like (95%)        "
        "network s     GPU s    peer s"
    )
    for row in nics.rows[:_SHOWN]:
        like = "" if isnan(row.ratio) else f"{row.ratio:.2f}x ({row.low:.2f}-{row.high:.2f})"
        print(
            f"{row.nic.host} {row.nic.name} {row.direction:<4}".ljust(32)
            + f"{row.transfers:>10,} {_speed(row.bytes_per_s):>12}  {like:<20} "
            f"{row.network_s:>10.4g} {row.gpu_s:>9.4g} {row.peer_s:>9.4g}"
        )
    for one in nics.slow:
        print(one.to_text())
    if not nics.slow and not nics.notes:
        print("no NIC, rail or direction is slow among its like")


def _speed(bytes_per_s: float) -> str:
    return "-" if isnan(bytes_per_s) else f"{bytes_per_s / 1e9:.3g} GB/s"
