"""Memory against the closed forms of Korthikanti et al. 2022 (Table 2, Equations 1 to 6)."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.graph.zero_bubble import SPLIT_SCHEDULES
from paceline.model.activations import backward_work, end_activations, layer_activations
from paceline.model.blocks import LatentAttention, MoE
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.memory import (
    ends_in_flight,
    in_flight,
    model_states,
    place_parameters,
    stage_parameters,
)
from paceline.model.memory_peak import (
    framework_bytes,
    gathered_bytes,
    stage_activations,
    stage_memory,
)
from paceline.model.operators import layer_kind
from paceline.model.plan import Plan
from paceline.trace import OpKind

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
    assert stage_activations(llm, plan).kept[0] == pytest.approx(expected, rel=1e-12)


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
        assert one.framework == framework_bytes(llm, plan)
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
    # FSDP2 shards the fp32 master copy, counted as parameters; gradients come with the backward.
    assert [round(s.optimizer / n, 1) for s in states] == [12, 1.5, 1.5, 1]
    assert [round(s.gradients / n, 1) for s in states] == [4, 4, 0.5, 0]
    assert [round(s.parameters / n, 2) for s in states] == [2, 2, 2, 0.5]
    again = stage_memory(llm, Plan(dp=8, global_batch=16, zero=3))[0]
    assert round(again.gradients / n, 1) == 0.5  # of the microbatch before


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


# Small enough to count by hand: 8 tokens of width 16, 4 heads of width 4, dense MLP of 64.
SMALL = LLM(name="small", layers=4, hidden=16, heads=4, vocab=128, seq_len=8)
LLAMA = replace(
    SMALL, kv_heads=2, ffn=32, gated=True, norm="rmsnorm", positions="rotary", bias=False,
    qkv_bias=False, tied=False,
)  # fmt: skip
#: Words and their learned positions, a layer's matrices, its norms and biases.
WORDS, POSITIONS = 128 * 16, 8 * 16
MATRICES = 4 * 16 * 16 + 2 * 16 * 64


def one(**fields):
    return Plan(**({"global_batch": 8} | fields))


def test_places_hold_embedding_layers_and_head():
    """Tied ones are held by both ends, untied ones are different matrices."""
    small = 2 * (2 * 16) + (3 * 16 + 16)  # two norms; biases of qkv and of the projection
    layer = MATRICES + small + (64 + 16)
    dense, expert = place_parameters(SMALL, one(pp=2))
    assert dense.tolist() == [WORDS + POSITIONS + 2 * layer, 2 * layer + WORDS + 2 * 16]
    assert expert.tolist() == [0, 0]
    assert place_parameters(SMALL, one())[0].tolist() == [WORDS + POSITIONS + 4 * layer + 2 * 16]
    untied = place_parameters(replace(SMALL, tied=False), one())[0]
    assert untied.tolist() == [2 * WORDS + POSITIONS + 4 * layer + 2 * 16]
    # the matrices and the MLP split over 2 ranks, the rest does not
    halves = place_parameters(SMALL, one(tp=2, pp=4))[0]
    assert halves[1] == MATRICES / 2 + small + (64 + 16) / 2
    assert halves[0] == halves[1] + 256 * 16 / 2 + POSITIONS  # padded to 128 rows a rank


def test_ranks_without_a_key_value_head_hold_a_copy():
    """4 ranks share 2 heads: keys and values count twice."""
    attention = 16 * (4 + 2 * 2) * 4 + 16 * 16
    copies = 16 * (2 * 2) * 4
    mlp, norms = 3 * 16 * 32, 2 * 16
    [_, middle, _, _], _ = place_parameters(LLAMA, one(tp=4, pp=4))
    assert middle == (attention + copies + mlp) / 4 + norms
    [_, middle, _, _], _ = place_parameters(LLAMA, one(tp=2, pp=4))
    assert middle == (attention + mlp) / 2 + norms
    latent = LatentAttention(q_rank=6, kv_rank=5, nope_dim=4, rope_dim=2, value_dim=3)
    [_, middle, _, _], _ = place_parameters(replace(LLAMA, latent=latent), one(tp=4, pp=4))
    down_up = 6 * (16 + 4 * 6) + 16 * (5 + 2) + 5 * 4 * (4 + 3) + 4 * 3 * 16
    assert middle == (down_up + mlp) / 4 + norms + (6 + 5)


MIXED = replace(LLAMA, moe=MoE(experts=4, top_k=2, ffn=8, shared_experts=1, every=2))


def test_experts_split_and_routers_do_not():
    """Layers 1 and 3 are mixtures: 4 experts and a shared one of 8, a router of 4 x 16."""
    expert, router = 3 * 16 * 8, 4 * 16
    attention, norms = (16 * (4 + 2 * 2) * 4 + 16 * 16), 2 * 16
    dense, experts = place_parameters(MIXED, one(pp=4, tp=2, dp=2, ep=2))
    assert experts.tolist() == [0, 2 * expert, 0, 2 * expert]
    assert dense[1] == (attention + expert) / 2 + norms + router
    assert dense[2] == (attention + 3 * 16 * 32) / 2 + norms


@pytest.mark.parametrize("llm", [LLAMA, MIXED])
def test_modules_for_more_tokens_lie_on_the_last_place(llm):
    """A layer of the last kind and a projection of 32 x 16 each."""
    plain = place_parameters(llm, one(pp=4, ep=2, dp=2) if llm.moe else one(pp=4))
    more = place_parameters(
        replace(llm, mtp_layers=2), one(pp=4, ep=2, dp=2) if llm.moe else one(pp=4)
    )
    assert more[0][:3].tolist() == plain[0][:3].tolist()
    layer = plain[0][3] - WORDS - 16  # the last place holds layer 3, the head and its norm
    module = layer + 2 * 16 * 16
    assert 2 * module <= more[0][3] - plain[0][3] <= 2 * (module + 3 * 16)  # and up to three norms
    assert more[1][3] == 3 * plain[1][3]


def test_states_over_the_ranks_that_share_them():
    """dp 2 x cp 2; the experts of 2 ranks are shared by the other 2 x 2 x 2 / 2."""
    dense, expert = np.array([100.0]), np.array([80.0])
    spread = {"tp": 2, "dp": 2, "cp": 2, "ep": 2}
    for zero, shares in enumerate([(0, 0, 0), (0, 0, 1), (0, 1, 1)]):
        states = model_states(one(zero=zero, **spread), dense, expert)
        held = [25 + 20 if share else 180 for share in shares]
        assert [s.tolist() for s in states] == [[2 * held[0]], [4 * held[1]], [12 * held[2]]]
    # FSDP2: master copy, fp32 gradients and two moments, all in shards
    states = model_states(one(zero=3, **spread), dense, expert)
    assert [s.tolist() for s in states] == [[4 * 45], [4 * 45], [8 * 45]]
    # in fp32 the weights are the master copy
    wide = model_states(one(zero=0, precision="fp32", grad_bytes=2), dense, expert)
    assert [s.tolist() for s in wide] == [[4 * 180], [2 * 180], [8 * 180]]


def kept(llm, **fields):
    return layer_activations(llm, layer_kind(llm, llm.layers - 1), one(**fields))


WIDE = 2 * 8 * 16  # bytes of one tensor of the residual stream


#: Queries and keys, once more in the projection that the values are a view of.
ROTATED = 2 * 8 * (2 * (4 + 2) + 2) * 4


def test_a_gated_layer_with_few_key_value_heads():
    """Inputs of two norms and two blocks; queries, keys, values, output, its fp32 statistics."""
    core = ROTATED + 2 * 8 * 16 + 4 * 8 * 4
    assert kept(LLAMA) == (4 * WIDE + core + 2 * 8 * 3 * 32, 0)
    # selective, fused: the outputs of norms and of the activation are made again
    cheap = 2 * WIDE + 2 * 8 * 32
    assert kept(LLAMA, recompute="selective") == (4 * WIDE + core + 2 * 8 * 3 * 32 - cheap, cheap)
    assert kept(LLAMA, recompute="full") == (WIDE, 4 * WIDE + core + 2 * 8 * 3 * 32)


def test_a_layer_without_fused_attention_keeps_its_scores():
    """Of 4 heads, 8 x 8 each: before and after the softmax in bf16, and a mask of a byte."""
    fused, stored = kept(SMALL)[0], kept(SMALL, flash=False)[0]
    assert stored - fused == 4 * 64 * (2 * 2 + 1) - 4 * 8 * 4
    # without dropout the softmax's result is all
    assert kept(LLAMA, flash=False)[0] - kept(LLAMA)[0] == 4 * 64 * 2 - 4 * 8 * 4


def test_fp8_halves_the_inputs_of_products():
    """Of the two blocks and of the MLP's second product; the attention's output is kept twice."""
    saved = 2 * WIDE / 2 + 8 * 32 - WIDE / 2
    assert kept(LLAMA)[0] - kept(LLAMA, precision="fp8")[0] == saved
    assert kept(LLAMA, precision="fp32")[0] > 1.9 * kept(LLAMA)[0]


def test_more_ranks_than_key_value_heads_keep_one_each():
    core = 2 * 8 * (2 * (1 + 1) + 1) * 4 + 2 * 8 * 1 * 4 + 4 * 8 * 1
    assert kept(LLAMA, tp=4)[0] == 4 * WIDE + core + 2 * 8 * 3 * 32 / 4


def test_latent_attention_keeps_its_latents():
    latent = LatentAttention(q_rank=6, kv_rank=5, nope_dim=4, rope_dim=2, value_dim=3)
    llm = replace(LLAMA, kv_heads=4, latent=latent)
    core = 2 * 8 * 4 * (6 + 6 + 3) + 2 * 8 * 4 * 3 + 4 * 8 * 4 + 2 * 8 * (6 + 5)
    assert kept(llm)[0] == 4 * WIDE + core + 2 * 8 * 3 * 32
    direct = replace(llm, latent=replace(latent, q_rank=None))
    assert kept(llm)[0] - kept(direct)[0] == 2 * 8 * 6


@pytest.mark.parametrize(("capacity", "routed"), [(None, 16), (0.5, 8), (1.0, 16), (2.0, 16)])
def test_a_mixture_keeps_routed_tokens_and_the_router(capacity, routed):
    """8 tokens to 2 experts of 8, a shared one of 8, 4 bytes of router a token and expert."""
    llm = replace(MIXED, moe=replace(MIXED.moe, capacity=capacity))
    core = ROTATED + 2 * 8 * 16 + 4 * 8 * 4
    mixture = routed * (2 * 2 * 16 + 3 * 2 * 8) + 8 * 3 * 2 * 8 + 4 * 8 * 4
    assert kept(llm)[0] == 4 * WIDE + core + mixture
    again = 2 * (routed * 8 + 8 * 8) + 2 * WIDE
    assert kept(llm, recompute="selective") == (4 * WIDE + core + mixture - again, again)


def test_a_mixture_over_two_ranks():
    """Each routes half of the tokens, and has half of the shared expert."""
    core = 2 * 8 * (2 * (2 + 1) + 1) * 4 + 2 * 8 * 8 + 4 * 8 * 2
    mixture = 8 * (2 * 2 * 16 + 3 * 2 * 8) + 8 * 3 * 2 * 8 / 2 + 4 * 8 * 4 / 2
    assert kept(MIXED, tp=2)[0] == 4 * WIDE + core + mixture
    again = 2 * (8 * 8 + 8 * 8 / 2) + 2 * WIDE
    assert kept(MIXED, tp=2, recompute="selective")[1] == again


def test_the_ends_keep_masks_and_logits():
    """A byte a dropped element; two inputs in bf16, softmax in fp32; 2 bytes more at the loss."""
    assert end_activations(SMALL, one()) == (8 * 16, 4 * 8 * 16 + 4 * 8 * 128, 2 * 8 * 128)
    assert end_activations(LLAMA, one())[0] == 0
    split = end_activations(SMALL, one(tp=2, sequence_parallel=True))
    assert split[:2] == (8 * 16 / 2, 4 * 8 * 16 / 2 + 4 * 8 * 256 / 2)
    assert end_activations(SMALL, one(tp=2))[:2] == (8 * 16, 4 * 8 * 16 + 4 * 8 * 256 / 2)
    assert end_activations(replace(LLAMA, mtp_layers=2), one())[1] == 3 * (512 + 4096)
    assert end_activations(SMALL, one(cp=2))[0] == 8 * 16 / 2


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({"pp": 4}, (4, 1)),
        ({"pp": 4, "global_batch": 2}, (2, 1)),
        ({"pp": 4, "schedule": "gpipe"}, (8, 8)),
        ({"pp": 4, "vpp": 2}, (4, 1)),
        ({"pp": 4, "vpp": 2, "global_batch": 4}, (4, 4)),  # all forwards come first
        ({"pp": 1}, (1, 1)),
    ],
)
def test_microbatches_held_at_the_ends(fields, ends):
    assert ends_in_flight(one(**fields)) == ends


def test_one_round_of_an_interleaved_schedule_holds_all():
    assert in_flight(one(pp=4, vpp=2, global_batch=4)).tolist() == [8, 8, 8, 8]
    assert in_flight(one(pp=2, vpp=3, global_batch=4)).tolist() == [7, 5]


def test_activations_of_a_stage_are_those_of_its_chunks_in_flight():
    """Two stages of two layers: 2 microbatches on the first, 1 on the last, and the ends."""
    layer = kept(SMALL)[0]
    held = stage_activations(SMALL, one(pp=2))
    mask, logits, loss = end_activations(SMALL, one(pp=2))
    assert held.kept.tolist() == [2 * 2 * layer + 2 * mask, 2 * layer + logits]
    assert held.logits.tolist() == [0, logits]
    assert held.loss.tolist() == [0, loss]
    plan = one(pp=2, recompute="full")
    of_kinds = [
        layer_activations(MIXED, layer_kind(MIXED, i), plan)[1]
        + backward_work(MIXED, layer_kind(MIXED, i), plan)
        for i in (0, 1)
    ]
    assert stage_activations(MIXED, plan).work.tolist() == [max(of_kinds)] * 2
    more = stage_activations(replace(SMALL, mtp_layers=2), one(pp=2)).kept
    assert more[1] == 2 * layer + 2 * layer + 3 * logits


def test_zero_3_gathers_words_and_layers():
    """Of 4 ranks, in bf16, at the loss, in a layer's backward, at the end; gradients in fp32."""
    words, layer = 2 * WORDS, LLAMA.layer_parameters(0)
    at_loss = 2 * words + 2 * layer
    at_work = 2 * words + 2 * WORDS + (3 * 2 + 2 + 4) * layer
    expected = [[at_loss], [at_work], [2 * words + (2 + 4) * words]]
    assert gathered_bytes(LLAMA, one(dp=4, zero=3)).tolist() == expected
    assert gathered_bytes(LLAMA, one(cp=2, zero=3)).tolist() == expected
    tied = gathered_bytes(replace(LLAMA, tied=True), one(dp=4, zero=3))
    assert at_loss - tied[0] == 2 * WORDS
    for alone in (one(zero=3), one(dp=4, zero=2)):
        assert not gathered_bytes(LLAMA, alone).any()


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "dualpipev", "dualpipe"])
@pytest.mark.parametrize(("pp", "m"), [(2, 4), (2, 1), (4, 3), (4, 6), (4, 8), (4, 20), (8, 18)])
def test_split_backwards_hold_what_their_orders_hold(schedule, pp, m):
    """A chunk is held from its forward until the gradient of its weights is done."""
    plan = Plan(pp=pp, global_batch=m, schedule=schedule)
    if m < 2 * pp and schedule.startswith("dual"):
        return  # not legal
    peaks = []
    for stage in range(pp):
        order = SPLIT_SCHEDULES[schedule](stage, pp, m)
        begins, ends = order.kind == OpKind.FORWARD_COMPUTE, order.kind == OpKind.WEIGHT_COMPUTE
        held = np.cumsum(begins.astype(int) - ends)
        peaks.append(held.max())
        for places, count in zip((0, plan.chunks - 1), ends_in_flight(plan), strict=True):
            for chunk, row in enumerate(plan.places):
                if row[stage] == places:
                    own = np.cumsum((begins.astype(int) - ends) * (order.chunk == chunk))
                    assert own.max() <= count
    assert in_flight(plan).tolist() == peaks


