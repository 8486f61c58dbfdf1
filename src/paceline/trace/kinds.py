"""The kinds of operation in a training step (Table 1 of the what-if paper)."""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import Final


class OpKind(IntEnum):
    """One kind of operation; ``label`` is its name in trace files and results.

    The numbers are an internal order: ops of a worker are stored by kind, then by start. Files have
    only labels. With split backwards (zero bubble, DualPipe), ``BACKWARD_COMPUTE`` is the gradient
    of the inputs and ``WEIGHT_COMPUTE`` the gradient of the weights.
    """

    FORWARD_COMPUTE = 0
    BACKWARD_COMPUTE = 1
    FORWARD_SEND = 2
    FORWARD_RECV = 3
    BACKWARD_SEND = 4
    BACKWARD_RECV = 5
    PARAMS_ALL_GATHER = 6
    GRADS_REDUCE_SCATTER = 7
    GC = 8
    LAYERNORM_GRADS_ALL_REDUCE = 9
    EMBEDDING_GRADS_ALL_REDUCE = 10
    SEPARATE_GRADS_ALL_REDUCE = 11
    OPTIMIZER_CLIP_MAIN_GRAD = 12
    OPTIMIZER = 13
    TENSOR_COMM = 14
    EXPERT_COMM = 15
    CONTEXT_COMM = 16
    WEIGHT_COMPUTE = 17

    @property
    def label(self) -> str:
        """The kind's name in files: ``forward-compute``."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def from_label(cls, label: str) -> OpKind:
        """The kind with ``label``; raises KeyError if there is none."""
        return cls[label.upper().replace("-", "_")]


#: Kinds with a number of ops that grows with the microbatches.
MICROBATCH_KINDS: Final = frozenset(
    {
        OpKind.FORWARD_COMPUTE,
        OpKind.BACKWARD_COMPUTE,
        OpKind.FORWARD_SEND,
        OpKind.FORWARD_RECV,
        OpKind.BACKWARD_SEND,
        OpKind.BACKWARD_RECV,
        OpKind.TENSOR_COMM,
        OpKind.EXPERT_COMM,
        OpKind.CONTEXT_COMM,
        OpKind.WEIGHT_COMPUTE,
    }
)

#: Computes of a microbatch on a stage; the last kind only with split backwards.
PASSES: Final = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.WEIGHT_COMPUTE)

#: Point-to-point transfers between neighbouring stages.
P2P_KINDS: Final = frozenset(
    {
        OpKind.FORWARD_SEND,
        OpKind.FORWARD_RECV,
        OpKind.BACKWARD_SEND,
        OpKind.BACKWARD_RECV,
    }
)

#: Collectives within a pass, among ranks that share its microbatch or its layers.
PEER_KINDS: Final = frozenset({OpKind.TENSOR_COMM, OpKind.EXPERT_COMM, OpKind.CONTEXT_COMM})

#: Send or recv -> the compute that it serves, and the end of the model without it: the first stage
#: (True) or the last (False).
TRANSFERS: Final = MappingProxyType(
    {
        OpKind.FORWARD_SEND: (OpKind.FORWARD_COMPUTE, False),
        OpKind.FORWARD_RECV: (OpKind.FORWARD_COMPUTE, True),
        OpKind.BACKWARD_SEND: (OpKind.BACKWARD_COMPUTE, True),
        OpKind.BACKWARD_RECV: (OpKind.BACKWARD_COMPUTE, False),
    }
)

#: Kinds that do not wait for other workers: end = launch + duration. Layernorm's all-reduce runs
#: inside the tensor-parallel group, which a trace does not show, so it counts as compute.
LOCAL_KINDS: Final = frozenset(
    {
        OpKind.FORWARD_COMPUTE,
        OpKind.BACKWARD_COMPUTE,
        OpKind.GC,
        OpKind.LAYERNORM_GRADS_ALL_REDUCE,
        OpKind.OPTIMIZER,
        OpKind.WEIGHT_COMPUTE,
    }
)

#: Collectives whose members are spread over the data-parallel ranks.
DP_KINDS: Final = frozenset(
    {
        OpKind.PARAMS_ALL_GATHER,
        OpKind.GRADS_REDUCE_SCATTER,
        OpKind.SEPARATE_GRADS_ALL_REDUCE,
        OpKind.OPTIMIZER_CLIP_MAIN_GRAD,
    }
)

#: Kinds with the mean as ideal duration: their work can be rebalanced. All others use the median,
#: since a flapping link would raise a mean too far (what-if paper, 3.2).
MEAN_KINDS: Final = frozenset(
    {
        OpKind.FORWARD_COMPUTE,
        OpKind.BACKWARD_COMPUTE,
        OpKind.WEIGHT_COMPUTE,
        OpKind.GC,
        OpKind.OPTIMIZER,
    }
)


def _kind_groups() -> dict[str, tuple[OpKind, ...]]:
    merged = {
        "forward-pp-comm": (OpKind.FORWARD_SEND, OpKind.FORWARD_RECV),
        "backward-pp-comm": (OpKind.BACKWARD_SEND, OpKind.BACKWARD_RECV),
    }
    groups: dict[str, tuple[OpKind, ...]] = {}
    for kind in OpKind:
        for label, kinds in merged.items():
            if kind in kinds:
                groups.setdefault(label, kinds)
                break
        else:
            groups[kind.label] = (kind,)
    return groups


#: The kinds of S_x: send and recv of one direction count as one (what-if paper, 4.3).
KIND_GROUPS: Final = MappingProxyType(_kind_groups())


def kind_name(label: str, all_reduces: bool) -> str:
    """The name of a kind for people; files have the label.

    Args:
        label: of the kind.
        all_reduces: whether the job reduces its gradients to all ranks, as DDP does.
    """
    return "gradient all-reduce" if all_reduces and label == _GRADIENTS else label


_GRADIENTS = OpKind.GRADS_REDUCE_SCATTER.label
