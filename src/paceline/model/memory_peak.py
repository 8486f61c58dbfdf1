"""A plan's peak memory on each GPU, stage by stage, and its moment in the step.

Memory may peak at three moments of a step (:data:`MOMENTS`): the loss of the newest microbatch, the
backward of the last layer right after it, and the end of the last backward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.model.activations import (
    backward_work,
    end_activations,
    layer_activations,
    vision_activations,
)
from paceline.model.cluster import Cluster
from paceline.model.llm import LLM
from paceline.model.memory import (
    FSDP_GRADIENT,
    adapter_parameters,
    by_stage,
    end_stages,
    ends_in_flight,
    in_flight,
    layer_adapters,
    layer_share,
    stage_parameters,
    stage_states,
    tower_layer_share,
    vision_share,
    word_excess,
)
from paceline.model.memory_rules import DEFAULT_RULES, MemoryRules, is_fsdp
from paceline.model.operators import LayerKind, layer_kind, mtp_kinds
from paceline.model.plan import Plan
from paceline.model.trainer_memory import trainer_bytes
from paceline.model.vision import VisionTower

Array = npt.NDArray[np.float64]

#: CUDA context and loaded kernels of PyTorch; outside its allocator.
CONTEXT_BYTES = 0.6e9

#: Buffers of one NCCL communicator: 16 channels, a ring and a tree connection each, of 4 MiB
#: (Simple), 120 x 640 x 8 x 8 (LL128) and 512 x 8 x 8 x 16 bytes (LL); NCCL 2.27,
#: ``src/include/device.h`` and ``src/init.cc``.
NCCL_BYTES = 16 * 2 * (4 * 2**20 + 120 * 640 * 8 * 8 + 512 * 8 * 8 * 16)

#: cuBLAS's workspace in PyTorch, and Transformer Engine's four, of 32 MiB on Hopper and later
#: (``get_cublas_workspace_size_bytes``).
CUBLAS_BYTES = 5 * 32 * 2**20

#: Number of offloaded layers whose activations are on the GPU at once. While one layer runs,
#: another one is copied (Transformer Engine d0067d0, ``cpu_offload.py``).
OFFLOAD_BUFFERS = 1

#: Number of products of a layer whose tensor-parallel exchange Transformer Engine overlaps. Each
#: has a buffer of a microbatch's whole residual stream. They are forward and input gradient of qkv,
#: projection, fc1 and fc2 (``initialize_ub``), and one shared by both weight gradients.
_OVERLAP_BUFFERS = 9

PARTS = (
    *("parameters", "gradients", "optimizer", "activations", "transient"),
    *("workspace", "framework"),
)
MOMENTS = ("loss", "backward of a layer", "end of the backward")


@dataclass(frozen=True)
class StageMemory:
    """Bytes on a GPU of one stage at its peak.

    Attributes:
        stage: the stage.
        parameters: weights; FSDP2's shards of the master copy.
        gradients: their gradients.
        optimizer: master weights and moments.
        activations: kept for the backward passes of all microbatches in flight.
        transient: temporary tensors: of the loss, or recomputed activations and gradients of a
            layer. Also unsharded parameters and gradients of FSDP2 at that moment.
        workspace: workspaces of cuBLAS, and buffers of overlapped tensor parallelism.
        framework: CUDA and NCCL, outside PyTorch's allocator.
        moment: moment of the peak (one of :data:`MOMENTS`).
    """

    stage: int
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    transient: float
    workspace: float
    framework: float
    moment: str = MOMENTS[0]

    @property
    def total_bytes(self) -> float:
        """The sum of all parts."""
        return float(sum(getattr(self, part) for part in PARTS))

    @property
    def allocated_bytes(self) -> float:
        """Bytes in PyTorch's allocator, as ``torch.cuda.max_memory_allocated`` counts them."""
        return self.total_bytes - self.framework

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by name."""
        return {part: getattr(self, part) for part in PARTS}


def stage_memory(
    llm: LLM, plan: Plan, cluster: Cluster | None = None, rules: MemoryRules = DEFAULT_RULES
) -> list[StageMemory]:
    """Memory of each stage on each of its GPUs. ``cluster`` has no effect at present."""
    moments = memory_moments(llm, plan, rules)
    peaks = moments.sum(axis=1).argmax(axis=0)
    return [
        StageMemory(
            stage=i,
            moment=MOMENTS[peak],
            **dict(zip(PARTS, moments[peak, :, i].tolist(), strict=True)),
        )
        for i, peak in enumerate(peaks.tolist())
    ]


def memory_table(llm: LLM, plan: Plan, rules: MemoryRules = DEFAULT_RULES) -> Array:
    """[part, stage] bytes at each stage's peak, in the order of :data:`PARTS`."""
    stages = stage_memory(llm, plan, rules=rules)
    return np.array([[stage.parts[part] for stage in stages] for part in PARTS])


