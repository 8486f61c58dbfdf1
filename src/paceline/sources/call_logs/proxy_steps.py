"""Network transfers of NCCL's proxy threads, separated from their waits for the GPU and the peer.

A proxy moves an operation in steps, and notifies NCCL's profiler when a step's wait changes (NCCL
v2.30.7-1, ``src/transport/net.cc``). A send waits for the GPU (state 8), for the peer (20), then
for the network (9) until the step stops. A recv waits for the data (10), which combines the sender
and the network. The network's time therefore comes from the senders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from paceline.sources.call_logs.nccl_profiler import Process

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_START, _STOP, _STATE = 0, 1, 2
_PROXY_OP, _PROXY_STEP, _NET = 3, 4, 7
_IS_SEND, _CHANNEL = 256, 255
_GPU_WAIT, _PEER_WAIT, _SEND_WAIT = 8, 20, 9
_DATA_WAIT, _FLUSH_WAIT, _RECV_GPU_WAIT = 10, 11, 12
_COLUMNS: Final = 11
#: Identifiers of NCCL's own network plugins, and their direction (``net_ib_v1.h``,
#: ``net_socket_v1.h``, ``socket.h``). An opcode of a send names a write, that of a recv is not set.
_IB, _SOCKET = 0x10001, 0x20001
_SOCKET_SEND = 0


@dataclass(frozen=True, eq=False)
class Operations:
    """Proxy operations of all ranks whose steps were recorded.

    Attributes:
        rank: [op] rank of the recording proxy's process.
        peer: [op] the rank at the other end; -1 if it wrote no files.
        place, peer_place: [op] ranks of both ends in NCCL's communicator.
        is_send: [op] the direction.
        channel: [op] NCCL's channel.
        size: [op] bytes; steps: [op] number of steps.
        network_s: [op] time with at least one step in the network; for a recv, the step may also be
            not yet sent.
        gpu_s, peer_s: [op] sum of the steps' waits for the GPU and for the peer.
    """

    rank: Ints
    peer: Ints
    place: Ints
    peer_place: Ints
    is_send: npt.NDArray[np.bool_]
    channel: Ints
    size: Ints
    steps: Ints
    network_s: Floats
    gpu_s: Floats
    peer_s: Floats

    def __len__(self) -> int:
        return len(self.rank)


def operations(processes: Mapping[int, Process]) -> Operations:
    """The operations of all ranks; empty if events 4 were not recorded."""
    places = {
        (name, place): rank
        for rank, process in processes.items()
        for name, place, _ in process.communicators.values()
    }
    tables = [_of_rank(rank, process, places) for rank, process in sorted(processes.items())]
    rows = np.concatenate(tables) if tables else np.empty((0, _COLUMNS))
    whole = rows[:, :8].astype(np.int64).T
    return Operations(
        rank=whole[0],
        peer=whole[1],
        place=whole[2],
        peer_place=whole[3],
        is_send=whole[4].astype(bool),
        channel=whole[5],
        size=whole[6],
        steps=whole[7],
        network_s=rows[:, 8],
        gpu_s=rows[:, 9],
        peer_s=rows[:, 10],
    )


def _of_rank(rank: int, process: Process, places: Mapping[tuple[int, int], int]) -> Floats:
    records = process.records
    steps = records[(records["type"] == _PROXY_STEP) & (records["what"] == _START)]
    begun = records[(records["type"] == _PROXY_OP) & (records["what"] == _START)]
    if not len(steps) or not len(begun):
        return np.empty((0, _COLUMNS))
    handles = steps["handle"]
    times = {
        state: _times(records, handles, _STATE, state)
        for state in (_GPU_WAIT, _PEER_WAIT, _SEND_WAIT, _DATA_WAIT, _FLUSH_WAIT, _RECV_GPU_WAIT)
    }
    stopped = _times(records, handles, _STOP, 0)
    op_order = np.argsort(begun["handle"], kind="stable")
    at = np.searchsorted(begun["handle"], steps["parent"], sorter=op_order)
    op = op_order[np.minimum(at, len(begun) - 1)]
    is_send = (begun["d"][op] & _IS_SEND) != 0
    first = np.where(is_send, times[_SEND_WAIT], times[_DATA_WAIT])
    last = np.where(is_send, stopped, times[_FLUSH_WAIT])
    known = (begun["handle"][op] == steps["parent"]) & np.isfinite(first) & np.isfinite(last)
    size = np.where(
        is_send,
        _values(records, handles, _SEND_WAIT),
        _values(records, handles, _FLUSH_WAIT),
    )
    ready = np.fmin(times[_PEER_WAIT], times[_SEND_WAIT])
    gpu = np.where(is_send, ready - times[_GPU_WAIT], stopped - times[_RECV_GPU_WAIT])
    peer = np.where(is_send, times[_SEND_WAIT] - ready, 0.0)
    rows = []
    order = np.lexsort((first, op))
    for group in np.split(order, np.flatnonzero(np.diff(op[order])) + 1):
        if not known[group].all():
            continue  # half an operation has neither valid bytes nor time
        row = begun[op[group[0]]]
        entry = process.communicators.get(int(row["communicator"]))
        if entry is None:
            continue
        rows.append(
            (
                rank,
                places.get((entry[0], int(row["c"])), -1),
                entry[1],
                int(row["c"]),
                bool(is_send[group[0]]),
                int(row["d"]) & _CHANNEL,
                int(size[group].sum()),
                len(group),
                _union_s(first[group], last[group]),
                float(np.nansum(np.maximum(gpu[group], 0.0))) * 1e-9,
                float(np.nansum(np.maximum(peer[group], 0.0))) * 1e-9,
            )
        )
    return np.array(rows, dtype=float).reshape(-1, _COLUMNS)


def _first(records: npt.NDArray[np.void], handles: npt.NDArray[np.void]) -> Ints:
    """[handle] index of its first record among these; -1 without one."""
    if not len(records):
        return np.full(len(handles), -1)
    names, at = np.unique(records["handle"], return_index=True)
    place = np.minimum(np.searchsorted(names, handles), len(names) - 1)
    found: Ints = np.where(names[place] == handles, at[place], -1)
    return found


def _times(
    records: npt.NDArray[np.void], handles: npt.NDArray[np.void], what: int, state: int
) -> Floats:
    """[handle] ns since the file's first record; NaN where the record is missing."""
    chosen = _of_steps(records, what, state)
    at = _first(chosen, handles)
    if not len(chosen):
        return np.full(len(handles), np.nan)
    since = (chosen["time_ns"] - records["time_ns"][0]).astype(float)
    return np.where(at >= 0, since[at], np.nan)


