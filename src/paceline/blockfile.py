"""The files of a recording: one per rank, appended to in checked blocks.

The recorder writes them inside the user's job and ``sources`` reads them, so this module stands
below both and imports nothing but the standard library. ``docs/record.md`` describes the format.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1

#: ``rank-00017-0.blocks``: rank 17's first process in this folder; a restarted one writes -1.
SUFFIX: Final = ".blocks"

#: The file by which ``paceline record on|off`` reaches the running job.
CONTROL: Final = "control.json"

#: The kinds of operation by code, in the order of ``paceline.trace.OpKind`` (a test compares).
KINDS: Final = (
    "forward-compute",
    "backward-compute",
    "forward-send",
    "forward-recv",
    "backward-send",
    "backward-recv",
    "params-all-gather",
    "grads-reduce-scatter",
    "gc",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "separate-grads-all-reduce",
    "optimizer-clip-main-grad",
    "optimizer",
    "tensor-comm",
    "expert-comm",
    "context-comm",
    "weight-compute",
)

#: Types of block. STEP: a profiled step with its operations (of earlier versions). TIMES: times of
#: all steps. CLOCK: a clock exchange. COUNTS: numbers of dropped items. PROGRAM: a profiled step
#: with its program. SUMMED: the same with summed collectives. NOTE: a part that was hooked or could
#: not be. DATA: waits for data of all steps.
STEP, TIMES, CLOCK, COUNTS, PROGRAM, SUMMED, NOTE, DATA = 1, 2, 3, 4, 5, 6, 7, 8

#: Types that hold a profiled step.
PROFILED: Final = frozenset((STEP, PROGRAM, SUMMED))

#: Flags of an operation. PEER_END: its end was not seen here; the peer's receive gives it. LATE: it
#: was over before anyone waited for it, so its end is an upper bound.
PEER_END, LATE = 1, 2

_MAGIC = b"PACELINE"
_FILE = struct.Struct("<8sHHII")  # magic, version, 0, length and crc32 of the JSON behind it
_MARK = b"\xb1BLK"
_BLOCK = struct.Struct("<4sBxxxII")  # mark, type, length, crc32 of type and payload

#: step, start and duration in ns, number of operations.
STEP_HEAD: Final = struct.Struct("<qqqq")
#: kind, flags, chunk, microbatch, start and end in ns since the step's start; of ``STEP``.
OP: Final = struct.Struct("<BBhiqq")
#: The same, then part, issued, awaited and group (see ``paceline.trace.trace.Program``); of
#: ``PROGRAM``.
PROGRAM_OP: Final = struct.Struct("<BBhiqqiiii")
#: The same, then the transfer time of collectives that are counted together, in ns, -1 = one only;
#: of ``SUMMED``.
SUMMED_OP: Final = struct.Struct("<BBhiqqiiiiq")
#: step, start and duration in ns.
TIME: Final = struct.Struct("<qqq")
#: step, and ns in which it waited for the data loader since the end of the step before.
DATA_ENTRY: Final = struct.Struct("<qq")
#: Time of the exchange, lead of this rank's clock over rank 0's, and its possible error; all ns.
CLOCK_ENTRY: Final = struct.Struct("<qqq")
#: profiled steps and step times dropped since the file began.
COUNTS_ENTRY: Final = struct.Struct("<qq")


class BlockFileError(ValueError):
    """A file is no recording, or one of another version."""


class TornHeaderError(BlockFileError):
    """A file ends within its header: its process, or the disk, ended there."""


@dataclass(frozen=True)
class BlockFile:
    """The content of a file.

    Attributes:
        meta: its process's description of itself.
        blocks: (type, payload) of every whole block, in order; views into the file's bytes.
        torn_bytes: bytes of an incomplete block at the end.
        damaged: number of damaged places before the end, which were skipped.
    """

    meta: Mapping[str, Any]
    blocks: tuple[tuple[int, memoryview], ...]
    torn_bytes: int
    damaged: int


def file_header(meta: Mapping[str, Any]) -> bytes:
    """The first bytes of a file."""
    text = json.dumps(meta).encode()
    return _FILE.pack(_MAGIC, VERSION, 0, len(text), zlib.crc32(text)) + text


def block(kind: int, payload: bytes) -> bytes:
    """One block."""
    return _BLOCK.pack(_MARK, kind, len(payload), _crc(kind, payload)) + payload


def _crc(kind: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(bytes((kind,))))


def read_header(path: Path) -> dict[str, Any]:
    """The process's description of itself in a file's header.

    Raises:
        BlockFileError: no recording, or one of another version, or (``TornHeaderError``) cut.
        OSError: unreadable.
    """
    with path.open("rb") as file:
        head = file.read(_FILE.size)
        length = _FILE.unpack(head)[3] if len(head) == _FILE.size else 0
        return _meta(head + file.read(min(length, 1 << 20)), path)[0]


def read_file(path: Path) -> BlockFile:
    """All whole blocks of a file.

    Raises:
        BlockFileError: no recording, or one of another version, or (``TornHeaderError``) cut.
        OSError: unreadable.
    """
    data = path.read_bytes()
    meta, at = _meta(data, path)
    whole = memoryview(data)
    blocks: list[tuple[int, memoryview]] = []
    damaged = 0
    while at < len(data):
        end = block_end(data, at)
        if end is None:
            following = next_block(data, at + 1)
            if following is None:
                break
            damaged += 1
            at = following
            continue
        blocks.append((data[at + 4], whole[at + _BLOCK.size : end]))
        at = end
    return BlockFile(meta, tuple(blocks), len(data) - at, damaged)


def _meta(data: bytes, path: Path) -> tuple[dict[str, Any], int]:
    """The JSON of the header, and the position of its end."""
    torn = TornHeaderError(f"{path} ends within its header; leave the file out")
    if len(data) < _FILE.size and (data[: len(_MAGIC)] == _MAGIC or _MAGIC.startswith(data)):
        raise torn
    if len(data) < _FILE.size or data[: len(_MAGIC)] != _MAGIC:
        raise BlockFileError(f"{path} is no recording of paceline, or its first bytes are lost")
    _, version, _, length, crc = _FILE.unpack_from(data)
    if version != VERSION:
        raise BlockFileError(
            f"{path} was recorded in format {version}; this Paceline reads format {VERSION}: "
            "read it with the version that recorded it"
        )
    end = _FILE.size + length
    text = data[_FILE.size : end]
    if len(text) < length:
        raise torn
    try:
        meta = json.loads(text) if zlib.crc32(text) == crc else None
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict):
        raise BlockFileError(f"{path}: the header is damaged; leave the file out")
    return meta, end


def block_end(data: bytes, at: int) -> int | None:
    """Position of the end of the block at ``at``; None if there is no whole one."""
    if len(data) - at < _BLOCK.size:
        return None
    mark, kind, length, crc = _BLOCK.unpack_from(data, at)
    end = at + _BLOCK.size + int(length)
    if mark != _MARK or end > len(data) or _crc(kind, data[at + _BLOCK.size : end]) != crc:
        return None
    return end


def next_block(data: bytes, at: int) -> int | None:
    """Position of the next whole block from ``at`` on; None if there is none."""
    while (at := data.find(_MARK, at)) >= 0:
        if block_end(data, at) is not None:
            return at
        at += 1
    return None
