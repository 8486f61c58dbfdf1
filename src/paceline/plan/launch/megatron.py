"""Megatron-LM core_v0.19.0 and Megatron-Bridge v0.6.0 (NeMo's successor for language models).

Flags come from ``megatron/training/arguments.py`` and the dataclasses behind its arguments
(``TransformerConfig``, ``ModelParallelConfig``, ``TrainingConfig``), overrides from
``scripts/training/run_recipe.py`` and ``training/config.py`` of Megatron-Bridge.
"""

from __future__ import annotations

from paceline.errors import PlanError
from paceline.model.llm import LLM
from paceline.model.memory_rules import EXPANDABLE_SEGMENTS
from paceline.model.plan import Plan
from paceline.plan.launch.fine_tuning import (
    Flags,
    bridge_fine_tuning,
    bridge_mode,
    megatron_samples,
    refuse_adapters,
)

MEGATRON, BRIDGE = "Megatron-LM core_v0.19.0", "Megatron-Bridge v0.6.0"

#: Precision -> Megatron-Bridge's recipe of that name (``training/mixed_precision.py``).
_MIXED = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed"}

#: Megatron-LM's dropouts, each 0.1 by default (``core/transformer/transformer_config.py``). Its
#: ``examples/llama/train_llama3_8b_h100_fp8.sh`` turns both off, too.
_DROPOUTS = ("hidden-dropout", "attention-dropout")

#: Megatron-LM's addend to the variance in norms (``layernorm_epsilon``, same file).
_NORM_EPSILON = 1e-5

#: Placeholder in a command -> the text to insert.
_UNKNOWN = {
    "HOST:": "the name of the first node",
    "ROTARY_BASE": "rope_theta of the model's config.json (--model config.json fills it in)",
    "TRAIN_ITERS": "the steps to train (--tokens fills them in)",
    "PRETRAINED_CHECKPOINT": "the folder of the weights to begin with",
}


#: Settings of a router change no time; those of DeepSeek-V3 are all unlike the defaults.
_ROUTER = (
    "add the router's settings, where your model has others than the defaults: "
    "--moe-router-score-function, --moe-router-num-groups, --moe-router-group-topk, "
    "--moe-router-topk-scaling-factor, --moe-router-enable-expert-bias, "
    "--moe-router-load-balancing-type"
)


def megatron_command(llm: LLM, plan: Plan, node_gpus: int, steps: int | None = None) -> str:
    """A ``torchrun`` command of Megatron-LM's ``pretrain_gpt.py``; data and paths are the user's.

    Args:
        llm: the model.
        plan: the plan.
        node_gpus: GPUs of a node.
        steps: number of steps to train; None = a placeholder in capitals.

    Raises:
        PlanError: Megatron-LM cannot express the plan.
    """
    iterations = "TRAIN_ITERS" if steps is None else str(steps)
    flags = [*_model_flags(llm), *plan_flags(llm, plan), ("train-iters", iterations)]
    head = f"{_environment(plan)}{torchrun(plan, node_gpus)} pretrain_gpt.py"
    command = " \\\n  ".join([head, *(f"--{name} {value}".rstrip() for name, value in flags)])
    about = [f"{MEGATRON}; add data, tokenizer, learning rate and checkpoints"]
    about += _placeholders(command)
    about += [_ROUTER] if llm.moe is not None else []
    return "".join(f"# {line}\n" for line in about) + command


def _placeholders(command: str) -> list[str]:
    return [
        f"replace {word.rstrip(':')}: {what}" for word, what in _UNKNOWN.items() if word in command
    ]


def _environment(plan: Plan) -> str:
    """Variables that ``validate_args`` requires (d98e8a6, ``arguments.py`` 1454 to 1479).

    Up to Hopper, tensor and context parallelism need one connection; Megatron's FSDP forbids it.
    """
    one = (plan.tp > 1 or plan.cp > 1) and plan.zero < 2
    return f"{EXPANDABLE_SEGMENTS} {'CUDA_DEVICE_MAX_CONNECTIONS=1 ' if one else ''}"


