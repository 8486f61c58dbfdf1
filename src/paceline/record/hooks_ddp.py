"""Hooks for ``torch.nn.parallel.DistributedDataParallel``."""

from __future__ import annotations

from itertools import islice
from typing import Any

from paceline.record.passes import Passes, record_optimizers
from paceline.record.recorder import Recorder

#: Parameters that are watched for the last gradient: the first ones, for gradients come in reverse
#: order of registration (DDP fills its buckets by the same assumption).
WATCHED = 16


def instrument(recorder: Recorder, model: Any) -> None:
    """Record a DDP model's forwards, backwards, exchange of gradients, and the optimizer.

    Nothing of DDP is replaced: no communication hook, no other numbers.

    Raises:
        ValueError: it is no DDP model.
    """
    if not hasattr(model, "require_backward_grad_sync"):
        raise ValueError(f"{type(model).__name__} is no DistributedDataParallel")
    if not recorder.is_new(model):
        return
    passes = Passes(recorder, model, lambda: bool(model.require_backward_grad_sync))
    trained = (p for p in model.parameters() if p.requires_grad)
    for parameter in islice(trained, WATCHED):
        parameter.register_post_accumulate_grad_hook(passes.gradient)
    record_optimizers(recorder)
