"""Activations against what autograd saves of real torch modules, and what a real loss allocates."""

import math
from dataclasses import replace
from functools import partial

import pytest

import requires
from paceline.model.activations import backward_work, end_activations, layer_activations
from paceline.model.blocks import MoE
from paceline.model.llm import LLM
from paceline.model.memory_rules import MemoryRules
from paceline.model.operators import layer_kind
from paceline.model.plan import Plan

requires.installed("torch")

import torch
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from live_bytes import LiveBytes, saved_bytes

LLAMA = LLM(
    name="llama", layers=2, hidden=64, heads=4, ffn=176, vocab=512, seq_len=32, gated=True,
    norm="rmsnorm", positions="rotary", bias=False, tied=False,
)  # fmt: skip
FSDP = Plan(dp=2, micro_batch=2, global_batch=4, zero=3)
TOKENS = 2 * 32


class Layer(torch.nn.Module):
    """A Llama layer as torchtitan writes it (``models/llama/model.py`` at ba246978)."""

    def __init__(self):
        super().__init__()
        linear = partial(torch.nn.Linear, bias=False, dtype=torch.bfloat16)
        self.wq, self.wk, self.wv, self.wo = (linear(64, 64) for _ in range(4))
        self.w1, self.w3, self.w2 = linear(64, 176), linear(64, 176), linear(176, 64)
        # Fused on a CPU, too, which RMSNorm is not; it saves the same input.
        norm = partial(torch.nn.LayerNorm, bias=False, dtype=torch.bfloat16)
        self.attention_norm, self.ffn_norm = norm(64), norm(64)
        self.register_buffer("turn", torch.ones(1, 1, 32, 16, dtype=torch.bfloat16))

    def forward(self, x):
        y = self.attention_norm(x)
        q, k, v = (w(y).view(2, 32, 4, 16).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = q * self.turn, k * self.turn  # rotary: a product with constants
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(out.transpose(1, 2).reshape(2, 32, 64))
        y = self.ffn_norm(x)
        return x + self.w2(functional.silu(self.w1(y)) * self.w3(y))


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return Layer()


@pytest.fixture
def x():
    return torch.randn(2, 32, 64, dtype=torch.bfloat16, requires_grad=True)


def test_a_layer_keeps_what_autograd_saves_of_it(layer, x):
    """But for the norms' statistics and the attention's random state: 16 bytes a token, 64."""
    with saved_bytes(layer) as count:
        layer(x)
        saved = count()
    kept, again = layer_activations(LLAMA, layer_kind(LLAMA, 0), FSDP)
    assert again == 0
    assert kept <= saved <= kept + 2 * 8 * TOKENS + 64


def test_full_recomputation_keeps_a_layers_input(layer, x):
    with saved_bytes(layer) as count:
        checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)
        saved = count()
    kept, again = layer_activations(LLAMA, layer_kind(LLAMA, 0), replace(FSDP, recompute="full"))
    assert kept == 2 * TOKENS * 64
    assert saved <= kept
    assert again == layer_activations(LLAMA, layer_kind(LLAMA, 0), FSDP)[0]


def test_per_operator_recomputation_keeps_what_torchtitans_policy_saves(layer, x):
    """Its policy, on torch's own operators: all attention, every other product."""
    held, products = [], 0

    def policy(ctx, op, *args, **kwargs):
        nonlocal products
        is_product = op == torch.ops.aten.mm.default
        products += is_product and not ctx.is_recompute
        fused = "scaled_dot_product" in str(op)
        if fused or (is_product and products % 2):
            if not ctx.is_recompute:
                shape = (*args[0].shape[:-1], args[1].shape[-1]) if is_product else args[0].shape
                heads = 0 if is_product else 4 * TOKENS * 4
                held.append(2 * math.prod(shape) + heads)
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    plan = replace(FSDP, recompute="selective")
    kept, again = layer_activations(LLAMA, layer_kind(LLAMA, 0), plan)
    assert kept == 2 * x.numel() + sum(held)
    assert kept + again == layer_activations(LLAMA, layer_kind(LLAMA, 0), FSDP)[0]


