"""The program of one rank in one step: its launches and waits, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any, Protocol

from paceline.blockfile import LATE, PEER_END
from paceline.record.steps import CODES, COMPUTES, DEFAULT_CHUNK, SENDS, Op

#: Most operations of a step; a larger step is dropped, for it would fill the memory.
MAX_OPS = 20_000

#: Number of operations handled between yields of the interpreter to the training thread.
SLICE = 64


class Clock(Protocol):
    """Source of times for operations."""

    def mark(self) -> Any:
        """A time, to be resolved later."""

    def after(self, work: Any, code: int) -> Any:
        """The time when ``work`` is done; None: only its wait shows that."""


@dataclass(slots=True)
class _Calls:
    """Collectives within a part of a pass that are counted together; times in ns."""

    total: int = 0
    count: int = 0
    fastest: int = 0

    def add(self, took: int) -> None:
        self.fastest = min(self.fastest, took) if self.count else took
        self.total, self.count = self.total + took, self.count + 1


def code_of(kind: str) -> int:
    """The code of a kind of operations.

    Raises:
        ValueError: the kind is unknown.
    """
    code = CODES.get(kind)
    if code is None:
        raise ValueError(f"no kind of operation is called {kind!r}; use {', '.join(CODES)}")
    return code


#: Kinds of notes of a running program, which :meth:`Program.replay` takes.
_LAUNCH, _ENTER, _LEAVE, _WAIT, _WAITED, _ADD, _CALLED, _DROP, _LEFT_OUT = range(9)


class Program:
    """Operations of a step as they are launched; computes are cut by launches and waits.

    The training thread only takes notes. After the step, :meth:`replay` turns them into operations,
    in the writer's thread.

    Args:
        clock: the recorder's clock.
        fail: called with an error, which is not raised.
        overflow: called with :data:`MAX_OPS` if the step has more operations.

    Attributes:
        ops: operations in the order of their launches, as far as replayed.
        open_op: the operation with a running block; None between blocks.
        is_over: whether the step has ended; after that, only the ends of its operations may change.
        size: number of launches.
    """

    def __init__(
        self, clock: Clock, fail: Callable[[BaseException], None], overflow: Callable[[int], None]
    ) -> None:
        self.ops: list[Op] = []
        self.open_op: Op | None = None
        self.is_over = False
        self.size = 0
        self.mark, self.after, self.fail = clock.mark, clock.after, fail
        self._overflow = overflow
        self._notes: list[tuple[Any, ...]] = []
        self._sends: list[Op] = []  # sends, whose ends only the peer's receives show
        self._replay: _Replay | None = None

    def close(self, end: Any = None) -> None:
        """The step ended at ``end``, or is given up."""
        for op in self._sends:  # without a wait, the peer's receive shows the end
            if op.end is None and end is not None:
                op.end, op.flags = end, op.flags | LATE
        self.is_over, self.open_op, self._sends = True, None, []

    def forget(self) -> None:
        """Drop references to the operations, to break cycles."""
        self.ops, self._notes, self._replay = [], [], None

    def replay(self) -> None:
        """Turn the notes so far into operations; one thread at a time."""
        notes, self._notes = self._notes, []
        if self._replay is None:
            self._replay = _Replay(self.ops)
        for i, note in enumerate(notes):
            if i % SLICE == 0:
                sleep(0)
            self._replay.take(*note)

    def new(self, kind: str, microbatch: int, chunk: int | None, part: int, group: int) -> Op:
        """Add an operation with a later block.

        Raises:
            ValueError: the kind is unknown.
        """
        code = code_of(kind)
        chunk = DEFAULT_CHUNK[code] if chunk is None else chunk
        return Op(self, code, chunk, microbatch, part, group)

    def launch(
        self, code: int, microbatch: int = -1, chunk: int = 0, part: int = -1, group: int = -1
    ) -> Op:
        """Add an operation that starts now and continues.

        Args:
            code: of its kind (:data:`paceline.record.steps.CODES`).
            microbatch: its number, -1 = none.
            chunk: model chunk, -1 = none.
            part: number of the unit or bucket, -1 = not known.
            group: number of the ranks that communicate, -1 = all data-parallel ranks.
        """
        op = Op(self, code, chunk, microbatch, part, group)
        op.start = self.mark()
        self._note(_LAUNCH, op, op.start)
        return op

    def enter(self, op: Op) -> None:
        """Start of an operation's block."""
        op.start = self.mark()
        self._note(_ENTER, op, op.start)

    def _note(self, what: int, op: Op, mark: Any) -> None:
        self._notes.append((what, op, mark))
        self.size += 1
        if self.size > MAX_OPS and not self.is_over:
            self._overflow(MAX_OPS)

    def add(self, kind: str, start: Any, end: Any, microbatch: int, chunk: int | None) -> None:
        """Add an operation between two marks; the program awaited it at once."""
        op = self.new(kind, microbatch, chunk, -1, -1)
        op.start, op.end = start, end
        self._note(_ADD, op, end)

    def release(self, op: Op, mark: Any) -> None:
        """End of a block, at ``mark`` or a hook's better time; the outer operation continues."""
        if self.is_over:
            op.end = mark if op.end is None else op.end
        else:
            self._notes.append((_LEAVE, op, mark))

    def wait_from(self, op: Op, mark: Any, others: Sequence[Op] = ()) -> None:
        """Start of a wait for a launched operation; ``others`` end with it."""
        if not self.is_over:
            self._notes.append((_WAIT, op, mark, others))

    def wait_to(self, op: Op, mark: Any) -> None:
        """End of the wait."""
        if not self.is_over:
            self._notes.append((_WAITED, op, mark))

    def called(self, kind: str, group: int, took_ns: int) -> None:
        """Count a collective within the running pass together with similar ones, on the host."""
        self._notes.append((_CALLED, (CODES[kind], group), took_ns))

    def leave_out(self, since: Any) -> None:
        """Leave the time from a mark to now out of the running compute."""
        if not self.is_over:
            self._notes.append((_LEFT_OUT, since, self.mark()))

    def drop(self, op: Op) -> None:
        """Forget an operation without end: its call raised."""
        self._notes.append((_DROP, op, None))

    def follow(self, op: Op, end: Any) -> None:
        """An operation ends with a work, at a stream's mark; None: a wait or a peer shows it."""
        op.end = end
        if op.end is None and op.kind in SENDS:
            op.flags |= PEER_END
            self._sends.append(op)


