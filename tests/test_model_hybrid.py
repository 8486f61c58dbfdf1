"""Hybrids of Mamba-2 and attention: layer patterns, parameters, operators, what is refused."""

import dataclasses

import pytest

from paceline.errors import ModelError, PlanError
from paceline.model.activations import backward_work, layer_activations
from paceline.model.blocks import MoE
from paceline.model.cluster_presets import cluster_preset
from paceline.model.costs import CostModel
from paceline.model.hf import from_hf
from paceline.model.llm_presets import llm_preset
from paceline.model.mamba import Mamba
from paceline.model.memory import stage_parameters
from paceline.model.operators import Collective, Operator, layer_kind, layer_work
from paceline.model.plan import Plan
from paceline.model.plan_check import check, problems
from paceline.plan.launch.megatron import bridge_command, megatron_command
from paceline.plan.launch.torch_based import torchtitan_config
from paceline.plan.predict import predict
from paceline.plan.search import search

CONFIG = {
    "architectures": ["NemotronHForCausalLM"],
    "hybrid_override_pattern": "M-*EM",
    "hidden_size": 64,
    "vocab_size": 1000,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 100,
    "mamba_num_heads": 6,
    "mamba_head_dim": 20,
    "n_groups": 3,
    "ssm_state_size": 12,
    "conv_kernel": 3,
    "chunk_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 50,
}
MIXER = Mamba(heads=6, head_dim=20, state=12, groups=3, conv=3, chunk=8)
PLAN = Plan(global_batch=1)
EXPERTS = MoE(experts=4, top_k=2, ffn=40, shared_experts=1, shared_ffn=50)


def small(**changes):
    return dataclasses.replace(from_hf(CONFIG, seq_len=16, name="small"), **changes)


def test_parameters_by_hand():
    llm = small()
    inner, convolved = 6 * 20, 6 * 20 + 2 * 3 * 12
    mixer = 64 * (inner + convolved + 6) + convolved * (3 + 1) + 3 * 6 + inner + inner * 64
    attention = 64 * (4 + 2 * 2) * 24 + 4 * 24 * 64
    mlp, experts = 2 * 64 * 100, 4 * 2 * 64 * 40 + 2 * 64 * 50 + 4 * 64
    blocks = [llm.layer_parameters(i) - 64 for i in range(5)]
    assert blocks == [mixer, mlp, attention, experts, mixer]
    # What torch counts on its meta device: NemotronHForCausalLM of transformers 5.23.
    assert llm.parameters == 244628
    assert llm.active_parameters == 244628 - 2 * 2 * 64 * 40
    assert llm.block_counts == {"M": 2, "G": 0, "*": 1, "-": 1, "E": 1}
    assert llm.moe_layers == 1
    assert [llm.is_moe_layer(i) for i in range(5)] == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("name", "parameters"),
    # Counted by torch on its meta device, transformers 5.23.
    [
        ("nemotron-h-8b", 8_100_852_736),
        ("nemotron-h-56b", 56_324_350_464),
        ("Nemotron_3_Nano", 31_577_937_344),
        ("Nemotron 3 Super", 120_668_687_360),
    ],
)
def test_presets_have_the_parameters_of_transformers(name, parameters):
    llm = llm_preset(name)
    assert llm.parameters == parameters
    assert len(llm.pattern) == llm.layers


@pytest.mark.parametrize(
    "name", ["nemotron-h-8b", "nemotron-h-56b", "nemotron-3-nano", "nemotron-3-super"]
)
def test_parameters_against_transformers_itself(name):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    llm = llm_preset(name)
    moe = llm.moe or EXPERTS
    config = transformers.NemotronHConfig(
        vocab_size=llm.vocab,
        hidden_size=llm.hidden,
        hybrid_override_pattern=llm.pattern,
        num_attention_heads=llm.heads,
        num_key_value_heads=llm.kv_heads,
        head_dim=llm.head_dim,
        intermediate_size=llm.ffn,
        mamba_num_heads=llm.mamba.heads,
        ssm_state_size=llm.mamba.state,
        n_routed_experts=moe.experts,
        num_experts_per_tok=moe.top_k,
        moe_intermediate_size=moe.ffn,
        moe_shared_expert_intermediate_size=moe.shared_ffn,
        moe_latent_size=moe.latent or None,
    )
    with torch.device("meta"):
        model = transformers.NemotronHForCausalLM(config)
    assert llm.parameters == sum(x.numel() for x in model.parameters())
    content = {**config.to_dict(), "architectures": ["NemotronHForCausalLM"]}
    assert from_hf(content).parameters == llm.parameters


