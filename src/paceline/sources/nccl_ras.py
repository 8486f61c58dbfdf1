"""NCCL's RAS as JSON: each rank's number of launched collectives, and the missing ranks.

Format: ``src/ras/client_support.cc`` of NCCL 2.30.7 (``jsonWriteHeader`` to ``jsonWriteFooter``),
which ``ncclras -f json`` prints since 2.28.7. Ranks are those of the communicator, not the job's.
The counts are those of the host's launches (``ncclProfilerStartTaskEvents``): collectives in CUDA
graphs, sends and receives are not among them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from paceline.errors import TraceError
from paceline.sources.fields import mapping, optional_whole, whole
from paceline.sources.json_stream import JsonStream, head, read_whole

#: Largest status, which is read whole: 10,000 ranks in 20 communicators each need about 130 MB.
MAX_BYTES = 1 << 30

#: ``rasDumpCommsToJSON`` writes local time, without a zone.
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"

#: NCCL 2.28.7 and 2.28.9 left out a comma (``jsonWriteMissingRank``, line 1963 of v2.28.9-1).
_NO_COMMA = re.compile(r'("nvml_dev": -?\d+)(\s*"status")')

#: The start of a status of these versions.
_LACKS_COMMA = re.compile(r'\s*\{\s*"nccl_version": "2\.28\.')

#: ``ncclResult_t`` that are no errors: success, and in progress.
_SUCCESS, _IN_PROGRESS = 0, 7
_ERRORS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
}

State = Literal["init", "running", "finalize", "abort"]
Absence = Literal["dead", "unresponsive", "not a member"]


@dataclass(frozen=True, slots=True)
class Process:
    """The process and GPU of a rank; they are the same in all communicators.

    Attributes:
        host: its address; "unknown" if RAS does not know it.
        pid: process id; -1 if RAS does not know it.
        gpu: number on the host, as NVML counts.
    """

    host: str
    pid: int
    gpu: int

    def explain(self) -> str:
        """``GPU 3 of process 411 on 10.0.0.7``."""
        return f"GPU {self.gpu} of process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class RankStatus:
    """Answer of one rank of a communicator.

    Attributes:
        rank: number in the communicator.
        process: the process that holds it.
        state: its state by the flags, in the words of ``ncclras``.
        error: error of its initialisation or of a collective; "" = none.
        counts: operation -> number of launches.
    """

    rank: int
    process: Process
    state: State
    error: str
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MissingRank:
    """A rank without an answer.

    Attributes:
        rank: number in the communicator.
        process: the process that holds it.
        why: "dead" (unreachable for 60 s), "unresponsive", or "not a member": its process
            answered, but has not joined the communicator yet, or has left it.
    """

    rank: int
    process: Process
    why: Absence


@dataclass(frozen=True)
class Communicator:
    """A communicator, by the answers of its ranks.

    Attributes:
        hash: its hash in NCCL's log; unique except for rare collisions.
        secondary_hash: unique together with ``hash``.
        size: number of its ranks.
        ranks: the ranks that answered.
        missing: the ranks that did not.
    """

    hash: str
    secondary_hash: str
    size: int
    ranks: tuple[RankStatus, ...]
    missing: tuple[MissingRank, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Key that is the same in all statuses of a run, and different for other communicators."""
        return self.hash, self.secondary_hash


@dataclass(frozen=True)
class RasStatus:
    """An answer of RAS.

    Attributes:
        path: the file.
        nccl_version: NCCL's version in the file.
        at: time of the query, by the clock of the queried host.
        communicators: all communicators with ranks.
        n_empty: communicators without ranks, which are being made.
        n_timeouts: how often RAS waited in vain for processes.
    """

    path: Path
    nccl_version: str
    at: datetime
    communicators: tuple[Communicator, ...]
    n_empty: int
    n_timeouts: int

    @cached_property
    def processes(self) -> frozenset[Process]:
        """All processes that hold a rank."""
        ranks = (rank.process for comm in self.communicators for rank in comm.ranks)
        missing = (rank.process for comm in self.communicators for rank in comm.missing)
        return frozenset((*ranks, *missing))


def matches(path: Path) -> bool:
    """Whether the file is a status of RAS as JSON."""
    start = head(path, 1 << 12)
    return '"nccl_version"' in start and '"communicators_count"' in start


def read(path: Path) -> RasStatus:
    """Read one status.

    Raises:
        TraceError: it is unreadable, damaged, or too large.
    """
    document, communicators = _content(path)
    at = document.get("timestamp")
    try:
        moment = datetime.strptime(str(at), _TIME_FORMAT)
    except ValueError:
        raise TraceError(
            f"{path}: timestamp should be like 2026-06-11 13:06:53, not {str(at)[:40]!r}"
        ) from None
    n_announced, n = whole(document, "communicators_count", str(path)), len(communicators)
    if n_announced != n:
        raise TraceError(
            f"{path} announces {n_announced} communicators and has {n}; is it cut off?"
        )
    present = tuple(comm for comm in communicators if comm.ranks or comm.missing)
    keys = [comm.key for comm in present]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise TraceError(f"{path} has communicator {twice[0]} twice; is the file damaged?")
    return RasStatus(
        path=path,
        nccl_version=str(document.get("nccl_version"))[:40],
        at=moment,
        communicators=present,
        n_empty=len(communicators) - len(present),
        n_timeouts=optional_whole(mapping(document, "ras").get("timeouts_count")) or 0,
    )


