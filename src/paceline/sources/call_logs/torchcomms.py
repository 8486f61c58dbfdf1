"""torchcomms' clog: lines with signatures of calls, and their times of queueing, begin and end.

Format: meta-pytorch/torchcomms at 59426ba, ``comms/torchcomms/hooks/clog``, version 1 of
``AI_TOOL_INSTRUCTIONS_V1.md`` and ``ClogHook.cpp``:

    V|1|base_timestamp=1714234567.890
    new_comm|comm=world|rank=0|world_size=8
    split|parent=world|child=dp|ranks=0,2,4,6
    C1|sig|all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum|async_op=f|comm=world
    C1|Q|work_id=1|+0.001
    C1|S|+0.002
    C1|E|+0.005

A file is one rank's. Calls of one signature begin and end in the order in which they were queued.
Times are the host's, in whole milliseconds. Lines of calls in CUDA graphs (``G42|...``) are not in
the order of the calls, so they are left out.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paceline.errors import TraceError
from paceline.sources.fields import whole
from paceline.sources.json_stream import head, whole_lines
from paceline.trace.calls import CallLog

_HEADER = re.compile(r"V\|(\d{1,9})\|base_timestamp=(\d{1,15}(?:\.\d+)?)\s*$")
_VERSION = 1
_EVENT = re.compile(r"C(\d{1,18})\|([QSEW])(?:\|work_id=\d+)?\|\+(\d{1,12}(?:\.\d+)?)$")
#: Limit of the elements of one call.
_MAX_ELEMENTS = 2**62

#: Names of calls whose two ends are different operations.
_ONE_SIDED = ("send", "recv")
_NO_CALLS = ("batch_op_issue",)


#: Name of a call, its elements, and its communicator.
_Signature = tuple[str, int, str]


class _Calls:
    """Calls in the order of their queueing; 28 bytes each."""

    def __init__(self) -> None:
        self.numbers: dict[_Signature, int] = {}
        self.signature = array("i")  # [call] number of its signature
        # [call] seconds after the header's, NaN where no line has it
        self.times = {kind: array("d") for kind in "QSE"}

    def __len__(self) -> int:
        return len(self.signature)

    def add(self, signature: _Signature, queued_s: float) -> int:
        """Add a call; returns its position."""
        self.signature.append(self.numbers.setdefault(signature, len(self.numbers)))
        for kind, at in self.times.items():
            at.append(queued_s if kind == "Q" else math.nan)
        return len(self) - 1


@dataclass
class _Log:
    """Content of one rank's file."""

    path: Path
    base_s: float
    ranks: dict[str, tuple[int, int]] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    signatures: dict[str, _Signature | None] = field(default_factory=dict)
    calls: _Calls = field(default_factory=_Calls)
    n_in_graphs: int = 0
    n_warnings: int = 0
    cuts: list[str] = field(default_factory=list)


def matches(path: Path) -> bool:
    """Whether a file begins with clog's header."""
    return _HEADER.match(head(path, 1 << 10).partition("\n")[0]) is not None


def read(path: Path) -> tuple[CallLog, tuple[str, ...]]:
    """The calls of one rank, and notes on what the log lacks.

    Raises:
        TraceError: the file is damaged, of another version, has no calls, or lacks its rank.
    """
    log = _read_lines(path)
    if not log.ranks:
        raise TraceError(f"{path} does not say its rank: it has no line new_comm")
    rank = max(log.ranks.values(), key=lambda place: place[1])[0]
    if not len(log.calls):
        raise TraceError(f"{path} has no calls outside of CUDA graphs; was the hook registered?")
    table, n_timed = _table(log.calls, rank, log.base_s)
    return table, tuple(_notes(log, rank, n_timed))


def _read_lines(path: Path) -> _Log:
    log: _Log | None = None
    pending: dict[str, dict[str, deque[int]]] = defaultdict(lambda: defaultdict(deque))
    cuts: list[str] = []
    for n, text in enumerate(whole_lines(path, cuts), 1):
        line, place = text.rstrip("\r\n"), f"{path}, line {n}"
        if log is None:
            log = _Log(path, _base_s(line, place))
        elif match := _EVENT.match(line):
            _event(log, pending[match[1]], match, place)
        elif line.startswith("C") and "|sig|" in line:
            _signature(log, line, place)
        elif line.startswith(("new_comm|", "split|")):
            _communicator(log, line, place)
        elif line.startswith("G"):
            log.n_in_graphs += "|Q|" in line
        elif line.startswith("WARN|"):
            log.n_warnings += 1
        elif line:
            raise TraceError(f"{place} is no line of clog: {line[:80]!r}; is the file cut off?")
    if log is None:
        raise TraceError(f"{path} is empty")
    log.cuts = cuts
    return log


def _base_s(line: str, place: str) -> float:
    match = _HEADER.match(line)
    if not match:
        raise TraceError(f"{place} should be clog's header: V|1|base_timestamp=...")
    if int(match[1]) != _VERSION:
        raise TraceError(f"{place}: clog of version {match[1]}; version {_VERSION} is read")
    return float(match[2])


