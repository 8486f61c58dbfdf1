"""Operators against real torch operators: FLOPs by its counter, bytes by a dispatch mode."""

import pytest

import requires
from paceline.model.llm import LLM
from paceline.model.operators import Operator, layer_kind, layer_work
from paceline.model.plan import Plan

requires.installed("torch")

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

LLAMA = LLM(
    name="llama", layers=1, hidden=64, heads=4, kv_heads=2, ffn=176, vocab=512, seq_len=32,
    gated=True, norm="rmsnorm", positions="rotary", bias=False, tied=False,
)  # fmt: skip
PLAN = Plan(micro_batch=2, global_batch=2, grad_bytes=2)
TOKENS = 2 * 32


class Traffic(TorchDispatchMode):
    """Bytes that each operator reads and writes, by its name."""

    def __init__(self):
        super().__init__()
        self.bytes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        name = func.overloadpacket.__name__
        moved = sum(x.numel() * x.element_size() for x in tensors)
        self.bytes[name] = self.bytes.get(name, 0) + moved
        return result


@pytest.fixture(scope="module")
def work():
    return layer_work(LLAMA, layer_kind(LLAMA, 0), PLAN)


def of_work(entries, part):
    return [w for w in entries if isinstance(w, Operator) and w.part == part]


@pytest.fixture(scope="module")
def products():
    """The five products of a layer: qkv as one, output, the gated pair as one, the last."""
    torch.manual_seed(0)
    shapes = [(64, (4 + 2 * 2) * 16), (64, 64), (64, 2 * 176), (176, 64)]
    return [torch.nn.Linear(*shape, bias=False, dtype=torch.bfloat16) for shape in shapes]


def inputs_of(linear):
    return torch.randn(TOKENS, linear.in_features, dtype=torch.bfloat16, requires_grad=True)


def test_flops_of_products_are_those_that_torch_counts(work, products):
    with FlopCounterMode(display=False) as forward:
        outs = [linear(inputs_of(linear)) for linear in products]
    with FlopCounterMode(display=False) as backward:
        for out in outs:
            out.backward(torch.ones_like(out))
    for entries, counter in ((work.forward, forward), (work.backward, backward)):
        counted = sum(operator.flops for operator in of_work(entries, "gemm"))
        assert counted == counter.get_total_flops()


def test_flops_of_attention_are_half_of_what_torch_counts_without_a_mask(work):
    """And 2.5 times that in the backward, as ``sdpa_backward_flop`` has it (five products)."""
    shape = torch.Size((2, 4, 32, 16))
    (forward,) = of_work(work.forward, "attention")
    assert forward.flops == sdpa_flop_count(shape, shape, shape) / 2
    (backward,) = of_work(work.backward, "attention")
    assert backward.flops == sdpa_backward_flop_count(shape, shape, shape, shape) / 2


def test_bytes_of_products_are_what_torch_reads_and_writes(work, products):
    with Traffic() as traffic:
        for linear in products:
            linear(inputs_of(linear))
    assert sum(o.bytes for o in of_work(work.forward, "gemm")) == traffic.bytes["mm"]


def test_bytes_of_a_residual_and_of_a_gated_activation(work):
    """Two reads and a write; fused, both factors are read and their product is written."""
    x = torch.zeros(TOKENS, 64, dtype=torch.bfloat16)
    gate = torch.zeros(TOKENS, 2 * 176, dtype=torch.bfloat16)
    with Traffic() as traffic:
        x + x
        product = functional.silu(gate[:, :176]) * gate[:, 176:]
    operators = {o.name: o.bytes for o in of_work(work.forward, "memory")}
    assert operators["residual-mlp"] == traffic.bytes["add"]
    assert operators["mlp-activation"] == 2 * (gate.numel() + product.numel())
    # Not fused, the first factor's activation is written and read again besides.
    apart = traffic.bytes["silu"] + traffic.bytes["mul"]
    assert apart == operators["mlp-activation"] + 2 * 2 * product.numel()
