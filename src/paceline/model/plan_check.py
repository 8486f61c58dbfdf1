"""Checks of a plan for a model: all reasons against it, without memory."""

from __future__ import annotations

from paceline.errors import PlanError
from paceline.model.llm import LLM
from paceline.model.plan import OVERLAPPING, Plan, layer_problem
from paceline.model.recompute import module_problems
from paceline.model.vision import VisionTower

# FP8 matrix products need both inner dimensions in multiples of 16 (cuBLAS, "FP8 tensor core
# usage"; Transformer Engine refuses others); NVFP4 scales blocks of 16.
_LOW_MULTIPLE = 16


def problems(plan: Plan, llm: LLM, cluster_gpus: int | None = None) -> list[str]:
    """All reasons why ``plan`` cannot train ``llm``; empty if it can.

    Memory is not checked. The rules are those of Megatron-LM (Megatron-Core) and, if named, of
    DeepSpeed.

    Args:
        plan: the plan.
        llm: the model.
        cluster_gpus: exact number of GPUs that the plan must use; None = any number.
    """
    reasons = []
    if cluster_gpus is not None and plan.gpus != cluster_gpus:
        product = f"tp {plan.tp} x pp {plan.pp} x dp {plan.dp} x cp {plan.cp} = {plan.gpus}"
        reasons.append(f"{product} GPUs, not {cluster_gpus}")
    reasons += _tensor_problems(plan, llm)
    reasons += _vision_problems(plan, llm)
    reasons += _sequence_problems(plan, llm)
    reasons += _pipeline_problems(plan, llm)
    reasons += _expert_problems(plan, llm)
    reasons += _offload_problems(plan, llm)
    reasons += _shard_problems(plan, llm)
    reasons += module_problems(plan, llm)
    if plan.adapter_rank > llm.hidden:
        reasons.append(f"adapter_rank {plan.adapter_rank} exceeds hidden {llm.hidden}")
    if plan.adapter_rank and llm.latent is not None:
        reasons.append("adapters on multi-head latent attention are not modelled")
    reasons += _compressed_problems(plan, llm)
    if plan.adapter_rank and llm.pattern:
        reasons.append("adapters on hybrid models are not modelled")
    if plan.adapter_rank and llm.delta is not None:
        reasons.append("adapters on linear attention are not modelled")
    return reasons


def check(plan: Plan, llm: LLM, gpus: int | None = None) -> None:
    """Raise an error with all reasons why ``plan`` cannot train ``llm`` on ``gpus`` GPUs.

    Raises:
        PlanError: there is at least one reason; all are named.
    """
    reasons = problems(plan, llm, gpus)
    if reasons:
        raise PlanError(f"{llm.name} cannot use {plan.describe()}: {'; '.join(reasons)}")


