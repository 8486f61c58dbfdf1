"""Hooks for DeepSpeed's ZeRO engine, read at DeepSpeed 0.19.8."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from paceline.record.deepspeed_parts import Parts
from paceline.record.passes import Passes
from paceline.record.patching import Wrapper, argument
from paceline.record.recorder import Recorder
from paceline.record.steps import Op
from paceline.record.works import LowestRanks, Works

#: Methods of ``deepspeed.comm.torch.TorchBackend`` with which ZeRO gathers parameters -> index of
#: their argument ``group``, which ``async_op`` follows. Their signatures are hidden (by
#: ``stage_on_cpu`` there). Quantised and coalesced gathers call these methods.
GATHERS = {"all_gather_into_tensor": 2, "all_gather": 2, "all_gather_coalesced": 2}

#: Methods with which it reduces: ``stage_1_and_2.py`` ``allreduce_bucket`` (all_reduce or reduce),
#: ``stage3.py`` ``__avg_scatter_grads`` (reduce_scatter_tensor; ZeRO++: all_to_all_single).
REDUCES = {
    "all_reduce": 2,
    "reduce": 3,
    "reduce_scatter_tensor": 3,
    "reduce_scatter": 3,
    "all_to_all_single": 4,
}


def instrument(recorder: Recorder, engine: Any) -> None:
    """Record a DeepSpeed engine's passes, gathers, reductions and optimizer, ZeRO 0 to 3.

    On the host, every collective of ``deepspeed.comm`` within a pass or the optimizer is recorded
    at its launch and its wait. On a GPU, the hooks record passes, the exchange after the last
    gradient, and the optimizer, which contain the collectives.

    Raises:
        ValueError: it is not an engine, or has more than data parallelism.
    """
    if not hasattr(engine, "_take_model_step") or not hasattr(engine, "_backward_epilogue"):
        raise ValueError(f"{type(engine).__name__} is no DeepSpeed engine (0.19.8 is known)")
    _need_data_parallelism_only(engine)
    if not recorder.is_new(engine):
        return
    parts = Parts(recorder)
    backward = _Backward(recorder, engine, parts)
    passes = Passes(recorder, engine, backward)
    recorder.wrap(engine, "_backward_epilogue", backward.epilogue)
    optimizer = _Optimizer(recorder, parts)
    recorder.wrap(engine, "_take_model_step", optimizer.step)
    if recorder.on_host:
        phase = _Phase(engine, passes, backward, optimizer, parts)
        recorder.wrap(engine, "allreduce_gradients", phase.reduction)
        collectives = _Collectives(recorder, phase)
        collectives.install(import_module("deepspeed.comm.comm").cdb)
        offload = getattr(engine.optimizer, "parameter_offload", None)
        if offload is not None:
            recorder.wrap(offload.get_param_coordinator(), "fetch_sub_module", collectives.fetch)
        for parameter in engine.parameters():
            if hasattr(parameter, "all_gather_coalesced"):
                recorder.wrap(parameter, "all_gather_coalesced", parts.gather)


def _need_data_parallelism_only(engine: Any) -> None:
    """Refuse an engine with further collectives, which would look like data parallelism."""
    mpu = engine.mpu
    of_model = getattr(mpu, "get_model_parallel_world_size", None)
    beside = {
        "its pipelines": engine.pipeline_parallelism,
        "experts": engine.has_moe_layers,
        "sequence parallelism": engine.sequence_parallel_size > 1,
        "tensor parallelism": engine.autotp_size() > 1 or (of_model is not None and of_model() > 1),
        "ZenFlow": getattr(engine, "zenflow", False),
        "DeepCompile": engine.is_deepcompile_enabled(),
    }
    names = [name for name, has in beside.items() if has]
    if names:
        raise ValueError(f"of DeepSpeed, {' and '.join(names)} cannot be recorded yet")


class _Backward:
    """The backward of a microbatch, and DeepSpeed's epilogue after it.

    ``engine.backward`` calls ``_backward_epilogue`` after autograd. A plain ``loss.backward()``
    runs it in autograd's last callbacks, so inside the backward of :class:`Passes`.

    Attributes:
        active: whether gradients may be reduced now.
    """

    def __init__(self, recorder: Recorder, engine: Any, parts: Parts) -> None:
        self._recorder, self._engine, self._parts = recorder, engine, parts
        self._ended: Op | None = None
        self._tail: tuple[Any, Any] | None = None
        self.active = False

    def begin(self) -> bool:
        """A backward pass begins."""
        self.active, self._ended, self._tail = True, None, None
        self._parts.restart()
        return True

    def drain(self) -> None:
        """Do nothing: DeepSpeed waits in its epilogue."""

    def end(self, backward: Op) -> None:
        """Autograd is done."""
        self._ended = backward
        if self._tail is not None and not self._recorder.on_host and self._synced():
            backward.end = self._tail[0]
            backward.program.release(backward, self._tail[0])
            self._recorder.add("grads-reduce-scatter", *self._tail)

    def _synced(self) -> bool:
        """Whether the backward exchanges gradients (``engine.allreduce_gradients``)."""
        engine = self._engine
        if not engine.enable_backward_allreduce or engine.inside_no_sync_ctxt:
            return False
        each = engine.zero_optimization_partition_gradients()
        return bool(each or engine.is_gradient_accumulation_boundary())

    def epilogue(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps ``_backward_epilogue``, which reduces the remaining gradients."""

        def backward_epilogue(*args: Any, **kwargs: Any) -> Any:
            recorder = self._recorder
            if not recorder.is_profiling or not self.active:
                return function(*args, **kwargs)
            start = recorder.mark()
            try:
                if not recorder.on_host or self._ended is None or recorder.open_op is not None:
                    return function(*args, **kwargs)
                op = recorder.launch("backward-compute", self._ended.microbatch)
                try:
                    return function(*args, **kwargs)
                finally:
                    op.done()
            finally:
                self.active = False
                self._close(start)

        return backward_epilogue

    def _close(self, start: Any) -> None:
        """The epilogue that began at ``start`` is over."""
        recorder = self._recorder
        self._tail = start, recorder.mark()
        if self._ended is not None and not recorder.on_host and self._synced():
            recorder.add("grads-reduce-scatter", *self._tail)


