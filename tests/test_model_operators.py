"""Work of a layer, worked out by hand for models small enough to do so.

Sources: Narayanan et al. 2021 (matrix products), Dao et al. 2022 (fused attention: backward has
five products to the forward's two), Korthikanti et al. 2022 (element-wise kernels).
"""

from dataclasses import replace

import pytest

from paceline.errors import PlanError
from paceline.model.blocks import LatentAttention, MoE
from paceline.model.costs import _ADAM_BYTES
from paceline.model.llm import LLM
from paceline.model.memory_rules import OPTIMIZER_BYTES
from paceline.model.operators import (
    Collective,
    Operator,
    embedding_work,
    head_work,
    layer_kind,
    layer_work,
    mtp_work,
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


def collectives(work):
    """(name, op, bytes, hidden behind) of the forward pass, and of the backward pass."""
    return [
        [(w.name, w.op, w.bytes, w.hidden_behind) for w in half if isinstance(w, Collective)]
        for half in (work.forward, work.backward)
    ]


TENSOR = 2 * 8 * 16  # bytes of the residual stream: 8 tokens of width 16 in bf16


@pytest.mark.parametrize(("overlap", "behind"), [(False, ""), (True, "*")])
def test_tensor_parallel_ranks_reduce_what_leaves_and_what_returns(overlap, behind):
    """Megatron's f and g: all-reduces of the outputs forward, of the inputs' gradients backward."""
    plan = replace(ONE, tp=2, overlap_tp=overlap, sequence_parallel=False)
    forward, backward = collectives(layer_work(DENSE, layer_kind(DENSE, 0), plan))
    assert forward == [
        (name, "all_reduce", TENSOR, behind) for name in ("attention-out", "mlp-out")
    ]
    assert backward == [
        (f"{name}-backward", "all_reduce", TENSOR, behind) for name in ("attention-in", "mlp-in")
    ]


def test_sequence_parallel_ranks_gather_scatter_and_gather_again():
    plan = replace(ONE, tp=2, sequence_parallel=True)
    forward, backward = collectives(layer_work(DENSE, layer_kind(DENSE, 0), plan))
    gather, scatter = "all_gather", "reduce_scatter"
    assert forward == [
        ("attention-in", gather, TENSOR, ""),
        ("attention-out", scatter, TENSOR, ""),
        ("mlp-in", gather, TENSOR, ""),
        ("mlp-out", scatter, TENSOR, ""),
    ]
    assert backward == [
        ("attention-in-backward", scatter, TENSOR, ""),
        ("attention-in-again", gather, TENSOR, "*"),
        ("attention-out-backward", gather, TENSOR, ""),
        ("mlp-in-backward", scatter, TENSOR, ""),
        ("mlp-in-again", gather, TENSOR, "*"),
        ("mlp-out-backward", gather, TENSOR, ""),
    ]


def test_one_rank_sends_nothing():
    assert collectives(layer_work(DENSE, layer_kind(DENSE, 0), ONE)) == [[], []]


def test_tensor_parallel_ranks_split_columns_then_rows():
    plan = replace(ONE, tp=2, sequence_parallel=False)
    ops = layer(DENSE, plan)
    assert (ops["qkv"].m, ops["qkv"].n, ops["qkv"].k) == (8, 3 * 16 // 2, 16)
    assert (ops["projection"].m, ops["projection"].n, ops["projection"].k) == (8, 16, 16 // 2)
    assert (ops["mlp-up"].n, ops["mlp-down"].k) == (64 // 2, 64 // 2)
    assert ops["norm-mlp"].bytes == 2 * TENSOR  # repeated on both
    halved = layer(DENSE, replace(plan, sequence_parallel=True))
    assert halved["norm-mlp"].bytes == TENSOR
    assert halved["residual-mlp"].bytes == 3.5 * TENSOR / 2
    # two heads of key-value for four ranks: each has one
    assert layer(LLAMA, replace(plan, tp=4))["qkv"].n == (1 + 2 * 1) * 4


def test_products_of_the_backward_pass_have_their_own_shapes_and_bytes():
    """dx = dy w^T and dw = x^T dy."""
    ops = layer(LLAMA)
    shapes = {name: (ops[name].m, ops[name].n, ops[name].k) for name in ops if "mlp-up" in name}
    assert shapes == {
        "mlp-up": (8, 64, 16), "mlp-up-dgrad": (8, 16, 64), "mlp-up-wgrad": (16, 64, 8),
    }  # fmt: skip
    assert ops["mlp-up-dgrad"].bytes == 2 * (8 * 64 + 16 * 64 + 8 * 16)
    assert all(ops[name].kernels == ops[name].batch == 1 for name in shapes)


def test_fp8_products_read_bytes_and_pay_for_casts():
    """Inputs of 1 byte, outputs of 2; a cast reads and writes 6 bytes an element, in two kernels.

    The head, the router and attention stay in bf16.
    """
    ops = layer(LLAMA, replace(ONE, precision="fp8"))
    x, w, y = 8 * 16, 16 * 32, 8 * 32
    assert ops["qkv"].precision == "fp8"
    assert ops["qkv"].bytes == (x + w) + 2 * y
    assert ops["qkv-dgrad"].bytes == (y + w) + 2 * x
    assert ops["qkv-wgrad"].bytes == (x + y) + 2 * 4 * w
    assert (ops["qkv-cast"].bytes, ops["qkv-cast"].kernels) == (6 * x, 2)
    assert (ops["qkv-cast-backward"].bytes, ops["qkv-cast-backward"].kernels) == (6 * y, 2)
    assert ops["core-attention"].precision == "bf16"
    head = operators(head_work(LLAMA, replace(ONE, precision="fp8")))["head"]
    assert (head.precision, head.bytes) == ("bf16", 2 * (8 * 16 + 16 * 128 + 8 * 128))


def test_fp32_moves_twice_the_bytes():
    small, wide = layer(LLAMA), layer(LLAMA, replace(ONE, precision="fp32"))
    for name in ("norm-mlp", "residual-mlp-backward", "qkv", "core-attention", "mlp-activation"):
        assert wide[name].bytes == 2 * small[name].bytes
        assert wide[name].flops == small[name].flops
    assert "qkv-cast" not in wide


def test_attention_that_keeps_its_scores():
    """Megatron-LM without fusion: 4 heads x 8 x 8 scores, a softmax, a dropout, six products."""
    ops = layer(DENSE, replace(ONE, flash=False))
    scores = 4 * 8 * 8
    product = 2 * scores * 4  # FLOPs: each score is a sum over 4 channels
    names = [name for name in ops if name.startswith("core-") and ops[name].part == "attention"]
    assert sorted(names) == [
        "core-scores", "core-scores-dgrad", "core-scores-wgrad",
        "core-values", "core-values-dgrad", "core-values-wgrad",
    ]  # fmt: skip
    matrix = 4 * 8 * 4  # a query, key, value or output of all heads
    for name in names:
        assert ops[name].flops == product
        assert ops[name].bytes == 2 * (scores + 2 * matrix)
        assert (ops[name].batch, ops[name].kernels) == (4, 1)
    assert (ops["core-scores"].m, ops["core-scores"].n, ops["core-scores"].k) == (8, 8, 4)
    assert (ops["core-values"].m, ops["core-values"].n, ops["core-values"].k) == (8, 4, 8)
    assert ops["core-softmax"].bytes == 4 * scores  # read and write
    assert ops["core-softmax-backward"].bytes == 6 * scores
    assert ops["core-dropout"].bytes == ops["core-dropout-backward"].bytes == 5 * scores
    assert "core-dropout" not in layer(LLAMA, replace(ONE, flash=False))


@pytest.mark.parametrize(("window", "reach"), [(8, 8), (16, 8), (4, 4)])
def test_no_query_meets_more_keys_than_there_are(window, reach):
    ops = layer(replace(LLAMA, window=window))
    assert ops["core-attention"].flops == 2 * 2 * 8 * 4 * (reach * (1 - reach / 16)) * 4


def test_context_parallel_ranks_pass_keys_and_values_around():
    """4 ranks with 2 tokens each: three hops of keys and values of 2 heads; backward, gradients."""
    work = layer_work(LLAMA, layer_kind(LLAMA, 0), replace(ONE, cp=4))
    hop = 2 * 2 * 2 * (4 + 4)  # bytes x tokens x heads x widths
    assert collectives(work) == [
        [("ring", "p2p", 3 * hop, "core-attention")],
        [("ring-backward", "p2p", 2 * 3 * hop, "core-attention-backward")],
    ]
    assert operators(work)["qkv"].m == 2
    # each of the 2 tokens still meets 4 keys on average
    assert operators(work)["core-attention"].flops == 2 * 2 * 2 * 4 * 4 * 4


def test_rotary_embeddings_and_norms_of_queries_and_keys():
    """4 heads of queries and 2 of keys, 4 wide: 2 bytes x 8 tokens x 24."""
    rotated = 2 * 8 * (4 + 2) * 4
    ops = layer(replace(LLAMA, qk_norm=True))
    assert ops["rotary"].bytes == ops["rotary-backward"].bytes == 2 * rotated
    assert ops["qk-norm"].bytes == 2 * rotated
    assert ops["qk-norm-backward"].bytes == 3 * rotated
    assert {ops[name].kernels for name in ops if "rotary" in name or "qk-norm" in name} == {2}
    assert "rotary" not in layer(DENSE)
    assert "qk-norm" not in layer(LLAMA)


LATENT = LatentAttention(q_rank=6, kv_rank=5, nope_dim=4, rope_dim=2, value_dim=3)


def test_latent_attention_goes_through_ranks():
    """DeepSeek-V2, 2.1: down to 6 and 5 (+ 2 shared), up to 4 heads of 6 for queries and 7."""
    llm = replace(LLAMA, kv_heads=4, latent=LATENT)
    ops = layer(llm)
    shapes = {n: (ops[n].m, ops[n].n, ops[n].k) for n in ("q-down", "q-up", "kv-down", "kv-up")}
    assert shapes == {
        "q-down": (8, 6, 16), "q-up": (8, 4 * 6, 6),
        "kv-down": (8, 5 + 2, 16), "kv-up": (8, 4 * 7, 5),
    }  # fmt: skip
    assert ops["rotary"].bytes == 2 * (4 * 8 * 4 * 6)
    assert (ops["projection"].n, ops["projection"].k) == (16, 4 * 3)
    assert ops["core-attention"].flops == 2 * 8 * 4 * 4 * (6 + 3)
    assert ops["core-attention"].bytes == 2 * 8 * (4 + 4) * (6 + 3)
    direct = layer(replace(llm, latent=replace(LATENT, q_rank=None)))
    assert (direct["q"].m, direct["q"].n, direct["q"].k) == (8, 4 * 6, 16)
    assert "q-up" not in direct
    # what is not split over tp is split over the sequence
    shared = layer(llm, replace(ONE, tp=2, sequence_parallel=True))
    assert (shared["q-down"].m, shared["kv-down"].m, shared["q-up"].m) == (4, 4, 8)
    assert shared["q-up"].n == 2 * 6


def test_the_ends_of_a_gpt():
    """Learned positions: read and written forward, gradient backward; a dropout with its mask."""
    ops = operators(embedding_work(DENSE, ONE))
    assert ops["embedding-positions"].bytes == 2 * TENSOR
    assert ops["embedding-positions-backward"].bytes == TENSOR
    assert ops["embedding-dropout"].bytes == 2.5 * TENSOR
    assert ops["embedding-dropout-backward"].bytes == 2.5 * TENSOR
    assert ops["embedding"].kernels == 2
    split = operators(embedding_work(DENSE, replace(ONE, tp=2, sequence_parallel=True)))
    assert split["embedding"].bytes == 2 * TENSOR  # before the scatter
    assert split["embedding-positions"].bytes == TENSOR
    assert split["embedding-positions-backward"].bytes == TENSOR / 2
    assert split["embedding-dropout"].bytes == split["embedding-dropout-backward"].bytes
    assert split["embedding-dropout"].bytes == 1.25 * TENSOR
    assert set(operators(embedding_work(LLAMA, ONE))) == {"embedding", "embedding-backward"}


def test_the_loss_meets_over_the_vocabulary_three_times():
    """Each a number in fp32 per token: the maximum, the target's logit, the sum."""
    plan = replace(ONE, tp=2, sequence_parallel=False)
    work = head_work(LLAMA, plan)
    columns = LLAMA.padded_vocab(2) // 2
    forward, backward = collectives(work)
    assert forward == [
        (name, "all_reduce", 4 * 8, "") for name in ("loss-max", "loss-target", "loss-sum")
    ]
    assert backward == [("head-in-backward", "all_reduce", TENSOR, "")]
    assert operators(work)["head"].n == columns
    assert operators(work)["loss"].bytes == 22 * 8 * columns
    assert operators(work)["loss"].kernels == 8
    assert operators(work)["norm-final"].bytes == 2 * TENSOR


def test_a_module_for_more_tokens_projects_two_inputs_to_one():
    ops = operators(mtp_work(LLAMA, replace(ONE, tp=2)))
    assert (ops["mtp-projection"].m, ops["mtp-projection"].n) == (8, 16 // 2)
    assert ops["mtp-projection"].k == 2 * 16


@pytest.mark.parametrize(
    ("recompute", "flash", "again"),
    [
        ("none", True, set()),
        ("selective", True, {"norm-attention", "norm-mlp", "mlp-activation"}),
        ("selective", False, {"core-scores", "core-softmax", "core-dropout", "core-values"}),
    ],
)
def test_what_the_backward_pass_repeats(recompute, flash, again):
    work = layer_work(DENSE, layer_kind(DENSE, 0), replace(ONE, recompute=recompute, flash=flash))
    assert {w.name for w in work.recompute} == again


def test_full_recomputation_repeats_the_forward_pass():
    work = layer_work(DENSE, layer_kind(DENSE, 0), replace(ONE, recompute="full"))
    assert work.recompute == work.forward
    forward, backward = work.flops()
    assert forward == sum(w.flops for w in work.forward)
    assert backward == forward + sum(w.flops for w in work.backward)


MOE = replace(LLAMA, moe=MoE(experts=4, top_k=2, ffn=8, shared_experts=1, shared_ffn=12))


def test_a_router_sorts_in_eight_kernels():
    """16 bytes forward and 8 backward for each token and expert."""
    ops = layer(MOE)
    assert (ops["router-topk"].bytes, ops["router-topk"].kernels) == (16 * 8 * 4, 8)
    assert (ops["router-topk-backward"].bytes, ops["router-topk-backward"].kernels) == (
        8 * 8 * 4,
        8,
    )
    assert (ops["permute"].kernels, ops["unpermute"].kernels) == (4, 2)
    # each expert has kernels of its own
    assert (ops["expert-up"].batch, ops["expert-up"].kernels) == (4, 4)
    assert (ops["expert-up"].m, ops["expert-up"].n, ops["expert-up"].k) == (4, 16, 16)
    assert ops["expert-up"].bytes == 4 * 2 * (4 * 16 + 16 * 16 + 4 * 16)
    assert ops["expert-up-wgrad"].bytes == 4 * (2 * (4 * 16 + 4 * 16) + 2 * 4 * 16 * 16)
    assert ops["expert-activation"].bytes == 4 * 2 * 4 * (16 + 8)


def test_fused_experts_share_one_kernel_a_product():
    """Casts and activation between the products are theirs; what enters is cast block by block."""
    eager = layer(MOE, replace(ONE, precision="fp8"))
    fused = layer(MOE, replace(ONE, precision="fp8", fused_experts=True))
    products = {name for name in eager if name.startswith(("expert-up", "expert-down"))}
    products -= {name for name in products if "cast" in name}
    for name in products:
        assert fused[name] == eager[name]._replace(kernels=1)
        assert eager[name].kernels == 4
    # 16 tokens in experts of hidden width 16: read in 2 bytes, written in 1 and transposed in 1
    assert fused["expert-up-cast"].bytes == fused["expert-down-cast-backward"].bytes == 16 * 16 * 4
    assert eager["expert-up-cast"].bytes == 16 * 16 * 6
    gone = {"expert-activation", "expert-down-cast", "expert-up-cast-backward"}
    gone |= {"expert-activation-backward"}
    assert set(eager) - set(fused) == gone
    same = set(fused) - products - {"expert-up-cast", "expert-down-cast-backward"}
    assert all(fused[name] == eager[name] for name in same)
    with pytest.raises(PlanError, match="need fp8 or nvfp4, not bf16"):
        replace(ONE, fused_experts=True)


def test_shared_experts_run_beside_the_routed():
    ops = layer(MOE)
    assert (ops["shared-up"].n, ops["shared-down"].k) == (2 * 12, 12)
    assert ops["shared-add"].bytes == ops["shared-add-backward"].bytes == 3 * TENSOR
    assert "shared-up" not in layer(
        replace(MOE, moe=replace(MOE.moe, shared_experts=0, shared_ffn=0))
    )
    split = layer(MOE, replace(ONE, tp=2, sequence_parallel=True))
    assert (split["shared-up"].n, split["shared-add"].bytes) == (12, 3 * TENSOR / 2)


@pytest.mark.parametrize(("capacity", "tokens"), [(None, 4), (0.5, 2), (1.0, 4), (1.25, 4)])
def test_a_capacity_below_one_drops_tokens(capacity, tokens):
    """8 tokens to 2 of 4 experts: 4 each; what exceeds the capacity is dropped, none is added."""
    ops = layer(replace(MOE, moe=replace(MOE.moe, capacity=capacity)))
    assert ops["expert-up"].m == tokens
    assert ops["permute"].bytes == 4 * 2 * (4 * tokens) * 16


def test_expert_parallel_ranks_exchange_tokens_four_times():
    plan = replace(ONE, dp=2, ep=2, global_batch=2)
    work = layer_work(MOE, layer_kind(MOE, 0), plan)
    size = TENSOR * 2 * 0.75
    assert collectives(work) == [
        [(name, "dispatch", size, "") for name in ("dispatch", "combine")],
        [(f"{name}-backward", "dispatch", size, "") for name in ("dispatch", "combine")],
    ]
    assert work.forward[[w.name for w in work.forward].index("combine")].visits == 2
    # 2 experts here, each with the tokens of both ranks: 16 x 2 / 4
    assert operators(work)["expert-up"].batch == 2
    assert operators(work)["expert-up"].m == 8


def test_tensor_parallel_ranks_route_a_part_each_and_gather_the_whole():
    plain = replace(MOE, moe=replace(MOE.moe, shared_experts=0, shared_ffn=0))
    plan = replace(ONE, tp=2, sequence_parallel=False)
    work = layer_work(plain, layer_kind(plain, 0), plan)
    forward, backward = collectives(work)
    assert ("experts-out", "all_gather", TENSOR, "") in forward
    assert ("experts-out-backward", "all_gather", TENSOR, "") in backward
    assert operators(work)["router"].m == 4
    assert operators(work)["expert-up"].m == 2
    for other in (ONE, replace(plan, sequence_parallel=True)):
        names = [w.name for w in layer_work(plain, layer_kind(plain, 0), other).forward]
        assert "experts-out" not in names


def test_experts_in_fp8_are_cast_one_by_one():
    """4 experts with 4 tokens of width 16 each: 6 bytes an element, in two kernels an expert."""
    ops = layer(MOE, replace(ONE, precision="fp8"))
    assert ops["expert-up-cast"].bytes == 6 * 4 * 4 * 16
    assert ops["expert-up-cast"].kernels == ops["expert-up-cast-backward"].kernels == 2 * 4


def test_frozen_weights_have_no_gradients_and_adapters_move_bytes():
    """LoRA (Hu et al. 2021): the base passes gradients on and computes none of its weights."""
    frozen = layer(LLAMA, replace(ONE, adapter_rank=4))
    trained = layer(LLAMA)
    assert {name for name in trained if name.endswith("-wgrad")}
    assert not {name for name in frozen if name.endswith("-wgrad")}
    assert frozen["qkv-dgrad"] == trained["qkv-dgrad"]
    x, y = 2 * 8 * 16, 2 * 8 * 32  # bytes of the input and the output of qkv
    assert frozen["qkv-adapter"].bytes == x + 3 * y
    assert frozen["qkv-adapter-backward"].bytes == 3 * x + 2 * y
    words = operators(embedding_work(LLAMA, replace(ONE, adapter_rank=4)))
    assert "embedding-backward" not in words
    assert LLAMA.adapter_width == (16 + 32) + (16 + 16)


def test_nvfp4_quantises_the_inputs_of_products():
    """Half a byte and an fp8 scale a block of 16; a pass finds the largest, a second casts."""
    ops = layer(LLAMA, replace(ONE, precision="nvfp4"))
    element = 0.5 + 1 / 16
    assert ops["qkv"].bytes == element * (8 * 16 + 16 * 32) + 2 * 8 * 32
    assert ops["qkv"].precision == "nvfp4"
    assert ops["qkv-cast"].bytes == (2 + 2 + 2 * element) * 8 * 16
    assert ops["qkv-cast-backward"].bytes == (2 + 2 + 2 * element) * 8 * 32
    assert ops["core-attention"].precision == "bf16"
    eight = layer(LLAMA, replace(ONE, precision="fp8"))
    assert eight["qkv-cast"].bytes == 6 * 8 * 16