def memory_moments(llm: LLM, plan: Plan, rules: MemoryRules = DEFAULT_RULES) -> Array:
    """[moment, part, stage] bytes, in the order of :data:`MOMENTS` and :data:`PARTS`."""
    parameters, gradients, optimizer = stage_states(llm, plan, rules)
    held = stage_activations(llm, plan, rules)
    whole = gathered_bytes(llm, plan, rules)
    whole = whole + trainer_bytes(llm, plan, rules, whole)
    outside = workspace_bytes(llm, plan), framework_bytes(llm, plan)
    fixed = [np.full(plan.pp, size) for size in outside]
    early = gradients * holds_gradients(plan)
    rows = (
        (early, held.kept, held.loss + whole[0]),
        (early, held.kept - held.logits, held.work + whole[1]),
        (gradients, np.zeros(plan.pp), whole[2]),
    )
    return np.stack([np.stack([parameters, g, optimizer, a, t, *fixed]) for g, a, t in rows])


def holds_gradients(plan: Plan) -> bool:
    """Whether all gradients exist beside all activations; otherwise they grow while these shrink.

    Megatron-Core allocates one permanent buffer; FSDP2 has no gradients before the first backward.
    """
    return not is_fsdp(plan) or plan.microbatches > 1


def workspace_bytes(llm: LLM, plan: Plan) -> float:
    """Bytes of cuBLAS's workspaces and of Transformer Engine's buffers for tensor parallelism."""
    overlaps = plan.overlap_tp and plan.tp > 1 and not is_fsdp(plan)
    return CUBLAS_BYTES + _OVERLAP_BUFFERS * _stream_bytes(llm, plan) * overlaps


