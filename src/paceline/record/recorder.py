"""The recorder: what the training loop calls."""

from __future__ import annotations

import atexit
import logging
import operator
import os
import sys
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

from paceline.blockfile import LATE, PEER_END
from paceline.record.clocks import TIMEOUT_S, Exchange, HostClock
from paceline.record.cuda import CudaClock
from paceline.record.patching import Wrapper, name_of, wrap
from paceline.record.place import find_place, process_group
from paceline.record.steps import (
    CODES,
    COMPUTES,
    DEFAULT_CHUNK,
    NOTHING,
    Nothing,
    Op,
    Operation,
    Step,
)
from paceline.record.writer import FLUSH_S, Writer

log = logging.getLogger("paceline.record")

#: A step with more operations is dropped: it would fill the memory before it ends.
MAX_OPS = 20_000


@dataclass(slots=True)
class _Calls:
    """Collectives within a part of a pass that are counted together; times in ns."""

    total: int = 0
    count: int = 0
    fastest: int = 0

    def add(self, took: int) -> None:
        self.fastest = min(self.fastest, took) if self.count else took
        self.total, self.count = self.total + took, self.count + 1


class _UnderWay:
    """An operation that the program is inside of: a compute in parts, or communication."""

    __slots__ = ("calls", "is_compute", "op", "parts")

    def __init__(self, op: Op) -> None:
        self.op = op
        self.parts = [op]
        self.is_compute = op.kind in COMPUTES  # launches and waits cut it
        self.calls: dict[tuple[int, int], _Calls] = {}  # kind and group -> those in the last part


