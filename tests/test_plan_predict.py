"""Predictions: their parts add up, and they hang together with memory, days and dollars."""

from dataclasses import replace

import numpy as np
import pytest

import paceline
from paceline.errors import ModelError, PlanError
from paceline.model.blocks import MoE
from paceline.model.cluster_presets import cluster_preset
from paceline.model.job_yaml import job_from_options
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.memory_peak import PARTS
from paceline.model.memory_rules import MemoryRules
from paceline.model.plan import Plan
from paceline.plan.cost import model_flops_per_token
from paceline.plan.memory_curve import memory_curve
from paceline.plan.predict import predict
from paceline.plan.step import step_time_s

GPT3 = {"tp": 8, "pp": 8, "dp": 16, "micro_batch": 1, "global_batch": 1536}


@pytest.fixture(scope="module")
def gpt3():
    return predict("gpt3-175b", GPT3, "a100-80g", tokens=300e9)


def test_the_breakdown_adds_up_to_the_simulated_step(gpt3):
    assert sum(gpt3.breakdown.values()) == pytest.approx(gpt3.step_time_s, rel=1e-12)
    assert gpt3.timeline.step_times()[0] == pytest.approx(gpt3.step_time_s, rel=1e-12)
    assert step_time_s(gpt3.costs, gpt3.plan) == pytest.approx(gpt3.step_time_s, rel=1e-12)
    assert all(seconds >= -1e-12 for seconds in gpt3.breakdown.values())


def test_the_bubble_of_nearly_equal_stages_is_p_minus_1_over_m(gpt3):
    compute = sum(gpt3.breakdown[part] for part in ("gemm", "attention", "memory", "tp"))
    # The first and the last stage have a little more to do, which counts as bubble.
    assert 7 / 96 < gpt3.breakdown["bubble"] / compute < 1.6 * 7 / 96


def test_mfu_tokens_days_and_dollars_hang_together(gpt3):
    flops = llm_preset("gpt3-175b").model_flops_per_token() * 1536 * 2048
    assert gpt3.mfu == pytest.approx(flops / (gpt3.step_time_s * 1024 * 312e12))
    assert gpt3.tokens_per_s == pytest.approx(1536 * 2048 / gpt3.step_time_s)
    assert gpt3.days == pytest.approx(300e9 / gpt3.tokens_per_s / 86400, rel=1e-4)
    assert gpt3.dollars == pytest.approx(gpt3.days * 24 * 1024 * 3.43)
    assert predict("gpt3-175b", GPT3, "a100-80g").days is None


def test_full_recomputation_costs_a_third_more_flops(gpt3):
    full = predict("gpt3-175b", {**GPT3, "recompute": "full"}, "a100-80g")
    assert full.hfu / full.mfu == pytest.approx(4 / 3, rel=0.01)
    assert gpt3.hfu == gpt3.mfu
    assert full.step_time_s > 1.2 * gpt3.step_time_s
    assert max(full.memory_bytes) < max(gpt3.memory_bytes)


def test_what_does_not_fit_says_what_would():
    tight = predict("gpt3-2.7b", {"dp": 8, "micro_batch": 4, "global_batch": 64}, "a100-40g")
    assert not tight.fits
    assert tight.memory_headroom_bytes < 0
    assert {"recompute full", "tp 2 (dp 4)"} <= set(tight.to_fit)
    expandable = {"zero 3 with expandable segments", "micro batch 2 with expandable segments"}
    assert expandable <= set(tight.to_fit)
    for change in ({"recompute": "full"}, {"tp": 2, "dp": 4}):
        other = predict(tight.llm, replace(tight.plan, **change), "a100-40g")
        assert other.fits
        assert other.to_fit == ()
    other = predict(tight.llm, replace(tight.plan, micro_batch=2), "a100-40g")
    assert not other.fits
    assert other.fit == "expandable segments"
    assert other.to_fit[0] == "expandable segments"
    rules = MemoryRules(expandable_segments=True)
    assert predict(tight.llm, other.plan, "a100-40g", rules=rules).fits


def test_more_bandwidth_never_makes_a_step_longer(gpt3):
    cluster = cluster_preset("a100-80g")
    faster = replace(
        cluster,
        node=replace(cluster.node, bandwidth=2 * cluster.node.bandwidth),
        network=replace(cluster.network, nic_bandwidth=2 * cluster.network.nic_bandwidth),
    )
    assert predict("gpt3-175b", GPT3, faster).step_time_s < gpt3.step_time_s


def test_an_illegal_plan_names_all_reasons():
    with pytest.raises(PlanError, match=r"heads 96 not divisible by tp 7.*layers 96 not divisible"):
        predict("gpt3-175b", {"tp": 7, "pp": 5, "global_batch": 8}, "a100-80g")


def test_a_precision_that_the_gpu_lacks():
    with pytest.raises(ModelError, match="has no fp8; it supports fp32, fp16, bf16"):
        predict("gpt3-13b", {"global_batch": 8, "precision": "fp8"}, "a100-80g")


