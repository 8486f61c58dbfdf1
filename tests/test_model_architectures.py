"""Architectures of Hugging Face configs: parameters and FLOPs as torch counts them.

The frozen numbers are those of transformers 5.23 on torch's meta device.
"""

from dataclasses import replace

import pytest

from paceline.errors import ModelError
from paceline.model.cluster_presets import cluster_preset
from paceline.model.hf import from_hf
from paceline.model.llm_presets import llm_preset
from paceline.model.memory import place_parameters
from paceline.model.operators import layer_kind, layer_work
from paceline.model.plan import Plan
from paceline.plan.predict import predict

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 512,
}  # fmt: skip
GEMMA3 = {
    "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504, "vocab_size": 262144,
    "max_position_embeddings": 131072, "sliding_window": 1024, "sliding_window_pattern": 6,
}  # fmt: skip
OLMO = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 50304,
    "max_position_embeddings": 2048, "sliding_window": 4096,
}  # fmt: skip
PHI3 = {
    "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064,
    "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
    "sliding_window": 2047,
}  # fmt: skip
GLM4 = {
    "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96,
    "num_key_value_heads": 8, "intermediate_size": 10944, "vocab_size": 151552,
    "max_position_embeddings": 131072, "moe_intermediate_size": 1408, "n_routed_experts": 128,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
MINIMAX = {
    "hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads": 48,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1536, "vocab_size": 200064,
    "max_position_embeddings": 196608, "num_local_experts": 256, "num_experts_per_tok": 8,
}  # fmt: skip
LLAMA4 = {
    "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "vocab_size": 202048, "max_position_embeddings": 131072,
    "num_local_experts": 16, "num_experts_per_tok": 1, "attention_chunk_size": 8192,
}  # fmt: skip


def read(architecture, content, **options):
    return from_hf({**content, "architectures": [f"{architecture}ForCausalLM"]}, **options)


@pytest.mark.parametrize(
    ("architecture", "content", "parameters", "windowed"),
    [
        ("Gemma3", GEMMA3, 27_009_002_240, 52),  # Gemma 3 27B: 10 of 62 layers see all
        ("Olmo2", OLMO, 6_888_624_128, 0),
        ("Olmo3", OLMO, 6_888_624_128, 24),
        ("Phi3", PHI3, 3_821_079_552, 32),
        ("Glm4Moe", GLM4, 103_481_200_640, 0),
        ("MiniMaxM2", MINIMAX, 228_689_748_992, 0),
        ("Llama4", LLAMA4, 107_769_861_120, 36),  # Scout
    ],
)
def test_parameters_and_windows(architecture, content, parameters, windowed):
    llm = read(architecture, content)
    assert llm.parameters == parameters
    assert sum(llm.layer_window(i) is not None for i in range(llm.layers)) == windowed
    # Memory counts the same, once the vocabulary needs no padding.
    plan = Plan(global_batch=1)
    padding = (llm.padded_vocab(1) - llm.vocab) * llm.hidden * (1 if llm.tied else 2)
    assert sum(map(float, map(sum, place_parameters(llm, plan)))) == parameters + padding


MIXTURE = SMALL | {"num_local_experts": 8, "num_experts_per_tok": 2}
CASES = [
    ("Gemma2", "Gemma2Config", SMALL | {"sliding_window": 16}),
    ("Gemma3", "Gemma3TextConfig", SMALL | {"sliding_window": 16}),
    ("Olmo2", "Olmo2Config", SMALL | {"head_dim": 16}),
    ("Olmo3", "Olmo3Config", SMALL | {"head_dim": 16, "sliding_window": 16}),
    ("Phi3", "Phi3Config", SMALL | {"head_dim": 16}),
    (
        "Glm4Moe",
        "Glm4MoeConfig",
        SMALL
        | {"moe_intermediate_size": 48, "n_routed_experts": 8, "num_experts_per_tok": 2}
        | {"first_k_dense_replace": 2, "attention_bias": True, "use_qk_norm": True}
        | {"num_nextn_predict_layers": 0},
    ),
    ("MiniMaxM2", "MiniMaxM2Config", MIXTURE),
    (
        "Llama4",
        "Llama4TextConfig",
        MIXTURE | {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 80},
    ),
]


@pytest.mark.parametrize(("architecture", "config", "fields"), CASES, ids=[c[0] for c in CASES])
def test_parameters_and_flops_against_transformers_itself(architecture, config, fields):
    """A forward pass, which computes masked keys, too, has a third of the FLOPs of a step."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    if fields["head_dim"] == 16:  # these configs have no head_dim
        fields = {name: value for name, value in fields.items() if name != "head_dim"}
    # Grouped products of experts are not counted by torch; eager ones are.
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    config = getattr(transformers, config)(
        **fields, pad_token_id=0, bos_token_id=1, eos_token_id=2, **eager
    )
    model = getattr(transformers, f"{architecture}ForCausalLM")(config)
    llm = read(architecture, config.to_dict(), seq_len=64)
    assert llm.parameters == sum(x.numel() for x in model.parameters())
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(3, 128, (1, 64)))
    seen = replace(llm, window=None, full_every=0, chunked=False)
    if architecture == "Llama4":  # transformers runs all experts over all tokens
        seen = replace(seen, moe=replace(seen.moe, top_k=seen.moe.experts))
    assert counter.get_total_flops() == 64 * seen.model_flops_per_token() / 3


def test_chunks_are_seen_up_to_each_token():
    """4 chunks of 16 tokens: a token sees 8 on average, the window is as wide as says the same."""
    llm = read("Llama4", LLAMA4 | {"attention_chunk_size": 8192}, seq_len=32768)
    assert llm.attention_pairs(0, causal=True) == pytest.approx(8192 / 2, rel=1e-3)
    assert llm.attention_pairs(3, causal=True) == 32768 / 2
    short = replace(llm, seq_len=4096)
    assert short.attention_pairs(0, causal=True) == 4096 / 2


def test_norms_behind_blocks_are_run():
    llm = read("Gemma3", GEMMA3)
    work = layer_work(llm, layer_kind(llm, 0), Plan(global_batch=1))
    norms = [entry.name for entry in work.forward if entry.name.startswith("norm-")]
    assert norms == ["norm-attention", "norm-attention-behind", "norm-mlp", "norm-mlp-behind"]
    assert layer_kind(llm, 4).window == 1024
    assert layer_kind(llm, 5).window == 0


@pytest.mark.parametrize(
    ("architecture", "content", "words"),
    [
        (
            "Gemma3",
            GEMMA3 | {"layer_types": ["full_attention"] + 61 * ["sliding_attention"]},
            "order",
        ),
        ("MiniMaxM2", MINIMAX | {"attn_type_list": [0, 1]}, "linear attention"),
        ("Llama4", {k: v for k, v in LLAMA4.items() if k != "intermediate_size_mlp"}, "lacks"),
    ],
)
def test_what_is_refused(architecture, content, words):
    with pytest.raises(ModelError, match=words):
        read(architecture, content)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"full_every": 4, "window": None}, "give window"),
        ({"window_every": 2, "full_every": 6}, "not both"),
        ({"qk_norm": False, "qk_norm_wide": True}, "needs qk_norm"),
        ({"post_norms": 1}, "true or false"),
    ],
)
def test_fields_that_contradict(fields, words):
    with pytest.raises(ModelError, match=words):
        replace(read("Gemma3", GEMMA3), **fields)


KIMI = {
    "vocab_size": 163840, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 64,
    "num_key_value_heads": 64, "n_shared_experts": 1, "n_routed_experts": 384, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
    "num_experts_per_tok": 8, "first_k_dense_replace": 1, "max_position_embeddings": 131072,
    "num_nextn_predict_layers": 0,
}  # fmt: skip
QWEN3_VL_TEXT = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "max_position_embeddings": 262144,
}  # fmt: skip
QWEN3_VL = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "text_config": QWEN3_VL_TEXT,
    "tie_word_embeddings": False,
}


def test_kimi_is_deepseek_v3_with_other_numbers():
    llm = read("KimiK2", KIMI, name="kimi-k2", seq_len=4096)
    assert llm == llm_preset("kimi-k2")
    assert llm.parameters == 1_026_408_209_408  # DeepseekV3ForCausalLM of these numbers


def test_kimi_against_transformers_itself():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    config = transformers.DeepseekV3Config(**KIMI, n_group=1, topk_group=1)
    with torch.device("meta"):
        model = transformers.DeepseekV3ForCausalLM(config)
    assert sum(x.numel() for x in model.parameters()) == llm_preset("kimi-k2").parameters


def test_the_language_model_of_a_vision_model():
    llm = from_hf(QWEN3_VL, name="qwen3-vl-30b-a3b", seq_len=4096)
    assert llm == llm_preset("qwen3-vl-30b-a3b")
    named = {k: v for k, v in QWEN3_VL_TEXT.items() if k != "num_experts"}
    saved = QWEN3_VL | {"text_config": named | {"num_local_experts": 128}}
    assert from_hf(saved, name=llm.name, seq_len=4096) == llm
    dense = {k: v for k, v in QWEN3_VL_TEXT.items() if "expert" not in k and "moe" not in k}
    tied = {"architectures": ["Qwen3VLForConditionalGeneration"], "tie_word_embeddings": True}
    small = from_hf({"text_config": dense, **tied})
    assert (small.moe, small.tied, small.left_out) == (None, True, "the vision tower")


def test_the_language_model_of_a_vision_model_against_transformers_itself():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    config = transformers.Qwen3VLMoeConfig(text_config=QWEN3_VL_TEXT, tie_word_embeddings=False)
    with torch.device("meta"):
        model = transformers.Qwen3VLMoeForConditionalGeneration(config)
    language = [x.numel() for name, x in model.named_parameters() if "visual" not in name]
    content = config.to_dict() | {"architectures": [type(model).__name__]}
    assert from_hf(content).parameters == sum(language)


@pytest.mark.parametrize("text", [None, 5])
def test_a_vision_model_needs_its_text(text):
    with pytest.raises(ModelError, match="text_config"):
        from_hf(QWEN3_VL | {"text_config": text})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("glm-5", "sparse attention"),
        ("qwen3-next-80b-a3b", "gated DeltaNets"),
        ("nemotron-3-super", "latent experts"),
    ],
)
def test_what_no_run_has_tested_is_warned_of(name, words):
    llm = llm_preset(name)
    plan, cluster = Plan(dp=64, ep=64, global_batch=64), cluster_preset("h100")
    prediction = predict(llm, plan, cluster)
    assert prediction.warnings == (
        f"no measured run has tested the model of {words}; the step may lie outside the interval",
    )
    assert not predict(llm_preset("kimi-k2"), plan, cluster).warnings


def test_what_is_left_out_is_warned_of():
    llm = replace(llm_preset("llama3-8b"), left_out="the vision tower")
    prediction = predict(llm, Plan(dp=8, global_batch=8, zero=3), cluster_preset("h100"))
    assert prediction.warnings == ("llama3-8b is counted without the vision tower",)
    with pytest.raises(ModelError, match="left_out must be a text"):
        replace(llm, left_out=3)
