"""Gated DeltaNets and gated attention of Qwen3-Next and Qwen3.5.

The frozen numbers are those of transformers 5.23 on torch's meta device.
"""

from dataclasses import replace

import pytest

from paceline.errors import ModelError, PlanError
from paceline.model.activations import backward_work, layer_activations
from paceline.model.cluster_presets import cluster_preset
from paceline.model.delta_net import DeltaNet
from paceline.model.hf import from_hf
from paceline.model.job_yaml import load_job
from paceline.model.llm_presets import llm_preset
from paceline.model.memory import stage_parameters
from paceline.model.operators import Collective, layer_kind, layer_work
from paceline.model.plan import Plan
from paceline.model.plan_check import problems
from paceline.model.profiler import Shapes, necessary
from paceline.plan.launch.megatron import bridge_command, megatron_command
from paceline.plan.launch.torch_based import torchtitan_config
from paceline.plan.predict import predict
from paceline.plan.search import search

SMALL = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 48,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_experts": 8, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 40,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
    "linear_value_head_dim": 20, "max_position_embeddings": 512,
}  # fmt: skip
PLAN = Plan(global_batch=1)
#: A class, its configuration and the parameters of its defaults without the vision tower.
CLASSES = [
    ("Qwen3NextForCausalLM", "Qwen3NextConfig", 79_674_391_296),
    ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", 8_953_803_264),
    ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", 34_660_610_688),
    ("Qwen3_5ForConditionalGeneration", "Qwen3_5Config", 8_953_803_264),
    ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeConfig", 34_660_610_688),
]


def small(**changes):
    content = SMALL | {"architectures": ["Qwen3NextForCausalLM"]} | changes
    return from_hf(content, name="small", seq_len=64)


def test_parameters_by_hand():
    llm = small()
    # Queries and keys of 2 heads of 12, values and their gate of 4 of 20, two numbers a head.
    projected = 2 * 24 + 2 * 80 + 2 * 4
    delta = 64 * (projected + 80) + 4 * (2 * 24 + 80) + 2 * 4 + 20
    attention = 64 * (2 * 4 + 2 * 2) * 16 + 4 * 16 * 64 + 2 * 16
    experts = 8 * 3 * 64 * 48 + 3 * 64 * 40 + 64 + 8 * 64
    assert [llm.layer_parameters(i) - 128 - experts for i in (0, 3)] == [delta, attention]
    assert llm.parameters == 419_764  # Qwen3NextForCausalLM
    assert [llm.layer_blocks(i) for i in range(4)] == ["GE", "GE", "GE", "*E"]
    assert llm.block_counts == {"M": 0, "G": 3, "*": 1, "-": 0, "E": 4}
    dense, expert = stage_parameters(llm, PLAN)
    assert dense[0] + expert[0] == llm.parameters  # no vocabulary to pad
    assert llm_preset("qwen3-next-80b-a3b").parameters == 79_674_391_296
    assert llm_preset("qwen3.5-35b-a3b").parameters == 34_660_610_688


@pytest.mark.parametrize(("name", "config", "parameters"), CLASSES)
def test_parameters_against_transformers_itself(name, config, parameters):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    config = getattr(transformers, config)()
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    language = [x.numel() for part, x in model.named_parameters() if "visual" not in part]
    llm = from_hf(config.to_dict() | {"architectures": [name]})
    assert sum(language) == parameters == llm.parameters
    assert llm.left_out == ("the vision tower" if "Conditional" in name else "")


@pytest.mark.parametrize(
    ("name", "architecture", "preset"),
    [
        ("Qwen3NextConfig", "Qwen3NextForCausalLM", "qwen3-next-80b-a3b"),
        ("Qwen3_5MoeConfig", "Qwen3_5MoeForConditionalGeneration", "qwen3.5-35b-a3b"),
    ],
)
def test_presets_are_the_configurations_of_transformers(name, architecture, preset):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    content = getattr(transformers, name)().to_dict() | {"architectures": [architecture]}
    assert from_hf(content, name=preset, seq_len=4096) == llm_preset(preset)