def _tensor_problems(plan: Plan, llm: LLM) -> list[str]:
    tp = plan.tp
    reasons = []
    widths = [("heads", llm.heads), ("hidden", llm.hidden)]
    if llm.block_counts["-"]:
        widths.append(("ffn", llm.ffn))
    if llm.moe is not None and llm.moe.shared_ffn:
        widths.append(("shared_ffn", llm.moe.shared_ffn))
    if llm.mamba is not None:
        widths.append(("mamba groups", llm.mamba.groups))
    if llm.delta is not None:
        widths.append(("delta key_heads", llm.delta.key_heads))
    reasons += [f"{name} {n} not divisible by tp {tp}" for name, n in widths if n % tp]
    # Megatron-Core replicates key and value heads if there are fewer heads than ranks.
    if llm.latent is None and llm.kv_heads % tp and tp % llm.kv_heads:
        reasons.append(f"kv_heads {llm.kv_heads} and tp {tp}: neither divides the other")
    if plan.quantised:
        counts = ("heads", "mamba groups", "delta key_heads")
        sizes = [(name, n // tp) for name, n in widths if name not in counts and n % tp == 0]
        if llm.mamba is not None and llm.mamba.groups % tp == 0:
            sizes.append(("mamba projection", llm.mamba.projected // tp))
        if llm.delta is not None and llm.delta.key_heads % tp == 0:
            sizes.append(("delta projection", llm.delta.projected // tp))
        if llm.moe is not None:
            sizes.append(("expert ffn", llm.moe.ffn))
        reasons += [
            f"{plan.precision} needs {name} per rank ({n}) divisible by {_LOW_MULTIPLE}"
            for name, n in sizes
            if n % _LOW_MULTIPLE
        ]
    if plan.overlap_tp and tp > 1 and not plan.sequence_parallel:
        reasons.append("overlap_tp needs sequence_parallel")
    return reasons


def _compressed_problems(plan: Plan, llm: LLM) -> list[str]:
    """Reasons against a plan for compressed attention, whose projections no source splits."""
    if llm.compressed is None:
        return []
    given = {
        "tp > 1": plan.tp > 1,
        "cp > 1": plan.cp > 1,
        "attention that is not fused": not plan.flash,
        "adapters": plan.adapter_rank > 0,
        "recompute module core_attn": "core_attn" in plan.recompute_modules,
    }
    return [f"{name} with compressed attention is not modelled" for name in given if given[name]]


def _vision_problems(plan: Plan, llm: LLM) -> list[str]:
    tower = llm.vision
    if not isinstance(tower, VisionTower):
        return []
    columns = [n for _, n in tower.products(llm.hidden)[:-1][::2]]
    widths = [("heads", tower.heads), ("hidden", tower.hidden), ("ffn", tower.ffn)]
    widths += [("projector width", n) for n in columns]
    return [
        f"the vision tower's {name} {n} not divisible by tp {plan.tp}"
        for name, n in widths
        if n % plan.tp
    ]


def _sequence_problems(plan: Plan, llm: LLM) -> list[str]:
    reasons = []
    s, cp, tp = llm.seq_len, plan.cp, plan.tp
    if cp > 1 and s % (2 * cp):
        # Each rank takes one early and one late piece, to balance the causal mask.
        reasons.append(f"seq_len {s} not divisible by 2 x cp {cp}")
    if cp > 1 and not plan.flash:
        reasons.append("cp > 1 needs flash attention")
    if llm.index is not None and not plan.flash:
        reasons.append("sparse attention is modelled with its fused kernels alone; use flash")
    if cp > 1 and llm.mamba is not None and llm.mamba.heads % (tp * cp):
        heads = llm.mamba.heads
        reasons.append(f"mamba heads {heads} not divisible by tp {tp} x cp {cp}")
    if cp > 1 and llm.delta is not None and llm.delta.key_heads % (tp * cp):
        heads = llm.delta.key_heads
        reasons.append(f"delta key_heads {heads} not divisible by tp {tp} x cp {cp}")
    if plan.sequence_parallel and tp == 1:
        reasons.append("sequence_parallel needs tp > 1")
    elif plan.sequence_parallel and s % (cp * tp):
        split = f"cp {cp} x tp {tp}" if cp > 1 else f"tp {tp}"
        reasons.append(f"seq_len {s} not divisible by {split}, which sequence_parallel needs")
    return reasons


def _pipeline_problems(plan: Plan, llm: LLM) -> list[str]:
    reasons = [reason] if (reason := layer_problem(plan, llm)) else []
    samples = plan.dp * plan.micro_batch
    if plan.global_batch % samples:
        reasons.append(
            f"global_batch {plan.global_batch} not divisible by dp {plan.dp} x micro_batch "
            f"{plan.micro_batch} = {samples}"
        )
    elif plan.splits_backward:
        reasons += _split_problems(plan)
    elif plan.vpp > 1 and plan.microbatches % plan.pp:
        reasons.append(
            f"{plan.microbatches} microbatches not divisible by pp {plan.pp}, which the "
            "interleaved schedule needs"
        )
    if plan.vpp > 1 and plan.pp == 1:
        reasons.append(f"vpp {plan.vpp} needs pp > 1")
    if plan.zero == 2 and plan.pp > 1:
        reasons.append(
            f"zero 2 with pp {plan.pp}: no framework shards gradients alone under a pipeline; use "
            "zero 1, or zero 3 (FSDP2, which keeps both whole over the step)"
        )
    return reasons


def _offload_problems(plan: Plan, llm: LLM) -> list[str]:
    """Conditions of offloading in Megatron-Core (d98e8a6, ``transformer_config.py``)."""
    if not plan.offload_layers:
        return []
    reasons = []
    if plan.offload_layers >= llm.layers:
        reasons.append(f"offload_layers {plan.offload_layers} must be below layers {llm.layers}")
    if plan.pp > 1:
        reasons.append(f"offload_layers needs pp 1, not {plan.pp}")
    if plan.recompute != "none":
        reasons.append(f"offload_layers beside recompute {plan.recompute}; use recompute none")
    return reasons


def _shard_problems(plan: Plan, llm: LLM) -> list[str]:
    if not plan.shards:
        return []
    reasons = []
    ranks = plan.dp * plan.cp
    if ranks % plan.shards or plan.shards % plan.cp:
        within = f"dp {plan.dp}" + (f" x cp {plan.cp}" if plan.cp > 1 else "")
        multiple = f" and be a multiple of cp {plan.cp}" if plan.cp > 1 else ""
        reasons.append(f"shards {plan.shards} must divide {within}{multiple}")
    if plan.copies > 1:
        reasons.append(f"shards beside {plan.schedule} is not modelled")
    if llm.moe is not None and plan.tp * plan.ep > 1:
        reasons.append("shards of experts need tp 1 and ep 1")
    return reasons


def _split_problems(plan: Plan) -> list[str]:
    """Conditions of schedules with split backwards (torch 2.13; deepseek-ai/DualPipe)."""
    name, m = plan.schedule, plan.microbatches
    reasons = []
    if name in OVERLAPPING and m < 2 * plan.pp:
        reasons.append(f"{m} microbatches are fewer than 2 x pp {plan.pp}, which {name} needs")
    if name == "dualpipe":
        numbers = ((plan.pp, "pp"), (m, "microbatches"))
        reasons += [f"{what} {n} is odd; dualpipe needs it even" for n, what in numbers if n % 2]
    return reasons


def _expert_problems(plan: Plan, llm: LLM) -> list[str]:
    if plan.ep == 1:
        return []
    if llm.moe is None:
        return [f"ep {plan.ep} but the model has no experts"]
    reasons = []
    if llm.moe.experts % plan.ep:
        reasons.append(f"experts {llm.moe.experts} not divisible by ep {plan.ep}")
    ranks = plan.tp * plan.cp * plan.dp
    if ranks % plan.ep:
        reasons.append(f"tp x cp x dp = {ranks} ranks not divisible by ep {plan.ep}")
    return reasons
