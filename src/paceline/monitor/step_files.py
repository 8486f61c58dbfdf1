"""Step times on disk: per job, blocks appended to segment files, without SQL rows per sample.

A block is a pushed batch with a checksum; :meth:`StepFile.append` returns once it is on disk. The
next start removes a block that a crash cut off: it was never acknowledged. Source and number
identify a repeated batch while its segment is kept.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import OutputError
from paceline.files import sync
from paceline.monitor.log import log
from paceline.monitor.step_series import Series, read_rows, series_of

#: Simultaneous batches may be processed in another order than stored.
MARGIN_S = 60.0
#: Size at which a new segment begins, and the number kept for detectors and repeated batches.
SEGMENT_BYTES, SEGMENTS = 8 << 20, 8

SUFFIX = ".steps"

#: A source "start/recorded" sends steps of a recording. They do not tell whether the job runs.
RECORDED = "recorded"

_MARK = b"PSB1"
_BLOCK = struct.Struct("<4sII")  # mark, length and CRC-32 of the payload
_HEAD = struct.Struct("<diiHH")  # at, samples, ranks of the job (0 = unknown), lengths of two texts


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples that were pushed together.

    Attributes:
        source: the pusher; "start/rank" if it knows the job's start, "start/recorded" for a
            recording pushed by hand.
        number: number of the batch, unique within its source.
        at: time of arrival, seconds since 1970.
        steps: [sample] step numbers.
        ranks: [sample] ranks.
        durations_s: [sample] seconds.
        world: number of the job's ranks; 0 = unknown.
        workload: step -> column -> planned workload; steps without a plan are left out.
        place: place in the log that instances share; (0, 0) without one.
        end: segment of the job's file, and the byte there at which the batch ends; (0, 0) before
            it is in one.
    """

    source: str
    number: str
    at: float
    steps: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int32]
    durations_s: npt.NDArray[np.float32]
    world: int = 0
    workload: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    place: tuple[int, int] = (0, 0)
    end: tuple[int, int] = (0, 0)

    def key(self) -> bytes:
        """Key of the batch."""
        return _key(self.source, self.number)

    @property
    def is_live(self) -> bool:
        """Whether the job sent the steps as it ran."""
        return not self.source.endswith(f"/{RECORDED}")


def not_ahead(
    batches: Iterable[Batch], clock: Callable[[], float], known: float
) -> Iterator[Batch]:
    """Batches with no time after now: those of a clock that was ahead get that of the one before.

    Args:
        batches: in order of arrival.
        clock: seconds since 1970; later ones may come while these are read.
        known: time of the first batches, if the clock was ahead then.
    """
    for batch in batches:
        if batch.at > clock():
            yield replace(batch, at=known)
        else:
            known = batch.at
            yield batch


