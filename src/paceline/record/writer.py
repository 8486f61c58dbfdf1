"""The background thread: packs finished steps and appends them to the rank's file."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any

from paceline import blockfile
from paceline.record.clocks import HostClock, Offset
from paceline.record.place import Place
from paceline.record.program import SLICE
from paceline.record.scheduler import job_labels, place_of
from paceline.record.steps import Op, Step

log = logging.getLogger("paceline.record")

#: Most operations and steps that may wait for the disk or the GPU, about 19 MB.
MAX_WAITING = 50_000

#: Seconds between appends to the file and reads of the control file; kill -9 loses at most this.
FLUSH_S = 1.0

#: After this time without an operation's end, the step's operations are given up.
PATIENCE_S = 60.0


class Writer:
    """One rank's file, and the steps that wait to be written.

    The training thread calls :meth:`put` and never waits; the writer's thread does all other work.

    Args:
        folder: folder of the recording; created if it is missing.
        place: this process's place in the job; may be set until the first step is written.
        clock: resolves marks.
        control: called with the content of the control file when it has changed.
        fail: called with the error that ended the writing.
        flush_s: seconds between two appends.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        place: Place,
        clock: HostClock,
        control: Callable[[dict[str, Any]], None],
        fail: Callable[[BaseException], None],
        flush_s: float = FLUSH_S,
    ) -> None:
        self._clock, self._control, self._fail = clock, control, fail
        self._flush_s, self._control_path = flush_s, folder / blockfile.CONTROL
        self._control_seen = 0
        self._queue: deque[Step] = deque()
        self._held: list[tuple[Step, int, int]] = []  # start and end, ns; operations still run
        self._offsets: deque[Offset] = deque()
        self._notes: deque[dict[str, str]] = deque()
        self._put = self._taken = 0  # operations and steps; each counted by one thread only
        self.dropped_steps = self.dropped_times = 0  # counted by the training thread
        self._incomplete = 0  # counted by the writer's thread
        self._told = (0, 0)
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._file = _new_file(folder, place.rank)
        self.place, self._started_ns, self._has_header = place, clock.now(), False
        self.poll_control()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-record", daemon=True)
        self._thread.start()

    def put(self, step: Step) -> None:
        """Take a finished step; if too much is waiting, drop its operations or the whole step."""
        waiting = self._put - self._taken
        size = 1 + (step.program.size if step.program is not None else 0)
        if size > 1 and waiting + size > MAX_WAITING:
            step.give_up()
            size = 1
            self.dropped_steps += 1
        if waiting + size > MAX_WAITING:
            self.dropped_times += 1
            return
        step.size = size
        self._put += size
        self._queue.append(step)

    def put_offset(self, offset: Offset) -> None:
        """Take the result of a clock exchange."""
        self._offsets.append(offset)

    def put_note(self, note: dict[str, str]) -> None:
        """Take the facts of the recording, which are written with the first step."""
        self._notes.append(note)

    def stop(self) -> None:
        """Write the remaining data and end, asynchronously."""
        self._stop.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write the remaining data and end; abandon a hanging disk after ``timeout_s``."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._flush_s):
                self._clock.tie()
                self._flush()
                self.poll_control()
            self._flush(last=True)
        except BaseException as error:
            self._fail(error)
        finally:
            os.close(self._file)

    def _flush(self, last: bool = False) -> None:
        """Append everything that is finished, in one write."""
        parts: list[bytes] = []
        if not self._has_header:
            if not self._queue and not (last and self._notes):
                return
            parts.append(self._header())
        while self._offsets:
            o = self._offsets.popleft()
            entry = blockfile.CLOCK_ENTRY.pack(o.at_ns, o.offset_ns, o.residual_ns)
            parts.append(blockfile.block(blockfile.CLOCK, entry))
        while self._notes:
            text = json.dumps(self._notes.popleft()).encode()
            parts.append(blockfile.block(blockfile.NOTE, text))
        times, waits = bytearray(), bytearray()
        while self._queue:
            span = self._span(self._queue[0])
            if span is None and not last:
                break
            step = self._queue.popleft()
            if span is not None:
                times += blockfile.TIME.pack(step.number, span[0], span[1] - span[0])
                if step.data_ns >= 0:
                    waits += blockfile.DATA_ENTRY.pack(step.number, step.data_ns)
                self._held.append((step, *span))
        parts += self._ended(last)
        if times:
            parts.append(blockfile.block(blockfile.TIMES, bytes(times)))
        if waits:
            parts.append(blockfile.block(blockfile.DATA, bytes(waits)))
        counts = (self.dropped_steps + self._incomplete, self.dropped_times)
        if counts != self._told:
            entry = blockfile.COUNTS_ENTRY.pack(*counts)
            parts.append(blockfile.block(blockfile.COUNTS, entry))
            self._told = counts
        if parts:
            _append(self._file, b"".join(parts))

    def _header(self) -> bytes:
        self._has_header = True
        meta = {
            **self.place.to_mapping(),
            **place_of(),
            "labels": job_labels(),
            "pid": os.getpid(),
            "started_ns": self._started_ns,
            "clock": type(self._clock).__name__,
            "kinds": list(blockfile.KINDS),
        }
        return blockfile.file_header(meta)

    def move(self, place: Place) -> None:
        """Change the place.

        Raises:
            ValueError: the old place has been written.
        """
        if self._has_header and place != self.place:
            raise ValueError("the ranks are not what start() was told; instrument before a step")
        self.place = place

    def _span(self, step: Step) -> tuple[int, int] | None:
        """Begin and end of a step in ns; None while the GPU has not reached them."""
        start, end = self._clock.resolve(step.start), self._clock.resolve(step.end)
        return None if start is None or end is None else (start, end)

    def _ended(self, last: bool) -> Iterator[bytes]:
        """Blocks of waiting steps with finished operations; other steps keep waiting."""
        held, self._held = self._held, []
        for step, start, end in held:
            marks, ops, program = [step.start, step.end], step.ops, step.program
            if ops is not None and program is not None:
                summed = any(op.transfer >= 0 for op in ops)
                packed = self._packed(ops, start, summed=summed)
                if packed is None and not last and self._clock.now() - end < PATIENCE_S * 1e9:
                    self._held.append((step, start, end))
                    continue
                if packed is None:
                    self._lose(step, ops)
                else:
                    head = blockfile.STEP_HEAD.pack(step.number, start, end - start, len(ops))
                    kind = blockfile.SUMMED if summed else blockfile.PROGRAM
                    yield blockfile.block(kind, head + packed)
                    marks += [mark for op in ops for mark in (op.start, op.end)]
                    marks += [mark for op in ops for span in op.left_out or () for mark in span]
                program.forget()
            self._clock.recycle(marks)
            self._taken += step.size

    def _lose(self, step: Step, ops: list[Op]) -> None:
        """Give up a step's operations; the first time, log the operations without end."""
        self._incomplete += 1
        if self._incomplete > 1:
            return
        kinds = {blockfile.KINDS[op.kind] for op in ops if op.end is None}
        log.warning(
            "the operations of step %d are not recorded, for some have no end (%s); later steps "
            "like it are only counted (paceline record status)",
            step.number,
            ", ".join(sorted(kinds)) or "the GPU has not come there",
        )

    def _packed(self, ops: list[Op], zero: int, *, summed: bool) -> bytes | None:
        """The operations' records; None if one has no end yet."""
        if any(op.start is None or op.end is None for op in ops):
            return None
        resolve = self._clock.resolve
        pack = (blockfile.SUMMED_OP if summed else blockfile.PROGRAM_OP).pack
        records = []
        for i, op in enumerate(ops):
            if i % SLICE == 0:
                sleep(0)
            start, end = resolve(op.start), resolve(op.end)
            if start is None or end is None:
                return None
            if op.left_out is not None:
                start = self._start_behind(op.left_out, start, end)
            times = start - zero, end - zero
            program = op.part, op.issued, op.awaited, op.group, *((op.transfer,) if summed else ())
            records.append(pack(op.kind, op.flags, op.chunk, op.microbatch, *times, *program))
        return b"".join(records)

    def _start_behind(self, spans: list[tuple[Any, Any]], start: int, end: int) -> int:
        """Start of an operation whose spans that are left out are moved before it."""
        marks = [(self._clock.resolve(begin), self._clock.resolve(over)) for begin, over in spans]
        out = sum(over - begin for begin, over in marks if begin is not None and over is not None)
        return min(start + out, end)

    def poll_control(self) -> None:
        """Apply the control file if it has changed."""
        try:
            changed = self._control_path.stat().st_mtime_ns
            if changed == self._control_seen:
                return
            wish = json.loads(self._control_path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # missing or incomplete: look again later
            return
        self._control_seen = changed
        if isinstance(wish, dict):
            self._control(wish)


def _new_file(folder: Path, rank: int) -> tuple[Path, int]:
    """Create a new file; a restarted rank gets a new one beside its earlier file."""
    for attempt in range(100_000):
        path = folder / f"rank-{rank:05d}-{attempt}{blockfile.SUFFIX}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            return path, os.open(path, flags, 0o666)
        except FileExistsError:
            continue
    raise OSError(f"{folder} holds 100,000 files of rank {rank}")


def _append(file: int, data: bytes) -> None:
    """Write all of ``data``; a full disk accepts a part and reports the error at the next call."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
