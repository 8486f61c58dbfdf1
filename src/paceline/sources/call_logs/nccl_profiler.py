"""Files of Paceline's NCCL profiler plugin: the collectives, sends and recvs of each process.

``native/writer.c`` writes them as blocks (:mod:`paceline.blockfile`); ``docs/nccl.md`` describes
the blocks and names NCCL's versions. A call begins with the first of its channels on the device and
ends with the last. The smallest difference between host clock and GPU timer is taken as their
offset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from paceline.blockfile import BlockFile, BlockFileError, read_file, read_header
from paceline.errors import TraceError
from paceline.sources.call_logs.nccl_steps import step_marks

#: Suffix of the plugin's files; a recording of the hooks may lie beside them.
SUFFIX: Final = ".nccl"

_WHOLE_RECORDS, _COMMUNICATORS, _COUNTS, _RECORDS = 16, 17, 18, 19
_GROUP, _COLL, _P2P, _KERNEL, _CE_COLL = 0, 1, 2, 6, 12
_START, _STATE, _KERNEL_STOP = 0, 2, 22
#: A handle is the thread's ring, a number that counts up, and 4 bits of the type (``ring_handle``).
_RING_BITS: Final = 48

_HEAD = [
    *(("time_ns", "<i8"), ("handle", "<u8"), ("parent", "<u8"), ("communicator", "<u4")),
    *(("type", "<u2"), ("what", "u1"), ("state", "u1"), ("a", "<u8"), ("b", "<u8")),
    *(("c", "<i4"), ("d", "<i4")),
]
_TEXTS = [("func", "S16"), ("datatype", "S16"), ("algo", "S16"), ("proto", "S8")]
#: A record, and its two parts; only starts of these types have texts (``has_texts`` of ``ring.c``).
_RECORD, _HEAD_ALONE, _TEXTS_ALONE = np.dtype([*_HEAD, *_TEXTS]), np.dtype(_HEAD), np.dtype(_TEXTS)
_HAVE_TEXTS: Final = (_COLL, _P2P, _CE_COLL)
_COMMUNICATOR = np.dtype(
    [
        *(("id", "<u8"), ("number", "<u4"), ("rank", "<i4"), ("ranks", "<i4")),
        *(("nodes", "<i4"), ("name", "S32")),
    ]
)
#: Bytes of an element, by NCCL's names (ncclDatatypeToString, NCCL 2.30.7, src/collectives.cc).
_BYTES: Final = {
    **dict.fromkeys(("ncclInt8", "ncclUint8", "ncclFloat8e4m3", "ncclFloat8e5m2"), 1),
    **dict.fromkeys(("ncclFloat16", "ncclBfloat16"), 2),
    **dict.fromkeys(("ncclInt32", "ncclUint32", "ncclFloat32"), 4),
    **dict.fromkeys(("ncclInt64", "ncclUint64", "ncclFloat64"), 8),
}


@dataclass(frozen=True, eq=False)
class Process:
    """Records of one process.

    Attributes:
        meta: headers of its files.
        records: [record] of its files, in the order in which they were written.
        communicators: number -> (id, its rank, ranks).
        recorded, dropped: the plugin's own counts of records; 0 if it was killed before.
        left_out: number of records that were not made while recording was switched off.
        skipped: number of records that were not made, since their steps are left out.
        damaged: number of damaged places in its files.
    """

    meta: Mapping[str, object]
    records: npt.NDArray[np.void]
    communicators: Mapping[int, tuple[int, int, int]]
    recorded: int
    dropped: int
    left_out: int
    skipped: int
    damaged: int


def matches(path: Path) -> bool:
    """Whether the plugin wrote a file."""
    try:
        return read_header(path).get("what") == "nccl-profiler"
    except (BlockFileError, OSError):
        return False


def read_processes(paths: Sequence[Path]) -> list[Process]:
    """The processes that wrote files, by host and process number.

    A running process removes its oldest files. Files that are gone meanwhile are left out.

    Raises:
        TraceError: a file is damaged at its start, or unreadable; or all are gone.
    """
    files: dict[tuple[str, int, int], list[BlockFile]] = defaultdict(list)
    for path in paths:
        try:
            file = read_file(path)
        except FileNotFoundError:
            continue
        except (BlockFileError, OSError) as error:
            raise TraceError(str(error)) from error
        place = _whole(file, "pid", path), _whole(file, "begun_ns", path)
        files[(str(file.meta.get("host")), *place)].append(file)
    if paths and not files:
        raise TraceError(f"{paths[0]} is gone: its process has removed it; read the folder again")
    return [_process(files[name]) for name in sorted(files)]


def _whole(file: BlockFile, key: str, path: Path) -> int:
    value = file.meta.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TraceError(f"{path}: {key} in the header should be a whole number")
    return value


def _process(files: Sequence[BlockFile]) -> Process:
    of_type: dict[int, list[memoryview]] = defaultdict(list)
    for file in files:
        for kind, data in file.blocks:
            of_type[kind].append(data)
    # Earlier versions wrote records with their texts inside; no process writes both kinds.
    records = _table(of_type.get(_WHOLE_RECORDS, []), _RECORD)
    if _RECORDS in of_type:
        records = np.concatenate([_joined(data) for data in of_type[_RECORDS]])
    named = _table(of_type.get(_COMMUNICATORS, []), _COMMUNICATOR)
    counts = [
        np.frombuffer(bytes(data[:32]).ljust(32, b"\0"), "<u8") for data in of_type.get(_COUNTS, [])
    ]
    total = np.max(counts, axis=0) if counts else np.zeros(4)
    return Process(
        meta=files[0].meta,
        records=records,
        communicators={
            int(row["number"]): (int(row["id"]), int(row["rank"]), int(row["ranks"]))
            for row in named
        },
        recorded=int(total[0]),
        dropped=int(total[1]),
        left_out=int(total[2]),
        skipped=int(total[3]),
        damaged=sum(file.damaged + bool(file.torn_bytes) for file in files),
    )


def _joined(data: memoryview) -> npt.NDArray[np.void]:
    """The records of a block: their number, all heads, then the texts of records with texts."""
    n = int.from_bytes(data[:8], "little")
    middle = 8 + min(n, len(data) // _HEAD_ALONE.itemsize) * _HEAD_ALONE.itemsize
    heads, texts = _table([data[8:middle]], _HEAD_ALONE), _table([data[middle:]], _TEXTS_ALONE)
    records = np.zeros(len(heads), dtype=_RECORD)
    for name in _HEAD_ALONE.names or ():
        records[name] = heads[name]
    texted = np.flatnonzero((heads["what"] == _START) & np.isin(heads["type"], _HAVE_TEXTS))
    for name in _TEXTS_ALONE.names or ():
        records[name][texted[: len(texts)]] = texts[name][: len(texted)]
    return records


def _table(payloads: Sequence[memoryview], layout: np.dtype[np.void]) -> npt.NDArray[np.void]:
    whole = [data[: len(data) - len(data) % layout.itemsize] for data in payloads]
    return np.frombuffer(b"".join(whole), dtype=layout)


@dataclass(frozen=True)
class PluginCall:
    """One collective, send or recv of one process.

    Attributes:
        host_ns: time when the host queued it, nanoseconds since 1970.
        start_s: begin of its first channel on the device, on the same clock; ``host_s`` without it.
        duration_s: time until its last channel's end; 0 where that is not known.
        op: NCCL's name.
        size: its size in bytes.
        communicator: identity of the communicator; that of a send or recv has the two ends only.
        members: ranks of this communicator.
        place: this process's rank in NCCL's communicator.
        peer: peer of a send or recv, in NCCL's communicator; -1 for others.
        seq: NCCL's number of a collective, by function; -1 for a send or recv.
        on_device: whether the device's times are known.
        group: handle of the group of calls that it was queued with; 0 where none was recorded.
        step: number of the step that begins with this call; -1 for other calls, or if all steps
            were recorded.
        is_whole: whether all calls of that step were recorded.
        every: n, if each n-th step is recorded whole; 0 where ``step`` is -1.
    """

    host_ns: int
    start_s: float
    duration_s: float
    op: str
    size: int
    communicator: str
    members: int
    place: int
    peer: int
    seq: int
    on_device: bool
    group: int = 0
    step: int = -1
    is_whole: bool = False
    every: int = 0

    @property
    def host_s(self) -> float:
        """``host_ns`` in seconds."""
        return self.host_ns * 1e-9


def calls_of(process: Process) -> list[PluginCall]:
    """The calls of a process, in order of their begin."""
    spans = _device_spans(process.records)
    records = process.records
    begins = _begins(process)
    host = (records["what"] == _START) & np.isin(records["type"], _HAVE_TEXTS)
    calls = []
    for row, group in zip(records[host], _groups(records, records[host]), strict=True):
        entry = process.communicators.get(int(row["communicator"]))
        if entry is None:
            continue
        host_ns = int(row["time_ns"])
        host_s = host_ns * 1e-9
        begin_s, end_s = spans.get(int(row["handle"]), (host_s, -1.0))
        peer = int(row["c"]) if row["type"] == _P2P else -1
        calls.append(
            PluginCall(
                host_ns=host_ns,
                start_s=begin_s,
                duration_s=max(end_s - begin_s, 0.0),
                op=row["func"].decode(errors="replace") or "unknown",
                size=min(int(row["b"]), 2**58) * _BYTES.get(row["datatype"].decode("latin1"), 1),
                communicator=_name(entry, peer),
                members=entry[2] if peer < 0 else 2,
                place=entry[1],
                peer=peer,
                seq=int(row["a"]) if peer < 0 else -1,
                on_device=int(row["handle"]) in spans,
                group=group,
                **begins.get(int(row["handle"]), {}),
            )
        )
    return sorted(calls, key=lambda call: call.start_s)


def _groups(records: npt.NDArray[np.void], calls: npt.NDArray[np.void]) -> list[int]:
    """[call] handle of the last group that its thread began before it; 0 without one.

    From NCCL 2.28 on a call's parent is an event of the API, which the plugin does not ask for.
    """
    begun = (records["what"] == _START) & (records["type"] == _GROUP)
    groups = np.append(np.uint64(0), np.sort(records["handle"][begun]))
    before = groups[np.searchsorted(groups, calls["handle"]) - 1]
    same_thread = before >> np.uint64(_RING_BITS) == calls["handle"] >> np.uint64(_RING_BITS)
    of_calls: list[int] = np.where(same_thread, before, np.uint64(0)).tolist()
    return of_calls


def _begins(process: Process) -> dict[int, dict[str, Any]]:
    """Handle of a call with which a step begins -> the call's fields about that step."""
    marks = step_marks(process.records)
    if marks is None:
        return {}
    steps = zip(marks.handle.tolist(), marks.number.tolist(), marks.is_whole.tolist(), strict=True)
    return {
        handle: {"step": number, "is_whole": is_whole, "every": marks.every}
        for handle, number, is_whole in steps
    }