class StepFile:
    """The segments of one job; thread-safe, and several threads share one fsync."""

    def __init__(self, folder: Path) -> None:
        """Open or create the segments; an incomplete end is cut off.

        Raises:
            OutputError: they cannot be read or written.
        """
        self.folder = folder
        # A thread that needs both locks takes _sync_lock first.
        self._lock, self._sync_lock = threading.Lock(), threading.Lock()
        self._keys: dict[int, set[bytes]] = {}  # segment -> its batches
        self._file, self._segment = -1, 0
        self._size = self._synced = 0
        self._fresh: list[bytes] = []  # written, but not yet synced
        self._failures = 0  # failures of fsync: data waiting for one are not on disk
        #: Bytes of unreadable blocks, known once the segments were read.
        self.damaged_bytes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._recover()
        except OSError as error:
            raise OutputError(f"{folder} cannot be used: {error.strerror}") from None

    def append(self, batch: Batch) -> tuple[int, int] | None:
        """Store a batch, on disk on return; its end, or None if it is already stored.

        Raises:
            OutputError: it cannot be written, for example for lack of space; send it again.
        """
        block = encode(batch)
        key = batch.key()
        try:
            if self._size >= SEGMENT_BYTES:
                self._roll()
            with self._lock:
                new = not any(key in keys for keys in self._keys.values())
                if new:
                    self._write(block, key)
                place = self._segment, self._size, self._failures
            self._sync(*place)
        except OSError as error:
            raise OutputError(
                f"step times cannot be written to {self.folder}: {error.strerror}"
            ) from None
        return place[:2] if new else None

    def segments(self) -> list[int]:
        """Numbers of the segments, oldest first."""
        return sorted(int(path.stem) for path in self.folder.glob(f"*{SUFFIX}"))

    def read(self, since: float = 0.0) -> Iterator[Batch]:
        """The batches kept, in order of arrival.

        Segments last written before ``since`` (seconds since 1970) are left out. The newest segment
        is always included, as ``since`` may come from a clock that was ahead.
        """
        numbers = self.segments()
        for number in numbers:
            with contextlib.suppress(FileNotFoundError):
                is_newest = number == numbers[-1]
                if not is_newest and self._path(number).stat().st_mtime < since:
                    continue
                data = self._path(number).read_bytes()
                for begin, end in blocks_of(data):
                    yield replace(decode(data[begin:end]), end=(number, end))

    def read_behind(self, seen_at: float) -> Iterator[Batch]:
        """The batches that a detector saved at that time may lack."""
        return self.read(since=seen_at - MARGIN_S)

    def remove_older(self, before: float) -> int:
        """Remove segments not written to since ``before``; returns the bytes removed."""
        freed = 0
        with self._sync_lock, self._lock:
            # An ended job loses its last segment, too; the next one gets another number.
            if self._size and self._path(self._segment).stat().st_mtime < before:
                self._begin_next()
            for number in self.segments():
                stat = self._path(number).stat()
                if number != self._segment and stat.st_mtime < before:
                    freed += stat.st_size
                    self._drop(number)
        return freed

    def close(self) -> None:
        """Close the file; the object cannot be used afterwards."""
        with self._sync_lock, self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}{SUFFIX}"

    def _recover(self) -> None:
        for number in self.segments():
            data = self._path(number).read_bytes()
            keys, intact = set(), 0
            for begin, end in blocks_of(data):
                keys.add(decode_key(data[begin:end]))
                intact = end
            damaged = damaged_bytes(data)
            if damaged:
                self.damaged_bytes += damaged
                what = {"file": str(self._path(number)), "bytes": damaged}
                log(logging.ERROR, "step times damaged", **what)
            if intact < len(data) and not damaged:
                os.truncate(self._path(number), intact)
                size = intact
            else:
                size = len(data)
            self._keys[number] = keys
            self._segment, self._size = number, size
        self._open(self._segment)

    def _open(self, number: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path(number), flags, 0o644)
        self._segment = number
        self._size = self._synced = os.fstat(self._file).st_size
        self._keys.setdefault(number, set())
        self._fresh = []
        os.fsync(self._file)  # data from the cache before a crash may be acknowledged again
        sync(self.folder)

    def _write(self, block: bytes, key: bytes) -> None:
        if self._file < 0:
            raise OSError(0, "closed")
        try:
            remaining = memoryview(block)
            while remaining:
                remaining = remaining[os.write(self._file, remaining) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(block)
        self._keys[self._segment].add(key)
        self._fresh.append(key)

    def _roll(self) -> None:
        """Begin a new segment if the last is full, after syncing that one."""
        with self._sync_lock, self._lock:
            if self._size < SEGMENT_BYTES:  # another thread did it
                return
            self._begin_next()
            for number in self.segments()[:-SEGMENTS]:
                self._drop(number)

    def _begin_next(self) -> None:
        self._fsync(self._file)
        self._open(self._segment + 1)

    def _drop(self, number: int) -> None:
        self._path(number).unlink(missing_ok=True)
        self._keys.pop(number, None)

    def _sync(self, segment: int, size: int, failures: int) -> None:
        """Wait until the file is on disk up to ``size``; one fsync serves all waiting threads."""
        with self._sync_lock:
            if failures != self._failures:
                raise OSError(errno.EIO, "not written to the disk")
            if segment < self._segment or size <= self._synced:
                return
            with self._lock:
                file, upto, n_fresh = self._file, self._size, len(self._fresh)
            try:
                os.fsync(file)
            except OSError:
                with self._lock:
                    self._forget_unsynced()
                raise
            self._synced = upto
            del self._fresh[:n_fresh]

    def _fsync(self, file: int) -> None:
        try:
            os.fsync(file)
        except OSError:
            self._forget_unsynced()
            raise

    def _forget_unsynced(self) -> None:
        """After a failed fsync the disk's state is unknown: remove the unsynced part."""
        self._failures += 1
        os.ftruncate(self._file, self._synced)
        self._size = self._synced
        self._keys[self._segment].difference_update(self._fresh)
        self._fresh = []


class StepFiles:
    """The step files of all jobs; those used last stay open."""

    def __init__(self, folder: Path, most_open: int = 200) -> None:
        self.folder, self._most = folder, most_open
        self._lock = threading.Lock()
        self._open: dict[int, StepFile] = {}
        self._in_use: dict[int, int] = {}
        #: Job -> unreadable bytes of its step times, for the jobs opened until now.
        self.damaged_bytes: dict[int, int] = {}

    @contextlib.contextmanager
    def of(self, job_id: int) -> Iterator[StepFile]:
        """A job's file during the context."""
        with self._lock:
            file = self._open.pop(job_id, None) or StepFile(self.path(job_id))
            self._open[job_id] = file  # moves it to the end of the order
            if file.damaged_bytes:
                self.damaged_bytes[job_id] = file.damaged_bytes
            self._in_use[job_id] = self._in_use.get(job_id, 0) + 1
            self._close_some()
        try:
            yield file
        finally:
            with self._lock:
                self._in_use[job_id] -= 1
                if not self._in_use[job_id]:
                    del self._in_use[job_id]

    def append(self, job_id: int, batch: Batch) -> tuple[int, int] | None:
        """Store a batch of a job, on disk on return; its end, or None if it is already stored."""
        with self.of(job_id) as file:
            return file.append(batch)

    def series(
        self, job_id: int, *, first: int | None = None, last: int | None = None, points: int = 2000
    ) -> Series:
        """A job's step times, one row per step; see :func:`step_series.series_of`."""
        return series_of(self.rows(job_id), first=first, last=last, points=points)

    def rows(self, job_id: int) -> npt.NDArray[Any]:
        """All rows of a job's series, :data:`~paceline.monitor.step_series.ROW` each."""
        return read_rows(self.path(job_id))

    def remove_older(self, job_id: int, before: float) -> int:
        """Remove a job's segments not written to since ``before``; returns the bytes removed."""
        if not 0 < self.written_at(job_id, min) < before:  # opening a job reads all its segments
            return 0
        with self.of(job_id) as file:
            return file.remove_older(before)

    def remove(self, job_id: int) -> None:
        """Remove all files of a job; a concurrent batch creates its folder again."""
        with self._lock:
            file = self._open.pop(job_id, None)
            if file is not None:
                file.close()
        shutil.rmtree(self.path(job_id), ignore_errors=True)

    def written_at(self, job_id: int, choose: Callable[[Iterable[float]], float] = max) -> float:
        """Time of the last (``min``: first) write to a job's segments; 0 without segments."""
        stats = [path.stat() for path in self.path(job_id).glob(f"*{SUFFIX}")]
        return choose([stat.st_mtime for stat in stats if stat.st_size] or [0.0])

    def path(self, job_id: int) -> Path:
        """The folder of a job's step times."""
        return self.folder / f"{job_id % 1000:03d}" / str(job_id)

    def job_ids(self) -> list[int]:
        """The jobs with a folder."""
        return [int(path.name) for path in self.folder.glob("*/*") if path.name.isdecimal()]

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()

    def _close_some(self) -> None:
        for job_id in list(self._open)[: max(0, len(self._open) - self._most)]:
            if job_id not in self._in_use:
                self._open.pop(job_id).close()


def encode(batch: Batch) -> bytes:
    """Encode a batch as a block. Differences of steps and ranks compress well."""
    source, number = batch.source.encode(), batch.number.encode()
    head = _HEAD.pack(batch.at, len(batch.steps), batch.world, len(source), len(number))
    places = np.diff(batch.steps, prepend=0).astype("<i8").tobytes()
    places += np.diff(batch.ranks, prepend=np.int32(0)).astype("<i4").tobytes()
    if batch.workload:  # older versions read only the part before it
        places += json.dumps(list(batch.workload.items())).encode()
    times = batch.durations_s.astype("<f4").tobytes()
    payload = head + source + number + times + zlib.compress(places, 1)
    return _BLOCK.pack(_MARK, len(payload), zlib.crc32(payload)) + payload


def decode(block: bytes) -> Batch:
    """The batch of a whole block."""
    at, n, world, n_source, n_number = _HEAD.unpack_from(block, _BLOCK.size)
    begin = _BLOCK.size + _HEAD.size
    source = block[begin : begin + n_source].decode()
    begin += n_source
    number = block[begin : begin + n_number].decode()
    begin += n_number
    durations = np.frombuffer(block, "<f4", n, begin)
    places = zlib.decompress(block[begin + 4 * n :])
    steps = np.cumsum(np.frombuffer(places, "<i8", n), dtype=np.int64)
    ranks = np.cumsum(np.frombuffer(places, "<i4", n, 8 * n), dtype=np.int32)
    rest = places[12 * n :]
    workload = dict(json.loads(rest)) if rest else {}
    return Batch(source, number, at, steps, ranks, durations, world, workload)


def decode_key(block: bytes) -> bytes:
    """Key of the batch of a whole block, without its samples."""
    n_source, n_number = _HEAD.unpack_from(block, _BLOCK.size)[3:]
    begin = _BLOCK.size + _HEAD.size
    source = block[begin : begin + n_source].decode()
    number = block[begin + n_source : begin + n_source + n_number].decode()
    return _key(source, number)


def _key(source: str, number: str) -> bytes:
    return blake2b(f"{source}\0{number}".encode(), digest_size=12).digest()


def blocks_of(data: bytes) -> Iterator[tuple[int, int]]:
    """(begin, end) of the whole blocks; bytes between them are damaged."""
    at = 0
    while at >= 0:
        end = _end_of_block(data, at)
        if end:
            yield at, end
        at = end or data.find(_MARK, at + 1)


def _end_of_block(data: bytes, at: int) -> int:
    """End of the block that begins at ``at``; 0 without a whole one."""
    if at + _BLOCK.size > len(data):
        return 0
    mark, length, crc = _BLOCK.unpack_from(data, at)
    begin, end = at + _BLOCK.size, at + _BLOCK.size + length
    whole = mark == _MARK and end <= len(data) and zlib.crc32(data[begin:end]) == crc
    return end if whole else 0


def damaged_bytes(data: bytes) -> int:
    """Bytes of a segment outside whole blocks, without an incomplete end.

    A crash leaves an incomplete block at the end, which was not acknowledged.
    """
    intact = damaged = 0
    for begin, end in blocks_of(data):
        damaged += begin - intact
        intact = end
    tail = data[intact:]
    if len(tail) >= _BLOCK.size:
        mark, length, _ = _BLOCK.unpack_from(tail)
        is_torn = mark == _MARK and _BLOCK.size + length > len(tail)
        damaged += 0 if is_torn else len(tail)
    return damaged
