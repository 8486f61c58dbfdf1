"""Files as the NCCL plugin writes them, of ranks whose calls are known."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from paceline.blockfile import block, file_header

BEGUN_NS = 1_700_000_000_000_000_000
CALLS = 4
#: Of a call: the host queues it, and its channel runs on the device until all have come.
_WORK_NS, _CALL_NS = 8_000_000, 9_000_000
_GROUP, _COLL, _P2P, _KERNEL, _START, _STATE, _KERNEL_STOP = 0, 1, 2, 6, 0, 2, 22


def _channel(call: int, own_ns: int, begin_ns: int, end_ns: int) -> list[tuple[int, ...]]:
    running = call + 16, call, 1, _KERNEL
    return [
        (own_ns + 1000, *running, _START, 0, begin_ns, 0, 0, 0),
        (own_ns + 1000, *running, _STATE, _KERNEL_STOP, end_ns, 0, 0, 0),
    ]


def rank_file(
    folder: Path,
    rank: int,
    *,
    place: int | None = None,
    ranks: int = 4,
    communicator: int = 0xABC,
    pid: int | None = None,
    given: int = -1,
    begun_ns: int = BEGUN_NS,
    ahead_ns: int = 0,
    steps: int = 40,
    late_ns: int = 0,
    on_device: bool = True,
    exchange: Callable[[int], Sequence[int]] | None = None,
) -> Path:
    """One process: ``steps`` steps of four collectives.

    Args:
        folder: where to.
        rank: of the job; ``place`` is that in the communicator.
        given: the launcher's RANK; -1: none.
        ahead_ns: of its clock.
        late_ns: how much later than the others it comes to the first call of each step.
        on_device: whether the plugin wrote it; else the shim.
        exchange: step -> ns by which the channels of a group's four sends and recvs with the two
            neighbours begin after the group's first; None: no such group.
    """
    names = (("time_ns", "<i8"), ("handle", "<u8"), ("parent", "<u8"), ("communicator", "<u4"))
    more = (("type", "<u2"), ("what", "u1"), ("state", "u1"), ("a", "<u8"), ("b", "<u8"))
    rows, texts = [], []
    clock, handle = begun_ns, 0
    for step in range(steps):
        for call in range(CALLS):
            begin = clock + _WORK_NS + 10_000 * rank + (late_ns if call == 0 else 0)
            clock += _CALL_NS + (20_000_000 if call == 0 else 0)
            handle += 32
            own = begin + ahead_ns
            rows.append((own, handle, 0, 1, _COLL, _START, 0, step * CALLS + call, 1 << call, 0, 0))
            texts.append(struct.pack("16s16s16s8s", b"AllReduce", b"ncclFloat32", b"RING", b""))
            if on_device:
                rows += _channel(handle, own, begin, clock)
        if exchange is None:
            continue
        handle += 32
        own = clock + _WORK_NS + ahead_ns
        rows.append((own, handle, 0, 1, _GROUP, _START, 0, 0, 0, 0, 0))
        peers = (b"Send", 1), (b"Recv", -1), (b"Send", -1), (b"Recv", 1)
        for number, ((func, peer), later_ns) in enumerate(zip(peers, exchange(step), strict=True)):
            handle += 32
            peer = (rank + peer) % ranks
            rows.append((own + number, handle, 0, 1, _P2P, _START, 0, 0, 1024, peer, 1))
            texts.append(struct.pack("16s16s16s8s", func, b"ncclFloat32", b"", b""))
            begin = clock + _WORK_NS + later_ns
            rows += _channel(handle, own + later_ns, begin, clock + _CALL_NS)
        clock += _CALL_NS
    table = np.array(rows, dtype=np.dtype([*names, *more, ("c", "<i4"), ("d", "<i4")]))
    pid = 1000 + rank if pid is None else pid
    meta = {"what": "nccl-profiler", "abi": 7 * on_device, "host": "node0", "pid": pid}
    meta |= {"begun_ns": begun_ns, "file": 1, "rank": given}
    of = struct.pack("<QIiii32s", communicator, 1, rank if place is None else place, ranks, 1, b"")
    path = folder / f"nccl-node0-{pid}-00000.nccl"
    path.write_bytes(
        file_header(meta)
        + block(17, of)
        + block(19, struct.pack("<Q", len(table)) + table.tobytes() + b"".join(texts))
    )
    return path