def test_model_flops_by_hand():
    llm = small()
    mixer = 64 * (120 + 192 + 6 + 120)
    attention = 64 * (4 + 2 * 2) * 24 + 4 * 24 * 64
    experts = 2 * 64 * (2 * 40 + 50) + 64 * 4
    matrices = 2 * mixer + attention + 2 * 64 * 100 + experts + 1000 * 64
    scores = 6 * 16 * 4 * (24 + 24)
    scans = 2 * 3 * 7 * 120 * 12
    assert llm.model_flops_per_token() == 6 * matrices + scores + scans


def test_operators_of_a_mixer_by_hand():
    llm = small()
    work = layer_work(llm, layer_kind(llm, 0), Plan(micro_batch=2, global_batch=2))
    forward = {op.name: op for op in work.forward}
    tokens = 2 * 16
    assert list(forward) == [
        "norm-mixer",
        "mixer-in",
        "mixer-transpose",
        "mixer-conv",
        "mixer-scan",
        "mixer-norm",
        "mixer-out",
        "residual-mixer",
    ]
    assert forward["mixer-in"][4:7] == (tokens, 120 + 192 + 6, 64)
    assert forward["mixer-out"][4:7] == (tokens, 64, 120)
    # C with B and the scores with x, per token 8 of a chunk; states from B and x, and of C.
    scan = tokens * (2 * 8 * 12 * 3 + 2 * 8 * 120 + 2 * 2 * 120 * 12)
    assert forward["mixer-scan"].flops == scan
    # x, z and two results; B and C twice; scores written and read in fp32; states of 2 chunks,
    # fp32 written and read, bf16 written and read.
    elements = 2 * (5 * 120 + 4 * 36)
    assert forward["mixer-scan"].bytes == tokens * (elements + 2 * 4 * 3 * 8 + 12 * 120 * 12 / 8)
    assert forward["mixer-conv"].bytes == 2 * 2 * tokens * 192
    backward = {op.name: op for op in work.backward}
    again = tokens * (3 * 2 * 8 * 12 * 3 + 3 * 2 * 8 * 120 + 5 * 2 * 120 * 12)
    assert backward["mixer-scan-backward"].flops == again
    # Kernel by kernel: channels 17 times, B and C 11 times in bf16 and 4 in fp32, scores 6 times,
    # states of 2 chunks 6 times in fp32 and 5 in bf16.
    elements = 2 * (17 * 120 + 11 * 36) + 4 * (4 * 36 + 6 * 3 * 8)
    states = (6 * 4 + 5 * 2) * 120 * 12 / 8
    assert backward["mixer-scan-backward"].bytes == tokens * (elements + states)


def test_tensor_parallelism_splits_heads_and_context_parallelism_exchanges_them():
    llm = small(mamba=dataclasses.replace(MIXER, heads=12, groups=2))
    kind = layer_kind(llm, 0)
    whole = layer_work(llm, kind, PLAN)
    split = layer_work(llm, kind, Plan(tp=2, sequence_parallel=True, global_batch=1))

    def scan(work):
        return next(op for op in work.forward if op.name == "mixer-scan")

    assert scan(split).flops == scan(whole).flops / 2
    assert scan(split).bytes == scan(whole).bytes / 2
    names = [op.name for op in split.forward if isinstance(op, Collective)]
    assert names == ["mixer-in", "mixer-out"]
    ring = layer_work(llm, kind, Plan(cp=2, global_batch=1))
    exchanged = {op.name: op for op in ring.forward if isinstance(op, Collective)}
    assert exchanged["mixer-heads"].op == "all_to_all"
    assert exchanged["mixer-heads"].bytes == 2 * 8 * llm.mamba.projected
    assert exchanged["mixer-tokens"].bytes == 2 * 8 * 240
    assert problems(Plan(tp=4, sequence_parallel=True, global_batch=1), llm) == [
        "shared_ffn 50 not divisible by tp 4",
        "mamba groups 2 not divisible by tp 4",
    ]
    odd = small(mamba=dataclasses.replace(MIXER, heads=9, groups=3), seq_len=64)
    assert problems(Plan(cp=2, global_batch=1), odd) == [
        "mamba heads 9 not divisible by tp 1 x cp 2"
    ]


