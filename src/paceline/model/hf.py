"""Reads a Hugging Face ``config.json`` as an LLM, for architectures that can be counted exactly.

Field names and their defaults are those of the ``transformers`` configuration classes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.model import hf_compressed, hf_dense, hf_hybrid, hf_mixtures
from paceline.model.hf_config import HFConfig, load_config, printable_name
from paceline.model.hf_fields import LLAMA_NEEDS
from paceline.model.hf_vision import vision_tower
from paceline.model.llm import LLM


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
        seq_len: tokens of one training sample; None = the context before rotary positions were
            stretched (``original_max_position_embeddings``) if given, otherwise the whole context.
        name: name of the model; "" = the config's ``_name_or_path``, or a folder that is named
            after a model, or the ``model_type``.
        images: images of one training sample (Llama 4: tiles), for the vision tower; None = the
            tower is left out.

    Raises:
        ModelError: the file is missing or is no JSON object, or the architecture is not modelled.
            Or a field is missing, of the wrong type, or asks for an unmodelled feature.
    """
    if isinstance(source, Mapping):
        where, folder, content = "the config", "", source
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        folder = path.absolute().parent.name if path.name == "config.json" else ""
        where, content = str(path), load_config(path)
        name = name or ("" if folder else path.stem)
    config = HFConfig(content)
    try:
        name = name or config.text("_name_or_path") or _model_folder(folder, config)
        return _read(config, seq_len, name, images)
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
    values["norm_epsilon"] = _language(config).norm_epsilon()
    if values.get("positions") == "rotary":
        values["rotary_base"] = _language(config).rotary_base()
    label = printable_name(name or config.text("model_type") or architecture)
    return LLM(name=label, seq_len=length, context=context, **values)


def _model_folder(folder: str, config: HFConfig) -> str:
    """A folder's name if it has a size, such as 8B, or the model's family; else ""."""
    family = _FAMILY.match(config.text("model_type") or config.architecture().lower())
    is_model = _SIZE.search(folder) or (family and family[0].lower() in folder.lower())
    return folder if is_model else ""


def _language(config: HFConfig) -> HFConfig:
    """The language model's part of the config."""
    text = config.values.get("text_config")
    return HFConfig(text) if isinstance(text, Mapping) else config


def _refusal_text(architecture: str, config: HFConfig) -> str:
    if config.values.get("is_encoder_decoder") or architecture.startswith(("T5", "UMT5", "MT5")):
        return (
            f"it is a {printable_name(architecture)}, an encoder-decoder, which is no language "
            "model here; `paceline layers FILE.py:FUNCTION` reads it as a network"
        )
    missing = [key for key in LLAMA_NEEDS if config.values.get(key) is None]
    lacks = f" and lacks {', '.join(missing)} of a Llama-like model" if missing else ""
    modelled = ", ".join(_READERS)
    return (
        f"it is a {printable_name(architecture)}, which is not modelled{lacks}; modelled "
        f"are {modelled}. Write the model's fields in the job file instead"
    )


def _with_vision(config: HFConfig) -> dict[str, Any]:
    """The language model's part of a Qwen3-VL, Qwen3.5 or Llama 4 config."""
    text = config.values.get("text_config")
    if not isinstance(text, Mapping):
        config.need("text_config")
        raise ModelError("text_config must be a mapping of the language model's fields")
    # Tied embeddings are a field of the whole model.
    tied = {"tie_word_embeddings": config.flag("tie_word_embeddings", False)}
    name = config.architecture().replace("VL", "")
    architecture = name.replace("ForConditionalGeneration", "ForCausalLM")
    language = HFConfig({**text, **tied, "architectures": [architecture]})
    return {**_READERS[architecture](language), "left_out": "the vision tower"}


#: The family in a ``model_type`` or a class, and a size in a folder's name.
_FAMILY, _SIZE = re.compile(r"[a-zA-Z]+"), re.compile(r"\d(?:\.\d+)?[bBmM](?![a-zA-Z0-9])")

_READERS: dict[str, Callable[[HFConfig], dict[str, Any]]] = {
    "GPT2LMHeadModel": hf_dense.gpt2,
    "OPTForCausalLM": hf_dense.opt,
    "GPTNeoXForCausalLM": hf_dense.gpt_neox,
    "LlamaForCausalLM": hf_dense.llama,
    "MistralForCausalLM": hf_dense.mistral,
    "MixtralForCausalLM": hf_mixtures.mixtral,
    "Qwen2ForCausalLM": hf_dense.qwen2,
    "Qwen3ForCausalLM": hf_dense.qwen3,
    "Qwen3MoeForCausalLM": hf_mixtures.qwen3_moe,
    "Qwen3NextForCausalLM": hf_hybrid.qwen3_next,
    "Qwen3_5ForCausalLM": hf_hybrid.qwen3_next,
    "Qwen3_5MoeForCausalLM": hf_hybrid.qwen3_next,
    "Qwen3VLForConditionalGeneration": _with_vision,
    "Qwen3VLMoeForConditionalGeneration": _with_vision,
    "Qwen3_5ForConditionalGeneration": _with_vision,
    "Qwen3_5MoeForConditionalGeneration": _with_vision,
    "DeepseekV2ForCausalLM": hf_mixtures.deepseek,
    "DeepseekV3ForCausalLM": hf_mixtures.deepseek,
    "DeepseekV32ForCausalLM": hf_mixtures.deepseek_v32,
    "DeepseekV4ForCausalLM": hf_compressed.deepseek_v4,
    "GlmMoeDsaForCausalLM": hf_mixtures.deepseek_v32,
    "KimiK2ForCausalLM": hf_mixtures.deepseek,
    "GptOssForCausalLM": hf_mixtures.gpt_oss,
    "GemmaForCausalLM": hf_dense.gemma,
    "Gemma2ForCausalLM": hf_dense.gemma2,
    "Gemma3ForCausalLM": hf_dense.gemma3,
    "Olmo2ForCausalLM": hf_dense.olmo2,
    "Olmo3ForCausalLM": hf_dense.olmo3,
    "Phi3ForCausalLM": hf_dense.phi3,
    "Glm4MoeForCausalLM": hf_mixtures.glm4_moe,
    "MiniMaxM2ForCausalLM": hf_mixtures.minimax_m2,
    "Llama4ForCausalLM": hf_mixtures.llama4,
    "Llama4ForConditionalGeneration": _with_vision,
    "NemotronHForCausalLM": hf_hybrid.nemotron_h,
}