def _content(path: Path) -> tuple[Mapping[str, Any], list[Communicator]]:
    """The header of a status, and its communicators, which are parsed one by one if possible."""
    start, reader = head(path, 1 << 12), _Communicators(str(path))
    if start.lstrip()[:1] != "{" or _LACKS_COMMA.match(start):
        document = _document(path)
        values = _objects(document, "communicators", str(path))
        return document, [reader.of(value) for value in values]
    stream = JsonStream(path, "communicators")
    events = iter(stream)
    communicators: list[Communicator] = []
    while True:
        try:
            value = next(events, None)
        except TraceError as error:
            raise TraceError(
                f"{path} is no whole status of NCCL RAS ({error}); ask again: ncclras -f json"
            ) from None
        if value is None:
            return stream.header, communicators
        communicators.append(reader.of(value))


def _document(path: Path) -> Mapping[str, Any]:
    data = read_whole(path, MAX_BYTES, "one status")
    text = _NO_COMMA.sub(r"\1,\2", data.decode("utf-8-sig", errors="replace"))
    # The socket answers "OK" to SET FORMAT json, in front of the status.
    start = max(text.find("{"), 0)
    try:
        document = json.loads(text[start:])
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{path} is no whole status of NCCL RAS ({error}); ask again: ncclras -f json"
        ) from None
    if not isinstance(document, dict):
        raise TraceError(f"{path} is no status of NCCL RAS: an object should be there")
    return document


class _Communicators:
    """Makes communicators. Equal processes and equal counts are one object, which saves memory.

    Args:
        where: the file, for errors.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._processes: dict[Process, Process] = {}
        self._counts: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}

    def of(self, value: Mapping[str, Any]) -> Communicator:
        """One communicator.

        Raises:
            TraceError: it is damaged.
        """
        name = str(value.get("hash"))[:40]
        place = f"{self._where}: communicator {name}"
        size = whole(value, "size", place)
        ranks = tuple(self._rank(entry, place, size) for entry in _objects(value, "ranks", place))
        missing = tuple(
            self._missing(entry, place, size) for entry in _objects(value, "missing_ranks", place)
        )
        numbers = [*(entry.rank for entry in ranks), *(entry.rank for entry in missing)]
        if len(set(numbers)) < len(numbers):
            twice = next(rank for rank in sorted(numbers) if numbers.count(rank) > 1)
            raise TraceError(f"{place} has rank {twice} twice; is the file damaged?")
        secondary = str(value.get("secondary_hash"))[:80]
        return Communicator(name, secondary, size, ranks, missing)

    def _rank(self, value: Mapping[str, Any], place: str, size: int) -> RankStatus:
        rank = _number_of(value, place, size)
        where = f"{place}, rank {rank}"
        counted = mapping(value, "collective_counts")
        counts = {str(op)[:40]: whole(counted, op, where) for op in counted}
        status = mapping(value, "status")
        codes = [whole(status, name, where) for name in ("init_state", "async_error")]
        failed = [code for code in codes if code not in (_SUCCESS, _IN_PROGRESS)]
        error = _ERRORS.get(failed[0], f"error {failed[0]}") if failed else ""
        shared = self._counts.setdefault(tuple(counts.items()), counts)
        return RankStatus(
            rank, self._process(value, place), _state(status, codes[0]), error, shared
        )

    def _missing(self, value: Mapping[str, Any], place: str, size: int) -> MissingRank:
        status = mapping(value, "status")
        why: Absence = "not a member"
        if status.get("considered_dead") is True:
            why = "dead"
        elif status.get("unresponsive") is True:
            why = "unresponsive"
        return MissingRank(_number_of(value, place, size), self._process(value, place), why)

    def _process(self, value: Mapping[str, Any], place: str) -> Process:
        pid, gpu = (
            -1 if value.get(name) == -1 else whole(value, name, place)
            for name in ("pid", "nvml_dev")
        )
        process = Process(str(value.get("host"))[:80], pid, gpu)
        return self._processes.setdefault(process, process)


def _state(status: Mapping[str, Any], init_state: int) -> State:
    """State of a rank, by the rules of ``rasClientRunComms``."""
    if status.get("abort_flag") is True:
        return "abort"
    if status.get("finalize_called") is True or status.get("destroy_flag") is True:
        return "finalize"
    return "running" if init_state == _SUCCESS else "init"


def _number_of(value: Mapping[str, Any], place: str, size: int) -> int:
    rank = whole(value, "rank", place)
    if rank >= size:
        raise TraceError(f"{place} of {size} ranks has rank {rank}; is the file damaged?")
    return rank


def _objects(values: Mapping[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    items = values.get(name)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise TraceError(f"{where}: {name} should be a list of objects; is the file damaged?")
    return items