def _values(records: npt.NDArray[np.void], handles: npt.NDArray[np.void], state: int) -> Floats:
    chosen = _of_steps(records, _STATE, state)
    at = _first(chosen, handles)
    if not len(chosen):
        return np.zeros(len(handles))
    return np.where(at >= 0, chosen["a"][at].astype(float), 0.0)


def _of_steps(records: npt.NDArray[np.void], what: int, state: int) -> npt.NDArray[np.void]:
    steps = records[records["type"] == _PROXY_STEP]
    chosen: npt.NDArray[np.void] = steps[(steps["what"] == what) & (steps["state"] == state)]
    return chosen


@dataclass(frozen=True)
class PluginEvents:
    """Transfers recorded by NCCL's network plugin, of a rank, device and direction.

    Attributes:
        rank: rank of the process.
        plugin: "IB", "Socket", or the identifier of another.
        device: one of the devices of NCCL's NIC, such as a port; -1 if unknown.
        direction: "send", "recv", or "unknown".
        events: number of ended events; size: their bytes, 0 if unknown.
        bytes_per_s: median over events; NaN without bytes.
    """

    rank: int
    plugin: str
    device: int
    direction: str
    events: int
    size: int
    bytes_per_s: float

    def to_mapping(self) -> dict[str, Any]:
        """The transfers as JSON values."""
        speed = None if np.isnan(self.bytes_per_s) else self.bytes_per_s
        return {**vars(self), "bytes_per_s": speed}


def plugin_events(processes: Mapping[int, Process]) -> tuple[PluginEvents, ...]:
    """The transfers of all ranks; needs an NCCL with NET_PROFILER=1, and events 7."""
    rows: list[PluginEvents] = []
    for rank, process in sorted(processes.items()):
        events = process.records[process.records["type"] == _NET]
        begun, ended = (events[events["what"] == what] for what in (_START, _STOP))
        _, at, until = np.intersect1d(begun["handle"], ended["handle"], return_indices=True)
        begun = begun[at]
        seconds = (ended["time_ns"][until] - begun["time_ns"]) * 1e-9
        is_send = _parent_sends(process, begun["parent"])
        groups: dict[tuple[str, int, str], list[int]] = defaultdict(list)
        for i, row in enumerate(begun):
            groups[_group(row, int(is_send[i]))].append(i)
        for (plugin, device, direction), chosen in sorted(groups.items()):
            # InfiniBand's recvs have no length.
            has_sizes = direction != "recv" or plugin != "IB"
            size = begun["b"][chosen].astype(float) if has_sizes else np.zeros(len(chosen))
            timed = (size > 0) & (seconds[chosen] > 0)
            speeds = size[timed] / seconds[chosen][timed]
            speed = float(np.median(speeds)) if len(speeds) else np.nan
            rows.append(
                PluginEvents(rank, plugin, device, direction, len(chosen), int(size.sum()), speed)
            )
    return tuple(rows)


def _group(row: np.void, parent_sends: int) -> tuple[str, int, str]:
    identifier = int(row["a"])
    direction = ("recv", "send", "unknown")[parent_sends]
    if identifier == _IB:
        return "IB", int(row["c"]), direction
    if identifier == _SOCKET:
        return "Socket", -1, "send" if row["d"] == _SOCKET_SEND else "recv"
    return f"{identifier:#x}", -1, direction


def _parent_sends(process: Process, steps: npt.NDArray[np.void]) -> Ints:
    """[step handle] direction of its proxy operation: 1 sends, 0 receives, 2 unknown."""
    records = process.records[process.records["what"] == _START]
    step = records[records["type"] == _PROXY_STEP]
    op = records[records["type"] == _PROXY_OP]
    at = _first(step, steps)
    if not len(step) or not len(op):
        return np.full(len(steps), 2)
    of = _first(op, np.where(at >= 0, step["parent"][at], 0))
    sends = (op["d"][of] & _IS_SEND) != 0
    return np.where((at >= 0) & (of >= 0), sends.astype(np.int64), 2)


def _union_s(first: Floats, last: Floats) -> float:
    """Seconds in which at least one of the spans is open; ``first`` is sorted."""
    until = np.maximum.accumulate(last)
    gaps = np.maximum(first[1:] - until[:-1], 0.0).sum()
    return float(until[-1] - first[0] - gaps) * 1e-9
