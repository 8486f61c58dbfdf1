"""The recorder: the interface that the training loop calls."""

from __future__ import annotations

import atexit
import logging
import operator
import os
import sys
import threading
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

from paceline.record.clocks import TIMEOUT_S, Exchange, HostClock
from paceline.record.cuda import CudaClock
from paceline.record.patching import Wrapper, name_of, wrap
from paceline.record.place import find_place, process_group
from paceline.record.program import Program, code_of
from paceline.record.steps import DEFAULT_CHUNK, NOTHING, Op, Operation, Step
from paceline.record.writer import FLUSH_S, Writer

log = logging.getLogger("paceline.record")

#: 2^64 over the golden ratio, the multiplier of Fibonacci hashing (Knuth, The Art of Computer
#: Programming, vol. 3, section 6.4): its multiples modulo 2^64 lie evenly.
_GOLDEN, _BITS = 0x9E3779B97F4A7C15, 64


def is_drawn(number: int, every: int) -> bool:
    """Whether a step is the profiled one among its ``every`` neighbours; the same on all ranks.

    The place of the profiled step changes from neighbours to neighbours. So what recurs, such as an
    evaluation in each tenth step, falls on profiled steps as often as on others.
    """
    block, place = divmod(number, every)
    return place == (block * _GOLDEN % (1 << _BITS)) * every >> _BITS


