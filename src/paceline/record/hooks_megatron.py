"""Hooks for an installed Megatron-Core (read at 0.16.1): functions are replaced in place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from paceline.record.megatron_buckets import Buckets
from paceline.record.megatron_transfers import Transfers, first_of
from paceline.record.patching import argument
from paceline.record.place import megatron_place
from paceline.record.recorder import Recorder
from paceline.record.steps import Step
from paceline.record.works import Works

log = logging.getLogger("paceline.record")

Function = Callable[..., Any]

_SCHEDULES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_without_interleaving",
    "forward_backward_pipelining_with_interleaving",
)

_OPTIMIZERS = ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer")


def instrument(recorder: Recorder) -> None:
    """Record Megatron-Core: schedules, transfers, gathers, exchange of gradients, optimizer.

    On the host, every transfer and every gather and reduction of a group of buckets is recorded at
    its launch and its wait. On a GPU, transfers are recorded, and the exchange of gradients only as
    the wait at the end of a step.

    The log gets one line for each function that a version of Megatron lacks. Steps are calls of
    ``megatron.training.training.train_step`` if that is installed; otherwise the loop names them.

    Raises:
        ImportError: Megatron-Core is not installed.
    """
    import_module("megatron.core")
    recorder.locate(megatron_place())
    hooks = _Hooks(recorder)
    schedules = _module("megatron.core.pipeline_parallel.schedules")
    recorder.wrap(schedules, "forward_step", hooks.forward)
    recorder.wrap(schedules, "backward_step", hooks.backward)
    for name in _SCHEDULES:
        recorder.wrap(schedules, name, hooks.schedule)
    if recorder.on_host:
        _exchange(hooks)
    else:
        _exchange_on_gpu(hooks)
    finalize = _module("megatron.core.distributed.finalize_model_grads")
    recorder.wrap(
        finalize,
        "_allreduce_non_tensor_model_parallel_grads",
        hooks.collective("layernorm-grads-all-reduce"),
    )
    recorder.wrap(finalize, "_allreduce_word_embedding_grads", hooks.embedding)
    _optimizers(hooks)
    _training(hooks)


def _exchange(hooks: _Hooks) -> None:
    p2p = _module("megatron.core.pipeline_parallel.p2p_communication")
    hooks.recorder.wrap(p2p, "_batched_p2p_ops", hooks.transfers.host(in_order=True))
    hooks.recorder.wrap(p2p, "_p2p_ops", hooks.transfers.host(in_order=False))
    buffer = _module("megatron.core.distributed.param_and_grad_buffer")
    hooks.recorder.wrap(buffer, "_coalescing_manager", hooks.buckets.manager)
    groups = getattr(buffer, "_ParamAndGradBucketGroup", buffer)
    hooks.recorder.wrap(groups, "start_param_sync", hooks.buckets.gather)
    hooks.recorder.wrap(groups, "finish_param_sync", hooks.buckets.finish)
    hooks.recorder.wrap(groups, "start_grad_sync", hooks.buckets.reduce)


def _exchange_on_gpu(hooks: _Hooks) -> None:
    p2p = _module("megatron.core.pipeline_parallel.p2p_communication")
    # A method since 0.14, a function before.
    hooks.recorder.wrap(
        getattr(p2p, "P2PCommunicator", p2p), "_communicate", hooks.transfers.streams
    )
    ddp = _module("megatron.core.distributed.distributed_data_parallel")
    hooks.recorder.wrap(
        getattr(ddp, "DistributedDataParallel", ddp),
        "finish_grad_sync",
        hooks.collective("grads-reduce-scatter", by_chunk=True),
    )


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        log.warning("%s cannot be imported, it is not recorded: %s", name, error)
        return _Absent(name)


class _Absent:
    """Placeholder for a missing module; its functions are reported as missing."""

    def __init__(self, name: str) -> None:
        self.__name__ = name


def _optimizers(hooks: _Hooks) -> None:
    optimizer = _module("megatron.core.optimizer.optimizer")
    clip = hooks.collective("optimizer-clip-main-grad")
    hooks.recorder.wrap(getattr(optimizer, "MegatronOptimizer", optimizer), "clip_grad_norm", clip)
    chained = getattr(optimizer, "ChainedOptimizer", None)
    if chained is not None:
        hooks.recorder.wrap(chained, "get_grad_norm", clip)
    update = hooks.collective("optimizer")
    for name in _OPTIMIZERS:
        hooks.recorder.wrap(getattr(optimizer, name, optimizer), "step_with_ready_grads", update)
    distributed = _module("megatron.core.optimizer.distrib_optimizer")
    hooks.recorder.wrap(
        getattr(distributed, "DistributedOptimizer", distributed), "step_with_ready_grads", update
    )


def _training(hooks: _Hooks) -> None:
    try:
        training = import_module("megatron.training.training")
    except ImportError:
        return  # Megatron-Core alone, with the user's loop
    hooks.recorder.wrap(training, "train_step", hooks.train_step)


class _Hooks:
    """The wrappers, and their state for the running step."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        works = Works(recorder)
        self.transfers, self.buckets = Transfers(recorder, works), Buckets(recorder, works)
        self._step: Step | None = None
        self._forwards: dict[int, tuple[int, int]] = {}
        self._backwards = self._chunks = self._forwarded = 0
        self._trained = 0

    def _refresh(self) -> None:
        if self.recorder.running_step is not self._step:
            self._step = self.recorder.running_step
            self._forwards.clear()
            self._backwards = self._chunks = self._forwarded = 0

    def schedule(self, function: Function) -> Function:
        """Wraps a schedule; its arguments have the chunks of the model."""

        def forward_backward(*args: Any, **kwargs: Any) -> Any:
            if self.recorder.is_profiling:
                self._refresh()
                model = kwargs.get("model")
                for chunk, module in enumerate(model if isinstance(model, list) else [model]):
                    self.buckets.learn(chunk, module)
            return function(*args, **kwargs)

        return forward_backward

    def forward(self, function: Function) -> Function:
        """Wraps ``forward_step``; its arguments have microbatch and chunk."""

        def forward_step(*args: Any, **kwargs: Any) -> Any:
            if not self.recorder.is_profiling:
                return function(*args, **kwargs)
            self._refresh()
            microbatch, chunk = kwargs.get("current_microbatch"), kwargs.get("vp_stage") or 0
            if microbatch is None:
                microbatch = self._forwarded
            self._forwarded += 1
            self.buckets.learn(chunk, argument(args, kwargs, 2, "model"))
            self.transfers.taken(argument(args, kwargs, 4, "input_tensor"), microbatch, chunk)
            with self.recorder.op("forward-compute", microbatch, chunk):
                answer = function(*args, **kwargs)
            output = answer[0] if isinstance(answer, tuple) else answer
            self._forwards[id(first_of(output))] = microbatch, chunk
            self.transfers.made(output, microbatch, chunk)
            return answer

        return forward_step

    def backward(self, function: Function) -> Function:
        """Wraps ``backward_step``; the output in its arguments identifies its forward."""

        def backward_step(input_tensor: Any, output_tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.recorder.is_profiling:
                return function(input_tensor, output_tensor, *args, **kwargs)
            self._refresh()
            unknown = self._backwards, 0
            microbatch, chunk = self._forwards.pop(id(first_of(output_tensor)), unknown)
            self._backwards += 1
            gradient = argument(args, kwargs, 0, "output_tensor_grad")
            self.transfers.taken(gradient, microbatch, chunk)
            with self.recorder.op("backward-compute", microbatch, chunk):
                answer = function(input_tensor, output_tensor, *args, **kwargs)
            self.transfers.made(answer, microbatch, chunk)
            return answer

        return backward_step

    def collective(self, kind: str, *, by_chunk: bool = False) -> Callable[[Function], Function]:
        """Wraps a blocking function; inside another operation it is part of that operation."""

        def wrapper(function: Function) -> Function:
            def call(*args: Any, **kwargs: Any) -> Any:
                recorder = self.recorder
                if not recorder.is_profiling or recorder.open_op is not None:
                    return function(*args, **kwargs)
                self._refresh()
                chunk = self._chunks if by_chunk else None
                self._chunks += by_chunk
                with recorder.op(kind, chunk=chunk):
                    return function(*args, **kwargs)

            return call

        return wrapper

    def embedding(self, function: Function) -> Function:
        """Wraps the exchange of tied embeddings, which does nothing without them."""
        recorded = self.collective("embedding-grads-all-reduce")(function)

        def allreduce(model: Any, *args: Any, **kwargs: Any) -> Any:
            return (recorded if _ties_embeddings(model) else function)(model, *args, **kwargs)

        return allreduce

    def train_step(self, function: Function) -> Function:
        """Wraps ``train_step`` of Megatron's own loop: a step."""

        def step(*args: Any, **kwargs: Any) -> Any:
            number = kwargs.get("iteration")
            if number is None:
                number = _iteration(self._trained)
            self._trained = number + 1
            with self.recorder.step(number):
                return function(*args, **kwargs)

        return step


def _ties_embeddings(model: Any) -> bool:
    """Whether this is the first or last stage and these share the word embeddings."""
    place = megatron_place()
    if place.get("pp", 1) < 2 or place.get("pp_rank") not in (0, place["pp"] - 1):
        return False
    chunk = model[0] if isinstance(model, list | tuple) else model
    while not hasattr(chunk, "share_embeddings_and_output_weights"):
        if not hasattr(chunk, "module"):
            return False
        chunk = chunk.module
    return bool(chunk.share_embeddings_and_output_weights)


def _iteration(following: int) -> int:
    """The number of the step: Megatron's if known, otherwise one more than the last."""
    try:
        args = import_module("megatron.training.global_vars").get_args()
        return int(getattr(args, "curr_iteration", following))
    except Exception:
        return following
