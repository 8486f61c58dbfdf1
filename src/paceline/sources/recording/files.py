"""The files of a recording, one by one: blocks -> arrays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline import blockfile
from paceline.errors import TraceError

_OP = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("chunk", "<i2"),
        ("microbatch", "<i4"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
    ]
)
_PROGRAM_OP = np.dtype(
    [*_OP.descr, ("part", "<i4"), ("issued", "<i4"), ("awaited", "<i4"), ("group", "<i4")]
)
_SUMMED_OP = np.dtype([*_PROGRAM_OP.descr, ("transfer", "<i8")])

#: Clocks of two hosts drift apart by less than this share, unless one of them is being set.
DRIFT = 1e-5

#: Exchanges before and after an exchange with which it is compared.
_NEIGHBOURS = 64

#: Latest time: 146 years from 1970.
MAX_NS = 2**62

_DEGREES = ("world", "dp", "pp", "tp", "cp", "vpp")


@dataclass(frozen=True, eq=False)
class RankFile:
    """Recording of one process.

    Attributes:
        path: the file.
        meta: the process's own description.
        session: name of the job's start that the process belongs to.
        steps: [step] numbers of the profiled steps, in the order of recording.
        start_ns: [step] starts, on rank 0's clock.
        first_op: [step + 1] where each step's operations begin in ``ops``.
        ops: [op] kind, flags, chunk, microbatch, start_ns and end_ns since the step's start. If the
            program was recorded, also part, issued, awaited and group. If collectives were counted
            together, also transfer (ns, -1 = none).
        times: [step, 3] number, start and duration in ns of every step, on the rank's own clock.
        spans_ns: [step, 2] start and end of every step in ``times``, on rank 0's clock.
        residual_ns: possible error of the clock against rank 0's, at the last exchange; None =
            never compared.
        dropped: numbers of dropped profiled steps and of dropped step times.
        notes: hooked parts of the job (``recorded``), and parts without a hook and the way to
            record them (``not_recorded``, ``how``).
        torn_bytes: bytes of an unfinished block at the end.
        damaged: number of damaged places, which are skipped.
        n_bytes: size of the file.
        age_s: seconds since it was last written to.
        data_ns: step -> ns in which it waited for the data loader, since the step before.
    """

    path: Path
    meta: Mapping[str, Any]
    session: str
    steps: npt.NDArray[np.int64]
    start_ns: npt.NDArray[np.int64]
    first_op: npt.NDArray[np.int64]
    ops: npt.NDArray[Any]
    times: npt.NDArray[np.int64]
    spans_ns: npt.NDArray[np.int64]
    residual_ns: int | None
    dropped: tuple[int, int]
    notes: tuple[Mapping[str, str], ...]
    torn_bytes: int
    damaged: int
    n_bytes: int
    age_s: float
    data_ns: Mapping[int, int] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The global rank."""
        return int(self.meta["rank"])

    @property
    def has_program(self) -> bool:
        """Whether launches and waits were recorded."""
        return "issued" in (self.ops.dtype.names or ())

    @property
    def has_sums(self) -> bool:
        """Whether collectives were counted together."""
        return "transfer" in (self.ops.dtype.names or ())

    @property
    def degrees(self) -> tuple[int, ...]:
        """Number of ranks, dp, pp, tp, cp and vpp."""
        return tuple(int(self.meta[name]) for name in _DEGREES)


def is_recording(folder: Path) -> bool:
    """Whether a path is a folder that holds files of a recorder."""
    return folder.is_dir() and any(folder.glob(f"rank-*{blockfile.SUFFIX}"))