def test_blocks_have_one_norm_and_their_own_work():
    llm = small()
    names = {}
    for i, letter in enumerate("M-*E"):
        work = layer_work(llm, layer_kind(llm, i), PLAN)
        names[letter] = [op.name for op in work.forward if isinstance(op, Operator)]
    norms = {letter: [n for n in of if n.startswith("norm-")] for letter, of in names.items()}
    assert list(norms.values()) == [["norm-mixer"], ["norm-mlp"], ["norm-attention"], ["norm-mlp"]]
    assert "core-attention" in names["*"]
    assert "mlp-up" not in names["*"]
    assert "core-attention" not in names["-"] + names["E"] + names["M"]
    # A transformer's layer is attention and MLP, each with its norm.
    both = layer_work(llm_preset("llama3-8b"), layer_kind(llm_preset("llama3-8b"), 0), PLAN)
    assert sum(op.name.startswith("norm-") for op in both.forward) == 2


def test_memory_of_a_mixer():
    llm = small()
    kind = layer_kind(llm, 0)
    kept, again = layer_activations(llm, kind, PLAN)
    stream = 2 * 16 * 64
    # The block's and the projection's input, the scan's input, its two results, the norm's.
    assert kept == 2 * stream + 2 * 16 * (318 + 3 * 120)
    assert again == 0
    assert backward_work(llm, kind, PLAN) > stream
    attention = layer_activations(llm, layer_kind(llm, 2), PLAN)[0]
    assert attention == 2 * stream + 2 * 16 * (96 + 48 + 48 + 96) + 4 * 16 * 4
    dense, expert = stage_parameters(llm, PLAN)
    padding = 2 * (llm.padded_vocab(1) - llm.vocab) * llm.hidden
    assert dense[0] + expert[0] == llm.parameters + padding


def test_a_step_of_the_preset():
    llm = dataclasses.replace(llm_preset("nemotron-3-nano"), seq_len=4096)
    plan = Plan(dp=8, ep=8, global_batch=16, precision="fp8", zero=1)
    check(plan, llm, 8)
    model = CostModel(llm, cluster_preset("h100"))
    seconds = {
        b: model.layer(layer_kind(llm, i), plan)[0].sum() for b, i in (("M", 0), ("*", 5), ("E", 1))
    }
    whole = model.stage_work(plan).parts_s.sum()
    layers = sum(llm.pattern.count(letter) * seconds[letter] for letter in seconds)
    ends = sum(model.layer(name, plan)[0].sum() for name in ("embedding", "head"))
    assert whole == pytest.approx(layers + ends)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "M-*XM"}, "pattern has 'X' at 4; a layer is one of M (a Mamba-2 mixer)"),
        ({"pattern": "M-*E"}, "pattern has 4 layers, not 5"),
        ({"pattern": 5}, "pattern must be a text"),
        ({"mamba": None}, "a pattern with M and the fields of mamba need each other"),
        ({"moe": None}, "a pattern with E and the fields of moe need each other"),
        ({"pattern": "----*"}, "a pattern with M and the fields of mamba need each other"),
        ({"pattern": ""}, "a pattern with M and the fields of mamba need each other"),
        ({"mtp_layers": 1}, "mtp_layers beside a pattern need mtp_pattern"),
        ({"mtp_pattern": "*E"}, "mtp_pattern and mtp_shared say what mtp_layers are"),
        ({"mtp_layers": 1, "mtp_pattern": "*X"}, "mtp_pattern has 'X' at 2"),
        ({"window": 8}, "window beside a pattern is not modelled"),
        (
            {"moe": dataclasses.replace(EXPERTS, dense_layers=1)},
            "moe.dense_layers and moe.every beside a pattern is not modelled",
        ),
        ({"mamba": {"heads": 6}}, "mamba must be a mapping of its own fields"),
    ],
)
def test_contradictions_of_a_pattern_are_named(changes, message):
    with pytest.raises(ModelError) as error:
        small(**changes)
    assert message in str(error.value)


