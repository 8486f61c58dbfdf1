"""What a profile runs for an operator: the shapes of its tensors, and its FLOPs as PyTorch counts.

8 tokens of width 16; 4 heads of width 4, 2 of keys and values.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from paceline.model.blocks import LatentAttention, MoE
from paceline.model.llm import LLM
from paceline.model.operators import (
    Operator,
    all_operators,
    embedding_work,
    head_work,
    layer_kind,
    layer_work,
)
from paceline.model.plan import Plan
from paceline.model.profile import OperatorProfile, Timing
from paceline.model.profile_cost import (
    ProfileCost,
    cluster_from_profile,
    one_of_batch,
    operator_class,
    shape_of,
)
from paceline.model.profile_operators import _BUILDERS, Case, Tensors, thunk_of
from paceline.model.profiler import (
    Clock,
    Effort,
    Shapes,
    choose_device,
    made_up,
    measure,
    necessary,
)

torch = pytest.importorskip("torch", reason="torch is not installed (extra: profile)")

SMALL = {"layers": 1, "hidden": 16, "heads": 4, "vocab": 128, "seq_len": 8}
GPT = LLM(name="gpt", **SMALL)
LLAMA = LLM(
    name="llama", kv_heads=2, ffn=32, gated=True, norm="rmsnorm", positions="rotary", bias=False,
    qk_norm=True, **SMALL,
)  # fmt: skip
MIXED = replace(LLAMA, moe=MoE(experts=4, top_k=2, ffn=8))
ONE = Plan(global_batch=1, precision="fp32")
MAKE = Tensors(torch, "cpu", "fp32")


def operators(llm, plan=ONE):
    """name -> operator of a layer and of both ends."""
    works = (layer_work(llm, layer_kind(llm, 0), plan), embedding_work(llm, plan))
    return {op.name: op for work in (*works, head_work(llm, plan)) for op in all_operators(work)}


def inputs(name, llm, plan=ONE):
    """Shapes of the inputs whose gradients are computed."""
    op = operators(llm, plan)[name]
    kind = operator_class(op).removesuffix("-backward")
    _, tensors = _BUILDERS[kind](Case(op, llm, plan), MAKE)
    return [tuple(tensor.shape) for tensor in tensors]


FOUR = replace(ONE, tp=4)


@pytest.mark.parametrize(
    ("name", "llm", "plan", "shapes"),
    [
        ("norm-mlp", LLAMA, ONE, [(8, 16), (16,)]),
        ("norm-mlp", GPT, ONE, [(8, 16), (16,), (16,)]),
        ("norm-mlp", GPT, replace(ONE, cp=2), [(4, 16), (16,), (16,)]),
        ("norm-mlp", GPT, replace(ONE, micro_batch=2), [(16, 16), (16,), (16,)]),
        ("residual-mlp", GPT, ONE, [(8, 16)]),
        ("residual-mlp", LLAMA, ONE, [(8, 16)]),
        ("mlp-activation", LLAMA, ONE, [(8, 2 * 32)]),
        ("mlp-activation-backward", LLAMA, ONE, [(8, 2 * 32)]),
        ("mlp-activation", LLAMA, FOUR, [(8, 2 * 8)]),
        ("mlp-activation", GPT, ONE, [(8, 64)]),
        ("mlp-activation-backward", GPT, ONE, [(8, 64)]),
        ("rotary", LLAMA, ONE, [(8, 4 + 2, 4)]),
        ("rotary", LLAMA, FOUR, [(8, 1 + 1, 4)]),
        ("qk-norm", LLAMA, ONE, [(8, 4 + 2, 4), (4,)]),
        ("qk-norm", LLAMA, FOUR, [(8, 1 + 1, 4), (4,)]),
        ("core-attention", LLAMA, ONE, [(8, (4 + 2 + 2) * 4)]),
        ("core-attention", LLAMA, FOUR, [(8, (1 + 1 + 1) * 4)]),
        ("core-softmax", GPT, replace(ONE, flash=False), [(1, 4, 8, 8)]),
        ("core-softmax", GPT, replace(FOUR, flash=False), [(1, 1, 8, 8)]),
        ("core-dropout", GPT, replace(ONE, flash=False, micro_batch=2), [(8, 8, 8)]),
        ("core-dropout", GPT, replace(FOUR, flash=False), [(1, 8, 8)]),
        ("embedding", GPT, ONE, [(128, 16)]),
        ("embedding", GPT, replace(ONE, tp=2), [(128, 16)]),  # 256 padded rows over 2 ranks
        ("embedding-positions", GPT, ONE, [(8, 16)]),
        ("embedding-dropout", GPT, ONE, [(8, 16)]),
        ("loss", GPT, ONE, [(8, 128)]),
        ("loss", GPT, replace(ONE, tp=2), [(8, 128)]),  # 256 padded columns over 2 ranks
        ("router-topk", MIXED, ONE, [(8, 4)]),
        ("router-topk", MIXED, FOUR, [(2, 4)]),
        ("permute", MIXED, ONE, [(8, 16)]),
        ("unpermute", MIXED, ONE, [(16, 16), (16, 1)]),
        ("unpermute", replace(MIXED, moe=replace(MIXED.moe, capacity=0.5)), ONE, [(8, 16), (8, 1)]),
    ],
)
def test_shapes_of_inputs(name, llm, plan, shapes):
    assert inputs(name, llm, plan) == shapes


def test_latent_attention_has_keys_for_every_head():
    latent = LatentAttention(q_rank=6, kv_rank=5, nope_dim=4, rope_dim=2, value_dim=3)
    llm = replace(LLAMA, latent=latent, qk_norm=False)
    assert inputs("core-attention", llm) == [(8, 4 * (6 + 6 + 3))]


def flops(op, llm, plan):
    from torch.utils.flop_counter import FlopCounterMode

    thunk = thunk_of(Case(op, llm, plan), Tensors(torch, "cpu", "bf16"))
    with FlopCounterMode(display=False) as counter:
        thunk()
    return counter.get_total_flops()


@pytest.mark.parametrize("llm", [GPT, LLAMA, MIXED], ids=lambda llm: llm.name)
@pytest.mark.parametrize("flash", [True, False])
def test_products_do_the_flops_that_they_count(llm, flash):
    """Of a batch of experts one product; the gradient of the weights is added into a buffer."""
    plan = replace(ONE, flash=flash, precision="bf16")
    products = [op for op in operators(llm, plan).values() if op.n]
    assert len(products) >= 12
    for op in map(one_of_batch, products):
        assert flops(op, llm, plan) == op.flops, op.name


def result(name, llm, plan=ONE):
    return thunk_of(Case(operators(llm, plan)[name], llm, plan), MAKE)()


def test_results_have_the_shape_of_what_comes_next():
    assert result("qkv", GPT).shape == (8, 48)
    assert result("qkv-dgrad", GPT).shape == (8, 16)
    assert result("qkv-wgrad", GPT).shape == (48,)  # of the bias; the weights' are accumulated
    assert result("qkv-wgrad", LLAMA) is None
    assert result("head-wgrad", GPT) is None
    assert result("core-attention", LLAMA).shape == (8, 16)
    assert result("permute", MIXED).shape == (16, 16)
    assert result("unpermute", MIXED).shape == (8, 16)
    assert result("mlp-activation", LLAMA).shape == (8, 32)
    assert result("loss", GPT).shape == ()
    assert [g.shape for g in result("loss-backward", GPT)] == [(8, 128)]
    assert result("residual-mlp-backward", GPT).shape == (8, 16)
    half = replace(ONE, precision="bf16")
    made = Tensors(torch, "cpu", "bf16")
    assert thunk_of(Case(operators(GPT, half)["qkv"], GPT, half), made)().dtype == torch.bfloat16


def test_a_router_chooses_two_experts_whose_weights_sum_to_one():
    weights = result("router-topk", MIXED)
    assert weights.shape == (8, 2)
    assert weights.sum(dim=-1).detach().numpy() == pytest.approx(1.0)


def test_a_softmax_sees_no_token_behind():
    weights = result("core-softmax", replace(GPT), replace(ONE, flash=False))
    assert weights.triu(1).abs().max() == 0
    assert weights.sum(dim=-1).detach().numpy() == pytest.approx(1.0, rel=1e-5)


def test_attention_sees_no_token_behind(monkeypatch):
    """The first token's output is its own values: of two heads, each for two heads of queries."""
    made = []

    class Recorder(Tensors):
        def __call__(self, *shape, **options):
            made.append(super().__call__(*shape, **options))
            return made[-1]

    op = operators(LLAMA)["core-attention"]
    out = thunk_of(Case(op, LLAMA, ONE), Recorder(torch, "cpu", "fp32"))()
    values = made[0][0, 24:].reshape(2, 4)
    expected = values.repeat_interleave(2, dim=0).ravel()
    assert out[0].detach().numpy() == pytest.approx(expected.detach().numpy(), rel=1e-5)


