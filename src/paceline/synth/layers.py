"""Jobs that compute and communicate layer by layer, with FSDP, DDP or inner parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import SynthError
from paceline.trace import OpKind

#: Largest number of layers, or of ranks of one kind.
MOST = 2**15


@dataclass(frozen=True)
class Layers:
    """The layers of a job's passes, and the communication in them.

    The layers share the time of a pass equally.

    Attributes:
        layers: number of layers of each chunk.
        fsdp: whether each layer is a unit of FSDP. A unit's parameters are gathered before it, and
            its gradients are reduced after it.
        prefetch: number of units that are gathered ahead; 0: none.
        reshard: whether parameters are gathered again for every pass, instead of once a step.
        shard: number of ranks that share one copy of the parameters (HSDP); 0: all.
        buckets: number of gradient buckets without ``fsdp``; they are reduced during the backward
            (DDP).
        accumulate: whether only the last microbatch reduces its gradients.
        cp: number of context-parallel ranks, which exchange keys and values in each layer.
        ep: number of data- and context-parallel ranks that exchange experts' tokens; 1: no experts.
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
            raise SynthError(
                f"{self.buckets} buckets for {self.layers} layers; use at most one per layer"
            )
        if self.fsdp and self.buckets > 1:
            raise SynthError("fsdp reduces the gradients of each layer; buckets are DDP's")

    def check_ranks(self, dp: int) -> None:
        """Raise :class:`SynthError` if groups do not divide the data- and context-parallel ranks.

        Args:
            dp: number of data-parallel ranks.
        """
        ranks = dp * self.cp
        for name in ("shard", "ep"):
            value = getattr(self, name)
            if value and ranks % value:
                raise SynthError(
                    f"groups of {value} ranks ({name}) do not divide {ranks} data- and "
                    "context-parallel ranks"
                )

    def inner_kinds(self, tp: int) -> tuple[OpKind, ...]:
        """Collectives of a layer's forward, each after a compute; a backward reverses them."""
        tensor = (OpKind.TENSOR_COMM,) * (tp > 1)
        context = (OpKind.CONTEXT_COMM,) * (self.cp > 1)
        # Tokens go to their experts and come back; the experts compute in between.
        ends = (OpKind.EXPERT_COMM,) * 2 if self.ep > 1 else tensor
        return (*context, *tensor, *ends)

    def peers(self, tp: int) -> int:
        """Number of tensor- and context-parallel ranks of a (dp, pp), each a worker."""
        return tp * self.cp