def test_mixers_refuse_heads_that_groups_do_not_divide():
    with pytest.raises(ModelError, match="heads 6 are not a multiple of its groups 4"):
        dataclasses.replace(MIXER, groups=4)
    with pytest.raises(ModelError, match="the Mamba-2 mixer: state must be a whole number >= 1"):
        dataclasses.replace(MIXER, state=0)


def test_adapters_on_hybrids_are_refused():
    with pytest.raises(PlanError, match="adapters on hybrid models are not modelled"):
        check(Plan(adapter_rank=8, global_batch=1), small())


def test_launchers_without_hybrids_refuse_them():
    for command in (megatron_command, torchtitan_config):
        with pytest.raises(PlanError, match="hybrid model"):
            command(small(), PLAN, 8)
    assert "RECIPE_OF_SMALL" in bridge_command(small(), PLAN, 8)
    uneven = Plan(pp=2, global_batch=2, layers_per_stage=(2, 3))
    with pytest.raises(PlanError, match="layers_per_stage of a hybrid"):
        bridge_command(small(), uneven, 8)


def test_config_is_read():
    llm = from_hf(CONFIG, seq_len=16)
    assert (llm.pattern, llm.mamba, llm.moe) == ("M-*EM", MIXER, EXPERTS)
    assert (llm.kv_heads, llm.head_dim, llm.ffn, llm.positions) == (2, 24, 100, "none")
    assert (llm.gated, llm.tied, llm.bias) == (False, False, False)
    kinds = ["linear_attention", "mlp", "full_attention", "moe", "mamba"]
    listed = {**CONFIG, "hybrid_override_pattern": None, "layers_block_type": kinds}
    assert from_hf(listed, seq_len=16) == llm


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bias": True}, "use_bias true is not modelled"),
        ({"num_nextn_predict_layers": 1}, "it lacks mtp_hybrid_override_pattern"),
        ({"hybrid_override_pattern": None}, "it lacks hybrid_override_pattern"),
        ({"layers_block_type": ["moe", "rwkv"]}, "layers_block_type ['moe', 'rwkv']"),
        ({"hybrid_override_pattern": "M?"}, "pattern has '?' at 2"),
    ],
)
def test_configs_that_are_not_modelled_are_refused(changes, message):
    with pytest.raises(ModelError) as error:
        from_hf({**CONFIG, **changes})
    assert message in str(error.value)


LATENT = {"moe_latent_size": 32}
MTP = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}


def latent(**changes):
    return dataclasses.replace(from_hf(CONFIG | LATENT, seq_len=16, name="latent"), **changes)


def test_parameters_of_latent_experts_by_hand():
    experts = 4 * 2 * 32 * 40 + 2 * 64 * 32 + 2 * 64 * 50 + 4 * 64
    assert latent().layer_parameters(3) - 64 == experts
    assert latent().parameters == 238_484  # NemotronHForCausalLM of transformers 5.23
    biased = dataclasses.replace(latent(), bias=True)
    assert biased.expert_projection_parameters == 2 * 64 * 32 + 64 + 32
    assert biased.expert_parameters == 2 * 32 * 40 + 40 + 32
    # Tensor parallelism does not split the projections.
    whole, split = (stage_parameters(latent(), Plan(tp=tp, global_batch=1))[0] for tp in (1, 2))
    plain = [stage_parameters(small(), Plan(tp=tp, global_batch=1))[0] for tp in (1, 2)]
    assert whole[0] - plain[0][0] == split[0] - plain[1][0] == 2 * 64 * 32


def test_model_flops_of_latent_experts_by_hand():
    wide, narrow = 2 * 64 * (2 * 40), 2 * 32 * (2 * 40) + 2 * 64 * 32
    fewer = small().model_flops_per_token() - latent().model_flops_per_token()
    assert fewer == 6 * (wide - narrow)


