"""Plan: its numbers, the layers of its chunks, and every reason against a plan."""

import dataclasses

import pytest

from paceline.errors import PlanError
from paceline.model.blocks import LatentAttention, MoE
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan
from paceline.model.plan_check import check, problems

GPT = LLM(name="gpt", layers=8, hidden=64, heads=8, vocab=100, seq_len=32)


def test_numbers_of_a_plan():
    plan = Plan(tp=8, pp=8, dp=16, cp=2, ep=4, vpp=2, global_batch=1536)
    assert plan.gpus == 2048
    assert plan.microbatches == 96
    assert plan.chunks == 16
    assert plan.expert_dp == 8 * 2 * 16 // 4
    assert [plan.stage_of(place) for place in (0, 7, 8, 15)] == [0, 7, 0, 7]


@pytest.mark.parametrize("field", ["dp", "micro_batch", "global_batch"])
def test_numbers_beyond_any_plan_are_refused(field):
    with pytest.raises(PlanError, match=f"the plan's {field} is .*beyond any real plan"):
        Plan(**{"global_batch": 2, field: 1 << 60})


def test_more_chunks_make_the_schedule_interleaved():
    assert Plan(pp=2, global_batch=2).schedule == "1f1b"
    assert Plan(pp=2, vpp=2, global_batch=2).schedule == "interleaved"
    with pytest.raises(PlanError, match="gpipe has one chunk per stage, not vpp 2"):
        Plan(pp=2, vpp=2, global_batch=2, schedule="gpipe")
    with pytest.raises(PlanError, match="the interleaved schedule needs vpp > 1"):
        Plan(pp=2, global_batch=2, schedule="interleaved")


def test_layers_of_the_chunks():
    even = Plan(pp=2, vpp=2, global_batch=2)
    assert even.chunk_layers(GPT) == (range(2), range(2, 4), range(4, 6), range(6, 8))
    uneven = Plan(pp=3, global_batch=2, layers_per_stage=(3, 3, 2))
    assert uneven.chunk_layers(GPT) == (range(3), range(3, 6), range(6, 8))
    with pytest.raises(
        PlanError, match="gpt with tp1 pp3 dp1 mb1 zero1: layers 8 not divisible by pp 3"
    ):
        Plan(pp=3, global_batch=2).chunk_layers(GPT)


def test_describe():
    plan = Plan(tp=8, pp=8, dp=16, vpp=2, recompute="full", global_batch=1536)
    assert plan.describe() == "tp8 pp8 dp16 mb1 vpp2 full zero1"
    other = Plan(
        dp=4, cp=2, ep=2, micro_batch=4, zero=3, precision="fp8", schedule="gpipe", global_batch=16
    )
    assert other.describe() == "tp1 pp1 dp4 cp2 ep2 mb4 gpipe zero3 fp8"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tp": 0}, "the plan's tp must be a whole number >= 1, not 0"),
        ({"dp": 2.0}, "the plan's dp must be a whole number >= 1, not 2.0"),
        ({"global_batch": True}, "the plan's global_batch must be a whole number >= 1, not True"),
        ({"zero": 4}, "the plan's zero must be 0 .* not 4"),
        ({"recompute": "ful"}, "recompute must be .*, not 'ful' .did you mean full"),
        ({"precision": "BF16"}, "precision must be .*, not 'BF16' .did you mean bf16"),
        (
            {"schedule": ["1f1b"]},
            "schedule must be one of 1f1b, gpipe, interleaved, zb-h1, zbv, dualpipev, dualpipe",
        ),
        ({"flash": 1}, "the plan's flash must be true or false, not 1"),
        ({"grad_bytes": 3}, "the plan's grad_bytes must be 2 or 4"),
        ({"bucket_bytes": 0}, "the plan's bucket_bytes must be a positive number or nothing"),
        ({"bucket_bytes": float("nan")}, "the plan's bucket_bytes must be a positive number"),
        ({"layers_per_stage": (1, 1)}, "layers_per_stage has 2 entries, not pp 1 x vpp 1 = 1"),
        ({"layers_per_stage": (-1,)}, "layers_per_stage must be whole numbers >= 0"),
    ],
)
def test_bad_fields_are_named(fields, words):
    with pytest.raises(PlanError, match=words):
        Plan(**({"global_batch": 8} | fields))