class Recorder:
    """Records times of one rank's steps and operations into a file.

    It never raises into the training loop. After an error it logs one line (logger
    ``paceline.record``) and is off. :func:`start` makes it.

    Attributes:
        mark: takes a time, cheaply, to be resolved later.
        after: takes a mark of the time when a work is done, or None.
        program: program of the running step if that is profiled, otherwise None.
        measures_data: whether a wait for a batch was measured so far.
        data_ns: these waits since the last step, nanoseconds.
        waits_for_data: whether the training thread waits for a batch now.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every: int = 10,
        steps: Container[int] | None = None,
        sync_every: int = 100,
        device: str | None = None,
        flush_s: float = FLUSH_S,
        sync_timeout_s: float = TIMEOUT_S,
        given: Mapping[str, Any] | None = None,
        clock: HostClock | None = None,
    ) -> None:
        self.program: Program | None = None
        self.measures_data, self.data_ns, self.waits_for_data = False, 0, False
        self._thread = threading.get_ident()
        self._step: Step | None = None
        self._writer: Writer | None = None
        self._exchange: Exchange | None = None
        self._pid = os.getpid()
        self._failed = self._warned = False
        self._hooked: WeakSet[Any] = WeakSet()
        self._endings: list[Callable[[Step], None]] = []
        self._sync_timeout_s = sync_timeout_s
        self._every, self._steps, self._sync_every = every, steps, sync_every
        self._at_first = every, steps
        self._on = True
        self._until, self._at_once = -1, 0  # last step, and number of steps, to record on request
        try:
            if every < 1 or sync_every < 0:
                raise ValueError("every counts from 1, sync_every from 0 (never)")
            self._clock = clock or _clock(device)
            self.mark = self._clock.mark  # bound directly, to save a call per mark
            self.after = self._clock.after
            self._folder, self._given = Path(folder), dict(given or {})
            self._given["session"] = self._session() or self._given.get("session")
            place = find_place(self._folder, self._given)
            self._writer = Writer(self._folder, place, self._clock, self._obey, self.fail, flush_s)
            atexit.register(self.close)
        except Exception as error:
            self.fail(error)
        self._synchronise()  # even if off, for other ranks wait for this one

    def locate(self, known: Mapping[str, int]) -> None:
        """Add a hook's knowledge of this process's place, before the first step.

        Args:
            known: dp, pp, vpp, dp_rank, pp_rank and the like.
        """
        if self._writer is None:
            return
        try:
            for name, value in known.items():
                if self._given.get(name) not in (None, value):
                    raise ValueError(f"start() was told {name}={self._given[name]}, not {value}")
            self._writer.move(find_place(self._folder, {**self._given, **known}))
        except Exception as error:
            self.fail(error)

    def note(self, what: str, how: str | None = None) -> None:
        """Note a fact of the recording for ``paceline record status``.

        Args:
            what: the recorded thing; with ``how``, a thing that is not recorded.
            how: advice to record it.
        """
        if self._writer is not None:
            note = {"recorded": what} if how is None else {"not_recorded": what, "how": how}
            self._writer.put_note(note)

    def wrap(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        """Record a function of a library (:func:`paceline.record.patching.wrap`).

        If this version of the library lacks the function, that is noted.
        """
        if not wrap(owner, name, wrapper):
            absent = f"{name_of(owner)}.{name} is absent"
            self.note(absent, "this version of its library is not known to Paceline")

    def _session(self) -> str | None:
        """Set up the clock exchange if there are peers; returns their name for this start."""
        group = process_group()
        if group is None or group.get_world_size() == 1:
            return None
        try:
            exchange = Exchange(group, self._clock, timeout_s=self._sync_timeout_s)
            session = exchange.session()
        except Exception as error:
            log.error("clocks are not compared: %s", _line(error))
            return None
        self._exchange = exchange
        return session

    @property
    def is_on(self) -> bool:
        """Whether anything is recorded, at least step times."""
        return self._writer is not None

    @property
    def rank(self) -> int:
        """The global rank; -1 if nothing is recorded."""
        writer = self._writer
        return -1 if writer is None else writer.place.rank

    @property
    def is_profiling(self) -> bool:
        """Whether operations of the running step are recorded."""
        return self.program is not None

    @property
    def in_training_thread(self) -> bool:
        """Whether the calling thread is the one of the steps, and this process records."""
        is_ours = threading.get_ident() == self._thread
        return is_ours and self._writer is not None and os.getpid() == self._pid

    @property
    def open_op(self) -> Op | None:
        """The operation whose block runs now; None between blocks."""
        program = self.program
        return None if program is None else program.open_op

    def step(self, number: int) -> Step:
        """A block for one training step: records its time and, if profiled, its operations."""
        return Step(self, number)

    @property
    def on_host(self) -> bool:
        """Whether waits of the host show the times of works; on a GPU, streams do."""
        return not isinstance(self._clock, CudaClock)

    def op(
        self,
        kind: str,
        microbatch: int = -1,
        chunk: int | None = None,
        part: int = -1,
        group: int = -1,
    ) -> Operation:
        """A block for one operation, which ends with the block.

        Args:
            kind: a label of :class:`paceline.OpKind`, as ``forward-compute``.
            microbatch: number of the microbatch, from 0; -1 = none.
            chunk: model chunk on this stage, from 0; None = 0 where the kind has one.
            part: number of the unit or bucket that is communicated, -1 = not known.
            group: a number shared by the ranks that communicate, such as their lowest rank; -1 =
                all data-parallel ranks of the stage.
        """
        program = self.program
        if program is None:
            return NOTHING
        try:
            return program.new(kind, microbatch, chunk, part, group)
        except Exception as error:
            self.fail(error)
            return NOTHING

    def launch(
        self,
        kind: str,
        microbatch: int = -1,
        chunk: int | None = None,
        part: int = -1,
        group: int = -1,
    ) -> Operation:
        """Begin an operation that continues; call its ``done()`` or ``track(work)``.

        Args:
            kind: a label of :class:`paceline.OpKind`, as ``forward-compute``.
            microbatch: number of the microbatch, from 0; -1 = none.
            chunk: model chunk on this stage, from 0; None = 0 where the kind has one.
            part: number of the unit or bucket that is communicated, -1 = not known.
            group: a number shared by the ranks that communicate, such as their lowest rank; -1 =
                all data-parallel ranks of the stage.
        """
        program = self.program
        if program is None:
            return NOTHING
        try:
            code = code_of(kind)
            chunk = DEFAULT_CHUNK[code] if chunk is None else chunk
            return program.launch(code, microbatch, chunk, part, group)
        except Exception as error:
            self.fail(error)
            return NOTHING

    def called(self, kind: str, group: int, took_ns: int) -> None:
        """Count a collective within the running pass, on the host, with others like it."""
        if self.program is not None:
            self.program.called(kind, group, took_ns)

    def add(
        self, kind: str, start: Any, end: Any, microbatch: int = -1, chunk: int | None = None
    ) -> None:
        """Add an operation between two earlier marks (:attr:`mark`)."""
        if self.program is None:
            return
        try:
            self.program.add(kind, start, end, microbatch, chunk)
        except Exception as error:
            self.fail(error)

    def drop(self, op: Operation) -> None:
        """Forget an operation of the running step that has no end: its call raised."""
        if isinstance(op, Op) and not op.program.is_over:
            op.program.drop(op)

    def mark_in_block(self) -> Any:
        """A mark of now, inside the block of an operation; None outside of blocks."""
        program = self.program
        if program is None or program.open_op is None:
            return None
        try:
            return program.mark()
        except Exception as error:
            self.fail(error)
            return None

    def leave_out(self, since: Any) -> None:
        """Leave the time from a mark (:meth:`mark_in_block`) to now out of the running compute."""
        if self.program is None:
            return
        try:
            self.program.leave_out(since)
        except Exception as error:
            self.fail(error)

    def is_new(self, hooked: Any) -> bool:
        """Whether this recorder has no hooks in the object yet; it is then marked as hooked."""
        new = hooked not in self._hooked
        self._hooked.add(hooked)
        return new

    def at_step_end(self, ending: Callable[[Step], None]) -> None:
        """Call ``ending`` with every finished or abandoned step, before it is written."""
        self._endings.append(ending)

    @property
    def running_step(self) -> Step | None:
        """The running step."""
        return self._step

    def _give_up_step(self, most: int) -> None:
        if self._step is not None and self._writer is not None:
            number = self._step.number
            self._end_program()
            self._step.give_up()
            self._writer.dropped_steps += 1
            self._warn_once(f"step {number} has over {most:,} operations: only its time is kept")

    def _end_program(self, end: Any = None) -> None:
        program, self.program = self.program, None
        if program is not None:
            program.close(end)

    def begin(self, step: Step) -> None:
        """Start of a step; its block calls this."""
        if self._writer is None:
            return
        try:
            number = step.number = operator.index(step.number)
            if number < 0:
                self._warn_once(f"step {number} is not recorded: steps count from 0")
                return
            if self._is_profiled(number):
                self._end_program()  # an enclosing step
                self.program = Program(self._clock, self.fail, self._give_up_step)
                step.profile(self.program)
            self._step, self._thread = step, threading.get_ident()
            step.start = self.mark()
        except Exception as error:
            self.fail(error)

    def _is_profiled(self, number: int) -> bool:
        """Whether the operations of a step are recorded: regularly or on request."""
        if self._at_once > 0 and number <= self._until:
            self._at_once -= 1
            return True
        if not self._on:
            return False
        return number in self._steps if self._steps is not None else is_drawn(number, self._every)

    def finish(self, step: Step, *, whole: bool) -> None:
        """End of a step; its block calls this. A step that raised is not kept."""
        writer = self._writer
        if writer is not None and step.start is not None:
            try:
                step.end = self.mark()
                step.data_ns = self.data_ns if self.measures_data else -1
                for ending in self._endings:
                    ending(step)
                self._end_program(step.end)
                if whole:
                    writer.put(step)
                else:
                    step.give_up()
            except Exception as error:
                self.fail(error)
        self._end_program()
        self._step, self.data_ns = None, 0
        if whole and self._sync_every:
            self._synchronise(step.number)

    def _synchronise(self, number: int = 0) -> None:
        """Compare clocks if due at step ``number``; always at 0, the start."""
        if self._exchange is None:
            return
        try:
            if number % (self._sync_every or 1):
                return
            offset = self._exchange.run()
            if self._writer is not None:
                self._writer.put_offset(offset)
        except Exception as error:
            self._exchange = None
            log.error("clocks are not compared any more: %s", _line(error))

    def _obey(self, wish: dict[str, Any]) -> None:
        """Apply the content of the control file; the writer calls this."""
        every = wish.get("every")
        if isinstance(every, int) and every >= 1:
            self._every, self._steps = every, None
        else:
            self._every, self._steps = self._at_first
        self._on = wish.get("on") is not False
        until, at_once = wish.get("until"), wish.get("at_once")
        if isinstance(until, int) and isinstance(at_once, int):
            self._until, self._at_once = until, at_once

    def fail(self, error: BaseException) -> None:
        """Switch off, with one line in the log."""
        writer, self._writer = self._writer, None
        self._end_program()
        self._step = None
        if writer is None and self._failed:
            return
        self._failed = True
        log.error("recorder switched off, training goes on: %s", _line(error))
        if writer is not None:
            writer.stop()

    def _warn_once(self, line: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(line)

    def close(self) -> None:
        """Write the remaining data and end the writer. Called at the end of the process."""
        writer, self._writer = self._writer, None
        self._end_program()
        self._step = self._exchange = None
        if writer is not None and os.getpid() == self._pid:
            atexit.unregister(self.close)
            writer.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _clock(device: str | None) -> HostClock:
    torch: Any = sys.modules.get("torch")
    if device is None:
        device = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
    if not device.startswith("cuda"):
        return HostClock()
    import torch as imported

    return CudaClock(imported)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
