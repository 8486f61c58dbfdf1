"""Traces larger than memory: times in temporary files, one copy of the structure of equal steps.

A step graph needs the times of every step and the operations of the steps. Times go to disk as they
arrive. One step represents all steps with the same operations.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from paceline.errors import OutputError, TraceError
from paceline.trace.job import Job
from paceline.trace.trace import Program, Trace, absolute_starts

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Number of sampled values of a column that distinguish structures before a full comparison.
SAMPLED = 4096

#: Bytes of a row on disk: its start and its end.
ROW_BYTES = 16


@dataclass(frozen=True, eq=False)
class StoredTrace(Trace):
    """A trace that serves only to make a step graph.

    ``start``, ``end`` and ``late`` have all rows. ``chunk``, ``microbatch`` and ``program`` have
    only one copy of rows for equal steps, indexed by ``first_row``.

    Attributes:
        first_row: [step, dp] the first row of each lane in the columns that steps share.
        step_s: [step] last end minus first start, seconds.
        files: the files of ``start`` and ``end``; deleted with them.
    """

    first_row: Ints = None  # type: ignore[assignment]
    step_s: Array = None  # type: ignore[assignment]
    files: tuple[SpillFile, ...] = ()

    def lane_rows(self) -> Ints:
        """[step, dp] the first row of each lane, in the columns of the structure."""
        return self.first_row

    def time_rows(self) -> Ints:
        """[step, dp] the first row of each lane, in the columns of times."""
        return Trace.lane_rows(self)

    def traced_step_s(self) -> Array:
        """[step] last end minus first start, seconds."""
        return self.step_s

    def release(self) -> None:
        """Free the memory of mapped times, which stay on disk."""
        for file in self.files:
            file.release()


class SpillFile:
    """A column in an unnamed temporary file, which vanishes with the process in any case.

    Raises:
        OutputError: the disk is full, or the folder cannot be written to.
    """

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open
        except OSError as error:
            raise no_room(error) from None

    def append(self, values: npt.NDArray[Any]) -> None:
        """Append values."""
        try:
            self._file.write(np.ascontiguousarray(values).data)
        except OSError as error:
            raise no_room(error) from None

    def column(self) -> Array:
        """All values, mapped into memory: read-only, read from disk on access."""
        try:
            self._file.flush()
        except OSError as error:
            raise no_room(error) from None
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self.close()  # the map keeps its content
        return np.frombuffer(self._map, dtype=np.float64)

    def close(self) -> None:
        """Accept no further values; a file without a map is deleted."""
        with suppress(OSError):  # the write error was reported before
            self._file.close()

    def release(self) -> None:
        """Free the memory of mapped values."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def check_room(n_bytes: int) -> None:
    """Check that the folder of temporary files has enough space left.

    Raises:
        OutputError: it has too little space.
    """
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise OutputError(
            f"{folder} has {free / 1e9:.1f} GB left, temporary files of this trace take "
            f"{n_bytes / 1e9:.1f} GB; free some space or name another folder with TMPDIR"
        )


def no_room(error: OSError) -> OutputError:
    """The error for a temporary file that cannot be written."""
    reason = error.strerror or os.strerror(error.errno or 0)
    return OutputError(
        f"temporary files in {tempfile.gettempdir()} cannot be written: {reason}; free some space "
        "or name another folder with TMPDIR"
    )


def store(blocks: Iterable[Trace], job: Job, where: str) -> StoredTrace:
    """Join blocks of whole steps into one trace.

    Args:
        blocks: traces of one job, their steps ascending from block to block. ``step_start_s`` is
            the first start in the clock of the file, even if that is relative to the step.
        job: degrees of parallelism of all blocks.
        where: the name of the source, for messages.

    Raises:
        TraceError: there are no rows.
        OutputError: temporary files cannot be written.
    """
    collector = _Collector(job)
    try:
        for block in blocks:
            collector.add(block)
        if not collector.steps:
            raise TraceError(f"{where} has no rows; is it the right file?")
        return collector.finish()
    finally:
        collector.start.close()
        collector.end.close()


