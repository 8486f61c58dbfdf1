"""The longest sample that the config.json of a preset's model allows, where a source gives it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_FAMILIES: tuple[tuple[int, tuple[str, ...]], ...] = (
    # litgpt 0006c97, config.py: block_size (for Mistral 7B a comment beside it).
    (4096, ("llama2-7b", "llama2-13b", "llama2-70b", "olmo-2-7b", "olmo-2-13b")),
    (8192, ("llama3-8b", "llama3-70b")),
    (16384, ("phi-4",)),
    (32768, ("mixtral-8x7b", "mistral-7b")),
    (40960, ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b")),
    (40960, ("qwen3-30b-a3b", "qwen3-235b-a22b")),
    (65536, ("mixtral-8x22b",)),
    (131072, ("llama3.1-8b", "llama3.1-70b", "llama3.1-405b", "llama3.2-1b")),
    (131072, ("gemma-3-4b", "gemma-3-12b", "gemma-3-27b")),
    # transformers 5.24: the default max_position_embeddings of each class, which the preset cites.
    (131072, ("gpt-oss-20b", "gpt-oss-120b", "glm-4.5", "glm-4.5-air")),
    (163840, ("deepseek-v3.2",)),
    (196608, ("minimax-m2",)),
    (202752, ("glm-5",)),
    (1048576, ("deepseek-v4-flash", "deepseek-v4-pro")),
    # deepseek-ai/DeepSeek-V3, config.json.
    (163840, ("deepseek-v3", "deepseek-v3-mtp")),
    # MaxText e591f30, checkpoint_conversion/utils/hf_model_configs.py: copies of the configs.
    (262144, ("qwen3-next-80b-a3b", "qwen3-next-80b-a3b-mtp", "qwen3-vl-30b-a3b")),
    (262144, ("qwen3.5-35b-a3b", "qwen3.5-397b-a17b")),
    (131072, ("kimi-k2",)),  # configs/models/kimi-k2-1t.yml there
    # MindSpeed-MM v2.2.0, examples/qwen3vl/model.json.
    (262144, ("qwen3-vl-235b-a22b",)),
    # Megatron-Bridge 067f987, tests/unit_tests/models/gemma/test_gemma3_bridge.py.
    (32768, ("gemma-3-1b",)),
    # NeuronX Distributed Inference of AWS, the config in its test of Llama 4.
    (10485760, ("llama4-scout",)),
    # Xinference's page of moonlight-16b-a3b-instruct; failspy/Nemotron-4-340B-Instruct-SafeTensors.
    (8192, ("moonlight-16b-a3b",)),
    (4096, ("nemotron-4-340b",)),
    # The models' own cards: "Context length up to 8K".
    (8192, ("nemotron-h-8b", "nemotron-h-47b", "nemotron-h-56b")),
)

#: Preset -> ``max_position_embeddings``; absent where no source was found. Presets with a learned
#: table bring its length themselves.
CONTEXTS: Mapping[str, int] = MappingProxyType(
    {name: context for context, names in _FAMILIES for name in names}
)
