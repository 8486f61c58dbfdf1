"""NCCL Inspector's logs: one JSON object per completed call and line, a file per process.

Held against NCCL 2.28.3 to 2.30.7, format v4.0. The sources are inspector_json.cc and inspector.cc
in plugins/profiler/inspector (before 2.29: ext-profiler/inspector). An example:

    {"header": {"id": "0x7f8c496ae9f661", "comm_name": "unknown", "rank": 2, "n_ranks": 8,
                "nnodes": 1},
     "metadata": {"inspector_output_format_version": "v4.0", "git_rev": "",
                  "rec_mechanism": "nccl_profiler_interface",
                  "dump_timestamp_us": 1748030377748202, "hostname": "node-1", "pid": 1639453},
     "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184,
                   "coll_exec_time_us": 61974, "coll_timing_source": "kernel_gpu", ...,
                   "event_trace_ts": {"coll_start_ts": 1748030377686228, "kernel_events":
                       [{"channel_id": 0, "kernel_start_ts": 1748030377686312, ...}]}}}  # verbose

Sends and recvs (from 2.30.3 on) have ``p2p_perf`` with ``p2p``, ``p2p_sn``, ``p2p_peer`` and so on.
A line without a header belongs to the header above it. ``dump_stats`` (v4.2, not released with
2.30.7) are no calls. No released version writes proxy events, nor networks' directions.

``id`` names the communicator and ``rank`` counts within it, so a process is (hostname, pid). Its
global rank is its rank in the communicator that holds all processes. Without such a communicator,
processes are numbered by host and pid, and a note says so. The tool writes completed calls at
intervals, by default only at the end of the communicator (``inspector.cc``, interval -1). A call
begins when its kernels start, or else when the host calls NCCL. Without both, the reader subtracts
the execution time from the time of the dump. That is wrong for calls that were dumped together, so
such files are refused.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import TraceError
from paceline.sources.fields import mapping, number, whole
from paceline.sources.json_stream import head, lines
from paceline.trace.calls import CallLog

Process = tuple[str, int]

#: A communicator's calls run one after the other, so less than this share begin before the previous
#: call ends. A larger share shows that the begins follow only from the times of dumps.
MAX_OVERLAPPING = 0.5

#: Families of calls: the prefix of their keys, and the key of the call's name.
_FAMILIES = ("coll", "p2p")


@dataclass
class _Calls:
    """The calls so far, in columns of equal length."""

    process: list[int] = field(default_factory=list)
    communicator: list[int] = field(default_factory=list)
    op: list[int] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    dump_s: list[float] = field(default_factory=list)
    duration_s: list[float] = field(default_factory=list)
    #: Calls of each family are numbered separately, over all calls of a communicator in a process.
    sequence: list[int] = field(default_factory=list)
    has_start: list[bool] = field(default_factory=list)
    by_host: list[bool] = field(default_factory=list)


class _Index:
    """Names numbered by first appearance, and the rank of each process in each communicator."""

    def __init__(self) -> None:
        self.ops: dict[str, int] = {}
        self.communicators: dict[str, int] = {}
        self.processes: dict[Process, int] = {}
        self.ranks: dict[int, dict[int, int]] = defaultdict(dict)  # communicator, process -> rank
        self.sizes: dict[int, int] = {}
        self.sequences: dict[tuple[str, str], int] = {}  # (communicator, family)


def matches(path: Path) -> bool:
    """Whether a file's first line is one of the inspector's."""
    first = head(path).lstrip()
    return first.startswith("{") and (
        '"inspector_output_format_version"' in first or ('"header"' in first and '_perf"' in first)
    )


def read(paths: Sequence[Path]) -> tuple[CallLog, tuple[str, ...]]:
    """The calls of all processes, and notes on what was inferred or is missing.

    Raises:
        TraceError: a file is damaged, cut off or no log of the inspector, or its numbers contradict
            each other.
    """
    index, calls, others = _Index(), _Calls(), 0
    for path in paths:
        above: dict[str, Any] = {}
        for place, entry in _entries(path):
            above |= {key: entry[key] for key in ("header", "metadata") if key in entry}
            if "dump_stats" not in entry:
                others += not _add(index, calls, {**above, **entry}, place)
    where = str(paths[0]) if len(paths) == 1 else f"{len(paths)} logs of NCCL Inspector"
    if not calls.op:
        raise TraceError(f"{where} has no collective (coll_perf, p2p_perf)")
    rank_of, notes = _ranks(index, where)
    if others:
        notes.append(f"{others:,} lines describe no collective and are left out")
    _check_begins(calls, where)
    n_by_host = sum(calls.by_host)
    if n_by_host:
        notes.append(
            f"{n_by_host:,} of {len(calls.op):,} durations were measured on the host; "
            "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=1 leaves such calls out"
        )
    return _log(index, calls, rank_of, notes, where), tuple(notes)


def _entries(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for n, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        place = f"{path}, line {n}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(
                f"{place} is damaged or cut off ({error}); copy the file again, or, if the job was "
                "killed, delete this line"
            ) from None
        if not isinstance(entry, dict):
            raise TraceError(f"{place} is no object; is it a log of NCCL Inspector?")
        yield place, entry


def _add(index: _Index, calls: _Calls, entry: Mapping[str, Any], place: str) -> bool:
    """Add a line, if it describes a call."""
    family = next((name for name in _FAMILIES if mapping(entry, f"{name}_perf")), None)
    if family is None:
        return False
    header, metadata = mapping(entry, "header"), mapping(entry, "metadata")
    call = mapping(entry, f"{family}_perf")
    host = metadata.get("hostname")
    if not isinstance(host, str) or not isinstance(call.get(family), str):
        raise TraceError(f"{place}: hostname and {family} should be names")
    process_name = (host[:200], whole(metadata, "pid", place))
    process = index.processes.setdefault(process_name, len(index.processes))
    name = str(header.get("id"))[:80]
    communicator = _member(index, name, header, process, place)
    if family == "p2p":
        communicator = _pair(index, name, header, call, place)
    duration_s = number(call, f"{family}_exec_time_us", place) * 1e-6
    if duration_s < 0:
        raise TraceError(f"{place}: {family}_exec_time_us is negative; is the file damaged?")
    size_bytes = number(call, f"{family}_msg_size_bytes", place)
    if not 0 <= size_bytes < 2**62 or size_bytes % 1:
        raise TraceError(f"{place}: {family}_msg_size_bytes should be a whole number from 0")
    dump_s = number(metadata, "dump_timestamp_us", place) * 1e-6
    start_s = _start_s(call, family, place)
    calls.process.append(process)
    calls.communicator.append(communicator)
    calls.op.append(index.ops.setdefault(call[family][:80], len(index.ops)))
    calls.number.append(whole(call, f"{family}_sn", place))
    calls.size.append(int(size_bytes))
    calls.start_s.append(dump_s - duration_s if start_s is None else start_s)
    calls.dump_s.append(dump_s)
    calls.duration_s.append(duration_s)
    calls.sequence.append(index.sequences.setdefault((name, family), len(index.sequences)))
    calls.has_start.append(start_s is not None)
    calls.by_host.append(str(call.get(f"{family}_timing_source", "")).endswith("_cpu"))
    return True


def _member(index: _Index, name: str, header: Mapping[str, Any], process: int, place: str) -> int:
    """The communicator of a line; notes the rank of the line's process in it."""
    communicator = index.communicators.setdefault(name, len(index.communicators))
    rank, n_ranks = whole(header, "rank", place), whole(header, "n_ranks", place)
    before = index.ranks[communicator].setdefault(process, rank)
    size = index.sizes.setdefault(communicator, n_ranks)
    if rank >= n_ranks or before != rank or size != n_ranks:
        raise TraceError(
            f"{place}: rank {rank} of {n_ranks} in communicator {name} contradicts an earlier line "
            f"(rank {before} of {size}), or itself; are these logs of one run?"
        )
    return communicator