def read_files(folder: Path) -> list[RankFile]:
    """All files of a recording, sorted by rank, then by start.

    Raises:
        TraceError: there are no files, or one is unreadable, of another version, or contradictory.
    """
    if not folder.exists():
        raise TraceError(f"{folder} does not exist")
    if not is_recording(folder):
        raise TraceError(f"{folder} holds no recording (rank-*{blockfile.SUFFIX})")
    found = [_read(path) for path in sorted(folder.glob(f"rank-*{blockfile.SUFFIX}"))]
    whole = [file for file in found if file is not None]
    if not whole:
        raise TraceError(
            f"{folder}: all files are empty or end within their header; did the job end before its "
            "first write?"
        )
    return sorted(whole, key=lambda file: (file.rank, file.meta["started_ns"]))


def torn_headers(folder: Path) -> list[str]:
    """Notes on the files that end within their header, which are not read."""
    torn = []
    for path in sorted(folder.glob(f"rank-*{blockfile.SUFFIX}")):
        try:
            if path.stat().st_size:
                blockfile.read_header(path)
        except blockfile.TornHeaderError:
            torn.append(path.name)
        except (blockfile.BlockFileError, OSError):  # read_files reports these
            continue
    return [f"{len(torn)} files end within their header, left out ({torn[0]})"] if torn else []


def _read(path: Path) -> RankFile | None:
    """One file; None if its process ended before it had written its header."""
    try:
        stat = path.stat()
        if not stat.st_size:
            return None
        file = blockfile.read_file(path)
    except blockfile.TornHeaderError:
        return None
    except blockfile.BlockFileError as error:
        raise TraceError(str(error)) from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    _check(file.meta, path)
    of_type: dict[int, list[memoryview]] = {}
    for kind, payload in file.blocks:
        of_type.setdefault(kind, []).append(payload)
    steps, start_ns, first_op, ops = _steps(of_type, path)
    clock = _table(of_type.get(blockfile.CLOCK, []), 3, path)
    _check_clock(clock, path)
    counts = _table(of_type.get(blockfile.COUNTS, []), 2, path)
    times = _table(of_type.get(blockfile.TIMES, []), 3, path)
    spans_ns = np.stack([times[:, 1], times[:, 1] + times[:, 2]], axis=1)
    return RankFile(
        path=path,
        meta=file.meta,
        session=str(file.meta["session"]) or f"start {path.stem.rpartition('-')[2]}",
        steps=steps,
        start_ns=start_ns - _ahead_ns(start_ns, clock),
        first_op=first_op,
        ops=ops,
        times=times,
        data_ns=dict(_table(of_type.get(blockfile.DATA, []), 2, path).tolist()),
        spans_ns=spans_ns - _ahead_ns(spans_ns, clock),
        residual_ns=int(clock[-1, 2]) if len(clock) else None,
        dropped=(int(counts[-1, 0]), int(counts[-1, 1])) if len(counts) else (0, 0),
        notes=tuple(_notes(of_type.get(blockfile.NOTE, []))),
        torn_bytes=file.torn_bytes,
        damaged=file.damaged,
        n_bytes=stat.st_size,
        age_s=max(0.0, time.time() - stat.st_mtime),
    )


def _notes(payloads: list[memoryview]) -> Iterator[Mapping[str, str]]:
    """Notes that are mappings of texts; other content of later versions is skipped."""
    for payload in payloads:
        try:
            note = json.loads(bytes(payload))
        except (ValueError, RecursionError):
            continue
        if isinstance(note, dict) and all(isinstance(text, str) for text in note.values()):
            yield note


def _check_clock(clock: npt.NDArray[np.int64], path: Path) -> None:
    """Check that sums and differences of the clocks' times fit into 64 bits."""
    wrong = (clock > MAX_NS) | (clock < -MAX_NS)
    if wrong.any():
        raise TraceError(
            f"{path}: a clock exchange holds {clock[wrong][0]} ns, which is no possible time; the "
            "file is damaged: leave it out"
        )


