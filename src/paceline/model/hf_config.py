"""A Hugging Face ``config.json``: its file and its fields, which are checked when read."""

from __future__ import annotations

import json
import reprlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ModelError

MAX_NAME = 60  # characters of a model's name that are kept
MAX_BYTES = 1 << 22  # of a config.json; real ones have a few thousand


#: ``model_type`` -> its class, for configs that name no class.
MODEL_TYPES = {
    "gpt2": "GPT2LMHeadModel",
    "opt": "OPTForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
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
    "llama4": "Llama4ForConditionalGeneration",
    "llama4_text": "Llama4ForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
}


@dataclass(frozen=True, slots=True)
class HFConfig:
    """The fields of a config. Every error names the field."""

    values: Mapping[str, Any]

    def need(self, *keys: str) -> None:
        """Refuse a config that lacks one of these fields."""
        missing = [key for key in keys if self.values.get(key) is None]
        if missing:
            raise ModelError(f"it lacks {', '.join(missing)}, which {self.architecture()} needs")

    def whole(self, key: str, default: int = 0) -> int:
        """A whole number from 0 on."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            text = reprlib.repr(value)
            raise ModelError(f"{key} must be a whole number, not {text}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            text = reprlib.repr(value)
            raise ModelError(f"{key} must be true or false, not {text}")
        return value

    def text(self, key: str) -> str:
        """A text; "" if absent."""
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def refuse(self, unless: bool, feature: str) -> None:
        """Refuse the config because of ``feature``, unless the condition holds."""
        if not unless:
            raise ModelError(f"{feature} is not modelled for {self.architecture()}")

    def architecture(self) -> str:
        """The model class of the config."""
        names = self.values.get("architectures")
        if isinstance(names, list | tuple) and names and isinstance(names[0], str):
            return names[0]
        kind = self.text("model_type")
        if not kind:
            raise ModelError(
                "it names neither architectures nor model_type; is it the config.json of a model?"
            )
        return MODEL_TYPES.get(kind, kind)

    def rotary_base(self) -> int:
        """Base of the rotary positions; 0 if none is given, or one for each kind of layer."""
        if self.values.get("rope_local_base_freq") is not None:
            return 0
        for mapping in (self.values, self.values.get("rope_parameters")):
            value = mapping.get("rope_theta") if isinstance(mapping, Mapping) else None
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ModelError(f"rope_theta must be above 0, not {reprlib.repr(value)}")
            return int(value) if float(value).is_integer() else 0
        return 0

    def norm_epsilon(self) -> float:
        """Addend to the variance in norms; 0 if none is given."""
        for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"):
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise ModelError(f"{key} must be above 0 and below 1, not {reprlib.repr(value)}")
            return float(value)
        return 0.0

    def original_context(self) -> int:
        """Context before the rotary positions were stretched; 0 if they were not."""
        for key in ("rope_scaling", "rope_parameters"):
            scaling = self.values.get(key)
            if isinstance(scaling, Mapping):
                return HFConfig(scaling).whole("original_max_position_embeddings")
        return 0


def load_config(path: Path) -> Mapping[str, Any]:
    """The content of a file.

    Raises:
        ModelError: it cannot be read, or is not a JSON object.
    """
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


def printable_name(name: str) -> str:
    """The last part of a name, without control characters and not too long."""
    # Control characters would reach the terminal.
    printable = "".join(c for c in name if unicodedata.category(c)[0] != "C")
    return printable.rstrip("/").rpartition("/")[2][:MAX_NAME] or "model"
