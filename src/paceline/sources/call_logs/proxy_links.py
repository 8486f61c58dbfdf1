"""Traffic of NCCL's proxy threads over the network, by the two ranks and the direction.

A proxy operation lasts from its start to its stop on that thread's host; that includes waits for
the GPU or the peer. Its bytes are steps times the chunk, and the last chunk may be partial. So
speeds compare links; they do not measure one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.sources.call_logs.nccl_profiler import Process

_START, _STOP, _PROXY_OP = 0, 1, 3
_IS_SEND = 256


@dataclass(frozen=True)
class Link:
    """One direction between two ranks.

    Attributes:
        source, target: global ranks; -1 if the peer wrote no files.
        told_by: the end whose proxy recorded it: "send" or "recv".
        operations: number of operations.
        bytes_per_s: median over operations.
        ratio: ``bytes_per_s`` over the median of all links that the same end recorded.
    """

    source: int
    target: int
    told_by: str
    operations: int
    bytes_per_s: float
    ratio: float

    def to_mapping(self) -> dict[str, Any]:
        """The link in the form of JSON."""
        return dict(vars(self))


def links(processes: Mapping[int, Process]) -> tuple[Link, ...]:
    """The links of all proxies, slowest first; empty if there is no network, or no events 3."""
    places = {
        (name, place): rank
        for rank, process in processes.items()
        for name, place, _ in process.communicators.values()
    }
    speeds: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for rank, process in processes.items():
        of_proxy = process.records[process.records["type"] == _PROXY_OP]
        begun = of_proxy[of_proxy["what"] == _START]
        ended = of_proxy[of_proxy["what"] == _STOP]
        _, at, until = np.intersect1d(begun["handle"], ended["handle"], return_indices=True)
        for row, seconds in zip(
            begun[at],
            (ended["time_ns"][until] - begun["time_ns"][at]) * 1e-9,
            strict=True,
        ):
            entry = process.communicators.get(int(row["communicator"]))
            if entry is None or seconds <= 0:
                continue
            peer = places.get((entry[0], int(row["c"])), -1)
            sends = bool(row["d"] & _IS_SEND)
            ends = (rank, peer, "send") if sends else (peer, rank, "recv")
            size = (int(row["b"]) >> 32) * (int(row["b"]) & 0xFFFFFFFF)
            speeds[ends].append(size / seconds)
    median = {ends: float(np.median(values)) for ends, values in speeds.items()}
    usual = {
        told_by: float(np.median([m for ends, m in median.items() if ends[2] == told_by]))
        for told_by in {ends[2] for ends in median}
    }
    found = [
        Link(*ends, len(speeds[ends]), speed, speed / usual[ends[2]] if usual[ends[2]] else np.nan)
        for ends, speed in median.items()
    ]
    return tuple(sorted(found, key=lambda link: link.bytes_per_s))
