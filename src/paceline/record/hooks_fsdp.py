"""Hooks for FSDP2 (``torch.distributed.fsdp.fully_shard``), read at torch 2.13."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from paceline.record.passes import NoExchange, Passes, TailExchange, record_optimizers
from paceline.record.patching import argument, wrap_call
from paceline.record.recorder import Recorder
from paceline.record.steps import Step
from paceline.record.works import LowestRanks


def instrument(recorder: Recorder, model: Any) -> None:
    """Record a fully sharded model's passes, gathers, scatters, and the optimizer.

    On the host, every gather and scatter is recorded at its launch and at its wait, and passes
    consist of the parts between these. On a GPU, only the waits at both ends of a step are
    recorded. The first is for the root module's parameters, gathered before its forward. The last
    is for the rest of the exchange after the last gradient.

    Raises:
        ValueError: ``fully_shard`` was not applied to the module.
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
    if recorder.on_host:
        Passes(recorder, model, NoExchange())
        units = _Units(recorder)
        for number, group in enumerate(groups):
            wrap_call(group._all_gather_comm, units.gather(number))
            wrap_call(group._reduce_scatter_comm, units.scatter(number))
            recorder.wrap(group, "wait_for_unshard", units.waited(group))
        if any(group._is_hsdp for group in groups):
            _record_replicas(units)
    else:
        _record_ends(recorder, model, groups)
    record_optimizers(recorder)


class _Units:
    """Gathers and scatters of units: each blocks, or returns a work to wait for later."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._gathers: dict[int, Any] = {}  # operations of running works
        self._group = LowestRanks()
        self._unit = -1  # the unit scattered last

    def gather(self, unit: int) -> Callable[..., Any]:
        """Called instead of a unit's gather."""

        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            recorder = self._recorder
            if not recorder.is_profiling:
                return original(*args, **kwargs)
            group = self._group(argument(args, kwargs, 2, "group"))
            if not argument(args, kwargs, 3, "async_op"):
                with recorder.op("params-all-gather", part=unit, group=group):
                    return original(*args, **kwargs)
            op = recorder.launch("params-all-gather", part=unit, group=group)
            work = original(*args, **kwargs)
            self._gathers[id(work)] = op
            return work  # itself: FSDP asks for its type before it waits

        return call

    def scatter(self, unit: int) -> Callable[..., Any]:
        """Called instead of a unit's scatter, which blocks on the host."""

        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not self._recorder.is_profiling:
                return original(*args, **kwargs)
            self._unit = unit
            group = self._group(argument(args, kwargs, 2, "group"))
            with self._recorder.op("grads-reduce-scatter", part=unit, group=group):
                return original(*args, **kwargs)

        return call

    def reduce(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the all-reduce of scattered gradients over the replicas of HSDP."""

        def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._recorder.is_profiling or kwargs.get("group") is None:
                return original(tensor, *args, **kwargs)
            group = self._group(kwargs["group"])
            with self._recorder.op("separate-grads-all-reduce", part=self._unit, group=group):
                return original(tensor, *args, **kwargs)

        return all_reduce

    def waited(self, group: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Wraps ``wait_for_unshard``: waits for the work first, to time the wait."""

        def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
            def wait_for_unshard(*args: Any, **kwargs: Any) -> Any:
                result = group._all_gather_result
                work = None if result is None else result.all_gather_work
                op = self._gathers.pop(id(work), None)
                if op is not None:
                    op.track(work).wait()
                return function(*args, **kwargs)

            return wait_for_unshard

        return wrapper


class _Namespace:
    """A proxy of a module with some names replaced, for one module that uses it."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self.__paceline_wraps__ = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__paceline_wraps__, name)


def _record_replicas(units: _Units) -> None:
    """Record the all-reduce over replicas, which FSDP calls in ``torch.distributed``."""
    collectives: Any = import_module("torch.distributed.fsdp._fully_shard._fsdp_collectives")
    module: Any = getattr(collectives.dist, "__paceline_wraps__", collectives.dist)
    collectives.dist = _Namespace(module, all_reduce=units.reduce(module.all_reduce))


def _record_ends(recorder: Recorder, model: Any, groups: list[Any]) -> None:
    tail = TailExchange(recorder, lambda: all(group.reduce_grads for group in groups))
    gathers = _FirstGather(recorder, Passes(recorder, model, tail))
    for group in groups:
        recorder.wrap(group, "unshard", gathers.launched)
        recorder.wrap(group, "wait_for_unshard", gathers.waited)
        recorder.wrap(group, "post_backward", _told(tail.gradient))


class _FirstGather:
    """The gather of parameters before a step's first forward; gathers inside belong to it."""

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
