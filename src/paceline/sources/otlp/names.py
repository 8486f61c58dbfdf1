"""The names that Megatron-LM and NeMo Lens give their spans and attributes.

Held against Megatron-LM core 0.20.0 (commit d98e8a6) and NeMo Lens 0.2.0 (commit b85578f). The
files of Megatron-LM are ``megatron/training/training.py``,
``core/pipeline_parallel/{schedules,p2p_communication}.py`` and
``core/distributed/distributed_data_parallel.py``. Those of Lens are
``src/nemo/lens/{providers,config}.py``. Megatron's own pages name the step
``megatron.train_step`` and the optimizer ``megatron.optimizer_step``; its source does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from paceline.errors import TraceError
from paceline.sources.fields import optional_whole
from paceline.trace import OpKind

STEP = "megatron.train.iteration"
STEPS = frozenset({STEP, "megatron.train_step"})
#: Spans around all microbatches of a step; only these have the number of microbatches.
PASSES = frozenset({"megatron.train.iteration.forward_backward", "megatron.forward_backward"})

ITERATION, MICROBATCH, MICROBATCHES = (
    "megatron.iteration",
    "megatron.microbatch_id",
    "num_microbatches",
)
RANK, INSTANCE = "dl.rank", "service.instance.id"
#: Lens ended the span when the job stopped: its end is not that of the work.
TRUNCATED = "nemo.span.truncated"

#: The launch of a synchronisation. Another span shows its end; together they are one operation.
SYNC_START = 100

_KINDS: Mapping[str, int] = {
    "megatron.microbatch.forward": OpKind.FORWARD_COMPUTE,
    "megatron.microbatch.backward": OpKind.BACKWARD_COMPUTE,
    "megatron.p2p.send_forward": OpKind.FORWARD_SEND,
    "megatron.p2p.recv_forward": OpKind.FORWARD_RECV,
    "megatron.p2p.send_backward": OpKind.BACKWARD_SEND,
    "megatron.p2p.recv_backward": OpKind.BACKWARD_RECV,
    "megatron.grad_sync.start": SYNC_START,
    "megatron.grad_sync.finish": OpKind.GRADS_REDUCE_SCATTER,
    "megatron.train.iteration.optimizer": OpKind.OPTIMIZER,
    "megatron.optimizer_step": OpKind.OPTIMIZER,
}

#: Lens writes ``{run}-rank{N}``; users may set a bare number.
_INSTANCE = re.compile(r"(?:.*[^a-z])?(?:rank[ _:=-]*)(\d{1,9})|(\d{1,9})", re.IGNORECASE)


def kind_of(name: str) -> int | None:
    """The kind of operation of a span of this name, or SYNC_START; None for other spans.

    ``megatron.p2p.*`` are four single calls. The fused calls of the steady state, such as
    ``send_forward_recv_backward``, have no span.
    """
    return _KINDS.get(name)


def is_used(name: str) -> bool:
    """Whether a span of this name describes part of a step."""
    return name in STEPS or name in PASSES or name in _KINDS


def rank_of(resource: Mapping[str, Any], place: str) -> int:
    """The rank of a process, by the attributes of its resource.

    Lens always sets ``dl.rank``; its ``service.instance.id`` is ``{run}-rank{N}``.

    Raises:
        TraceError: the attributes do not have it.
    """
    rank = optional_whole(resource.get(RANK))
    if rank is not None:
        return rank
    match = _INSTANCE.fullmatch(str(resource.get(INSTANCE, "")).strip())
    rank = optional_whole(match[1] or match[2]) if match else None
    if rank is None:
        text = repr(resource[INSTANCE])[:40] if INSTANCE in resource else "missing"
        raise TraceError(
            f"{place}: the resource has no {RANK}, and its {INSTANCE}, which could end in the "
            f"rank, is {text}; set one for every process (OTEL_RESOURCE_ATTRIBUTES)"
        )
    return rank
