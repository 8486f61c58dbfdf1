"""The workload: a decoder-only language model by its usual fields, counted exactly.

Parameters are counted tensor by tensor (biases, norms and the router included), FLOPs by the
matrix products alone, two per multiply-add.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from paceline.errors import ModelError
from paceline.model.blocks import Indexer, LatentAttention, MoE, mean_keys
from paceline.model.delta_net import DeltaNet
from paceline.model.field_checks import check_whole_number, one_of
from paceline.model.llm_check import check_agreement
from paceline.model.mamba import Mamba, check_pattern
from paceline.model.vision import VisionCost, VisionTower

Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["learned", "rotary", "none"]

_SWITCHES = (
    *("gated", "tied", "bias", "qkv_bias", "qk_norm", "qk_norm_wide", "post_norms", "chunked"),
    *("sinks", "mtp_shared", "gated_attention", "bidirectional"),
)

#: Fields that are records of their own.
RECORDS: dict[str, type[Any] | tuple[type[Any], ...]] = {
    "moe": MoE,
    "latent": LatentAttention,
    "index": Indexer,
    "mamba": Mamba,
    "delta": DeltaNet,
    "vision": (VisionTower, VisionCost),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LLM:
    """A decoder-only transformer, or a hybrid of attention, Mamba-2 and gated DeltaNets.

    A field whose default is 0 is filled in at construction, as described: a finished LLM has its
    number. ``dataclasses.replace`` therefore keeps, say, ``ffn`` when it changes ``hidden``.

    Attributes:
        name: the model's name.
        layers: transformer layers (multi-token-prediction layers not among them).
        hidden: width of the residual stream.
        heads: query heads.
        vocab: rows of the word embedding, unpadded.
        seq_len: tokens of one training sample.
        kv_heads: key and value heads; 0 = ``heads``.
        head_dim: width of one head; 0 = ``hidden // heads``.
        ffn: inner width of the dense MLP; 0 = ``4 * hidden``.
        gated: three matrices in every MLP (SwiGLU) instead of two.
        norm: "layernorm" (scale and shift) or "rmsnorm" (scale).
        positions: "learned" (a table of parameters), "rotary" or "none".
        max_positions: rows of the learned table; 0 = ``seq_len``.
        tied: the output projection is the word embedding.
        bias: every linear layer but the output projection has a bias.
        qkv_bias: queries, keys and values have one even where ``bias`` is False; True with it.
        qk_norm: a norm over the head width on queries and on keys (Qwen3).
        qk_norm_wide: that norm spans all heads (OLMo 2, MiniMax-M2).
        post_norms: a norm behind each block, too (Gemma 2 and 3).
        window: tokens that a sliding-window layer attends to, itself included; None = all.
        window_every: layers 0, n, 2n, ... use the window, the others see all (1 = all use it;
            GPT-OSS alternates: 2).
        full_every: layers n - 1, 2n - 1, ... see all and the others use the window (Gemma 3: 6);
            0 = by ``window_every``.
        chunked: the window is a chunk of the sequence, of which a token sees what is before it
            (Llama 4), instead of the tokens right before each.
        sinks: the softmax of attention has a learnable logit more (GPT-OSS); see ``software``.
        gated_attention: the result of attention has a gate, as wide as it, from the queries'
            projection (Qwen3-Next).
        bidirectional: all tokens of a sample attend to each other, and nothing drops out: the
            layers of a vision transformer.
        moe: the mixture of experts; None = dense.
        latent: multi-head latent attention in place of the grouped-query one.
        index: the indexer of sparse attention, which keeps the best keys of each query (DeepSeek
            V3.2, GLM-5); None = all keys are met.
        mtp_layers: multi-token-prediction modules, each one more layer of the last layer's kind
            with a (2 hidden x hidden) projection, sharing embedding and head (DeepSeek-V3, 2.2).
        mtp_pattern: the blocks of such a module, in letters of ``pattern``, each behind one norm;
            "" = those of the last layer.
        mtp_shared: all modules are one set of weights, run ``mtp_layers`` times.
        pattern: of a hybrid model, a letter per layer, each one block behind one norm: "M" Mamba-2,
            "G" gated DeltaNet, "*" attention, "-" MLP, "E" experts (NemotronH's
            ``hybrid_override_pattern``); "" = all layers are attention and MLP, or attention and
            experts.
        mamba: the Mamba-2 mixers of a hybrid model.
        delta: the gated DeltaNets, in place of the attention of most layers.
        vision: the vision tower before the first layer, whose tokens are among ``seq_len``; None =
            text alone.
        left_out: what of the model these fields do not count, such as "the vision tower"; a
            prediction warns of it.

    Raises:
        ModelError: a value is out of range or two contradict each other.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    seq_len: int
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    gated: bool = False
    norm: Norm = "layernorm"
    positions: Positions = "learned"
    max_positions: int = 0
    tied: bool = True
    bias: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    qk_norm_wide: bool = False
    post_norms: bool = False
    window: int | None = None
    window_every: int = 1
    full_every: int = 0
    chunked: bool = False
    sinks: bool = False
    gated_attention: bool = False
    bidirectional: bool = False
    moe: MoE | None = None
    latent: LatentAttention | None = None
    index: Indexer | None = None
    mtp_layers: int = 0
    mtp_pattern: str = ""
    mtp_shared: bool = False
    pattern: str = ""
    mamba: Mamba | None = None
    delta: DeltaNet | None = None
    vision: VisionTower | VisionCost | None = None
    left_out: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ModelError(
                f"a model needs a name, not {reprlib.repr(self.name)}", fields=("name",)
            )
        where = f"the model {self.name}"
        for field in ("layers", "hidden", "heads", "vocab", "seq_len", "window_every"):
            check_whole_number(self, field, 1, where)
        for field in ("kv_heads", "head_dim", "ffn", "max_positions", "mtp_layers", "full_every"):
            check_whole_number(self, field, 0, where)
        if self.window is not None:
            check_whole_number(self, "window", 1, where)
        for field in _SWITCHES:
            if not isinstance(getattr(self, field), bool):
                text = reprlib.repr(getattr(self, field))
                raise ModelError(
                    f"{where}: {field} must be true or false, not {text}", fields=(field,)
                )
        for field, kind in RECORDS.items():
            value = getattr(self, field)
            if value is not None and not isinstance(value, kind):
                text = reprlib.repr(value)
                raise ModelError(
                    f"{where}: {field} must be a mapping of its own fields, not {text}",
                    fields=(field,),
                )
        if not isinstance(self.left_out, str):
            raise ModelError(f"{where}: left_out must be a text", fields=("left_out",))
        one_of(self, "norm", get_args(Norm), where)
        one_of(self, "positions", get_args(Positions), where)
        check_pattern(self.pattern, where)
        check_pattern(self.mtp_pattern, where, "mtp_pattern")
        self._fill_in(where)
        check_agreement(self, where)

    def _fill_in(self, where: str) -> None:
        if not self.head_dim and self.latent is None and self.hidden % self.heads:
            raise ModelError(
                f"{where}: hidden {self.hidden} is not a multiple of heads {self.heads}; "
                "give head_dim",
                fields=("hidden", "heads"),
            )
        filled = {
            "kv_heads": self.kv_heads or self.heads,
            "head_dim": self.head_dim or max(1, self.hidden // self.heads),
            "ffn": self.ffn or 4 * self.hidden,
            "max_positions": self.max_positions or self.seq_len,
            "qkv_bias": self.qkv_bias or self.bias,
        }
        for field, value in filled.items():
            object.__setattr__(self, field, value)

    # Which layer is what.

    def layer_blocks(self, i: int) -> str:
        """The blocks of layer ``i`` (from 0), each behind its norm, as letters of ``pattern``."""
        if self.pattern:
            return self.pattern[i]
        linear = self.delta is not None and (i + 1) % self.delta.full_every
        return ("G" if linear else "*") + ("E" if self.is_moe_layer(i) else "-")

    @property
    def mtp_blocks(self) -> str:
        """The blocks of a multi-token-prediction module."""
        return self.mtp_pattern or self.layer_blocks(self.layers - 1)

    @property
    def block_counts(self) -> Mapping[str, int]:
        """Letter of ``pattern`` -> blocks of the model, multi-token prediction not among them."""
        if self.pattern:
            return {letter: self.pattern.count(letter) for letter in "MG*-E"}
        dense = self.layers - self.moe_layers
        full = self.layers // self.delta.full_every if self.delta else self.layers
        linear = self.layers - full
        return {"M": 0, "G": linear, "*": full, "-": dense, "E": self.moe_layers}

    def is_moe_layer(self, i: int) -> bool:
        """Whether layer ``i`` (from 0) has experts in place of the dense MLP."""
        if self.pattern:
            return self.pattern[i] == "E"
        if self.moe is None or i < self.moe.dense_layers:
            return False
        return (i - self.moe.dense_layers + 1) % self.moe.every == 0

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        if self.pattern:
            return self.pattern.count("E")
        if self.moe is None:
            return 0
        return max(0, self.layers - self.moe.dense_layers) // self.moe.every

    def layer_window(self, i: int) -> int | None:
        """Tokens that layer ``i`` attends to at most; None = all before it."""
        if self.full_every and (i + 1) % self.full_every == 0:
            return None
        if not self.chunked or self.window is None or self.window >= self.seq_len:
            return None if i % self.window_every else self.window
        # The window w with which as many keys are seen: w (1 - w / 2s) is half a chunk.
        s = self.seq_len
        return round(s * (1 - math.sqrt(1 - self.window / s)))

    # Widths of the attention products.

    @property
    def qk_dim(self) -> int:
        """Width of one head's query and key."""
        return self.latent.nope_dim + self.latent.rope_dim if self.latent else self.head_dim

    @property
    def value_dim(self) -> int:
        """Width of one head's value."""
        return self.latent.value_dim if self.latent else self.head_dim

    @property
    def dropout(self) -> bool:
        """Whether it has the dropouts of the GPT family."""
        return self.bias and self.norm == "layernorm" and not self.bidirectional

    @property
    def adapter_width(self) -> int:
        """Elements that each rank of one layer's LoRA adapters has, on qkv and the projection."""
        return 2 * self.hidden + self.qkv_columns + self.heads * self.value_dim

    @property
    def qkv_columns(self) -> int:
        """Columns of the queries', keys' and values' projection, a gate among the queries'."""
        queries = (2 if self.gated_attention else 1) * self.heads
        return (queries + 2 * self.kv_heads) * self.head_dim

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
    def block_norms(self) -> int:
        """Norms of one block: before it, and with ``post_norms`` behind it."""
        return 2 if self.post_norms else 1

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
    def mtp_modules(self) -> int:
        """Multi-token-prediction modules with weights of their own."""
        return min(1, self.mtp_layers) if self.mtp_shared else self.mtp_layers

    @property
    def tower(self) -> LLM | None:
        """The layers of the vision tower as a model, one image its sample; None where it has none.

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

        A tower whose cost is given says none.
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
        ends = self.embedding_parameters + self.final_norm_parameters + self.head_parameters
        return layers + ends + self.mtp_parameters + self.vision_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all but the experts that it does not visit."""
        if self.moe is None:
            return self.parameters
        idle = (self.moe.experts - self.moe.top_k) * self.expert_parameters
        mtp = self.mtp_modules * self.mtp_blocks.count("E") if self.mtp_layers else 0
        return self.parameters - idle * (self.moe_layers + mtp)

    def padded_vocab(self, tp: int, multiple: int = 128) -> int:
        """Rows of the embedding once it splits over ``tp`` ranks, ``multiple`` rows to each.

        The rule of Megatron-LM's ``make-vocab-size-divisible-by``, 128 by default.
        """
        unit = multiple * tp
        return -(-self.vocab // unit) * unit

    # FLOPs.

    def attention_pairs(self, i: int, seq_len: int | None = None, causal: bool = False) -> float:
        """Keys that one query of layer ``i`` meets, on average over the sequence.

        The causal mean is s/2, or w (1 - w / 2s) in a window of w < s tokens; without ``causal``
        it is twice that, as if the masked half were computed too.
        """
        s = self.seq_len if seq_len is None else seq_len
        if self.bidirectional:
            return float(s)
        kept = self.index.top_k if self.index else s
        mean = mean_keys(min(kept, self.layer_window(i) or s), s)
        return mean if causal else 2 * mean

    def model_flops_per_token(self, seq_len: int | None = None, causal: bool = False) -> float:
        """FLOPs of one token's forward and backward, recomputation not counted.

        6 per element of each matrix that the token meets (2 forward, 4 backward; the output
        projection once, the embedding's look-up free) and, per layer, 6 s heads (qk_dim +
        value_dim) for the attention's two products. For a GPT this is Eq. 7 of Korthikanti et al.
        2022 ("Reducing activation recomputation in large transformer models") per token,
        72 L h^2 (1 + s / 6h + V / 12hL); Eq. 3 of Narayanan et al. 2021 ("Efficient large-scale
        language model training on GPU clusters using Megatron-LM"), 96 L h^2 (1 + s / 6h +
        V / 16hL), adds the forward that full recomputation repeats. A Mamba-2 scan counts as in
        Megatron-LM (:attr:`Mamba.model_flops_per_token`), DeltaNets alike, three times: forward and
        backward; an indexer as :meth:`Indexer.model_flops_per_token` says. A vision tower's FLOPs
        are shared out over the sample's tokens.

        Args:
            seq_len: tokens in the sequence; None = the model's.
            causal: count the half of the attention that the causal mask leaves; both papers, and
                so the usual MFU, count all of it.
        """
        attends = [i for i in range(self.layers) if "*" in self.layer_blocks(i)]
        if self.mtp_layers:
            attends += self.mtp_layers * self.mtp_blocks.count("*") * [self.layers - 1]
        pairs = sum(self.attention_pairs(i, seq_len, causal) for i in attends)
        attention = 6.0 * pairs * self.heads * (self.qk_dim + self.value_dim)
        scans = 0.0
        for letter, mixer in (("M", self.mamba), ("G", self.delta)):
            if mixer is not None:
                scans += 3.0 * self._passes(letter) * mixer.model_flops_per_token
        if self.index is not None and self.latent is not None:
            s = self.seq_len if seq_len is None else seq_len
            widths, kept = (self.hidden, self.latent.q_rank or 0), self.index.top_k
            met = [(1 if causal else 2) * mean_keys(n, s) for n in (s, kept)]
            attention += len(attends) * self.index.model_flops_per_token(*widths, *met)
        vision = self.vision_flops[0] / self.seq_len if self.vision else 0.0
        return 6.0 * self._active_matmul + attention + scans + vision

    def _passes(self, letter: str) -> int:
        """Blocks of this letter that a token passes."""
        mtp = self.mtp_layers * self.mtp_blocks.count(letter) if self.mtp_layers else 0
        return self.block_counts[letter] + mtp

    @property
    def weight_gradient_flops_per_token(self) -> float:
        """FLOPs of one token's gradients of weights, a third of those of the matrix products.

        With frozen weights a vision tower has no backward at all.
        """
        trained, forward = self.vision_flops
        return 2.0 * self._active_matmul + (trained - forward) / self.seq_len

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

    @property
    def _norm_size(self) -> int:
        return 2 if self.norm == "layernorm" else 1

    def _mlp_parameters(self, width: int, hidden: int = 0) -> int:
        into, hidden = 2 if self.gated else 1, hidden or self.hidden
        bias = into * width + hidden if self.bias else 0
        return (into + 1) * hidden * width + bias

    def _block_parameters(self, letter: str) -> int:
        """Parameters of a block and of its norms."""
        if letter == "*":
            count = self.attention_parameters
        elif letter == "M" and self.mamba is not None:
            count = self.mamba.parameters(self.hidden)
        elif letter == "G" and self.delta is not None:
            count = self.delta.parameters(self.hidden)
        else:
            count = self.moe_ffn_parameters if letter == "E" else self.dense_ffn_parameters
        return count + self.block_norms * self.final_norm_parameters