@pytest.mark.parametrize(("parameters", "sizes"), [
    (4096, [(64, 16)] * 4), (1040, [(64, 16), (1, 16)]), (1100, [(64, 16), (4, 16)]),
    (5, [(1, 16)]),
])  # fmt: skip
def test_the_optimizer_holds_what_it_is_told(parameters, sizes):
    """In matrices of four times the width, and the rest."""
    made = []

    class Recorder(Tensors):
        def __call__(self, *shape, **options):
            made.append(shape)
            return super().__call__(*shape, **options)

    op = Operator("optimizer", "memory", 0.0, 34.0 * parameters)
    step = thunk_of(Case(op, GPT, ONE, parameters), Recorder(torch, "cpu", "bf16"))
    assert made == sizes
    step()


def test_what_is_not_known_is_not_run():
    op = Operator("unheard-of", "memory", 0.0, 1.0)
    assert thunk_of(Case(op, GPT, ONE), MAKE) is None


# Which operators, and how they are timed.


def test_made_up_models():
    gpt, rotary = made_up(2048, 64)
    assert (gpt.heads, gpt.head_dim, gpt.layers, gpt.vocab) == (16, 128, 8, 32_768)
    assert (gpt.positions, rotary.positions) == ("learned", "rotary")
    assert made_up(1024, 64)[0].heads == 16  # of 64
    assert made_up(2112, 64)[0].head_dim == 64


