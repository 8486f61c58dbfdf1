"""LLM fields from configuration fields that many Hugging Face models share."""

from __future__ import annotations

from typing import Any

from paceline.model.blocks import MoE
from paceline.model.hf_config import HFConfig

LLAMA_NEEDS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


def sizes(config: HFConfig) -> dict[str, Any]:
    """The LLM fields from Llama's field names."""
    config.need(*LLAMA_NEEDS)
    return {
        "layers": config.whole("num_hidden_layers"),
        "hidden": config.whole("hidden_size"),
        "heads": config.whole("num_attention_heads"),
        "vocab": config.whole("vocab_size"),
        "ffn": config.whole("intermediate_size"),
        "context": config.whole("max_position_embeddings"),
    }


def modern(config: HFConfig, tied: bool = False) -> dict[str, Any]:
    """A pre-norm RMSNorm model with a gated MLP, rotary positions and grouped-query attention."""
    bias = config.flag("attention_bias", False)
    same_bias = bias == config.flag("mlp_bias", False)
    config.refuse(same_bias, "a bias in the attention or the MLP alone")
    return {
        **sizes(config),
        "kv_heads": config.whole("num_key_value_heads"),
        "head_dim": config.whole("head_dim"),
        "gated": True,
        "norm": "rmsnorm",
        "positions": "rotary",
        "tied": config.flag("tie_word_embeddings", tied),
        "bias": bias,
    }


def mixture(config: HFConfig, experts: str, ffn: str, **others: Any) -> MoE:
    """The mixture of experts; fields ``experts`` and ``ffn`` have their number and width."""
    config.need(experts, "num_experts_per_tok", ffn)
    top_k = config.whole("num_experts_per_tok")
    return MoE(experts=config.whole(experts), top_k=top_k, ffn=config.whole(ffn), **others)


def experts_of(config: HFConfig) -> str:
    """Name of the field with the number of experts; transformers 5 may use its general name."""
    return "num_local_experts" if "num_local_experts" in config.values else "num_experts"


def windows(config: HFConfig, default: int) -> dict[str, Any]:
    """Sliding windows on all layers except every n-th, from ``layer_types``."""
    window, kinds = config.whole("sliding_window"), config.values.get("layer_types")
    if not window:
        return {}
    layers, every = (
        config.whole("num_hidden_layers"),
        config.whole("sliding_window_pattern", default),
    )
    if isinstance(kinds, list) and "full_attention" in kinds:
        every = kinds.index("full_attention") + 1
    pattern = [
        "full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)
    ]
    config.refuse(kinds is None or kinds == pattern, "another order of layer_types")
    return {"window": window, "full_every": every}
