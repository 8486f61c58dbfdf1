"""NCCL Inspector's logs: one JSON object per completed collective and line, a file per process.

The format, from memory of NCCL 2.28's ext-profiler/inspector/README and not compared with it:

    {"header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
     "metadata": {"inspector_output_format_version": "v4.0", "git_rev": "",
                  "rec_mechanism": "profiler_plugin", "dump_timestamp_us": 1748030377748202,
                  "hostname": "node-1", "pid": 1639453},
     "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184,
                   "coll_exec_time_us": 61974, "coll_algobw_gbs": 277.2, "coll_busbw_gbs": 485.1,
                   "event_trace_ts": {"coll_start_ts": 1748030377686228, ...}}}   # only if verbose

``id`` names the communicator and ``rank`` counts within it, so a process is (hostname, pid), and
its global rank is that in the communicator that holds all processes; where none does, processes
are numbered by host and pid, and a note says so. The tool writes what it finds completed every now
and then: a call begins at ``coll_start_ts``, or else its execution time before the dump.
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


@dataclass
class _Calls:
    """Calls as they are read: columns of equal length."""

    process: list[int] = field(default_factory=list)
    communicator: list[int] = field(default_factory=list)
    op: list[int] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    dump_s: list[float] = field(default_factory=list)
    duration_s: list[float] = field(default_factory=list)


class _Index:
    """Names numbered by first appearance, and who has which rank in which communicator."""

    def __init__(self) -> None:
        self.ops: dict[str, int] = {}
        self.communicators: dict[str, int] = {}
        self.processes: dict[Process, int] = {}
        self.ranks: dict[int, dict[int, int]] = defaultdict(dict)  # communicator, process -> rank
        self.sizes: dict[int, int] = {}


def matches(path: Path) -> bool:
    """Whether a file's first line is one of the inspector's."""
    first = head(path).lstrip()
    return first.startswith("{") and '"header"' in first and '_perf"' in first


def read(paths: Sequence[Path]) -> tuple[CallLog, tuple[str, ...]]:
    """The calls of all processes, and notes on what was inferred or is missing.

    Raises:
        TraceError: a file is damaged, cut off or no log of the inspector, or its numbers contradict
            each other.
    """
    index, calls, others = _Index(), _Calls(), 0
    for path in paths:
        for place, entry in _entries(path):
            others += not _add(index, calls, entry, place)
    where = str(paths[0]) if len(paths) == 1 else f"{len(paths)} logs of NCCL Inspector"
    if not calls.op:
        raise TraceError(f"{where}: no collective is in there (coll_perf)")
    rank_of, notes = _ranks(index, where)
    if others:
        notes.append(f"{others:,} lines are of no collective and were passed over")
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
    """Add a line, if it is of a collective."""
    header, metadata = mapping(entry, "header"), mapping(entry, "metadata")
    call = mapping(entry, "coll_perf")
    if not call:
        return False
    name = str(header.get("id"))[:80]
    communicator = index.communicators.setdefault(name, len(index.communicators))
    host = metadata.get("hostname")
    if not isinstance(host, str) or not isinstance(call.get("coll"), str):
        raise TraceError(f"{place}: hostname and coll should be names")
    process_name = (host[:200], whole(metadata, "pid", place))
    process = index.processes.setdefault(process_name, len(index.processes))
    rank, n_ranks = whole(header, "rank", place), whole(header, "n_ranks", place)
    before = index.ranks[communicator].setdefault(process, rank)
    size = index.sizes.setdefault(communicator, n_ranks)
    if rank >= n_ranks or before != rank or size != n_ranks:
        raise TraceError(
            f"{place}: rank {rank} of {n_ranks} in communicator {name} contradicts an earlier line "
            f"(rank {before} of {size}), or itself; are these logs of one run?"
        )
    duration_s = number(call, "coll_exec_time_us", place) * 1e-6
    dump_s = number(metadata, "dump_timestamp_us", place) * 1e-6
    verbose = mapping(call, "event_trace_ts")
    start_s = dump_s - duration_s
    if "coll_start_ts" in verbose:
        start_s = number(verbose, "coll_start_ts", place) * 1e-6
    if duration_s < 0:
        raise TraceError(f"{place}: coll_exec_time_us is negative; is the file damaged?")
    size_bytes = number(call, "coll_msg_size_bytes", place)
    if not 0 <= size_bytes < 2**62 or size_bytes % 1:
        raise TraceError(f"{place}: coll_msg_size_bytes should be a whole number from 0")
    calls.process.append(process)
    calls.communicator.append(communicator)
    calls.op.append(index.ops.setdefault(call["coll"][:80], len(index.ops)))
    calls.number.append(whole(call, "coll_sn", place))
    calls.size.append(int(size_bytes))
    calls.start_s.append(start_s)
    calls.dump_s.append(dump_s)
    calls.duration_s.append(duration_s)
    return True


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
    """node-2 before node-10."""
    host, pid = process
    pieces = re.split(r"([0-9]{1,15})", host)
    return [(int(piece), "") if i % 2 else (-1, piece) for i, piece in enumerate(pieces)], pid


def _log(
    index: _Index, calls: _Calls, rank_of: Sequence[int], notes: list[str], where: str
) -> CallLog:
    columns = {name: np.array(values) for name, values in vars(calls).items()}
    rank = np.array(rank_of, dtype=np.int64)[columns["process"]]
    order = np.lexsort((columns["number"], columns["communicator"], rank))
    columns = {name: values[order] for name, values in columns.items()}
    rank, group, sequence = rank[order], columns["communicator"], columns["number"]
    same_sequence = (np.diff(rank) == 0) & (np.diff(group) == 0)
    gap = np.diff(sequence)
    twice = same_sequence & (gap == 0)
    back = same_sequence & (np.diff(columns["dump_s"]) < 0)
    for wrong, fault in (
        (twice, "there twice; was a log given twice?"),
        (back, "dumped before the call ahead of it; was the clock set, or are these two runs?"),
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
            "numbers; dump more often (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS)"
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
