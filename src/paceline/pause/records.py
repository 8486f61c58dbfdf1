"""The two files of a pause, in the format of ``native/pause.c``: docs/pause.md."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, get_args

from paceline.pause.rules import Phase, Place, State

FOLDER: Final = "pause"
CONTROL: Final = "control"
SLOTS: Final = "*.slot"

_CONTROL_BYTES: Final = 192
_SLOT_BYTES: Final = 2048


@dataclass(frozen=True)
class Control:
    """The asker's record.

    Attributes:
        pause: a random number.
        phase: phase of the pause.
        beat: heartbeat count of the asker.
        hold_ms: time while all ranks pause.
        arrive_ms: longest wait of the first paused rank for the others.
        silent_ms: longest silence of the asker.
        communicator, number: collective after which all stop; 0 while unknown.
    """

    pause: int
    phase: Phase
    beat: int
    hold_ms: int
    arrive_ms: int
    silent_ms: int
    communicator: int = 0
    number: int = 0

    def to_bytes(self) -> bytes:
        """The record's bytes in the file."""
        text = (
            f"paceline-pause 1 {self.pause:016x} {self.phase} {self.beat} {self.hold_ms} "
            f"{self.arrive_ms} {self.silent_ms} {self.communicator:016x} {self.number}"
        )
        whole = f"{text} {zlib.crc32(text.encode()):08x}"
        return whole.encode().ljust(_CONTROL_BYTES - 1) + b"\n"


def read_control(data: bytes) -> Control | None:
    """The control file's content; None if missing or incomplete."""
    if len(data) != _CONTROL_BYTES:
        return None
    text, _, crc = data.decode("ascii", errors="replace").strip().rpartition(" ")
    words = text.split(" ")
    try:
        if int(crc, 16) != zlib.crc32(text.encode()) or words[:2] != ["paceline-pause", "1"]:
            return None
        beat, hold, arrive, silent = (int(word) for word in words[4:8])
        pause, phase = int(words[2], 16), cast(Phase, words[3])
        return Control(pause, phase, beat, hold, arrive, silent, int(words[8], 16), int(words[9]))
    except (ValueError, IndexError):
        return None


@dataclass(frozen=True)
class Member:
    """A process in a communicator: its rank, the number of ranks, and its queued collectives."""

    rank: int
    ranks: int
    count: int


@dataclass(frozen=True)
class Slot:
    """The record of one process.

    Attributes:
        path: path of its file.
        pause: the pause that it answers.
        place: its place in the pause.
        host, pid: the process.
        rank: the launcher's RANK; -1 if unset.
        allowed_s: the longest pause that it takes part in.
        timeout_from: name of the timeout, a third of which is ``allowed_s``.
        stopped_s: length of its pause.
        communicators: identity -> its membership.
        beat: count of writes.
        world: the launcher's WORLD_SIZE; 0 if unset.
    """

    path: Path
    pause: int
    place: Place
    host: str
    pid: int
    rank: int
    allowed_s: float
    timeout_from: str
    stopped_s: float
    communicators: Mapping[int, Member]
    beat: int
    world: int = 0


def read_start(path: Path, room: int) -> bytes:
    """The first bytes of any file, at most ``room`` + 1.

    Raises:
        OSError: it cannot be read.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return os.pread(number, room + 1, 0)
    finally:
        os.close(number)


def load_control(path: Path) -> Control | None:
    """The control file; None if empty, damaged or incomplete.

    Raises:
        OSError: it cannot be read.
    """
    return read_control(read_start(path, _CONTROL_BYTES))


def read_slot(path: Path) -> Slot | None:
    """A process's file; None if empty, damaged or incomplete.

    Raises:
        OSError: it cannot be read.
    """
    data = read_start(path, _SLOT_BYTES)
    if len(data) != _SLOT_BYTES:
        return None
    try:
        if int(data[-9:-1], 16) != zlib.crc32(data[:-9]):
            return None
        content = json.loads(data[:-9])
        if (content["what"], content["version"]) != ("paceline-pause", 1):
            return None
        return _slot(path, content)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError):
        return None


def _slot(path: Path, content: Mapping[str, Any]) -> Slot:
    state = content["state"]
    if state not in get_args(State):
        raise ValueError(state)
    return Slot(
        path=path,
        pause=int(content["id"], 16),
        place=Place(
            state, int(content["number"]), str(content["signature"]), str(content["reason"])
        ),
        host=str(content["host"]),
        pid=int(content["pid"]),
        rank=int(content["rank"]),
        allowed_s=int(content["allowed_ms"]) * 1e-3,
        timeout_from=str(content["timeout_from"]),
        stopped_s=int(content["stopped_ms"]) * 1e-3,
        communicators={
            int(name, 16): Member(int(rank), int(ranks), int(count))
            for name, rank, ranks, count in content["communicators"]
        },
        beat=int(content["beat"]),
        world=int(content.get("world", 0)),
    )


def write_in_place(path: Path, data: bytes) -> None:
    """Rewrite a file in place; its readers verify the checksum.

    Raises:
        OSError: it cannot be written.
    """
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
    try:
        os.pwrite(number, data, 0)
    finally:
        os.close(number)
