"""A Hugging Face ``config.json`` read as an LLM, for the architectures that can be counted exactly.

Field names and their defaults are those of the ``transformers`` configuration classes.
"""

from __future__ import annotations

import json
import os
import reprlib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.model.blocks import LatentAttention, MoE
from paceline.model.llm import LLM
from paceline.model.mamba import Mamba

MAX_NAME = 60  # characters of a model's name that are kept
MAX_BYTES = 1 << 22  # of a config.json; real ones have a few thousand


def from_hf(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    seq_len: int | None = None,
    name: str = "",
) -> LLM:
    """The model that a ``config.json`` describes.

    Args:
        source: the file, the folder that holds it, or its content.
        seq_len: tokens of one training sample; None = the context before any stretching of the
            rotary positions (``original_max_position_embeddings``), else the whole context.
        name: what to call the model; "" = the config's ``_name_or_path``, or the folder, or the
            ``model_type``.

    Raises:
        ModelError: the file is missing or is no JSON object, the architecture is not modelled, or
            a field is missing, of the wrong type, or asks for what is not modelled.
    """
    if isinstance(source, Mapping):
        where, folder, content = "the config", "", source
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        folder = path.absolute().parent.name if path.name == "config.json" else path.stem
        where, content = str(path), _load(path)
    config = _Config(content)
    try:
        return _read(config, seq_len, name or config.text("_name_or_path") or folder)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None


def _read(config: _Config, seq_len: int | None, name: str) -> LLM:
    architecture = config.architecture()
    reader = _READERS.get(architecture)
    if reader is None:
        raise ModelError(_refusal_text(architecture, config))
    values = reader(config)
    context = values.pop("context")
    length = config.original_context() or context if seq_len is None else seq_len
    if values.get("positions") == "learned":
        values.setdefault("max_positions", context)
    label = _printable(name or config.text("model_type") or architecture)
    return LLM(name=label, seq_len=length, **values)


