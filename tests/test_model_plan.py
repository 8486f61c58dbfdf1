"""Plan: its numbers, the layers of its chunks, and every reason against a plan."""

import dataclasses

import pytest

from paceline.errors import PlanError
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan, check, problems

GPT = LLM(name="gpt", layers=8, hidden=64, heads=8, vocab=100, seq_len=32)


def test_numbers_of_a_plan():
    plan = Plan(tp=8, pp=8, dp=16, cp=2, ep=4, vpp=2, global_batch=1536)
    assert plan.gpus == 2048
    assert plan.microbatches == 96
    assert plan.chunks == 16
    assert plan.expert_dp == 8 * 2 * 16 // 4
    assert [plan.stage_of(place) for place in (0, 7, 8, 15)] == [0, 7, 0, 7]


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
    with pytest.raises(PlanError, match="gpt with tp1 pp3 dp1 mb1: layers 8 not divisible by pp 3"):
        Plan(pp=3, global_batch=2).chunk_layers(GPT)


def test_describe():
    plan = Plan(tp=8, pp=8, dp=16, vpp=2, recompute="full", global_batch=1536)
    assert plan.describe() == "tp8 pp8 dp16 mb1 vpp2 full"
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
        ({"schedule": ["1f1b"]}, "schedule must be one of 1f1b, gpipe, interleaved, not"),
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
        ({"pp": 3}, "layers 8 not divisible by pp 3 (or give layers_per_stage)"),
        ({"pp": 2, "layers_per_stage": (3, 4)}, "layers_per_stage adds up to 7, not 8"),
        ({"dp": 2, "micro_batch": 8}, "global_batch 8 not divisible by dp 2 x micro_batch 8 = 16"),
        (
            {"pp": 4, "vpp": 2, "dp": 4},
            "2 microbatches not divisible by pp 4, which the interleaved schedule needs",
        ),
        ({"vpp": 2}, "vpp 2 needs pp > 1"),
        (
            {"pp": 2, "zero": 3},
            "zero 3 with pp 2: DeepSpeed and Megatron shard gradients and parameters only without "
            "a pipeline; use zero 1 or pp 1",
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
        "gpt cannot use tp3 pp3 dp1 mb1: tp 3 x pp 3 x dp 1 x cp 1 = 9 GPUs, not 8; heads 8 not "
        "divisible by tp 3; hidden 64 not divisible by tp 3; ffn 256 not divisible by tp 3; "
        "kv_heads 8 and tp 3: neither divides the other; layers 8 not divisible by pp 3 (or give "
        "layers_per_stage)"
    )