def test_a_legal_plan_has_no_problems():
    plan = Plan(
        tp=2, pp=2, dp=2, cp=2, vpp=2, global_batch=8, sequence_parallel=True, overlap_tp=True
    )
    assert problems(plan, GPT, 16) == []
    check(plan, GPT, 16)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tp": 16, "dp": 4}, "heads 8 not divisible by tp 16"),
        ({"pp": 3}, "layers 8 not divisible by pp 3 (or give layers_per_stage: --layers N,N,...)"),
        ({"pp": 2, "layers_per_stage": (3, 4)}, "layers_per_stage adds up to 7, not 8"),
        ({"dp": 2, "micro_batch": 8}, "global_batch 8 not divisible by dp 2 x micro_batch 8 = 16"),
        (
            {"pp": 4, "vpp": 2, "dp": 4},
            "2 microbatches not divisible by pp 4, which the interleaved schedule needs",
        ),
        ({"vpp": 2}, "vpp 2 needs pp > 1"),
        (
            {"pp": 2, "zero": 2},
            "zero 2 with pp 2: no framework shards gradients alone under a pipeline; use zero 1, "
            "or zero 3 (FSDP2, which keeps both whole over the step)",
        ),
        ({"cp": 32}, "seq_len 32 not divisible by 2 x cp 32"),
        ({"cp": 2, "flash": False}, "cp > 1 needs flash attention"),
        ({"sequence_parallel": True}, "sequence_parallel needs tp > 1"),
        ({"tp": 2, "overlap_tp": True}, "overlap_tp needs sequence_parallel"),
        ({"dp": 2, "ep": 2}, "ep 2 but the model has no experts"),
        ({"tp": 8, "precision": "fp8"}, "fp8 needs hidden per rank (8) divisible by 16"),
    ],
)
def test_each_reason(fields, reason):
    assert problems(Plan(**({"global_batch": 8} | fields)), GPT) == [reason]


def test_key_and_value_heads_are_split_or_repeated():
    grouped = dataclasses.replace(GPT, hidden=96, ffn=384, heads=24, kv_heads=6, head_dim=4)
    assert problems(Plan(tp=3, global_batch=1), grouped) == []
    assert problems(Plan(tp=12, global_batch=1), grouped) == []
    assert problems(Plan(tp=4, global_batch=1), grouped) == [
        "kv_heads 6 and tp 4: neither divides the other"
    ]


def test_experts_spread_over_the_ranks_of_a_stage():
    mixtral = llm_preset("mixtral-8x7b")
    assert problems(Plan(tp=2, dp=4, ep=8, global_batch=4), mixtral) == []
    assert problems(Plan(dp=4, ep=8, global_batch=4), mixtral) == [
        "tp x cp x dp = 4 ranks not divisible by ep 8"
    ]
    assert problems(Plan(dp=3, ep=3, global_batch=3), mixtral) == [
        "experts 8 not divisible by ep 3"
    ]


def test_the_degrees_multiply_to_the_gpus():
    assert problems(Plan(tp=2, dp=2, global_batch=2), GPT, 8) == [
        "tp 2 x pp 1 x dp 2 x cp 1 = 4 GPUs, not 8"
    ]


def test_check_names_all_reasons_in_one_line():
    with pytest.raises(PlanError) as caught:
        check(Plan(tp=3, pp=3, global_batch=8), GPT, 8)
    assert str(caught.value) == (
        "gpt cannot use tp3 pp3 dp1 mb1 zero1: tp 3 x pp 3 x dp 1 x cp 1 = 9 GPUs, not 8; heads 8 "
        "not divisible by tp 3; hidden 64 not divisible by tp 3; ffn 256 not divisible by tp 3; "
        "kv_heads 8 and tp 3: neither divides the other; layers 8 not divisible by pp 3 (or give "
        "layers_per_stage: --layers N,N,...)"
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vpp": 2, "pp": 2}, "tp1 pp2 dp1 mb1 vpp2 zero1"),
        ({"recompute": "selective", "zero": 0}, "tp1 pp1 dp1 mb1 selective zero0"),
        ({"tp": 2, "sequence_parallel": True}, "tp2 pp1 dp1 mb1 zero1 sp"),
        ({"pp": 2, "layers_per_stage": (3, 5)}, "tp1 pp2 dp1 mb1 zero1 uneven"),
        ({"pp": 2, "layers_per_stage": (4, 4)}, "tp1 pp2 dp1 mb1 zero1"),
    ],
)
def test_describe_leaves_most_defaults_out(fields, words):
    assert Plan(**({"global_batch": 8} | fields)).describe() == words


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("fp16", 2), ("bf16", 2), ("fp8", 2)])
def test_bytes_of_an_activation(precision, size):
    assert Plan(global_batch=1, precision=precision).element_bytes == size


