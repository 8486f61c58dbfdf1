"""Configurations of mixtures of experts: each reader gives the fields of an LLM."""

from __future__ import annotations

from typing import Any

from paceline.model.blocks import Indexer, LatentAttention
from paceline.model.hf_config import HFConfig
from paceline.model.hf_dense import mistral, qwen3
from paceline.model.hf_fields import experts_of, mixture, modern, sizes


def mixtral(config: HFConfig) -> dict[str, Any]:
    """Fields of Mixtral."""
    moe = mixture(config, "num_local_experts", "intermediate_size")
    return {**mistral(config), "moe": moe}


def qwen3_moe(config: HFConfig) -> dict[str, Any]:
    """Fields of Qwen3's mixtures."""
    config.refuse(not config.values.get("mlp_only_layers"), "a list of mlp_only_layers")
    step = config.whole("decoder_sparse_step", 1)
    moe = mixture(config, experts_of(config), "moe_intermediate_size", every=step)
    return {**qwen3(config), "moe": moe}


def deepseek(config: HFConfig) -> dict[str, Any]:
    """Fields of DeepSeek-V2 and V3, Kimi K2."""
    latent = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    config.need(*latent)
    config.refuse(config.whole("moe_layer_freq", 1) == 1, "moe_layer_freq other than 1")
    kv_rank, nope, rope, value = (config.whole(key) for key in latent)
    moe = mixture(
        config,
        "n_routed_experts",
        "moe_intermediate_size",
        shared_experts=config.whole("n_shared_experts"),
        dense_layers=config.whole("first_k_dense_replace"),
    )
    attention = LatentAttention(
        q_rank=config.whole("q_lora_rank") or None,
        kv_rank=kv_rank,
        nope_dim=nope,
        rope_dim=rope,
        value_dim=value,
    )
    fields = modern(config)
    # Its configs repeat the rotary width as head_dim; the latent attention has its own widths.
    return {
        **fields,
        "kv_heads": 0,
        "head_dim": 0,
        "moe": moe,
        "latent": attention,
        "mtp_layers": config.whole("num_nextn_predict_layers"),
    }


def deepseek_v32(config: HFConfig) -> dict[str, Any]:
    """DeepSeek V3.2 and GLM-5: all layers have an indexer."""
    sizes = ("index_n_heads", "index_head_dim", "index_topk")
    config.need("q_lora_rank", *sizes)
    heads, width, top_k = (config.whole(key) for key in sizes)
    shared = config.whole("index_topk_freq", 1) > 1 or bool(config.values.get("index_topk_pattern"))
    kinds = config.values.get("indexer_types")
    own = not shared if kinds is None else isinstance(kinds, list) and set(kinds) == {"full"}
    config.refuse(own, "an indexer that layers share")
    layers, dense = config.whole("num_hidden_layers"), config.whole("first_k_dense_replace", 3)
    mlps, usual = config.values.get("mlp_layer_types"), ["dense"] * dense
    usual += ["sparse"] * (layers - dense)
    config.refuse(mlps is None or mlps == usual, "another order of mlp_layer_types")
    fields = deepseek(HFConfig({**config.values, "first_k_dense_replace": dense}))
    return {**fields, "index": Indexer(heads=heads, head_dim=width, top_k=top_k)}


def gpt_oss(config: HFConfig) -> dict[str, Any]:
    """Fields of GPT-OSS."""
    config.need("num_key_value_heads", "head_dim", "sliding_window")
    config.refuse(config.flag("attention_bias", True), "attention_bias false")
    kinds = config.values.get("layer_types")
    if kinds is not None:
        layers = config.whole("num_hidden_layers")
        pattern = [("sliding_attention", "full_attention")[i % 2] for i in range(layers)]
        config.refuse(kinds == pattern, "another order of layer_types than sliding, full, ...")
    moe = mixture(config, "num_local_experts", "intermediate_size")
    return {
        **sizes(config),
        "kv_heads": config.whole("num_key_value_heads"),
        "head_dim": config.whole("head_dim"),
        "gated": True,
        "norm": "rmsnorm",
        "positions": "rotary",
        "tied": config.flag("tie_word_embeddings", False),
        "window": config.whole("sliding_window"),
        "window_every": 2,
        "sinks": True,
        "moe": moe,
    }


def glm4_moe(config: HFConfig) -> dict[str, Any]:
    """Fields of GLM-4.5 and 4.6."""
    config.need("num_key_value_heads")
    bias = config.flag("attention_bias", False)  # only for queries, keys and values
    fields = modern(HFConfig({**config.values, "attention_bias": False}))
    moe = mixture(
        config,
        "n_routed_experts",
        "moe_intermediate_size",
        shared_experts=config.whole("n_shared_experts"),
        dense_layers=config.whole("first_k_dense_replace"),
    )
    return {
        **fields,
        "head_dim": fields["head_dim"] or fields["hidden"] // max(1, fields["heads"]),
        "qkv_bias": bias,
        "qk_norm": config.flag("use_qk_norm", False),
        "moe": moe,
        "mtp_layers": config.whole("num_nextn_predict_layers"),
    }


def minimax_m2(config: HFConfig) -> dict[str, Any]:
    """Fields of MiniMax-M2."""
    config.need("num_key_value_heads", "head_dim")
    kinds = config.values.get("attn_type_list")
    config.refuse(not kinds or set(kinds) == {1}, "linear attention in attn_type_list")
    norm = config.flag("use_qk_norm", True)
    moe = mixture(config, "num_local_experts", "intermediate_size")
    return {**modern(config), "qk_norm": norm, "qk_norm_wide": norm, "moe": moe}


def llama4(config: HFConfig) -> dict[str, Any]:
    """Fields of Llama 4, text."""
    config.need("num_key_value_heads", "head_dim", "intermediate_size_mlp")
    chunk, every = config.whole("attention_chunk_size"), config.whole("no_rope_layer_interval", 4)
    moe = mixture(
        config,
        "num_local_experts",
        "intermediate_size",
        shared_experts=1,
        every=config.whole("interleave_moe_layer_step", 1),
    )
    chunks = {"window": chunk, "full_every": every, "chunked": True} if chunk else {}
    return {**modern(config), "ffn": config.whole("intermediate_size_mlp"), "moe": moe, **chunks}
