"""Works that a framework keeps to itself: their waits are seen, but the works are not wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.blockfile import LATE
from paceline.record.recorder import Recorder
from paceline.record.steps import BLOCKED_NS, Batch, Op, Operation, Step

#: A wait that copies from a buffer of gloo takes at most COPYING_NS, plus COPIED_NS per byte.
#: Measured for reduce-scatters, whose works never report that they are complete: 2 ns per byte
#: (1 MB), and at least 0.1 ms.
COPIED_NS, COPYING_NS = 5, 200_000

_UNKNOWN: tuple[None, tuple[Op, ...], int] = (None, (), 0)


class Works:
    """Works under way, and the times when the program waits for them.

    The framework gets its own works. A wait is seen in the method of the works' class, so no handle
    notices, and no test of a work's type fails.

    Args:
        recorder: the recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        #: Works under way, by id: the work, its operations, ns of a wait that did not block.
        self._of: dict[int, tuple[Any, tuple[Op, ...], int]] = {}
        self._classes: set[type] = set()  # of works, whose wait is seen
        self._batch: Batch | None = None  # of the works that a joined function waits for
        recorder.at_step_end(self._end_step)

    def watch(self, work: Any, *operations: Operation, copied: int = 0) -> None:
        """Let operations end when ``work`` does. On a GPU a stream of ours waits for that.

        Args:
            work: a work of ``torch.distributed``, or anything with ``wait``.
            operations: its operations; several where a work stands for all of them.
            copied: bytes that its wait may copy, whether it blocks or not.
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
        """Whether a work of this step is under way."""
        return id(work) in self._of

    def _wait(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a work's ``wait``, in its class: torch's instances take no attribute."""

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
            asked = recorder.mark()  # what we do is no wait
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
        """Wraps a function that may wait for several works, in any order: that is one wait.

        Otherwise ranks that wait in unlike orders would run unlike programs.
        """

        def waits(*args: Any, **kwargs: Any) -> Any:
            self._batch = Batch()
            try:
                return function(*args, **kwargs)
            finally:
                self._batch = None

        return waits

    def _end_step(self, step: Step) -> None:
        """Forget works that the step never waited for: their end is not known."""
        for _, ops, _ in self._of.values():
            for op in ops:
                if op.end is None and op.program is step.program:
                    op.end, op.flags = step.end, op.flags | LATE
        self._of.clear()


def _is_over(work: Any) -> bool:
    """Whether a work reports that it is complete: a wait may take long without blocking."""
    works = getattr(work, "works", None)  # of torch's coalescing manager
    if isinstance(works, list):
        return all(map(_is_over, works))
    asked = getattr(work, "is_completed", None)
    return bool(asked()) if asked is not None else False


class LowestRanks:
    """Numbers of process groups: the lowest of their ranks."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, int]] = {}  # by id; the group, so that its id stays its own

    def __call__(self, group: Any) -> int:
        """The lowest rank of a process group; None means the group of all ranks."""
        if id(group) not in self._of:
            import torch.distributed as dist

            ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
            self._of[id(group)] = group, min(ranks)
        return self._of[id(group)][1]
