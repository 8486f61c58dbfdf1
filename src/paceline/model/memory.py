"""The model's memory under a plan: parameters and states of each stage, microbatches in flight.

States follow ZeRO (Rajbhandari et al. 2020, 3 and 5); ``memory_rules`` has the differences of
software.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.model.llm import LLM
from paceline.model.memory_rules import DEFAULT_RULES, MemoryRules, is_fsdp
from paceline.model.plan import Plan
from paceline.model.vision import VisionTower
from paceline.model.vision_tower import tower_plan

Array = npt.NDArray[np.float64]

#: FSDP2 reduces gradients, and holds their shards, in fp32 (torchtitan's ``reduce_dtype``).
FSDP_GRADIENT = 4.0


def stage_states(
    llm: LLM, plan: Plan, rules: MemoryRules, places: tuple[Array, Array] | None = None
) -> tuple[Array, Array, Array]:
    """[stage] bytes of parameters, gradients and optimizer, with adapters and fp8 weights.

    ``places`` is the result of :func:`place_parameters`, if already known.
    """
    of_places = place_parameters(llm, plan) if places is None else places
    excess = word_excess(llm, plan, rules)
    if excess:  # without a pipeline
        of_places = of_places[0] + excess, of_places[1]
    dense, expert = (by_stage(plan, x).sum(axis=0) for x in of_places)
    parameters, gradients, optimizer = model_states(plan, dense, expert, rules)
    frozen = frozen_parameters(llm, plan)
    if frozen.any():
        trained = dense - by_stage(plan, frozen).sum(axis=0)
        _, gradients, optimizer = model_states(plan, trained, expert, rules)
    if rules.weight_bytes is not None and not is_fsdp(plan):
        parameters = parameters + weight_change(llm, plan, rules.weight_bytes, of_places)
    if plan.adapter_rank:
        gradients, optimizer = adapter_states(llm, plan, rules)
    if plan.adapter_rank and is_fsdp(plan):
        parameters = adapted_shards(llm, plan, parameters)
    return parameters, gradients, optimizer


def place_parameters(llm: LLM, plan: Plan) -> tuple[Array, Array]:
    """[place] parameters on one GPU: shared by all DP ranks, and of experts.

    Embedding and output projection lie on the first and last place, split over the TP ranks. Tied
    ones are held twice if these are different stages.
    """
    dense, expert = np.zeros(plan.chunks), np.zeros(plan.chunks)
    of_kind = {}
    for place, layers in enumerate(plan.chunk_layers(llm)):
        for i in layers:
            blocks = llm.layer_blocks(i)
            if blocks not in of_kind:
                of_kind[blocks] = layer_share(llm, blocks, plan)
            dense[place] += of_kind[blocks][0]
            expert[place] += of_kind[blocks][1]
    rows = llm.padded_vocab(plan.tp) * llm.hidden / plan.tp
    learned = llm.embedding_parameters - llm.vocab * llm.hidden
    dense[0] += rows + learned + vision_share(llm, plan)[0]
    if not (llm.tied and ends_meet(plan)):
        dense[-1] += rows
    dense[-1] += llm.end_parameters + llm.mtp_parameters / plan.tp * (not llm.moe)
    if llm.moe and llm.mtp_layers:
        shares = [layer_share(llm, blocks, plan) for blocks in llm.mtp_pattern or [llm.mtp_blocks]]
        module = sum(share[0] for share in shares) + 2 * llm.hidden**2 / plan.tp
        dense[-1] += llm.mtp_modules * module
        expert[-1] += llm.mtp_modules * sum(share[1] for share in shares)
    return dense, expert


def word_excess(llm: LLM, plan: Plan, rules: MemoryRules) -> float:
    """Parameters of the embedding on one GPU that tensor parallelism does not split.

    The plans of transformers 5.24 split the head's columns alone (``_tp_plan``); DeepSpeed v0.19.5
    takes them (``engine.py``) and leaves tied ones whole (``auto_tp.py``).
    """
    rows = llm.padded_vocab(plan.tp) * llm.hidden
    return rows * (1 - 1 / plan.tp) if rules.transformers else 0.0


def vision_share(llm: LLM, plan: Plan) -> tuple[float, float]:
    """Parameters of a vision tower on one GPU of the first place, and the frozen part of them."""
    tower = llm.vision
    if tower is None:
        return 0.0, 0.0
    if isinstance(tower, VisionTower):
        own = tower.layers * tower_layer_share(llm, plan) + tower.end_parameters
        return own + tower.projector_parameters(llm.hidden, plan.tp), tower.frozen * own
    return float(tower.parameters), float(tower.frozen * tower.parameters)


def tower_layer_share(llm: LLM, plan: Plan) -> float:
    """Parameters on one GPU of a layer of the vision tower; 0 without one."""
    if llm.tower is None or not isinstance(llm.vision, VisionTower):
        return 0.0
    return layer_share(llm.tower, "*-", tower_plan(llm.vision, plan))[0]


def adapter_parameters(llm: LLM, plan: Plan) -> Array:
    """[place] parameters on one GPU of LoRA's adapters; 0 without any."""
    layers = np.array([len(held) for held in plan.chunk_layers(llm)], dtype=np.float64)
    return layer_adapters(llm, plan) * layers


