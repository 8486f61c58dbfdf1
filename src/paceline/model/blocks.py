"""Blocks of a language model that have their own fields: experts, latent and sparse attention."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

from paceline.errors import ModelError
from paceline.model.field_checks import check_whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class MoE:
    """The mixture-of-experts blocks of a model.

    Attributes:
        experts: routed experts of one layer.
        top_k: experts that each token visits.
        ffn: inner width of one expert.
        shared_experts: experts that every token visits.
        shared_ffn: total inner width of the shared experts; 0 = ``shared_experts * ffn``.
        dense_layers: leading layers that stay dense.
        every: every n-th of the following layers is a mixture (the n-th, the 2n-th, ...).
        capacity: capacity factor: tokens kept per expert over the even share. None = dropless and
            evenly loaded.
        shared_gate: the shared experts' result has a gate of one number per token (Qwen3-Next).
        latent: width of the routed experts' tokens (Nemotron 3 Super). One projection leads into it
            before the dispatch, one leads out of it after the combine. 0 = the width of the
            residual stream.
    """

    experts: int
    top_k: int
    ffn: int
    shared_experts: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    every: int = 1
    capacity: float | None = None
    latent: int = 0
    shared_gate: bool = False

    def __post_init__(self) -> None:
        for field in ("experts", "top_k", "ffn", "every"):
            check_whole_number(self, field, 1, "the mixture of experts")
        for field in ("shared_experts", "shared_ffn", "dense_layers", "latent"):
            check_whole_number(self, field, 0, "the mixture of experts")
        if self.top_k > self.experts:
            raise ModelError(
                f"top_k ({self.top_k}) exceeds the experts ({self.experts}); a token cannot visit "
                "more experts than there are",
                fields=("top_k", "experts"),
            )
        if self.shared_ffn and not self.shared_experts:
            raise ModelError(
                f"shared_ffn is {self.shared_ffn} but shared_experts is 0; give both or neither",
                fields=("shared_ffn", "shared_experts"),
            )
        if self.capacity is not None and not (
            isinstance(self.capacity, int | float)
            and not isinstance(self.capacity, bool)
            and 0 < self.capacity < float("inf")
        ):
            raise ModelError(
                f"capacity must be a positive number or nothing, not {reprlib.repr(self.capacity)}",
                fields=("capacity",),
            )
        if not isinstance(self.shared_gate, bool) or (self.shared_gate and not self.shared_experts):
            raise ModelError(
                "shared_gate is true or false, and true beside shared experts alone, not "
                f"{reprlib.repr(self.shared_gate)} with {self.shared_experts}",
                fields=("shared_gate", "shared_experts"),
            )
        if not self.shared_ffn:
            object.__setattr__(self, "shared_ffn", self.shared_experts * self.ffn)

    def width(self, hidden: int) -> int:
        """Width of the tokens that routed experts work on."""
        return self.latent or hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values from one low-rank latent (DeepSeek-V2, 2.1).

    Attributes:
        q_rank: rank of the queries' down-projection; None = queries are projected in one product.
        kv_rank: rank of the latent that keys and values are expanded from.
        nope_dim: per head, the part of queries and keys without positions.
        rope_dim: per head, the part with rotary positions (one key for all heads).
        value_dim: per head, the width of the values.
    """

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        if self.q_rank is not None:
            check_whole_number(self, "q_rank", 1, "the latent attention")
        for field in ("kv_rank", "nope_dim", "rope_dim", "value_dim"):
            check_whole_number(self, field, 1, "the latent attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """The lightning indexer of sparse attention (DeepSeek-V3.2; Megatron-Core d98e8a6, ``dsa.py``).

    It scores all keys for each query. Latent attention then uses only the best keys.

    Attributes:
        heads: query heads of the indexer; they share one key.
        head_dim: width of a head.
        top_k: keys that a query of the attention keeps.
    """

    heads: int
    head_dim: int
    top_k: int

    def __post_init__(self) -> None:
        for field in ("heads", "head_dim", "top_k"):
            check_whole_number(self, field, 1, "the indexer")

    def matmul(self, hidden: int, q_rank: int) -> int:
        """Elements of one layer's projections: queries from their latent, key, head weights."""
        return q_rank * self.heads * self.head_dim + hidden * (self.head_dim + self.heads)

    def parameters(self, hidden: int, q_rank: int) -> int:
        """Parameters of one layer's indexer, its key's LayerNorm included."""
        return self.matmul(hidden, q_rank) + 2 * self.head_dim

    def model_flops_per_token(self, hidden: int, q_rank: int, pairs: float, kept: float) -> float:
        """FLOPs of one layer, forward and backward, for ``pairs`` scored and ``kept`` kept keys.

        Its inputs are detached, so projections have no gradients of inputs. Its loss covers only
        the kept keys.
        """
        scores = 2.0 * self.heads * self.head_dim * (pairs + 2 * kept)
        return 4.0 * self.matmul(hidden, q_rank) + scores


def mean_keys(kept: int, seq_len: int) -> float:
    """Average number of keys of a query if it keeps at most ``kept`` of the keys before it."""
    kept = min(kept, seq_len)
    return kept * (1 - kept / (2 * seq_len))
