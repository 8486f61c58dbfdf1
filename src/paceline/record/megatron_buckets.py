"""Buckets of Megatron-Core's DDP: gathers of parameters, reductions of gradients.

Read at 0.16.1 (``distributed/param_and_grad_buffer.py``). Collectives of a group of buckets run in
torch's coalescing manager, which launches them at its end. The manager is the handle that the
program waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from paceline.record.recorder import Recorder
from paceline.record.steps import Operation
from paceline.record.works import LowestRanks, Works

Function = Callable[..., Any]

#: Kinds of a call's collectives. With several instances of the distributed optimizer, scattered
#: gradients are also reduced over the instances.
_GATHER = ("params-all-gather",)
_REDUCE = ("grads-reduce-scatter", "separate-grads-all-reduce")


class Buckets:
    """Collectives of groups of buckets, each with its launch and its wait."""

    def __init__(self, recorder: Recorder, works: Works) -> None:
        self._recorder, self._works = recorder, works
        self._places: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
        self._number = LowestRanks()
        self._kinds: list[str] = []  # kinds of collectives that the running call will launch
        self._place = (0, -1)  # chunk and number of its buckets
        self._copied = 0  # bytes of the reduced tensor, which gloo's wait copies
        self._launched: Operation | None = None  # the last launched operations

    def learn(self, chunk: int, module: Any) -> None:
        """Number the groups of buckets of a model chunk, wrapped or not."""
        while not hasattr(module, "bucket_groups"):
            module = getattr(module, "module", None)
            if module is None:
                return
        groups = [*module.bucket_groups, *getattr(module, "expert_parallel_bucket_groups", ())]
        if groups and groups[0] not in self._places:
            self._places.update({group: (chunk, part) for part, group in enumerate(groups)})

    def gather(self, function: Function) -> Function:
        """Wraps ``start_param_sync`` of a group of buckets."""
        return self._calling(function, _GATHER)

    def reduce(self, function: Function) -> Function:
        """Wraps ``start_grad_sync`` of a group of buckets."""
        call = self._calling(function, _REDUCE)

        def start_grad_sync(buckets: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._recorder.is_profiling:
                return function(buckets, *args, **kwargs)
            self._launched, self._copied = None, _bytes_of(buckets)
            try:
                answer = call(buckets, *args, **kwargs)
            finally:
                copied, self._copied = self._copied, 0
            work, op = getattr(buckets, "grad_reduce_handle", None), self._launched
            # With fp32 accumulation, the handle is not the manager.
            if work is not None and op is not None and not self._works.is_watched(work):
                self._works.watch(work, op, copied=copied)
            return answer

        return start_grad_sync

    def _calling(self, function: Function, kinds: tuple[str, ...]) -> Function:
        def call(buckets: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._recorder.is_profiling:
                return function(buckets, *args, **kwargs)
            self._kinds, self._place = list(kinds), self._places.get(buckets, (0, -1))
            try:
                return function(buckets, *args, **kwargs)
            finally:
                self._kinds = []

        return call

    def manager(self, function: Function) -> Function:
        """Wraps the coalescing manager that the module of the buckets uses."""

        @contextmanager
        def coalescing_manager(
            group: Any = None, device: Any = None, async_ops: bool = False
        ) -> Iterator[Any]:
            if not self._kinds or not self._recorder.is_profiling:
                with function(group, device, async_ops) as manager:
                    yield manager
                return
            kind, (chunk, part) = self._kinds.pop(0), self._place
            numbers = {"chunk": chunk, "part": part, "group": self._group(group)}
            if not async_ops:
                with self._recorder.op(kind, **numbers), function(group, device) as manager:
                    yield manager
                return
            op = self._launched = self._recorder.launch(kind, **numbers)
            with function(group, device, async_ops) as manager:
                yield manager
            self._works.watch(manager, op, copied=self._copied)

        return coalescing_manager

    def _group(self, group: Any) -> int:
        """The number of a process group; -1 if it has all ranks with the stage's weights."""
        try:
            state = import_module("megatron.core.parallel_state")
            usual = state.get_data_parallel_world_size(with_context_parallel=True)
            return -1 if group.size() == usual else self._number(group)
        except Exception as error:
            self._recorder.fail(error)
            return -1

    def finish(self, function: Function) -> Function:
        """Wraps ``finish_param_sync``; a gather launched in another step is recorded at its wait.

        Megatron may launch gathers in the optimizer's step, for the next step's forward.
        """

        def finish_param_sync(buckets: Any, *args: Any, **kwargs: Any) -> Any:
            recorder, work = self._recorder, getattr(buckets, "param_gather_handle", None)
            if not recorder.is_profiling or work is None or self._works.is_watched(work):
                return function(buckets, *args, **kwargs)
            chunk, part = self._places.get(buckets, (0, -1))
            group = self._group(buckets.intra_distributed_optimizer_instance_group)
            with recorder.op(_GATHER[0], chunk=chunk, part=part, group=group):
                work.wait()
            return function(buckets, *args, **kwargs)

        return finish_param_sync


def _bytes_of(buckets: Any) -> int:
    """Bytes of a group's gradients."""
    gradients = [getattr(bucket, "grad_data", None) for bucket in getattr(buckets, "buckets", ())]
    return sum(int(getattr(gradient, "nbytes", 0)) for gradient in gradients)
