"""Works inside a framework: their waits are recorded without wrapping the works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.blockfile import LATE
from paceline.record.recorder import Recorder
from paceline.record.steps import BLOCKED_NS, Batch, Op, Operation, Step

#: A wait that copies from a buffer of gloo takes at most COPYING_NS plus COPIED_NS per byte.
#: Measured for reduce-scatters, whose works never report completion: 2 ns per byte (1 MB), and at
#: least 0.1 ms.
COPIED_NS, COPYING_NS = 5, 200_000

_UNKNOWN: tuple[None, tuple[Op, ...], int] = (None, (), 0)


class Works:
    """Running works, and the program's waits for them.

    The framework gets its own works. Waits are recorded in the method of the works' class, so
    handles and type tests are not affected.

    Args:
        recorder: the recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        #: Running works by id: the work, its operations, ns of a wait that did not block.
        self._of: dict[int, tuple[Any, tuple[Op, ...], int]] = {}
        self._classes: set[type] = set()  # classes of works with a recorded wait
        self._batch: Batch | None = None  # of the works that a joined function waits for
        recorder.at_step_end(self._end_step)

    def watch(self, work: Any, *operations: Operation, copied: int = 0) -> None:
        """Let operations end with ``work``. On a GPU, a separate stream waits for it.

        Args:
            work: a work of ``torch.distributed``, or another object with ``wait``.
            operations: its operations; several if they share the work.
            copied: bytes that its wait may copy, even without blocking.
        """
        ops = tuple(op for op in operations if isinstance(op, Op))
        try:
            for op in ops:
                op.program.follow(op, self._recorder.after(work, op.kind))
            free_ns = COPYING_NS + copied * COPIED_NS if copied else BLOCKED_NS
            self._of[id(work)] = work, ops, free_ns
            if type(work) not in self._classes:
                self._classes.add(type(work))
                self._recorder.wrap(type(work), "wait", self._wait)
        except Exception as error:
            self._recorder.fail(error)

    def is_watched(self, work: Any) -> bool:
        """Whether a work of this step is running."""
        return id(work) in self._of

    def _wait(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a work's ``wait`` in its class, for torch's instances accept no attributes."""

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            _, ops, free_ns = self._of.pop(id(work), _UNKNOWN) if self._of else _UNKNOWN
            if not ops or not self._recorder.is_profiling:
                return function(work, *args, **kwargs)
            recorder = self._recorder
            first, before = ops[0], recorder.mark()
            if self._batch is not None:
                first.batch = self._batch
            first.program.wait_from(first, before, ops)
            over = _is_over(work)
            asked = recorder.mark()  # without our own time
            answer = function(work, *args, **kwargs)
            end = recorder.mark()
            if recorder.on_host:
                late = LATE if over or end - asked < free_ns else 0
                for op in ops:
                    op.end, op.flags = end, op.flags | late
            first.program.wait_to(first, end)
            return answer

        return wait

    def joined(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function that may wait for several works in any order, as one wait.

        Otherwise ranks with different orders of waits would have different programs.
        """

        def waits(*args: Any, **kwargs: Any) -> Any:
            self._batch = Batch()
            try:
                return function(*args, **kwargs)
            finally:
                self._batch = None

        return waits

    def _end_step(self, step: Step) -> None:
        """Forget works that the step never waited for: their ends are unknown."""
        for _, ops, _ in self._of.values():
            for op in ops:
                if op.end is None and op.program is step.program:
                    op.end, op.flags = step.end, op.flags | LATE
        self._of.clear()


def _is_over(work: Any) -> bool:
    """Whether a work reports completion: a wait may take long without blocking."""
    works = getattr(work, "works", None)  # of torch's coalescing manager
    if isinstance(works, list):
        return all(map(_is_over, works))
    asked = getattr(work, "is_completed", None)
    return bool(asked()) if asked is not None else False


class LowestRanks:
    """Numbers of process groups: their lowest ranks."""

    def __init__(self) -> None:
        self._of: dict[
            int, tuple[Any, int]
        ] = {}  # by id, with the group, so that its id is not reused

    def __call__(self, group: Any) -> int:
        """The lowest rank of a process group; None means the group of all ranks."""
        if id(group) not in self._of:
            import torch.distributed as dist

            ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
            self._of[id(group)] = group, min(ranks)
        return self._of[id(group)][1]
