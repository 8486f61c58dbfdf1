"""Sends and receives of Megatron-Core's pipelines (``p2p_communication.py``, read at 0.16.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.record.recorder import Recorder
from paceline.record.steps import Op, Operation, Step
from paceline.record.works import Works

Function = Callable[..., Any]

#: Transfers of ``_batched_p2p_ops`` and ``_p2p_ops``, in the order of the list of
#: ``_batched_p2p_ops``: argument, request's name in ``_p2p_ops``, kind.
_REQUESTS = (
    ("tensor_send_prev", "send_prev", "backward-send"),
    ("tensor_recv_prev", "recv_prev", "forward-recv"),
    ("tensor_send_next", "send_next", "forward-send"),
    ("tensor_recv_next", "recv_next", "backward-recv"),
)

#: The transfers of ``_communicate``.
_ARGUMENTS = (
    ("tensor_send_next", "send_next", "forward-send"),
    ("tensor_send_prev", "send_prev", "backward-send"),
    ("recv_prev", "recv_prev", "forward-recv"),
    ("recv_next", "recv_next", "backward-recv"),
)


class Transfers:
    """Sends and receives, each with its launch and its wait.

    A send belongs to the pass that produced its tensor, a receive to the pass that uses it.
    """

    def __init__(self, recorder: Recorder, works: Works) -> None:
        self._recorder, self._works = recorder, works
        self._made: dict[int, tuple[int, int]] = {}  # id of a tensor -> microbatch, chunk
        self._received: dict[int, Op] = {}  # id of a tensor -> its receive
        recorder.at_step_end(self._clear)

    def _clear(self, step: Step) -> None:
        """Forget ids, for the next step may reuse them for other tensors."""
        self._made.clear()
        self._received.clear()

    def made(self, tensors: Any, microbatch: int, chunk: int) -> None:
        """Note the tensors that a pass returns, alone or in lists: they may be sent."""
        tensor = first_of(tensors)
        if tensor is not None:
            self._made[id(tensor)] = microbatch, chunk

    def taken(self, tensors: Any, microbatch: int, chunk: int) -> None:
        """Note the tensor that a pass takes: it may have been received."""
        op = self._received.pop(id(first_of(tensors)), None)
        if op is not None:
            op.microbatch, op.chunk = microbatch, chunk

    def host(self, *, in_order: bool) -> Callable[[Function], Function]:
        """Wraps ``_batched_p2p_ops`` (``in_order``: its list has an order) or ``_p2p_ops``.

        Either ``_communicate`` waits for their results, or the schedule does later.
        """

        def wrapper(function: Function) -> Function:
            def p2p_ops(*args: Any, **kwargs: Any) -> Any:
                if not self._recorder.is_profiling:
                    return function(*args, **kwargs)
                ops = {
                    request: self._launch(kind, kwargs[argument])
                    for argument, request, kind in _REQUESTS
                    if kwargs.get(argument) is not None
                }
                requests = function(*args, **kwargs)
                self._watch(requests, ops, in_order=in_order)
                return requests

            return p2p_ops

        return wrapper

    def _launch(self, kind: str, tensor: Any) -> Operation:
        op = self._recorder.launch(kind, *self._made.pop(id(tensor), (-1, 0)))
        if isinstance(op, Op) and kind.endswith("recv"):
            self._received[id(tensor)] = op
        return op

    def _watch(self, requests: Any, ops: dict[str, Operation], *, in_order: bool) -> None:
        if isinstance(requests, dict):
            for name in requests.keys() & ops.keys():
                self._works.watch(requests[name], ops[name])
        elif in_order and len(requests) == len(ops):
            for work, op in zip(requests, ops.values(), strict=True):
                self._works.watch(work, op)
        else:  # one work for all of them
            for work in requests:
                self._works.watch(work, *ops.values())

    def streams(self, function: Function) -> Function:
        """Wraps ``_communicate``: on a GPU, where streams wait for each other."""

        def communicate(*args: Any, **kwargs: Any) -> Any:
            recorder = self._recorder
            if not recorder.is_profiling:
                return function(*args, **kwargs)
            ops = {
                request: recorder.launch(kind)
                for argument, request, kind in _ARGUMENTS
                if kwargs.get(argument) is not None and kwargs[argument] is not False
            }
            answer = function(*args, **kwargs)
            requests = answer[2] if isinstance(answer, tuple) and len(answer) > 2 else None
            if requests:
                self._watch(requests, ops, in_order=False)
            else:  # the wait is over
                for op in ops.values():
                    op.done()
            return answer

        return communicate


def first_of(tensors: Any) -> Any:
    """The tensor itself, or the first tensor in lists."""
    while isinstance(tensors, list | tuple) and tensors:
        tensors = tensors[0]
    return tensors