def _check(meta: Mapping[str, Any], path: Path) -> None:
    """Check that a header has the fields that the reader needs."""
    for name in (*_DEGREES, "rank", "dp_rank", "pp_rank", "started_ns"):
        value = meta.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < (name in _DEGREES):
            raise TraceError(f"{path}: the header's {name} is {value!r}, which is no valid number")
    for rank, size in (("rank", "world"), ("dp_rank", "dp"), ("pp_rank", "pp")):
        if meta[rank] >= meta[size]:
            raise TraceError(f"{path}: {rank} {meta[rank]} is not below {size} {meta[size]}")
    kinds = meta.get("kinds")
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise TraceError(f"{path}: the header's kinds are no list of names")
    if not isinstance(meta.get("session"), str):
        raise TraceError(f"{path}: the header's session is no text")


def _table(payloads: list[memoryview], columns: int, path: Path) -> npt.NDArray[np.int64]:
    data = b"".join(payloads)
    if len(data) % (8 * columns):
        raise TraceError(f"{path}: a block has no whole number of entries; was it edited?")
    return np.frombuffer(data, dtype="<i8").reshape(-1, columns)


def _steps(
    of_type: Mapping[int, list[memoryview]], path: Path
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Numbers, starts and operations of the profiled steps; with programs if they were recorded."""
    programs = _steps_of(of_type.get(blockfile.PROGRAM, []), _PROGRAM_OP, path)
    summed = _steps_of(of_type.get(blockfile.SUMMED, []), _SUMMED_OP, path)
    if not len(summed[0]):
        return (
            programs if len(programs[0]) else _steps_of(of_type.get(blockfile.STEP, []), _OP, path)
        )
    ops = np.zeros(len(programs[3]), dtype=_SUMMED_OP)
    ops["transfer"] = -1
    for name in _PROGRAM_OP.names or ():
        ops[name] = programs[3][name]
    steps, starts = (np.concatenate([programs[i], summed[i]]) for i in (0, 1))
    first_op = np.append(programs[2], programs[2][-1] + summed[2][1:])
    return steps, starts, first_op, np.concatenate([ops, summed[3]])


def _steps_of(
    payloads: list[memoryview], entry: np.dtype[Any], path: Path
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]]:
    size = blockfile.STEP_HEAD.size
    heads, parts = [], []
    for payload in payloads:
        if len(payload) < size:
            raise TraceError(f"{path}: a step's block is too short; was it edited?")
        number, start, _, n_ops = blockfile.STEP_HEAD.unpack_from(payload)
        if len(payload) != size + n_ops * entry.itemsize:
            raise TraceError(
                f"{path}: step {number} has another number of operations than it announces"
            )
        heads.append((number, start, n_ops))
        parts.append(payload[size:])
    table = np.array(heads, dtype=np.int64).reshape(-1, 3)
    ops = np.frombuffer(b"".join(parts), dtype=entry)
    return table[:, 0], table[:, 1], np.append(0, np.cumsum(table[:, 2])), ops


def _ahead_ns(at_ns: npt.NDArray[np.int64], clock: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Lead of the rank's clock over rank 0's, interpolated linearly between the exchanges."""
    if not len(clock):
        return np.zeros(at_ns.shape, dtype=np.int64)
    clock = _surest(clock)
    zero = clock[0, 0]
    ahead = np.interp(at_ns - zero, clock[:, 0] - zero, clock[:, 1])
    rounded: npt.NDArray[np.int64] = np.rint(ahead).astype(np.int64)
    return rounded


def _surest(clock: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The exchanges without those whose error exceeds a neighbour's plus the drift in between."""
    clock = clock[np.argsort(clock[:, 0], kind="stable")]
    at_ns, _, residual_ns = clock.T.astype(np.float64)
    keep = np.ones(len(clock), dtype=bool)
    for apart in range(1, min(_NEIGHBOURS, len(clock))):
        between = DRIFT * (at_ns[apart:] - at_ns[:-apart])
        keep[apart:] &= residual_ns[:-apart] + between >= residual_ns[apart:]
        keep[:-apart] &= residual_ns[apart:] + between >= residual_ns[:-apart]
    surest: npt.NDArray[np.int64] = clock[keep]
    return surest
