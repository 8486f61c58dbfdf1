"""PyTorch's flight recorder: the last collectives that each rank called, as pickle or JSON.

The format was read in PyTorch 2.13 and held against dumps of it. The files are
torch/csrc/distributed/c10d/FlightRecorder.hpp (keys, version 2.10), and loader.py and types.py of
torch/distributed/flight_recorder/components. A dump is of one rank, and does not name it. The rank
is the number at the end of the file's name, as in ``nccl_trace_rank_3``. PyTorch's own loader takes
it from there, too. ``entries`` holds the newest TORCH_FR_BUFFER_SIZE calls, by default 2,000.
``time_created_ns`` is the time when the host queued the call, not when it ran. ``duration_ms`` is
there only with TORCH_NCCL_ENABLE_TIMING=1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import TraceError
from paceline.sources.call_logs.plain_pickle import load
from paceline.sources.fields import number, optional_whole, whole
from paceline.sources.json_stream import JsonStream, head, open_bytes, read_chunk, read_whole
from paceline.trace.calls import CallLog

#: A dump of 100,000 entries has about 20 MB.
MAX_PICKLE_BYTES = 512 << 20

#: Nanoseconds by which times may go back. The recorder takes them under a lock, so they go back
#: further only if the clock was set.
MAX_BACK_NS = 1_000_000

#: Largest number of tensors or dimensions of a call.
_MAX_TENSORS, _MAX_DIMENSIONS = 1 << 20, 64

_RANK = re.compile(r"(\d{1,9})(?:\.(?:json|pkl|pickle|pt|bin|gz))*$", re.IGNORECASE)


def matches(path: Path) -> bool:
    """Whether a file is a pickle, or JSON with the keys of a dump."""
    with open_bytes(path) as file:
        start = read_chunk(file, path, 2)
    if start[:1] == b"\x80":
        return True
    text = head(path)
    return text.lstrip().startswith("{") and '"collective_seq_id"' in text


def read(path: Path) -> tuple[CallLog, tuple[str, ...]]:
    """The calls of one rank, in the order of their records, and notes on what the dump lacks.

    Sizes are elements of the input (of the output, where there is no input).

    Raises:
        TraceError: the file is unreadable, damaged or no dump, contains code, is of another version
            or an unknown rank, or its times go back.
    """
    rank = _rank_of(path)
    with open_bytes(path) as file:
        packed = read_chunk(file, path, 1) == b"\x80"
    header, entries = _read_pickle(path) if packed else _read_json(path)
    version = header.get("version")
    if not isinstance(version, str) or version.split(".")[0] != "2":
        version_text = version[:20] if isinstance(version, str) else "unknown"
        raise TraceError(f"{path} is a dump of version {version_text}; version 2 is read")
    if not entries:
        raise TraceError(f"{path} has no entries; was TORCH_FR_BUFFER_SIZE 0?")
    return _log(path, rank, entries)


def _rank_of(path: Path) -> int:
    match = _RANK.search(path.name)
    if not match:
        raise TraceError(
            f"{path}: a dump does not say its rank, so the name has to end in it: nccl_trace_rank_0"
        )
    return int(match[1])


def _read_pickle(path: Path) -> tuple[Mapping[str, Any], list[Any]]:
    dump = load(read_whole(path, MAX_PICKLE_BYTES, "a dump"), str(path))
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise TraceError(f"{path} is no dump of the flight recorder: it has no list of entries")
    return dump, dump["entries"]


def _read_json(path: Path) -> tuple[Mapping[str, Any], list[Any]]:
    stream = JsonStream(path, "entries")
    entries = [_needed(entry) for entry in stream]
    return stream.header, entries


_KEYS = frozenset(
    {
        *("record_id", "time_created_ns", "profiling_name", "process_group"),
        *("input_sizes", "output_sizes", "duration_ms"),
    }
)


def _needed(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry[key] for key in _KEYS if key in entry}


def _log(path: Path, rank: int, entries: Iterable[Any]) -> tuple[CallLog, tuple[str, ...]]:
    rows = sorted(_row(path, n, entry) for n, entry in enumerate(entries))
    records = np.array([row[0] for row in rows])
    if (np.diff(records) == 0).any():
        twice = records[int(np.argmax(np.diff(records) == 0))]
        raise TraceError(f"{path} has record {twice} twice; is the file damaged?")
    time_ns = np.array([row[1] for row in rows], dtype=np.int64)
    back = np.maximum.accumulate(time_ns) - time_ns
    if int(back.max()) > MAX_BACK_NS:
        at = int(np.argmax(back > MAX_BACK_NS))
        raise TraceError(
            f"{path}: record {records[at]} was made {back[at] * 1e-9:.3f} s before the previous "
            "one; the clock was set during the recording: take another dump"
        )
    names, groups = list(dict.fromkeys(r[2] for r in rows)), list(dict.fromkeys(r[3] for r in rows))
    op_of, group_of = ({name: n for n, name in enumerate(values)} for values in (names, groups))
    durations = [row[5] for row in rows]
    log = CallLog(
        rank=np.full(len(rows), rank, dtype=np.int64),
        time_s=np.maximum.accumulate(time_ns) * 1e-9,
        op=np.array([op_of[row[2]] for row in rows], dtype=np.int64),
        size=np.array([row[4] for row in rows], dtype=np.int64),
        communicator=np.array([group_of[row[3]] for row in rows], dtype=np.int64),
        ops=tuple(names),
        communicators=tuple(groups),
        duration_s=None if min(durations) < 0 else np.array(durations),
    )
    notes = []
    if records[0] > 0:
        notes.append(f"rank {rank}: its {records[0]:,} earliest calls had left the recorder")
    n_missing = int(records[-1] - records[0]) + 1 - len(records)
    if n_missing:
        notes.append(f"rank {rank}: {n_missing:,} calls in between are missing")
    return log, tuple(notes)


def _row(path: Path, n: int, entry: Any) -> tuple[int, int, str, str, int, float]:
    """(record, time in ns, op, group, elements, duration in s or -1) of an entry."""
    place = f"{path}, entry {n}"
    if not isinstance(entry, dict):
        raise TraceError(f"{place} is no call but a {type(entry).__name__}")
    for key in ("record_id", "duration_ms"):
        if isinstance(entry.get(key), list | tuple | dict):
            raise TraceError(f"{place}: {key} should be a number")
    time_ns = entry.get("time_created_ns")
    if not isinstance(time_ns, int) or isinstance(time_ns, bool) or not 0 <= time_ns < 2**63:
        raise TraceError(f"{place}: time_created_ns should be nanoseconds")
    name, group = entry.get("profiling_name"), entry.get("process_group")
    if not isinstance(name, str) or not name:
        raise TraceError(f"{place}: profiling_name should be the name of the call")
    if not isinstance(group, list | tuple) or not all(isinstance(text, str) for text in group):
        raise TraceError(f"{place}: process_group should be a name and a description")
    sizes = entry.get("input_sizes") or entry.get("output_sizes") or []
    duration_s = -1.0
    if entry.get("duration_ms") is not None:
        duration_s = number(entry, "duration_ms", place) * 1e-3
        if duration_s < 0:
            raise TraceError(f"{place}: duration_ms is negative; is the file damaged?")
    # "nccl:all_reduce": drop the backend.
    op = name.partition(":")[2] or name
    record = whole(entry, "record_id", place)
    return record, time_ns, op[:200], ":".join(group)[:200], _elements(sizes, place), duration_s


def _elements(sizes: Any, place: str) -> int:
    """Elements of all tensors; [] is none, [[]] a scalar."""
    fits = isinstance(sizes, list | tuple) and len(sizes) <= _MAX_TENSORS
    total = 0
    for shape in sizes if fits else ():
        fits = isinstance(shape, list | tuple) and len(shape) <= _MAX_DIMENSIONS
        if not fits or any(optional_whole(n) is None for n in shape):
            fits = False
            break
        total += math.prod(optional_whole(n) or 0 for n in shape)
    if not fits or total >= 2**62:
        raise TraceError(f"{place}: input_sizes should be lists of dimensions")
    return total
