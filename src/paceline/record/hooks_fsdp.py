"""Hooks for FSDP2 (``torch.distributed.fsdp.fully_shard``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.record.passes import Passes, record_optimizers
from paceline.record.patching import wrap
from paceline.record.recorder import Recorder
from paceline.record.steps import Step


def instrument(recorder: Recorder, model: Any) -> None:
    """Record a fully sharded model's passes, its first gather and last scatter, the optimizer.

    FSDP gathers and scatters layer by layer inside the passes; what is recorded is what a step
    waits for at its two ends: the parameters of the root module, gathered before its forward, and
    what is left of the exchange behind the last gradient.

    Raises:
        ValueError: it is no module that ``fully_shard`` was applied to.
    """
    groups = [
        group
        for module in model.modules()
        if hasattr(module, "_get_fsdp_state")
        for group in module._get_fsdp_state()._fsdp_param_groups
    ]
    if not hasattr(model, "_get_fsdp_state") or not groups:
        raise ValueError(f"{type(model).__name__} is not fully sharded (FSDP1 is not known here)")
    if not recorder.is_new(model):
        return
    passes = Passes(recorder, model, lambda: all(group.reduce_grads for group in groups))
    gathers = _FirstGather(recorder, passes)
    for group in groups:
        wrap(group, "unshard", gathers.launched)
        wrap(group, "wait_for_unshard", gathers.waited)
        wrap(group, "post_backward", _told(passes.gradient))
    record_optimizers(recorder)


class _FirstGather:
    """The gather of parameters before a step's first forward; one inside it is part of it."""

    def __init__(self, recorder: Recorder, passes: Passes) -> None:
        self._recorder, self._passes = recorder, passes
        self._step: Step | None = None
        self._op: Any = None

    def launched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps ``unshard``."""

        def unshard(*args: Any, **kwargs: Any) -> Any:
            recorder = self._recorder
            if recorder.is_profiling and recorder.running_step is not self._step:
                self._step = recorder.running_step
                if not self._passes.in_forward:
                    self._op = recorder.launch("params-all-gather")
            return function(*args, **kwargs)

        return unshard

    def waited(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps ``wait_for_unshard``."""

        def wait_for_unshard(*args: Any, **kwargs: Any) -> Any:
            answer = function(*args, **kwargs)
            if self._op is not None:
                op, self._op = self._op, None
                op.done()
            return answer

        return wait_for_unshard


def _told(note: Callable[[], None]) -> Any:
    """Wraps ``post_backward``, which is called when a group's gradients are complete."""

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def post_backward(*args: Any, **kwargs: Any) -> Any:
            note()
            return function(*args, **kwargs)

        return post_backward

    return wrapper