@dataclass(frozen=True, slots=True)
class _Config:
    """The fields of a config; every complaint names the field."""

    values: Mapping[str, Any]

    def need(self, *keys: str) -> None:
        missing = [key for key in keys if self.values.get(key) is None]
        if missing:
            raise ModelError(f"it lacks {', '.join(missing)}, which {self.architecture()} needs")

    def whole(self, key: str, default: int = 0) -> int:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            text = reprlib.repr(value)
            raise ModelError(f"{key} must be a whole number, not {text}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            text = reprlib.repr(value)
            raise ModelError(f"{key} must be true or false, not {text}")
        return value

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def refuse(self, unless: bool, feature: str) -> None:
        if not unless:
            raise ModelError(f"{feature} is not modelled for {self.architecture()}")

    def architecture(self) -> str:
        names = self.values.get("architectures")
        if isinstance(names, list | tuple) and names and isinstance(names[0], str):
            return names[0]
        kind = self.text("model_type")
        if not kind:
            raise ModelError(
                "it names neither architectures nor model_type; is it the config.json of a model?"
            )
        return _MODEL_TYPES.get(kind, kind)

    def original_context(self) -> int:
        """Context before the rotary positions were stretched; 0 where they were not."""
        for key in ("rope_scaling", "rope_parameters"):
            scaling = self.values.get(key)
            if isinstance(scaling, Mapping):
                return _Config(scaling).whole("original_max_position_embeddings")
        return 0


def _load(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"cannot read {path}: {reason}") from None
    if len(raw) > MAX_BYTES:
        raise ModelError(f"{path} is too long for a config.json; is it another file?")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object but {reprlib.repr(content)}")
    return content


def _printable(name: str) -> str:
    # Control characters would reach the terminal.
    printable = "".join(c for c in name if unicodedata.category(c)[0] != "C")
    return printable.rstrip("/").rpartition("/")[2][:MAX_NAME] or "model"


_LLAMA_NEEDS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


def _refusal_text(architecture: str, config: _Config) -> str:
    missing = [key for key in _LLAMA_NEEDS if config.values.get(key) is None]
    lacks = f" and lacks {', '.join(missing)} of a Llama-like model" if missing else ""
    modelled = ", ".join(_READERS)
    return (
        f"it is a {_printable(architecture)}, which is not modelled{lacks}; modelled "
        f"are {modelled}. Write the model's fields in the job file instead"
    )


def _sizes(config: _Config) -> dict[str, Any]:
    """The fields that Llama's names give."""
    config.need(*_LLAMA_NEEDS)
    return {
        "layers": config.whole("num_hidden_layers"),
        "hidden": config.whole("hidden_size"),
        "heads": config.whole("num_attention_heads"),
        "vocab": config.whole("vocab_size"),
        "ffn": config.whole("intermediate_size"),
        "context": config.whole("max_position_embeddings"),
    }


def _modern(config: _Config, tied: bool = False) -> dict[str, Any]:
    """A pre-norm RMSNorm model with a gated MLP, rotary positions and grouped-query attention."""
    bias = config.flag("attention_bias", False)
    same_bias = bias == config.flag("mlp_bias", False)
    config.refuse(same_bias, "a bias in the attention or the MLP alone")
    return {
        **_sizes(config),
        "kv_heads": config.whole("num_key_value_heads"),
        "head_dim": config.whole("head_dim"),
        "gated": True,
        "norm": "rmsnorm",
        "positions": "rotary",
        "tied": config.flag("tie_word_embeddings", tied),
        "bias": bias,
    }


def _moe(config: _Config, experts: str, ffn: str, **others: int) -> MoE:
    """The mixture of experts whose number and width the fields ``experts`` and ``ffn`` give."""
    config.need(experts, "num_experts_per_tok", ffn)
    top_k = config.whole("num_experts_per_tok")
    return MoE(experts=config.whole(experts), top_k=top_k, ffn=config.whole(ffn), **others)


def _gpt2(config: _Config) -> dict[str, Any]:
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


def _opt(config: _Config) -> dict[str, Any]:
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


def _gpt_neox(config: _Config) -> dict[str, Any]:
    config.refuse(config.flag("attention_bias", True), "attention_bias false")
    return {
        **_sizes(config),
        "positions": "rotary",
        "tied": config.flag("tie_word_embeddings", False),
    }


def _llama(config: _Config) -> dict[str, Any]:
    return _modern(config)


def _mistral(config: _Config) -> dict[str, Any]:
    config.need("num_key_value_heads")
    return {**_modern(config), "window": config.whole("sliding_window") or None}


def _mixtral(config: _Config) -> dict[str, Any]:
    moe = _moe(config, "num_local_experts", "intermediate_size")
    return {**_mistral(config), "moe": moe}


def _qwen2(config: _Config) -> dict[str, Any]:
    config.need("num_key_value_heads")
    config.refuse(not config.flag("use_sliding_window", False), "use_sliding_window true")
    return {**_modern(config), "qkv_bias": True}


def _qwen3(config: _Config) -> dict[str, Any]:
    config.need("num_key_value_heads", "head_dim")
    config.refuse(not config.flag("use_sliding_window", False), "use_sliding_window true")
    return {**_modern(config), "qk_norm": True}


def _qwen3_moe(config: _Config) -> dict[str, Any]:
    config.refuse(not config.values.get("mlp_only_layers"), "a list of mlp_only_layers")
    step = config.whole("decoder_sparse_step", 1)
    # transformers 5 saves the number under its general name.
    experts = "num_local_experts" if "num_local_experts" in config.values else "num_experts"
    moe = _moe(config, experts, "moe_intermediate_size", every=step)
    return {**_qwen3(config), "moe": moe}


def _qwen3_vl(config: _Config) -> dict[str, Any]:
    text = config.values.get("text_config")
    if not isinstance(text, Mapping):
        config.need("text_config")
        raise ModelError("text_config must be a mapping of the language model's fields")
    # Tied ends are said of the whole model.
    tied = {"tie_word_embeddings": config.flag("tie_word_embeddings", False)}
    mixture = "Moe" if "Moe" in config.architecture() else ""
    architecture = f"Qwen3{mixture}ForCausalLM"
    language = _Config({**text, **tied, "architectures": [architecture]})
    return {**_READERS[architecture](language), "left_out": "the vision tower"}


def _deepseek(config: _Config) -> dict[str, Any]:
    latent = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    config.need(*latent)
    config.refuse(config.whole("moe_layer_freq", 1) == 1, "moe_layer_freq other than 1")
    kv_rank, nope, rope, value = (config.whole(key) for key in latent)
    moe = _moe(
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
    fields = _modern(config)
    # Its configs repeat the rotary width as head_dim; the latent attention has its own widths.
    return {
        **fields,
        "kv_heads": 0,
        "head_dim": 0,
        "moe": moe,
        "latent": attention,
        "mtp_layers": config.whole("num_nextn_predict_layers"),
    }


def _gpt_oss(config: _Config) -> dict[str, Any]:
    config.need("num_key_value_heads", "head_dim", "sliding_window")
    config.refuse(config.flag("attention_bias", True), "attention_bias false")
    kinds = config.values.get("layer_types")
    if kinds is not None:
        layers = config.whole("num_hidden_layers")
        pattern = [("sliding_attention", "full_attention")[i % 2] for i in range(layers)]
        config.refuse(kinds == pattern, "another order of layer_types than sliding, full, ...")
    moe = _moe(config, "num_local_experts", "intermediate_size")
    return {
        **_sizes(config),
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


def _gemma(config: _Config) -> dict[str, Any]:
    config.need("num_key_value_heads", "head_dim")
    return _modern(config, tied=True)


_BLOCK_OF_TYPE = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}


def _pattern(config: _Config) -> str:
    """Layers as one letter each; newer configs list them by name."""
    kinds = config.values.get("layers_block_type")
    if kinds is None:
        config.need("hybrid_override_pattern")
        return config.text("hybrid_override_pattern")
    good = isinstance(kinds, list) and all(
        isinstance(kind, str) and kind in _BLOCK_OF_TYPE for kind in kinds
    )
    config.refuse(good, f"layers_block_type {reprlib.repr(kinds)}")
    return "".join(_BLOCK_OF_TYPE[kind] for kind in kinds)


def _nemotron_h(config: _Config) -> dict[str, Any]:
    config.need("hidden_size", "num_attention_heads", "vocab_size", "mamba_num_heads")
    for key in ("use_bias", "mlp_bias", "attention_bias", "mamba_proj_bias"):
        config.refuse(not config.flag(key, False), f"{key} true")
    config.refuse(config.flag("use_conv_bias", True), "use_conv_bias false")
    config.refuse(not config.whole("moe_latent_size"), "moe_latent_size")
    config.refuse(not config.whole("num_nextn_predict_layers"), "multi-token prediction")
    pattern, moe = _pattern(config), None
    if "E" in pattern:
        shared = config.whole("moe_shared_expert_intermediate_size", 7688)
        # One shared MLP of that width, whatever n_shared_experts says.
        moe = _moe(
            config,
            "n_routed_experts",
            "moe_intermediate_size",
            shared_experts=int(shared > 0),
            shared_ffn=shared,
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
        "mamba": mamba if "M" in pattern else None,
        "moe": moe,
    }


def _windows(config: _Config, default: int) -> dict[str, Any]:
    """Sliding windows on all layers but every n-th, as ``layer_types`` lists them."""
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


def _gemma2(config: _Config) -> dict[str, Any]:
    return {**_gemma(config), **_windows(config, 2), "post_norms": True}


def _gemma3(config: _Config) -> dict[str, Any]:
    return {**_gemma(config), **_windows(config, 6), "post_norms": True, "qk_norm": True}


def _olmo2(config: _Config) -> dict[str, Any]:
    return {**_modern(config), "qk_norm": True, "qk_norm_wide": True}


def _olmo3(config: _Config) -> dict[str, Any]:
    return {**_olmo2(config), **_windows(config, 4)}


def _phi3(config: _Config) -> dict[str, Any]:
    fields = _modern(config)
    context = config.whole("original_max_position_embeddings") or fields["context"]
    return {**fields, "context": context, "window": config.whole("sliding_window") or None}


def _glm4_moe(config: _Config) -> dict[str, Any]:
    config.need("num_key_value_heads")
    bias = config.flag("attention_bias", False)  # of queries, keys and values alone
    fields = _modern(_Config({**config.values, "attention_bias": False}))
    moe = _moe(
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


def _minimax_m2(config: _Config) -> dict[str, Any]:
    config.need("num_key_value_heads", "head_dim")
    kinds = config.values.get("attn_type_list")
    config.refuse(not kinds or set(kinds) == {1}, "linear attention in attn_type_list")
    norm = config.flag("use_qk_norm", True)
    moe = _moe(config, "num_local_experts", "intermediate_size")
    return {**_modern(config), "qk_norm": norm, "qk_norm_wide": norm, "moe": moe}


def _llama4(config: _Config) -> dict[str, Any]:
    config.need("num_key_value_heads", "head_dim", "intermediate_size_mlp")
    chunk, every = config.whole("attention_chunk_size"), config.whole("no_rope_layer_interval", 4)
    moe = _moe(
        config,
        "num_local_experts",
        "intermediate_size",
        shared_experts=1,
        every=config.whole("interleave_moe_layer_step", 1),
    )
    chunks = {"window": chunk, "full_every": every, "chunked": True} if chunk else {}
    return {**_modern(config), "ffn": config.whole("intermediate_size_mlp"), "moe": moe, **chunks}


_READERS: dict[str, Callable[[_Config], dict[str, Any]]] = {
    "GPT2LMHeadModel": _gpt2,
    "OPTForCausalLM": _opt,
    "GPTNeoXForCausalLM": _gpt_neox,
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Qwen3VLForConditionalGeneration": _qwen3_vl,
    "Qwen3VLMoeForConditionalGeneration": _qwen3_vl,
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "KimiK2ForCausalLM": _deepseek,
    "GptOssForCausalLM": _gpt_oss,
    "GemmaForCausalLM": _gemma,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Olmo2ForCausalLM": _olmo2,
    "Olmo3ForCausalLM": _olmo3,
    "Phi3ForCausalLM": _phi3,
    "Glm4MoeForCausalLM": _glm4_moe,
    "MiniMaxM2ForCausalLM": _minimax_m2,
    "Llama4ForCausalLM": _llama4,
    "NemotronHForCausalLM": _nemotron_h,
}

_MODEL_TYPES = {
    "gpt2": "GPT2LMHeadModel",
    "opt": "OPTForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "KimiK2ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
}