def _signature(log: _Log, line: str, place: str) -> None:
    name, _, op, *rest = line.split("|")
    values = _values(rest)
    communicator = values.get("comm")
    if not communicator or not name[1:].isdigit():
        raise TraceError(f"{place}: a signature without a number or communicator")
    if op in _NO_CALLS:
        log.signatures[name[1:]] = None
        return
    key = _key(log, communicator)
    if op in _ONE_SIDED and communicator in log.ranks:
        peer = whole(values, "peer", place)
        ends = sorted((log.ranks[communicator][0], peer))
        key = f"{key}:{ends[0]}-{ends[1]}"
    log.signatures[name[1:]] = (op[:80], _size(values, place), key)


def _size(values: Mapping[str, str], place: str) -> int:
    """Number of a call's input elements, or else of its output."""
    for name in ("in_count", "in_counts", "in_splits", "out_count", "out_counts"):
        counts = [text for text in values.get(name, "").split(",") if text]
        total = sum(whole({name: text}, name, place) for text in counts)
        if total >= _MAX_ELEMENTS:
            raise TraceError(f"{place}: {name} is too large; is the file damaged?")
        if total:
            return total
    return 0


def _communicator(log: _Log, line: str, place: str) -> None:
    kind, *rest = line.split("|")
    values = _values(rest)
    if kind == "split":
        ranks = [text for text in values.get("ranks", "").split(",") if text]
        if ranks:  # empty if this rank is in no child
            members = tuple(whole({"ranks": text}, "ranks", place) for text in ranks)
            log.members[values.get("child", "")] = members
        return
    rank, size = whole(values, "rank", place), whole(values, "world_size", place)
    if rank >= size:
        raise TraceError(f"{place}: rank {rank} of {size}; is the file damaged?")
    log.ranks[values.get("comm", "")] = (rank, size)


def _key(log: _Log, communicator: str) -> str:
    """The name of a communicator, with its members if it was split from another."""
    members = log.members.get(communicator)
    name = communicator[:120]
    return name if members is None else f"{name}[{','.join(map(str, members))}]"


def _event(log: _Log, pending: dict[str, deque[int]], match: re.Match[str], place: str) -> None:
    """Parse a line of a call; ``pending`` has the calls of its signature that wait for S and E."""
    number_of, kind, at = match[1], match[2], float(match[3])
    if number_of not in log.signatures:
        raise TraceError(f"{place}: C{number_of} has no signature before it; is the file cut off?")
    signature = log.signatures[number_of]
    if signature is None or kind == "W":
        return
    if kind == "Q":
        call = log.calls.add(signature, at)
        pending["S"].append(call)
        pending["E"].append(call)
        return
    if not pending[kind]:
        raise TraceError(f"{place}: C{number_of} has more {kind} than Q; is the file cut off?")
    log.calls.times[kind][pending[kind].popleft()] = at


def _values(parts: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in parts)}


def _table(calls: _Calls, rank: int, base_s: float) -> tuple[CallLog, int]:
    """The calls with begin and end, or all if no call has both; and the number of such calls."""
    queued, begun, ended = (np.frombuffer(values) for values in calls.times.values())
    timed = np.flatnonzero(np.isfinite(begun) & np.isfinite(ended))
    rows, begin = (timed, begun) if len(timed) else (np.arange(len(calls)), queued)
    rows = rows[np.argsort(begin[rows], kind="stable")]
    op, size, communicator = zip(*calls.numbers, strict=True)
    ops, groups = tuple(dict.fromkeys(op)), tuple(dict.fromkeys(communicator))
    of_call = np.frombuffer(calls.signature, np.int32)[rows]
    table = CallLog(
        rank=np.full(len(rows), rank, dtype=np.int64),
        time_s=base_s + begin[rows],
        op=np.array([ops.index(name) for name in op], dtype=np.int64)[of_call],
        size=np.array(size, dtype=np.int64)[of_call],
        communicator=np.array([groups.index(c) for c in communicator], dtype=np.int64)[of_call],
        ops=ops,
        communicators=groups,
        duration_s=(ended - begun)[rows].clip(min=0) if len(timed) else None,
    )
    return table, len(timed)


def _notes(log: _Log, rank: int, n_timed: int) -> list[str]:
    notes = list(log.cuts)
    if n_timed:
        notes.append(f"rank {rank}: clog's times are whole milliseconds")
        if n_timed < len(log.calls):
            n = len(log.calls) - n_timed
            notes.append(f"rank {rank}: {n:,} calls that have no begin or no end are left out")
    if log.n_in_graphs:
        notes.append(f"rank {rank}: {log.n_in_graphs:,} calls in CUDA graphs are left out")
    if log.n_warnings:
        notes.append(f"rank {rank}: clog warns {log.n_warnings:,} times (lines WARN)")
    return notes
