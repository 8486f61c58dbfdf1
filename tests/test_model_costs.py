"""What a step costs, with links of 100 byte/s in a node of 8 and 8 x 10 byte/s between nodes.

Nothing has latency, and operators cost what a test says, so that all can be worked out by hand.
"""

from dataclasses import replace

import numpy as np
import pytest

from paceline.model import layer_costs
from paceline.model.blocks import MoE
from paceline.model.cluster import Cluster, Gpu, Network, Node
from paceline.model.cluster_presets import cluster_preset
from paceline.model.compute import gemm_shape_efficiency, roofline
from paceline.model.costs import CostModel
from paceline.model.efficiency import Efficiency
from paceline.model.layer_costs import PARTS
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.memory import place_parameters
from paceline.model.operators import Operator, layer_kind
from paceline.model.plan import Plan

# 8 tokens of width 16: 256 bytes in bf16.
GPT = LLM(name="gpt", layers=4, hidden=16, heads=4, vocab=128, seq_len=8)
MIXED = replace(GPT, moe=MoE(experts=4, top_k=2, ffn=8, every=2))
TENSOR = 2 * 8 * 16
OVERLAP = 0.25  # share of hidden traffic that comes back as slower compute


def cluster(**efficiency):
    shares = {
        "launch_s": 0.0, "kernel_s": 0.0, "collective_s": 0.0, "intra": 1.0, "inter": 1.0,
        "overlap": OVERLAP, "expert_kernel_s": 0.0,
    }  # fmt: skip
    return Cluster(
        name="hand",
        gpu=Gpu(name="g", peak_flops={"bf16": 1e3}, memory_bytes=1e9, memory_bandwidth=1e3, sms=4),
        node=Node(gpus=8, bandwidth=100.0, latency_s=0.0),
        network=Network(nics=8, nic_bandwidth=10.0, latency_s=0.0),
        efficiency=Efficiency(**(shares | efficiency)),
    )


def plan(**fields):
    fields = {"global_batch": 64, "overlap_dp": False} | fields
    return Plan(**fields)


def model(llm=GPT, cost=lambda op: 0.0, **efficiency):
    return CostModel(llm, cluster(**efficiency), cost)


def seconds(row):
    """part -> seconds of one pass."""
    return dict(zip(PARTS, row.tolist(), strict=True))


def test_routing_and_experts_wait_for_the_host_unless_they_are_fused():
    """4 experts, each with a product up and down: 8 kernels, and as many in bf16's activations."""
    kind = layer_kind(MIXED, 1)
    waits = model(MIXED, expert_kernel_s=0.5)
    forward, backward = waits.layer(kind, plan())[0]
    # router, its sort (8), permute (4), products up and down (4 + 4), activation, unpermute (2)
    assert seconds(forward)["launch"] == 0.5 * (1 + 8 + 4 + 8 + 1 + 2)
    # two gradients a product
    assert seconds(backward)["launch"] == 0.5 * (2 + 8 + 4 + 16 + 1 + 2)
    assert waits.layer(layer_kind(MIXED, 0), plan())[0][:, PARTS.index("launch")].sum() == 0
    fused = plan(precision="fp8", fused_experts=True)
    assert waits.layer(kind, fused)[0][:, PARTS.index("launch")].sum() == 0


def gemms(op):
    return float(op.part == "gemm")


def test_places_hold_their_layers_and_the_ends():
    """A second for each product: 4 a layer, 1 of the head; backward twice as many."""
    work = model(cost=gemms).stage_work(plan(pp=2, vpp=2))
    gemm = work.parts_s[:, PARTS.index("gemm")]
    assert gemm.tolist() == [[4, 4, 4, 4 + 1], [8, 8, 8, 8 + 2]]
    uneven = model(cost=gemms).stage_work(plan(pp=2, layers_per_stage=(1, 3)))
    assert uneven.parts_s[0].sum(axis=0).tolist() == [4, 12 + 1]


def test_layers_of_two_kinds():
    """Dense: 4 products; mixture: qkv, projection, router, up and down of the experts."""
    work = model(MIXED, gemms).stage_work(plan(pp=2))
    assert work.parts_s[0].sum(axis=0).tolist() == [4 + 5, 4 + 5 + 1]


def test_a_module_for_more_tokens_is_a_layer_a_projection_and_a_head():
    work = model(replace(GPT, mtp_layers=2), gemms).stage_work(plan(pp=2))
    assert work.parts_s[0].sum(axis=0).tolist() == [8, 8 + 3 * 1 + 2 * (4 + 1)]


