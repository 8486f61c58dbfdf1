"""HSDP: ranks that share one copy of the parameters, and the copies' sum of gradients.

Collectives by torch 2.13's ``FSDPParamGroup``: all-gathers and reduce-scatters over the ranks of a
copy, then an all-reduce of the shards over the copies, in each backward.
"""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import PlanError
from paceline.model.cluster import Cluster, Gpu, Network, Node
from paceline.model.costs import CostModel
from paceline.model.efficiency import Efficiency
from paceline.model.llm import LLM
from paceline.model.memory_peak import (
    CONTEXT_BYTES,
    NCCL_BYTES,
    framework_bytes,
    stage_memory,
)
from paceline.model.plan import Plan
from paceline.model.plan_check import check

GPT = LLM(name="gpt", layers=4, hidden=16, heads=4, vocab=128, seq_len=8, tied=False)
PLAN = Plan(dp=32, global_batch=32, zero=3, shards=8, overlap_dp=False)
CLUSTER = Cluster(
    name="hand",
    gpu=Gpu(name="g", peak_flops={"bf16": 1e3}, memory_bytes=1e9, memory_bandwidth=1e3, sms=4),
    node=Node(gpus=8, bandwidth=100.0, latency_s=0.0),
    network=Network(nics=8, nic_bandwidth=10.0, latency_s=0.0),
    efficiency=Efficiency(collective_s=0.0, intra=1.0, inter=1.0, partial=1.0),
)


def exchanged(plan):
    """[direction] seconds of a microbatch's parameters and gradients."""
    model = CostModel(GPT, CLUSTER, lambda op: 0.0)
    work = model.stage_work(plan)
    return model.repeated_s(plan, work.parameters, work.expert_parameters)[:, 0], float(
        work.parameters[0]
    )


def test_shards_of_a_node_are_gathered_inside_it_and_summed_between_nodes():
    (forward, backward), count = exchanged(PLAN)
    gather = 2 * count * 7 / 8 / 100
    assert forward == pytest.approx(gather)
    reduce = 4 * count * 7 / 8 / 100
    # A shard of each GPU travels around the four nodes, through an adapter of its own.
    copies = 2 * 3 / 4 * (4 * count / 8) / 10
    assert backward == pytest.approx(gather + reduce + copies)


def test_all_ranks_are_one_copy():
    (forward, backward), _ = exchanged(replace(PLAN, shards=0))
    assert (forward, backward) == pytest.approx(exchanged(replace(PLAN, shards=32))[0])
    assert forward > exchanged(PLAN)[0][0]


def test_shards_of_one_are_ddp():
    (forward, backward), _ = exchanged(replace(PLAN, shards=1))
    model = CostModel(GPT, CLUSTER, lambda op: 0.0)
    ddp = replace(PLAN, shards=0, zero=0)
    assert forward == 0
    assert backward == pytest.approx(model.gradients_s(ddp, model.stage_work(ddp))[1][0])


def test_under_a_pipeline_all_of_it_comes_once_a_step():
    plan = replace(PLAN, pp=2, dp=16, shards=8)
    model = CostModel(GPT, CLUSTER, lambda op: 0.0)
    work = model.stage_work(plan)
    assert not model.repeated_s(plan, work.parameters, work.expert_parameters).any()
    gather, reduce = model.gradients_s(plan, work)
    np.testing.assert_allclose(gather, 2 * work.parameters * 7 / 8 / 100)
    copies = 2 * 1 / 2 * (4 * work.parameters / 8) / 10
    np.testing.assert_allclose(reduce, 4 * work.parameters * 7 / 8 / 100 + copies)


def test_each_copy_takes_the_memory_of_its_shards():
    whole, hybrid = (stage_memory(GPT, replace(PLAN, shards=n))[0] for n in (0, 8))
    for part in ("parameters", "gradients", "optimizer"):
        assert getattr(hybrid, part) == pytest.approx(4 * getattr(whole, part))
    assert hybrid.activations == whole.activations


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"zero": 1}, "shards 8 needs zero 3"),
        ({"shards": -1}, "shards must be a whole number >= 0, not -1"),
        ({"shards": 5}, "shards 5 must divide dp 32"),
        ({"cp": 2, "dp": 16, "shards": 1}, "shards 1 must divide dp 16 x cp 2 and be a multiple"),
        ({"shards": 64}, "shards 64 must divide dp 32"),
    ],
)
def test_what_cannot_be_is_refused(fields, reason):
    with pytest.raises(PlanError, match=reason):
        check(replace(PLAN, **fields), GPT)


def test_shards_and_copies_have_a_communicator_each():
    """All GPUs and the data-parallel ranks; with HSDP the shards of a copy and the copies, too."""
    plain = Plan(dp=8, zero=3, global_batch=8)
    more = framework_bytes(GPT, replace(plain, shards=4)) - framework_bytes(GPT, plain)
    assert framework_bytes(GPT, plain) == CONTEXT_BYTES + 2 * NCCL_BYTES
    assert more == 2 * NCCL_BYTES