def _name(entry: tuple[int, int, int], peer: int) -> str:
    """Name of a communicator; a send or recv has a communicator of its two ends."""
    name, rank, _ = entry
    if peer < 0:
        return f"{name:#x}"
    low, high = sorted((rank, peer))
    return f"{name:#x}:{low}-{high}"


def _device_spans(records: npt.NDArray[np.void]) -> dict[int, tuple[float, float]]:
    """Handle of a call -> begin and end on the device, in s on the host's clock."""
    begun = records[(records["what"] == _START) & (records["type"] == _KERNEL)]
    stopped = records[(records["what"] == _STATE) & (records["state"] == _KERNEL_STOP)]
    if not len(begun) or not len(stopped):
        return {}
    stopped = stopped[::-1]  # the last stop of a channel counts
    _, at_begin, at_stop = np.intersect1d(begun["handle"], stopped["handle"], return_indices=True)
    ahead_ns = int((begun["time_ns"] - begun["a"].astype(np.int64)).min())
    spans: dict[int, tuple[float, float]] = {}
    timers = zip(
        begun["parent"][at_begin].tolist(),
        begun["a"][at_begin].tolist(),
        stopped["a"][at_stop].tolist(),
        strict=True,
    )
    for call, from_ns, to_ns in timers:
        if not 0 < from_ns <= to_ns:
            continue
        before = spans.get(call, (np.inf, -np.inf))
        span = (from_ns + ahead_ns) * 1e-9, (to_ns + ahead_ns) * 1e-9
        spans[call] = min(before[0], span[0]), max(before[1], span[1])
    return spans
