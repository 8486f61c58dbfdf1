"""Presets: the published parameter counts, and every spelling of a name."""

import pytest

from paceline.errors import ModelError
from paceline.model.llm_presets import _ALIASES, _BY_KEY, LLM_PRESETS, llm_preset

# Billions of parameters: counted in the released checkpoint (safetensors index or the paper's
# architecture appendix) where there is one, else as the paper prints it.
PUBLISHED = {
    "gpt2-124m": 0.124439808,
    "gpt2-355m": 0.354823168,
    "gpt2-774m": 0.774030080,
    "gpt2-1.5b": 1.557611200,
    "gpt3-125m": 0.125,
    "gpt3-760m": 0.760,
    "gpt3-6.7b": 6.7,
    "gpt3-175b": 175.0,
    "megatron-7.5b": 7.5,
    "megatron-18.4b": 18.4,
    "megatron-22b": 22.0,
    "megatron-39.1b": 39.1,
    "megatron-76.1b": 76.1,
    "megatron-145.6b": 145.6,
    "megatron-175b": 175.0,
    "megatron-310.1b": 310.1,
    "megatron-529.6b": 529.6,
    "megatron-1008b": 1008.0,
    "mt-nlg-530b": 530.0,
    "opt-125m": 0.125239296,
    "opt-1.3b": 1.315758080,
    "opt-2.7b": 2.651596800,
    "opt-6.7b": 6.658473984,
    "opt-13b": 12.853473280,
    "opt-30b": 30.0,
    "opt-66b": 66.0,
    "opt-175b": 175.0,
    "llama2-7b": 6.738415616,
    "llama2-13b": 13.015864320,
    "llama2-70b": 68.976648192,
    "llama3-8b": 8.030261248,
    "llama3-70b": 70.553706496,
    "llama3.1-8b": 8.030261248,
    "llama3.1-70b": 70.553706496,
    "llama3.1-405b": 405.853388800,
    "deepseek-v4-flash": 284.332230231,  # test_model_compressed.py
    "deepseek-v4-pro": 1572.997179491,
    "llama3.2-1b": 1.235814400,  # this and those below: see TRANSFORMERS
    "llama4-scout": 107.769861120,
    "llama4-maverick": 400.711848960,
    "mistral-7b": 7.241732096,
    "glm-4.5": 352.797814784,
    "glm-4.5-air": 106.852245504,
    "minimax-m2": 228.689748992,
    "gemma-3-1b": 0.999885952,
    "gemma-3-4b": 3.880263168,
    "gemma-3-12b": 11.766034176,
    "gemma-3-27b": 27.009346304,
    "olmo-2-7b": 7.298617344,
    "olmo-2-13b": 13.716198400,
    "phi-4": 14.659507200,
    "nemotron-4-15b": 15.628775424,
    "nemotron-4-340b": 341.029195776,
    "kimi-k2.5": 1026.408209408,  # the language model, that of Kimi K2
    "qwen3-0.6b": 0.596049920,
    "qwen3-1.7b": 1.720574976,
    "qwen3-4b": 4.022468096,
    "qwen3-8b": 8.190735360,
    "qwen3-14b": 14.768307200,
    "qwen3-32b": 32.762123264,
    "moonlight-16b-a3b": 16.0,
    "mixtral-8x7b": 46.702792704,
    "mixtral-8x22b": 141.0,
    "deepseek-v3": 671.0,
    "deepseek-v3-mtp": 685.0 - 2 * 129280 * 7168 / 1e9,  # published with a second copy of both ends
    "deepseek-v3.2": 671.877929216,  # both as transformers builds them (test_model_sparse.py)
    "glm-5": 743.911199232,
    "kimi-k2": 1026.408209408,  # as transformers builds it (test_model_architectures.py)
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235.0,
    "qwen3-next-80b-a3b": 79.674391296,  # as transformers builds it (test_model_delta_net.py)
    "qwen3-next-80b-a3b-mtp": 81.3,  # and one more layer of attention and experts
    "qwen3.5-35b-a3b": 34.660610688,  # as transformers builds it (test_model_delta_net.py)
    "qwen3.5-397b-a17b": 397.0,
    "qwen3-vl-30b-a3b": 30.532122624,  # the language models alone
    "qwen3-vl-235b-a22b": 235.093634560,
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.83,
    "nemotron-h-47b": 47.0,
    "nemotron-h-56b": 56.0,
    "nemotron-3-ultra": 550.0,
    "nemotron-3-super": 120.668687360,
    "nemotron-3-super-mtp": 123.611012096,  # and one attention and mixture, counted by hand there
    "nemotron-h-8b": 8.100852736,  # both as transformers builds them (test_model_hybrid.py)
    "nemotron-3-nano": 31.577937344,
}

