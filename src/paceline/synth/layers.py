"""Jobs that compute and communicate layer by layer: the settings of FSDP, DDP and peers."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import SynthError
from paceline.trace import OpKind

#: More layers or ranks of one sort than any job has.
MOST = 2**15


@dataclass(frozen=True)
class Layers:
    """The layers of a job's passes, and the exchanges of its ranks in them.

    A pass takes as long as one that is not cut; its layers share it evenly.

    Attributes:
        layers: of each chunk.
        fsdp: each layer is a unit whose parameters are gathered before it and whose gradients are
            reduced behind it.
        prefetch: how many units ahead parameters are gathered; 0: when they are needed.
        reshard: parameters are gathered again for every pass, else once a step.
        shard: ranks that share one copy of the parameters (HSDP); 0: all.
        buckets: without ``fsdp``, gradient buckets, reduced while the backward runs (DDP).
        accumulate: only the last microbatch reduces its gradients.
        cp: context-parallel ranks, which exchange keys and values in each layer.
        ep: data- and context-parallel ranks that exchange tokens of experts; 1: no experts.
        expert_imbalance: coefficient of variation of the experts' computes, by layer and step.
    """

    layers: int = 4
    fsdp: bool = False
    prefetch: int = 1
    reshard: bool = True
    shard: int = 0
    buckets: int = 1
    accumulate: bool = False
    cp: int = 1
    ep: int = 1
    expert_imbalance: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (
            *(("layers", 1), ("prefetch", 0), ("shard", 0)),
            *(("buckets", 1), ("cp", 1), ("ep", 1)),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
                raise SynthError(
                    f"{name} must be a whole number from {least} to {MOST}, not {value}"
                )
        if not 0 <= self.expert_imbalance <= 10:
            raise SynthError(
                f"expert_imbalance must lie between 0 and 10, not {self.expert_imbalance}"
            )
        if self.expert_imbalance and self.ep == 1:
            raise SynthError("uneven experts need expert-parallel ranks (ep above 1)")
        if self.shard and not self.fsdp:
            raise SynthError("shard groups (HSDP) need fsdp")
        if self.buckets > self.layers:
            raise SynthError(f"{self.buckets} buckets for {self.layers} layers of gradients")
        if self.fsdp and self.buckets > 1:
            raise SynthError("fsdp reduces the gradients of each layer; buckets are DDP's")

    def check_ranks(self, dp: int) -> None:
        """Raise :class:`SynthError` where groups do not divide the ``dp`` ranks."""
        ranks = dp * self.cp
        for name in ("shard", "ep"):
            value = getattr(self, name)
            if value and ranks % value:
                raise SynthError(
                    f"groups of {value} ranks ({name}) do not divide {ranks} data- and "
                    "context-parallel ranks"
                )

    def inner_kinds(self, tp: int) -> tuple[OpKind, ...]:
        """Collectives of a layer's forward, each behind a compute; the backward's are reversed."""
        tensor = (OpKind.TENSOR_COMM,) * (tp > 1)
        context = (OpKind.CONTEXT_COMM,) * (self.cp > 1)
        # Tokens go to their experts and come back; what lies between is the experts' compute.
        ends = (OpKind.EXPERT_COMM,) * 2 if self.ep > 1 else tensor
        return (*context, *tensor, *ends)

    def peers(self, tp: int) -> int:
        """Ranks of a (dp, stage) that are workers of their own."""
        return tp * self.cp
