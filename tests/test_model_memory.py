"""Memory against the closed forms of Korthikanti et al. 2022 (Table 2, Equations 1 to 6)."""

import pytest

from paceline.model.llm_presets import llm_preset
from paceline.model.memory import (
    FRAMEWORK_BYTES,
    in_flight,
    layer_activations,
    stage_memory,
    stage_parameters,
)
from paceline.model.operators import layer_kind
from paceline.model.plan import Plan

#: Its Table 3: model, a, h, L, t, p, v, micro batch.
MODELS = {
    "megatron-22b": (64, 6144, 48, 8, 1, 1, 4),
    "gpt3-175b": (96, 12288, 96, 8, 8, 3, 1),
    "megatron-529.6b": (128, 20480, 105, 8, 35, 3, 1),
    "megatron-1008b": (160, 25600, 128, 8, 64, 1, 1),
}
S = 2048


def plan_of(name, *, recompute, sp, dp=1):
    _, _, _, t, p, v, b = MODELS[name]
    return Plan(
        tp=t,
        pp=p,
        vpp=v,
        dp=dp,
        micro_batch=b,
        global_batch=b * p * 4 * dp,
        recompute=recompute,
        sequence_parallel=sp,
        precision="fp16",
        flash=False,
    )


def table_2(name, recompute, sp):
    """Bytes of one layer and one microbatch on one GPU."""
    a, h, _, t, _, _, b = MODELS[name]
    sbh = S * b * h
    if recompute == "full":
        return 2 * sbh / (t if sp else 1)
    attention = 0 if recompute == "selective" else 5 * a * S / h
    if sp:
        return sbh / t * (34 + attention)
    return sbh * (10 + 24 / t + attention / t)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("sp", [False, True])
def test_a_layer_keeps_what_table_2_says(name, recompute, sp):
    llm = llm_preset(name)
    kept, _ = layer_activations(llm, layer_kind(llm, 0), plan_of(name, recompute=recompute, sp=sp))
    assert kept == pytest.approx(table_2(name, recompute, sp), rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("sp", [False, True])
def test_the_first_stage_holds_all_layers_worth(name, recompute, sp):
    """L layers under 1F1B, L (1 + (p - 1) / (p v)) interleaved (4.2.3); the embedding's mask."""
    _, h, layers, t, p, v, b = MODELS[name]
    llm = llm_preset(name)
    plan = plan_of(name, recompute=recompute, sp=sp)
    share = t if sp else 1
    expected = table_2(name, recompute, sp) * layers * (1 + (p - 1) / (p * v) * (v > 1))
    expected += S * b * h * p / share
    if p == 1:
        expected += 4 * S * b * h / share + 4 * S * b * llm.padded_vocab(t) / t
    assert stage_memory(llm, plan)[0].activations == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_optimizer_take_18_bytes_a_parameter(name):
    """fp16 weights 2, fp32 gradients 4, Adam's master and moments 12; the last over dp (ZeRO-1)."""
    llm = llm_preset(name)
    dp = 4
    plan = plan_of(name, recompute="full", sp=True, dp=dp)
    dense, expert = stage_parameters(llm, plan)
    memory = stage_memory(llm, plan)
    for stage, one in enumerate(memory):
        assert one.parameters == 2 * dense[stage]
        assert one.gradients == 4 * dense[stage]
        assert one.optimizer == 12 * dense[stage] / dp
        assert one.framework == FRAMEWORK_BYTES
        assert one.total_bytes == pytest.approx(sum(one.parts.values()))
    assert expert.sum() == 0
    # Norms and output biases are held by every tensor-parallel rank, the tied embedding twice.
    assert dense.sum() * plan.tp == pytest.approx(llm.parameters, rel=0.02)


def test_zero_shards_gradients_and_weights_too():
    llm = llm_preset("llama3-8b")
    plans = [Plan(dp=8, global_batch=8, zero=zero) for zero in range(4)]
    states = [stage_memory(llm, plan)[0] for plan in plans]
    n = llm.parameters
    assert states[0].parameters == pytest.approx(2 * n, rel=1e-3)
    assert [round(s.optimizer / n, 1) for s in states] == [12, 1.5, 1.5, 1.5]
    assert [round(s.gradients / n, 1) for s in states] == [4, 4, 0.5, 0.5]
    assert [round(s.parameters / n, 2) for s in states] == [2, 2, 2, 0.25]
    assert states[3].transient > 0  # the gathered layers


def test_gpipe_holds_all_microbatches_and_1f1b_as_many_as_stages_follow():
    plan = Plan(pp=4, micro_batch=1, global_batch=16)
    assert in_flight(plan).tolist() == [4, 3, 2, 1]
    few = Plan(pp=4, micro_batch=1, global_batch=2)
    assert in_flight(few).tolist() == [2, 2, 2, 1]
    gpipe = Plan(pp=4, micro_batch=1, global_batch=16, schedule="gpipe")
    assert in_flight(gpipe).tolist() == [16, 16, 16, 16]
    interleaved = Plan(pp=4, vpp=2, micro_batch=1, global_batch=16)
    assert in_flight(interleaved).tolist() == [11, 9, 7, 5]


def test_experts_split_over_expert_parallel_ranks():
    llm = llm_preset("mixtral-8x7b")
    alone, spread = (
        stage_memory(llm, Plan(dp=8, ep=ep, global_batch=8, zero=1))[0] for ep in (1, 8)
    )
    experts = llm.moe_layers * llm.moe.experts * llm.expert_parameters
    assert alone.parameters - spread.parameters == pytest.approx(2 * experts * 7 / 8)
    assert alone.optimizer == pytest.approx(spread.optimizer)  # sharded over all ranks either way


def test_context_parallel_ranks_hold_their_part_of_the_sequence():
    llm = llm_preset("llama3-8b")
    whole, half = (
        layer_activations(llm, layer_kind(llm, 0), Plan(cp=cp, global_batch=1))[0] for cp in (1, 2)
    )
    assert half == pytest.approx(whole / 2)
