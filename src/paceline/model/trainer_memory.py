"""Buffers that torchtitan, DeepSpeed and Accelerate hold beside a model's states.

Read in torchtitan v0.2.2 (``models/llama3/infra/parallelize.py``), Accelerate v1.14.0
(``utils/dataclasses.py``), torch 2.13 (DDP, FSDP2) and DeepSpeed v0.19.5 (``zero/config.py``,
``zero/stage_1_and_2.py``, ``zero/stage3.py``, ``bf16_optimizer.py``). All of their plans that have
such buffers are without a pipeline.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.model.llm import LLM
from paceline.model.memory import (
    FSDP_GRADIENT,
    adapter_parameters,
    frozen_parameters,
    layer_adapters,
    layer_share,
    place_parameters,
    word_excess,
)
from paceline.model.memory_rules import MemoryRules, is_fsdp
from paceline.model.plan import Plan

Array = npt.NDArray[np.float64]

#: DeepSpeed's defaults, in elements: ``reduce_bucket_size``, ``stage3_max_live_parameters`` and
#: ``sub_group_size``.
BUCKET = 5e8
LIVE = 1e9
SUB_GROUP = 1e9

#: Bytes of an element of DDP's buckets. It copies gradients into them, unless
#: ``gradient_as_bucket_view`` is set (``False`` by default).
DDP_BUCKET = 4.0


def trainer_bytes(
    llm: LLM,
    plan: Plan,
    rules: MemoryRules,
    gathered: Array,
    places: tuple[Array, Array] | None = None,
) -> Array:
    """[moment, stage] bytes of the trainer's buffers; 0 without a trainer.

    Args:
        llm: the model.
        plan: the plan.
        rules: memory rules of the software.
        gathered: [moment, stage] bytes of unsharded parameters and gradients of FSDP2.
        places: the result of ``place_parameters``, if already known.
    """
    none = np.zeros_like(gathered)
    if rules.trainer is None or plan.pp > 1:
        return none
    dense, expert = place_parameters(llm, plan) if places is None else places
    whole = float(dense.sum() + expert.sum()) + word_excess(llm, plan, rules)
    trained = whole - float(frozen_parameters(llm, plan).sum())
    if plan.adapter_rank:
        trained = float(adapter_parameters(llm, plan).sum())
    if rules.trainer == "deepspeed":
        layer = max(sum(layer_share(llm, blocks, plan)) for blocks in _blocks(llm))
        return none + _deepspeed(plan, whole, trained, layer, gathered[:, 0])[:, None]
    if plan.zero == 0 and plan.dp * plan.cp > 1:
        return none + DDP_BUCKET * trained
    if plan.zero == 2 and plan.shard_ranks > 1:
        return none + _unsharded_gradients(llm, plan, rules)[:, None]
    return none


def _blocks(llm: LLM) -> set[str]:
    return {llm.layer_blocks(i) for i in (0, llm.layers - 1)} | set(llm.pattern)


def _unsharded_gradients(llm: LLM, plan: Plan, rules: MemoryRules) -> Array:
    """[moment] bytes of gradients that FSDP2 with gathered parameters has not reduced yet.

    In a backward these are a layer's, beside the buffer of another's reduction, and the head's. At
    the end they are those of embedding and head.
    """
    weight = plan.element_bytes
    adapters = layer_adapters(llm, plan)
    layer = adapters or max(sum(layer_share(llm, blocks, plan)) for blocks in _blocks(llm))
    backward, end = (weight + FSDP_GRADIENT) * layer, 0.0
    if not adapters:
        rows = llm.padded_vocab(plan.tp) * llm.hidden / plan.tp
        ends = rows * (1 if llm.tied else 2) + word_excess(llm, plan, rules)
        backward += weight * rows
        end = (weight + FSDP_GRADIENT) * ends
    return np.array([0.0, backward, end])


def _deepspeed(plan: Plan, whole: float, trained: float, layer: float, gathered: Array) -> Array:
    """[moment] bytes of DeepSpeed's buffers.

    ZeRO 1 with bf16 is its ``BF16_Optimizer``: gradients in bf16 stay beside those in fp32, and are
    zeroed, not freed. ZeRO 2 copies gradients into one bucket, or two where reductions overlap. At
    the end of the backward it holds its part of the gradients in fp32 twice. ZeRO 3 holds shards of
    the weights in 16 bits beside the master copy, gradients from the start, and one bucket.
    Gathered parameters stay up to :data:`LIVE`, beside those of the present layer. The step has a
    sub-group's gradients once more.
    """
    element, ranks = float(plan.element_bytes), plan.shard_ranks
    bucket = element * BUCKET
    if is_fsdp(plan):
        alive = element * min(whole, LIVE + layer)
        early = bucket + element * (element < 4) * whole / ranks
        first = FSDP_GRADIENT * trained / ranks * (plan.microbatches == 1)
        live = early + first + np.maximum(0.0, alive - gathered[:2])
        end = early + FSDP_GRADIENT * min(SUB_GROUP, trained / ranks)
        return np.array([*live, end])
    if plan.zero == 2 or (plan.zero == 1 and plan.precision == "fp16"):
        buckets = bucket * (2 if plan.overlap_dp else 1)
        share = FSDP_GRADIENT * trained / ranks * (plan.zero == 2)
        return np.array([buckets, buckets, buckets + share])
    if plan.zero == 1 and element < 4:
        kept = element * trained
        early = kept * (plan.microbatches > 1)
        return np.array([early, early, kept])
    return np.zeros(len(gathered))
