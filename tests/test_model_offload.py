"""Activations in the host's memory: their bytes, the waits for their copies, what refuses them.

The order of copies is that of Transformer Engine d0067d0 (``cpu_offload.py``,
``DefaultOffloadSynchronizer``); waits are worked out by hand.
"""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import ModelError, PlanError
from paceline.model.activations import layer_activations
from paceline.model.cluster_presets import cluster_preset
from paceline.model.costs import CostModel
from paceline.model.layer_costs import HOST_SHARE
from paceline.model.llm_presets import llm_preset
from paceline.model.memory_peak import stage_memory
from paceline.model.operators import layer_kind
from paceline.model.plan import Plan
from paceline.model.plan_check import check
from paceline.plan.launch.files import launch_text
from paceline.plan.predict import predict

LLAMA = replace(llm_preset("llama3-70b"), seq_len=8192)
PLAN = Plan(dp=64, micro_batch=2, global_batch=256, zero=3, precision="fp8", offload_layers=40)
GB200 = cluster_preset("gb200")


def kept(plan=PLAN):
    return layer_activations(LLAMA, layer_kind(LLAMA, 0), plan)[0]


def of_host(bandwidth):
    return replace(GB200, node=replace(GB200.node, host_bandwidth=bandwidth))


def waits(cluster, plan=PLAN):
    """[direction] seconds that offloading adds to a microbatch."""
    costs = [
        CostModel(LLAMA, cluster).stage_work(p) for p in (plan, replace(plan, offload_layers=0))
    ]
    return (costs[0].parts_s - costs[1].parts_s).sum(axis=1)[:, 0]


def test_what_is_offloaded_is_not_on_the_gpu():
    without = stage_memory(LLAMA, replace(PLAN, offload_layers=0))[0]
    with_it = stage_memory(LLAMA, PLAN)[0]
    assert without.activations - with_it.activations == pytest.approx(39 * kept())


@pytest.mark.parametrize(
    ("offloaded", "speed", "layers_waited"),
    [
        (40, 0.9, 0.0),  # a copy ends before the next begins, 39 layers before it is due
        (40, 2.0, 2.0),  # the last copy ends 1 + 80 layers after the begin; due after 79
        (60, 2.0, 42.0),  # 1 + 120 after the begin, due after 79
        (1, 2.0, 0.0),
        (79, 0.5, 39.5),  # each layer but the first waits half a layer for the one before it
    ],
)
def test_waits_are_those_of_the_copies_order(offloaded, speed, layers_waited):
    """``speed``: of a copy, in layers' forward times."""
    plan = replace(PLAN, offload_layers=offloaded)
    work = CostModel(LLAMA, GB200).stage_work(replace(plan, offload_layers=0))
    ends_s = sum(CostModel(LLAMA, GB200).layer(end, plan)[0] for end in ("embedding", "head"))
    layer_s = (work.parts_s.sum(axis=1)[:, 0] - ends_s.sum(axis=1))[0] / LLAMA.layers
    found = waits(of_host(kept() / (speed * layer_s * HOST_SHARE)), plan)
    assert found[0] == pytest.approx(layers_waited * layer_s, abs=1e-9)
    assert found[1] <= found[0] + 1e-9  # a backward is longer and hides more


def test_a_fast_link_costs_nothing_and_beats_recomputation():
    assert np.all(waits(of_host(1e12)) == 0)
    recomputed = replace(PLAN, offload_layers=0, recompute="full")
    faster = predict(LLAMA, PLAN, GB200).step_time_s
    assert faster < 0.85 * predict(LLAMA, recomputed, GB200).step_time_s


def test_a_cluster_without_the_links_bandwidth_is_refused():
    with pytest.raises(ModelError, match="gb200 lacks the node's host_bandwidth"):
        predict(LLAMA, PLAN, of_host(None))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"offload_layers": 80}, "offload_layers 80 must be below layers 80"),
        ({"pp": 2, "dp": 32, "zero": 1}, "offload_layers needs pp 1, not 2"),
        ({"recompute": "full"}, "offload_layers beside recompute full"),
    ],
)
def test_what_megatron_core_refuses(change, reason):
    with pytest.raises(PlanError, match=reason):
        check(replace(PLAN, **change), LLAMA)


def test_bad_counts():
    with pytest.raises(PlanError, match="offload_layers must be a whole number >= 0, not -1"):
        replace(PLAN, offload_layers=-1)


@pytest.mark.parametrize(
    ("framework", "text"),
    [
        ("megatron", "--cpu-offloading-num-layers 40"),
        ("nemo", "model.cpu_offloading_num_layers=40"),
    ],
)
def test_launch_commands_say_it(framework, text):
    plan = replace(PLAN, zero=1, precision="bf16")
    assert text in launch_text(framework, LLAMA, plan)


@pytest.mark.parametrize("framework", ["torchtitan", "deepspeed", "accelerate"])
def test_frameworks_without_it_refuse(framework):
    plan = replace(PLAN, precision="bf16")
    with pytest.raises(PlanError, match=r"activations in the host's memory|offload_layers"):
        launch_text(framework, LLAMA, plan)
