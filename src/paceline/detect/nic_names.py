"""Names of the NICs of proxy operations, from NCCL's log if given, else by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from paceline.detect.nics import Nic
from paceline.sources.call_logs.nccl_log import ChannelNic
from paceline.sources.call_logs.nccl_profiler import Process
from paceline.sources.call_logs.proxy_steps import Operations


def name_nics(
    operations: Operations, processes: Mapping[int, Process], channels: Sequence[ChannelNic] = ()
) -> tuple[list[Nic], list[Nic]]:
    """[op] the NIC of the recording rank, and that of its peer.

    Host and process number identify a rank's process in the log. If the process has one NIC in a
    direction, all its operations use that; otherwise channel and peer select it. If this is
    ambiguous, or without a log, the rank stands for its NIC.
    """
    names = _Names(processes, channels)
    here, there = [], []
    for i in range(len(operations)):
        rank, peer = int(operations.rank[i]), int(operations.peer[i])
        place, other = int(operations.place[i]), int(operations.peer_place[i])
        sends, channel = bool(operations.is_send[i]), int(operations.channel[i])
        here.append(names.of(rank, (sends, channel, place, other)))
        there.append(
            names.of(peer, (not sends, channel, other, place))
            if peer >= 0
            else Nic("?", f"rank {other}", "?")
        )
    return here, there


#: Sends, channel, place of the process, place of its peer.
_Way = tuple[bool, int, int, int]


class _Names:
    def __init__(self, processes: Mapping[int, Process], channels: Sequence[ChannelNic]) -> None:
        self.hosts = {
            rank: str(process.meta.get("host")).partition(".")[0]
            for rank, process in processes.items()
        }
        self.pids = {rank: process.meta.get("pid") for rank, process in processes.items()}
        self.local: dict[int, int] = {}
        counted: dict[str, int] = defaultdict(int)
        for rank in sorted(processes):
            self.local[rank] = counted[self.hosts[rank]]
            counted[self.hosts[rank]] += 1
        self.nics: dict[tuple[str, int, bool], set[str]] = defaultdict(set)
        self.ways: dict[tuple[str, int, _Way], set[str]] = defaultdict(set)
        for one in channels:
            way = (one.is_send, one.channel, one.place, one.peer)
            self.nics[one.host, one.pid, one.is_send].add(one.nic)
            self.ways[one.host, one.pid, way].add(one.nic)

    def of(self, rank: int, way: _Way) -> Nic:
        host, pid = self.hosts[rank], self.pids[rank]
        if isinstance(pid, int):
            for found in (
                self.nics.get((host, pid, way[0]), set()),
                self.ways.get((host, pid, way), set()),
            ):
                if len(found) == 1:
                    (name,) = found
                    return Nic(host, name, name)
        return Nic(host, f"NIC of rank {rank}", f"of local rank {self.local[rank]}")
