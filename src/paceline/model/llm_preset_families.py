"""Fields that many models share, and families of presets that follow one source each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.model.blocks import LatentAttention, MoE
from paceline.model.llm import LLM

# Fields that Llama and all later models here share. A ``rotary_base`` beside them is that of
# Megatron-LM d98e8a6: examples/post_training/modelopt/conf, and examples/mixtral for Mixtral.
MODERN: dict[str, Any] = {
    "gated": True,
    "norm": "rmsnorm",
    "positions": "rotary",
    "tied": False,
    "bias": False,
}


def qwen3_dense() -> Iterator[LLM]:
    """Qwen3 without experts.

    Megatron-Bridge 07d0d14, ``models/qwen/qwen_provider.py``; 4,096 tokens as in the first stage
    of the technical report (3.2).
    """
    shared = {**MODERN, "kv_heads": 8, "head_dim": 128, "vocab": 151936, "seq_len": 4096}
    shared |= {"qk_norm": True, "rotary_base": 1_000_000}
    for size, layers, hidden, heads, ffn, tied in (
        ("0.6b", 28, 1024, 16, 3072, True),
        ("1.7b", 28, 2048, 16, 6144, True),
        ("4b", 36, 2560, 32, 9728, True),
        ("8b", 36, 4096, 32, 12288, False),
        ("14b", 40, 5120, 40, 17408, False),
        ("32b", 64, 5120, 64, 25600, False),
    ):
        yield LLM(
            name=f"qwen3-{size}",
            layers=layers,
            hidden=hidden,
            heads=heads,
            ffn=ffn,
            **{**shared, "tied": tied},
        )


def llama4() -> Iterator[LLM]:
    """Llama 4 without its vision tower.

    Megatron-LM 48047c5, ``examples/post_training/modelopt/conf/meta-llama``; chunks of the
    attention: transformers 5.23, Llama4TextConfig, whose defaults are Scout's.
    """
    for name, experts, every in (("llama4-scout", 16, 1), ("llama4-maverick", 128, 2)):
        yield LLM(
            name=name,
            layers=48,
            hidden=5120,
            heads=40,
            kv_heads=8,
            head_dim=128,
            ffn=16384,
            vocab=202048,
            seq_len=8192,
            rotary_base=500_000,
            window=8192,
            full_every=4,
            chunked=True,
            moe=MoE(experts=experts, top_k=1, ffn=8192, shared_experts=1, every=every),
            left_out="the vision tower",
            **MODERN,
        )


def glm45() -> Iterator[LLM]:
    """GLM-4.5, whose sizes GLM-4.6 has, too (Megatron-Bridge 5f28ae8, glm45_provider.py).

    4,096 tokens as in pre-training (technical report, arXiv 2508.06471). Without multi-token
    prediction, as transformers builds it.
    """
    shared = {**MODERN, "heads": 96, "kv_heads": 8, "head_dim": 128, "vocab": 151552}
    shared |= {"seq_len": 4096, "qkv_bias": True, "rotary_base": 1_000_000}
    yield LLM(
        name="glm-4.5",
        layers=92,
        hidden=5120,
        ffn=12288,
        qk_norm=True,
        moe=MoE(experts=160, top_k=8, ffn=1536, shared_experts=1, dense_layers=3),
        **shared,
    )
    yield LLM(
        name="glm-4.5-air",
        layers=46,
        hidden=4096,
        ffn=10944,
        moe=MoE(experts=128, top_k=8, ffn=1408, shared_experts=1, dense_layers=1),
        **shared,
    )


def minimax_m2() -> Iterator[LLM]:
    """MiniMax-M2 (transformers 5.23, the defaults of MiniMaxM2Config)."""
    yield LLM(
        name="minimax-m2",
        layers=62,
        hidden=3072,
        heads=48,
        kv_heads=8,
        head_dim=128,
        ffn=1536,
        vocab=200064,
        seq_len=4096,
        qk_norm=True,
        qk_norm_wide=True,
        rotary_base=5_000_000,
        moe=MoE(experts=256, top_k=8, ffn=1536),
        **MODERN,
    )


def mistral() -> Iterator[LLM]:
    """Mistral 7B (transformers 5.23, the defaults of MistralConfig)."""
    yield LLM(
        name="mistral-7b",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        ffn=14336,
        vocab=32000,
        seq_len=8192,
        window=4096,
        rotary_base=10_000,
        **MODERN,
    )


def moonlight() -> Iterator[LLM]:
    """Moonlight (moonshotai/Moonlight-16B-A3B, config.json)."""
    yield LLM(
        name="moonlight-16b-a3b",
        layers=27,
        hidden=2048,
        heads=16,
        vocab=163840,
        ffn=11264,
        seq_len=8192,
        moe=MoE(experts=64, top_k=6, ffn=1408, shared_experts=2, dense_layers=1),
        latent=LatentAttention(q_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
        **MODERN,
    )
