"""What a plan needs of each GPU's memory, stage by stage.

Activations follow Korthikanti et al. 2022, "Reducing activation recomputation in large transformer
models", tensor by tensor, so that models it does not cover (gated MLPs, grouped-query attention,
experts, fused attention) are counted by the same rules; for its models the sums equal its Table 2
and Equations 1 to 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.model.cluster import Cluster
from paceline.model.llm import LLM
from paceline.model.operators import LayerKind, layer_kind
from paceline.model.plan import Plan

Array = npt.NDArray[np.float64]

#: CUDA context, libraries, NCCL's buffers and the allocator's unused rest. PyTorch's CUDA context
#: alone is 0.5 to 0.8 GB, NCCL's channels 1 GB and more in hybrid-parallel jobs.
FRAMEWORK_BYTES = 3e9

#: Master copy and two moments of Adam in fp32 (Rajbhandari et al. 2020, ZeRO, 3.1: K = 12).
OPTIMIZER_BYTES = 12
PARTS = ("parameters", "gradients", "optimizer", "activations", "transient", "framework")


@dataclass(frozen=True)
class StageMemory:
    """Bytes on a GPU of one stage at its peak.

    Attributes:
        stage: which.
        parameters: weights.
        gradients: their gradients.
        optimizer: master weights and moments.
        activations: kept for the backward passes of all microbatches in flight.
        transient: of the layer at work: recomputed activations, gathered parameters, logits.
        framework: CUDA, NCCL, allocator.
    """

    stage: int
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    transient: float
    framework: float

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return float(sum(getattr(self, part) for part in PARTS))

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by name."""
        return {part: getattr(self, part) for part in PARTS}


def stage_memory(llm: LLM, plan: Plan, cluster: Cluster | None = None) -> list[StageMemory]:
    """What each stage needs on each of its GPUs; ``cluster`` changes nothing today."""
    table = memory_table(llm, plan)
    return [StageMemory(i, *(float(x) for x in table[:, i])) for i in range(plan.pp)]


def memory_table(llm: LLM, plan: Plan) -> Array:
    """[part, stage] bytes, in the order of :data:`PARTS`."""
    dense, expert = stage_parameters(llm, plan)
    states = model_states(plan, dense, expert)
    activations, transient = stage_activations(llm, plan)
    framework = np.full(plan.pp, FRAMEWORK_BYTES)
    return np.stack([*states, activations, transient, framework])


def place_parameters(llm: LLM, plan: Plan) -> tuple[Array, Array]:
    """[place] parameters on one GPU: those that all DP ranks share, and those of experts.

    Embedding and output projection lie on the first and last place, split over the TP ranks; tied
    ones are held twice when these are two stages.
    """
    dense, expert = np.zeros(plan.chunks), np.zeros(plan.chunks)
    of_kind = {}
    for place, layers in enumerate(plan.chunk_layers(llm)):
        for i in layers:
            moe = llm.is_moe_layer(i)
            if moe not in of_kind:
                of_kind[moe] = _layer_parameters(llm, moe, plan)
            dense[place] += of_kind[moe][0]
            expert[place] += of_kind[moe][1]
    rows = llm.padded_vocab(plan.tp) * llm.hidden / plan.tp
    learned = llm.embedding_parameters - llm.vocab * llm.hidden
    dense[0] += rows + learned
    if not (llm.tied and ends_meet(plan)):
        dense[-1] += rows
    dense[-1] += llm.final_norm_parameters + llm.mtp_parameters / plan.tp * (not llm.moe)
    if llm.moe and llm.mtp_layers:
        layer = _layer_parameters(llm, llm.is_moe_layer(llm.layers - 1), plan)
        dense[-1] += llm.mtp_layers * (layer[0] + 2 * llm.hidden**2 / plan.tp)
        expert[-1] += llm.mtp_layers * layer[1]
    return dense, expert