def test_flops_of_the_places():
    """2 per element and token: 4 x 16 columns of attention, 2 x 64 of the MLP; scores apart."""
    work = model().stage_work(plan(pp=2))
    layer = 2 * 8 * 16 * (4 * 16 + 2 * 64) + 2 * 2 * 8 * 4 * 4 * 4
    head = 2 * 8 * 16 * 128
    assert work.flops[0].tolist() == [2 * layer, 2 * layer + head]
    attention = 2 * 2 * 8 * 4 * 4 * 4  # backward: 2.5 times these, the others twice
    backward = 2 * (2 * (layer - attention) + 2.5 * attention)
    assert work.flops[1].tolist() == [backward, backward + 2 * head]


def test_the_host_may_be_slower_than_the_gpu():
    """Embedding 2 kernels, positions and dropout 1 each; a layer has norms, residuals and so on."""
    slow = model(cost=lambda op: 0.25 * op.kernels, launch_s=1.0)
    parts, _ = slow.layer("embedding", plan())
    assert seconds(parts[0]) | {"memory": 1.0, "launch": 4 - 1.0} == seconds(parts[0])
    fast = model(cost=lambda op: 2.0 * op.kernels, launch_s=1.0)
    assert seconds(fast.layer("embedding", plan())[0][0])["launch"] == 0


def test_collectives_are_exposed():
    """tp 2: two all-reduces of 256 bytes forward, each (2 x 1/2) 256 / 100 s."""
    parts, _ = model().layer(layer_kind(GPT, 0), plan(tp=2))
    assert seconds(parts[0])["tp"] == pytest.approx(2 * 2.56)
    assert seconds(parts[1])["tp"] == pytest.approx(2 * 2.56)


def test_collectives_of_few_tokens_do_not_hide(monkeypatch):
    """Of 1.28 s a quarter hides where the microbatch has a quarter of the tokens that it takes."""
    overlapped = plan(tp=2, sequence_parallel=True, overlap_tp=True)
    monkeypatch.setattr(layer_costs, "TP_OVERLAP_TOKENS", 4 * overlapped.micro_batch * GPT.seq_len)
    parts, _ = model(cost=gemms).layer(layer_kind(GPT, 0), overlapped)
    assert seconds(parts[0])["tp"] == pytest.approx(4 * 1.28 * (0.75 + OVERLAP * 0.25))


def test_a_share_of_data_parallel_traffic_hides_whatever_the_room():
    """Of 10 s, 0.4 may hide: 6 s show and a quarter of the other 4 s comes back."""
    base = model()
    cluster = replace(base.cluster, efficiency=replace(base.efficiency, hidden_dp=0.4))
    fitted = CostModel(GPT, cluster)
    ten, room = np.array([10.0]), np.array([100.0])
    hidden, shown = fitted.overlapped(ten, ten, room)
    assert hidden[0] == pytest.approx(4.0)
    assert shown[0] == pytest.approx(6.0 + OVERLAP * 4.0)


def test_collectives_hide_behind_the_products_that_there_are(monkeypatch):
    """Four of 1.28 s behind 4 products of 1 s: 4 s are hidden, of which a quarter comes back."""
    monkeypatch.setattr(layer_costs, "TP_OVERLAP_TOKENS", 1)
    overlapped = plan(tp=2, sequence_parallel=True, overlap_tp=True)
    parts, _ = model(cost=gemms).layer(layer_kind(GPT, 0), overlapped)
    assert seconds(parts[0])["tp"] == pytest.approx(4 * 1.28 - 4 + OVERLAP * 4)
    # backward: six behind 8 products
    assert seconds(parts[1])["tp"] == pytest.approx(OVERLAP * 6 * 1.28)


def test_the_ring_hides_behind_the_attention():
    """cp 4: each rank passes on 2 tokens' keys and values, 16 wide each, three times."""
    hop = 2 * 2 * (16 + 16) / 100

    def cost(op):
        return hop if op.name == "core-attention" else 0.0

    parts, _ = model(cost=cost).layer(layer_kind(GPT, 0), plan(cp=4))
    assert seconds(parts[0])["cp"] == pytest.approx(2 * hop + OVERLAP * hop)
    assert seconds(parts[1])["cp"] == pytest.approx(6 * hop)


