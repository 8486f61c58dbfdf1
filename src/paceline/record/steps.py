"""Running steps and operations: the only objects that the training thread makes."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from paceline.blockfile import KINDS, LATE

#: A shorter wait did not block, for waking a thread alone takes longer.
BLOCKED_NS = 20_000

CODES = {label: code for code, label in enumerate(KINDS)}

#: Kinds that belong to no chunk of the model.
_NO_CHUNK = frozenset(
    CODES[label]
    for label in (
        "gc",
        "layernorm-grads-all-reduce",
        "embedding-grads-all-reduce",
        "separate-grads-all-reduce",
        "optimizer-clip-main-grad",
        "optimizer",
    )
)
DEFAULT_CHUNK = tuple(-1 if code in _NO_CHUNK else 0 for code in range(len(KINDS)))

#: Kinds that a launch or wait inside cuts into parts.
COMPUTES = frozenset(
    CODES[label]
    for label in (
        "forward-compute",
        "backward-compute",
        "gc",
        "layernorm-grads-all-reduce",
        "optimizer",
        "weight-compute",
    )
)

SENDS = frozenset((CODES["forward-send"], CODES["backward-send"]))


class Operation(Protocol):
    """One operation: a context for blocking work, or launched and later done."""

    def __enter__(self) -> Operation:
        """Begin now."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End now."""

    def done(self, *, late: bool = False) -> None:
        """It is complete now; with ``late``, it may have been complete before."""

    def track(self, work: Any) -> Any:
        """The given ``torch.distributed`` work, which then reports its end."""


class Keeper(Protocol):
    """The interface of a program to its operations."""

    ops: list[Op]
    open_op: Op | None
    is_over: bool
    size: int

    def enter(self, op: Op) -> None:
        """The block of an operation begins now."""

    def release(self, op: Op, mark: Any) -> None:
        """End of the block."""

    def wait_from(self, op: Op, mark: Any, others: Sequence[Op] = ()) -> None:
        """The program begins to wait for an operation that it launched; ``others`` end with it."""

    def wait_to(self, op: Op, mark: Any) -> None:
        """The wait is over."""

    def follow(self, op: Op, end: Any) -> None:
        """An operation ends with a work: at a stream's mark, or None: its wait tells, or a peer."""

    def drop(self, op: Op) -> None:
        """Forget an operation."""

    def mark(self) -> Any:
        """A time, to be resolved later."""

    def after(self, work: Any, code: int) -> Any:
        """The time when ``work`` is done; None: only its wait shows it."""

    def replay(self) -> None:
        """Update :attr:`ops`."""

    def forget(self) -> None:
        """Drop the references to the operations, which have one to their program."""

    def fail(self, error: BaseException) -> None:
        """Switch off."""


class Stepper(Protocol):
    """The interface of a recorder to its steps."""

    def begin(self, step: Step) -> None:
        """A step begins."""

    def finish(self, step: Step, *, whole: bool) -> None:
        """A step ends."""


class Batch:
    """Operations that are launched or awaited together.

    Attributes:
        alone: operations without a transfer on this rank; they get the wait for the others.
    """

    __slots__ = ("alone",)

    def __init__(self) -> None:
        self.alone: list[Op] = []


class Op:
    """A recorded operation; see :class:`Operation`."""

    __slots__ = (
        *("awaited", "batch", "chunk", "end", "flags", "group", "issued", "kind", "left_out"),
        *("microbatch", "outer", "part", "parts", "program", "start", "transfer"),
    )

    def __init__(
        self,
        program: Keeper,
        kind: int,
        chunk: int,
        microbatch: int,
        part: int = -1,
        group: int = -1,
    ) -> None:
        self.program = program
        self.kind, self.chunk, self.microbatch = kind, chunk, microbatch
        self.part, self.group = part, group
        self.flags = 0
        self.issued = self.awaited = self.transfer = -1
        self.start: Any = None
        self.end: Any = None
        self.outer: Op | None = None
        self.parts: list[Op] | None = None  # further parts of a cut compute
        self.left_out: list[tuple[Any, Any]] | None = None  # waits for data: marks of begin and end
        self.batch: Batch | None = None  # successive waits for operations of one batch count as one

    def __enter__(self) -> Op:
        program = self.program
        self.outer, program.open_op = program.open_op, self
        try:
            program.enter(self)
        except Exception as error:
            program.fail(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        program = self.program
        program.open_op = self.outer
        try:
            program.release(self, program.mark())
        except Exception as error:
            program.fail(error)

    def done(self, *, late: bool = False) -> None:
        """It is complete now; with ``late``, it may have been complete before."""
        program = self.program
        try:
            mark = program.mark()
            if self.kind in COMPUTES:
                program.release(self, mark)
                return
            self.end = mark
            self.flags |= LATE if late else 0
            program.wait_from(self, mark)
            program.wait_to(self, mark)
        except Exception as error:
            program.fail(error)

    def track(self, work: Any) -> Any:
        """The given work, which then reports its end.

        On a GPU, a stream waits for it. On the host, only its ``wait`` shows the end. A send has no
        visible end: for gloo it is complete when the bytes are sent, and only the peer's receive
        shows the end.
        """
        try:
            self.program.follow(self, self.program.after(work, self.kind))
            return _Tracked(self, work, on_device=self.end is not None)
        except Exception as error:
            self.program.fail(error)
            return work


class _Tracked:
    """A work with a recorded ``wait``, timed on the host; an operation may have several."""

    def __init__(self, op: Op, work: Any, *, on_device: bool) -> None:
        self._op, self._work, self._on_device = op, work, on_device

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        op, program = self._op, self._op.program
        before = program.mark()
        program.wait_from(op, before)
        asked = (
            before if self._on_device else program.mark()
        )  # Paceline's own time is not part of the wait
        answer = self._work.wait(*args, **kwargs)
        after = program.mark()
        program.wait_to(op, after)
        if self._on_device:
            return answer
        if after - asked >= BLOCKED_NS:
            op.end = after
            op.flags &= ~LATE
        elif op.end is None:
            op.end = after
            op.flags |= LATE
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class Nothing:
    """An operation of an unrecorded step."""

    __slots__ = ()

    def __enter__(self) -> Nothing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def done(self, *, late: bool = False) -> None:
        """Do nothing."""

    def track(self, work: Any) -> Any:
        """The given work, unchanged."""
        return work


NOTHING = Nothing()


class Step:
    """A training step: its time is always kept, its operations only if profiled."""

    __slots__ = ("_ops", "data_ns", "end", "number", "program", "recorder", "size", "start")

    def __init__(self, recorder: Stepper, number: int) -> None:
        self.recorder, self.number = recorder, number
        self.program: Keeper | None = None
        self.size = 1
        self.data_ns = -1  # wait for the data loader since the step before; -1 = not measured
        self.start: Any = None
        self.end: Any = None

    def profile(self, program: Keeper) -> None:
        """Keep the operations of a program."""
        self.program, self._ops = program, program.ops

    def give_up(self) -> None:
        """Keep only the time."""
        program, self.program = self.program, None
        if program is not None:
            program.forget()

    @property
    def ops(self) -> list[Op] | None:
        """Its operations so far; None if only its time is kept."""
        if self.program is None:
            return None
        self.program.replay()
        return self._ops

    def __enter__(self) -> Step:
        self.recorder.begin(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.recorder.finish(self, whole=kind is None)