def layer_adapters(llm: LLM, plan: Plan) -> float:
    """Parameters on one GPU of the adapters of one layer.

    On Megatron-Core's one product of queries, keys and values; FSDP2's models have three (PEFT).
    """
    width = llm.adapter_width + (2 * llm.hidden if is_fsdp(plan) else 0)
    return plan.adapter_rank * width / plan.tp


def forward_only(llm: LLM, plan: Plan) -> Array:
    """[place] parameters on one GPU that no backward passes: of a frozen vision tower.

    Under adapters no backward passes any of the tower.
    """
    passed = np.zeros(plan.chunks)
    passed[0] = vision_share(llm, plan)[0 if plan.adapter_rank else 1]
    return passed


def frozen_parameters(llm: LLM, plan: Plan) -> Array:
    """[place] parameters on one GPU that have no gradients, without adapters."""
    frozen = np.zeros(plan.chunks)
    frozen[0] = vision_share(llm, plan)[1]
    return frozen


def layer_share(llm: LLM, blocks: str, plan: Plan) -> tuple[float, float]:
    """(shared by all DP ranks, of experts) on one GPU of a layer of these blocks."""
    norms = len(blocks) * llm.block_norms * llm.final_norm_parameters
    dense = _attention_share(llm, plan, norms) if "*" in blocks else float(norms)
    dense += len(blocks) * llm.stream_parameters
    if llm.compressed is not None:  # not split over tp, as plans are refused
        sizes = (llm.hidden, llm.heads, llm.head_dim)
        dense += llm.compressed.parameters(blocks[0], *sizes)
    if "M" in blocks and llm.mamba is not None:
        dense += llm.mamba.parameters(llm.hidden) / plan.tp
    if "G" in blocks and llm.delta is not None:
        dense += llm.delta.parameters(llm.hidden) / plan.tp
    if "E" not in blocks:
        return dense + ("-" in blocks) * llm.dense_ffn_parameters / plan.tp, 0.0
    shared = llm.shared_expert_parameters / plan.tp + llm.router_parameters
    shared += llm.expert_projection_parameters  # not split over tp
    experts = (llm.moe.experts if llm.moe else 0) * llm.expert_parameters / plan.ep
    return dense + shared, experts