@pytest.mark.parametrize(
    "fields",
    [
        {"cp": 2},  # 32 tokens over 2 x 2 pieces
        {"cp": 16},
        {"tp": 8, "cp": 4, "sequence_parallel": True},  # 32 tokens over 32 ranks
        {"pp": 2, "zero": 1},
        {"zero": 3},
        {"pp": 2, "vpp": 2, "global_batch": 4},
        {"pp": 2, "layers_per_stage": (0, 8)},
        {"tp": 4, "precision": "fp8"},  # hidden 16 a rank, ffn 64
        {"tp": 1, "overlap_tp": True},
        {"global_batch": 1, "grad_bytes": 2, "bucket_bytes": 1.0},
    ],
)
def test_plans_at_their_bounds_are_legal(fields):
    assert problems(Plan(**({"global_batch": 16} | fields)), GPT) == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"tp": 8, "cp": 8, "sequence_parallel": True},
            "seq_len 32 not divisible by cp 8 x tp 8, which sequence_parallel needs",
        ),
        ({"pp": 3, "vpp": 2, "global_batch": 3}, "layers 8 not divisible by pp 3 x vpp 2"),
        ({"pp": 2, "zero": 2}, "zero 2 with pp 2"),
        ({"pp": 2, "layers_per_stage": (8, 1)}, "layers_per_stage adds up to 9, not 8"),
    ],
)
def test_more_reasons(fields, reason):
    [said] = problems(Plan(**({"global_batch": 16} | fields)), GPT)
    assert said.startswith(reason)


def test_a_short_sequence_over_tensor_parallel_ranks():
    short = dataclasses.replace(GPT, seq_len=12, max_positions=12)
    plan = Plan(tp=8, sequence_parallel=True, global_batch=1)
    assert problems(plan, short) == [
        "seq_len 12 not divisible by tp 8, which sequence_parallel needs"
    ]


MIXED = dataclasses.replace(
    GPT, moe=MoE(experts=4, top_k=2, ffn=24, shared_experts=1, shared_ffn=20)
)


def test_widths_of_a_mixture():
    """Where all layers are mixtures, the dense width is nowhere; the shared one splits over tp."""
    assert problems(Plan(tp=8, global_batch=1), MIXED) == ["shared_ffn 20 not divisible by tp 8"]
    odd = dataclasses.replace(MIXED, ffn=100)
    assert problems(Plan(tp=8, global_batch=1), odd) == ["shared_ffn 20 not divisible by tp 8"]
    every_other = dataclasses.replace(odd, moe=dataclasses.replace(MIXED.moe, every=2))
    assert "ffn 100 not divisible by tp 8" in problems(Plan(tp=8, global_batch=1), every_other)
    assert problems(Plan(tp=4, precision="fp8", global_batch=1), MIXED) == [
        "fp8 needs shared_ffn per rank (5) divisible by 16",
        "fp8 needs expert ffn per rank (24) divisible by 16",
    ]


def test_latent_attention_has_no_key_value_heads_to_split():
    latent = LatentAttention(q_rank=None, kv_rank=8, nope_dim=4, rope_dim=4, value_dim=8)
    grouped = dataclasses.replace(GPT, hidden=96, heads=24, kv_heads=6, head_dim=4, ffn=96)
    assert problems(Plan(tp=4, global_batch=1), grouped) != []
    assert problems(Plan(tp=4, global_batch=1), dataclasses.replace(grouped, latent=latent)) == []


@pytest.mark.parametrize("word", ["zzz", 3])
def test_a_word_like_no_other_gets_no_hint(word):
    with pytest.raises(PlanError) as caught:
        Plan(global_batch=1, recompute=word)
    assert "did you mean" not in str(caught.value)
    assert caught.value.fields == ("recompute",)


@pytest.mark.parametrize("value", [True, -1, 4, "1"])
def test_only_four_stages_of_zero(value):
    with pytest.raises(PlanError, match="the plan's zero must be"):
        Plan(global_batch=1, zero=value)


@pytest.mark.parametrize("value", [(1.0,), (True,), "1", 1])
def test_layers_of_stages_are_whole_numbers(value):
    with pytest.raises(PlanError, match="layers_per_stage must be whole numbers"):
        Plan(global_batch=1, layers_per_stage=value)


def test_lists_of_layers_become_tuples():
    assert Plan(global_batch=1, layers_per_stage=[8]).layers_per_stage == (8,)
