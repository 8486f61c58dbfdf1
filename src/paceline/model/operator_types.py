"""Records of a layer's operators and collectives, and of the kinds of layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.model.llm import LLM


class Operator(NamedTuple):
    """Kernels that one GPU runs.

    Attributes:
        name: name of the forward operator ("qkv", "mlp-up", ...), with a suffix in the backward
            pass.
        part: "gemm", "attention" or "memory".
        flops: floating-point operations.
        bytes: bytes moved through the GPU's memory.
        m, n, k, batch: shape of the matrix product (``batch`` of them); 0 for other operators.
        kernels: kernels that the host launches.
        precision: of the multiplication.
        sdpa: attention by PyTorch's own kernel.
    """

    name: str
    part: str
    flops: float
    bytes: float
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    kernels: int = 1
    precision: str = "bf16"
    sdpa: bool = False


class Collective(NamedTuple):
    """A communication that computes of one stage wait for.

    Attributes:
        name: its name.
        part: "tp", "cp" or "ep": the ranks that take part.
        op: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or "dispatch".
        bytes: of the whole tensor (``all_to_all`` and ``dispatch``: what each rank sends).
        hidden_behind: name of the operators that it overlaps with; "" = none.
        visits: experts that each token of a ``dispatch`` goes to.
    """

    name: str
    part: str
    op: str
    bytes: float
    hidden_behind: str = ""
    visits: int = 0


Work = Operator | Collective


@dataclass(frozen=True)
class LayerWork:
    """One layer, or one end of the model, for one microbatch on one GPU.

    Attributes:
        forward: in order.
        backward: in order, recomputation not included.
        recompute: forward work that the backward pass repeats.
    """

    forward: list[Work] = field(default_factory=list)
    backward: list[Work] = field(default_factory=list)
    recompute: list[Work] = field(default_factory=list)

    def directions(self) -> tuple[list[Work], list[Work]]:
        """Operators of the forward and of the backward pass."""
        return self.forward, [*self.recompute, *self.backward]

    def flops(self) -> tuple[float, float]:
        """FLOPs of the two passes."""
        forward, backward = (
            sum(w.flops for w in work if isinstance(w, Operator)) for work in self.directions()
        )
        return forward, backward


class LayerKind(NamedTuple):
    """The properties in which layers of one model differ.

    Attributes:
        blocks: letters of its blocks, in order (:meth:`LLM.layer_blocks`).
        window: tokens attended to at most; 0 = all.
    """

    blocks: str
    window: int

    @property
    def moe(self) -> bool:
        """Whether it has experts."""
        return "E" in self.blocks


def layer_kind(llm: LLM, i: int) -> LayerKind:
    """The kind of layer ``i``."""
    return LayerKind(llm.layer_blocks(i), llm.layer_window(i) or 0)


def mtp_kinds(llm: LLM) -> list[LayerKind]:
    """The layers of one multi-token-prediction module; one of a block for each of a pattern."""
    if not llm.mtp_layers:
        return []
    if not llm.mtp_pattern:
        return [layer_kind(llm, llm.layers - 1)]
    return [LayerKind(letter, 0) for letter in llm.mtp_pattern]


def is_weight_gradient(operator: Operator) -> bool:
    """Whether its only result is a gradient of weights, as in a linear's product or a lookup."""
    if operator.part == "gemm":
        return operator.name.endswith("-wgrad")
    return operator.name in ("embedding-backward", "embedding-positions-backward")


def all_operators(work: LayerWork) -> Iterator[Operator]:
    """The distinct operators of both passes."""
    for entry in (*work.forward, *work.backward):
        if isinstance(entry, Operator):
            yield entry