def _attention_share(llm: LLM, plan: Plan, norms: int) -> float:
    """Parameters on one GPU of a layer's attention and of all of its ``norms``."""
    kv_copies = max(1, plan.tp // llm.kv_heads) if llm.latent is None else 1
    matmul = llm.attention_matmul
    if kv_copies > 1:
        matmul += 2 * (kv_copies - 1) * llm.kv_heads * llm.head_dim * llm.hidden
    return matmul / plan.tp + (llm.attention_parameters - llm.attention_matmul + norms)


def stage_parameters(llm: LLM, plan: Plan) -> tuple[Array, Array]:
    """[stage] parameters on one GPU: shared by all DP ranks, and of experts."""
    dense, expert = place_parameters(llm, plan)
    return by_stage(plan, dense).sum(axis=0), by_stage(plan, expert).sum(axis=0)


def by_stage(plan: Plan, values: Array) -> Array:
    """[..., chunk, stage] values of the chunks that a stage holds, from [..., place]."""
    held: Array = values[..., np.array(plan.places)]
    return held


def ends_meet(plan: Plan) -> bool:
    """Whether stages with the model's first chunk also have its last: one stage, or a V."""
    return plan.chunks == 1 or plan.places[0][0] == plan.chunks - 1 - plan.places[-1][0]


def model_states(
    plan: Plan, dense: Array, expert: Array, rules: MemoryRules = DEFAULT_RULES
) -> tuple[Array, Array, Array]:
    """[stage] bytes of parameters, gradients and optimizer (ZeRO, 3 and 5).

    FSDP2 shards the master copy, which is counted as parameters. Under a pipeline it accumulates
    unsharded gradients.
    """
    ranks = plan.shard_ranks
    expert_ranks = max(1, ranks * plan.tp // plan.ep)
    wide = plan.precision == "fp32"  # the weights are the master copy
    optimizer = rules.optimizer_bytes - 4 * (wide or is_fsdp(plan))

    def bytes_of(bytes_each: float, sharded: bool) -> Array:
        if not sharded:
            return bytes_each * (dense + expert)
        return bytes_each * (dense / ranks + expert / expert_ranks)

    if is_fsdp(plan):
        whole = plan.pp > 1 and plan.microbatches > 1
        gradients = bytes_of(FSDP_GRADIENT, not whole)
        return bytes_of(4.0, True), gradients, bytes_of(optimizer, True)
    return (
        bytes_of(plan.element_bytes, False),
        bytes_of(plan.grad_bytes, plan.zero >= 2),
        bytes_of(optimizer, plan.zero >= 1),
    )


def weight_change(llm: LLM, plan: Plan, weight_bytes: float, places: tuple[Array, Array]) -> Array:
    """[stage] change in bytes by weights of ``weight_bytes``; embedding and head stay in bf16."""
    of_layers = places[0] + places[1]
    rows = llm.padded_vocab(plan.tp) * llm.hidden / plan.tp
    of_layers[0] -= rows + vision_share(llm, plan)[0]
    of_layers[-1] -= rows * (not (llm.tied and ends_meet(plan)))
    change: Array = (weight_bytes - plan.element_bytes) * by_stage(plan, of_layers).sum(axis=0)
    return change


def adapter_states(llm: LLM, plan: Plan, rules: MemoryRules) -> tuple[Array, Array]:
    """[stage] bytes of gradients and optimizer of the adapters on qkv and the projection."""
    elements = by_stage(plan, adapter_parameters(llm, plan)).sum(axis=0)
    if plan.zero >= 2:
        _, gradients, optimizer = model_states(plan, elements, np.zeros(plan.pp), rules)
        return gradients, optimizer
    return plan.grad_bytes * elements, rules.optimizer_bytes * elements


def adapted_shards(llm: LLM, plan: Plan, whole: Array) -> Array:
    """[stage] bytes of FSDP2's shards: frozen weights in 16 bits, adapters in fp32.

    Frozen weights have no master copy. PEFT keeps adapters over 16-bit weights in fp32 (0.21,
    ``tuners_utils.py``, ``cast_adapter_dtype``), and FSDP2 shards parameters as they are loaded.
    ``whole``: bytes of all frozen ones in fp32.
    """
    adapters = by_stage(plan, adapter_parameters(llm, plan)).sum(axis=0)
    shards: Array = whole * plan.element_bytes / 4 + 4.0 * adapters / plan.shard_ranks
    return shards


def in_flight(plan: Plan) -> Array:
    """[stage] chunks of microbatches whose activations a stage holds at once, at its peak.

    1F1B: the number of stages from this one on (Korthikanti et al., 4.2.1, for the first).
    Interleaved: L (1 + (p - 1) / (p v)) layers' worth (4.2.3). GPipe: all. With a split backward,
    activations are held until the gradient of the weights is done, by the orders of
    ``graph.zero_bubble``. ZB-H1: on all stages as many as on the first stage of 1F1B. DualPipe: PP
    + 1, by its README.
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
    """[stage] the same with a split backward; a test counts the orders."""
    stage = np.arange(p)
    held = {
        "zb-h1": np.full(p, min(p, m)),
        "zbv": np.minimum(min(2 * p, 2 * m), m + 1 + stage),
        "dualpipev": np.full(p, 2 * p + 1),
        "dualpipe": np.full(p, p + 1),
    }[schedule]
    return held.astype(np.float64)


def end_stages(plan: Plan) -> tuple[list[int], list[int]]:
    """Stages with the model's first chunk, and stages with its last."""
    places = np.array(plan.places)
    first, last = (np.argwhere(places == place)[:, 1] for place in (0, plan.chunks - 1))
    return first.tolist(), last.tolist()


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
