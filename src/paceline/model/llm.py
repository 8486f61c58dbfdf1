"""The workload: a decoder-only language model by its usual fields, counted exactly.

Parameters are counted tensor by tensor (biases, norms and the router included), FLOPs by the
matrix products alone, two per multiply-add.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.model.compressed import (
    KINDS,
    end_stream_parameters,
    stream_flops,
    stream_parameters,
)
from paceline.model.llm_fields import LLMFields
from paceline.model.vision import VisionCost, VisionTower


@dataclass(frozen=True, slots=True, kw_only=True)
class LLM(LLMFields):
    """A decoder-only transformer, or a hybrid of attention, Mamba-2 and gated DeltaNets.

    Its fields are those of :class:`~paceline.model.llm_fields.LLMFields`.
    """

    # Parameters.

    @property
    def attention_matmul(self) -> int:
        """Elements of one layer's attention projections, without biases and norms."""
        h, out = self.hidden, self.heads * self.value_dim * self.hidden
        if self.latent is None:
            return h * self.qkv_columns + out
        m = self.latent
        q_width = self.heads * self.qk_dim
        q = h * q_width if m.q_rank is None else m.q_rank * (h + q_width)
        down = h * (m.kv_rank + m.rope_dim)
        return q + down + m.kv_rank * self.heads * (m.nope_dim + m.value_dim) + out

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention, its own norms and biases included."""
        count = self.attention_matmul + (self.hidden if self.bias else 0)
        if self.latent is not None:
            if self.index is not None:
                count += self.index.parameters(self.hidden, self.latent.q_rank or 0)
            return count + self._norm_size * ((self.latent.q_rank or 0) + self.latent.kv_rank)
        if self.qkv_bias:
            count += self.qkv_columns
        normed = self.heads + self.kv_heads if self.qk_norm_wide else 2
        return count + (normed * self._norm_size * self.head_dim if self.qk_norm else 0)

    @property
    def dense_ffn_parameters(self) -> int:
        """Parameters of one dense layer's MLP."""
        return self._mlp_parameters(self.ffn)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert; 0 for a dense model."""
        if self.moe is None:
            return 0
        return self._mlp_parameters(self.moe.ffn, self.moe.width(self.hidden))

    @property
    def expert_projection_parameters(self) -> int:
        """Parameters of one layer's projections into and out of the experts' width."""
        if self.moe is None or not self.moe.latent:
            return 0
        bias = self.hidden + self.moe.latent if self.bias else 0
        return 2 * self.hidden * self.moe.latent + bias

    @property
    def shared_expert_parameters(self) -> int:
        """Parameters of one layer's shared experts together; 0 without any."""
        if self.moe is None or not self.moe.shared_experts:
            return 0
        gate = self.hidden if self.moe.shared_gate else 0
        return self._mlp_parameters(self.moe.shared_ffn) + gate

    @property
    def router_parameters(self) -> int:
        """Parameters of one layer's router; 0 for a dense model."""
        return self.moe.experts * (self.hidden + self.bias) if self.moe else 0

    @property
    def moe_ffn_parameters(self) -> int:
        """Parameters of one MoE layer's MLP: all experts, the shared ones and the router."""
        if self.moe is None:
            return 0
        experts = self.moe.experts * self.expert_parameters
        beside = self.shared_expert_parameters + self.expert_projection_parameters
        return experts + beside + self.router_parameters

    @property
    def norm_parameters(self) -> int:
        """Parameters of one layer's norms: of the attention and the MLP, or of a block."""
        return (1 if self.pattern else 2) * self.block_norms * self.final_norm_parameters

    @property
    def stream_parameters(self) -> int:
        """Parameters of one block's hyper-connection; 0 with a single residual stream."""
        return stream_parameters(self.streams, self.hidden)

    @property
    def end_parameters(self) -> int:
        """Parameters between the last layer and the output projection."""
        return self.final_norm_parameters + end_stream_parameters(self.streams, self.hidden)

    @property
    def final_norm_parameters(self) -> int:
        """Parameters of the norm before the output projection."""
        return self._norm_size * self.hidden

    def layer_parameters(self, i: int) -> int:
        """Parameters of layer ``i`` (from 0)."""
        return sum(self._block_parameters(letter) for letter in self.layer_blocks(i))

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the word embedding and of learned positions."""
        learned = self.max_positions if self.positions == "learned" else 0
        return (self.vocab + learned) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the output projection; 0 when it is the word embedding."""
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def mtp_parameters(self) -> int:
        """Parameters of all multi-token-prediction modules: layer, projection and three norms."""
        if not self.mtp_layers:
            return 0
        module = sum(self._block_parameters(letter) for letter in self.mtp_blocks)
        module += 2 * self.hidden**2 + 3 * self.final_norm_parameters
        return self.mtp_modules * module

    @property
    def tower(self) -> LLM | None:
        """The layers of the vision tower as a model whose sample is one image; None without layers.

        Its word embedding has one row.
        """
        if not isinstance(self.vision, VisionTower):
            return None
        fields = self.vision.layer_fields
        return LLM(name=f"{self.name}'s tower", vocab=1, bidirectional=True, **fields)

    @property
    def vision_parameters(self) -> int:
        """Parameters of the vision tower, its projectors among them; 0 without one."""
        if isinstance(self.vision, VisionTower) and self.tower is not None:
            return self.vision.parameters(self.hidden, self.tower.layer_parameters(0))
        return self.vision.parameters if isinstance(self.vision, VisionCost) else 0

    @property
    def vision_flops(self) -> tuple[float, float]:
        """FLOPs of one sample's images: forward and backward, and forward alone.

        A tower with a given cost has none.
        """
        tower = self.tower
        if tower is None or not isinstance(self.vision, VisionTower):
            return 0.0, 0.0
        per_token = tower.model_flops_per_token() - 6.0 * tower.vocab * tower.hidden
        return self.vision.flops(self.hidden, per_token)

    @property
    def parameters(self) -> int:
        """Parameters in all."""
        layers = sum(n * self._block_parameters(b) for b, n in self.block_counts.items() if n)
        ends = self.embedding_parameters + self.end_parameters + self.head_parameters
        return layers + ends + self.mtp_parameters + self.vision_parameters

    @property
    def active_parameters(self) -> int:
        """Active parameters of one token: all except the experts that it does not visit."""
        if self.moe is None:
            return self.parameters
        idle = (self.moe.experts - self.moe.top_k) * self.expert_parameters
        mtp = self.mtp_modules * self.mtp_blocks.count("E") if self.mtp_layers else 0
        return self.parameters - idle * (self.moe_layers + mtp)

    def padded_vocab(self, tp: int, multiple: int = 128) -> int:
        """Rows of the embedding, padded to ``multiple`` rows for each of ``tp`` ranks.

        The rule of Megatron-LM's ``make-vocab-size-divisible-by``, 128 by default.
        """
        unit = multiple * tp
        return -(-self.vocab // unit) * unit

    # FLOPs.

    def attention_pairs(self, i: int, seq_len: int | None = None, causal: bool = False) -> float:
        """Average number of keys of a query in layer ``i``, over the sequence.

        The causal mean is s/2, or w (1 - w / 2s) in a window of w < s tokens. Without ``causal`` it
        is twice that, as if the masked half were computed, too. With packed documents s is the
        length of each.
        """
        s = self.seq_len if seq_len is None else seq_len
        if self.bidirectional:
            return float(s)
        kept = self.index.top_k if self.index else s
        mean = self.packed.mean_keys(min(kept, self.layer_window(i) or s), s)
        return mean if causal else 2 * mean

    def model_flops_per_token(self, seq_len: int | None = None, causal: bool = False) -> float:
        """FLOPs of one token's forward and backward, without recomputation.

        They are 6 per element of each matrix of the token (2 forward, 4 backward; the embedding's
        look-up is free). Each layer adds 6 s heads (qk_dim + value_dim) for the attention's two
        products. For a GPT this is Eq. 7 of Korthikanti et al. 2022 ("Reducing activation
        recomputation in large transformer models") per token, 72 L h^2 (1 + s / 6h + V / 12hL); Eq.
        3 of Narayanan et al. 2021 ("Efficient large-scale language model training on GPU clusters
        using Megatron-LM"), 96 L h^2 (1 + s / 6h + V / 16hL), adds the forward that full
        recomputation repeats. A Mamba-2 scan counts as in Megatron-LM
        (:attr:`Mamba.model_flops_per_token`), DeltaNets alike, three times: forward and backward;
        an indexer as :meth:`Indexer.model_flops_per_token` says. A vision tower's FLOPs are shared
        out over the sample's tokens. Padding is none of these tokens.

        Args:
            seq_len: tokens in the sequence; None = the model's.
            causal: count only the unmasked half of the attention. Both papers, and so the usual
                MFU, count all of it.
        """
        attends = [i for i in range(self.layers) if "*" in self.layer_blocks(i)]
        if self.mtp_layers:
            attends += self.mtp_layers * self.mtp_blocks.count("*") * [self.layers - 1]
        pairs = sum(self.attention_pairs(i, seq_len, causal) for i in attends)
        attention = 6.0 * pairs * self.heads * (self.qk_dim + self.value_dim)
        scans = self._compressed_flops(seq_len, causal)
        for letter, mixer in (("M", self.mamba), ("G", self.delta)):
            if mixer is not None:
                scans += 3.0 * self._passes(letter) * mixer.model_flops_per_token
        if self.index is not None and self.latent is not None:
            s = self.seq_len if seq_len is None else seq_len
            widths, kept = (self.hidden, self.latent.q_rank or 0), self.index.top_k
            met = [(1 if causal else 2) * self.packed.mean_keys(n, s) for n in (s, kept)]
            attention += len(attends) * self.index.model_flops_per_token(*widths, *met)
        vision = self.vision_flops[0] / self.useful_tokens if self.vision else 0.0
        return 6.0 * self._active_matmul + attention + scans + vision

    def _compressed_flops(self, seq_len: int | None, causal: bool) -> float:
        """FLOPs of one token's compressed attention and residual streams, without matrices."""
        blocks = sum(self.block_counts.values())
        streams = blocks * stream_flops(self.streams, self.hidden)
        streams += (
            6.0
            * (end_stream_parameters(self.streams, self.hidden) - self.streams - 1)
            * (self.streams > 1)
        )
        if self.compressed is None:
            return streams
        s = float(self.seq_len if seq_len is None else seq_len)
        widths = (self.hidden, self.heads, self.head_dim)
        for kind in KINDS:
            layer = self.compressed.model_flops_per_token(kind, *widths, s)
            core = 12.0 * self.heads * self.head_dim * self.compressed.keys(kind, s)
            streams += self.block_counts[kind] * (layer + (0 if causal else core))
        return streams

    @property
    def weight_gradient_flops_per_token(self) -> float:
        """FLOPs of one token's gradients of weights, a third of the matrix products' FLOPs.

        With frozen weights a vision tower has no backward at all.
        """
        trained, forward = self.vision_flops
        return 2.0 * self._active_matmul + (trained - forward) / self.useful_tokens

    @property
    def _active_matmul(self) -> int:
        """Elements of the matrices that one token is multiplied by."""
        last = sum(self._block_matmul(letter) for letter in self.mtp_blocks)
        blocks = sum(n * self._block_matmul(b) for b, n in self.block_counts.items() if n)
        head = self.vocab * self.hidden
        return blocks + head + self.mtp_layers * (last + 2 * self.hidden**2 + head)

    def _block_matmul(self, letter: str) -> int:
        matrices = (3 if self.gated else 2) * self.hidden
        if letter == "*":
            return self.attention_matmul
        if letter in KINDS and self.compressed is not None:
            return self.compressed.matmul(letter, self.hidden, self.heads, self.head_dim)
        if letter == "M" and self.mamba is not None:
            return self.mamba.matmul(self.hidden)
        if letter == "G" and self.delta is not None:
            return self.delta.matmul(self.hidden)
        if letter == "E" and self.moe is not None:
            moe = self.moe
            routed = matrices // self.hidden * moe.width(self.hidden) * moe.top_k * moe.ffn
            beside = self.hidden * (moe.experts + 2 * moe.latent + moe.shared_gate)
            return routed + matrices * moe.shared_ffn + beside
        return matrices * self.ffn

    def _mlp_parameters(self, width: int, hidden: int = 0) -> int:
        into, hidden = 2 if self.gated else 1, hidden or self.hidden
        bias = into * width + hidden if self.bias else 0
        return (into + 1) * hidden * width + bias

    def _block_parameters(self, letter: str) -> int:
        """Parameters of a block and of its norms."""
        if letter == "*":
            count = self.attention_parameters
        elif letter in KINDS and self.compressed is not None:
            sizes = (self.hidden, self.heads, self.head_dim)
            count = self.compressed.parameters(letter, *sizes)
        elif letter == "M" and self.mamba is not None:
            count = self.mamba.parameters(self.hidden)
        elif letter == "G" and self.delta is not None:
            count = self.delta.parameters(self.hidden)
        else:
            count = self.moe_ffn_parameters if letter == "E" else self.dense_ffn_parameters
        return count + self.block_norms * self.final_norm_parameters + self.stream_parameters