def test_tensor_parallelism_beyond_a_node_is_pointed_out():
    wide = predict("gpt3-175b", {"tp": 16, "pp": 8, "global_batch": 8}, "a100-80g")
    assert "exceeds the 8 GPUs of a node" in wide.warnings[0]


@pytest.mark.parametrize(
    ("model", "seq_len", "words"),
    [
        ("gpt3-175b", 4096, "longer than gpt3-175b allows: its learned table has 2,048 positions"),
        ("llama2-7b", 8192, "longer than llama2-7b allows: its config has 4,096 positions"),
        ("llama2-7b", 4096, ""),
        ("nemotron-h-8b", 9000, "longer than nemotron-h-8b allows: its config has 8,192 positions"),
        ("nemotron-3-nano", 65536, ""),  # nothing is known
    ],
)
def test_a_sample_that_is_too_long_for_the_model(model, seq_len, words):
    llm = job_from_options(model=model, gpu="h100", seq_len=seq_len).llm
    warnings = predict(llm, {"tp": 8, "global_batch": 1}, "h100").warnings
    assert [text for text in warnings if "longer than" in text] == (
        [f"a sample of {seq_len:,} tokens is {words}"] if words else []
    )


@pytest.mark.parametrize(
    "model", ["llama3.1-405b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "qwen3-30b-a3b"]
)
def test_every_family_is_predicted(model):
    llm = llm_preset(model)
    layers = (llm.layers // 2, llm.layers - llm.layers // 2)
    ep = 8 if llm.moe else 1
    plan = Plan(tp=1, pp=2, dp=8, ep=ep, global_batch=32, layers_per_stage=layers)
    found = paceline.predict(llm, plan, "h200")
    assert 0.05 < found.mfu < 0.8
    assert (found.breakdown["ep"] > 0) == (llm.moe is not None)


def test_shards_are_exchanged_in_every_microbatch():
    """ZeRO-2 reduces, ZeRO-3 gathers too; slower networks never make a step faster."""
    slow = cluster_preset("h100")
    slow = replace(
        slow, network=replace(slow.network, nic_bandwidth=slow.network.nic_bandwidth / 16)
    )
    plan = Plan(dp=64, global_batch=512, recompute="full", overlap_dp=False)
    steps = [predict("llama3-8b", replace(plan, zero=zero), slow).step_time_s for zero in range(4)]
    assert steps[1] < steps[2] < steps[3]
    three = predict("llama3-8b", replace(plan, zero=3), slow)
    assert three.breakdown["tp"] == 0
    assert three.breakdown["dp"] > 0.5 * three.step_time_s


def test_a_pipeline_longer_than_a_node_crosses_it():
    cluster = cluster_preset("h100")
    narrow = replace(cluster.network, nic_bandwidth=cluster.network.nic_bandwidth / 100)
    plan = Plan(pp=16, global_batch=16)
    llm = llm_preset("llama3-8b")
    near, far = (
        predict(llm, plan, replace(cluster, network=network)).breakdown["p2p"]
        for network in (cluster.network, narrow)
    )
    assert far > 10 * near


def test_an_unknown_field_of_a_plan():
    with pytest.raises(PlanError, match="a plan has no field 'foo'"):
        predict("gpt3-13b", {"foo": 1, "global_batch": 8}, "h100")
    with pytest.raises(PlanError, match="lacks global_batch"):
        predict("gpt3-13b", {"tp": 1}, "h100")


def test_more_microbatches_than_a_simulation_takes():
    with pytest.raises(PlanError, match="is global_batch 100,000,000 meant"):
        predict("gpt3-13b", {"global_batch": 100_000_000}, "h100")


def test_split_backwards_shrink_the_bubble_of_the_same_plan():
    """Equal stages but for the ends; compute, and so the bubble, in the order of the papers."""
    plan = Plan(tp=8, pp=8, dp=16, global_batch=1536)
    bubble = {
        name: predict("gpt3-175b", replace(plan, schedule=name), "a100-80g").breakdown["bubble"]
        for name in ("1f1b", "zb-h1", "zbv")
    }
    assert bubble["zbv"] < bubble["zb-h1"] < bubble["1f1b"]


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "dualpipev", "dualpipe"])
def test_overlapped_pairs_hide_exchanges_of_tokens(schedule):
    """All but the first and last forwards and backwards of DualPipe overlap; no others do."""
    llm = LLM(
        name="mixture",
        layers=16,
        hidden=2048,
        heads=16,
        vocab=32000,
        seq_len=4096,
        moe=MoE(experts=64, top_k=6, ffn=1408),
    )
    plan = Plan(pp=4, dp=8, ep=8, global_batch=8 * 64, schedule=schedule)
    prediction = predict(llm, plan, "h100")
    assert sum(prediction.breakdown.values()) == pytest.approx(prediction.step_time_s)
    assert prediction.step_time_s == pytest.approx(step_time_s(prediction.costs, plan), rel=1e-12)
    exchanged = sum(seconds.sum() for seconds in prediction.costs.exchange_s) / 4 * 64
    shown = prediction.breakdown["ep"] / exchanged
    if schedule.startswith("dual"):
        assert 0.0 < shown < 0.35
    else:
        assert shown == pytest.approx(1.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"tp": 2, "pp": 4, "sequence_parallel": True, "global_batch": 16},
        {"pp": 4, "vpp": 2, "dp": 2, "global_batch": 16},
        {"pp": 4, "dp": 2, "schedule": "zbv", "global_batch": 16},
        {"pp": 2, "dp": 2, "schedule": "gpipe", "global_batch": 16, "recompute": "full"},
        {"dp": 8, "zero": 3, "global_batch": 16, "recompute": "selective"},
        {"dp": 8, "zero": 3, "global_batch": 16},
        {"pp": 4, "dp": 2, "schedule": "zb-h1", "global_batch": 16, "recompute": "full"},
        {"pp": 4, "dp": 2, "schedule": "dualpipev", "global_batch": 16, "recompute": "full"},
    ],
)
@pytest.mark.parametrize("loss", [None, "fused", "chunked"])
def test_memory_over_the_simulated_step_peaks_as_the_closed_forms_say(fields, loss) -> None:
    """Activations in flight follow from the simulated order of computes, not from a formula.

    With a cheap loss a stage peaks in the backward of a layer, where the logits are free.
    """
    prediction = predict("llama3-8b", fields, "h100", rules=MemoryRules(loss=loss))
    for stage in prediction.memory:
        curve = memory_curve(prediction, stage.stage)
        assert curve.bytes[:, curve.peak].sum() == pytest.approx(stage.total_bytes, rel=1e-12)
        assert curve.parts == pytest.approx(stage.parts)
        assert (np.diff(curve.time_s) >= 0).all()
        assert curve.time_s[-1] == prediction.step_time_s
        activations = curve.bytes[PARTS.index("activations")]
        assert activations[0] == 0
        assert activations[-1] == pytest.approx(0, abs=1e-3)
    assert memory_curve(prediction).stage == int(np.argmax(prediction.memory_bytes))


