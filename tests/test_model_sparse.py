"""Sparse attention of DeepSeek V3.2 and GLM-5: indexer, operators, memory, what is refused.

The frozen numbers are those of transformers 5.23 on torch's meta device.
"""

from dataclasses import replace

import pytest

from paceline.errors import ModelError, PlanError
from paceline.model.activations import layer_activations
from paceline.model.blocks import Indexer, mean_keys
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

SMALL = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 48,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "kv_lora_rank": 16,
    "q_lora_rank": 24, "qk_rope_head_dim": 8, "v_head_dim": 12, "qk_nope_head_dim": 16,
    "index_topk": 16, "index_head_dim": 20, "index_n_heads": 3, "first_k_dense_replace": 1,
    "max_position_embeddings": 512,
}  # fmt: skip
PLAN = Plan(global_batch=1)
CLASSES = [("DeepseekV32", "deepseek-v3.2"), ("GlmMoeDsa", "glm-5")]


def small(seq_len=64, **changes):
    content = SMALL | {"architectures": ["DeepseekV32ForCausalLM"]} | changes
    return from_hf(content, name="small", seq_len=seq_len)


def test_parameters():
    assert llm_preset("deepseek-v3.2").parameters == 671_877_929_216
    assert llm_preset("glm-5").parameters == 743_911_199_232
    llm = small()
    assert llm.parameters == 338_688
    # Queries from their latent, one key with its LayerNorm, a weight of each head.
    indexer = 24 * 3 * 20 + 64 * 20 + 2 * 20 + 64 * 3
    assert llm.attention_parameters - replace(llm, index=None).attention_parameters == indexer
    dense, expert = stage_parameters(llm, Plan(global_batch=1))
    assert dense[0] + expert[0] == llm.parameters  # no vocabulary to pad
    # Every tensor-parallel rank has the whole indexer.
    split, plain = (
        stage_parameters(x, Plan(tp=4, global_batch=1))[0] for x in (llm, replace(llm, index=None))
    )
    assert split[0] - plain[0] == 4 * indexer


@pytest.mark.parametrize(("architecture", "name"), CLASSES)
def test_presets_against_transformers_itself(architecture, name):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    config = getattr(transformers, f"{architecture}Config")()
    with torch.device("meta"):
        model = getattr(transformers, f"{architecture}ForCausalLM")(config)
    llm = llm_preset(name)
    assert llm.parameters == sum(x.numel() for x in model.parameters())
    content = config.to_dict() | {"architectures": [type(model).__name__]}
    assert from_hf(content, name=name, seq_len=4096) == llm


@pytest.mark.parametrize(("architecture", "name"), CLASSES)
def test_flops_of_a_forward_against_transformers_itself(architecture, name):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    config = getattr(transformers, f"{architecture}Config")(
        **SMALL, n_group=1, topk_group=1, **eager
    )
    model = getattr(transformers, f"{architecture}ForCausalLM")(config)
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(3, 128, (1, 64)))
    # Eager attention masks what is not kept, and adds up the indexer's heads as a product.
    rest = replace(small(), index=None).model_flops_per_token() / 3
    index = Indexer(heads=3, head_dim=20, top_k=16)
    indexer = 2 * index.matmul(64, 24) + 2 * 64 * 3 * 20 + 2 * 64 * 3
    assert counter.get_total_flops() == 64 * (rest + 4 * indexer)


def test_keys_met_on_average():
    # 8 tokens that keep 4: 1, 2, 3, 4, 4, 4, 4, 4 keys, half a key less as everywhere here.
    assert mean_keys(4, 8) == 4 * (1 - 4 / 16)
    assert mean_keys(100, 8) == 4
    llm = small()
    assert llm.attention_pairs(0, causal=True) == 16 * (1 - 16 / 128)
    assert replace(llm, index=None).attention_pairs(0, causal=True) == 32


def test_model_flops_by_hand():
    llm = small()
    plain = replace(llm, index=None).model_flops_per_token(causal=True)
    fewer = 6 * 4 * 4 * (24 + 12) * (32 - 14)  # keys that the attention does not meet
    scores = 2 * 60 * (32 + 2 * 14)  # forward all keys, backward the kept ones
    indexer = 4 * (4 * (24 * 60 + 64 * 23) + scores)
    assert llm.model_flops_per_token(causal=True) == plain - fewer + indexer