def test_the_published_memory_of_split_backwards():
    """ZB-H1 within 1F1B's peak, ZBV alike on all stages, DualPipe PP + 1 and twice the parameters.

    (Qi et al. 2024, 3 and 6; deepseek-ai/DualPipe, README.)
    """
    llm = LLM(name="x", layers=16, hidden=512, heads=8, vocab=32000, seq_len=1024, tied=False)
    plans = {
        name: Plan(pp=8, global_batch=32, schedule=name) for name in ("1f1b", *SPLIT_SCHEDULES)
    }
    one = in_flight(plans["1f1b"]).max()
    assert (in_flight(plans["zb-h1"]) == one).all()
    assert (in_flight(plans["zbv"]) / 2 == one).all()  # a chunk is half of a stage
    assert (in_flight(plans["dualpipe"]) == 8 + 1).all()
    assert (in_flight(plans["dualpipev"]) == 16 + 1).all()
    whole, twice = (sum(map(sum, stage_parameters(llm, plans[n]))) for n in ("1f1b", "dualpipe"))
    assert twice == 2 * whole
    # Optimizer states are shared out over both copies (ZeRO 1).
    states = [sum(s.optimizer for s in stage_memory(llm, plans[n])) for n in ("1f1b", "dualpipe")]
    assert states[1] == pytest.approx(states[0])


def test_a_tied_embedding_is_held_once_where_a_stage_has_both_ends():
    llm = LLM(name="x", layers=8, hidden=512, heads=8, vocab=32000, seq_len=1024)
    rows = llm.padded_vocab(1) * 512
    for schedule, copies in (("1f1b", 2), ("zbv", 1), ("dualpipe", 1)):
        plan = Plan(pp=4, global_batch=8, schedule=schedule)
        untied = replace(llm, tied=False)
        more = place_parameters(untied, plan)[0].sum() - place_parameters(llm, plan)[0].sum()
        assert more == (2 - copies) * rows