# Printed with two digits or fewer than the architecture decides: (printed, its half last digit).
ROUNDED = {
    "gpt3-1.3b": (1.3, 0.05),
    "gpt3-2.7b": (2.7, 0.05),
    "gpt3-13b": (13.0, 0.5),
    "megatron-1.7b": (1.7, 0.05),
    "megatron-3.6b": (3.6, 0.05),
    # The paper's 350M is GPT-2 medium's 355M (Table 2.1 repeats its shape) with 2,048 positions.
    "gpt3-350m": (0.350, 0.01),
}

# Billions that a token meets: (published, its half last digit, whether the look-up counts).
ACTIVE = {
    "mixtral-8x7b": (12.9, 0.05, True),  # Mixtral paper prints 13B, Mistral's announcement 12.9B
    "mixtral-8x22b": (39.0, 0.5, True),
    "deepseek-v3": (37.0, 0.5, False),
    "kimi-k2": (32.9, 0.5, True),  # the checkpoint's card prints 32B
    "qwen3-30b-a3b": (3.3, 0.06, True),  # 3.35 by its config: cut, not rounded
    "qwen3-235b-a22b": (22.0, 0.5, True),
    "qwen3-next-80b-a3b": (3.9, 0.05, True),  # "A3B"; 3.87 as it is built
    "qwen3.5-397b-a17b": (17.0, 0.5, True),
    "nemotron-3-ultra": (55.0, 1.1, True),  # "A55B"; 56.06 as it is built
    "llama4-scout": (17.0, 0.5, True),
    "llama4-maverick": (17.0, 0.5, True),
    "nemotron-3-super": (12.0, 0.8, True),  # "A12B"; 12.77 as it is built
    "gpt-oss-20b": (3.61, 0.005, False),  # the model card leaves the embedding out
    "gpt-oss-120b": (5.13, 0.005, False),
}


_QWEN3 = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
_GLM = {"head_dim": 128, "attention_bias": True}


def _sized(layers, hidden, heads, ffn, **more):
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        **more,
    }


def _gemma3(layers, hidden, heads, ffn, kv_heads, **more):
    fields = _sized(layers, hidden, heads, ffn, num_key_value_heads=kv_heads, **more)
    return "Gemma3", "Gemma3TextConfig", fields