class Recorder:
    """Times of one rank's steps and operations, on their way to a file.

    Nothing in here raises into the training loop: any error is one line in the log (logger
    ``paceline.record``), after which the recorder is off. Made by :func:`start`.

    Attributes:
        open_op: the operation whose block runs now; None between them.
        mark: takes a time, cheaply, to be resolved later.
        after: a mark of when a work is done, or None.
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
        self._ops: list[Op] | None = None
        self._step: Step | None = None
        self.open_op: Op | None = None
        self._under_way: list[_UnderWay] = []  # the innermost last
        self._position = -1  # of the last launch in the running step
        self._waited: Op | None = None  # for which the program waited last
        self._between: Any = None  # how long a compute ran between two waits that are one
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
        try:
            if every < 1 or sync_every < 0:
                raise ValueError("every counts from 1, sync_every from 0 (never)")
            self._clock = clock or _clock(device)
            self.mark = self._clock.mark  # no method of ours: a call less per mark
            self.after = self._clock.after
            self._folder, self._given = Path(folder), dict(given or {})
            self._given["session"] = self._session() or self._given.get("session")
            place = find_place(self._folder, self._given)
            self._writer = Writer(self._folder, place, self._clock, self._obey, self.fail, flush_s)
            atexit.register(self.close)
        except Exception as error:
            self.fail(error)
        self._synchronise()  # on or off: the other ranks wait for this one

    def locate(self, known: Mapping[str, int]) -> None:
        """What a hook knows of this process's place, before the first step.

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
        """Something to be known of the recording, which ``paceline record status`` tells.

        Args:
            what: is recorded; or, with ``how``, is not.
            how: it can be.
        """
        if self._writer is not None:
            note = {"recorded": what} if how is None else {"not_recorded": what, "how": how}
            self._writer.put_note(note)

    def wrap(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        """Record a function of a library (:func:`paceline.record.patching.wrap`).

        A function that this version of the library lacks is noted.
        """
        if not wrap(owner, name, wrapper):
            absent = f"{name_of(owner)}.{name} is absent"
            self.note(absent, "this version of its library is not known to Paceline")

    def _session(self) -> str | None:
        """Set up the clock exchange where there are peers; returns what they call this start."""
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
        """Whether anything is recorded (step times at least)."""
        return self._writer is not None

    @property
    def rank(self) -> int:
        """The global rank; -1 where nothing is recorded."""
        writer = self._writer
        return -1 if writer is None else writer.place.rank

    @property
    def is_profiling(self) -> bool:
        """Whether the step that runs now is recorded with its operations."""
        return self._ops is not None

    def step(self, number: int) -> Step:
        """The block of one training step: its time is kept, and of some its operations."""
        return Step(self, number)

    @property
    def on_host(self) -> bool:
        """Whether work is timed where the host waits for it; on a GPU its streams tell."""
        return not isinstance(self._clock, CudaClock)

    def op(
        self,
        kind: str,
        microbatch: int = -1,
        chunk: int | None = None,
        part: int = -1,
        group: int = -1,
    ) -> Operation:
        """The block of one operation, which is done when the block ends.

        Args:
            kind: a label of :class:`paceline.OpKind`, as ``forward-compute``.
            microbatch: number of the microbatch, from 0; -1 = none.
            chunk: model chunk on this stage, from 0; None = 0 where the kind has one.
            part: number of the unit or bucket that is communicated, -1 = not known.
            group: a number that only ranks have which communicate with each other, such as the
                lowest of their ranks; -1 = all data-parallel ranks of the stage.
        """
        ops = self._ops
        if ops is None:
            return NOTHING
        op = self._new_op(ops, kind, microbatch, chunk)
        if isinstance(op, Op):
            op.part, op.group = part, group
        return op

    def launch(
        self,
        kind: str,
        microbatch: int = -1,
        chunk: int | None = None,
        part: int = -1,
        group: int = -1,
    ) -> Operation:
        """An operation that starts now and runs on: call its ``done()``, or ``track(work)``.

        Args:
            kind: a label of :class:`paceline.OpKind`, as ``forward-compute``.
            microbatch: number of the microbatch, from 0; -1 = none.
            chunk: model chunk on this stage, from 0; None = 0 where the kind has one.
            part: number of the unit or bucket that is communicated, -1 = not known.
            group: a number that only ranks have which communicate with each other, such as the
                lowest of their ranks; -1 = all data-parallel ranks of the stage.
        """
        ops = self._ops
        if ops is None:
            return NOTHING
        self._end_calls()
        op = self._new_op(ops, kind, microbatch, chunk)
        if isinstance(op, Op):
            try:
                op.start, op.part, op.group = self.mark(), part, group
                if op.kind in COMPUTES:
                    self.occupy(op)
                else:
                    self._pause(op.start)
                    self._resume(op.start)
            except Exception as error:
                self.fail(error)
        return op

    def occupy(self, op: Op) -> None:
        """An operation that the program waits for begins at its start."""
        if op.ops is self._ops:
            if self._under_way:
                self._pause(op.start)
            self._under_way.append(_UnderWay(op))

    def release(self, op: Op, mark: Any) -> None:
        """It ends; a hook may have said when, better than ``mark``. What it was in goes on."""
        stack = self._under_way
        innermost = bool(stack) and stack[-1].op is op
        if op.ops is not self._ops or not (innermost or any(one.op is op for one in stack)):
            op.end = mark if op.end is None else op.end
            return
        under_way = stack.pop()
        while under_way.op is not op:  # left by an exception
            under_way = stack.pop()
        self._end_part(under_way, mark)
        if not under_way.is_compute:
            op.awaited = self._position
        if stack:
            self._resume(mark)

    def wait_from(self, op: Op, mark: Any) -> None:
        """The program begins to wait for an operation that it launched."""
        if op.ops is not self._ops:
            return
        self._between = self._between_waits(op, mark)
        if self._between is None:
            self._pause(mark)
        op.awaited = self._position

    def wait_to(self, op: Op, mark: Any) -> None:
        """The wait is over."""
        if op.ops is self._ops:
            self._resume(mark if self._between is None else mark - self._between)
            self._waited = op

    def _between_waits(self, op: Op, mark: Any) -> Any:
        """Undo the part behind the wait for another op of a batch; it goes on behind this wait.

        Ranks may wait for a batch in unlike orders, and still run one program.

        Returns:
            how long that part ran; None where there is none.
        """
        ops, waited = self._ops, self._waited
        if not ops or not self._under_way or waited is None:
            return None
        if op.batch is None or waited.batch is not op.batch:
            return None
        parts = self._under_way[-1].parts
        if parts[-1] is not ops[-1] or waited.awaited != self._position - 1:
            return None
        part = parts.pop()
        ops.pop()
        self._position -= 1
        return mark - part.start

    def _pause(self, mark: Any) -> None:
        """The part of a compute that runs ends."""
        if self._under_way and self._under_way[-1].is_compute:
            self._end_part(self._under_way[-1], mark)

    def _end_part(self, under_way: _UnderWay, mark: Any) -> None:
        """The last part ends, and behind it come the collectives that were counted within it."""
        part, calls = under_way.parts[-1], under_way.calls
        part.end = mark if part.end is None else part.end
        if not calls:
            return
        under_way.calls = {}
        part.end -= sum(of_kind.total for of_kind in calls.values())
        at = part.end
        for (kind, group), of_kind in calls.items():
            op = Op(self, part.ops, kind, DEFAULT_CHUNK[kind], -1)
            op.start, op.end, op.group = at, at + of_kind.total, group
            op.transfer = of_kind.count * of_kind.fastest
            self._append(part.ops, op)
            op.awaited = self._position
            at = op.end

    def _end_calls(self) -> None:
        """What follows is launched behind the collectives that were counted so far."""
        if self._under_way and self._under_way[-1].calls:
            mark = self.mark()
            self._pause(mark)
            self._resume(mark)

    def called(self, kind: str, group: int, took_ns: int) -> None:
        """A collective within the running pass, on the host; it is counted with those like it."""
        if self._ops is not None and self._under_way and self._under_way[-1].is_compute:
            calls = self._under_way[-1].calls
            calls.setdefault((CODES[kind], group), _Calls()).add(took_ns)

    def _resume(self, mark: Any) -> None:
        """The compute that was paused goes on, in its next part."""
        ops = self._ops
        if ops is None or not self._under_way or not self._under_way[-1].is_compute:
            return
        under_way = self._under_way[-1]
        op = under_way.op
        part = Op(self, ops, op.kind, op.chunk, op.microbatch)
        part.start = mark
        self._append(ops, part)
        under_way.parts.append(part)

    def _append(self, ops: list[Op], op: Op) -> None:
        self._position += 1
        op.issued = self._position
        ops.append(op)
        if len(ops) > MAX_OPS:
            self._give_up_step()

    def add(
        self, kind: str, start: Any, end: Any, microbatch: int = -1, chunk: int | None = None
    ) -> None:
        """An operation between two marks (:attr:`mark`) that were taken already."""
        ops = self._ops
        if ops is None:
            return
        op = self._new_op(ops, kind, microbatch, chunk)
        if isinstance(op, Op):
            op.start, op.end, op.awaited = start, end, self._position

    def drop(self, op: Any) -> None:
        """Forget an operation of the running step: its call raised, it will have no end."""
        parts = next((one.parts for one in self._under_way if one.op is op), [op])
        self._under_way = [one for one in self._under_way if one.op is not op]
        if self._ops is not None:
            dropped = {id(part) for part in parts}
            self._ops[:] = [one for one in self._ops if id(one) not in dropped]

    def is_new(self, hooked: Any) -> bool:
        """Whether this recorder has no hooks in a thing yet; from now on it has."""
        new = hooked not in self._hooked
        self._hooked.add(hooked)
        return new

    def at_step_end(self, ending: Callable[[Step], None]) -> None:
        """Call ``ending`` with every step that is over or was left, before it is written."""
        self._endings.append(ending)

    @property
    def running_step(self) -> Step | None:
        """The step that runs now."""
        return self._step

    def _new_op(self, ops: list[Op], kind: str, microbatch: int, chunk: int | None) -> Op | Nothing:
        try:
            code = CODES.get(kind)
            if code is None:
                raise ValueError(f"no kind of operation is called {kind!r}; use {', '.join(CODES)}")
            chunk = DEFAULT_CHUNK[code] if chunk is None else chunk
            op = Op(self, ops, code, chunk, microbatch)
            self._append(ops, op)
        except Exception as error:
            self.fail(error)
            return NOTHING
        return op

    def _give_up_step(self) -> None:
        if self._step is not None and self._writer is not None:
            number, self._step.ops, self._ops = self._step.number, None, None
            self._writer.dropped_steps += 1
            self._warn_once(f"step {number} has over {MAX_OPS:,} operations: only its time is kept")

    def begin(self, step: Step) -> None:
        """A step begins; called by its block."""
        if self._writer is None:
            return
        try:
            number = step.number = operator.index(step.number)
            if number < 0:
                self._warn_once(f"step {number} is not recorded: steps count from 0")
                return
            if self._on and (
                number in self._steps if self._steps is not None else number % self._every == 0
            ):
                self._ops = step.ops = []
                self._under_way, self._position, self._waited = [], -1, None
            self._step = step
            step.start = self.mark()
        except Exception as error:
            self.fail(error)

    def finish(self, step: Step, *, whole: bool) -> None:
        """A step ends; called by its block. One that an exception left is not kept."""
        writer = self._writer
        if writer is not None and step.start is not None:
            try:
                step.end = self.mark()
                _end_sends(step)
                for ending in self._endings:
                    ending(step)
                if whole:
                    writer.put(step)
            except Exception as error:
                self.fail(error)
        self._ops = self._step = None
        if whole and self._sync_every:
            self._synchronise(step.number)

    def _synchronise(self, number: int = 0) -> None:
        """Compare clocks, where step ``number`` calls for it (0, as at the start, always does)."""
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
        """What the control file says; called by the writer."""
        every = wish.get("every")
        if isinstance(every, int) and every >= 1:
            self._every, self._steps = every, None
        else:
            self._every, self._steps = self._at_first
        self._on = wish.get("on") is not False

    def fail(self, error: BaseException) -> None:
        """Switch off, with one line in the log."""
        writer, self._writer = self._writer, None
        self._ops = self._step = self.open_op = None
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
        """Write what waits, end the writer. Called at the end of the process."""
        writer, self._writer = self._writer, None
        self._ops = self._step = self._exchange = None
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


def _end_sends(step: Step) -> None:
    """Sends that nobody waited for: the peer's receive tells their end when the files are read."""
    for op in step.ops or ():
        if op.end is None and op.flags & PEER_END:
            op.end, op.flags = step.end, op.flags | LATE


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