def test_operators_of_latent_experts_by_hand():
    plan = Plan(dp=2, ep=2, micro_batch=2, global_batch=4)
    work = layer_work(latent(), layer_kind(latent(), 3), plan)
    forward = {op.name: op for op in work.forward}
    tokens = 2 * 16
    assert forward["latent-down"][4:7] == (tokens, 32, 64)
    assert forward["latent-up"][4:7] == (tokens, 64, 32)
    assert forward["expert-up"][4:8] == (tokens * 2 * 2 // 4, 40, 32, 2)
    assert forward["expert-down"][4:8] == (tokens * 2 * 2 // 4, 32, 40, 2)
    assert forward["shared-up"][4:7] == (tokens, 50, 64)
    plain = {op.name: op for op in layer_work(small(), layer_kind(small(), 3), plan).forward}
    assert forward["dispatch"].bytes == plain["dispatch"].bytes / 2
    assert forward["permute"].bytes == plain["permute"].bytes / 2
    names = list(forward)
    order = ["router", "latent-down", "permute", "dispatch", "expert-up", "combine", "latent-up"]
    assert sorted(order[:4], key=names.index) == order[:4]
    assert names.index("unpermute") < names.index("latent-up") < names.index("shared-up")


def test_activations_of_latent_experts_by_hand():
    kind = layer_kind(latent(), 3)
    wide, narrow = (layer_activations(llm, kind, PLAN)[0] for llm in (small(), latent()))
    routed = 16 * 2
    # Into and out of the experts; what enters the dispatch and the projection out of the latent.
    assert wide - narrow == 2 * (2 * routed * (64 - 32) - 2 * 16 * 32)


def test_multi_token_prediction_beside_a_pattern():
    llm = from_hf(CONFIG | LATENT | MTP, seq_len=16, name="small")
    assert (llm.mtp_layers, llm.mtp_pattern, llm.mtp_shared) == (1, "*E", False)
    module = llm.layer_parameters(2) + llm.layer_parameters(3) + 2 * 64**2 + 3 * 64
    assert llm.parameters - latent().parameters == module
    twice = dataclasses.replace(llm, mtp_layers=2, mtp_shared=True)
    assert twice.parameters == llm.parameters
    assert twice.active_parameters == llm.active_parameters
    blocks = 64 * 8 * 24 + 4 * 24 * 64 + 2 * 32 * 80 + 2 * 64 * 32 + 2 * 64 * 50 + 64 * 4
    pass_ = 6 * (blocks + 2 * 64**2 + 1000 * 64) + 6 * 16 * 4 * (24 + 24)
    for model, times in ((llm, 1), (twice, 2)):
        more = model.model_flops_per_token() - latent().model_flops_per_token()
        assert more == pytest.approx(times * pass_)


def test_a_step_runs_the_modules_as_often_as_they_predict():
    llm = from_hf(CONFIG | LATENT | MTP, seq_len=16, name="small")
    model = CostModel(llm, cluster_preset("h100"))
    once = model.stage_work(PLAN).parts_s.sum()
    plain = CostModel(latent(), cluster_preset("h100")).stage_work(PLAN).parts_s.sum()
    kinds = [layer_kind(llm, 2), layer_kind(llm, 3), "mtp", "head"]
    module = sum(model.layer(kind, PLAN)[0].sum() for kind in kinds)
    assert once - plain == pytest.approx(module)
    twice = dataclasses.replace(llm, mtp_layers=2, mtp_shared=True)
    work = CostModel(twice, cluster_preset("h100")).stage_work(PLAN)
    assert work.parts_s.sum() - plain == pytest.approx(2 * module)
    assert work.parameters.sum() + work.expert_parameters.sum() == pytest.approx(
        twice.parameters + 2 * 24 * 64 - 3 * 64
    )


def test_search_and_prediction_agree_on_them():
    llm = dataclasses.replace(llm_preset("nemotron-3-super-mtp"), layers=4, pattern="ME*E")
    cluster = cluster_preset("h100")
    result = search(llm, cluster, 8, 16, max_cp=1)
    for i in (0, len(result) // 2, len(result) - 1):
        again = predict(llm, result.plan(i), cluster)
        assert result.step_time_s[i] == pytest.approx(again.step_time_s, rel=1e-9)
        assert result.memory_bytes[i] == pytest.approx(max(again.memory_bytes), rel=1e-9)


def test_launchers_without_latent_experts_refuse_them():
    llm = dataclasses.replace(
        llm_preset("qwen3-30b-a3b"), moe=MoE(experts=128, top_k=8, ffn=768, latent=512)
    )
    for command in (megatron_command, torchtitan_config):
        with pytest.raises(PlanError, match="latent experts"):
            command(llm, PLAN, 8)
