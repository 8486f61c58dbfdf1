"""Configurations of dense models: each reader gives the fields of an LLM."""

from __future__ import annotations

from typing import Any

from paceline.model.hf_config import HFConfig
from paceline.model.hf_fields import modern, sizes, windows


def gpt2(config: HFConfig) -> dict[str, Any]:
    """Fields of GPT-2."""
    config.need("n_layer", "n_embd", "n_head", "vocab_size", "n_positions")
    config.refuse(not config.flag("add_cross_attention", False), "add_cross_attention")
    return {
        "layers": config.whole("n_layer"),
        "hidden": config.whole("n_embd"),
        "heads": config.whole("n_head"),
        "vocab": config.whole("vocab_size"),
        "ffn": config.whole("n_inner"),
        "context": config.whole("n_positions"),
        "positions": "learned",
        "tied": config.flag("tie_word_embeddings", True),
    }


def opt(config: HFConfig) -> dict[str, Any]:
    """Fields of OPT."""
    config.need(
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "ffn_dim",
        "vocab_size",
        "max_position_embeddings",
    )
    hidden = config.whole("hidden_size")
    narrow = config.whole("word_embed_proj_dim", hidden)
    config.refuse(narrow == hidden, f"word_embed_proj_dim {narrow} beside hidden_size {hidden}")
    config.refuse(config.flag("do_layer_norm_before", True), "do_layer_norm_before false")
    affine = config.flag("layer_norm_elementwise_affine", True)
    config.refuse(affine, "layer_norm_elementwise_affine false")
    context = config.whole("max_position_embeddings")
    return {
        "layers": config.whole("num_hidden_layers"),
        "hidden": hidden,
        "heads": config.whole("num_attention_heads"),
        "vocab": config.whole("vocab_size"),
        "ffn": config.whole("ffn_dim"),
        "context": context,
        "max_positions": context + 2,  # OPTLearnedPositionalEmbedding keeps two spare rows
        "positions": "learned",
        "tied": config.flag("tie_word_embeddings", True),
        "bias": config.flag("enable_bias", True),
    }


def gpt_neox(config: HFConfig) -> dict[str, Any]:
    """Fields of GPT-NeoX."""
    config.refuse(config.flag("attention_bias", True), "attention_bias false")
    return {
        **sizes(config),
        "positions": "rotary",
        "tied": config.flag("tie_word_embeddings", False),
    }


def llama(config: HFConfig) -> dict[str, Any]:
    """Fields of Llama 2 and 3."""
    return modern(config)


def mistral(config: HFConfig) -> dict[str, Any]:
    """Fields of Mistral."""
    config.need("num_key_value_heads")
    return {**modern(config), "window": config.whole("sliding_window") or None}


def qwen2(config: HFConfig) -> dict[str, Any]:
    """Fields of Qwen2."""
    config.need("num_key_value_heads")
    config.refuse(not config.flag("use_sliding_window", False), "use_sliding_window true")
    return {**modern(config), "qkv_bias": True}


def qwen3(config: HFConfig) -> dict[str, Any]:
    """Fields of Qwen3."""
    config.need("num_key_value_heads", "head_dim")
    config.refuse(not config.flag("use_sliding_window", False), "use_sliding_window true")
    return {**modern(config), "qk_norm": True}


def gemma(config: HFConfig) -> dict[str, Any]:
    """Fields of Gemma."""
    config.need("num_key_value_heads", "head_dim")
    return modern(config, tied=True)


def gemma2(config: HFConfig) -> dict[str, Any]:
    """Fields of Gemma 2."""
    return {**gemma(config), **windows(config, 2), "post_norms": True}


def gemma3(config: HFConfig) -> dict[str, Any]:
    """Fields of Gemma 3, text."""
    return {**gemma(config), **windows(config, 6), "post_norms": True, "qk_norm": True}


def olmo2(config: HFConfig) -> dict[str, Any]:
    """Fields of OLMo 2."""
    return {**modern(config), "qk_norm": True, "qk_norm_wide": True}


def olmo3(config: HFConfig) -> dict[str, Any]:
    """Fields of OLMo 3."""
    return {**olmo2(config), **windows(config, 4)}


def phi3(config: HFConfig) -> dict[str, Any]:
    """Fields of Phi-3 and Phi-4."""
    fields = modern(config)
    context = config.whole("original_max_position_embeddings") or fields["context"]
    return {**fields, "context": context, "window": config.whole("sliding_window") or None}