def test_experts_exchange_tokens_among_neighbours():
    """ep 2: four times half of 256 bytes x 2 ranks x 3/4 a pass leave the GPU."""
    parts, _ = model(MIXED).layer(layer_kind(MIXED, 1), plan(dp=2, ep=2))
    assert seconds(parts[0])["ep"] == pytest.approx(2 * TENSOR * 1.5 / 2 / 100)
    assert seconds(parts[1])["ep"] == pytest.approx(2 * TENSOR * 1.5 / 2 / 100)


# Gradients and parameters of 4 replicas in one node: a share of 3/4 travels.


def dense_parameters(llm=GPT, **fields):
    return place_parameters(llm, plan(**fields))[0]


@pytest.mark.parametrize(
    ("zero", "gathered", "reduced"),
    [
        (0, 0, 2 * 4),  # an all-reduce of fp32 gradients
        (1, 2, 4),  # scattered, and bf16 parameters gathered
        (2, 2, 0),  # scattered after each backward
        (3, 0, 0),  # both in each pass
    ],
)
def test_gradients_once_a_step(zero, gathered, reduced):
    count = dense_parameters()
    costs = model().costs(plan(dp=4, zero=zero))
    assert costs.all_gather_s == pytest.approx(gathered * count * 3 / 4 / 100)
    assert costs.reduce_scatter_s == pytest.approx(reduced * count * 3 / 4 / 100)
    assert costs.hidden_dp_s.tolist() == [0]


@pytest.mark.parametrize(("zero", "forward", "backward"), [(1, 0, 0), (2, 0, 4), (3, 2, 2 + 4)])
def test_gradients_of_every_microbatch(zero, forward, backward):
    count = dense_parameters()
    costs = model().costs(plan(dp=4, zero=zero))
    dp = costs.parts_s[:, PARTS.index("dp"), 0]
    assert dp == pytest.approx(np.array([forward, backward]) * count * 3 / 4 / 100)


def test_shards_under_a_pipeline_are_exchanged_once_a_step():
    """FSDP2 keeps parameters gathered and gradients whole: the exchange of ZeRO 1."""
    sharded, optimizer = (model().costs(plan(pp=2, dp=4, zero=zero)) for zero in (3, 1))
    assert sharded.all_gather_s.tolist() == optimizer.all_gather_s.tolist()
    assert sharded.reduce_scatter_s.tolist() == optimizer.reduce_scatter_s.tolist()
    assert sharded.parts_s[:, PARTS.index("dp")].tolist() == [[0, 0], [0, 0]]
    assert sharded.all_gather_s.min() > 0


def test_shards_hide_behind_the_compute_of_their_pass():
    """ZeRO-3 with 10 s of compute a product: what is hidden slows it by a quarter."""
    count = dense_parameters()[0]
    cost = model(cost=lambda op: 1e4 * gemms(op))
    costs = cost.costs(plan(dp=4, zero=3, overlap_dp=True))
    dp = costs.parts_s[:, PARTS.index("dp"), 0]
    assert dp == pytest.approx(OVERLAP * np.array([2, 6]) * count * 3 / 4 / 100)
    assert costs.overlapped


def test_experts_are_reduced_among_those_that_share_them():
    """dp 4, ep 2: pairs of ranks share a half of the experts; a share of 1/2 travels."""
    dense, expert = place_parameters(MIXED, plan(dp=4, ep=2))
    assert expert[0] == 2 * (4 / 2) * MIXED.expert_parameters
    costs = model(MIXED).costs(plan(dp=4, ep=2, zero=0))
    seconds_of_both = 8 * dense * 3 / 4 / 100 + 8 * expert / 2 / 100
    assert costs.reduce_scatter_s == pytest.approx(seconds_of_both)
    sharded = model(MIXED).costs(plan(dp=4, ep=2, zero=3)).parts_s[0, PARTS.index("dp")]
    assert sharded == pytest.approx(2 * dense * 3 / 4 / 100 + 2 * expert / 2 / 100)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_one_replica_over_two_ranks_still_shares_experts(zero):
    """dp 1, tp 2: each rank has its own half of the rest, but both have all experts."""
    expert = place_parameters(MIXED, plan(tp=2))[1]
    costs = model(MIXED).costs(plan(tp=2, zero=zero))
    once = {0: (0, 8), 1: (2, 4), 2: (2, 0), 3: (0, 0)}[zero]
    each = {0: (0, 0), 1: (0, 0), 2: (0, 4), 3: (2, 6)}[zero]
    assert costs.all_gather_s == pytest.approx(once[0] * expert / 2 / 100)
    assert costs.reduce_scatter_s == pytest.approx(once[1] * expert / 2 / 100)
    dp = costs.parts_s[:, PARTS.index("dp"), 0]
    assert dp == pytest.approx(np.array(each) * expert[0] / 2 / 100)


