"""Collectives in the timelines of DLRover's xpu_timer, a file per rank.

Format: see :mod:`paceline.sources.devices.xpu_timer`. A collective has its bytes, and the hash of
NCCL's communicator, which is the same on all its ranks. Its start is the time when the stream came
to it: the rank's arrival. Sends and recvs do not name their peer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paceline.errors import TraceError
from paceline.sources.devices.xpu_timer import (
    CODE,
    KIND,
    LASTED,
    RANK,
    START,
    TRACES,
    names_of,
    parts,
    read_fields,
    world_size,
)
from paceline.trace.calls import CallLog

#: Largest size; a damaged file may have a larger one, which is cut to this.
MAX_BYTES = 2**62

_COLLECTIVE = 1
#: ``NcclDebugData`` in a ``KernelTrace``, and its fields.
_DETAILS, _HASH, _BYTES, _ONE_SIDED = 9, 3, 4, 10


def read(path: Path) -> tuple[CallLog, tuple[str, ...]]:
    """The collectives of one rank, and notes.

    Raises:
        TraceError: the file is damaged, or has no collectives.
    """
    names = names_of(path)
    ops: dict[str, int] = {}
    groups: dict[str, int] = {}
    rows: list[tuple[float, int, int, int, float]] = []
    rank = n_one_sided = 0
    for field, value, content in read_fields(path):
        if field == RANK:
            rank = max(value, 0)
        if field != TRACES:
            continue
        event, contents = parts(path, content)
        if event.get(KIND) != _COLLECTIVE:
            continue
        details, _ = parts(path, contents.get(_DETAILS, b""))
        if details.get(_ONE_SIDED):
            n_one_sided += 1
            continue
        op = ops.setdefault(names[event.get(CODE, 0)], len(ops))
        group = groups.setdefault(f"{details.get(_HASH, 0):#x}", len(groups))
        start_s, lasted_s = (event.get(name, 0) * 1e-6 for name in (START, LASTED))
        size = min(details.get(_BYTES, 0), MAX_BYTES)
        rows.append((start_s, op, size, group, lasted_s))
    world_size(path, rank)
    if not rows:
        raise TraceError(f"{path} has no collectives; dump with dump_kernel_type 7")
    note = f"{n_one_sided:,} sends and recvs of rank {rank} are left out: they name no peer"
    return _log(rows, rank, ops, groups), (note,) * bool(n_one_sided)


def _log(
    rows: list[tuple[float, int, int, int, float]],
    rank: int,
    ops: dict[str, int],
    groups: dict[str, int],
) -> CallLog:
    """The log of rows (start in s, op, bytes, communicator, duration in s), sorted by start."""
    start_s, op, size, group, lasted_s = (np.array(values) for values in zip(*rows, strict=True))
    order = np.argsort(start_s, kind="stable")
    return CallLog(
        rank=np.full(len(order), rank, dtype=np.int64),
        time_s=start_s[order],
        op=op[order].astype(np.int64),
        size=size[order].astype(np.int64),
        communicator=group[order].astype(np.int64),
        ops=tuple(ops),
        communicators=tuple(groups),
        duration_s=lasted_s[order],
    )