class _Optimizer:
    """``engine._take_model_step``: the norm, the update, ZeRO's gather of the updated parameters.

    Attributes:
        active: whether it runs.
    """

    def __init__(self, recorder: Recorder, parts: Parts) -> None:
        self._recorder, self._parts = recorder, parts
        self.active = False

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps ``_take_model_step``, which the engine calls at accumulation boundaries."""

        def take_model_step(*args: Any, **kwargs: Any) -> Any:
            recorder = self._recorder
            self.active = True
            self._parts.restart()
            try:
                if not recorder.is_profiling or recorder.open_op is not None:
                    return function(*args, **kwargs)
                with recorder.op("optimizer"):
                    return function(*args, **kwargs)
            finally:
                self.active = False

        return take_model_step


class _Phase:
    """Purpose of a collective, from the engine's state at its launch."""

    def __init__(
        self,
        engine: Any,
        passes: Passes,
        backward: _Backward,
        optimizer: _Optimizer,
        parts: Parts,
    ) -> None:
        self._passes, self._backward, self._optimizer = passes, backward, optimizer
        self._parts = parts
        self._gathers_in_passes = bool(engine.zero_optimization_partition_weights())
        self._reducing = False

    def reduction(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps ``allreduce_gradients``; if the loop owns the boundary, ``step()`` calls it."""

        def allreduce_gradients(*args: Any, **kwargs: Any) -> Any:
            self._reducing = True
            try:
                return function(*args, **kwargs)
            finally:
                self._reducing = False

        return allreduce_gradients

    def kind(self, gathers: bool) -> str | None:
        """The kind of a collective at its launch; None: it belongs to the user's loop."""
        if self._optimizer.active:
            # has_overflow and scaled_global_norm reduce one number over all ranks.
            return "params-all-gather" if gathers else "optimizer-clip-main-grad"
        if not gathers:
            return "grads-reduce-scatter" if self._backward.active or self._reducing else None
        in_pass = self._backward.active or self._passes.in_forward
        return "params-all-gather" if in_pass and self._gathers_in_passes else None

    def part(self, kind: str) -> int:
        """The number of the part that a collective of a kind communicates now."""
        if kind == "optimizer-clip-main-grad":
            return -1
        in_pass = kind == "params-all-gather" and not self._optimizer.active
        return self._parts.of_parameters() if in_pass else self._parts.following()


class _Collectives:
    """Collectives of ``deepspeed.comm``: each blocks, or returns a work to wait for."""

    def __init__(self, recorder: Recorder, phase: _Phase) -> None:
        self._recorder, self._phase = recorder, phase
        self._works = Works(recorder)
        self._number = LowestRanks()
        self._inside = False  # of a collective, which may call others
        #: Wraps ``fetch_sub_module``, which takes the parameters to wait for from a ``set``.
        self.fetch = self._works.joined

    def install(self, backend: Any) -> None:
        """Replace the backend's methods by wrappers."""
        for names, gathers in ((GATHERS, True), (REDUCES, False)):
            for name, place in names.items():
                if hasattr(backend, name):
                    self._recorder.wrap(backend, name, self._wrapper(gathers, place))

    def _wrapper(self, gathers: bool, place: int) -> Wrapper:
        def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
            def collective(*args: Any, **kwargs: Any) -> Any:
                recorder = self._recorder
                if self._inside or not recorder.is_profiling:
                    return function(*args, **kwargs)
                kind = self._phase.kind(gathers)
                if kind is None:
                    return function(*args, **kwargs)
                try:
                    # The norm is one number of all ranks, for any group.
                    is_norm = kind == "optimizer-clip-main-grad"
                    group = -1 if is_norm else self._number(argument(args, kwargs, place, "group"))
                    part = self._phase.part(kind)
                except Exception as error:
                    recorder.fail(error)
                    return function(*args, **kwargs)
                if not argument(args, kwargs, place + 1, "async_op"):
                    with recorder.op(kind, part=part, group=group):
                        return self._alone(function, *args, **kwargs)
                op = recorder.launch(kind, part=part, group=group)
                work = self._alone(function, *args, **kwargs)
                self._works.watch(work, op)
                return work

            return collective

        return wrapper

    def _alone(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._inside = True
        try:
            return function(*args, **kwargs)
        finally:
            self._inside = False
