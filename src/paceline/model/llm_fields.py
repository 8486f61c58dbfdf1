"""Fields of a language model, and the properties of each layer that follow from them."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Literal, get_args

from paceline.errors import ModelError
from paceline.model.blocks import Indexer, LatentAttention, MoE
from paceline.model.compressed import KINDS, CompressedAttention
from paceline.model.delta_net import DeltaNet
from paceline.model.field_checks import check_whole_number, one_of
from paceline.model.llm_check import check_agreement
from paceline.model.mamba import Mamba, check_pattern
from paceline.model.packing import WHOLE, Packing
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
    "compressed": CompressedAttention,
    "vision": (VisionTower, VisionCost),
    "packing": Packing,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMFields:
    """A decoder-only transformer, or a hybrid of attention, Mamba-2 and gated DeltaNets.

    A field with default 0 is filled in at construction, as described, so a finished LLM has its
    number. Therefore ``dataclasses.replace`` keeps ``ffn``, for example, when it changes
    ``hidden``.

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
        context: longest sample that the model's own config allows (``max_position_embeddings``);
            0 = that of a learned table, else unknown.
        rotary_base: base of the rotary positions' angles, for launch files; 0 = unknown. It changes
            no time, so models that differ only in it are equal.
        norm_epsilon: addend to the variance in norms, for launch files; 0 = unknown. Models that
            differ only in it are equal, too.
        tied: the output projection is the word embedding.
        bias: every linear layer except the output projection has a bias.
        qkv_bias: queries, keys and values have a bias even if ``bias`` is False; always True with
            ``bias``.
        qk_norm: a norm over the head width on queries and on keys (Qwen3).
        qk_norm_wide: that norm spans all heads (OLMo 2, MiniMax-M2).
        post_norms: a norm behind each block, too (Gemma 2 and 3).
        window: tokens that a sliding-window layer attends to, itself included; None = all.
        window_every: layers 0, n, 2n, ... use the window, the others see all (1 = all use it;
            GPT-OSS alternates: 2).
        full_every: layers n - 1, 2n - 1, ... see all, the others use the window (Gemma 3: 6); 0 =
            ``window_every`` decides.
        chunked: the window is a chunk of the sequence (Llama 4). A token sees the tokens before it
            in its chunk.
        sinks: the softmax of attention has an additional learnable logit (GPT-OSS); see
            ``software``.
        gated_attention: the result of attention has a gate, as wide as it, from the queries'
            projection (Qwen3-Next).
        bidirectional: all tokens of a sample attend to each other, without dropout, as in a vision
            transformer.
        moe: the mixture of experts; None = dense.
        latent: multi-head latent attention in place of the grouped-query one.
        index: the indexer of sparse attention, which keeps the best keys of each query (DeepSeek
            V3.2, GLM-5); None = all keys are used.
        mtp_layers: multi-token-prediction modules. Each is one more layer of the last layer's kind
            with a (2 hidden x hidden) projection, sharing embedding and head (DeepSeek-V3, 2.2).
        mtp_pattern: the blocks of such a module, in letters of ``pattern``, each after one norm; ""
            = the blocks of the last layer.
        mtp_shared: all modules are one set of weights, run ``mtp_layers`` times.
        pattern: the layers of a hybrid model as letters, each one block after one norm. "M"
            Mamba-2, "G" gated DeltaNet, "*" attention, "-" MLP, "E" experts (NemotronH's
            ``hybrid_override_pattern``); "" = all layers are attention and MLP, or attention and
            experts.
        mamba: the Mamba-2 mixers of a hybrid model.
        delta: the gated DeltaNets, in place of the attention of most layers.
        compressed: attention to a window and to pooled entries, in place of the attention of all
            layers (DeepSeek-V4).
        streams: parallel residual streams, mixed around each block by hyper-connections.
        vision: the vision tower before the first layer, whose tokens are among ``seq_len``; None =
            text alone.
        packing: how documents fill the samples; None = one document fills each.
        left_out: part of the model that these fields do not count, such as "the vision tower"; a
            prediction warns about it.

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
    context: int = dataclass_field(default=0, compare=False)
    rotary_base: int = dataclass_field(default=0, compare=False)
    norm_epsilon: float = dataclass_field(default=0.0, compare=False)
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
    compressed: CompressedAttention | None = None
    streams: int = 1
    vision: VisionTower | VisionCost | None = None
    packing: Packing | None = None
    left_out: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ModelError(
                f"a model needs a name, not {reprlib.repr(self.name)}", fields=("name",)
            )
        where = f"the model {self.name}"
        for field in ("layers", "hidden", "heads", "vocab", "seq_len", "window_every", "streams"):
            check_whole_number(self, field, 1, where)
        for field in (
            "kv_heads",
            "head_dim",
            "ffn",
            "max_positions",
            "context",
            "mtp_layers",
            "full_every",
            "rotary_base",
        ):
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
        if not self.context and self.positions == "learned":
            object.__setattr__(self, "context", self.max_positions)

    # Kinds of layers.

    def layer_blocks(self, i: int) -> str:
        """The blocks of layer ``i`` (from 0), each after its norm, as letters of ``pattern``."""
        if self.pattern:
            return self.pattern[i]
        if self.compressed is not None:
            return self.compressed.layers[i] + ("E" if self.is_moe_layer(i) else "-")
        linear = self.delta is not None and (i + 1) % self.delta.full_every
        return ("G" if linear else "*") + ("E" if self.is_moe_layer(i) else "-")

    @property
    def mtp_blocks(self) -> str:
        """The blocks of a multi-token-prediction module."""
        return self.mtp_pattern or self.layer_blocks(self.layers - 1)

    @property
    def block_counts(self) -> Mapping[str, int]:
        """Letter of ``pattern`` -> number of such blocks, without multi-token prediction."""
        if self.pattern:
            return {letter: self.pattern.count(letter) for letter in "MG*-E"}
        dense = self.layers - self.moe_layers
        if self.compressed is not None:
            kinds = {kind: self.compressed.layers.count(kind) for kind in KINDS}
            return {**kinds, "M": 0, "G": 0, "*": 0, "-": dense, "E": self.moe_layers}
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
        # The window w with the same number of keys: w (1 - w / 2s) is half a chunk.
        s = self.seq_len
        return round(s * (1 - math.sqrt(1 - self.window / s)))

    # The samples.

    @property
    def packed(self) -> Packing:
        """How documents fill the samples."""
        return self.packing or WHOLE

    @property
    def useful_tokens(self) -> float:
        """Tokens of a sample that are no padding."""
        return self.packed.useful_tokens(self.seq_len)

    def describe_samples(self) -> str:
        """Tokens of a sample, and how documents fill them where that is said."""
        text = self.packed.describe()
        return f"{self.seq_len:,} tokens ({text})" if text else f"{self.seq_len:,} tokens"

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
        """Elements per unit of rank in one layer's LoRA adapters, on qkv and the projection."""
        return 2 * self.hidden + self.qkv_columns + self.heads * self.value_dim

    @property
    def qkv_columns(self) -> int:
        """Columns of the queries', keys' and values' projection, a gate among the queries'."""
        queries = (2 if self.gated_attention else 1) * self.heads
        return (queries + 2 * self.kv_heads) * self.head_dim

    @property
    def block_norms(self) -> int:
        """Norms of one block: before it, and with ``post_norms`` behind it."""
        return 2 if self.post_norms else 1

    @property
    def mtp_modules(self) -> int:
        """Number of multi-token-prediction modules with their own weights."""
        return min(1, self.mtp_layers) if self.mtp_shared else self.mtp_layers

    def _passes(self, letter: str) -> int:
        """Number of blocks of this letter that a token passes."""
        mtp = self.mtp_layers * self.mtp_blocks.count(letter) if self.mtp_layers else 0
        return self.block_counts[letter] + mtp

    @property
    def _norm_size(self) -> int:
        return 2 if self.norm == "layernorm" else 1
