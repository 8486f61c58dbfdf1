"""Forward and backward passes of a module, by hooks that several frameworks share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from paceline.record.program import Program
from paceline.record.recorder import Recorder
from paceline.record.steps import CODES, Op

_FORWARD, _BACKWARD = CODES["forward-compute"], CODES["backward-compute"]
_OPTIMIZER = CODES["optimizer"]


class Exchange(Protocol):
    """Interface for a framework's exchange of the gradients of a backward pass."""

    def begin(self) -> bool:
        """Start of a backward pass; returns whether to call :meth:`drain`."""

    def drain(self) -> None:
        """All gradients are ready; the framework waits for running work."""

    def end(self, backward: Op) -> None:
        """End of the backward pass and of all waits."""


class Passes:
    """Records the forwards and backwards of one module.

    If the loop names a pass itself (``recorder.op``), that name is used. The hooks call few
    functions: each runs once per pass, so its code is no longer in the processor's caches.

    Args:
        recorder: the recorder.
        module: called once per microbatch.
        exchange: the exchange of its gradients.
    """

    def __init__(self, recorder: Recorder, module: Any, exchange: Exchange) -> None:
        self._recorder, self._exchange = recorder, exchange
        self._program: Program | None = None
        self._microbatch = -1
        self._forward: Op | None = None
        import torch

        self._is_grad_enabled, self._tensor = torch.is_grad_enabled, torch.Tensor
        engine: Any = torch.autograd.Variable._execution_engine
        self._queue_callback = engine.queue_callback
        module.register_forward_pre_hook(self._before_forward)
        module.register_forward_hook(self._after_forward)

    @property
    def in_forward(self) -> bool:
        """Whether a forward is running, found here or named by the loop."""
        program = self._recorder.program
        if program is None:
            return False
        return program.open_op is not None or (
            self._forward is not None and self._program is program
        )

    def _before_forward(self, *_: object) -> None:
        program = self._recorder.program
        if program is None:
            return
        try:
            if not self._is_grad_enabled():  # an evaluation, without a backward
                return
            if program is not self._program:
                self._program, self._microbatch = program, 0
            elif self._forward is not None:  # it raised, and the loop repeats it
                self._recorder.drop(self._forward)
            else:
                self._microbatch += 1
            self._forward = None
            if program.open_op is None:
                self._forward = program.launch(_FORWARD, self._microbatch)
        except Exception as error:
            self._recorder.fail(error)

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        program = self._recorder.program
        if program is None or program is not self._program:
            return
        try:
            forward, self._forward = self._forward, None
            if forward is not None:
                program.release(forward, program.mark())
            result = _differentiable(output)
            if result is not None:
                self._on_gradient(result, partial(self._begin_backward, self._microbatch))
        except Exception as error:
            self._recorder.fail(error)

    def _on_gradient(self, tensor: Any, hook: Callable[[object], None]) -> None:
        """The equivalent of ``tensor.register_hook`` (torch 2.13) without a handle.

        The handle costs more than the hook: an import, weak references, an object.
        """
        register = getattr(tensor.grad_fn, "_register_hook_dict", None)
        if (
            register is None
            or tensor._backward_hooks is not None
            or type(tensor) is not self._tensor
        ):
            tensor.register_hook(hook)
            return
        # An OrderedDict, for the handle of a later hook needs a weak reference to it.
        tensor._backward_hooks = OrderedDict(paceline=hook)
        register(tensor)

    def _begin_backward(self, microbatch: int, _: object) -> None:
        """The gradient of the module's result is ready, so the module's backward begins."""
        program = self._recorder.program
        if program is None:
            return
        try:
            op = program.open_op
            named = op is not None and op.kind == _BACKWARD
            if op is None or not named:
                op = program.launch(_BACKWARD, microbatch)
            end = partial(self._end_backward, op, named)
            # DDP and FSDP queue their waits in the same way once the first gradients are ready.
            # This callback runs before theirs, and the callback that it queues runs after theirs.
            drains = self._exchange.begin()
            self._queue_callback(partial(self._drain, end) if drains else end)
        except Exception as error:
            self._recorder.fail(error)

    def _drain(self, end: Callable[[], None]) -> None:
        try:
            self._exchange.drain()
            self._queue_callback(end)
        except Exception as error:
            self._recorder.fail(error)

    def _end_backward(self, op: Op, named: bool) -> None:
        try:
            self._exchange.end(op)
            if not named:
                program = op.program
                program.release(op, program.mark())
        except Exception as error:
            self._recorder.fail(error)


def guarded(recorder: Recorder, function: Callable[..., None], *args: Any) -> None:
    """Call a function; its errors must not reach the training loop."""
    try:
        function(*args)
    except Exception as error:
        recorder.fail(error)


class TailExchange:
    """The part of the exchange after the last gradient; earlier parts belong to the pass.

    It lasts from the last gradient of the slowest rank to the end of the backward call. The host
    cannot see more of an exchange on a GPU's streams.

    Args:
        recorder: the recorder.
        synced: whether the running backward exchanges gradients.
    """

    def __init__(self, recorder: Recorder, synced: Callable[[], bool]) -> None:
        self._recorder, self._synced = recorder, synced
        self._last: Any = None

    def gradient(self, *_: object) -> None:
        """Called by hooks when a gradient is complete."""
        if self._recorder.is_profiling:
            guarded(self._recorder, self._note)

    def _note(self) -> None:
        self._last = self._recorder.mark()

    def begin(self) -> bool:
        """A backward pass begins."""
        self._last = None
        return True

    def drain(self) -> None:
        """Do nothing: only the last gradient matters."""

    def end(self, backward: Op) -> None:
        """Record the exchange from the last gradient to now."""
        if self._last is not None and self._synced():
            end = self._recorder.mark()
            backward.end = self._last
            backward.program.release(backward, self._last)
            self._recorder.add("grads-reduce-scatter", self._last, end)


class NoExchange:
    """No exchange here: other hooks record it."""

    def begin(self) -> bool:
        """Do nothing."""
        return True

    def drain(self) -> None:
        """Do nothing."""

    def end(self, backward: Op) -> None:
        """Do nothing."""


def _differentiable(output: Any) -> Any:
    """The first tensor in a module's output that requires a gradient."""
    if getattr(output, "requires_grad", False):
        return output
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return next((t for t in map(_differentiable, output) if t is not None), None)
    return None


def record_optimizers(recorder: Recorder) -> None:
    """Record the steps of all torch optimizers by global hooks, installed once."""
    if not recorder.is_new(record_optimizers):
        return
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    running: dict[int, Op] = {}

    def before(optimizer: object, *_: object) -> None:
        raised = running.pop(id(optimizer), None) if running else None
        if raised is not None:
            recorder.drop(raised)
        program = recorder.program
        if program is not None and program.open_op is None and not (running and is_inner()):
            running[id(optimizer)] = program.launch(_OPTIMIZER, chunk=-1)

    def is_inner() -> bool:
        """Whether an optimizer that contains others is running (torchtitan's container)."""
        return any(not op.program.is_over for op in running.values())

    def after(optimizer: object, *_: object) -> None:
        op = running.pop(id(optimizer), None) if running else None
        if op is not None:
            op.program.release(op, op.program.mark())

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
