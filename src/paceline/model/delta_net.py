"""Gated DeltaNet, the linear attention of Qwen3-Next and Qwen3.5, counted exactly.

Yang et al. 2024, "Gated Delta Networks". Its tensors are those of Megatron-Core (d98e8a6,
``ssm/gated_delta_net``) and of transformers 5.23 (``Qwen3NextGatedDeltaNet``). The rule runs in
chunks, as in transformers' ``torch_chunk_gated_delta_rule``. Kernels keep its inputs and the
inverse of each chunk's triangle, and recompute the rest in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from paceline.errors import ModelError
from paceline.model.field_checks import check_whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """The gated DeltaNets of a model.

    Attributes:
        key_heads: heads of queries and of keys.
        value_heads: heads of values, each with a state.
        key_dim: width of a query and key.
        value_dim: width of a value.
        conv: width of the causal convolution.
        chunk: tokens of one chunk of the rule.
        full_every: without a ``pattern``, layers n - 1, 2n - 1, ... have attention instead.
    """

    key_heads: int
    value_heads: int
    key_dim: int = 128
    value_dim: int = 128
    conv: int = 4
    chunk: int = 64
    full_every: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            check_whole_number(self, field.name, 1, "the gated DeltaNet")
        if self.value_heads % self.key_heads:
            raise ModelError(
                f"the gated DeltaNet's value_heads {self.value_heads} are not a multiple of its "
                f"key_heads {self.key_heads}",
                fields=("value_heads", "key_heads"),
            )

    @property
    def keys(self) -> int:
        """Columns of the keys of all heads, and of the queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Columns of the values of all heads."""
        return self.value_heads * self.value_dim

    @property
    def convolved(self) -> int:
        """Channels that the convolution runs over: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def projected(self) -> int:
        """Columns of the input projection: queries, keys, values, gate, two numbers per head."""
        return self.convolved + self.values + 2 * self.value_heads

    def matmul(self, hidden: int) -> int:
        """Elements of the projections in and out."""
        return hidden * (self.projected + self.values)

    def parameters(self, hidden: int) -> int:
        """Parameters of one layer's DeltaNet with its gated norm, without the block's norm."""
        # The convolution without a bias; dt_bias and A_log of each head; the norm of a head.
        small = self.conv * self.convolved + 2 * self.value_heads + self.value_dim
        return self.matmul(hidden) + small

    @property
    def model_flops_per_token(self) -> float:
        """FLOPs of the rule, forward, as Megatron-LM counts it (``training.py``).

        Four products with a state: two for the update, one for the value, one for the query.
        """
        return 8.0 * self.value_heads * self.key_dim * self.value_dim

    @property
    def rule_flops_per_token(self) -> tuple[float, float]:
        """(forward, backward) FLOPs of the chunked rule's products.

        Forward: the triangle of keys, its solution for keys and values, scores, scores times
        values, and three products with the state (for values, queries and the update). Backward:
        these for the triangle, states and new values again, then the gradients of each product.
        """
        by_key = 2.0 * self.value_heads * self.chunk * self.key_dim
        by_value = 2.0 * self.value_heads * self.chunk * self.value_dim
        state = 2.0 * self.value_heads * self.key_dim * self.value_dim
        return 3 * by_key + 2 * by_value + 3 * state, 9 * by_key + 5 * by_value + 8 * state

    def rule_bytes_per_token(self, element: int) -> tuple[float, float]:
        """(forward, backward) bytes that the rule's kernels move, each tensor once per kernel.

        The kernels are: norms of queries and keys, the triangle (in fp32), its inverse, keys and
        values times it, states, results. The backward repeats the last three and computes the
        gradients of values, states, queries and keys, and the triangle.
        """
        keys, values = element * self.keys, element * self.values
        wide = element * self.value_heads * self.key_dim  # keys for each value head
        state = element * self.value_heads * self.key_dim * self.value_dim / self.chunk
        triangle = self.value_heads * self.chunk
        forward = 9 * keys + 6 * values + 2 * wide + 2 * state + (8 + 2 * element) * triangle
        backward = 15 * (keys + values) + 10 * wide + 4 * state + 2 * element * triangle
        return forward, backward