def test_each_operator_is_timed_once():
    """A product of experts alone; the optimizer for one layer and for all of them."""
    cases = necessary(Shapes(models=made_up(64, 32, 256), precision="fp32"))
    keys = [
        (operator_class(case.op), *(round(x) for x in shape_of(case.op).values())) for case in cases
    ]
    assert len(keys) == len(set(keys))
    assert all(case.op.batch == 1 for case in cases if case.op.part == "gemm")
    gpt = made_up(64, 32, 256)[0]
    held = sorted(case.parameters for case in cases if case.op.name == "optimizer")
    assert gpt.parameters in held
    assert gpt.layer_parameters(3) in held


def clock(repeats, most, operator_s, warmup=3):
    return Clock(
        torch, "cpu", Effort(repeats=repeats, most=most, operator_s=operator_s, warmup=warmup)
    )


@pytest.mark.parametrize(
    ("timer", "warm", "samples"),
    [
        (clock(3, 9, 0.0), 3, 3),  # time is over at once: the fewest
        (clock(3, 9, 60.0), 3, 9),  # there is time: the most
        (clock(3, 3, 0.0, warmup=0), 2, 3),  # each of two copies has run before
    ],
)
def test_runs_before_and_while_it_counts(timer, warm, samples):
    calls = []
    found = timer.samples([lambda: calls.append(0), lambda: calls.append(1)])
    assert len(found) == samples
    assert calls == [i % 2 for i in range(warm)] + [i % 2 for i in range(samples)]
    assert all(seconds >= 0 for seconds in found)


def test_an_operator_may_take_the_room_that_there_is():
    op = operators(GPT)["norm-mlp"]  # 4 x its bytes: inputs, outputs, gradients, temporaries
    case = Case(op, GPT, ONE)
    timer = clock(2, 2, 0.0)
    assert isinstance(measure(case, MAKE, timer, 4 * op.bytes), Timing)
    assert "needs about" in measure(case, MAKE, timer, 4 * op.bytes - 1)
    adam = Operator("optimizer", "memory", 0.0, 34.0 * 64)
    assert isinstance(measure(Case(adam, GPT, ONE, 64), MAKE, timer, 34.0 * 64), Timing)
    unknown = Case(Operator("unheard-of", "memory", 0.0, 1.0), GPT, ONE)
    assert measure(unknown, MAKE, timer, 1e9) == "unheard-of: not timed by this version"


def test_a_timing_is_a_median_and_its_quartiles(monkeypatch):
    case = Case(operators(GPT)["norm-mlp"], GPT, ONE)
    timer = clock(2, 2, 0.0)
    monkeypatch.setattr(timer, "samples", lambda thunks: [1.0, 2.0, 3.0, 4.0, 5.0])
    timing = measure(case, MAKE, timer, 1e9)
    assert (timing.seconds, timing.repeats) == (3.0, 5)
    assert timing.spread == pytest.approx((4.5 - 1.5) / 3)


@pytest.mark.parametrize(
    ("size", "room", "copies"),
    [(1e6, 1e12, 16), (96e6, 1e12, 3), (400e6, 1e12, 1), (1e6, 9e6, 2)],
)
def test_copies_are_visited_until_caches_are_cold(monkeypatch, size, room, copies):
    """192 MB between two visits of one, 16 copies at most, in the room that there is."""
    made = []
    monkeypatch.setattr("paceline.model.profiler.thunk_of", lambda case, make: made.append(1))
    op = Operator("norm-mlp", "memory", 0.0, size)
    measure(Case(op, GPT, ONE), MAKE, clock(2, 2, 0.0), room)
    assert len(made) == copies


