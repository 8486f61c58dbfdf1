"""A Hugging Face ``config.json`` read as an LLM, for the architectures that can be counted exactly.

Field names and their defaults are those of the ``transformers`` configuration classes.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.model.blocks import Indexer, LatentAttention, MoE
from paceline.model.delta_net import DeltaNet
from paceline.model.hf_config import HFConfig, load_config, printable_name
from paceline.model.hf_vision import vision_tower
from paceline.model.llm import LLM
from paceline.model.mamba import Mamba


def from_hf(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    seq_len: int | None = None,
    name: str = "",
    images: int | None = None,
) -> LLM:
    """The model that a ``config.json`` describes.

    Args:
        source: the file, the folder that holds it, or its content.
        seq_len: tokens of one training sample; None = the context before any stretching of the
            rotary positions (``original_max_position_embeddings``), else the whole context.
        name: what to call the model; "" = the config's ``_name_or_path``, or the folder, or the
            ``model_type``.
        images: images of one training sample (Llama 4: tiles), by which the vision tower is
            counted; None = it is left out.

    Raises:
        ModelError: the file is missing or is no JSON object, the architecture is not modelled, or
            a field is missing, of the wrong type, or asks for an unmodelled feature.
    """
    if isinstance(source, Mapping):
        where, folder, content = "the config", "", source
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        folder = path.absolute().parent.name if path.name == "config.json" else path.stem
        where, content = str(path), load_config(path)
    config = HFConfig(content)
    try:
        return _read(config, seq_len, name or config.text("_name_or_path") or folder, images)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None


def _read(config: HFConfig, seq_len: int | None, name: str, images: int | None) -> LLM:
    architecture = config.architecture()
    reader = _READERS.get(architecture)
    if reader is None:
        raise ModelError(_refusal_text(architecture, config))
    values = reader(config)
    context = values.pop("context")
    if images is not None:
        vision = vision_tower(config, images, values["hidden"])
        values.update(vision=vision, left_out="")
    length = config.original_context() or context if seq_len is None else seq_len
    if values.get("positions") == "learned":
        values.setdefault("max_positions", context)
    label = printable_name(name or config.text("model_type") or architecture)
    return LLM(name=label, seq_len=length, **values)


_LLAMA_NEEDS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


def _refusal_text(architecture: str, config: HFConfig) -> str:
    if config.values.get("is_encoder_decoder") or architecture.startswith(("T5", "UMT5", "MT5")):
        return (
            f"it is a {printable_name(architecture)}, an encoder-decoder, which is not modelled: "
            "models are decoders, with a vision tower or without"
        )
    missing = [key for key in _LLAMA_NEEDS if config.values.get(key) is None]
    lacks = f" and lacks {', '.join(missing)} of a Llama-like model" if missing else ""
    modelled = ", ".join(_READERS)
    return (
        f"it is a {printable_name(architecture)}, which is not modelled{lacks}; modelled "
        f"are {modelled}. Write the model's fields in the job file instead"
    )


def _sizes(config: HFConfig) -> dict[str, Any]:
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


def _modern(config: HFConfig, tied: bool = False) -> dict[str, Any]:
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


def _moe(config: HFConfig, experts: str, ffn: str, **others: Any) -> MoE:
    """The mixture of experts whose number and width the fields ``experts`` and ``ffn`` give."""
    config.need(experts, "num_experts_per_tok", ffn)
    top_k = config.whole("num_experts_per_tok")
    return MoE(experts=config.whole(experts), top_k=top_k, ffn=config.whole(ffn), **others)


def _gpt2(config: HFConfig) -> dict[str, Any]:
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


def _opt(config: HFConfig) -> dict[str, Any]:
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


def _gpt_neox(config: HFConfig) -> dict[str, Any]:
    config.refuse(config.flag("attention_bias", True), "attention_bias false")
    return {
        **_sizes(config),
        "positions": "rotary",
        "tied": config.flag("tie_word_embeddings", False),
    }


def _llama(config: HFConfig) -> dict[str, Any]:
    return _modern(config)


def _mistral(config: HFConfig) -> dict[str, Any]:
    config.need("num_key_value_heads")
    return {**_modern(config), "window": config.whole("sliding_window") or None}


def _mixtral(config: HFConfig) -> dict[str, Any]:
    moe = _moe(config, "num_local_experts", "intermediate_size")
    return {**_mistral(config), "moe": moe}


def _qwen2(config: HFConfig) -> dict[str, Any]:
    config.need("num_key_value_heads")
    config.refuse(not config.flag("use_sliding_window", False), "use_sliding_window true")
    return {**_modern(config), "qkv_bias": True}


def _qwen3(config: HFConfig) -> dict[str, Any]:
    config.need("num_key_value_heads", "head_dim")
    config.refuse(not config.flag("use_sliding_window", False), "use_sliding_window true")
    return {**_modern(config), "qk_norm": True}


def _experts_of(config: HFConfig) -> str:
    """The field with the number of experts; transformers 5 may save it under its general name."""
    return "num_local_experts" if "num_local_experts" in config.values else "num_experts"


def _qwen3_moe(config: HFConfig) -> dict[str, Any]:
    config.refuse(not config.values.get("mlp_only_layers"), "a list of mlp_only_layers")
    step = config.whole("decoder_sparse_step", 1)
    moe = _moe(config, _experts_of(config), "moe_intermediate_size", every=step)
    return {**_qwen3(config), "moe": moe}


def _qwen3_next(config: HFConfig) -> dict[str, Any]:
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
        moe = _moe(
            config,
            _experts_of(config),
            "moe_intermediate_size",
            shared_experts=int(shared > 0),
            shared_ffn=shared,
            shared_gate=shared > 0,
            every=config.whole("decoder_sparse_step", 1),
        )
    width = config.whole("intermediate_size", config.whole("moe_intermediate_size"))
    fields = _qwen3(HFConfig({**config.values, "intermediate_size": width}))
    mtp = config.whole("mtp_num_hidden_layers") or config.whole("num_nextn_predict_layers")
    return {**fields, "gated_attention": True, "delta": delta, "moe": moe, "mtp_layers": mtp}


def _with_vision(config: HFConfig) -> dict[str, Any]:
    """The language model of Qwen3-VL, Qwen3.5 or Llama 4, whose class is named alike."""
    text = config.values.get("text_config")
    if not isinstance(text, Mapping):
        config.need("text_config")
        raise ModelError("text_config must be a mapping of the language model's fields")
    # Tied ends are said of the whole model.
    tied = {"tie_word_embeddings": config.flag("tie_word_embeddings", False)}
    name = config.architecture().replace("VL", "")
    architecture = name.replace("ForConditionalGeneration", "ForCausalLM")
    language = HFConfig({**text, **tied, "architectures": [architecture]})
    return {**_READERS[architecture](language), "left_out": "the vision tower"}


def _deepseek(config: HFConfig) -> dict[str, Any]:
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


def _deepseek_v32(config: HFConfig) -> dict[str, Any]:
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
    fields = _deepseek(HFConfig({**config.values, "first_k_dense_replace": dense}))
    return {**fields, "index": Indexer(heads=heads, head_dim=width, top_k=top_k)}


def _gpt_oss(config: HFConfig) -> dict[str, Any]:
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


def _gemma(config: HFConfig) -> dict[str, Any]:
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


def _pattern(config: HFConfig, listed: str, letters: str) -> str:
    """Layers as one letter each; newer configs list them by name."""
    kinds = config.values.get(listed)
    if kinds is None:
        config.need(letters)
        return config.text(letters)
    good = isinstance(kinds, list) and all(
        isinstance(kind, str) and kind in _BLOCK_OF_TYPE for kind in kinds
    )
    config.refuse(good, f"{listed} {reprlib.repr(kinds)}")
    return "".join(_BLOCK_OF_TYPE[kind] for kind in kinds)


def _nemotron_h(config: HFConfig) -> dict[str, Any]:
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
        # One shared MLP of that width, whatever n_shared_experts says.
        moe = _moe(
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


def _windows(config: HFConfig, default: int) -> dict[str, Any]:
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


def _gemma2(config: HFConfig) -> dict[str, Any]:
    return {**_gemma(config), **_windows(config, 2), "post_norms": True}


def _gemma3(config: HFConfig) -> dict[str, Any]:
    return {**_gemma(config), **_windows(config, 6), "post_norms": True, "qk_norm": True}


def _olmo2(config: HFConfig) -> dict[str, Any]:
    return {**_modern(config), "qk_norm": True, "qk_norm_wide": True}


def _olmo3(config: HFConfig) -> dict[str, Any]:
    return {**_olmo2(config), **_windows(config, 4)}


def _phi3(config: HFConfig) -> dict[str, Any]:
    fields = _modern(config)
    context = config.whole("original_max_position_embeddings") or fields["context"]
    return {**fields, "context": context, "window": config.whole("sliding_window") or None}


def _glm4_moe(config: HFConfig) -> dict[str, Any]:
    config.need("num_key_value_heads")
    bias = config.flag("attention_bias", False)  # of queries, keys and values alone
    fields = _modern(HFConfig({**config.values, "attention_bias": False}))
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


def _minimax_m2(config: HFConfig) -> dict[str, Any]:
    config.need("num_key_value_heads", "head_dim")
    kinds = config.values.get("attn_type_list")
    config.refuse(not kinds or set(kinds) == {1}, "linear attention in attn_type_list")
    norm = config.flag("use_qk_norm", True)
    moe = _moe(config, "num_local_experts", "intermediate_size")
    return {**_modern(config), "qk_norm": norm, "qk_norm_wide": norm, "moe": moe}


def _llama4(config: HFConfig) -> dict[str, Any]:
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


_READERS: dict[str, Callable[[HFConfig], dict[str, Any]]] = {
    "GPT2LMHeadModel": _gpt2,
    "OPTForCausalLM": _opt,
    "GPTNeoXForCausalLM": _gpt_neox,
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Qwen3NextForCausalLM": _qwen3_next,
    "Qwen3_5ForCausalLM": _qwen3_next,
    "Qwen3_5MoeForCausalLM": _qwen3_next,
    "Qwen3VLForConditionalGeneration": _with_vision,
    "Qwen3VLMoeForConditionalGeneration": _with_vision,
    "Qwen3_5ForConditionalGeneration": _with_vision,
    "Qwen3_5MoeForConditionalGeneration": _with_vision,
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "DeepseekV32ForCausalLM": _deepseek_v32,
    "GlmMoeDsaForCausalLM": _deepseek_v32,
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
    "Llama4ForConditionalGeneration": _with_vision,
    "NemotronHForCausalLM": _nemotron_h,
}