def test_a_plain_loss_takes_12_bytes_a_logit():
    """Softmax's logarithm and two gradients in fp32, at the peak; the first is held before."""
    head = torch.nn.Linear(16, 2048, bias=False, dtype=torch.bfloat16)
    x = torch.randn(64, 16, dtype=torch.bfloat16, requires_grad=True)
    with LiveBytes() as live:
        logits = head(x)
        loss = functional.cross_entropy(logits.float(), torch.zeros(64, dtype=torch.int64))
        del logits
        held = live.now
        loss.backward()
    count = 64 * 2048
    assert held / count == pytest.approx(4, rel=1e-3)
    assert live.peak / count == pytest.approx(12, rel=1e-3)
    llm = replace(LLAMA, vocab=2048, seq_len=64, hidden=16)
    plan = Plan(dp=2, global_batch=2, zero=3)
    _, kept, work = end_activations(llm, plan)
    assert kept - 2 * 2 * 64 * 16 == pytest.approx(held, rel=1e-3)
    assert kept + work - 2 * 2 * 64 * 16 == pytest.approx(live.peak, rel=1e-3)


@pytest.mark.parametrize(
    ("loss", "held", "peak"),
    [("unfused", 4, 12), ("in-place", 4, 6), ("fused", 2, 4), ("chunked", 0, 0.5)],
)
def test_bytes_of_a_logit_by_loss(loss, held, peak):
    _, kept, work = end_activations(LLAMA, FSDP, MemoryRules(loss=loss))
    logits, inputs = TOKENS * 512, 2 * 2 * TOKENS * 64
    assert (kept - inputs, kept - inputs + work) == (held * logits, peak * logits)


def test_the_backward_of_an_mlp_needs_gradients_beside_what_is_kept():
    """Its peak by torch's own count, of frozen products: stream, activation's result and input."""
    linear = partial(torch.nn.Linear, bias=False, dtype=torch.bfloat16)
    mlp = torch.nn.Sequential(linear(64, 176), torch.nn.GELU(), linear(176, 64))
    mlp.requires_grad_(False)
    x = torch.randn(TOKENS, 64, dtype=torch.bfloat16, requires_grad=True)
    with LiveBytes() as live:
        out = mlp(x)
        gradient = torch.ones_like(out)
        kept = live.now - 2 * TOKENS * 64  # but for the gradient of the stream
        live.peak = live.now
        out.backward(gradient)
    plain = replace(LLAMA, gated=False)
    counted = backward_work(plain, layer_kind(plain, 0), FSDP)
    assert counted == 2 * TOKENS * (64 + 2 * 176)
    assert live.peak - kept == counted


def test_the_backward_of_other_mlps():
    """By hand; gated, over two ranks in shards, in fp8, and of two experts of eight a token."""
    llama = partial(backward_work, LLAMA, layer_kind(LLAMA, 0))
    assert llama(FSDP) == 2 * TOKENS * (64 + 3 * 176)
    ranks = Plan(tp=2, micro_batch=2, global_batch=2, sequence_parallel=True)
    # Gradient and input, both whole, and the columns of a rank.
    assert llama(ranks) == 2 * TOKENS * (64 / 2 + 2 * 64 + 2 * 176 / 2)
    fp8 = replace(ranks, precision="fp8")
    # The input's gradient and half an input gathered; 352 columns twice.
    assert llama(fp8) == 2 * TOKENS * (64 / 2 + 1.5 * 64 + 2 * 2 * 176 / 2)
    mixed = replace(LLAMA, moe=MoE(experts=8, top_k=2, ffn=16))
    work = backward_work(mixed, layer_kind(mixed, 0), FSDP)
    assert work == 2 * TOKENS * (64 + 2 * (2 * 64 + 2 * 16))
