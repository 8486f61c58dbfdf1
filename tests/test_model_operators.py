"""Work of a layer, worked out by hand for models small enough to do so.

Sources: Narayanan et al. 2021 (matrix products), Dao et al. 2022 (fused attention: backward has
five products to the forward's two), Korthikanti et al. 2022 (element-wise kernels).
"""

from dataclasses import replace

import pytest

from paceline.model.costs import _ADAM_BYTES
from paceline.model.llm import LLM, MoE
from paceline.model.memory import OPTIMIZER_BYTES
from paceline.model.operators import (
    Collective,
    Operator,
    embedding_work,
    head_work,
    layer_kind,
    layer_work,
)
from paceline.model.plan import Plan

# 8 tokens of width 16; 4 heads of width 4; bf16.
SMALL = {"layers": 1, "hidden": 16, "heads": 4, "vocab": 128, "seq_len": 8}
DENSE = LLM(name="dense", bias=True, **SMALL)
LLAMA = LLM(
    name="llama", kv_heads=2, ffn=32, gated=True, norm="rmsnorm", positions="rotary", bias=False,
    **SMALL,
)  # fmt: skip
ONE = Plan(dp=1, tp=1, pp=1, micro_batch=1, global_batch=1)


def operators(work):
    """name -> operator, of both passes."""
    return {w.name: w for w in (*work.forward, *work.backward) if isinstance(w, Operator)}


def layer(llm, plan=ONE):
    return operators(layer_work(llm, layer_kind(llm, 0), plan))


def test_products_forward_and_backward():
    ops = layer(LLAMA)
    # queries 16 wide, keys and values 8 each: 8 tokens x 16 x 32
    assert ops["qkv"].flops == 2 * 8 * 16 * 32
    assert ops["qkv"].bytes == 2 * (8 * 16 + 16 * 32 + 8 * 32)
    assert ops["qkv-dgrad"].flops == ops["qkv-wgrad"].flops == ops["qkv"].flops
    # gradients of weights are read and written in place, in fp32
    assert ops["qkv-wgrad"].bytes == 2 * (8 * 16 + 8 * 32) + 2 * 4 * 16 * 32
    assert ops["mlp-up"].flops == 2 * 8 * 16 * (2 * 32)  # gated: two of them
    assert ops["mlp-down"].flops == 2 * 8 * 32 * 16


def test_fused_attention():
    """A query meets 4 of 8 keys on average; scores and values are two products."""
    ops = layer(LLAMA)
    forward = 2 * (2 * 8 * 4 * 4 * 4)  # products x (flops x tokens x heads x keys x width)
    assert ops["core-attention"].flops == forward
    assert ops["core-attention-backward"].flops == 2.5 * forward
    # q and o of 4 heads, k and v of 2
    assert ops["core-attention"].bytes == 2 * 8 * (4 * 8 + 2 * 8)
    assert ops["core-attention-backward"].bytes == 2.5 * ops["core-attention"].bytes


def test_a_window_shortens_the_reach():
    """A window of 2 of 8 tokens: the first query meets one key, the others nearly two."""
    ops = layer(replace(LLAMA, window=2))
    assert ops["core-attention"].flops == 2 * 2 * 8 * 4 * (2 * (1 - 2 / 16)) * 4


@pytest.mark.parametrize("llm", [DENSE, LLAMA])
def test_norms_read_and_write(llm):
    """Forward: input and output; backward: input, gradient of the output, and two passes."""
    ops = layer(llm)
    tensor = 2 * 8 * 16
    assert ops["norm-attention"].bytes == 2 * tensor
    assert ops["norm-attention-backward"].bytes == 4 * tensor


def test_residuals_with_and_without_dropout():
    tensor = 2 * 8 * 16
    # input, residual and output; the mask is a byte an element; backward also the bias's gradient
    assert layer(DENSE)["residual-mlp"].bytes == 3.5 * tensor
    assert layer(DENSE)["residual-mlp-backward"].bytes == 5.5 * tensor
    assert layer(LLAMA)["residual-mlp"].bytes == 3 * tensor
    assert layer(LLAMA)["residual-mlp-backward"].bytes == 3 * tensor


def test_activations_read_what_products_wrote():
    ops = layer(LLAMA)
    assert ops["mlp-activation"].bytes == 2 * 8 * (64 + 32)
    assert ops["mlp-activation-backward"].bytes == 2 * 8 * (2 * 64 + 32)


def test_embedding_and_head():
    tensor = 2 * 8 * 16
    ops = operators(embedding_work(LLAMA, ONE))
    assert ops["embedding"].bytes == 2 * tensor
    assert ops["embedding-backward"].bytes == 3 * tensor
    ops = operators(head_work(LLAMA, ONE))
    logits = 8 * 128
    assert ops["head"].flops == 2 * logits * 16
    # forward: read bf16, write and read fp32 copies (maximum, exponential, sum): 2 + 5 x 4
    assert ops["loss"].bytes == (2 + 5 * 4) * logits
    # backward: softmax read and written in fp32, less one, cast: 3 x 4 + 2
    assert ops["loss-backward"].bytes == (3 * 4 + 2) * logits


def test_experts():
    """8 tokens, each to 2 of 4 experts of width 8."""
    llm = replace(LLAMA, moe=MoE(experts=4, top_k=2, ffn=8))
    work = layer_work(llm, layer_kind(llm, 0), ONE)
    ops = operators(work)
    assert ops["router"].flops == 2 * 8 * 16 * 4
    routed = 2 * (8 * 2) * 16  # bytes of the tokens, once for each of their experts
    for name in ("permute", "permute-backward", "unpermute", "unpermute-backward"):
        assert ops[name].bytes == 4 * routed
    assert ops["expert-up"].flops == 4 * (2 * 4 * 16 * 16)  # 4 experts with 4 tokens each
    assert ops["expert-down"].flops == 4 * (2 * 4 * 8 * 16)
    sent = layer_work(llm, layer_kind(llm, 0), replace(ONE, dp=2, ep=2, global_batch=2))
    dispatch = next(w for w in sent.forward if isinstance(w, Collective) and w.name == "dispatch")
    # of two ranks each is wanted by a token with chance 1 - (1/2)^2
    assert dispatch.bytes == 2 * 8 * 16 * 2 * 0.75


def test_adam_moves_34_bytes_a_parameter():
    """Reads gradient, master copy, two moments in fp32; writes the latter three and a bf16 weight.

    Before it the gradients are read once for their norm: 16 + 12 + 2 + 4.
    """
    assert _ADAM_BYTES == 34
    assert OPTIMIZER_BYTES == 4 + 4 + 4  # master copy and two moments in fp32 (ZeRO, 3.1)