def test_activations_grow_in_a_forward_and_shrink_in_its_backward() -> None:
    """One stage, four microbatches: each has its own activations, and none are left after it."""
    curve = memory_curve(predict("llama3-8b", {"dp": 8, "zero": 3, "global_batch": 32}, "h100"))
    activations = curve.bytes[PARTS.index("activations")]
    top = activations.max()
    grid = np.linspace(0, curve.time_s[-1], 4001)
    drawn = np.interp(grid, curve.time_s, activations)
    assert np.mean((drawn > 0.25 * top) & (drawn < 0.75 * top)) == pytest.approx(0.5, abs=0.06)
    is_empty = drawn < 0.02 * top
    assert np.sum(is_empty[1:] & ~is_empty[:-1]) == 4


def test_the_reserve_is_kept_and_two_changes_are_named_where_one_does_not_do() -> None:
    plan = {"dp": 4, "global_batch": 32, "micro_batch": 4}
    all_of_it = predict("llama3-8b", plan, "h100", rules=MemoryRules(reserve=0))
    reserved = predict("llama3-8b", plan, "h100")
    room = all_of_it.memory_headroom_bytes - reserved.memory_headroom_bytes
    assert room == pytest.approx(0.08 * reserved.cluster.gpu.memory_bytes)
    (change,) = reserved.to_fit
    assert " with " in change


def test_a_cheaper_loss_is_the_first_thing_that_may_fit() -> None:
    plan = {"dp": 8, "zero": 3, "global_batch": 8, "recompute": "full", "cp": 2}
    llm = replace(llm_preset("llama3.1-8b"), seq_len=2 * 49152)
    prediction = predict(llm, plan, "h100")
    assert not prediction.fits
    assert prediction.to_fit[0] == "a fused loss"
    assert predict(llm, plan, "h100", rules=MemoryRules(loss="fused")).fits


def test_frozen_weights_have_no_gradients_in_the_utilisation():
    """By Megatron-Bridge 067f987 (``flop_utils.py``): two thirds, and all of the attention."""
    llm = llm_preset("llama3-8b")
    plan = Plan(dp=8, global_batch=8)
    whole, frozen = (
        model_flops_per_token(llm, replace(plan, adapter_rank=rank)) for rank in (0, 16)
    )
    pairs = llm.seq_len * llm.layers
    attention = 6 * pairs * llm.heads * 2 * llm.head_dim
    assert frozen == pytest.approx(2 / 3 * (whole - attention) + attention)
    prediction = predict(llm, replace(plan, adapter_rank=16), cluster_preset("h100"))
    assert prediction.model_flops_per_gpu == frozen * prediction.tokens_per_s_per_gpu


def test_adapters_that_do_not_fit_say_what_would():
    """ZeRO 2 and 3, which adapters do not have, are no changes to try."""
    llm = replace(llm_preset("llama3.1-8b"), seq_len=65536, max_positions=65536)
    prediction = predict(llm, Plan(dp=8, global_batch=8, adapter_rank=4096), "h100")
    assert not prediction.fits
    assert prediction.to_fit
    assert not any("zero" in change for change in prediction.to_fit)
    with pytest.raises(PlanError, match="adapter_rank 4097 exceeds hidden 4096"):
        predict(llm, Plan(dp=8, global_batch=8, adapter_rank=4097), "h100")