class _Replay:
    """The operations of a step, from the notes of its program.

    Args:
        ops: filled with the operations, in the order of their launches.
    """

    def __init__(self, ops: list[Op]) -> None:
        self._ops = ops
        self._under_way: list[Op] = []  # enclosing operations, the innermost last
        self._calls: dict[tuple[int, int], _Calls] = {}  # kind and group -> of the running part
        self._position = -1  # of the last launch
        self._waited: Op | None = None  # for which the program waited last
        self._between: Any = None  # compute time between two waits that count as one
        self._of: dict[int, Callable[..., None]] = {
            _LAUNCH: self._launch,
            _ENTER: self._enter,
            _LEAVE: self._leave,
            _WAIT: self._wait,
            _WAITED: self._wait_over,
            _ADD: self._add,
            _CALLED: self._called,
            _DROP: self._drop,
            _LEFT_OUT: self._leave_out,
        }

    def take(self, what: int, *note: Any) -> None:
        """Process the next note of the program."""
        self._of[what](*note)

    def _launch(self, op: Op, mark: Any) -> None:
        if self._calls:  # later ops are launched after the collectives counted so far
            self._pause(mark)
            self._resume(mark)
        if op.kind in COMPUTES:
            self._enter(op, mark)
            return
        self._append(op)
        if self._under_way:
            self._pause(mark)
            self._resume(mark)

    def _enter(self, op: Op, mark: Any) -> None:
        self._append(op)
        if self._under_way:
            self._pause(mark)
        self._under_way.append(op)

    def _add(self, op: Op, _: Any) -> None:
        self._append(op)
        op.awaited = self._position

    def _leave(self, op: Op, mark: Any) -> None:
        stack = self._under_way
        if op not in stack:
            op.end = mark if op.end is None else op.end
            return
        while stack.pop() is not op:  # left by an exception
            self._calls.clear()
        self._end_part(op, mark)
        if op.kind not in COMPUTES:
            op.awaited = self._position
        if stack:
            self._resume(mark)

    def _wait(self, op: Op, mark: Any, others: Sequence[Op]) -> None:
        self._between = self._between_waits(op, mark)
        if self._between is None:
            self._pause(mark)
        op.awaited = self._position
        for other in others if op.batch is None else (*others, *op.batch.alone):
            other.awaited = op.awaited

    def _wait_over(self, op: Op, mark: Any) -> None:
        self._resume(mark if self._between is None else mark - self._between)
        self._waited = op

    def _called(self, of: tuple[int, int], took_ns: int) -> None:
        if self._under_way and self._under_way[-1].kind in COMPUTES:
            self._calls.setdefault(of, _Calls()).add(took_ns)

    def _drop(self, op: Op, _: Any) -> None:
        dropped = {id(part) for part in (op, *(op.parts or ()))}
        self._calls.clear()
        self._under_way = [one for one in self._under_way if one is not op]
        self._ops[:] = [one for one in self._ops if id(one) not in dropped]

    def _leave_out(self, begin: Any, end: Any) -> None:
        """A cut here would give ranks that load no data another program."""
        op = self._under_way[-1] if self._under_way else None
        if op is not None and op.kind in COMPUTES:
            part = op.parts[-1] if op.parts else op
            part.left_out = [*(part.left_out or ()), (begin, end)]

    def _between_waits(self, op: Op, mark: Any) -> Any:
        """Undo the part after the wait for another op of a batch; it continues after this wait.

        Ranks may wait for a batch in different orders and still run the same program.

        Returns:
            duration of that part; None if there is none.
        """
        ops, waited = self._ops, self._waited
        if op.batch is None or waited is None or waited.batch is not op.batch:
            return None
        parts = self._under_way[-1].parts if self._under_way else None
        if not parts or parts[-1] is not ops[-1] or waited.awaited != self._position - 1:
            return None
        part = parts.pop()
        ops.pop()
        self._position -= 1
        return mark - part.start

    def _append(self, op: Op) -> None:
        self._position += 1
        op.issued = self._position
        self._ops.append(op)

    def _pause(self, mark: Any) -> None:
        """End of the running part of a compute."""
        if self._under_way and self._under_way[-1].kind in COMPUTES:
            self._end_part(self._under_way[-1], mark)

    def _resume(self, mark: Any) -> None:
        """The paused compute continues in its next part."""
        if not self._under_way or self._under_way[-1].kind not in COMPUTES:
            return
        op = self._under_way[-1]
        part = Op(op.program, op.kind, op.chunk, op.microbatch)
        part.start = mark
        self._append(part)
        if op.parts is None:
            op.parts = [part]
        else:
            op.parts.append(part)

    def _end_part(self, op: Op, mark: Any) -> None:
        """End of the last part; the collectives counted within it come after it."""
        part = op.parts[-1] if op.parts else op
        if part.end is None:
            part.end = mark
        if self._calls:
            self._put_calls(part)

    def _put_calls(self, part: Op) -> None:
        calls, self._calls = self._calls, {}
        part.end -= sum(of_kind.total for of_kind in calls.values())
        at = part.end
        for (kind, group), of_kind in calls.items():
            op = Op(part.program, kind, DEFAULT_CHUNK[kind], -1)
            op.start, op.end, op.group = at, at + of_kind.total, group
            op.transfer = of_kind.count * of_kind.fastest
            self._append(op)
            op.awaited = self._position
            at = op.end