def framework_bytes(llm: LLM, plan: Plan) -> float:
    """Bytes outside PyTorch's allocator: CUDA, NCCL's communicators, symmetric memory.

    There is a communicator of all GPUs, and one for each kind of group. PyTorch's overlapped tensor
    parallelism uses one buffer of symmetric memory.
    """
    groups = [plan.tp, plan.cp, plan.dp, plan.dp * plan.cp * (plan.cp > 1), plan.ep]
    groups += [plan.pp, plan.expert_dp * (plan.ep > 1)]
    groups += [plan.shards, plan.dp * plan.cp // plan.shards] if plan.shards else []
    symmetric = plan.overlap_tp and plan.tp > 1 and is_fsdp(plan)
    communicators = (1 + sum(n > 1 for n in groups)) * (plan.gpus > 1)
    shared = _stream_bytes(llm, plan) * symmetric
    return CONTEXT_BYTES + NCCL_BYTES * communicators + shared


def _stream_bytes(llm: LLM, plan: Plan) -> float:
    """Bytes of a microbatch's residual stream, not split over the tensor-parallel ranks."""
    return plan.element_bytes * plan.micro_batch * llm.seq_len / plan.cp * llm.hidden * llm.streams


@dataclass(frozen=True)
class StageActivations:
    """[stage] bytes of activations.

    Attributes:
        kept: bytes kept for all microbatches in flight, with the logits of one.
        logits: the part of them for one microbatch at the model's last place.
        loss: additional bytes at the peak of its loss.
        work: additional bytes in the backward of a layer: recomputed activations and gradients.
    """

    kept: Array
    logits: Array
    loss: Array
    work: Array


def stage_activations(llm: LLM, plan: Plan, rules: MemoryRules = DEFAULT_RULES) -> StageActivations:
    """Kept and temporary activations."""
    kept_bytes, work_bytes = place_activations(llm, plan, rules)
    kept = by_stage(plan, kept_bytes).mean(axis=0) * in_flight(plan)
    work = by_stage(plan, work_bytes).max(axis=0)
    logits, loss_work = np.zeros(plan.pp), np.zeros(plan.pp)
    first, last, loss = end_activations(llm, plan, rules)
    of_first, of_last = ends_in_flight(plan)
    firsts, lasts = end_stages(plan)
    kept[firsts] += first * of_first
    kept[lasts] += last * of_last
    logits[lasts], loss_work[lasts] = last, loss
    return StageActivations(kept, logits, loss_work, work)


def place_activations(
    llm: LLM, plan: Plan, rules: MemoryRules = DEFAULT_RULES
) -> tuple[Array, Array]:
    """[place] bytes that its layers keep of a microbatch, and temporary bytes of a layer.

    :func:`end_activations` has the tensors of the model's ends.
    """
    kept_bytes, work_bytes = np.zeros(plan.chunks), np.zeros(plan.chunks)
    of_kind: dict[LayerKind, tuple[float, float]] = {}
    for place, layers in enumerate(plan.chunk_layers(llm)):
        for i in layers:
            kind = layer_kind(llm, i)
            if kind not in of_kind:
                kept, again = layer_activations(llm, kind, plan, rules)
                of_kind[kind] = kept, again + backward_work(llm, kind, plan, rules)
            kept_bytes[place] += of_kind[kind][0]
            work_bytes[place] = max(work_bytes[place], of_kind[kind][1])
            if i < plan.offload_layers:
                kept_bytes[place] -= of_kind[kind][0]
    if plan.offload_layers:
        kept_bytes[0] += OFFLOAD_BUFFERS * max(kept for kept, _ in of_kind.values())
    for kind in mtp_kinds(llm):
        kept_bytes[-1] += llm.mtp_layers * layer_activations(llm, kind, plan, rules)[0]
    work_bytes[0] = max(work_bytes[0], vision_excess(llm, plan, kept_bytes[0], rules))
    return kept_bytes, work_bytes


def vision_excess(llm: LLM, plan: Plan, kept: float, rules: MemoryRules = DEFAULT_RULES) -> float:
    """Bytes that a vision tower's backward needs beyond the ``kept`` bytes that are free by then.

    The ``kept`` bytes are those of the first place for the same microbatch.
    """
    return max(0.0, vision_activations(llm, plan, rules)[1] - kept)


def gathered_bytes(llm: LLM, plan: Plan, rules: MemoryRules = DEFAULT_RULES) -> Array:
    """[moment, stage] bytes of unsharded parameters and gradients of FSDP2.

    Without a pipeline (torchtitan, ``apply_fsdp``), embedding and head stay gathered, and a vision
    tower's parameters outside its layers. At the loss the last layer is gathered, too. In a
    backward two layers are gathered, one of them also in its flat buffer. There are also a layer's
    gradient and the fp32 buffer of another's reduction. At the end, embedding and head are reduced.
    Under a pipeline all of a stage stays gathered. Frozen weights have no gradients; only their
    adapters have.
    """
    whole = np.zeros((len(MOMENTS), plan.pp))
    if not is_fsdp(plan) or plan.shard_ranks == 1:
        return whole
    places = [len(held) for held in plan.chunk_layers(llm)]
    ends_of = {llm.layer_blocks(i) for i in (0, llm.layers - 1)} | set(llm.pattern)
    layers = [sum(layer_share(llm, blocks, plan)) for blocks in ends_of]
    most, weight = max(layers), plan.element_bytes
    adapters = layer_adapters(llm, plan)
    rows, beside = llm.padded_vocab(plan.tp) * llm.hidden / plan.tp, word_excess(llm, plan, rules)
    if isinstance(llm.vision, VisionTower):
        of_layer = tower_layer_share(llm, plan)
        beside += vision_share(llm, plan)[0] - llm.vision.layers * of_layer
        most = max(most, of_layer)
    trained = adapters or most  # of a layer's
    most += adapters
    if plan.pp > 1:
        dense, expert = stage_parameters(llm, plan)
        whole += weight * (dense + expert) + pipelining_bytes(llm, plan)
        whole += weight * by_stage(plan, adapter_parameters(llm, plan)).sum(axis=0)
        whole[1:] += 2 * FSDP_GRADIENT * trained * (max(places) > 0)
        return whole
    ends = rows * (1 if llm.tied else 2) + beside
    whole += weight * ends
    whole[0] += weight * most
    whole[1] += 3 * weight * most + (weight + FSDP_GRADIENT) * trained
    if not plan.adapter_rank:
        whole[1] += weight * rows
        whole[2] += (weight + FSDP_GRADIENT) * ends
    return whole


def pipelining_bytes(llm: LLM, plan: Plan) -> Array:
    """[stage] bytes that ``torch.distributed.pipelining`` holds over the whole step.

    There is a buffer per chunk, microbatch and direction for received tensors. The last stage keeps
    the logits of all microbatches (torch 2.13, ``stage.py``).
    """
    split = plan.tp if plan.sequence_parallel else 1
    held = np.full(plan.pp, 2.0 * plan.vpp)
    held[0] -= 1  # tokens arrive here, not activations
    held[-1] -= 1  # the last stage receives no gradient
    buffers: Array = held * plan.microbatches * _stream_bytes(llm, plan) / split
    logits = plan.micro_batch * llm.seq_len / plan.cp * llm.padded_vocab(plan.tp) / plan.tp
    buffers[-1] += plan.element_bytes * plan.microbatches * logits
    return buffers
