"""Compressed attention and residual streams of DeepSeek-V4: counts, operators, memory, refusals.

The frozen numbers are those of transformers 5.24 on torch's meta device.
"""

from dataclasses import replace

import pytest

from paceline.errors import ModelError, PlanError
from paceline.model.activations import backward_work, layer_activations
from paceline.model.cluster_presets import cluster_preset
from paceline.model.compressed import complete_entries, stream_flops, stream_parameters
from paceline.model.costs import CostModel
from paceline.model.hf import from_hf
from paceline.model.llm_presets import llm_preset
from paceline.model.memory import stage_parameters
from paceline.model.operators import layer_kind, layer_work
from paceline.model.plan import Plan
from paceline.model.plan_check import problems
from paceline.model.profiler import Shapes, necessary
from paceline.plan.launch.megatron import megatron_command
from paceline.plan.launch.torch_based import torchtitan_config
from paceline.plan.predict import predict

SMALL = {
    "vocab_size": 512, "hidden_size": 256, "moe_intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "q_lora_rank": 64,
    "qk_rope_head_dim": 8, "o_groups": 2, "o_lora_rank": 48, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "index_n_heads": 2, "index_head_dim": 16,
    "index_topk": 8, "sliding_window": 16, "hc_mult": 4, "compress_ratios": [0, 4, 128, 4],
    "max_position_embeddings": 1024,
}  # fmt: skip
RATIOS = {
    "flash": [0, 0, *[4, 128] * 20, 4, 0],
    "pro": [128, 128, *[4, 128] * 29, 4, 0],
}
PRO = {
    "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "q_lora_rank": 1536, "o_groups": 16, "index_topk": 1024, "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
}  # fmt: skip
PLAN = Plan(global_batch=1)


def small(seq_len=256, **changes):
    content = SMALL | {"architectures": ["DeepseekV4ForCausalLM"]} | changes
    return from_hf(content, name="small", seq_len=seq_len)


def test_parameters():
    flash, pro = llm_preset("deepseek-v4-flash"), llm_preset("deepseek-ai/DeepSeek-V4-Pro")
    assert flash.parameters == 284_332_230_231
    assert pro.parameters == 1_572_997_179_491
    # The model card: 284 and 1,600 billion, of which 13 and 49 are active, words apart.
    words = 2 * 129280
    assert round((flash.active_parameters - words * 4096) / 1e9) == 13
    assert round((pro.active_parameters - words * 7168) / 1e9) == 48
    llm = small()
    assert llm.layer_blocks(0) + llm.layer_blocks(1) + llm.layer_blocks(2) == "WEFECE"
    dense, expert = stage_parameters(llm, PLAN)
    assert dense[0] + expert[0] == llm.parameters  # no vocabulary to pad
    assert stream_parameters(4, 256) == 24 * 1024 + 24 + 3
    assert stream_parameters(1, 256) == 0


@pytest.mark.parametrize(("name", "fields"), [("flash", {}), ("pro", PRO)])
def test_presets_against_transformers_itself(name, fields):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    layers = fields.get("num_hidden_layers", 43)
    config = transformers.DeepseekV4Config(**fields, compress_ratios=RATIOS[name][:layers])
    with torch.device("meta"):
        model = transformers.DeepseekV4ForCausalLM(config)
    llm = llm_preset(f"deepseek-v4-{name}")
    assert llm.parameters == sum(x.numel() for x in model.parameters())
    content = config.to_dict() | {"architectures": [type(model).__name__]}
    assert from_hf(content, name=llm.name, seq_len=4096) == replace(llm, ffn=llm.hidden * 4)
    content |= {"layer_types": None, "compress_ratios": RATIOS[name]}  # as published
    assert from_hf(content, name=llm.name, seq_len=4096) == replace(llm, ffn=llm.hidden * 4)


def test_flops_of_a_forward_against_transformers_itself():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    config = transformers.DeepseekV4Config(**SMALL, pad_token_id=0, **eager)
    model = transformers.DeepseekV4ForCausalLM(config)
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(1, 512, (1, 256)), use_cache=False)
    # Eager attention computes all tokens and entries, and masks; so does its indexer.
    entries = {"W": 0, "F": 64, "C": 2}
    core = sum(4 * 4 * 32 * (256 + entries[kind]) for kind in "WFCF")
    scores = 2 * 2 * 2 * 16 * 64
    assert counter.get_total_flops() == 256 * (forward_products() + core + scores)


