"""Hooks for the collectives within passes: tensor, context and expert parallelism.

Read at torch 2.13: ``torch.distributed`` (eager calls, as in Megatron) and
``torch.ops._c10d_functional`` (DTensor, ``_functional_collectives``). The program waits for results
of the latter at their first use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from paceline.record.exchanges import Link, meetings
from paceline.record.passes import NoExchange, Passes, record_optimizers
from paceline.record.patching import argument
from paceline.record.recorder import Recorder
from paceline.record.steps import Batch, Op, Operation, Step

#: Purpose of a group -> the kind of its collectives.
KINDS = {"tensor": "tensor-comm", "context": "context-comm", "expert": "expert-comm"}

#: Functions of ``torch.distributed`` with a ``group``. ``isend`` and ``irecv`` are not replaced,
#: for ``P2POp`` requires these functions themselves.
_EAGER = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "broadcast"),
    *("reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
    *("_all_gather_base", "_reduce_scatter_base"),
)

#: Operators whose last argument names the group.
_FUNCTIONAL = (
    *("all_reduce", "all_reduce_", "all_gather_into_tensor", "reduce_scatter_tensor"),
    *("all_to_all_single", "broadcast"),
)


def instrument(
    recorder: Recorder, groups: Mapping[str, Any], model: Any = None, *, each: bool = True
) -> None:
    """Record the collectives of some process groups, and the passes of a plain module.

    Args:
        recorder: the recorder.
        groups: purpose (a key of :data:`KINDS`) -> a process group, or a mesh of one dimension.
        model: its forwards and backwards are recorded, too; None: other hooks do that.
        each: every collective is an operation. Otherwise collectives of a pass that the program
            awaits at once are counted together.

    Raises:
        ValueError: a group has another purpose, or the recorder times a GPU's streams.
    """
    if groups and not recorder.on_host:
        raise ValueError("collectives within passes are recorded on the host only")
    unknown = [name for name in groups if name not in KINDS]
    if unknown:
        raise ValueError(f"groups are for {', '.join(KINDS)}, not {', '.join(unknown)}")
    if model is not None and recorder.is_new(model):
        Passes(recorder, model, NoExchange())
        record_optimizers(recorder)
    if groups:
        _Collectives(recorder, groups, each=each).install()


class _Collectives:
    """Collectives of known groups, as operations."""

    def __init__(self, recorder: Recorder, groups: Mapping[str, Any], *, each: bool) -> None:
        import torch.distributed as dist

        self._recorder, self._each = recorder, each
        self._of: dict[Any, tuple[str, int]] = {}  # id or name of a group -> kind, lowest rank
        for name, group in groups.items():
            process_group = group.get_group() if hasattr(group, "get_group") else group
            entry = (KINDS[name], min(dist.get_process_group_ranks(process_group)))
            self._of[id(process_group)] = entry
            self._of[str(process_group.group_name)] = entry
        self._groups = list(groups.values())  # kept so that ids are not reused
        self._results: dict[int, Any] = {}  # memory of a result -> the operation that fills it
        #: For counted collectives: memory of a result -> (kind and group, ns that its launch took).
        self._calls: dict[int, tuple[tuple[str, int], int]] = {}
        self._step: Step | None = None
        self._inside = False

    def install(self) -> None:
        """Replace torch's functions by wrappers."""
        import torch
        import torch.distributed as dist

        for name in _EAGER:
            if hasattr(dist, name):
                self._recorder.wrap(dist, name, self._eager)
        self._recorder.wrap(dist, "batch_isend_irecv", self._ring)
        functional = torch.ops._c10d_functional
        for name in _FUNCTIONAL:
            _replace(functional, name, self._functional)
        _replace(functional, "wait_tensor", self._wait)

    def _kind(self, group: Any) -> tuple[str, int] | None:
        """Kind and number of a group's collectives; None for unknown groups."""
        if self._inside or not self._recorder.is_profiling:
            return None
        if group is None:
            import torch.distributed as dist

            group = dist.group.WORLD
        return self._of.get(group if isinstance(group, str) else id(group))

    def _eager(self, function: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(function).parameters)
        of_group = names.index("group")
        of_async = names.index("async_op") if "async_op" in names else len(names)

        def collective(*args: Any, **kwargs: Any) -> Any:
            known = self._kind(argument(args, kwargs, of_group, "group"))
            if known is None:
                return function(*args, **kwargs)
            kind, group = known
            if not argument(args, kwargs, of_async, "async_op"):
                if not self._each:
                    return self._counted(known, function, *args, **kwargs)
                with self._recorder.op(kind, group=group):
                    return self._quietly(function, *args, **kwargs)
            op = self._recorder.launch(kind, group=group)
            work = self._quietly(function, *args, **kwargs)
            return work if work is None else op.track(work)

        return collective

    def _ring(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A turn of a ring as pairs of ranks, if all its transfers are known."""

        def batch_isend_irecv(p2p_op_list: Any) -> Any:
            known = self._kind(p2p_op_list[0].group) if p2p_op_list else None
            if known is None:
                return function(p2p_op_list)
            kind, group = known
            ops = self._transfers(kind, p2p_op_list)
            if ops is None:
                ops = [self._recorder.launch(kind, group=group)] * len(p2p_op_list)
            works = self._quietly(function, p2p_op_list)
            return [op.track(work) for op, work in zip(ops, works, strict=True)]

        return batch_isend_irecv

    def _transfers(self, kind: str, p2p_op_list: Any) -> list[Operation] | None:
        """An operation per transfer, in the order of the list; None if they are one operation."""
        import torch.distributed as dist

        ranks = dist.get_process_group_ranks(p2p_op_list[0].group)
        place = ranks.index(dist.get_rank())
        links = [
            Link(place, p2p.group_peer) if p2p.op is dist.isend else Link(p2p.group_peer, place)
            for p2p in p2p_op_list
        ]
        by_rank = meetings(links, place, len(ranks))
        if by_rank is None:
            return None
        ops: dict[int, Operation] = {}
        batch = Batch()
        for transfer, group in by_rank:
            op = self._recorder.launch(kind, group=ranks[group])
            if transfer is not None:
                ops[transfer] = op
            if isinstance(op, Op) and transfer is None:
                op.end = op.start
                batch.alone.append(op)
            elif isinstance(op, Op):
                op.batch = batch
        return [ops[number] for number in range(len(links))]

    def _functional(self, function: Any) -> Callable[..., Any]:
        def collective(*args: Any, **kwargs: Any) -> Any:
            known = self._kind(kwargs.get("group_name", args[-1] if args else ""))
            if known is None:
                return function(*args, **kwargs)
            kind, group = known
            if self._step is not self._recorder.running_step:
                self._step = self._recorder.running_step
                self._results.clear()  # never waited for
                self._calls.clear()
            if not self._each:
                begin = self._recorder.mark()
                result = self._quietly(function, *args, **kwargs)
                self._calls[_memory(result)] = known, self._recorder.mark() - begin
                return result
            op = self._recorder.launch(kind, group=group)
            result = self._quietly(function, *args, **kwargs)
            self._results[_memory(result)] = op
            return result

        return collective

    def _wait(self, function: Any) -> Callable[..., Any]:
        def wait_tensor(tensor: Any) -> Any:
            call = self._calls.pop(_memory(tensor), None) if self._calls else None
            if call is not None and self._recorder.is_profiling:
                return self._counted(call[0], function, tensor, already=call[1])
            op = self._results.pop(_memory(tensor), None) if self._results else None
            if op is None or not self._recorder.is_profiling:
                return function(tensor)
            return op.track(_Result(function, tensor)).wait()

        return wait_tensor

    def _counted(
        self,
        of: tuple[str, int],
        function: Callable[..., Any],
        *args: Any,
        already: int = 0,
        **kwargs: Any,
    ) -> Any:
        """Call the function and count its time; ``already`` ns is the time of its launch."""
        begin = self._recorder.mark()
        result = self._quietly(function, *args, **kwargs)
        self._recorder.called(*of, self._recorder.mark() - begin + already)
        return result

    def _quietly(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function without recording its inner collectives."""
        self._inside = True
        try:
            return function(*args, **kwargs)
        finally:
            self._inside = False


class _Result:
    """A pending result in the form of a work."""

    def __init__(self, wait: Callable[[Any], Any], tensor: Any) -> None:
        self._wait, self._tensor = wait, tensor

    def wait(self) -> Any:
        """The result, complete."""
        return self._wait(self._tensor)


class _Operator:
    """An operator of torch whose calls are recorded; otherwise it behaves like the operator."""

    def __init__(self, operator: Any, call: Callable[..., Any]) -> None:
        self.__paceline_wraps__ = operator
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__paceline_wraps__, name)


def _replace(namespace: Any, name: str, wrapper: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace ``namespace.name``, if it exists, by a recorded operator."""
    try:
        operator = getattr(namespace, name)
    except AttributeError:
        return
    operator = getattr(operator, "__paceline_wraps__", operator)
    setattr(namespace, name, _Operator(operator, wrapper(operator)))


def _memory(tensor: Any) -> int:
    """The address of a tensor's values, which all tensors of a result share."""
    elem = getattr(tensor, "elem", tensor)
    pointer: int = elem.untyped_storage().data_ptr()
    return pointer
