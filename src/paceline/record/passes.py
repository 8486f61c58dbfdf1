"""Forward and backward passes of a module, seen by hooks that several frameworks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from paceline.record.recorder import Recorder
from paceline.record.steps import CODES, Op, Step

_BACKWARD = CODES["backward-compute"]


class Exchange(Protocol):
    """How a framework exchanges the gradients of a backward pass."""

    def begin(self) -> None:
        """A backward pass begins."""

    def drain(self) -> None:
        """All gradients are there; the framework waits for running work."""

    def end(self, backward: Op) -> None:
        """The backward pass is over, with all waits."""


class Passes:
    """Records the forwards and backwards of one module.

    If the loop names a pass itself (``recorder.op``), that name counts.

    Args:
        recorder: the recorder.
        module: called once per microbatch.
        exchange: exchange of its gradients.
    """

    def __init__(self, recorder: Recorder, module: Any, exchange: Exchange) -> None:
        self._recorder, self._exchange = recorder, exchange
        self._step: Step | None = None
        self._microbatch = -1
        self._forward: Any = None
        import torch

        self._is_grad_enabled = torch.is_grad_enabled
        engine: Any = torch.autograd.Variable._execution_engine
        self._queue_callback = engine.queue_callback
        module.register_forward_pre_hook(self._before_forward)
        module.register_forward_hook(self._after_forward)

    @property
    def in_forward(self) -> bool:
        """Whether a forward runs, seen here or named by the loop."""
        recorder = self._recorder
        seen = self._forward is not None and self._step is recorder.running_step
        return seen or recorder.open_op is not None

    def _before_forward(self, *_: object) -> None:
        if self._recorder.is_profiling:
            guarded(self._recorder, self._begin_forward)

    def _begin_forward(self) -> None:
        if not self._is_grad_enabled():  # an evaluation, which no backward follows
            return
        recorder = self._recorder
        if recorder.running_step is not self._step:
            self._step, self._microbatch = recorder.running_step, 0
        elif self._forward is not None:  # it raised, and the loop tries again
            recorder.drop(self._forward)
        else:
            self._microbatch += 1
        named = recorder.open_op is not None
        self._forward = None if named else recorder.launch("forward-compute", self._microbatch)

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        if self._recorder.is_profiling and self._step is self._recorder.running_step:
            guarded(self._recorder, self._end_forward, output)

    def _end_forward(self, output: Any) -> None:
        if self._forward is not None:
            self._forward.done()
            self._forward = None
        result = _differentiable(output)
        if result is not None:
            microbatch = self._microbatch

            def begin(_: object) -> None:
                guarded(self._recorder, self._begin_backward, microbatch)

            result.register_hook(begin)

    def _begin_backward(self, microbatch: int) -> None:
        """The gradient of the module's result is there: the backward of the module begins."""
        recorder = self._recorder
        if not recorder.is_profiling:
            return
        op: Any = recorder.open_op
        named = isinstance(op, Op) and op.kind == _BACKWARD
        if not named:
            op = recorder.launch("backward-compute", microbatch)
        self._exchange.begin()
        queue = self._queue_callback

        def drain() -> None:
            guarded(recorder, self._exchange.drain)
            guarded(recorder, queue, end)

        def end() -> None:
            guarded(recorder, self._end_backward, op, named)

        # DDP and FSDP queue their waits in the same way, once the first gradients are there. This
        # callback comes before theirs, and the one that it queues comes behind them.
        queue(drain)

    def _end_backward(self, op: Any, named: bool) -> None:
        self._exchange.end(op)
        if not named:
            op.done()


def guarded(recorder: Recorder, function: Callable[..., None], *args: Any) -> None:
    """Call a function whose errors must not reach the training loop."""
    try:
        function(*args)
    except Exception as error:
        recorder.fail(error)


class TailExchange:
    """The part of the exchange behind the last gradient; an overlapping part belongs to the pass.

    It lasts from the last gradient, on the slowest rank, to the end of the backward call. A host
    sees no more of an exchange on a GPU's streams.

    Args:
        recorder: the recorder.
        synced: whether the running backward exchanges gradients.
    """

    def __init__(self, recorder: Recorder, synced: Callable[[], bool]) -> None:
        self._recorder, self._synced = recorder, synced
        self._last: Any = None

    def gradient(self, *_: object) -> None:
        """A gradient is complete; hooks call this."""
        if self._recorder.is_profiling:
            guarded(self._recorder, self._note)

    def _note(self) -> None:
        self._last = self._recorder.mark()

    def begin(self) -> None:
        """A backward pass begins."""
        self._last = None

    def drain(self) -> None:
        """Do nothing: only the last gradient counts."""

    def end(self, backward: Op) -> None:
        """Gradients were exchanged between the last gradient and now."""
        if self._last is not None and self._synced():
            end = self._recorder.mark()
            backward.end = self._last
            backward.program.release(backward, self._last)
            self._recorder.add("grads-reduce-scatter", self._last, end)


class NoExchange:
    """No exchange here: other hooks record it."""

    def begin(self) -> None:
        """Do nothing."""

    def drain(self) -> None:
        """Do nothing."""

    def end(self, backward: Op) -> None:
        """Do nothing."""


def _differentiable(output: Any) -> Any:
    """The first tensor in a module's output that takes a gradient."""
    if getattr(output, "requires_grad", False):
        return output
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return next((t for t in map(_differentiable, output) if t is not None), None)
    return None


def record_optimizers(recorder: Recorder) -> None:
    """Record the step of every torch optimizer; hooks are global, so once is enough."""
    if not recorder.is_new(record_optimizers):
        return
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    running: dict[int, Any] = {}

    def before(optimizer: object, *_: object) -> None:
        raised = running.pop(id(optimizer), None)
        if raised is not None:
            recorder.drop(raised)
        if recorder.is_profiling and recorder.open_op is None and not is_inner():
            running[id(optimizer)] = recorder.launch("optimizer")

    def is_inner() -> bool:
        """Whether another optimizer runs that consists of several (torchtitan's container)."""
        return any(isinstance(op, Op) and not op.program.is_over for op in running.values())

    def after(optimizer: object, *_: object) -> None:
        op = running.pop(id(optimizer), None)
        if op is not None:
            op.done()

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