def forward_products():
    """FLOPs of a token's forward in ``small``: its matrices, and the streams' products."""
    matrices = 4 * (2 * 3 * 256 * 96 + 256 * 4 + 3 * 256 * 96) + 512 * 256
    matrices += 4 * (64 * (256 + 128) + 256 * 32 + 48 * (128 + 2 * 256))
    matrices += 2 * 256 * 32 + 2 * (4 * 256 * 32 + 256 * (4 * 16 + 2) + 64 * 2 * 16)
    return 2 * matrices + 8 * 2 * (24 + 4) * 4 * 256 + 2 * 16 * 256


def test_model_flops_by_hand():
    llm = small()
    kept = complete_entries(4, 256, 8)
    met = [16 * (1 - 16 / 512) + n for n in (0, kept, complete_entries(128, 256), kept)]
    core = sum(4 * 4 * 32 * n for n in met)
    indexer = 256 * (4 * 16 + 2) + 64 * 2 * 16
    scores = 2 * 2 * 16 * (complete_entries(4, 256) + 2 * kept)
    expected = 3 * (forward_products() + core) + 2 * (scores - 2 * indexer)
    assert llm.model_flops_per_token(causal=True) == pytest.approx(expected, rel=1e-12)
    assert llm.model_flops_per_token() == pytest.approx(expected + 3 * core, rel=1e-12)
    assert stream_flops(4, 256) == 6 * (24 + 4) * 4 * 256


