"""Hooks for ``torch.nn.parallel.DistributedDataParallel``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from paceline.blockfile import LATE
from paceline.record.arrivals import Arrivals
from paceline.record.passes import Exchange, Passes, TailExchange, record_optimizers
from paceline.record.recorder import Recorder
from paceline.record.steps import BLOCKED_NS, CODES, Op

_REDUCTION = CODES["grads-reduce-scatter"]

#: Number of parameters that are watched for the last gradient. They are the first parameters, for
#: gradients arrive in reverse order of registration (DDP fills its buckets by the same assumption).
WATCHED = 16


def instrument(recorder: Recorder, model: Any) -> None:
    """Record a DDP model's forwards, backwards, exchange of gradients, and the optimizer.

    On the host the exchange is recorded bucket by bucket. On a GPU, only the part after the last
    gradient is recorded. Nothing in DDP is replaced: there is no communication hook, and numbers do
    not change.

    Raises:
        ValueError: it is not a DDP model.
    """
    if not hasattr(model, "require_backward_grad_sync"):
        raise ValueError(f"{type(model).__name__} is no DistributedDataParallel")
    if not recorder.is_new(model):
        return
    trained = [p for p in model.parameters() if p.requires_grad]
    Passes(recorder, model, _exchange(recorder, model, trained))
    record_optimizers(recorder)


def _exchange(recorder: Recorder, model: Any, trained: Sequence[Any]) -> Exchange:
    if recorder.on_host:
        return _Buckets(recorder, model, trained)
    tail = TailExchange(recorder, lambda: bool(model.require_backward_grad_sync))
    for parameter in islice(trained, WATCHED):
        parameter.register_post_accumulate_grad_hook(tail.gradient)
    return tail


class _Buckets:
    """The buckets of gradients that DDP reduces during the backward, one after the other.

    DDP starts a bucket when its gradients and those of earlier buckets are ready. It waits for all
    buckets after the backward. DDP does not report the end of a bucket. Only a blocking wait shows
    the end of the last one; all other ends are upper bounds.
    """

    def __init__(self, recorder: Recorder, model: Any, trained: Sequence[Any]) -> None:
        self._recorder, self._model, self._trained = recorder, model, trained
        self._of: list[int] = []  # [parameter] its bucket
        self._sizes: list[int] = []  # [bucket] its parameters
        self._final = False  # whether the buckets are final
        self._is_ready: list[bool] = []  # [bucket] whether its gradients are ready
        self._launched: list[Op] = []
        self._drained: Any = None
        self._active = False
        self._arrivals = Arrivals(trained, self._ready, recorder.fail)

    def begin(self) -> bool:
        """Start of a backward pass; DDP changes its buckets after its first steps."""
        self._active = bool(self._model.require_backward_grad_sync)
        self._launched = []
        if self._active:
            if not self._final:
                self._ask()
            self._is_ready = [False] * len(self._sizes)
            settled = self._final and not self._model.find_unused_parameters
            self._arrivals.begin(self._of, self._sizes, settled=settled)
        return self._active

    def _ask(self) -> None:
        """Ask DDP for its buckets.

        DDP rebuilds them once, and never if it looks for unused parameters
        (``Reducer::should_rebuild_buckets``, torch 2.13).
        """
        model = self._model
        logged = model._get_ddp_logging_data()
        self._sizes, self._of = buckets_of(logged, self._trained)
        stays = model.find_unused_parameters and not getattr(model, "static_graph", False)
        self._final = stays or bool(logged.get("rebuilt_per_bucket_param_indices"))

    def _ready(self, bucket: int) -> None:
        """Start buckets in order, as soon as their gradients are ready."""
        program = self._recorder.program
        if not self._active or program is None:
            return
        is_ready, launched = self._is_ready, self._launched
        is_ready[bucket] = True
        while (first := len(launched)) < len(is_ready) and is_ready[first]:
            launched.append(program.launch(_REDUCTION, part=first))

    def drain(self) -> None:
        """The last gradient is ready; DDP waits for its buckets."""
        if not self._active:
            return
        program, ops = self._recorder.program, self._launched
        if program is None:  # the step was given up
            self._launched = []
            return
        for bucket in range(len(ops), len(self._is_ready)):  # gradients of unused parameters
            ops.append(program.launch(_REDUCTION, part=bucket))
        self._drained = program.mark()
        if ops:
            program.wait_from(ops[-1], self._drained, ops)

    def end(self, backward: Op) -> None:
        """DDP has waited for all buckets."""
        if not self._active:
            return
        self._active = False
        self._arrivals.end()
        ops = self._launched
        if not ops:
            return
        end = self._recorder.mark()
        for op in ops:
            op.end, op.flags = end, op.flags | LATE
        last = ops[-1]
        if end - self._drained >= BLOCKED_NS:
            last.flags &= ~LATE
        last.program.wait_to(last, end)


def buckets_of(logged: dict[str, Any], trained: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Number of parameters per bucket, and [parameter] its bucket.

    Args:
        logged: DDP's own log (``_get_ddp_logging_data``, torch 2.13). Once DDP has rebuilt the
            buckets, it has their parameters, in the order of the gradients. Before that it has
            their sizes, filled in reverse order of registration.
        trained: parameters with gradients, as registered.

    Returns:
        all parameters in one bucket if the log has neither.
    """
    rebuilt = str(logged.get("rebuilt_per_bucket_param_indices", ""))
    buckets = [[int(n) for n in bucket.split()] for bucket in rebuilt.split(",") if bucket.strip()]
    if sorted(n for bucket in buckets for n in bucket) != list(range(len(trained))):
        buckets = _filled(str(logged.get("bucket_sizes", "")), trained)
    of = [0] * len(trained)
    for number, bucket in enumerate(buckets):
        for parameter in bucket:
            of[parameter] = number
    return [len(bucket) for bucket in buckets], of


def _filled(sizes: str, trained: Sequence[Any]) -> list[list[int]]:
    """Parameters, the last one first, in buckets of these sizes in bytes."""
    buckets: list[list[int]] = []
    rest = list(reversed(range(len(trained))))
    for text in sizes.split(","):
        left, bucket = int(text or 0), []
        while rest and left > 0:
            parameter = trained[rest[0]]
            left -= parameter.numel() * parameter.element_size()
            bucket.append(rest.pop(0))
        if left:
            break
        buckets.append(bucket)
    if rest or sum(map(len, buckets)) != len(trained):
        return [list(range(len(trained)))]
    return buckets
