"""The NICs of NCCL's channels, from its log with NCCL_DEBUG=INFO.

NCCL writes one line per channel, peer and direction:

    HOST:PID:TID [DEV] NCCL INFO Channel 03/0 : 1[1] -> 9[1] [send] via NET/IB/3/GDRDMA

Source: NVIDIA/nccl, ``src/transport/net.cc``, v2.27.3-1 to v2.30.7-1. The shorter form of v2.12 and
before is read, too. NCCL cuts the host's name at its first dot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline.errors import TraceError

_LINE: Final = re.compile(
    r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[\d+\] NCCL INFO Channel (?P<channel>\d+)(?:/\d+)? : "
    r"(?P<from>\d+)\[\w+\] -> (?P<to>\d+)\[\w+\] \[(?P<way>send|receive)\] via "
    r"NET/(?P<net>[\w.-]+)/(?P<device>\d+)"
)


@dataclass(frozen=True)
class ChannelNic:
    """The NIC that a process opened for a channel.

    Attributes:
        host, pid: the process; the name has no dot.
        channel: NCCL's channel.
        place, peer: both ends in NCCL's communicator, this process's first.
        is_send: the direction.
        nic: NCCL's name, such as "IB/3".
    """

    host: str
    pid: int
    channel: int
    place: int
    peer: int
    is_send: bool
    nic: str


def read_channels(paths: Sequence[Path]) -> tuple[ChannelNic, ...]:
    """All network channels in the logs.

    Raises:
        TraceError: a file cannot be read, or none names a channel.
    """
    found = []
    for path in paths:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                found += [_channel(match) for line in file for match in _LINE.finditer(line)]
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    if not found:
        raise TraceError(
            f"{paths[0]} names no channel over a network; NCCL writes them at the job's start with "
            "NCCL_DEBUG=INFO (and NCCL_DEBUG_SUBSYS with INIT or NET)"
        )
    return tuple(found)


def _channel(match: re.Match[str]) -> ChannelNic:
    is_send = match["way"] == "send"
    ends = int(match["from"]), int(match["to"])
    return ChannelNic(
        host=match["host"].partition(".")[0],
        pid=int(match["pid"]),
        channel=int(match["channel"]),
        place=ends[0] if is_send else ends[1],
        peer=ends[1] if is_send else ends[0],
        is_send=is_send,
        nic=f"{match['net']}/{match['device']}",
    )
