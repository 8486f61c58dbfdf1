"""Configurations of DeepSeek-V4 as fields of an LLM."""

from __future__ import annotations

from typing import Any

from paceline.model.compressed import COARSE, FINE, WINDOW, CompressedAttention
from paceline.model.hf_config import HFConfig
from paceline.model.hf_fields import mixture

_LETTERS = {
    "sliding_attention": WINDOW,
    "compressed_sparse_attention": FINE,
    "heavily_compressed_attention": COARSE,
}
_BASE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim", "vocab_size")
_OWN = (
    *("q_lora_rank", "sliding_window", "o_groups", "o_lora_rank", "index_n_heads"),
    *("index_head_dim", "index_topk", "hc_mult", "max_position_embeddings"),
)


def deepseek_v4(config: HFConfig) -> dict[str, Any]:
    """Fields of DeepSeek-V4, without multi-token prediction, which transformers leaves out."""
    config.need(*_BASE, *_OWN)
    config.refuse(config.whole("num_key_value_heads", 1) == 1, "more than one key")
    layers, width = config.whole("num_hidden_layers"), config.whole("head_dim")
    rates = _rates(config)
    return {
        "layers": layers,
        "hidden": config.whole("hidden_size"),
        "heads": config.whole("num_attention_heads"),
        "vocab": config.whole("vocab_size"),
        "context": config.whole("max_position_embeddings"),
        "kv_heads": 1,
        "head_dim": width,
        "gated": True,
        "norm": "rmsnorm",
        "positions": "rotary",
        "tied": config.flag("tie_word_embeddings", False),
        "bias": config.flag("attention_bias", False),
        "streams": config.whole("hc_mult"),
        "moe": mixture(
            config,
            "n_routed_experts",
            "moe_intermediate_size",
            shared_experts=config.whole("n_shared_experts"),
        ),
        "compressed": CompressedAttention(
            layers=_kinds(config, layers, rates),
            q_rank=config.whole("q_lora_rank"),
            rope_dim=config.whole("qk_rope_head_dim", width // 8),
            window=config.whole("sliding_window"),
            groups=config.whole("o_groups"),
            group_rank=config.whole("o_lora_rank"),
            index_heads=config.whole("index_n_heads"),
            index_dim=config.whole("index_head_dim"),
            top_k=config.whole("index_topk"),
            fine=rates[FINE],
            coarse=rates[COARSE],
        ),
        "left_out": "multi-token prediction" if config.whole("num_nextn_predict_layers") else "",
    }


def _rates(config: HFConfig) -> dict[str, int]:
    given = config.values.get("compress_rates")
    named = HFConfig(given if isinstance(given, dict) else {})
    usual = {
        FINE: ("compressed_sparse_attention", 4),
        COARSE: ("heavily_compressed_attention", 128),
    }
    return {letter: named.whole(key, rate) for letter, (key, rate) in usual.items()}


def _kinds(config: HFConfig, layers: int, rates: dict[str, int]) -> str:
    """A letter per layer; surplus ``compress_ratios`` are of multi-token prediction."""
    kinds, ratios = config.values.get("layer_types"), config.values.get("compress_ratios")
    if isinstance(kinds, list):
        letters = [_LETTERS.get(str(kind), "") for kind in kinds]
    else:
        config.refuse(isinstance(ratios, list), "neither layer_types nor compress_ratios")
        of_rate = {0: WINDOW, rates[FINE]: FINE, rates[COARSE]: COARSE}
        letters = [of_rate.get(rate, "") for rate in ratios or ()][:layers]
    config.refuse(len(letters) == layers and all(letters), "another order of layer_types")
    return "".join(letters)