_TIED = {**_QWEN3, "tie_word_embeddings": True}
#: Preset -> class of transformers, its configuration, and what differs from that's defaults.
TRANSFORMERS = {
    "llama3.2-1b": (
        "Llama",
        "LlamaConfig",
        _sized(16, 2048, 32, 8192, num_key_value_heads=8, vocab_size=128256)
        | {"tie_word_embeddings": True},
    ),
    "llama4-scout": ("Llama4", "Llama4TextConfig", {}),
    "llama4-maverick": (
        "Llama4",
        "Llama4TextConfig",
        {"num_local_experts": 128, "interleave_moe_layer_step": 2},
    ),
    "mistral-7b": ("Mistral", "MistralConfig", {}),
    "glm-4.5-air": ("Glm4Moe", "Glm4MoeConfig", _GLM),
    "glm-4.5": (
        "Glm4Moe",
        "Glm4MoeConfig",
        _sized(92, 5120, 96, 12288, **_GLM, moe_intermediate_size=1536, n_routed_experts=160)
        | {"first_k_dense_replace": 3, "use_qk_norm": True},
    ),
    "minimax-m2": ("MiniMaxM2", "MiniMaxM2Config", {}),
    "gemma-3-1b": _gemma3(26, 1152, 4, 6912, 1, vocab_size=262144),
    "gemma-3-4b": _gemma3(34, 2560, 8, 10240, 4),
    "gemma-3-12b": _gemma3(48, 3840, 16, 15360, 8),
    "gemma-3-27b": _gemma3(62, 5376, 32, 21504, 16, head_dim=128),
    "olmo-2-7b": ("Olmo2", "Olmo2Config", _sized(32, 4096, 32, 11008, vocab_size=100352)),
    "olmo-2-13b": ("Olmo2", "Olmo2Config", _sized(40, 5120, 40, 13824, vocab_size=100352)),
    "phi-4": (
        "Phi3",
        "Phi3Config",
        _sized(40, 5120, 40, 17920, num_key_value_heads=10, vocab_size=100352),
    ),
    "nemotron-4-15b": ("Nemotron", "NemotronConfig", {"num_key_value_heads": 8}),
    "nemotron-4-340b": (
        "Nemotron",
        "NemotronConfig",
        _sized(96, 18432, 96, 73728, num_key_value_heads=8),
    ),
    "qwen3-0.6b": ("Qwen3", "Qwen3Config", _sized(28, 1024, 16, 3072, **_TIED)),
    "qwen3-1.7b": ("Qwen3", "Qwen3Config", _sized(28, 2048, 16, 6144, **_TIED)),
    "qwen3-4b": ("Qwen3", "Qwen3Config", _sized(36, 2560, 32, 9728, **_TIED)),
    "qwen3-8b": ("Qwen3", "Qwen3Config", _sized(36, 4096, 32, 12288, **_QWEN3)),
    "qwen3-14b": ("Qwen3", "Qwen3Config", _sized(40, 5120, 40, 17408, **_QWEN3)),
    "qwen3-32b": ("Qwen3", "Qwen3Config", _sized(64, 5120, 64, 25600, **_QWEN3)),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_parameters_are_those_of_transformers(name):
    """Exactly: transformers 5.23 on torch's meta device; frozen above for where it is missing."""
    assert llm_preset(name).parameters == round(PUBLISHED[name] * 1e9)
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    model, config, fields = TRANSFORMERS[name]
    with torch.device("meta"):
        built = getattr(transformers, f"{model}ForCausalLM")(
            getattr(transformers, config)(**fields)
        )
    assert sum(weight.numel() for weight in built.parameters()) == llm_preset(name).parameters


def test_every_preset_is_checked():
    assert set(PUBLISHED) | set(ROUNDED) == set(LLM_PRESETS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_within_one_percent_of_the_published(name):
    assert llm_preset(name).parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.01)


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_round_to_the_printed_figure(name):
    printed, half = ROUNDED[name]
    assert llm_preset(name).parameters / 1e9 == pytest.approx(printed, abs=half)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_the_published(name):
    llm = llm_preset(name)
    published, half, look_up = ACTIVE[name]
    active = llm.active_parameters - (0 if look_up else llm.embedding_parameters)
    assert active / 1e9 == pytest.approx(published, abs=half)


def test_checkpoints_are_counted_to_the_parameter():
    assert llm_preset("llama3.1-405b").parameters == 405_853_388_800
    assert llm_preset("qwen3-30b-a3b").parameters == 30_532_122_624
    assert llm_preset("opt-13b").parameters == 12_853_473_280


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("llama3_8b", "llama3-8b"),
        ("llama-3.1-405b", "llama3.1-405b"),
        ("LLAMA3.1_405B", "llama3.1-405b"),
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"),
        ("gpt3", "gpt3-175b"),
        ("DeepSeekV3 (w/o MTP)", "deepseek-v3"),
        ("DeepSeekV3 (w/ MTP)", "deepseek-v3-mtp"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("Qwen3_30B_a3B", "qwen3-30b-a3b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        # NVIDIA's tables and Megatron-Bridge's recipes (067f987, scripts/performance).
        ("LLAMA3_8B", "llama3-8b"),
        ("LLAMA31_405B", "llama3.1-405b"),
        ("DeepSeek V3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2"),
        ("zai-org/GLM-5", "glm-5"),
        ("zai-org/GLM-4.7", "glm-4.5"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"),
        ("microsoft/phi-4", "phi-4"),
        ("allenai/OLMo-2-1124-7B", "olmo-2-7b"),
        ("google/gemma-3-27b", "gemma-3-27b"),
        ("nvidia/Nemotron-4-340B", "nemotron-4-340b"),
        ("KIMI_K2", "kimi-k2"),
        ("Kimi K2", "kimi-k2"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("QWEN3_235B_a22B", "qwen3-235b-a22b"),
        ("qwen3_vl_30b_a3b", "qwen3-vl-30b-a3b"),
        ("Qwen3 VL 235B", "qwen3-vl-235b-a22b"),
        ("qwen3_next_80b_a3b", "qwen3-next-80b-a3b"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b"),
        ("qwen35_vl_397b_a17b", "qwen3.5-397b-a17b"),
        ("GPT_OSS_120B", "gpt-oss-120b"),
        ("Nemotron_3_Nano", "nemotron-3-nano"),
        ("Nemotron_H_56B", "nemotron-h-56b"),
        ("nemotronh_56b", "nemotron-h-56b"),
        ("nemotron_3_super", "nemotron-3-super"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "nemotron-3-super"),
    ],
)
def test_spellings(spelled, name):
    assert llm_preset(spelled).name == name


def test_no_two_names_are_spelled_alike():
    assert len(_BY_KEY) == len(LLM_PRESETS) + len(_ALIASES)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(
        ModelError, match=r"no model preset 'llama3-80b'; the nearest are llama3-8b"
    ):
        llm_preset("llama3-80b")
    with pytest.raises(ModelError, match=r"no model preset '§§§' \(`paceline presets`"):
        llm_preset("§§§")
    with pytest.raises(ModelError, match="no model preset"):
        llm_preset("x" * 10_000)