def _layer_parameters(llm: LLM, moe: bool, plan: Plan) -> tuple[float, float]:
    """(shared by all DP ranks, of experts) on one GPU of a layer."""
    kv_copies = max(1, plan.tp // llm.kv_heads) if llm.latent is None else 1
    matmul = llm.attention_matmul
    if kv_copies > 1:
        matmul += 2 * (kv_copies - 1) * llm.kv_heads * llm.head_dim * llm.hidden
    small = llm.attention_parameters - llm.attention_matmul + llm.norm_parameters
    if moe:
        shared = llm.shared_expert_parameters / plan.tp + llm.router_parameters
        experts = (llm.moe.experts if llm.moe else 0) * llm.expert_parameters / plan.ep
        return matmul / plan.tp + small + shared, experts
    return matmul / plan.tp + small + llm.dense_ffn_parameters / plan.tp, 0.0


def stage_parameters(llm: LLM, plan: Plan) -> tuple[Array, Array]:
    """[stage] parameters on one GPU: those that all DP ranks share, and those of experts."""
    dense, expert = place_parameters(llm, plan)
    return by_stage(plan, dense).sum(axis=0), by_stage(plan, expert).sum(axis=0)


def by_stage(plan: Plan, values: Array) -> Array:
    """[..., chunk, stage] values of the chunks that a stage holds, from [..., place]."""
    held: Array = values[..., np.array(plan.places)]
    return held


def ends_meet(plan: Plan) -> bool:
    """Whether each stage with the model's first chunk has its last one, too: one of all, or a V."""
    return plan.chunks == 1 or plan.places[0][0] == plan.chunks - 1 - plan.places[-1][0]


def model_states(plan: Plan, dense: Array, expert: Array) -> tuple[Array, Array, Array]:
    """[stage] bytes of parameters, gradients and optimizer (ZeRO, 3 and 5)."""
    ranks = plan.dp * plan.cp * plan.copies
    expert_ranks = max(1, ranks * plan.tp // plan.ep)
    weight = plan.element_bytes
    optimizer = 8 if plan.precision == "fp32" else OPTIMIZER_BYTES

    def bytes_of(bytes_each: float, sharded: bool) -> Array:
        if not sharded:
            return bytes_each * (dense + expert)
        return bytes_each * (dense / ranks + expert / expert_ranks)

    return (
        bytes_of(weight, plan.zero >= 3),
        bytes_of(plan.grad_bytes, plan.zero >= 2),
        bytes_of(optimizer, plan.zero >= 1),
    )


def layer_activations(llm: LLM, kind: LayerKind, plan: Plan) -> tuple[float, float]:
    """Bytes that one layer keeps of one microbatch, and those recomputed while it is at work."""
    tokens = plan.micro_batch * llm.seq_len / plan.cp
    t = plan.tp
    split = t if plan.sequence_parallel else 1
    element = plan.element_bytes
    wide = element * tokens * llm.hidden  # one tensor of the residual stream
    linear_input = wide / 2 if plan.precision == "fp8" else wide  # as an input of a linear
    dropout = llm.bias and llm.norm == "layernorm"
    mask = tokens * llm.hidden if dropout else 0.0
    # Inputs of the two norms and of the two blocks, masks of the two residual dropouts.
    fixed = (2 * wide + 2 * linear_input + 2 * mask) / split
    heads = llm.heads / t
    kv_heads = max(1.0, llm.kv_heads / t) if llm.latent is None else heads
    core = element * tokens * (heads * llm.qk_dim + kv_heads * (llm.qk_dim + llm.value_dim))
    out = element * tokens * heads * llm.value_dim
    scores = 0.0
    if plan.flash:
        core += 4 * tokens * heads
    else:
        elements = plan.micro_batch * llm.heads / t * float(llm.seq_len) ** 2
        scores = elements * (2 * element + 1 if dropout else element)
    if llm.latent is not None:
        core += element * tokens * ((llm.latent.q_rank or 0) + llm.latent.kv_rank)
    per_width = (3 if llm.gated else 2) * element
    if kind.moe and llm.moe is not None:
        moe = llm.moe
        routed = tokens / t * moe.top_k * min(1.0, moe.capacity or 1.0)
        mlp = routed * (2 * element * llm.hidden + per_width * moe.ffn)
        mlp += tokens * per_width * moe.shared_ffn / t + 4 * tokens / t * moe.experts
        cheap = element * (routed * moe.ffn + tokens * moe.shared_ffn / t)
    else:
        mlp = tokens * per_width * llm.ffn / t
        cheap = element * tokens * llm.ffn / t  # what the activation gives
    cheap += 2 * linear_input / split  # what the norms give
    full = fixed + core + out + scores + mlp
    if plan.recompute == "full":
        return wide / split, full
    if plan.recompute == "selective":
        recomputed = cheap if plan.flash else scores
        return full - recomputed, recomputed
    return full, 0.0


def in_flight(plan: Plan) -> Array:
    """[stage] chunks of microbatches whose activations a stage holds at once, at its peak.

    1F1B: as many as there are stages from it on (Korthikanti et al., 4.2.1, for the first);
    interleaved: L (1 + (p - 1) / (p v)) layers' worth (4.2.3); GPipe: all. Where the backward is
    split, until the gradient of the weights is done, as the orders of ``graph.zero_bubble`` have it
    (ZB-H1: what the first stage of 1F1B holds, on all stages; DualPipe: PP + 1, by its README).
    """
    p, v, m = plan.pp, plan.vpp, plan.microbatches
    stage = np.arange(p)
    if plan.splits_backward:
        return split_in_flight(plan.schedule, p, m)
    if plan.schedule == "gpipe":
        return np.full(p, float(m * v))
    ahead = 2 * (p - stage - 1) + (v - 1) * p + 1 if v > 1 else p - stage
    if v > 1 and m == p:
        ahead = np.full(p, m * v)
    return np.minimum(ahead, m * v).astype(np.float64)


def split_in_flight(schedule: str, p: int, m: int) -> Array:
    """[stage] the same where the backward is split; a test counts the orders."""
    stage = np.arange(p)
    held = {
        "zb-h1": np.full(p, min(p, m)),
        "zbv": np.minimum(min(2 * p, 2 * m), m + 1 + stage),
        "dualpipev": np.full(p, 2 * p + 1),
        "dualpipe": np.full(p, p + 1),
    }[schedule]
    return held.astype(np.float64)


def stage_activations(llm: LLM, plan: Plan) -> tuple[Array, Array]:
    """[stage] bytes of activations kept, and of the work at hand."""
    kept_bytes, work_bytes = np.zeros(plan.chunks), np.zeros(plan.chunks)
    of_kind: dict[LayerKind, tuple[float, float]] = {}
    for place, layers in enumerate(plan.chunk_layers(llm)):
        for i in layers:
            kind = layer_kind(llm, i)
            if kind not in of_kind:
                of_kind[kind] = layer_activations(llm, kind, plan)
            kept_bytes[place] += of_kind[kind][0]
            work_bytes[place] = max(work_bytes[place], of_kind[kind][1])
    kept_bytes[-1] += llm.mtp_layers * of_kind[layer_kind(llm, llm.layers - 1)][0]
    transient = by_stage(plan, work_bytes).max(axis=0) + gathered_bytes(llm, plan)
    activations = by_stage(plan, kept_bytes).mean(axis=0) * in_flight(plan)
    first, last = end_activations(llm, plan)
    of_first, of_last = ends_in_flight(plan)
    firsts, lasts = end_stages(plan)
    activations[firsts] += first * of_first
    activations[lasts] += last * of_last
    return activations, transient


def end_stages(plan: Plan) -> tuple[list[int], list[int]]:
    """Stages that hold the model's first chunk, and those that hold its last."""
    places = np.array(plan.places)
    first, last = (np.argwhere(places == place)[:, 1] for place in (0, plan.chunks - 1))
    return first.tolist(), last.tolist()


def end_activations(llm: LLM, plan: Plan) -> tuple[float, float]:
    """Bytes of one microbatch at the model's ends.

    The embedding's dropout mask; inputs of the final norm and the output projection and the logits
    in fp32 (4.2.2), once more per multi-token-prediction module.
    """
    split = plan.tp if plan.sequence_parallel else 1
    tokens = plan.micro_batch * llm.seq_len / plan.cp
    mask = tokens * llm.hidden / split if llm.bias and llm.norm == "layernorm" else 0.0
    head = 4 * tokens * llm.hidden / split + 4 * tokens * llm.padded_vocab(plan.tp) / plan.tp
    return mask, (1 + llm.mtp_layers) * head


def ends_in_flight(plan: Plan) -> tuple[int, int]:
    """Microbatches whose embedding, and whose logits, are held at once."""
    m, p = plan.microbatches, plan.pp
    if plan.splits_backward:
        return {
            "zb-h1": (min(p, m), min(p, m)),
            "zbv": (min(2 * p, m), 1),
            "dualpipev": (2 * p, 1),
            "dualpipe": (p, 1),
        }[plan.schedule]
    if plan.schedule == "gpipe" or (plan.vpp > 1 and m == plan.pp):
        return m, m  # all forwards come first
    return min(plan.pp, m), 1


def gathered_bytes(llm: LLM, plan: Plan) -> float:
    """ZeRO-3 holds the parameters of two layers (in use, and prefetched) unsharded."""
    if plan.zero < 3 or plan.dp * plan.cp == 1:
        return 0.0
    most = max(llm.layer_parameters(i) for i in (0, llm.layers - 1))
    weight = plan.element_bytes
    return 2.0 * weight * most / plan.tp / (plan.ep if llm.moe else 1)