def _pair(
    index: _Index, name: str, header: Mapping[str, Any], call: Mapping[str, Any], place: str
) -> int:
    """The communicator of a send or recv, which has only the two ends."""
    ends = sorted((whole(header, "rank", place), whole(call, "p2p_peer", place)))
    pair = f"{name}:{ends[0]}-{ends[1]}"
    return index.communicators.setdefault(pair, len(index.communicators))


def _start_s(call: Mapping[str, Any], family: str, place: str) -> float | None:
    """Begin of the call's first kernel, or else of the host's call; None without both."""
    verbose = mapping(call, "event_trace_ts")
    kernels = verbose.get("kernel_events")
    starts = [
        number(kernel, "kernel_start_ts", place)
        for kernel in (kernels if isinstance(kernels, list) else ())
        if isinstance(kernel, dict) and kernel.get("kernel_start_ts")
    ]
    if starts:
        return min(starts) * 1e-6
    if f"{family}_start_ts" in verbose:
        return number(verbose, f"{family}_start_ts", place) * 1e-6
    return None


def _check_begins(calls: _Calls, where: str) -> None:
    """Refuse begins that follow only from the times of dumps."""
    columns = [calls.process, calls.sequence, calls.number, calls.start_s, calls.dump_s]
    process, sequence, call, start_s, dump_s = (np.array(values) for values in columns)
    order = np.lexsort((call, sequence, process))
    same = (np.diff(process[order]) == 0) & (np.diff(sequence[order]) == 0)
    same &= ~np.array(calls.has_start)[order][1:]
    overlaps = same & (start_s[order][1:] < dump_s[order][:-1])
    if overlaps.sum() > MAX_OVERLAPPING * max(int(same.sum()), 1):
        raise TraceError(
            f"{where}: {overlaps.sum():,} of {same.sum():,} calls would begin before the previous "
            "one had ended: they were written together, so their begins are unknown. "
            "Set NCCL_INSPECTOR_DUMP_VERBOSE=1 (the begins are written), and "
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500 (by default, -1, the log is "
            "written when the communicator ends)"
        )


def _ranks(index: _Index, where: str) -> tuple[list[int], list[str]]:
    """[process] its global rank, and notes."""
    notes = []
    n = len(index.processes)
    for communicator, ranks in index.ranks.items():
        if len(set(ranks.values())) < len(ranks):
            name = list(index.communicators)[communicator]
            raise TraceError(
                f"{where}: two processes have one rank in communicator {name}; are these logs of "
                "two runs? Give those of one"
            )
    whole_job = max(index.ranks, key=lambda c: (len(index.ranks[c]), index.sizes[c]))
    missing = index.sizes[whole_job] - len(index.ranks[whole_job])
    if len(index.ranks[whole_job]) == n:
        if missing:
            notes.append(f"{missing} of {index.sizes[whole_job]} ranks have no log here")
        return [index.ranks[whole_job][process] for process in range(n)], notes
    notes.append(
        "no communicator holds all processes, so they are numbered by host and pid; these are not "
        "the job's ranks"
    )
    place = {process: n for n, process in enumerate(sorted(index.processes, key=_natural))}
    return [place[process] for process in index.processes], notes


def _natural(process: Process) -> tuple[list[tuple[int, str]], int]:
    """Sort key that puts node-2 before node-10."""
    host, pid = process
    pieces = re.split(r"([0-9]{1,15})", host)
    return [(int(piece), "") if i % 2 else (-1, piece) for i, piece in enumerate(pieces)], pid


def _log(
    index: _Index, calls: _Calls, rank_of: Sequence[int], notes: list[str], where: str
) -> CallLog:
    columns = {name: np.array(values) for name, values in vars(calls).items()}
    rank = np.array(rank_of, dtype=np.int64)[columns["process"]]
    order = np.lexsort((columns["number"], columns["sequence"], rank))
    columns = {name: values[order] for name, values in columns.items()}
    rank, group, sequence = rank[order], columns["communicator"], columns["number"]
    same_sequence = (np.diff(rank) == 0) & (np.diff(columns["sequence"]) == 0)
    gap = np.diff(sequence)
    twice = same_sequence & (gap == 0)
    back = same_sequence & (np.diff(columns["dump_s"]) < 0)
    for wrong, fault in (
        (twice, "there twice; was a log given twice?"),
        (back, "dumped before the previous call; was the clock set, or are these two runs?"),
    ):
        if wrong.any():
            at = int(np.argmax(wrong)) + 1
            raise TraceError(
                f"{where}: call {sequence[at]} of rank {rank[at]} in communicator "
                f"{list(index.communicators)[group[at]]} is {fault}"
            )
    missing = int((gap - 1)[same_sequence].sum())
    if missing:
        notes.append(
            f"{missing:,} calls between the {len(rank):,} logged are missing, by their sequence "
            "numbers; dump more often (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS), and note "
            "that calls below NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8,192) are not logged"
        )
    in_time = np.lexsort((sequence, columns["start_s"], rank))
    return CallLog(
        rank=rank[in_time],
        time_s=columns["start_s"][in_time],
        op=columns["op"][in_time].astype(np.int64),
        size=columns["size"][in_time].astype(np.int64),
        communicator=group[in_time].astype(np.int64),
        ops=tuple(index.ops),
        communicators=tuple(index.communicators),
        duration_s=columns["duration_s"][in_time],
    )