def torchrun(plan: Plan, node_gpus: int) -> str:
    """``torchrun`` with the plan's ranks; HOST stands for the first of several nodes."""
    nodes, ranks = -(-plan.gpus // node_gpus), min(node_gpus, plan.gpus)
    meet = "" if nodes == 1 else " --rdzv-backend c10d --rdzv-endpoint HOST:29500"
    return f"torchrun --nnodes {nodes} --nproc-per-node {ranks}{meet}"


def plan_flags(llm: LLM, plan: Plan) -> Flags:
    """Flags that express the plan."""
    _check(plan, MEGATRON)
    refuse_adapters(MEGATRON, plan)
    if llm.pattern:
        raise PlanError(f"{MEGATRON} has no hybrid models in pretrain_gpt.py", fields=("pattern",))
    if llm.delta is not None or llm.gated_attention:
        raise PlanError(
            f"no flags of {MEGATRON} are written for linear or gated attention",
            fields=("delta", "gated_attention"),
        )
    if llm.moe is not None and llm.moe.latent:
        raise PlanError(
            f"no flags of {MEGATRON} are written for latent experts", fields=("moe", "latent")
        )
    if llm.compressed is not None:
        raise PlanError(
            f"no flags of {MEGATRON} are written for compressed attention", fields=("compressed",)
        )
    if llm.vision is not None:
        raise PlanError(f"{MEGATRON} has no images in pretrain_gpt.py", fields=("vision",))
    if llm.index is not None:
        raise PlanError(
            f"no flags of {MEGATRON} are written for sparse attention", fields=("index",)
        )
    flags: Flags = [
        ("tensor-model-parallel-size", str(plan.tp)),
        ("pipeline-model-parallel-size", str(plan.pp)),
        ("context-parallel-size", str(plan.cp)),
        ("micro-batch-size", str(plan.micro_batch)),
        ("global-batch-size", str(plan.global_batch)),
    ]
    if plan.ep > 1:
        flags += [
            ("expert-model-parallel-size", str(plan.ep)),
            ("expert-tensor-parallel-size", "1"),
            ("moe-token-dispatcher-type", "alltoall"),  # predicted; the default gathers
        ]
    if plan.layers_per_stage is not None:
        flags.append(("pipeline-model-parallel-layout", f"'{_layout(llm, plan)}'"))
    elif plan.vpp > 1:
        flags.append(("num-virtual-stages-per-pipeline-rank", str(plan.vpp)))
    if plan.sequence_parallel:
        flags.append(("sequence-parallel", ""))
    flags += _sharding(plan) + _recomputation(llm, plan) + _precision(plan)
    if plan.offload_layers:
        flags.append(("cpu-offloading-num-layers", str(plan.offload_layers)))
    flags.append(("attention-backend", "flash" if plan.flash else "unfused"))
    if plan.overlap_tp and plan.tp > 1:
        flags.append(("tp-comm-overlap", ""))
    return flags + megatron_samples(MEGATRON, llm, plan)


def _sharding(plan: Plan) -> Flags:
    if plan.zero == 0:
        return [("overlap-grad-reduce", "")] if plan.overlap_dp else []
    if plan.zero >= 2:
        strategy = "optim_grads_params" if plan.zero == 3 else "optim_grads"
        copies = plan.dp // plan.shards if plan.shards else 1
        return [
            ("use-megatron-fsdp", ""),
            ("data-parallel-sharding-strategy", strategy),
            ("use-distributed-optimizer", ""),
            ("ckpt-format", "fsdp_dtensor"),
            *([("num-distributed-optimizer-instances", str(copies))] if copies > 1 else []),
        ]
    switches = ["use-distributed-optimizer"]
    switches += ["overlap-grad-reduce", "overlap-param-gather"] if plan.overlap_dp else []
    return [(name, "") for name in switches]


def _recomputation(llm: LLM, plan: Plan) -> Flags:
    if plan.recompute == "none":
        return []
    if plan.recompute == "full":
        return [
            ("recompute-granularity", "full"),
            ("recompute-method", "uniform"),
            ("recompute-num-layers", "1"),
        ]
    return [("recompute-granularity", "selective"), ("recompute-modules", _modules(llm, plan))]


def _modules(llm: LLM, plan: Plan, separator: str = " ") -> str:
    """Modules that selective recomputation of :class:`Plan` repeats, by Megatron-Core's names."""
    if plan.recompute_modules:
        return separator.join(plan.recompute_modules)
    if not plan.flash:
        return "core_attn"
    return separator.join(["layernorm", "moe_act"] if llm.moe is not None else ["layernorm"])


def _precision(plan: Plan) -> Flags:
    flags: Flags = [] if plan.precision == "fp32" else [("bf16", "")]
    if plan.precision == "fp16":
        flags = [("fp16", "")]
    if plan.precision == "fp8":
        flags += [("fp8-format", "hybrid")]
    if plan.precision != "fp32":
        flags.append(
            ("accumulate-allreduce-grads-in-fp32", "")
            if plan.grad_bytes == 4
            else ("grad-reduce-in-bf16", "")
        )
    return flags


def _layout(llm: LLM, plan: Plan) -> str:
    """Layers of every chunk: "Et*3|t*4|t*3L" (``PipelineParallelLayerLayout``)."""
    if llm.pattern:
        raise PlanError("no layout has layers_per_stage of a hybrid", fields=("layers_per_stage",))
    chunks = [f"t*{len(layers)}" if layers else "" for layers in plan.chunk_layers(llm)]
    chunks[0] = f"E{chunks[0]}"
    chunks[-1] += f"{'m' * llm.mtp_layers}L"
    return "|".join(chunks)


def _model_flags(llm: LLM) -> Flags:
    flags: Flags = [
        ("num-layers", str(llm.layers)),
        ("hidden-size", str(llm.hidden)),
        ("ffn-hidden-size", str(llm.ffn)),
        ("num-attention-heads", str(llm.heads)),
        ("seq-length", str(llm.seq_len)),
        ("max-position-embeddings", str(max(llm.max_positions, llm.seq_len))),
        ("normalization", "RMSNorm" if llm.norm == "rmsnorm" else "LayerNorm"),
    ]
    positions = {"rotary": "rope", "learned": "learned_absolute", "none": "none"}
    flags.append(("position-embedding-type", positions[llm.positions]))
    if llm.norm_epsilon not in (0, _NORM_EPSILON):
        flags.append(("norm-epsilon", f"{llm.norm_epsilon:g}"))
    if llm.positions == "rotary":  # Megatron-LM's default, 10,000, may be wrong for the model
        flags.append(("rotary-base", str(llm.rotary_base or "ROTARY_BASE")))
    if llm.kv_heads != llm.heads and llm.latent is None:
        flags += [("group-query-attention", ""), ("num-query-groups", str(llm.kv_heads))]
    flags += [("swiglu", "")] if llm.gated else []
    flags += [] if llm.bias else [("disable-bias-linear", "")]
    flags += [("add-qkv-bias", "")] if llm.qkv_bias and not llm.bias else []
    flags += [] if llm.tied else [("untie-embeddings-and-output-weights", "")]
    flags += [] if llm.dropout else [(name, "0.0") for name in _DROPOUTS]
    if llm.moe is not None:
        flags += [
            ("num-experts", str(llm.moe.experts)),
            ("moe-router-topk", str(llm.moe.top_k)),
            ("moe-ffn-hidden-size", str(llm.moe.ffn)),
            ("moe-grouped-gemm", ""),
        ]
    return flags + _attention_flags(llm) + _mixture_flags(llm)


def _attention_flags(llm: LLM) -> Flags:
    """Widths of the attention, and its norms (latent attention has its own)."""
    flags: Flags = [("qk-layernorm", "")] if llm.qk_norm or llm.latent is not None else []
    if llm.latent is None:
        own = llm.head_dim * llm.heads != llm.hidden
        return flags + ([("kv-channels", str(llm.head_dim))] if own else [])
    latent = llm.latent
    ranks = [("q-lora-rank", str(latent.q_rank))] if latent.q_rank else []
    return [
        *flags,
        ("multi-latent-attention", ""),
        *ranks,
        ("kv-lora-rank", str(latent.kv_rank)),
        ("qk-head-dim", str(latent.nope_dim)),
        ("qk-pos-emb-head-dim", str(latent.rope_dim)),
        ("v-head-dim", str(latent.value_dim)),
    ]


def _mixture_flags(llm: LLM) -> Flags:
    """Flags for mixtures: their layers, shared experts, and multi-token prediction."""
    flags: Flags = []
    if llm.moe is not None and llm.moe.shared_ffn:
        flags.append(("moe-shared-expert-intermediate-size", str(llm.moe.shared_ffn)))
    if llm.moe is not None and llm.moe_layers < llm.layers:
        which = ",".join(str(int(llm.is_moe_layer(i))) for i in range(llm.layers))
        flags.append(("moe-layer-freq", f"'[{which}]'"))
    return flags + ([("mtp-num-layers", str(llm.mtp_layers))] if llm.mtp_layers else [])


def bridge_command(llm: LLM, plan: Plan, node_gpus: int, steps: int | None = None) -> str:
    """A run of Megatron-Bridge's ``run_recipe.py`` with the plan as overrides.

    Args:
        llm: the model.
        plan: the plan.
        node_gpus: GPUs of a node.
        steps: number of steps to train; None = the recipe's number.

    Raises:
        PlanError: Megatron-Bridge cannot express the plan.
    """
    _check(plan, BRIDGE)
    if plan.precision not in _MIXED:
        raise PlanError(f"{BRIDGE} has no precision {plan.precision}", fields=("precision",))
    lines = [
        f"{EXPANDABLE_SEGMENTS} {torchrun(plan, node_gpus)} "
        f"scripts/training/run_recipe.py --recipe RECIPE_OF_{llm.name.upper()} "
        f"--mode {bridge_mode(llm, plan)}",
        *(f"{name}={value}" for name, value in bridge_overrides(llm, plan)),
        *([] if steps is None else [f"train.train_iters={steps}"]),
    ]
    command = " \\\n  ".join(lines)
    about = [f"{BRIDGE}; RECIPE_... is the recipe of your model"]
    about += _placeholders(command)
    return "".join(f"# {line}\n" for line in about) + command


def bridge_overrides(llm: LLM, plan: Plan) -> Flags:
    """Trailing ``KEY=VALUE`` of a run."""
    zero = plan.zero
    fields: dict[str, object] = {
        "train.micro_batch_size": plan.micro_batch,
        "train.global_batch_size": plan.global_batch,
        "dataset.seq_length": llm.seq_len,
        "model.tensor_model_parallel_size": plan.tp,
        "model.pipeline_model_parallel_size": plan.pp,
        "model.virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else "null",
        "model.context_parallel_size": plan.cp,
        "model.expert_model_parallel_size": plan.ep,
        "model.sequence_parallel": plan.sequence_parallel,
        "ddp.use_distributed_optimizer": zero >= 1,
        "ddp.overlap_grad_reduce": plan.overlap_dp,
        "ddp.overlap_param_gather": plan.overlap_dp and zero >= 1,
        "ddp.grad_reduce_in_fp32": plan.grad_bytes == 4,
        "mixed_precision": _MIXED[plan.precision],
    }
    if zero >= 2:
        fields["ddp.use_megatron_fsdp"] = True
        strategy = "optim_grads_params" if zero == 3 else "optim_grads"
        fields["ddp.data_parallel_sharding_strategy"] = strategy
        if plan.shards:
            fields["ddp.num_distributed_optimizer_instances"] = plan.dp // plan.shards
    if plan.offload_layers:
        fields |= {
            "model.cpu_offloading": True,
            "model.cpu_offloading_num_layers": plan.offload_layers,
        }
    if plan.layers_per_stage is not None:
        fields["model.pipeline_model_parallel_layout"] = f"'{_layout(llm, plan)}'"
    if plan.recompute == "full":
        fields |= {
            "model.recompute_granularity": "full",
            "model.recompute_method": "uniform",
            "model.recompute_num_layers": 1,
        }
    elif plan.recompute == "selective":
        fields["model.recompute_granularity"] = "selective"
        fields["model.recompute_modules"] = f"'[{_modules(llm, plan, ',')}]'"
    return [
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in fields.items()
    ] + bridge_fine_tuning(BRIDGE, llm, plan)


def _check(plan: Plan, framework: str) -> None:
    if plan.shards and plan.cp > 1:
        raise PlanError(f"{framework} has no shards beside cp here", fields=("shards", "cp"))
    if plan.splits_backward or plan.schedule == "gpipe":
        raise PlanError(f"{framework} has no schedule {plan.schedule}", fields=("schedule",))
    if plan.zero >= 2 and plan.pp > 1:
        raise PlanError(f"{framework} has no zero {plan.zero} with pp > 1", fields=("zero", "pp"))