class _Collector:
    """State from the blocks so far."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.start, self.end = SpillFile(), SpillFile()
        self.steps: list[Ints] = []
        self.counts: list[npt.NDArray[np.int32]] = []
        self.step_s: list[Array] = []
        self.step_start_s: list[Array] = []
        self.first_row: list[Ints] = []
        self.late: list[npt.NDArray[np.bool_]] = []
        # Sample of a step's structure -> the structures with this sample, each with its first row.
        self.known: dict[bytes, list[tuple[list[npt.NDArray[Any]], int]]] = {}
        self.n_rows = 0
        self.chunk: list[npt.NDArray[np.int16]] = []
        self.microbatch: list[npt.NDArray[np.int32]] = []
        self.programs: list[Program] = []
        self.rank = np.zeros((0, 0), dtype=np.int64)
        self.warnings: dict[str, None] = {}
        self.left_out: dict[int, str] = {}

    def add(self, block: Trace) -> None:
        """Add a block."""
        if not self.steps:
            self.job, self.rank = block.job, block.rank
        elif block.job.peers != self.job.peers:
            raise TraceError(
                f"from step {block.steps[0]} on, {block.job.peers} ranks of a (dp, stage) can be "
                f"told apart, before it was {self.job.peers}: a rank is missing in some steps; "
                "leave these out with --steps"
            )
        self.start.append(block.start)
        self.end.append(block.end)
        self.steps.append(block.steps)
        self.counts.append(block.counts)
        self.step_s.append(block.traced_step_s())
        self.step_start_s.append(block.step_start_s)
        if block.late is not None:
            self.late.append(block.late)
        self.rank = np.where(block.rank >= 0, block.rank, self.rank)
        self.warnings |= dict.fromkeys(block.warnings)
        self.left_out |= block.left_out
        lanes = block.lane_rows()
        ends = np.append(lanes[1:, 0], len(block))
        for step, (low, high) in enumerate(zip(lanes[:, 0], ends, strict=True)):
            first = self._structure(block, step, slice(int(low), int(high)), lanes[step] - low)
            self.first_row.append(first + lanes[step] - low)

    def _structure(self, block: Trace, step: int, rows: slice, lanes: Ints) -> int:
        """The first row of a step's structure in the kept columns."""
        chunk, microbatch = block.chunk[rows], _from_zero(block.microbatch[rows], lanes)
        program = block.program
        if program is not None:
            program = program.take(rows)
            columns: list[npt.NDArray[Any]] = [block.counts[step], chunk, microbatch]
            columns += [program.part, program.issued, program.awaited]
            columns += [] if program.group is None else [program.group]
            known = self.known.setdefault(_sample(columns), [])
            for others, first in known:
                if all(map(np.array_equal, columns, others)):
                    return first
            columns = [column.copy() for column in columns]  # a copy, not a view of the whole block
            known.append((columns, self.n_rows))
            _, chunk, microbatch, part, issued, awaited, *group = columns
            self.programs.append(Program(part, issued, awaited, *group))
        # With whole passes, start times decide the order of ops, so all steps are kept.
        first, self.n_rows = self.n_rows, self.n_rows + rows.stop - rows.start
        self.chunk.append(chunk)
        self.microbatch.append(microbatch)
        return first

    def finish(self) -> StoredTrace:
        """The whole trace."""
        return StoredTrace(
            job=self.job,
            steps=np.concatenate(self.steps),
            counts=np.concatenate(self.counts),
            chunk=np.concatenate(self.chunk),
            microbatch=np.concatenate(self.microbatch),
            start=self.start.column(),
            end=self.end.column(),
            step_start_s=absolute_starts(np.concatenate(self.step_start_s)),
            rank=self.rank,
            warnings=tuple(self.warnings),
            left_out=self.left_out,
            program=_joined(self.programs) if self.programs else None,
            late=np.concatenate(self.late) if self.late else None,
            first_row=np.stack(self.first_row),
            step_s=np.concatenate(self.step_s),
            files=(self.start, self.end),
        )


def _sample(columns: Sequence[npt.NDArray[Any]]) -> bytes:
    """A short digest of some values of each column; different samples mean different columns."""
    digest = blake2b(digest_size=16)
    for column in columns:
        flat = column.reshape(-1)
        digest.update(f"{flat.size} ".encode())
        digest.update(flat[:: max(1, flat.size // SAMPLED)].tobytes())
    return digest.digest()


def _from_zero(microbatch: npt.NDArray[np.int32], lanes: Ints) -> npt.NDArray[np.int32]:
    """Microbatches of a step, counted from the lowest of each lane.

    Some jobs number them over all steps, but only equality within a lane matters.
    """
    named = microbatch >= 0
    filled = lanes < np.append(lanes[1:], len(microbatch))
    lowest = np.zeros(len(lanes), dtype=np.int32)
    none = np.iinfo(np.int32).max
    lowest[filled] = np.minimum.reduceat(np.where(named, microbatch, none), lanes[filled])
    lowest[lowest == none] = 0
    if not lowest.any():
        return microbatch
    shift = np.repeat(lowest, np.diff(np.append(lanes, len(microbatch))))
    return np.where(named, microbatch - shift, microbatch)


def _joined(programs: list[Program]) -> Program:
    """Programs of several steps, concatenated."""
    group = None
    if any(program.group is not None for program in programs):
        group = np.concatenate(
            [p.group if p.group is not None else np.full(len(p.part), -1) for p in programs]
        ).astype(np.int32)
    part, issued, awaited = (
        np.concatenate([getattr(program, name) for program in programs])
        for name in ("part", "issued", "awaited")
    )
    return Program(part, issued, awaited, group)
