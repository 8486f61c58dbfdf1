"""Published models by name, each with the source of its dimensions.

``seq_len`` is the length of the (first stage of) pre-training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from paceline.errors import ModelError
from paceline.model.blocks import Indexer, LatentAttention, MoE
from paceline.model.delta_net import DeltaNet
from paceline.model.llm import LLM
from paceline.model.llm_contexts import CONTEXTS
from paceline.model.llm_preset_families import (
    MODERN,
    deepseek_v4,
    gemma3,
    glm45,
    llama4,
    minimax_m2,
    mistral,
    moonlight,
    nemotron4,
    olmo2,
    phi4,
    qwen3_dense,
)
from paceline.model.mamba import Mamba


def llm_preset(name: str) -> LLM:
    """The preset for ``name`` in any spelling.

    Case, dashes, underscores, blanks and parentheses do not count, nor does the organisation of a
    Hugging Face name. "LLAMA3.1_405B" and "meta-llama/Llama-3.1-405B" are both "llama3.1-405b".

    Raises:
        ModelError: no preset has that name; the nearest are named.
    """
    text = str(name)[:80]
    for spelled in (text, text.rpartition("/")[2]):
        preset = _BY_KEY.get(_key(spelled))
        if preset is not None:
            return LLM_PRESETS[preset]
    near = get_close_matches(_key(text), _BY_KEY, n=6, cutoff=0.5)
    names = list(dict.fromkeys(_BY_KEY[key] for key in near))[:3]
    hint = f"; the nearest are {', '.join(names)}" if near else ""
    raise ModelError(f"there is no model preset {text!r}{hint} (`paceline presets` lists all)")


def _key(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum() or c == ".")


def _family(
    prefix: str, rows: tuple[tuple[str, int, int, int], ...], **shared: Any
) -> Iterator[LLM]:
    """One LLM per row (size, layers, hidden, heads) with the ``shared`` fields."""
    for size, layers, hidden, heads in rows:
        yield LLM(name=f"{prefix}-{size}", layers=layers, hidden=hidden, heads=heads, **shared)


def _gpt2() -> Iterator[LLM]:
    # Radford et al. 2019, "Language models are unsupervised multitask learners", Table 2; heads
    # from the released checkpoints' hparams.json.
    rows = (
        ("124m", 12, 768, 12),
        ("355m", 24, 1024, 16),
        ("774m", 36, 1280, 20),
        ("1.5b", 48, 1600, 25),
    )
    return _family("gpt2", rows, vocab=50257, seq_len=1024)


def _gpt3() -> Iterator[LLM]:
    # Brown et al. 2020, "Language models are few-shot learners", Table 2.1. Two of its rows
    # contradict themselves: 1.3b has 24 heads of 128 for a width of 2048, 13b a width of 5140. 16
    # heads and 5120 give the table's counts. The alternating sparse attention of the paper is
    # modelled as dense.
    rows = (
        ("125m", 12, 768, 12),
        ("350m", 24, 1024, 16),
        ("760m", 24, 1536, 16),
        ("1.3b", 24, 2048, 16),
        ("2.7b", 32, 2560, 32),
        ("6.7b", 32, 4096, 32),
        ("13b", 40, 5120, 40),
        ("175b", 96, 12288, 96),
    )
    return _family("gpt3", rows, vocab=50257, seq_len=2048)


def _megatron() -> Iterator[LLM]:
    # Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
    # Megatron-LM", Table 1; 22b and 175b: Korthikanti et al. 2022, "Reducing activation
    # recomputation in large transformer models", Table 3 (whose 530B and 1T are 529.6b and 1008b).
    rows = (
        ("1.7b", 24, 2304, 24),
        ("3.6b", 30, 3072, 32),
        ("7.5b", 36, 4096, 32),
        ("18.4b", 40, 6144, 48),
        ("22b", 48, 6144, 64),
        ("39.1b", 48, 8192, 64),
        ("76.1b", 60, 10240, 80),
        ("145.6b", 80, 12288, 96),
        ("175b", 96, 12288, 96),
        ("310.1b", 96, 16384, 128),
        ("529.6b", 105, 20480, 128),
        ("1008b", 128, 25600, 160),
    )
    return _family("megatron", rows, vocab=51200, seq_len=2048)


def _mt_nlg() -> Iterator[LLM]:
    # Smith et al. 2022, "Using DeepSpeed and Megatron to train Megatron-Turing NLG 530B", 2.2-3.1.
    yield LLM(name="mt-nlg-530b", layers=105, hidden=20480, heads=128, vocab=50257, seq_len=2048)


def _opt() -> Iterator[LLM]:
    # Zhang et al. 2022, "OPT: open pre-trained transformer language models", Table 1; vocabulary
    # and the 2 spare positions from the checkpoints' config.json (facebook/opt-*). Its 350m, with
    # narrow embeddings and norms after the blocks, is not modelled.
    rows = (
        ("125m", 12, 768, 12),
        ("1.3b", 24, 2048, 32),
        ("2.7b", 32, 2560, 32),
        ("6.7b", 32, 4096, 32),
        ("13b", 40, 5120, 40),
        ("30b", 48, 7168, 56),
        ("66b", 64, 9216, 72),
        ("175b", 96, 12288, 96),
    )
    return _family("opt", rows, vocab=50272, seq_len=2048, max_positions=2050, context=2048)


def _llama() -> Iterator[LLM]:
    # Touvron et al. 2023, "Llama 2", Table 1, and config.json of meta-llama/Llama-2-{7b,13b,70b}.
    llama2: dict[str, Any] = {"vocab": 32000, "seq_len": 4096, **MODERN}
    yield LLM(name="llama2-7b", layers=32, hidden=4096, heads=32, ffn=11008, **llama2)
    yield LLM(name="llama2-13b", layers=40, hidden=5120, heads=40, ffn=13824, **llama2)
    yield LLM(name="llama2-70b", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, **llama2)
    # Grattafiori et al. 2024, "The Llama 3 herd of models", Table 3 (a rotary base of 500,000) and
    # 3.4 (8,192 tokens until the long-context stage).
    llama3: dict[str, Any] = {"kv_heads": 8, "vocab": 128256, "seq_len": 8192, **MODERN}
    llama3["rotary_base"] = 500_000
    for family in ("llama3", "llama3.1"):
        yield LLM(name=f"{family}-8b", layers=32, hidden=4096, heads=32, ffn=14336, **llama3)
        yield LLM(name=f"{family}-70b", layers=80, hidden=8192, heads=64, ffn=28672, **llama3)
    # Megatron-LM 2171ea3, examples/post_training/modelopt/conf/meta-llama: Llama-3.2-1B.
    small: dict[str, Any] = {**llama3, "tied": True}
    yield LLM(name="llama3.2-1b", layers=16, hidden=2048, heads=32, ffn=8192, **small)
    yield LLM(name="llama3.1-405b", layers=126, hidden=16384, heads=128, ffn=53248, **llama3)


def _mixtral() -> Iterator[LLM]:
    # Jiang et al. 2024, "Mixtral of experts", Table 1, and config.json of
    # mistralai/Mixtral-8x{7B,22B}-v0.1. Their contexts are 32k and 64k; training benchmarks use
    # 4,096 (NVIDIA's Megatron-Bridge recipes).
    shared: dict[str, Any] = {"kv_heads": 8, "seq_len": 4096, "rotary_base": 1_000_000, **MODERN}
    yield LLM(
        name="mixtral-8x7b",
        layers=32,
        hidden=4096,
        heads=32,
        vocab=32000,
        ffn=14336,
        moe=MoE(experts=8, top_k=2, ffn=14336),
        **shared,
    )
    yield LLM(
        name="mixtral-8x22b",
        layers=56,
        hidden=6144,
        heads=48,
        vocab=32768,
        ffn=16384,
        moe=MoE(experts=8, top_k=2, ffn=16384),
        **shared,
    )


def _deepseek() -> Iterator[LLM]:
    # DeepSeek-AI 2024, "DeepSeek-V3 technical report", 4.2, and its config.json. Published counts
    # (671B, 37B active) leave the multi-token-prediction module out; "-mtp" has it.
    for name, mtp in (("deepseek-v3", 0), ("deepseek-v3-mtp", 1)):
        yield LLM(
            name=name,
            layers=61,
            hidden=7168,
            heads=128,
            vocab=129280,
            ffn=18432,
            seq_len=4096,
            moe=MoE(experts=256, top_k=8, ffn=2048, shared_experts=1, dense_layers=3),
            latent=LatentAttention(
                q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
            ),
            mtp_layers=mtp,
            rotary_base=10_000,
            **MODERN,
        )


def _sparse() -> Iterator[LLM]:
    # transformers 5.23, DeepseekV32Config and GlmMoeDsaConfig, whose defaults are those of
    # deepseek-ai/DeepSeek-V3.2-Exp and zai-org/GLM-5. 4,096 tokens as Megatron-Bridge's recipes of
    # both families pre-train (067f987). Without multi-token prediction, as that has no class there.
    yield LLM(
        name="deepseek-v3.2",
        layers=61,
        hidden=7168,
        heads=128,
        vocab=129280,
        ffn=18432,
        seq_len=4096,
        moe=MoE(experts=256, top_k=8, ffn=2048, shared_experts=1, dense_layers=3),
        latent=LatentAttention(q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
        index=Indexer(heads=64, head_dim=128, top_k=2048),
        **MODERN,
    )
    yield LLM(
        name="glm-5",
        layers=78,
        hidden=6144,
        heads=64,
        vocab=154880,
        ffn=12288,
        seq_len=4096,
        moe=MoE(experts=256, top_k=8, ffn=2048, shared_experts=1, dense_layers=3),
        latent=LatentAttention(q_rank=2048, kv_rank=512, nope_dim=192, rope_dim=64, value_dim=256),
        index=Indexer(heads=32, head_dim=128, top_k=2048),
        **MODERN,
    )


def _kimi() -> Iterator[LLM]:
    # Megatron-LM d98e8a6, examples/post_training/modelopt/conf/moonshotai/Kimi-K2-Instruct.sh; no
    # multi-token prediction.
    kimi_k2 = LLM(
        name="kimi-k2",
        layers=61,
        hidden=7168,
        heads=64,
        vocab=163840,
        ffn=18432,
        seq_len=4096,
        moe=MoE(experts=384, top_k=8, ffn=2048, shared_experts=1, dense_layers=1),
        latent=LatentAttention(q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
        rotary_base=50_000,
        **MODERN,
    )
    yield kimi_k2
    # Trained on from Kimi-K2-Base, with images (moonshotai/Kimi-K2.5, model card; transformers
    # 5.24, Kimi_K25Config: its text is a DeepSeek-V3).
    yield replace(kimi_k2, name="kimi-k2.5", left_out="the vision tower")


def _qwen3() -> Iterator[LLM]:
    # Qwen Team 2025, "Qwen3 technical report", Table 2 and 3.2 (4,096 tokens in the first stage),
    # and config.json of Qwen/Qwen3-{30B-A3B,235B-A22B}. The language models of Qwen3-VL are of the
    # same sizes (text_config of Qwen/Qwen3-VL-{30B-A3B,235B-A22B}-Instruct).
    shared: dict[str, Any] = {
        **MODERN,
        "kv_heads": 4,
        "head_dim": 128,
        "vocab": 151936,
        "seq_len": 4096,
        "qk_norm": True,
    }
    for family, left_out, base in (("qwen3", "", 1_000_000), ("qwen3-vl", "the vision tower", 0)):
        shared["rotary_base"] = base
        yield LLM(
            name=f"{family}-30b-a3b",
            layers=48,
            hidden=2048,
            heads=32,
            ffn=6144,
            moe=MoE(experts=128, top_k=8, ffn=768),
            left_out=left_out,
            **shared,
        )
        yield LLM(
            name=f"{family}-235b-a22b",
            layers=94,
            hidden=4096,
            heads=64,
            ffn=12288,
            moe=MoE(experts=128, top_k=8, ffn=1536),
            left_out=left_out,
            **shared,
        )


def _qwen3_next() -> Iterator[LLM]:
    # transformers 5.23, Qwen3NextConfig, whose defaults are those of
    # Qwen/Qwen3-Next-80B-A3B-Instruct. 4,096 tokens as Megatron-Bridge's performance recipes
    # (067f987, perf_recipes/qwen). "-mtp": with one module, as these recipes train.
    for name, mtp in (("qwen3-next-80b-a3b", 0), ("qwen3-next-80b-a3b-mtp", 1)):
        yield LLM(
            name=name,
            layers=48,
            hidden=2048,
            heads=16,
            kv_heads=2,
            head_dim=256,
            ffn=5632,
            vocab=151936,
            seq_len=4096,
            qk_norm=True,
            gated_attention=True,
            delta=DeltaNet(key_heads=16, value_heads=32),
            moe=MoE(experts=512, top_k=10, ffn=512, shared_experts=1, shared_gate=True),
            mtp_layers=mtp,
            **MODERN,
        )


def _qwen3_5() -> Iterator[LLM]:
    # The language models of Qwen/Qwen3.5-{35B-A3B,397B-A17B}: transformers 5.23,
    # Qwen3_5MoeTextConfig; Megatron-Bridge 067f987, models/qwen_vl/qwen35_vl_provider.py, with
    # one shared expert of a routed one's width. Without multi-token prediction.
    shared: dict[str, Any] = {
        **MODERN,
        "kv_heads": 2,
        "head_dim": 256,
        "vocab": 248320,
        "seq_len": 4096,
        "qk_norm": True,
        "gated_attention": True,
        "left_out": "the vision tower",
    }
    yield LLM(
        name="qwen3.5-35b-a3b",
        layers=40,
        hidden=2048,
        heads=16,
        ffn=512,
        delta=DeltaNet(key_heads=16, value_heads=32),
        moe=MoE(experts=256, top_k=8, ffn=512, shared_experts=1, shared_gate=True),
        **shared,
    )
    yield LLM(
        name="qwen3.5-397b-a17b",
        layers=60,
        hidden=4096,
        heads=32,
        ffn=1024,
        delta=DeltaNet(key_heads=16, value_heads=64),
        moe=MoE(experts=512, top_k=10, ffn=1024, shared_experts=1, shared_gate=True),
        **shared,
    )


def _gpt_oss() -> Iterator[LLM]:
    # OpenAI 2025, "gpt-oss-120b & gpt-oss-20b model card", Table 1 and 2.1-2.3, and config.json of
    # openai/gpt-oss-{20b,120b} (initial_context_length 4,096; the 64 attention sinks of a layer
    # are no parameters here).
    shared: dict[str, Any] = {**MODERN, "bias": True, "window": 128, "window_every": 2}
    shared.update(sinks=True, rotary_base=150_000)
    for size, layers, experts in (("20b", 24, 32), ("120b", 36, 128)):
        yield LLM(
            name=f"gpt-oss-{size}",
            layers=layers,
            hidden=2880,
            heads=64,
            kv_heads=8,
            head_dim=64,
            ffn=2880,
            vocab=201088,
            seq_len=4096,
            moe=MoE(experts=experts, top_k=4, ffn=2880),
            **shared,
        )


_NEMOTRON_H_47B = (
    "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-"
    "M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-"
)


def _nemotron_h() -> Iterator[LLM]:
    # Megatron-Bridge 067f987, recipes/nemotronh/h100/{nemotronh,nemotron_3_nano}.py; fields that
    # these leave out come from its HybridModelProvider (groups, chunks, no positions). Vocabulary:
    # the default of transformers' NemotronHConfig (13923c6), documented there for Nemotron 3 Nano.
    # 56B: Megatron-Bridge d9f7643, models/nemotronh/nemotron_h_provider.py.
    shared: dict[str, Any] = {
        **MODERN,
        "gated": False,  # squared ReLU
        "positions": "none",
        "head_dim": 128,
        "vocab": 131072,
        "seq_len": 8192,
    }
    yield LLM(
        name="nemotron-h-8b",
        layers=52,
        hidden=4096,
        heads=32,
        kv_heads=8,
        ffn=21504,
        pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        mamba=Mamba(heads=128),
        **shared,
    )
    yield LLM(
        name="nemotron-h-56b",
        layers=118,
        hidden=8192,
        heads=64,
        kv_heads=8,
        ffn=32768,
        pattern="M-M-M-M*-" + 9 * "M-M-M-M-M*-" + "M-M-M-M-M-",
        mamba=Mamba(heads=256, state=256),
        **shared,
    )
    # Megatron-LM d98e8a6, examples/post_training/modelopt/conf/nvidia, the file of this name;
    # "-mtp": Megatron-Bridge 067f987, recipes/nemotronh/h100/nemotron_3_super.py, whose two modules
    # are one set of weights.
    modules: dict[str, Any] = {"mtp_layers": 2, "mtp_pattern": "*E", "mtp_shared": True}
    for name, mtp in (("nemotron-3-super", {}), ("nemotron-3-super-mtp", modules)):
        yield LLM(
            name=name,
            layers=88,
            hidden=4096,
            heads=32,
            kv_heads=2,
            ffn=2688,
            pattern="MEMEMEM*EMEMEMEM*EMEMEMEM*" + 4 * "EMEMEMEMEM*" + "EMEMEMEM*EMEMEMEME",
            mamba=Mamba(heads=128),
            moe=MoE(
                experts=512, top_k=22, ffn=2688, shared_experts=1, shared_ffn=5376, latent=1024
            ),
            **mtp,
            **shared,
        )
    # Megatron-LM 0732182 and 2fe2eeb, the same folder.
    yield LLM(
        name="nemotron-3-ultra",
        layers=108,
        hidden=8192,
        heads=64,
        kv_heads=2,
        ffn=5120,
        pattern="MEMEMEM*EMEMEM*"
        + 2 * "EMEMEMEM*EMEMEMEM*EMEMEM*"
        + "EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        mamba=Mamba(heads=256),
        moe=MoE(experts=512, top_k=22, ffn=5120, shared_experts=1, shared_ffn=10240, latent=2048),
        **shared,
    )
    yield LLM(
        name="nemotron-h-47b",
        layers=98,
        hidden=8192,
        heads=64,
        kv_heads=8,
        ffn=30720,
        pattern=_NEMOTRON_H_47B,
        mamba=Mamba(heads=256, state=256),
        **shared,
    )
    yield LLM(
        name="nemotron-3-nano",
        layers=52,
        hidden=2688,
        heads=32,
        kv_heads=2,
        ffn=1856,
        pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        mamba=Mamba(heads=64),
        moe=MoE(experts=128, top_k=6, ffn=1856, shared_experts=1, shared_ffn=3712),
        **shared,
    )


_FAMILIES = (
    _gpt2,
    _gpt3,
    _megatron,
    _mt_nlg,
    _opt,
    _llama,
    llama4,
    mistral,
    _mixtral,
    _deepseek,
    deepseek_v4,
    _sparse,
    glm45,
    minimax_m2,
    moonlight,
    _kimi,
    qwen3_dense,
    _qwen3,
    _qwen3_next,
    _qwen3_5,
    _gpt_oss,
    gemma3,
    olmo2,
    phi4,
    nemotron4,
    _nemotron_h,
)

LLM_PRESETS: Mapping[str, LLM] = MappingProxyType(
    {
        llm.name: replace(llm, context=CONTEXTS.get(llm.name, llm.context))
        for family in _FAMILIES
        for llm in family()
    }
)

# Other names in common use and in published tables.
_ALIASES = {
    "gpt2": "gpt2-124m",
    "gpt2-small": "gpt2-124m",
    "gpt2-medium": "gpt2-355m",
    "gpt2-large": "gpt2-774m",
    "gpt2-xl": "gpt2-1.5b",
    "gpt3": "gpt3-175b",
    "megatron-530b": "megatron-529.6b",
    "megatron-1t": "megatron-1008b",
    "mt-nlg": "mt-nlg-530b",
    "megatron-turing-nlg-530b": "mt-nlg-530b",
    "opt": "opt-175b",
    "llama3-405b": "llama3.1-405b",
    "llama31-8b": "llama3.1-8b",
    "llama31-70b": "llama3.1-70b",
    "llama31-405b": "llama3.1-405b",
    "mixtral": "mixtral-8x7b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mixtral-8x22b-v0.1": "mixtral-8x22b",
    "deepseek-v3 (w/o mtp)": "deepseek-v3",
    "deepseek-v3 (w/ mtp)": "deepseek-v3-mtp",
    "deepseek-v3.2-exp": "deepseek-v3.2",
    "moonlight-16b": "moonlight-16b-a3b",
    "llama3.3-70b": "llama3.1-70b",
    "llama4-scout-17b-16e": "llama4-scout",
    "llama4-maverick-17b-128e": "llama4-maverick",
    "mistral-7b-v0.1": "mistral-7b",
    "glm-4.5-355b-a32b": "glm-4.5",
    "glm-4.5-air-106b-a12b": "glm-4.5-air",
    "glm-4.6": "glm-4.5",
    "glm-4.7": "glm-4.5",
    "phi-4-14b": "phi-4",
    "olmo-2-1124-7b": "olmo-2-7b",
    "olmo-2-1124-13b": "olmo-2-13b",
    "deepseek-v3-671b": "deepseek-v3",
    "deepseek-r1": "deepseek-v3",
    "kimi-k2-thinking": "kimi-k2",
    "nemotron-3-ultra-550b-a55b": "nemotron-3-ultra",
    "kimi-k2-base": "kimi-k2",
    "kimi-k2-instruct": "kimi-k2",
    "qwen3-30b": "qwen3-30b-a3b",
    "qwen3-235b": "qwen3-235b-a22b",
    "qwen3-next": "qwen3-next-80b-a3b",
    "qwen3-next-80b": "qwen3-next-80b-a3b",
    "qwen3-next-80b-a3b-instruct": "qwen3-next-80b-a3b",
    **{
        f"{family}-{size}": f"qwen3.5-{size}"
        for family in ("qwen35", "qwen3.5-vl", "qwen35-vl")
        for size in ("35b-a3b", "397b-a17b")
    },
    "qwen3-vl-30b": "qwen3-vl-30b-a3b",
    "qwen3-vl-30b-a3b-instruct": "qwen3-vl-30b-a3b",
    "qwen3-vl-235b": "qwen3-vl-235b-a22b",
    "qwen3-vl-235b-a22b-instruct": "qwen3-vl-235b-a22b",
    "nemotron-h-8b-base-8k": "nemotron-h-8b",
    "nemotron-h-56b-base-8k": "nemotron-h-56b",
    "nemotron-3-super-120b-a12b": "nemotron-3-super",
    "nvidia-nemotron-3-super-120b-a12b-bf16": "nemotron-3-super",
    "nemotron-3-super (w/o mtp)": "nemotron-3-super",
    "nemotron-3-super (w/ mtp)": "nemotron-3-super-mtp",
    "nemotron-3-nano-30b-a3b": "nemotron-3-nano",
    "nvidia-nemotron-3-nano-30b-a3b-bf16": "nemotron-3-nano",
}

_BY_KEY = {_key(name): name for name in LLM_PRESETS} | {
    _key(alias): name for alias, name in _ALIASES.items()
}