def test_groups_of_ranks():
    model_ = model(MIXED)
    assert model_.groups(plan(tp=2, cp=2, dp=4, ep=4)) == ((8, 2), (4, 4))
    assert model_.groups(plan(dp=2, ep=4)) == ((2, 1), (1, 4))


def test_the_last_bucket_stays_exposed():
    """Buckets of a quarter of the gradients: three quarters hide, a quarter of which comes back."""
    count = dense_parameters()[0]
    quarter = plan(dp=4, overlap_dp=True, bucket_bytes=count * 4 / 4)
    roomy = model(cost=lambda op: 1e4 * gemms(op)).costs(quarter)
    gather, reduce = (size * count * 3 / 4 / 100 for size in (2, 4))
    assert roomy.all_gather_s == pytest.approx(gather * (1 / 4 + OVERLAP * 3 / 4))
    assert roomy.reduce_scatter_s == pytest.approx(reduce * (1 / 4 + OVERLAP * 3 / 4))
    assert roomy.hidden_dp_s == pytest.approx((gather + reduce) * 3 / 4)
    # 17 products forward and 34 backward of 1 s each are the room that there is
    tight = model(cost=gemms).costs(quarter)
    assert tight.hidden_dp_s == pytest.approx(17 + 34)
    assert tight.all_gather_s == pytest.approx(gather - 17 + OVERLAP * 17)
    assert tight.reduce_scatter_s == pytest.approx(reduce - 34 + OVERLAP * 34)


def test_a_bucket_holds_forty_million_elements_unless_told():
    """Megatron-Core's default: of a model this small, all is in the last bucket."""
    small = model(cost=gemms).costs(plan(dp=4, overlap_dp=True))
    assert small.hidden_dp_s.tolist() == [0]
    wide = replace(GPT, hidden=2048, ffn=8192)  # 4 x 50.4 million and the ends
    count = dense_parameters(wide)[0]
    costs = model(wide, lambda op: 1e12 * gemms(op)).costs(plan(dp=4, overlap_dp=True))
    hidden = (2 + 4) * count * 3 / 4 / 100 * (1 - 40e6 / count)
    assert costs.hidden_dp_s == pytest.approx(hidden)


@pytest.mark.parametrize(
    ("fields", "overlapped"),
    [({"dp": 2}, True), ({"cp": 2}, True), ({}, False), ({"dp": 2, "overlap_dp": False}, False)],
)
def test_one_rank_overlaps_nothing(fields, overlapped):
    assert model().costs(plan(**({"overlap_dp": True} | fields))).overlapped == overlapped


# The pipeline.


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"pp": 2}, TENSOR / 100),  # to a neighbour in the node
        ({"pp": 2, "micro_batch": 2}, 2 * TENSOR / 100),
        ({"pp": 2, "dp": 4}, TENSOR / 100),  # 4 ranks further on, 8 in all
        # 4 stages with 4 ranks each: at every other hand-over 4 senders leave the node
        ({"pp": 4, "dp": 4}, TENSOR / 10),
        ({"pp": 2, "dp": 8}, TENSOR / 10),
        # halves to two receivers, which gather them; with sequence parallelism halves are all
        ({"pp": 2, "tp": 2}, TENSOR / 2 / 100 + TENSOR / 2 / 100),
        ({"pp": 2, "tp": 2, "sequence_parallel": True}, TENSOR / 2 / 100),
        ({"pp": 2, "cp": 2}, TENSOR / 2 / 100),
        ({"pp": 2, "overlap_pp": True}, OVERLAP * TENSOR / 100),
        ({"pp": 2, "precision": "fp32"}, 2 * TENSOR / 100),
    ],
)
def test_activations_go_to_the_next_place(fields, sent):
    costs = model().costs(plan(**fields))
    assert costs.p2p_s == pytest.approx([sent] * (fields["pp"] - 1) + [0])


def test_one_stage_sends_nothing():
    assert model().costs(plan(dp=2)).p2p_s.tolist() == [0]


