"""Selective recomputation by Megatron-Core's modules: what is repeated, and what is not kept.

Held against Megatron-LM d98e8a6 (``TransformerConfig.recompute_modules`` and its checks), and
against the recipes of DeepSeek-V3 and Kimi K2 in Megatron-Bridge 067f987, which use
``mla_up_proj``, ``mlp``, ``layernorm`` and ``moe_act``.
"""

from dataclasses import replace

import pytest

from paceline.errors import PlanError
from paceline.model.activations import layer_activations
from paceline.model.blocks import LatentAttention, MoE
from paceline.model.llm import LLM
from paceline.model.operators import LayerKind, layer_work
from paceline.model.plan import RECOMPUTE_MODULES, Plan
from paceline.model.plan_check import problems

MODERN = {
    "vocab": 64,
    "seq_len": 8,
    "ffn": 32,
    "gated": True,
    "norm": "rmsnorm",
    "positions": "rotary",
    "tied": False,
    "bias": False,
}
MIXED = LLM(
    name="mixed",
    layers=2,
    hidden=16,
    heads=4,
    moe=MoE(experts=4, top_k=2, ffn=12, shared_experts=1, dense_layers=1),
    latent=LatentAttention(q_rank=6, kv_rank=5, nope_dim=4, rope_dim=2, value_dim=3),
    **MODERN,
)
DENSE, EXPERTS = LayerKind("*-", 0), LayerKind("*E", 0)
TOKENS = 8


def plan(*modules, **changes):
    recompute = "selective" if modules else "none"
    return Plan(global_batch=1, recompute=recompute, recompute_modules=modules, **changes)


def repeated(kind, *modules):
    return [entry.name for entry in layer_work(MIXED, kind, plan(*modules)).recompute]


@pytest.mark.parametrize(
    ("kind", "module", "names"),
    [
        (DENSE, "core_attn", ["core-attention"]),
        (DENSE, "layernorm", ["norm-attention", "norm-mlp"]),
        (DENSE, "mla_up_proj", ["q-up", "kv-up", "rotary"]),
        (DENSE, "mlp", ["mlp-up", "mlp-activation", "mlp-down"]),
        (EXPERTS, "mlp", []),
        (DENSE, "moe", []),
        (EXPERTS, "moe_act", ["expert-activation"]),
        (
            EXPERTS,
            "shared_experts",
            ["shared-up", "shared-activation", "shared-down", "shared-add"],
        ),
        (
            EXPERTS,
            "moe",
            [
                *("router", "router-topk", "permute", "expert-up", "expert-activation"),
                *("expert-down", "unpermute"),
                *("shared-up", "shared-activation", "shared-down", "shared-add"),
            ],
        ),
    ],
)
def test_a_module_repeats_its_work(kind, module, names):
    assert repeated(kind, module) == names


def test_fp8_casts_are_repeated_with_their_products():
    work = layer_work(MIXED, DENSE, plan("mla_up_proj", precision="fp8"))
    names = [entry.name for entry in work.recompute]
    assert names == ["q-up-cast", "q-up", "kv-up-cast", "kv-up", "rotary"]


def test_queries_of_one_projection_are_up_projected():
    one = replace(MIXED, latent=replace(MIXED.latent, q_rank=None))
    work = layer_work(one, DENSE, plan("mla_up_proj"))
    assert [entry.name for entry in work.recompute] == ["q", "kv-up", "rotary"]


def test_norms_behind_a_block_are_no_module():
    both = replace(MIXED, post_norms=True)
    work = layer_work(both, DENSE, plan("layernorm"))
    assert [entry.name for entry in work.recompute] == ["norm-attention", "norm-mlp"]


# Bytes of a token: 2 an element; 4 heads; queries and keys 6 wide, values 3.
UP = 2 * 4 * (6 + 6 + 3)
SHARED = 2 * 3 * 12
ROUTED = 2 * 2 * 3 * 12


@pytest.mark.parametrize(
    ("kind", "modules", "dropped"),
    [
        (DENSE, ("mla_up_proj",), UP),
        (DENSE, ("layernorm",), 2 * 2 * 16),
        (DENSE, ("core_attn",), 4 * 4),
        (DENSE, ("mlp",), 2 * 3 * 32),
        (DENSE, ("mla_up_proj", "mlp"), UP + 2 * 3 * 32),
        (DENSE, ("moe", "moe_act", "shared_experts"), 0),
        (EXPERTS, ("mlp",), 0),
        (EXPERTS, ("moe_act",), 2 * 2 * 12),
        (EXPERTS, ("shared_experts",), SHARED),
        # The experts' activation, their inputs and outputs in order, and the router's logits.
        (EXPERTS, ("moe",), SHARED + ROUTED + 2 * 2 * 2 * 16 + 4 * 4),
        (EXPERTS, ("moe", "moe_act", "shared_experts"), SHARED + ROUTED + 2 * 2 * 2 * 16 + 4 * 4),
    ],
)
def test_a_module_is_not_kept(kind, modules, dropped):
    whole, none = layer_activations(MIXED, kind, plan())
    kept, again = layer_activations(MIXED, kind, plan(*modules))
    assert none == 0
    assert again == TOKENS * dropped
    assert kept == whole - again


@pytest.mark.parametrize(
    ("llm", "modules", "changes", "reason"),
    [
        (replace(MIXED, latent=None), ("mla_up_proj",), {}, "needs multi-head latent attention"),
        (replace(MIXED, moe=None), ("moe_act", "moe"), {}, "moe_act, moe need experts"),
        (MIXED, ("layernorm",), {"zero": 3}, "with zero 3 they are not modelled"),
        (MIXED, ("layernorm",), {"adapter_rank": 4}, "beside adapters"),
    ],
)
def test_what_a_model_lacks_is_a_reason(llm, modules, changes, reason):
    assert any(reason in text for text in problems(plan(*modules, **changes), llm))


def test_each_module_suits_a_model_with_all_of_them():
    assert problems(plan(*RECOMPUTE_MODULES), MIXED) == []


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"recompute": "selective", "recompute_modules": ("mlp", "attn")}, "core_attn"),
        ({"recompute": "full", "recompute_modules": ("mlp",)}, "need recompute selective"),
        ({"recompute": "selective", "recompute_modules": "mlp"}, "list of names"),
    ],
)
def test_modules_are_checked(fields, match):
    with pytest.raises(PlanError, match=match):
        Plan(global_batch=1, **fields)


def test_a_plan_names_its_modules():
    assert plan("mla_up_proj", "mlp").describe().endswith("mb1 mla_up_proj+mlp zero1")
