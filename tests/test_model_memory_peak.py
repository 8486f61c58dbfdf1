"""When a stage's memory peaks, what software adds to it, and what rules change."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import ModelError
from paceline.model.llm import LLM
from paceline.model.memory import stage_parameters
from paceline.model.memory_peak import (
    CONTEXT_BYTES,
    CUBLAS_BYTES,
    MOMENTS,
    NCCL_BYTES,
    PARTS,
    framework_bytes,
    gathered_bytes,
    memory_moments,
    memory_table,
    pipelining_bytes,
    stage_memory,
    workspace_bytes,
)
from paceline.model.memory_rules import MemoryRules
from paceline.model.plan import Plan

LLAMA = LLM(
    name="llama", layers=4, hidden=16, heads=4, kv_heads=2, ffn=32, vocab=128, seq_len=8,
    gated=True, norm="rmsnorm", positions="rotary", bias=False, tied=False,
)  # fmt: skip
WORDS = 128 * 16
MATRICES = 16 * (4 + 2 * 2) * 4 + 16 * 16 + 3 * 16 * 32


def one(**fields):
    return Plan(**({"global_batch": 8} | fields))


def test_one_communicator_of_nccl_has_0_3_gigabytes():
    """16 channels, two connections of each, 9.6 MB a connection."""
    assert NCCL_BYTES == 32 * (4_194_304 + 4_915_200 + 524_288) == pytest.approx(0.308e9, rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "communicators"),
    [
        ({}, 0),
        ({"dp": 2}, 2),  # all, and the replicas
        ({"tp": 2, "pp": 2}, 3),
        ({"dp": 2, "cp": 2}, 4),  # all, replicas, context, both together
        ({"dp": 4, "tp": 2, "ep": 4}, 5),  # all, tp, dp, experts, and their replicas
    ],
)
def test_communicators_by_plan(fields, communicators):
    assert framework_bytes(LLAMA, one(**fields)) == 0.6e9 + communicators * NCCL_BYTES
    assert CONTEXT_BYTES == 0.6e9


def test_overlapped_tensor_parallelism_has_nine_buffers_or_one_outside():
    plan = one(tp=2, sequence_parallel=True, overlap_tp=True)
    stream = 2 * 8 * 16
    assert CUBLAS_BYTES == 5 * 32 * 2**20
    assert workspace_bytes(LLAMA, plan) == CUBLAS_BYTES + 9 * stream
    assert workspace_bytes(LLAMA, replace(plan, overlap_tp=False)) == CUBLAS_BYTES
    fsdp = replace(plan, zero=3, dp=2)
    assert workspace_bytes(LLAMA, fsdp) == CUBLAS_BYTES
    without = framework_bytes(LLAMA, replace(fsdp, overlap_tp=False))
    assert framework_bytes(LLAMA, fsdp) - without == stream


def test_a_stage_is_as_full_as_at_its_fullest_moment():
    for plan in (one(dp=2, zero=3), one(pp=2, recompute="full"), one(dp=2, zero=3, global_batch=2)):
        moments = memory_moments(LLAMA, plan)
        assert moments.shape == (len(MOMENTS), len(PARTS), plan.pp)
        peak = moments.sum(axis=1)
        assert (memory_table(LLAMA, plan).sum(axis=0) == peak.max(axis=0)).all()
        words = [stage.moment for stage in stage_memory(LLAMA, plan)]
        assert words == [MOMENTS[i] for i in peak.argmax(axis=0)]
        stage = stage_memory(LLAMA, plan)[0]
        assert stage.allocated_bytes == stage.total_bytes - stage.framework


def test_fsdp_peaks_at_the_loss_a_layer_or_the_end():
    """Many words; many tokens; parameters alone, of which gradients come with the backward."""
    plan = one(dp=2, zero=3, global_batch=2)
    wide = replace(LLAMA, vocab=65536, seq_len=64, layers=1)
    assert stage_memory(wide, plan)[0].moment == "loss"
    long = replace(LLAMA, vocab=128, seq_len=4096, ffn=512, layers=1)
    deep = replace(LLAMA, layers=400, seq_len=1)
    assert stage_memory(long, replace(plan, recompute="full"))[0].moment == "backward of a layer"
    stage = stage_memory(deep, plan)[0]
    assert stage.moment == "end of the backward"
    assert stage.activations == 0 < stage.gradients
    held = memory_moments(deep, plan)[:, PARTS.index("gradients"), 0]
    assert held.tolist() == [0, 0, stage.gradients]
    twice = memory_moments(deep, replace(plan, global_batch=4))[:, PARTS.index("gradients"), 0]
    assert twice.tolist() == [stage.gradients] * 3


def test_fsdp_under_a_pipeline_keeps_parameters_and_gradients_whole():
    """Bf16 parameters, fp32 gradients; buffers of two microbatches in either direction; logits."""
    plan = one(pp=2, dp=2, zero=3, global_batch=4)
    dense = stage_parameters(LLAMA, plan)[0]
    stream, logits = 2 * 8 * 16, 2 * 8 * 128
    buffers = [2 * stream, 2 * stream + 2 * logits]
    assert pipelining_bytes(LLAMA, plan).tolist() == buffers
    whole = gathered_bytes(LLAMA, plan)
    assert whole[0].tolist() == (2 * dense + buffers).tolist()
    layer = MATRICES + 2 * 16
    assert (whole[1] - whole[0]).tolist() == [2 * 4 * layer] * 2
    gradients = memory_moments(LLAMA, plan)[0, PARTS.index("gradients")]
    assert gradients.tolist() == (4 * dense).tolist()
    single = memory_moments(LLAMA, replace(plan, global_batch=2))[2, PARTS.index("gradients")]
    assert single.tolist() == (4 * dense / 2).tolist()


def parts(adapter_rank=0, **rules):
    plan = one(dp=2, precision="fp8", global_batch=2, adapter_rank=adapter_rank)
    return stage_memory(LLAMA, plan, rules=MemoryRules(**rules))[0]


def test_weights_in_one_byte_but_for_words_and_head():
    saved = parts().parameters - parts(weight_bytes=1).parameters
    assert saved == 4 * (MATRICES + 2 * 16) + 16
    assert parts(weight_bytes=3).parameters > parts().parameters


def test_moments_in_bf16_take_four_bytes_less():
    n = LLAMA.parameters
    assert parts().optimizer - parts(optimizer_bytes=8).optimizer == 4 * n / 2


def test_adapters_have_the_gradients_and_the_optimizer():
    """Rank 2 on qkv (16 to 32) and on the projection (16 to 16), of 4 layers."""
    adapters = 4 * 2 * (16 + 32 + 16 + 16)
    lora = parts(adapter_rank=2)
    assert (lora.gradients, lora.optimizer) == (4 * adapters, 12 * adapters)
    # Inputs of two norms and of an adapter, attention, the activation's two factors, thin ones.
    attention = 2 * 8 * 4 * (2 * (4 + 2) + 2) + 2 * 8 * 16 + 4 * 8 * 4
    layer = 3 * 2 * 8 * 16 + attention + 2 * 2 * 8 * 32 + 2 * 2 * 8 * 2
    logits = lora.activations - 4 * layer
    assert logits in (0, 2 * 2 * 8 * 16 + 4 * 8 * 128)  # at a layer's backward, or at the loss
    narrow = parts(adapter_rank=2, fp8_activation=True)
    assert lora.activations - narrow.activations == 4 * 2 * 8 * 32


def test_core_attention_alone_recomputes_its_output():
    plan = one(recompute="selective", precision="fp8")
    whole = memory_moments(LLAMA, replace(plan, recompute="none"))[0, PARTS.index("activations")]
    core = memory_moments(LLAMA, replace(plan, recompute_modules=("core_attn",)))
    dropped = whole - core[0, PARTS.index("activations")]
    assert dropped.tolist() == [4 * (2 * 8 * 16 + 4 * 8 * 4)]


@pytest.mark.parametrize(
    "fields", [{"reserve": 1.0}, {"reserve": -0.1}, {"loss": "cheap"}, {"selective": "all"}]
)
def test_rules_out_of_range(fields):
    with pytest.raises(ModelError, match=r"reserve|loss|selective"):
        MemoryRules(**fields)


def test_fixed_segments_leave_no_more_than_a_job_had_that_ran_out():
    """Llama 3 70B, tp 4, pp 4, vpp 5 on H100 (mb-70b-0 of the shared table): 58.8 of 80 GB."""
    fixed = MemoryRules(expandable_segments=False)
    assert fixed.room(80e9) == fixed.most_room(80e9) == pytest.approx(58.8e9)
    assert replace(fixed, reserve=0.5).room(80e9) == pytest.approx(40e9)


def test_the_reserve_stays_free():
    assert MemoryRules().most_room(100.0) == pytest.approx(92)
    expandable = MemoryRules(reserve=0, expandable_segments=True)
    assert expandable.room(100.0) == expandable.most_room(100.0) == 100
    assert np.isclose(MemoryRules(reserve=0.2).most_room(80e9), 64e9)


@pytest.mark.parametrize(
    ("segments", "fits"),
    [
        (None, ["yes", "expandable segments", "expandable segments", "no"]),
        (True, ["yes", "yes", "yes", "no"]),
        (False, ["yes", "no", "no", "no"]),
    ],
)
def test_what_the_allocator_is_not_known_to_have_is_said_apart(segments, fits):
    rules = MemoryRules(expandable_segments=segments)
    assert [rules.fit(need, 80.0) for need in (58.7, 58.9, 73.5, 73.7)] == fits
