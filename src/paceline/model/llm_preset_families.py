"""Fields that many models share, and families of presets that follow one source each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.model.blocks import LatentAttention, MoE
from paceline.model.compressed import CompressedAttention
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


def gemma3() -> Iterator[LLM]:
    """Gemma 3, text: five layers of six have a window.

    The config.json of google/gemma-3-27b-it and of the smaller ones, as litgpt 0006c97 has them
    (``config.py``). The words are transformers' default (5.24, Gemma3TextConfig), but for the
    smallest. 32,768 tokens as in pre-training (technical report, arXiv 2503.19786).
    """
    shared = {**MODERN, "tied": True, "seq_len": 32768, "rotary_base": 1_000_000}
    shared |= {"post_norms": True, "qk_norm": True, "full_every": 6}
    for size, layers, hidden, heads, kv_heads, head_dim, ffn, window, vocab in (
        ("1b", 26, 1152, 4, 1, 256, 6912, 512, 262144),
        ("4b", 34, 2560, 8, 4, 256, 10240, 1024, 262208),
        ("12b", 48, 3840, 16, 8, 256, 15360, 1024, 262208),
        ("27b", 62, 5376, 32, 16, 128, 21504, 1024, 262208),
    ):
        yield LLM(
            name=f"gemma-3-{size}",
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ffn=ffn,
            window=window,
            vocab=vocab,
            left_out="" if size == "1b" else "the vision tower",
            **shared,
        )


def olmo2() -> Iterator[LLM]:
    """OLMo 2 (allenai/OLMo-2-1124-7B and 13B, config.json, as litgpt 0006c97 gives them)."""
    shared = {**MODERN, "vocab": 100352, "seq_len": 4096, "rotary_base": 500_000}
    shared |= {"qk_norm": True, "qk_norm_wide": True}
    for size, layers, hidden, heads, ffn in (
        ("7b", 32, 4096, 32, 11008),
        ("13b", 40, 5120, 40, 13824),
    ):
        yield LLM(
            name=f"olmo-2-{size}", layers=layers, hidden=hidden, heads=heads, ffn=ffn, **shared
        )


def phi4() -> Iterator[LLM]:
    """Phi-4 (microsoft/phi-4, config.json, as litgpt, ``config.py``, gives it).

    4,096 tokens as in pre-training (technical report, arXiv 2412.08905, 3).
    """
    yield LLM(
        name="phi-4",
        layers=40,
        hidden=5120,
        heads=40,
        kv_heads=10,
        ffn=17920,
        vocab=100352,
        seq_len=4096,
        rotary_base=250_000,
        **MODERN,
    )


def nemotron4() -> Iterator[LLM]:
    """Nemotron-4: an MLP of two matrices (squared ReLU), LayerNorms without other biases.

    Megatron-Bridge 04f7cfe, ``models/nemotron/nemotron_provider.py``; its words are transformers'
    default (5.24, NemotronConfig).
    """
    shared = {**MODERN, "gated": False, "norm": "layernorm", "kv_heads": 8, "vocab": 256000}
    for size, layers, hidden, heads, ffn in (
        ("15b", 32, 6144, 48, 24576),
        ("340b", 96, 18432, 96, 73728),
    ):
        yield LLM(
            name=f"nemotron-4-{size}",
            layers=layers,
            hidden=hidden,
            heads=heads,
            ffn=ffn,
            seq_len=4096,
            rotary_base=10_000,
            **shared,
        )


def deepseek_v4() -> Iterator[LLM]:
    """DeepSeek-V4 without multi-token prediction, which transformers leaves out.

    The configs of deepseek-ai/DeepSeek-V4-Flash and -Pro as transformers 5.24 has them (defaults of
    ``DeepseekV4Config``; its module's text for Pro). ``compress_ratios`` and Pro's other numbers
    are those of a published copy of its config. 4,096 tokens as Megatron-Bridge trains (067f987,
    ``deepseek_v4_bridge.py``).
    """
    for name, hidden, heads, q_rank, groups, top_k, experts, ffn, layers in (
        ("flash", 4096, 64, 1024, 8, 512, 256, 2048, "WW" + 20 * "FC" + "F"),
        ("pro", 7168, 128, 1536, 16, 1024, 384, 3072, "CC" + 29 * "FC" + "F"),
    ):
        yield LLM(
            name=f"deepseek-v4-{name}",
            layers=len(layers),
            hidden=hidden,
            heads=heads,
            kv_heads=1,
            head_dim=512,
            vocab=129280,
            seq_len=4096,
            rotary_base=10_000,
            streams=4,
            moe=MoE(experts=experts, top_k=6, ffn=ffn, shared_experts=1),
            compressed=CompressedAttention(
                layers=layers,
                q_rank=q_rank,
                rope_dim=64,
                window=128,
                groups=groups,
                group_rank=1024,
                index_heads=64,
                index_dim=128,
                top_k=top_k,
            ),
            left_out="multi-token prediction",
            **MODERN,
        )
