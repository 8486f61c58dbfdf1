"""Hugging Face configs: the same model as the preset, and what is refused with which words."""

import dataclasses
import json

import pytest

from paceline.errors import ModelError
from paceline.model.hf import from_hf
from paceline.model.llm_presets import llm_preset

# The fields that count, as the published config.json have them.
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
}  # fmt: skip
OPT_6_7B = {
    "architectures": ["OPTForCausalLM"],
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "ffn_dim": 16384,
    "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 4096,
    "do_layer_norm_before": True,
}  # fmt: skip
NEOX_20B = {
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
    "intermediate_size": 24576, "vocab_size": 50432, "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA31_405B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False, "mlp_bias": False, "hidden_size": 16384, "intermediate_size": 53248,
    "max_position_embeddings": 131072, "num_attention_heads": 128, "num_hidden_layers": 126,
    "num_key_value_heads": 8, "tie_word_embeddings": False, "vocab_size": 128256,
    "rope_scaling": {
        "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
}  # fmt: skip
MISTRAL_7B = {
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip
MIXTRAL_8X7B = MISTRAL_7B | {
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None,
}  # fmt: skip
QWEN2_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072,
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 152064,
}  # fmt: skip
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "num_attention_heads": 32, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "tie_word_embeddings": False, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048,
    "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [],
    "moe_intermediate_size": 768, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False, "first_k_dense_replace": 3, "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rope_scaling": {"factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"},
    "tie_word_embeddings": False, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
DEEPSEEK_V2_LITE = DEEPSEEK_V3 | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "num_nextn_predict_layers": None, "q_lora_rank": None,
    "vocab_size": 102400,
}  # fmt: skip
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True, "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
    "rope_scaling": {"factor": 32.0, "original_max_position_embeddings": 4096},
    "sliding_window": 128, "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip
GEMMA_2B = {
    "architectures": ["GemmaForCausalLM"],
    "attention_bias": False, "head_dim": 256, "hidden_size": 2048, "intermediate_size": 16384,
    "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 18,
    "num_key_value_heads": 1, "vocab_size": 256000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (GPT2, "gpt2-124m"),
        (OPT_6_7B, "opt-6.7b"),
        (LLAMA31_405B, "llama3.1-405b"),
        (MIXTRAL_8X7B, "mixtral-8x7b"),
        (QWEN3_30B, "qwen3-30b-a3b"),
        (DEEPSEEK_V3, "deepseek-v3-mtp"),
        (GPT_OSS_20B, "gpt-oss-20b"),
    ],
)
def test_a_config_is_the_preset(config, preset):
    expected = llm_preset(preset)
    read = from_hf(config, seq_len=expected.seq_len, name=preset)
    # The rows of positions matter only where they are learned.
    rows = read.max_positions if read.positions == "learned" else expected.max_positions
    assert dataclasses.replace(read, max_positions=rows) == expected
    assert read.context == expected.context


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (NEOX_20B, 20_554_567_680),  # Black et al. 2022, Table 1
        (MISTRAL_7B, 7_241_732_096),
        (QWEN2_7B, 7_615_616_512),
        (QWEN3_8B, 8_190_735_360),
        (DEEPSEEK_V2_LITE, 15_706_484_224),
        (GEMMA_2B, 2_506_172_416),
    ],
)
def test_models_without_a_preset_have_their_published_count(config, published):
    assert from_hf(config).parameters == pytest.approx(published, rel=1e-4)


@pytest.mark.parametrize(("config", "preset"), [(MISTRAL_7B, "mistral-7b"), (QWEN3_8B, "qwen3-8b")])
def test_the_longest_sample_of_a_config_is_that_of_the_preset(config, preset):
    assert from_hf(config).context == llm_preset(preset).context > 0


def test_the_sequence_is_the_context_before_it_was_stretched():
    assert from_hf(LLAMA31_405B).seq_len == 8192
    assert from_hf(MISTRAL_7B).seq_len == 32768
    assert from_hf(MISTRAL_7B, seq_len=4096).seq_len == 4096


def test_a_window_is_read():
    assert from_hf(MISTRAL_7B).window == 4096
    assert from_hf(MIXTRAL_8X7B).window is None