def test_senders_that_share_adapters():
    """Half the adapters: 4 for the 8 ranks of a node."""
    halved = cluster()
    halved = replace(halved, network=replace(halved.network, nics=4))
    costs = CostModel(GPT, halved, lambda op: 0.0).costs(plan(pp=2, dp=8))
    assert costs.p2p_s[0] == pytest.approx(TENSOR / 5)
    # of 4 stages with 4 ranks each, 4 leave a node at once: an adapter for each
    costs = CostModel(GPT, halved, lambda op: 0.0).costs(plan(pp=4, dp=4))
    assert costs.p2p_s[0] == pytest.approx(TENSOR / 10)


# The tail.


def test_norms_are_summed_over_tensor_parallel_ranks():
    """Two norms of 2 x 16 in fp32 a layer, all-reduced over 2 ranks: 256 bytes / 100 a layer."""
    split = model().costs(plan(tp=2, pp=2, sequence_parallel=True, layers_per_stage=(1, 3)))
    assert split.layernorm_grads_s == pytest.approx([2.56, 3 * 2.56])
    assert model().costs(plan(tp=2, pp=2)).layernorm_grads_s.tolist() == [0, 0]


def test_both_copies_of_a_tied_embedding_are_summed():
    """128 x 16 gradients of 4 bytes between the first and the last of 2 stages."""
    assert model().costs(plan(pp=2)).embedding_grads_s == pytest.approx(4 * 128 * 16 / 100)
    # the last of 4 stages of 4 ranks lies 12 ranks on, in another node, all of whose ranks share
    apart = model().costs(plan(pp=4, dp=4)).embedding_grads_s
    assert apart == pytest.approx(4 * 128 * 16 / (80 / 8))
    halves = model().costs(plan(pp=2, tp=2)).embedding_grads_s
    assert halves == pytest.approx(4 * 256 * 16 / 2 / 100)  # padded to 128 rows a rank
    assert model().costs(plan()).embedding_grads_s == 0
    assert model(replace(GPT, tied=False)).costs(plan(pp=2)).embedding_grads_s == 0


def test_the_norm_of_all_gradients_is_one_number():
    assert model().costs(plan(dp=4)).clip_s == pytest.approx(2 * 3 / 4 * 4 / 100)
    assert model(fixed_s=0.5).costs(plan()).fixed_s == 0.5


@pytest.mark.parametrize(("zero", "dense_ranks", "expert_ranks"), [(0, 1, 1), (1, 4, 2)])
def test_the_optimizer_moves_its_share(zero, dense_ranks, expert_ranks):
    """34 bytes a parameter, in 4 kernels."""
    dense, expert = place_parameters(MIXED, plan(dp=4, ep=2, pp=2))
    costs = model(MIXED, lambda op: op.bytes + 1e9 * op.kernels).costs(
        plan(dp=4, ep=2, pp=2, zero=zero)
    )
    expected = 34 * (dense / dense_ranks + expert / expert_ranks) + 4e9
    assert costs.optimizer_s == pytest.approx(expected)


def test_weights_of_nvfp4_are_quantised_once_a_step():
    """Read twice in bf16, written and transposed in 9/16 byte: 5.125 bytes of each weight held."""
    held = place_parameters(GPT, plan(dp=4))[0]
    costs = model(cost=lambda op: op.bytes).costs(plan(dp=4, precision="nvfp4"))
    assert costs.optimizer_s == pytest.approx(34 * held / 4 + 5.125 * held)


def test_nvfp4_reaches_its_share_of_what_fp8_reaches():
    shares = Efficiency(gemm=0.9, gemm_fp8=0.8, nvfp4=0.5)
    assert [shares.gemm_share(p) for p in ("bf16", "fp8", "nvfp4")] == [0.9, 0.8, 0.4]


def test_chunks_of_a_stage_are_updated_together():
    dense = place_parameters(GPT, plan(pp=2, vpp=2))[0]
    costs = model(cost=lambda op: op.bytes).costs(plan(pp=2, vpp=2, zero=0))
    assert costs.optimizer_s == pytest.approx(
        34 * np.array([dense[0] + dense[2], dense[1] + dense[3]])
    )


def test_plans_that_differ_in_replicas_alone_share_their_work():
    shared = model(cost=gemms)
    assert shared.stage_work(plan(dp=2)) is shared.stage_work(plan(dp=4))
    assert shared.stage_work(plan(dp=2)) is not shared.stage_work(plan(dp=2, micro_batch=2))
    assert shared.costs(plan(pp=2)).forward_s.tolist() == [8, 9]
    assert shared.costs(plan(pp=2)).backward_s.tolist() == [16, 18]


# The roofline: 1,000 FLOP/s and 1,000 byte/s.