@pytest.mark.parametrize(
    ("available", "wanted", "device"),
    [(True, "auto", "cuda"), (True, "cpu", "cpu"), (True, "cuda", "cuda"), (False, "auto", "cpu")],
)
def test_the_device(available, wanted, device):
    here = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: available))
    assert choose_device(here, wanted) == device


# Costs between measured shapes.


def profile(timings, **fields):
    fields = {
        "device": "d", "device_kind": "cuda", "memory_bytes": 1e9, "processors": 8, "torch": "2",
        "cuda": "", "driver": "", "date": "2026-01-01", "precision": "bf16", "launch_s": 1e-6,
        "peak_flops": 1e12, "memory_bandwidth": 1e11, "shapes": {}, "timings": tuple(timings),
    } | fields  # fmt: skip
    return OperatorProfile(**fields)


def norm(size, seconds=1.0):
    op = Operator("norm-mlp", "memory", 0.0, size)
    return Timing(operator=op, seconds=seconds, spread=0.0, repeats=1)


def cost(*timings):
    return ProfileCost(profile(timings), lambda op: op.bytes / 1e6)


@pytest.mark.parametrize(("size", "outside"), [(1.09, 0), (1.11, 1), (1 / 1.09, 0), (1 / 1.11, 1)])
def test_a_tenth_beyond_the_range_is_no_news(size, outside):
    only = cost(norm(1e6))
    only(Operator("norm-mlp", "memory", 0.0, 1e6 * size))
    assert len(only.outside) == outside


def test_rates_stay_between_those_of_the_neighbours():
    """1, 2 and 4 GB/s: at most 4 beyond the largest, at least 1 below the smallest."""
    three = cost(norm(1e9, 1.0), norm(2e9, 1.0), norm(4e9, 1.0))
    assert three(Operator("norm-mlp", "memory", 0.0, 4.3e9)) == pytest.approx(4.3e9 / 4e9)
    assert three(Operator("norm-mlp", "memory", 0.0, 0.95e9)) == pytest.approx(0.95)
    assert three(Operator("norm-mlp", "memory", 0.0, 2e9)) == pytest.approx(1.0)
    middle = three(Operator("norm-mlp", "memory", 0.0, 2**0.5 * 1e9))
    assert middle == pytest.approx(1.0, rel=0.02)


def test_equal_shapes_count_with_their_mean():
    """1 and 4 GB/s: 2 in logarithms."""
    both = cost(norm(1e9, 1.0), norm(1e9, 0.25))
    assert both(Operator("norm-mlp", "memory", 0.0, 1e9)) == pytest.approx(0.5)


def test_a_class_that_was_not_measured_is_scaled_by_the_nearest_amount():
    """The roofline says 1 s a MB; norms of 1 and 100 MB took twice and five times as long."""
    scaled = cost(norm(1e6, 2.0), norm(1e8, 500.0))
    assert scaled(Operator("rotary", "memory", 0.0, 2e6)) == pytest.approx(4.0)
    assert scaled(Operator("rotary", "memory", 0.0, 5e7)) == pytest.approx(250.0)


@pytest.mark.parametrize(("kernels", "one"), [(8, 1), (16, 2), (4, 1)])
def test_one_expert_of_eight(kernels, one):
    op = Operator("expert-up", "gemm", 800.0, 80.0, 1, 1, 1, 8, kernels)
    single = one_of_batch(op)
    assert (single.flops, single.bytes, single.batch, single.kernels) == (100.0, 10.0, 1, one)
    scores = Operator("core-scores", "attention", 800.0, 80.0, 1, 1, 1, 8)
    assert one_of_batch(scores) is scores


def test_the_machine_of_a_profile_reaches_its_peaks():
    cluster = cluster_from_profile(profile([norm(1.0)]))
    efficiency = cluster.efficiency
    shares = ("gemm", "gemm_fp8", "attention", "attention_backward", "batched", "memory")
    assert {getattr(efficiency, share) for share in shares} == {1.0}
    assert (efficiency.kernel_s, efficiency.launch_s) == (0.0, 1e-6)
    assert (cluster.node.gpus, cluster.network.nics, cluster.gpu.sms) == (1, 1, 8)
    assert cluster.node.bandwidth == cluster.network.nic_bandwidth == 1e11
