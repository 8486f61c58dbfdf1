"""Files as the NCCL plugin writes them, of ranks whose calls are known."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from paceline.blockfile import block, file_header

BEGUN_NS = 1_700_000_000_000_000_000
CALLS = 4
#: Of a call: the host queues it, and its channel runs on the device until all have come.
_WORK_NS, _CALL_NS = 8_000_000, 9_000_000
_COLL, _KERNEL, _START, _STATE, _KERNEL_STOP = 1, 6, 0, 2, 22


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
) -> Path:
    """One process: ``steps`` steps of four collectives.

    Args:
        folder: where to.
        rank: of the job; ``place`` is that in the communicator.
        given: the launcher's RANK; -1: none.
        ahead_ns: of its clock.
        late_ns: how much later than the others it comes to the first call of each step.
        on_device: whether the plugin wrote it; else the shim.
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
                running = handle + 16, handle, 1, _KERNEL
                rows.append((own + 1000, *running, _START, 0, begin, 0, 0, 0))
                rows.append((own + 1000, *running, _STATE, _KERNEL_STOP, clock, 0, 0, 0))
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
