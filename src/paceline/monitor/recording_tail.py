"""Reads a growing recording: data that its ranks have written since the last read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline import blockfile
from paceline.errors import TraceError
from paceline.sources.recording.places import place_in_header

#: Bytes of one file read at a time.
_READ_BYTES = 16 << 20
#: Most bytes of steps that are kept for a comparison.
_KEPT_BYTES = 256 << 20
#: Steps whose times and waits for data are kept beside those of profiled steps. More are removed
#: once there are twice as many.
_KEPT_TIMES = 512
#: Most ranks with hosts in a trace's meta.
_MOST_HOSTS = 20_000


@dataclass(eq=False)
class _File:
    """One rank's file, read up to ``offset``."""

    path: Path
    meta: dict[str, Any]
    offset: int
    clocks: list[bytes] = field(default_factory=list)
    steps: dict[int, bytes] = field(default_factory=dict)  # not in a session yet
    times: list[tuple[int, float]] = field(default_factory=list)  # not taken yet
    spans: dict[int, bytes] = field(default_factory=dict)  # step -> its entry of TIMES
    waits: dict[int, bytes] = field(default_factory=dict)  # step -> its entry of DATA

    @property
    def attempt(self) -> int:
        """Number of earlier files of the rank."""
        number = self.path.stem.rpartition("-")[2]
        return int(number) if number.isdecimal() else 0

    @property
    def session(self) -> str:
        """Name of the job's start."""
        return str(self.meta.get("session") or f"start {self.attempt}")

    def read(self) -> None:
        """Take new complete blocks; damaged ones are skipped."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read(_READ_BYTES)
        at = 0
        while at < len(data):
            end = blockfile.block_end(data, at)
            if end is None:
                following = blockfile.next_block(data, at + 1)
                if following is None:  # incomplete, or the end of the read
                    break
                at = following
                continue
            self._take(data[at + 4], data[at + blockfile._BLOCK.size : end])
            at = end
        self.offset += at
        self._prune()

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == blockfile.CLOCK:
            self.clocks.append(payload)
        elif kind in blockfile.PROFILED:
            number = blockfile.STEP_HEAD.unpack_from(payload)[0]
            self.steps[number] = blockfile.block(kind, payload)
        elif kind == blockfile.TIMES:
            for step, begin_ns, duration_ns in blockfile.TIME.iter_unpack(payload):
                self.times.append((step, duration_ns / 1e9))
                self.spans[step] = blockfile.TIME.pack(step, begin_ns, duration_ns)
        elif kind == blockfile.DATA:
            for step, wait_ns in blockfile.DATA_ENTRY.iter_unpack(payload):
                self.waits[step] = blockfile.DATA_ENTRY.pack(step, wait_ns)

    def _prune(self) -> None:
        """Keep the times of profiled steps, of the steps before them, and the latest ones."""
        if len(self.spans) <= 2 * _KEPT_TIMES:
            return
        needed = {*self.steps, *(step - 1 for step in self.steps), *[*self.spans][-_KEPT_TIMES:]}
        self.spans = {step: entry for step, entry in self.spans.items() if step in needed}
        self.waits = {step: entry for step, entry in self.waits.items() if step in needed}

    def cut(self, steps: list[int]) -> bytes:
        """A file of these profiled steps, with their waits for data and the step before each."""
        timed = sorted({*steps, *(step - 1 for step in steps)})
        parts = [blockfile.file_header(self.meta)]
        parts += [blockfile.block(blockfile.CLOCK, clock) for clock in self.clocks]
        parts += [self.steps[step] for step in steps]
        for kind, entries in ((blockfile.TIMES, self.spans), (blockfile.DATA, self.waits)):
            payload = b"".join(entries[step] for step in timed if step in entries)
            if payload:
                parts.append(blockfile.block(kind, payload))
        return b"".join(parts)

    def forget(self, last: int, kept: Collection[int] = ()) -> None:
        """Drop profiled steps up to ``last`` but those ``kept``, and the times of earlier steps."""
        self.steps = {n: block for n, block in self.steps.items() if n > last or n in kept}
        timed = {*kept, *(step - 1 for step in kept)}
        self.spans = {n: entry for n, entry in self.spans.items() if n >= last or n in timed}
        self.waits = {n: entry for n, entry in self.waits.items() if n >= last or n in timed}


class RecordingTail:
    """Follows the files of a recording's folder.

    Attributes:
        meta: header of rank 0's process (or of the lowest existing rank); empty before.
        changed_at: time of the last profiled step, monotonic seconds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = {}
        self.changed_at = time.monotonic()
        self._files: dict[str, _File] = {}
        self._present: list[_File] = []  # files of the job's last start

    @property
    def session(self) -> str:
        """Name of the job's last start."""
        newest = max(
            self._files.values(), key=lambda f: (f.meta["started_ns"], f.attempt), default=None
        )
        return newest.session if newest is not None else ""

    @property
    def headers(self) -> list[dict[str, Any]]:
        """Headers of the processes of the job's last start."""
        return [file.meta for file in self._present]

    def look(self) -> bool:
        """Read new data, up to some MiB of each file; returns whether there was any.

        Raises:
            TraceError: a file cannot be read.
        """
        try:
            for path in sorted(self.folder.glob(f"rank-*{blockfile.SUFFIX}")):
                if path.name not in self._files and path.stat().st_size:
                    with contextlib.suppress(blockfile.BlockFileError):  # incomplete header
                        meta = blockfile.read_header(path)
                        begin = len(blockfile.file_header(meta))
                        self._files[path.name] = _File(path, meta, begin)
            before = self._offsets()
            for file in self._files.values():
                n_steps = len(file.steps)
                file.read()
                if len(file.steps) > n_steps:
                    self.changed_at = time.monotonic()
        except OSError as error:
            raise TraceError(f"{self.folder} cannot be read: {error.strerror}") from None
        session = self.session
        self._present = [file for file in self._files.values() if file.session == session]
        if self._present:
            self.meta = min(self._present, key=lambda file: int(file.meta["rank"])).meta
        return self._offsets() != before

    def _offsets(self) -> list[int]:
        return [file.offset for file in self._files.values()]

    def hosts(self) -> dict[int, tuple[str, str]]:
        """Rank -> (host, GPU) of the job's last start, from the ranks' headers."""
        if len(self._present) > _MOST_HOSTS:
            return {}
        return {
            int(file.meta["rank"]): place
            for file in self._present
            if (place := place_in_header(file.meta)) is not None
        }

    def take_times(self) -> Iterator[tuple[str, int, list[tuple[int, float]]]]:
        """New (start of the job, rank, [(step, seconds)])."""
        for file in sorted(self._files.values(), key=lambda f: f.meta["started_ns"]):
            if file.times:
                times, file.times = file.times, []
                yield file.session, int(file.meta["rank"]), times

    def ready(self) -> list[int]:
        """Profiled steps that every worker of the job's last start has recorded."""
        if not self._present or not self._is_whole():
            return []
        return sorted(set.intersection(*(set(file.steps) for file in self._present)))

    def cut(self, steps: list[int], folder: Path) -> None:
        """Write a recording of these steps."""
        folder.mkdir(parents=True)
        for file in self._present:
            (folder / file.path.name).write_bytes(file.cut(steps))

    def forget(self, last: int, keep: int = 0) -> None:
        """Drop profiled steps up to ``last``, and all of earlier starts.

        Args:
            last: the last step to drop.
            keep: number of such steps to keep, the latest that all workers have recorded. They are
                fewer if they would take more than :data:`_KEPT_BYTES`.
        """
        kept, room = set[int](), _KEPT_BYTES
        for step in reversed([n for n in self.ready() if n <= last][-keep:] if keep else []):
            room -= sum(len(file.steps[step]) for file in self._present)
            if room < 0:
                break
            kept.add(step)
        for file in self._files.values():
            if file.session == self.session:
                file.forget(last, kept)
            else:
                file.forget(2**63)

    def _is_whole(self) -> bool:
        workers = {(file.meta["dp_rank"], file.meta["pp_rank"]) for file in self._present}
        return len(workers) == int(self.meta["dp"]) * int(self.meta["pp"])