@pytest.mark.parametrize(
    ("m", "n", "k", "batch", "sms", "share"),
    [
        (256, 128, 64, 1, 1, 1 / 2),  # one full tile; filling it costs as much as its 64 steps
        (256, 128, 192, 1, 1, 3 / 4),
        (256, 128, 192, 1, 2, 3 / 4 * 0.92),  # two of 128 x 128 keep both SMs busy
        (128, 64, 192, 1, 1, 3 / 4 * 0.75),
        (64, 64, 192, 1, 1, 3 / 4 * 0.55),
        (64, 32, 192, 1, 1, 3 / 4 * 0.55 / 2),  # half of its tile is padding
        (256, 128, 192, 3, 2, 3 / 4 * 0.92),  # 6 tiles of 128 x 128 in 3 waves of 2
        (129, 128, 192, 1, 4, 3 / 4 * max(129 / 1024, 0.92 * 129 / 512, 0.75 * 129 / 256)),
    ],
)
def test_tiles_and_waves(m, n, k, batch, sms, share):
    assert gemm_shape_efficiency(m, n, k, batch, sms) == pytest.approx(share)


GEMM = Operator("qkv", "gemm", 1e6, 1.0, 256, 128, 192)
SHARES = {
    "gemm": 0.8, "gemm_fp8": 0.7, "attention": 0.65, "attention_backward": 0.5, "batched": 0.4,
    "memory": 0.9,
}  # fmt: skip


def cost_of(op, sms=1, **efficiency):
    gpu = Gpu(
        name="g", peak_flops={"bf16": 1e3, "fp8": 2e3}, memory_bytes=1e9, memory_bandwidth=1e3,
        sms=sms,
    )  # fmt: skip
    shares = SHARES | {"kernel_s": 0.0} | efficiency
    return roofline(gpu, Efficiency(**shares))(op)


def test_operators_take_their_arithmetic_or_their_traffic():
    assert cost_of(GEMM) == pytest.approx(1e6 / (1e3 * 0.8 * 3 / 4))
    assert cost_of(GEMM._replace(precision="fp8")) == pytest.approx(1e6 / (2e3 * 0.7 * 3 / 4))
    assert cost_of(GEMM._replace(bytes=9e6)) == pytest.approx(9e6 / (1e3 * 0.9))
    norm = Operator("norm", "memory", 0.0, 900.0, kernels=3)
    assert cost_of(norm) == pytest.approx(1.0)
    assert cost_of(norm, kernel_s=0.5) == pytest.approx(1.0 + 3 * 0.5)
    assert cost_of(norm, compute=2.0) == pytest.approx(0.5)
    assert cost_of(GEMM, compute=2.0) == pytest.approx(1e6 / (2e3 * 0.8 * 3 / 4))


def test_attention_has_rates_of_its_own():
    fused = Operator("core-attention", "attention", 1e6, 1.0)
    assert cost_of(fused) == pytest.approx(1e6 / (1e3 * 0.65))
    backward = fused._replace(name="core-attention-backward")
    assert cost_of(backward) == pytest.approx(1e6 / (1e3 * 0.5))
    batched = Operator("core-scores", "attention", 1e6, 1.0, 256, 128, 192, 2)
    assert cost_of(batched) == pytest.approx(1e6 / (1e3 * 0.4 * 3 / 4))


def test_gradients_of_weights_take_a_product_as_large_as_the_forward():
    """With seconds that are FLOPs; attention has no weights, so it is none of them."""
    llm = llm_preset("gpt3-175b")
    plan = Plan(tp=8, pp=8, global_batch=16, schedule="zb-h1")
    costs = CostModel(llm, cluster_preset("a100-80g"), lambda op: op.flops).costs(plan)
    products = costs.parts_s[0, PARTS.index("gemm")]
    assert costs.weight_s == pytest.approx(products)
    assert costs.parts_s[1, PARTS.index("gemm")] == pytest.approx(2 * products)


def test_a_layer_in_fp8_takes_its_wait_in_both_passes():
    base = model()
    cluster = replace(base.cluster, efficiency=replace(base.efficiency, layer_s=3.0))
    kind, in_fp8 = layer_kind(GPT, 0), plan(precision="fp8")
    without = CostModel(GPT, base.cluster, lambda op: 1.0).layer(kind, in_fp8)[0]
    waits = CostModel(GPT, cluster, lambda op: 1.0).layer(kind, in_fp8)[0] - without
    assert seconds(waits[0])["launch"] == pytest.approx(3.0)
    assert waits.sum() == pytest.approx(6.0)