def test_flops_of_a_forward_against_transformers_itself():
    """Its chunked rule: torch counts the products, not the triangle's solutions."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**SMALL, **eager))
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(3, 128, (1, 64)))
    llm = small()
    products = llm.model_flops_per_token() / 3 - 3 * llm.delta.model_flops_per_token
    rule = llm.delta.rule_flops_per_token[0] - 2 * 4 * 64 * (12 + 20)
    convolution = 2 * 4 * 128 * (64 + 3) / 64  # padded at both ends
    assert counter.get_total_flops() == 64 * (products + 3 * (rule + convolution))


def test_model_flops_by_hand():
    llm = small()
    delta = 64 * (216 + 80)
    attention = 64 * 12 * 16 + 4 * 16 * 64
    experts = 3 * 64 * (2 * 48 + 40) + 64 * 8 + 64
    matrices = 3 * delta + attention + 4 * experts + 128 * 64
    scores = 6 * 64 * 4 * (16 + 16)
    states = 3 * 3 * 8 * 4 * 12 * 20
    assert llm.model_flops_per_token() == 6 * matrices + scores + states


def test_operators_by_hand():
    llm = small()
    work = layer_work(llm, layer_kind(llm, 0), Plan(micro_batch=2, global_batch=2))
    forward = {op.name: op for op in work.forward}
    backward = {op.name: op for op in work.backward}
    tokens = 2 * 64
    assert list(forward)[:7] == [
        "norm-delta",
        "delta-in",
        "delta-conv",
        "delta-rule",
        "delta-norm",
        "delta-out",
        "residual-delta",
    ]
    assert forward["delta-in"][4:7] == (tokens, 216, 64)
    assert forward["delta-out"][4:7] == (tokens, 64, 80)
    assert forward["delta-conv"].bytes == 2 * 2 * tokens * 128
    # The rule's result and its gate are read, their product is written.
    assert forward["delta-norm"].bytes == 3 * 2 * tokens * 80
    key, value, state = 2 * 4 * 64 * 12, 2 * 4 * 64 * 20, 2 * 4 * 12 * 20
    assert forward["delta-rule"].flops == tokens * (3 * key + 2 * value + 3 * state)
    again = tokens * (9 * key + 5 * value + 8 * state)
    assert backward["delta-rule-backward"].flops == again
    # Keys of 24 columns 9 times, values of 80 6 times, keys of each value head (48) and states
    # (4 x 12 x 20 / 64) twice, the triangle of 64 per head in fp32 and as elements twice.
    elements = 9 * 24 + 6 * 80 + 2 * 48 + 2 * 15 + 2 * 256
    assert forward["delta-rule"].bytes == tokens * (2 * elements + 8 * 256)
    assert "shared-gate" in forward


def test_gated_attention_by_hand():
    llm = small()
    forward = {op.name: op for op in layer_work(llm, layer_kind(llm, 3), PLAN).forward}
    assert forward["qkv"][4:7] == (64, (2 * 4 + 2 * 2) * 16, 64)
    assert forward["attention-gate"].bytes == 3 * 2 * 64 * 4 * 16
    plain = replace(llm, gated_attention=False)
    assert llm.attention_parameters - plain.attention_parameters == 64 * 4 * 16
    kept, before = (layer_activations(x, layer_kind(x, 3), PLAN)[0] for x in (llm, plain))
    assert kept - before == 2 * 2 * 64 * 4 * 16


def test_tensor_and_context_parallelism():
    llm = small(linear_num_key_heads=4)
    whole, split = (
        layer_work(llm, layer_kind(llm, 0), plan)
        for plan in (PLAN, Plan(tp=2, sequence_parallel=True, global_batch=1))
    )

    def rule(work):
        return next(op for op in work.forward if op.name == "delta-rule")

    assert rule(split).flops == rule(whole).flops / 2
    ring = layer_work(llm, layer_kind(llm, 0), Plan(cp=2, global_batch=1))
    exchanged = {op.name: op for op in ring.forward if isinstance(op, Collective)}
    assert exchanged["delta-heads"].bytes == 2 * 32 * llm.delta.projected
    assert exchanged["delta-tokens"].bytes == 2 * 32 * 80
    assert problems(Plan(tp=4, sequence_parallel=True, global_batch=1), small()) == [
        "delta key_heads 2 not divisible by tp 4"
    ]
    assert problems(Plan(cp=4, global_batch=1), small()) == [
        "delta key_heads 2 not divisible by tp 1 x cp 4"
    ]


def test_activations_by_hand():
    net = replace(small(), moe=None)
    kept = layer_activations(net, layer_kind(net, 0), PLAN)[0]
    stream = 2 * 64 * 64
    mlp = 3 * 2 * 64 * 96
    # Projection, convolution's result, normed queries and keys, two results, triangles.
    delta = 2 * 64 * (216 + 128 + 2 * 24 + 2 * 80 + 4 * 64)
    assert kept == 4 * stream + mlp + delta
    alone = replace(net, pattern="G-G*")
    assert layer_activations(alone, layer_kind(alone, 0), PLAN)[0] == 2 * stream + delta
    assert backward_work(alone, layer_kind(alone, 0), PLAN) > stream


def test_a_pattern_may_list_them():
    """Eight layers of one block are the four of two."""
    llm = small()
    listed = replace(llm, layers=8, pattern="GEGEGE*E")
    assert listed.parameters == llm.parameters
    assert listed.model_flops_per_token() == llm.model_flops_per_token()
    one, two = (
        predict(x, Plan(dp=8, ep=8, global_batch=16), cluster_preset("h100")).costs.flops.sum()
        for x in (listed, llm)
    )
    assert one == pytest.approx(two)


def test_search_and_prediction_agree():
    llm = replace(llm_preset("qwen3-next-80b-a3b-mtp"), layers=8)
    cluster = cluster_preset("h100")
    result = search(llm, cluster, 8, 16, max_cp=1)
    for i in (0, len(result) // 2, len(result) - 1):
        again = predict(llm, result.plan(i), cluster)
        assert result.step_time_s[i] == pytest.approx(again.step_time_s, rel=1e-9)
        assert result.memory_bytes[i] == pytest.approx(max(again.memory_bytes), rel=1e-9)


def test_what_is_refused():
    llm = small()
    with pytest.raises(ModelError, match="value_heads 4 are not a multiple of its key_heads 3"):
        replace(llm.delta, key_heads=3)
    with pytest.raises(ModelError, match="the gated DeltaNet: chunk must be a whole number >= 1"):
        DeltaNet(key_heads=2, value_heads=2, chunk=0)
    with pytest.raises(ModelError, match="a pattern with G and the fields of delta need each"):
        replace(llm, pattern="*E*E")
    with pytest.raises(ModelError, match="shared_gate is true or false, and true beside shared"):
        replace(llm.moe, shared_experts=0, shared_ffn=0)
    with pytest.raises(ModelError, match="gated_attention beside latent"):
        replace(llm_preset("deepseek-v3"), gated_attention=True)
    assert problems(Plan(adapter_rank=8, global_batch=1), llm) == [
        "adapters on linear attention are not modelled"
    ]
    with pytest.raises(ModelError, match="no operator to measure its DeltaNets"):
        necessary(Shapes(models=(llm,)))
    for launch in (megatron_command, torchtitan_config):
        with pytest.raises(PlanError, match="linear or gated attention"):
            launch(llm, PLAN, 8)
    assert "RECIPE_OF_SMALL" in bridge_command(llm, PLAN, 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": 4 * ["linear_attention"]}, "another order of layer_types"),
        ({"mlp_only_layers": [1]}, "a list of mlp_only_layers"),
        ({"num_experts": None}, "it lacks num_experts"),
    ],
)
def test_configs_that_are_not_modelled(changes, words):
    with pytest.raises(ModelError, match=words):
        small(**changes)


def test_every_how_many_layers_see_all():
    every = ["linear_attention", "full_attention"]
    assert small(layer_types=2 * every).delta.full_every == 2
    assert small(full_attention_interval=2).delta.full_every == 2
    assert small(mtp_num_hidden_layers=1).mtp_layers == 1


def test_fields_of_a_job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: {preset: qwen3-next, layers: 6, pattern: 'GEGE*E', delta: {key_heads: 8}}\n"
        "cluster: h100\n"
    )
    llm = load_job(path).llm
    assert llm.block_counts == {"M": 0, "G": 2, "*": 1, "-": 0, "E": 3}
    assert llm.delta == DeltaNet(key_heads=8, value_heads=32)
