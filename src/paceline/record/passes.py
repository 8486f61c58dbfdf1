"""Forward and backward passes of a module, seen by hooks: what DDP and FSDP hooks share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from paceline.record.recorder import Recorder
from paceline.record.steps import CODES, Op, Step

_BACKWARD = CODES["backward-compute"]


class Passes:
    """Records the forwards and backwards of one module and the exchange of its gradients.

    The gradients' exchange overlaps with the backward; what is recorded of it is the part behind
    the last gradient: from there, on the slowest rank, to the end of the backward call. Where the
    loop names a pass itself (``recorder.op``), its name stands.

    Args:
        recorder: the recorder.
        module: called once per microbatch.
        synced: whether the backward that runs exchanges gradients.
    """

    def __init__(self, recorder: Recorder, module: Any, synced: Callable[[], bool]) -> None:
        self._recorder, self._synced = recorder, synced
        self._step: Step | None = None
        self._microbatch = -1
        self._forward: Any = None
        self._last_gradient: Any = None
        module.register_forward_pre_hook(self._before_forward)
        module.register_forward_hook(self._after_forward)

    @property
    def in_forward(self) -> bool:
        """Whether a forward runs, seen here or named by the loop."""
        recorder = self._recorder
        seen = self._forward is not None and self._step is recorder.running_step
        return seen or recorder.open_op is not None

    def gradient(self, *_: object) -> None:
        """A gradient is complete; to be called from hooks."""
        if self._recorder.is_profiling:
            self._guarded(self._note_gradient)

    def _note_gradient(self) -> None:
        self._last_gradient = self._recorder.mark()

    def _guarded(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:
            self._recorder.fail(error)

    def _before_forward(self, *_: object) -> None:
        if self._recorder.is_profiling:
            self._guarded(self._begin_forward)

    def _begin_forward(self) -> None:
        import torch

        if not torch.is_grad_enabled():  # an evaluation, which no backward follows
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
            self._guarded(self._end_forward, output)

    def _end_forward(self, output: Any) -> None:
        if self._forward is not None:
            self._forward.done()
            self._forward = None
        result = _differentiable(output)
        if result is not None:
            microbatch = self._microbatch
            result.register_hook(lambda _: self._guarded(self._begin_backward, microbatch))

    def _begin_backward(self, microbatch: int) -> None:
        """The gradient of the module's result is there: the backward of the module begins."""
        import torch

        recorder = self._recorder
        if not recorder.is_profiling:
            return
        op: Any = recorder.open_op
        if not isinstance(op, Op) or op.kind != _BACKWARD:
            op = recorder.launch("backward-compute", microbatch)
        self._last_gradient = None
        engine: Any = torch.autograd.Variable._execution_engine
        # Twice, to come behind what DDP and FSDP queue in the same way to wait for the exchange.
        end = functools.partial(self._guarded, self._end_backward, op)
        engine.queue_callback(lambda: self._guarded(engine.queue_callback, end))

    def _end_backward(self, op: Any) -> None:
        recorder = self._recorder
        end = recorder.mark()
        last = self._last_gradient
        if last is not None and self._synced():
            op.end = last
            recorder.add("grads-reduce-scatter", last, end)
        else:
            op.end = end


def _differentiable(output: Any) -> Any:
    """The first tensor in a module's output that takes a gradient."""
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return next((t for t in map(_differentiable, output) if t is not None), None)
    return output if getattr(output, "requires_grad", False) else None


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
        if recorder.is_profiling and recorder.open_op is None:
            running[id(optimizer)] = recorder.launch("optimizer")

    def after(optimizer: object, *_: object) -> None:
        op = running.pop(id(optimizer), None)
        if op is not None:
            op.done()

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
