"""The program of one rank in one step: its launches and waits, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.record.steps import CODES, COMPUTES, DEFAULT_CHUNK, NOTHING, Nothing, Op

#: A step with more operations is dropped: it would fill the memory before it ends.
MAX_OPS = 20_000


class Clock(Protocol):
    """Source of the times of operations."""

    def mark(self) -> Any:
        """A time, to be resolved later."""

    def after(self, work: Any, code: int) -> Any:
        """The time when ``work`` is done; None: only its wait shows it."""


@dataclass(slots=True)
class _Calls:
    """Collectives within a part of a pass that are counted together; times in ns."""

    total: int = 0
    count: int = 0
    fastest: int = 0

    def add(self, took: int) -> None:
        self.fastest = min(self.fastest, took) if self.count else took
        self.total, self.count = self.total + took, self.count + 1


class Program:
    """Operations of a step as they are launched; computes are cut by launches and waits.

    Args:
        clock: the recorder's clock.
        fail: called with an error, which is not raised.
        overflow: called with :data:`MAX_OPS` if the step has more operations.

    Attributes:
        ops: in the order of their launches.
        open_op: the operation whose block runs now; None between blocks.
        is_over: whether the step has ended; then only the ends of its operations may change.
    """

    def __init__(
        self, clock: Clock, fail: Callable[[BaseException], None], overflow: Callable[[int], None]
    ) -> None:
        self.ops: list[Op] = []
        self.open_op: Op | None = None
        self.is_over = False
        self.mark, self.after, self.fail = clock.mark, clock.after, fail
        self._overflow = overflow
        self._under_way: list[Op] = []  # that the program is inside of, the innermost last
        self._calls: dict[tuple[int, int], _Calls] = {}  # kind and group -> of the running part
        self._position = -1  # of the last launch
        self._waited: Op | None = None  # for which the program waited last
        self._between: Any = None  # how long a compute ran between two waits that are one

    def close(self) -> None:
        """The step has ended, or is given up."""
        self.is_over, self.open_op, self.ops = True, None, []

    def new(self, kind: str, microbatch: int, chunk: int | None, part: int, group: int) -> Op:
        """Add an operation behind the others.

        Raises:
            ValueError: the kind is not known.
        """
        code = CODES.get(kind)
        if code is None:
            raise ValueError(f"no kind of operation is called {kind!r}; use {', '.join(CODES)}")
        op = Op(self, code, DEFAULT_CHUNK[code] if chunk is None else chunk, microbatch)
        op.part, op.group = part, group
        self._append(op)
        return op

    def launch(
        self, kind: str, microbatch: int, chunk: int | None, part: int, group: int
    ) -> Op | Nothing:
        """Add an operation that starts now and runs on."""
        try:
            if self._calls:
                self._end_calls()
            op = self.new(kind, microbatch, chunk, part, group)
            op.start = self.mark()
            if op.kind in COMPUTES:
                self.occupy(op)
            elif self._under_way:
                self._pause(op.start)
                self._resume(op.start)
        except Exception as error:
            self.fail(error)
            return NOTHING
        return op

    def add(self, kind: str, start: Any, end: Any, microbatch: int, chunk: int | None) -> None:
        """Add an operation between two marks that the program awaited at once."""
        op = self.new(kind, microbatch, chunk, -1, -1)
        op.start, op.end, op.awaited = start, end, self._position

    def occupy(self, op: Op) -> None:
        """An operation that blocks the program begins, at its start."""
        if self._under_way:
            self._pause(op.start)
        self._under_way.append(op)

    def release(self, op: Op, mark: Any) -> None:
        """It ends, at ``mark`` or at a better time from a hook; the outer operation goes on."""
        stack = self._under_way
        if self.is_over or op not in stack:
            op.end = mark if op.end is None else op.end
            return
        while stack.pop() is not op:  # left by an exception
            self._calls.clear()
        self._end_part(op, mark)
        if op.kind not in COMPUTES:
            op.awaited = self._position
        if stack:
            self._resume(mark)

    def wait_from(self, op: Op, mark: Any) -> None:
        """The program begins to wait for an operation that it launched."""
        if self.is_over:
            return
        self._between = self._between_waits(op, mark)
        if self._between is None:
            self._pause(mark)
        op.awaited = self._position
        for alone in op.batch.alone if op.batch is not None else ():
            alone.awaited = op.awaited

    def wait_to(self, op: Op, mark: Any) -> None:
        """The wait is over."""
        if not self.is_over:
            self._resume(mark if self._between is None else mark - self._between)
            self._waited = op

    def _between_waits(self, op: Op, mark: Any) -> Any:
        """Undo the part after the wait for another op of a batch; it goes on after this wait.

        Ranks may wait for a batch in unlike orders, and still run one program.

        Returns:
            duration of that part; None where there is none.
        """
        ops, waited = self.ops, self._waited
        if op.batch is None or waited is None or waited.batch is not op.batch:
            return None
        parts = self._under_way[-1].parts if self._under_way else None
        if not parts or parts[-1] is not ops[-1] or waited.awaited != self._position - 1:
            return None
        part = parts.pop()
        ops.pop()
        self._position -= 1
        return mark - part.start

    def called(self, kind: str, group: int, took_ns: int) -> None:
        """Count a collective within the running pass, on the host, with others like it."""
        if self._under_way and self._under_way[-1].kind in COMPUTES:
            self._calls.setdefault((CODES[kind], group), _Calls()).add(took_ns)

    def drop(self, op: Op) -> None:
        """Forget an operation: its call raised, so it will have no end."""
        dropped = {id(part) for part in (op, *(op.parts or ()))}
        self._calls.clear()
        self._under_way = [one for one in self._under_way if one is not op]
        self.ops[:] = [one for one in self.ops if id(one) not in dropped]

    def _append(self, op: Op) -> None:
        self._position += 1
        op.issued = self._position
        self.ops.append(op)
        if op.issued >= MAX_OPS and not self.is_over:
            self._overflow(MAX_OPS)

    def _pause(self, mark: Any) -> None:
        """The running part of a compute ends."""
        if self._under_way and self._under_way[-1].kind in COMPUTES:
            self._end_part(self._under_way[-1], mark)

    def _resume(self, mark: Any) -> None:
        """The paused compute goes on, in its next part."""
        if not self._under_way or self._under_way[-1].kind not in COMPUTES:
            return
        op = self._under_way[-1]
        part = Op(self, op.kind, op.chunk, op.microbatch)
        part.start = mark
        self._append(part)
        if op.parts is None:
            op.parts = [part]
        else:
            op.parts.append(part)

    def _end_part(self, op: Op, mark: Any) -> None:
        """The last part ends, and the collectives counted within it come behind it."""
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
            op = Op(self, kind, DEFAULT_CHUNK[kind], -1)
            op.start, op.end, op.group = at, at + of_kind.total, group
            op.transfer = of_kind.count * of_kind.fastest
            self._append(op)
            op.awaited = self._position
            at = op.end

    def _end_calls(self) -> None:
        """Later ops are launched behind the collectives that were counted so far."""
        mark = self.mark()
        self._pause(mark)
        self._resume(mark)
