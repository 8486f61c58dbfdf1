"""LoRA over sharded frozen weights: held against PyTorch's FSDP2 with PEFT's adapters on gloo."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.model.activations import layer_activations
from paceline.model.cluster_presets import cluster_preset
from paceline.model.costs import CostModel
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.memory import stage_states
from paceline.model.memory_peak import gathered_bytes, stage_memory
from paceline.model.memory_rules import DEFAULT_RULES
from paceline.model.operators import layer_kind
from paceline.model.plan import Plan
from paceline.plan.predict import predict
from paceline.plan.search import search

H100 = cluster_preset("h100")
#: The model of ``adapter_job``.
SMALL = LLM(
    name="small", layers=2, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=256, seq_len=16,
    gated=True, norm="rmsnorm", positions="rotary", bias=False, tied=False,
)  # fmt: skip
PLAN = Plan(dp=2, micro_batch=2, global_batch=4, zero=3, adapter_rank=8)
LAYER = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128 + 2 * 64
ENDS = 2 * 256 * 64 + 64
FROZEN = 2 * LAYER + ENDS
ADAPTERS = 2 * 8 * (4 * 64 + 64 + 32 + 32 + 64)


class Counting:
    """A network whose every exchange takes as many seconds as it has bytes."""

    def __init__(self):
        self.sizes = []

    def all_gather(self, size, group):
        return size if group.size > 1 else 0.0

    reduce_scatter = all_reduce = all_gather


def traffic(plan, llm=SMALL):
    """Bytes of a step: gathered and reduced by ``gradients_s``; [direction] of a microbatch."""
    model = CostModel(llm, H100)
    model.__dict__["fabric"] = Counting()
    work = model.stage_work(replace(plan, tp=1))
    once = [x.sum() for x in model.gradients_s(plan, work)]
    return once, model.repeated_s(plan, *work.sizes).sum(axis=1).tolist()


@pytest.mark.parametrize("kind", ["plain", "peft"])
def test_states_and_messages_are_those_of_fsdp2(kind, tmp_path):
    pytest.importorskip("torch")
    if kind == "peft":
        pytest.importorskip("peft")
    job = Path(__file__).with_name("adapter_job.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(job), str(rank), "2", str(tmp_path / "store"), kind],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in ranks]
    measured = json.loads(outputs[0])
    parameters, gradients, optimizer = stage_states(SMALL, PLAN, DEFAULT_RULES)
    assert measured["parameters"] == parameters[0]
    assert measured["gradients"] == gradients[0]
    assert measured["optimizer"] == optimizer[0]
    _, (forward, backward) = traffic(PLAN)
    assert measured["reduced"] == 4 * ADAPTERS == backward - forward
    # Words, head and the last norm stay gathered; a step counts them in both passes.
    assert measured["gathered"] == 2 * forward - 2 * ENDS


def test_shards_are_16_bit_weights_and_adapters_in_fp32():
    parameters, gradients, optimizer = stage_states(SMALL, PLAN, DEFAULT_RULES)
    assert parameters.tolist() == [(2 * FROZEN + 4 * ADAPTERS) / 2]
    assert gradients.tolist() == [4 * ADAPTERS / 2]
    assert optimizer.tolist() == [8 * ADAPTERS / 2]
    hybrid = replace(PLAN, dp=4, shards=2)
    assert stage_states(SMALL, hybrid, DEFAULT_RULES)[0].tolist() == parameters.tolist()


def test_frozen_weights_are_gathered_twice_and_never_reduced():
    once, repeated = traffic(PLAN)
    assert once == [0, 0]
    assert repeated == [2 * (FROZEN + ADAPTERS), 2 * (FROZEN + ADAPTERS) + 4 * ADAPTERS]
    trained = traffic(replace(PLAN, adapter_rank=0))[1]
    assert trained == [2 * FROZEN, (2 + 4) * FROZEN]


def test_zero_2_reduces_adapters_alone_and_gathers_them_once():
    fused = 2 * 8 * (2 * 64 + 128 + 64)  # Megatron-Core's: one adapter of q, k and v
    once, repeated = traffic(replace(PLAN, zero=2))
    assert once == [2 * fused, 0]
    assert repeated == [0, 4 * fused]
    memory = stage_states(SMALL, replace(PLAN, zero=2), DEFAULT_RULES)
    assert [x.tolist() for x in memory] == [[2 * FROZEN], [4 * fused / 2], [12 * fused / 2]]


def test_a_pipeline_gathers_all_and_reduces_adapters_once_a_step():
    once, repeated = traffic(replace(PLAN, pp=2))
    assert once == [2 * (FROZEN + ADAPTERS), 4 * ADAPTERS]
    assert repeated == [0, 0]
    whole = gathered_bytes(SMALL, replace(PLAN, pp=2))
    assert (whole[1] - whole[0]).tolist() == [2 * 4 * ADAPTERS / 2] * 2


def test_what_is_gathered_at_once_has_gradients_of_adapters_alone():
    layer, ends, adapters = LAYER, 2 * 256 * 64, ADAPTERS / 2
    whole = gathered_bytes(SMALL, PLAN)[:, 0].tolist()
    backward = 2 * ends + 3 * 2 * (layer + adapters) + (2 + 4) * adapters
    assert whole == [2 * ends + 2 * (layer + adapters), backward, 2 * ends]


def test_a_layer_keeps_what_autograd_saves_of_it():
    """But for the norms' statistics and the attention's random state: 16 bytes a token, 64."""
    torch = pytest.importorskip("torch")
    from adapter_job import Layer
    from live_bytes import saved_bytes

    layer = Layer().to(torch.bfloat16)
    # Fused on a CPU, too, which RMSNorm is not; it saves the same input.
    layer.norms = torch.nn.ModuleList(
        torch.nn.LayerNorm(64, bias=False, dtype=torch.bfloat16) for _ in range(2)
    )
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(".down." in name or ".up." in name)
    x = torch.randn(2, 16, 64, dtype=torch.bfloat16, requires_grad=True)
    with saved_bytes(layer) as count:
        layer(x)
        saved = count()
    kept, _ = layer_activations(SMALL, layer_kind(SMALL, 0), PLAN)
    assert kept <= saved <= kept + 16 * 32 + 64


def test_a_search_prices_adapters_under_fsdp_as_a_prediction_does():
    llm = llm_preset("llama3.1-8b")
    fields = {"adapter_rank": 16, "precision": "bf16", "recomputes": ("none", "full")}
    result = search(llm, H100, gpus=8, global_batch=64, zeros=(1, 2, 3), **fields)
    assert {0, 1, 2, 3} & set(result.legal.columns["zero"].tolist()) == {1, 2, 3}
    for zero in (2, 3):
        i = next(i for i in range(len(result)) if result.plan(i).zero == zero)
        prediction = predict(llm, result.plan(i), H100)
        assert result.step_time_s[i] == pytest.approx(prediction.step_time_s, rel=1e-9)
        assert result.memory_bytes[i] == pytest.approx(max(prediction.memory_bytes), rel=1e-9)


def test_fsdp_takes_the_memory_of_frozen_weights_from_70_billion_parameters():
    llm = llm_preset("llama3-70b")
    base = {"global_batch": 8, "adapter_rank": 16, "recompute": "full"}
    whole = stage_memory(llm, Plan(dp=8, zero=1, **base))[0]
    sharded = stage_memory(llm, Plan(dp=8, zero=3, **base))[0]
    assert whole.parameters == pytest.approx(2 * llm.parameters, rel=1e-3)
    assert sharded.parameters == pytest.approx(whole.parameters / 8, rel=0.01)
    assert sharded.total_bytes < 50e9 < 140e9 < whole.total_bytes


def test_full_training_is_as_before():
    """Without adapters nothing is gathered but what has gradients or is sharded."""
    model = CostModel(SMALL, H100)
    plan = replace(PLAN, adapter_rank=0)
    work = model.stage_work(plan)
    for zero in (0, 1, 2, 3):
        sizes = model.gathered(replace(plan, zero=zero), *work.sizes)
        assert np.array_equal(np.concatenate(sizes), np.concatenate(work.sizes))