def test_a_file_or_its_folder_names_the_model(tmp_path):
    folder = tmp_path / "my-gpt"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GPT2))
    assert from_hf(folder) == from_hf(folder / "config.json")
    assert from_hf(str(folder)).name == "my-gpt"
    for other, name in (("Zephyr-7B-beta", "Zephyr-7B-beta"), ("plan", "gpt2"), ("4b3e7f", "gpt2")):
        folder = folder.rename(tmp_path / other)
        assert from_hf(folder).name == name
    assert from_hf(GPT2).name == "gpt2"
    assert from_hf(GPT2 | {"_name_or_path": "org/own\x1b[31m"}).name == "own[31m"


def test_the_model_type_stands_for_a_missing_architecture():
    config = {key: value for key, value in GPT2.items() if key != "architectures"}
    assert from_hf(config) == from_hf(GPT2)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "the config: it names neither architectures nor model_type"),
        (
            {"architectures": ["MambaForCausalLM"], "hidden_size": 8, "vocab_size": 9},
            "it is a MambaForCausalLM, which is not modelled and lacks num_hidden_layers, "
            "num_attention_heads, intermediate_size, max_position_embeddings of a Llama-like model;"
            " modelled are GPT2LMHeadModel, ",
        ),
        (
            {"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "vocab_size": None},
            "it lacks num_hidden_layers, num_attention_heads, intermediate_size, vocab_size, "
            "max_position_embeddings, which LlamaForCausalLM needs",
        ),
        (LLAMA31_405B | {"hidden_size": "16k"}, "hidden_size must be a whole number, not '16k'"),
        (LLAMA31_405B | {"num_hidden_layers": 0}, "layers must be a whole number >= 1, not 0"),
        (LLAMA31_405B | {"attention_bias": True}, "a bias in the attention or the MLP alone is"),
        (LLAMA31_405B | {"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        (OPT_6_7B | {"word_embed_proj_dim": 512}, "word_embed_proj_dim 512 beside hidden_size"),
        (MIXTRAL_8X7B | {"num_local_experts": None}, "it lacks num_local_experts, which Mixtral"),
        (QWEN2_7B | {"use_sliding_window": True}, "use_sliding_window true is not modelled for Q"),
        (QWEN3_30B | {"mlp_only_layers": [3]}, "a list of mlp_only_layers is not modelled"),
        (QWEN3_30B | {"num_experts_per_tok": 999}, "the config: top_k .999. exceeds the experts"),
        (DEEPSEEK_V3 | {"moe_layer_freq": 2}, "moe_layer_freq other than 1 is not modelled"),
        (GPT_OSS_20B | {"layer_types": ["full_attention"] * 24}, "another order of layer_types"),
    ],
)
def test_what_is_not_modelled_is_refused(config, words):
    with pytest.raises(ModelError, match=words):
        from_hf(config)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON: "),
        (b"\xff\xfe\x00\x00\xff", "is not JSON: "),
        (b"[" * 100_000, "is not JSON: "),
        (b"[1, 2]", r"holds no JSON object but \[1, 2\]"),
        (b" " * (1 << 23), "is too long for a config.json"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, content, words):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=words):
        from_hf(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"cannot read .*config.json: No such file"):
        from_hf(tmp_path / "config.json")
    with pytest.raises(ModelError, match=r"cannot read .*config.json: No such file"):
        from_hf(tmp_path)
    with pytest.raises(ModelError, match="cannot read"):
        from_hf("a\0b")


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize(
    ("config", "change", "field", "value"),
    [
        # defaults of the transformers classes
        (GPT2, {}, "tied", True),
        (GPT2, {"tie_word_embeddings": False}, "tied", False),
        (GPT2, {"n_inner": 100}, "ffn", 100),
        (GPT2, {"n_inner": None}, "ffn", 4 * 768),
        (GPT2, {}, "max_positions", 1024),
        (OPT_6_7B, {}, "tied", True),
        (OPT_6_7B, {}, "bias", True),
        (OPT_6_7B, {"enable_bias": False}, "bias", False),
        (OPT_6_7B, {}, "max_positions", 2050),
        (NEOX_20B, {"tie_word_embeddings": None}, "tied", False),
        (LLAMA31_405B, {"tie_word_embeddings": None}, "tied", False),
        (LLAMA31_405B, {"num_key_value_heads": None}, "kv_heads", 128),
        (LLAMA31_405B, {"attention_bias": True, "mlp_bias": True}, "bias", True),
        (LLAMA31_405B, {"attention_bias": None, "mlp_bias": None}, "bias", False),
        (LLAMA31_405B, {"rope_scaling": None}, "seq_len", 131072),
        (
            LLAMA31_405B,
            {"rope_scaling": None, "rope_parameters": {"original_max_position_embeddings": 77}},
            "seq_len",
            77,
        ),
        (LLAMA31_405B, {"head_dim": 64}, "head_dim", 64),
        (LLAMA31_405B, {}, "rotary_base", 0),
        (LLAMA31_405B, {"rope_theta": 500000.0}, "rotary_base", 500_000),
        (LLAMA31_405B, {"rope_parameters": {"rope_theta": 1e6}}, "rotary_base", 1_000_000),
        (LLAMA31_405B, {"rope_theta": 1e6, "rope_local_base_freq": 1e4}, "rotary_base", 0),
        (GPT2, {"rope_theta": 1e4}, "rotary_base", 0),
        (LLAMA31_405B, {"rms_norm_eps": 1e-6}, "norm_epsilon", 1e-6),
        (GPT2, {"layer_norm_epsilon": 1e-5}, "norm_epsilon", 1e-5),
        (MISTRAL_7B, {"sliding_window": 0}, "window", None),
        (QWEN2_7B, {}, "qkv_bias", True),
        (QWEN2_7B, {}, "bias", False),
        (QWEN3_8B, {}, "qk_norm", True),
        (DEEPSEEK_V2_LITE, {}, "mtp_layers", 0),
        (GPT_OSS_20B, {"layer_types": None}, "window_every", 2),
        (GPT_OSS_20B, {"tie_word_embeddings": None}, "tied", False),
        (GEMMA_2B, {}, "tied", True),
        (GEMMA_2B, {"tie_word_embeddings": False}, "tied", False),
    ],
)
def test_fields_and_their_defaults(config, change, field, value):
    assert getattr(from_hf(config | change), field) == value