def test_operators_by_hand():
    llm = small()
    work = layer_work(llm, layer_kind(llm, 0), Plan(micro_batch=2, global_batch=2))
    forward = {op.name: op for op in work.forward}
    backward = {op.name: op for op in work.backward}
    tokens, kept = 2 * 64, 14
    names = list(forward)
    assert names[names.index("kv-down") + 1 : names.index("projection")] == [
        "rotary",
        "index-q",
        "index-key",
        "index-weights",
        "index-rotary",
        "index-scores",
        "index-topk",
        "absorb-key",
        "core-attention",
        "index-loss",
        "absorb-value",
    ]
    assert forward["index-q"][4:7] == (tokens, 3 * 20, 24)
    assert forward["index-key"][4:7] == (tokens, 20, 64)
    assert forward["index-weights"][4:7] == (tokens, 3, 64)
    assert forward["index-scores"].flops == tokens * 2 * 3 * 20 * 32
    assert forward["index-topk"].bytes == tokens * (4 * 32 + 4 * 16)
    assert forward["absorb-key"][4:9] == (tokens, 16, 16, 4, 1)
    assert forward["absorb-value"][4:9] == (tokens, 12, 16, 4, 1)
    # Keys of 16 + 8, values of 16; the same scores once more for the indexer's loss.
    assert forward["core-attention"].flops == tokens * 2 * 4 * kept * (24 + 16)
    assert forward["index-loss"].flops == tokens * 2 * 4 * kept * 24
    assert backward["core-attention-backward"].flops == tokens * 2 * 4 * kept * (3 * 24 + 2 * 16)
    assert backward["index-scores-backward"].flops == tokens * 3 * 2 * 3 * 20 * kept
    # The indexer's inputs are detached.
    assert "index-q-wgrad" in backward
    assert "index-q-dgrad" not in backward
    assert "absorb-key-dgrad" in backward


def test_up_projections_cost_the_same_on_queries_and_results():
    llm = small()

    def of(model, *names):
        work = layer_work(model, layer_kind(model, 0), PLAN)
        return sum(op.flops for op in work.forward if op.name in names)

    assert of(llm, "absorb-key", "absorb-value") == of(replace(llm, index=None), "kv-up")


def test_tensor_and_context_parallelism():
    llm = small()
    kind = layer_kind(llm, 0)

    def flops(plan):
        work = layer_work(llm, kind, plan)
        return {op.name: op.flops for op in work.forward if not isinstance(op, Collective)}

    whole, split = flops(PLAN), flops(Plan(tp=2, sequence_parallel=True, global_batch=1))
    assert split["core-attention"] == whole["core-attention"] / 2
    assert split["index-scores"] == whole["index-scores"]
    gathered = {
        op.name: op
        for op in layer_work(llm, kind, Plan(cp=2, global_batch=1)).forward
        if isinstance(op, Collective)
    }
    assert gathered["keys"].op == "all_gather"
    assert gathered["keys"].bytes == 2 * 64 * (24 + 20)


def test_long_sequences_gain():
    """At 128 Ki tokens dense attention is most of a step, sparse attention is not."""
    sparse = replace(llm_preset("deepseek-v3.2"), seq_len=131072)
    dense = replace(sparse, index=None)
    ratio = dense.model_flops_per_token(causal=True) / sparse.model_flops_per_token(causal=True)
    assert 3 < ratio < 6


def test_activations_by_hand():
    llm = small()
    kept = layer_activations(llm, layer_kind(llm, 0), PLAN)[0]
    dense = layer_activations(replace(llm, index=None), layer_kind(llm, 0), PLAN)[0]
    queries, keys, values, out = 4 * 24, 4 * 24, 4 * 12, 4 * 12
    before = 2 * (queries + keys + values + out + 24 + 16) + 4 * 4
    core = 2 * (queries + 4 * 24 + 24 + 4 * 16 + out + 24 + 16) + 4 * 4
    indexer = 2 * (3 * 20 + 20) + 4 * 3 + 8 * 16
    assert kept - dense == 64 * (core + indexer - before)


def test_what_is_refused():
    llm = small()
    with pytest.raises(ModelError, match="index needs latent with a q_rank"):
        replace(llm, latent=None)
    with pytest.raises(ModelError, match="index needs latent with a q_rank"):
        replace(llm, latent=replace(llm.latent, q_rank=None))
    with pytest.raises(ModelError, match="a window and sinks beside index"):
        replace(llm, window=8)
    with pytest.raises(ModelError, match="the indexer: top_k must be a whole number >= 1, not 0"):
        replace(llm.index, top_k=0)
    with pytest.raises(ModelError, match="index must be a mapping"):
        replace(llm, index={"heads": 3})
    assert problems(Plan(flash=False, global_batch=1), llm) == [
        "sparse attention is modelled with its fused kernels alone; use flash"
    ]
    with pytest.raises(ModelError, match="no operator to measure its sparse attention"):
        necessary(Shapes(models=(llm,)))
    for launch in (megatron_command, torchtitan_config):
        with pytest.raises(PlanError, match="sparse attention"):
            launch(llm, PLAN, 8)
    assert "RECIPE_OF_SMALL" in bridge_command(llm, PLAN, 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indexer_types": ["full", "full", "shared", "full"]}, "an indexer that layers share"),
        ({"index_topk_freq": 4}, "an indexer that layers share"),
        ({"index_topk_pattern": "FSSS"}, "an indexer that layers share"),
        ({"mlp_layer_types": 4 * ["sparse"]}, "another order of mlp_layer_types"),
        ({"q_lora_rank": None}, "it lacks q_lora_rank"),
        ({"index_topk": None}, "it lacks index_topk"),
    ],
)
def test_configs_that_are_not_modelled(changes, words):
    with pytest.raises(ModelError, match=words):
        small(**changes)


def test_fields_of_a_job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: {preset: deepseek-v3, index: {heads: 64, head_dim: 128, top_k: 2048}}\n"
        "cluster: h100\n"
    )
    job = load_job(path)
    assert replace(job.llm, name="deepseek-v3.2") == llm_preset("deepseek-v3.2")