@pytest.mark.parametrize(
    ("rate", "seq_len", "top_k"), [(4, 256, 8), (128, 256, 9e9), (4, 30, 100), (128, 100, 5)]
)
def test_complete_entries_one_by_one(rate, seq_len, top_k):
    one_by_one = sum(min(top_k, (token + 1) // rate) for token in range(seq_len)) / seq_len
    assert complete_entries(rate, seq_len, top_k) == pytest.approx(one_by_one)


def operators(llm, layer):
    work = layer_work(llm, layer_kind(llm, layer), PLAN)
    return {op.name: op for op in work.forward}, {op.name: op for op in work.backward}


def test_operators_by_hand():
    llm, kept = small(), complete_entries(4, 256, 8)
    forward, backward = operators(llm, 1)
    assert forward["q-down"][4:7] == (256, 64, 256)
    assert forward["q-up"][4:7] == (256, 4 * 32, 64)
    assert forward["kv"][4:7] == (256, 32, 256)
    assert forward["entries"][4:7] == (256, 4 * 32, 256)
    assert forward["index-entries"][4:7] == (256, 4 * 16, 256)
    assert forward["index-q"][4:7] == (256, 2 * 16, 64)
    assert forward["projection-groups"][4:8] == (256, 48, 2 * 32, 2)
    assert forward["projection"][4:7] == (256, 256, 2 * 48)
    keys = 16 * (1 - 16 / 512) + kept
    assert forward["core-attention"].flops == pytest.approx(256 * 4 * 4 * 32 * keys)
    assert backward["core-attention-backward"].flops == pytest.approx(2.5 * 256 * 4 * 4 * 32 * keys)
    assert forward["core-attention"].bytes == 2 * 256 * (2 * 128 + 2 * 32)
    assert forward["index-scores"].flops == 256 * 2 * 32 * complete_entries(4, 256)
    assert forward["index-topk"].bytes == 256 * (4 * complete_entries(4, 256) + 4 * 8)
    assert forward["index-loss"].flops == 256 * 2 * 128 * kept
    assert backward["index-scores-backward"].flops == 256 * 6 * 32 * kept
    assert forward["entries-pool"].bytes == 2 * 256 * 4 * 32 * (1 + 1 / 8)
    # The indexer's inputs are detached; those of other entries are not.
    assert "index-entries-dgrad" not in backward
    assert "index-q-wgrad" in backward
    assert "entries-dgrad" in backward
    coarse, _ = operators(llm, 2)
    assert coarse["entries"][4:7] == (256, 2 * 32, 256)
    assert "index-scores" not in coarse
    assert "entries" not in operators(llm, 0)[0]


def test_streams_by_hand():
    forward, backward = operators(small(), 0)
    size = 2 * 256 * 256  # a tensor of one stream
    for name in ("attention", "mlp"):
        assert forward[f"streams-maps-{name}"][4:7] == (256, 24, 4 * 256)
        assert forward[f"streams-norm-{name}"].bytes == 4 * size
        assert backward[f"streams-norm-{name}-backward"].bytes == 8 * size
        assert forward[f"streams-sum-{name}"].bytes == 5 * size
        assert backward[f"streams-sum-{name}-backward"].bytes == 13 * size
        assert forward[f"streams-mix-{name}"].bytes == 9 * size
        assert backward[f"streams-mix-{name}-backward"].bytes == 14 * size
        assert f"residual-{name}" not in forward


def test_activations_by_hand():
    llm = small()
    window, fine, coarse = (layer_activations(llm, layer_kind(llm, i), PLAN)[0] for i in range(3))
    wide = 2 * 256  # bytes of a token in one stream
    blocks = 2 * (2 * wide + 5 * wide + 4 * 24)  # norms' and blocks' inputs, streams, maps
    queries = 2 * (2 * 128 + 128 + 64 + 2 * 32 + 2 * 48) + 4 * 4
    routed = 2 * 2 * (2 * 256) + 2 * 3 * (2 * 96 + 96) + 4 * 4
    assert window == 256 * (blocks + queries + routed)
    assert coarse - window == 256 * 2 * 2 * 32
    assert fine - window == 256 * (2 * (4 * 32 + 32 + 64) + 4 * 2 + 8 * 8)
    whole = replace(PLAN, recompute="full")
    assert layer_activations(llm, layer_kind(llm, 0), whole)[0] == 256 * 4 * wide
    one = replace(llm, streams=1)
    kind = layer_kind(llm, 0)
    assert backward_work(llm, kind, PLAN) - backward_work(one, kind, PLAN) == 256 * 3 * wide


def test_stages_hand_all_streams_on():
    llm, plan = small(seq_len=1024), Plan(pp=2, global_batch=4)
    costs = [CostModel(x, cluster_preset("h100")) for x in (llm, replace(llm, streams=1))]
    four, one = (float(x.p2p_s(plan)[0]) for x in costs)
    assert four > one


def test_a_prediction_warns_of_what_is_left_out():
    plan = Plan(dp=8, ep=8, pp=43, global_batch=64)
    prediction = predict(llm_preset("deepseek-v4-flash"), plan, cluster_preset("h200"))
    assert prediction.step_time_s > 0
    assert any("multi-token prediction" in text for text in prediction.warnings)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_key_value_heads": 2}, "more than one key"),
        ({"compress_ratios": [0, 4, 128, 7]}, "another order of layer_types"),
        ({"compress_ratios": None}, "neither layer_types nor compress_ratios"),
    ],
)
def test_configs_that_are_refused(changes, why):
    with pytest.raises(ModelError, match=why):
        small(**changes)


def test_fields_that_are_refused():
    llm = small()
    for changes, why in (
        ({"layers": 5}, "has 4 letters, not 5"),
        ({"heads": 3, "kv_heads": 1}, "not a multiple of the 2 groups"),
        ({"window": 16}, "window beside compressed attention"),
        ({"compressed": None}, "streams are modelled beside compressed attention alone"),
        ({"mtp_layers": 1}, "mtp_layers beside compressed attention"),
    ):
        with pytest.raises(ModelError, match=why):
            replace(llm, **changes)
    with pytest.raises(ModelError, match="letters W, F, C"):
        replace(llm.compressed, layers="WX")


def test_plans_that_are_refused():
    llm = small()
    plan = Plan(tp=2, cp=2, global_batch=1, flash=False, adapter_rank=8)
    reasons = problems(plan, llm)
    for name in ("tp > 1", "cp > 1", "attention that is not fused", "adapters"):
        assert f"{name} with compressed attention is not modelled" in reasons
    assert problems(PLAN, llm) == []
    with pytest.raises(PlanError, match="compressed attention"):
        megatron_command(llm, PLAN, 8)
    with pytest.raises(PlanError, match="compressed attention"):
        torchtitan_config(llm, PLAN, 8)
    with pytest.raises(ModelError, match="no operator to measure compressed attention"):
        necessary(Shapes(models=(llm,)))