@pytest.mark.parametrize("epsilon", ["1e-6", True, 0, 1.0, float("nan")])
def test_an_epsilon_of_norms_is_a_small_number(epsilon):
    with pytest.raises(ModelError, match="rms_norm_eps must be above 0 and below 1, not"):
        from_hf(LLAMA31_405B | {"rms_norm_eps": epsilon})


@pytest.mark.parametrize("base", ["500000", True, 0, -1.0, float("nan")])
def test_a_rotary_base_is_a_number_above_0(base):
    with pytest.raises(ModelError, match="rope_theta must be above 0, not"):
        from_hf(LLAMA31_405B | {"rope_theta": base})


def test_which_layers_of_a_config_are_mixtures():
    assert from_hf(QWEN3_30B | {"decoder_sparse_step": 2}).moe.every == 2
    assert from_hf(without(QWEN3_30B, "decoder_sparse_step")).moe.every == 1
    lite = from_hf(DEEPSEEK_V2_LITE)
    assert (lite.moe.dense_layers, lite.moe.shared_experts, lite.latent.q_rank) == (1, 2, None)
    assert from_hf(without(DEEPSEEK_V3, "moe_layer_freq")).moe.every == 1


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention is not modelled"),
        (OPT_6_7B | {"do_layer_norm_before": False}, "do_layer_norm_before false is not"),
        (OPT_6_7B | {"layer_norm_elementwise_affine": False}, "elementwise_affine false is not"),
        (NEOX_20B | {"attention_bias": False}, "attention_bias false is not modelled"),
        (QWEN3_8B | {"use_sliding_window": True}, "use_sliding_window true is not modelled"),
        (GPT_OSS_20B | {"attention_bias": False}, "attention_bias false is not modelled"),
        (GPT2 | {"n_layer": True}, "n_layer must be a whole number, not True"),
        (GPT2 | {"n_layer": -1}, "n_layer must be a whole number, not -1"),
        (without(QWEN2_7B, "num_key_value_heads"), "it lacks num_key_value_heads"),
        (without(GPT_OSS_20B, "sliding_window"), "it lacks sliding_window"),
    ],
)
def test_more_that_is_not_modelled(config, words):
    with pytest.raises(ModelError, match=words):
        from_hf(config)


def test_long_names_are_cut():
    assert from_hf(GPT2, name="x" * 100).name == "x" * 60
    assert from_hf(GPT2, name="org/own/").name == "own"
    assert from_hf(GPT2, name="\x00").name == "model"
    assert from_hf({**GPT2, "architectures": 3}).name == "gpt2"
