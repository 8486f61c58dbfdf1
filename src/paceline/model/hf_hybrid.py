"""Configurations of hybrids of attention with Mamba-2 or DeltaNets."""

from __future__ import annotations

import reprlib
from typing import Any

from paceline.model.delta_net import DeltaNet
from paceline.model.hf_config import HFConfig
from paceline.model.hf_dense import qwen3
from paceline.model.hf_fields import experts_of, mixture
from paceline.model.mamba import Mamba


def qwen3_next(config: HFConfig) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5: gated DeltaNets, gated attention every n-th layer."""
    config.refuse(not config.values.get("mlp_only_layers"), "a list of mlp_only_layers")
    layers, kinds = config.whole("num_hidden_layers"), config.values.get("layer_types")
    every = config.whole("full_attention_interval", 4)
    if isinstance(kinds, list) and "full_attention" in kinds:
        every = kinds.index("full_attention") + 1
    names = ("full_attention", "linear_attention")
    usual = [names[bool((i + 1) % every)] for i in range(layers)]
    config.refuse(kinds is None or kinds == usual, "another order of layer_types")
    delta = DeltaNet(
        key_heads=config.whole("linear_num_key_heads", 16),
        value_heads=config.whole("linear_num_value_heads", 32),
        key_dim=config.whole("linear_key_head_dim", 128),
        value_dim=config.whole("linear_value_head_dim", 128),
        conv=config.whole("linear_conv_kernel_dim", 4),
        full_every=every,
    )
    moe = None
    if "Moe" in config.architecture() or "Next" in config.architecture():
        shared = config.whole("shared_expert_intermediate_size", 512)
        moe = mixture(
            config,
            experts_of(config),
            "moe_intermediate_size",
            shared_experts=int(shared > 0),
            shared_ffn=shared,
            shared_gate=shared > 0,
            every=config.whole("decoder_sparse_step", 1),
        )
    width = config.whole("intermediate_size", config.whole("moe_intermediate_size"))
    fields = qwen3(HFConfig({**config.values, "intermediate_size": width}))
    mtp = config.whole("mtp_num_hidden_layers") or config.whole("num_nextn_predict_layers")
    return {**fields, "gated_attention": True, "delta": delta, "moe": moe, "mtp_layers": mtp}


_BLOCK_OF_TYPE = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}


def _pattern(config: HFConfig, listed: str, letters: str) -> str:
    """Layers as one letter each; newer configs list their names."""
    kinds = config.values.get(listed)
    if kinds is None:
        config.need(letters)
        return config.text(letters)
    good = isinstance(kinds, list) and all(
        isinstance(kind, str) and kind in _BLOCK_OF_TYPE for kind in kinds
    )
    config.refuse(good, f"{listed} {reprlib.repr(kinds)}")
    return "".join(_BLOCK_OF_TYPE[kind] for kind in kinds)


def nemotron_h(config: HFConfig) -> dict[str, Any]:
    """Fields of Nemotron-H and Nemotron 3."""
    config.need("hidden_size", "num_attention_heads", "vocab_size", "mamba_num_heads")
    for key in ("use_bias", "mlp_bias", "attention_bias", "mamba_proj_bias"):
        config.refuse(not config.flag(key, False), f"{key} true")
    config.refuse(config.flag("use_conv_bias", True), "use_conv_bias false")
    pattern, moe = _pattern(config, "layers_block_type", "hybrid_override_pattern"), None
    mtp, mtp_pattern = config.whole("num_nextn_predict_layers"), ""
    if mtp:
        mtp_pattern = _pattern(config, "mtp_layers_block_type", "mtp_hybrid_override_pattern")
    if "E" in pattern:
        shared = config.whole("moe_shared_expert_intermediate_size", 7688)
        # One shared MLP of that width, for any n_shared_experts.
        moe = mixture(
            config,
            "n_routed_experts",
            "moe_intermediate_size",
            shared_experts=int(shared > 0),
            shared_ffn=shared,
            latent=config.whole("moe_latent_size"),
        )
    mamba = Mamba(
        heads=config.whole("mamba_num_heads"),
        head_dim=config.whole("mamba_head_dim", 64),
        state=config.whole("ssm_state_size", 128),
        groups=config.whole("n_groups", 8),
        conv=config.whole("conv_kernel", 4),
        chunk=config.whole("chunk_size", 128),
    )
    return {
        "layers": len(pattern),
        "hidden": config.whole("hidden_size"),
        "heads": config.whole("num_attention_heads"),
        "kv_heads": config.whole("num_key_value_heads", 8),
        "head_dim": config.whole("head_dim") or config.whole("attention_head_dim", 128),
        "vocab": config.whole("vocab_size"),
        "ffn": config.whole("intermediate_size", 21504),
        "context": config.whole("max_position_embeddings", 4096),
        "norm": "rmsnorm",
        "positions": "none",
        "tied": config.flag("tie_word_embeddings", False),
        "bias": False,
        "pattern": pattern,
        "mtp_layers": mtp,
        "mtp_pattern": mtp_pattern,
        "mamba": mamba if "M" in pattern else None,
        "moe": moe,
    }
