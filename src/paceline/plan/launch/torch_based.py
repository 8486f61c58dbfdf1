"""torchtitan v0.2.2, DeepSpeed v0.19.5 and Hugging Face Accelerate v1.14.0.

Names: ``torchtitan/config/job_config.py``; ``deepspeed/runtime/constants.py``,
``zero/config.py`` and ``tensor_parallel/config.py``; ``accelerate/commands/launch.py`` and
``examples/torch_native_parallelism/configs``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from paceline.errors import ModelError
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.memory_rules import EXPANDABLE_SEGMENTS
from paceline.model.plan import Plan
from paceline.plan.launch.exclusions import ACCELERATE, DEEPSPEED, TORCHTITAN, refuse_excluded
from paceline.plan.launch.fine_tuning import (
    refuse,
    refuse_adapters,
    script_lines,
    torchtitan_flavor,
)
from paceline.plan.launch.megatron import torchrun
from paceline.units import count

#: Schedule -> its name in torch.distributed.pipelining.
_SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zb-h1": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}

#: Preset -> its model and flavor (``torchtitan/models/*/__init__.py``).
_MODELS = {
    **{f"{family}-{size}": ("llama3", size.upper())
       for family in ("llama3", "llama3.1") for size in ("8b", "70b", "405b")},
    **{f"qwen3-{size}": ("qwen3", size.upper())
       for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b", "30b-a3b", "235b-a22b")},
    "deepseek-v3": ("deepseek_v3", "671B"),
}  # fmt: skip

Table = dict[str, Any]


def torchtitan_config(llm: LLM, plan: Plan, node_gpus: int, steps: int | None = None) -> str:
    """A TOML file for ``run_train.sh``.

    Args:
        llm: the model.
        plan: the plan.
        node_gpus: GPUs of a node.
        steps: number of steps to train; None = torchtitan's default.

    Raises:
        PlanError: torchtitan cannot express the plan.
    """
    tables = torchtitan_tables(llm, plan)
    if steps is not None:
        tables["training"]["steps"] = steps
    text = [
        f"# {TORCHTITAN}: {EXPANDABLE_SEGMENTS} \\",
        f"# {torchrun(plan, node_gpus)} -m torchtitan.train --job.config_file THIS_FILE",
        *_to_replace(llm),
    ]
    text += ["# Add [training] steps (--tokens fills them in)."] if steps is None else []
    flavor = torchtitan_flavor(TORCHTITAN, llm, plan)
    text += [f"# Documents attend to themselves alone: take {flavor}."] if flavor else []
    for name, table in tables.items():
        text += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(text)


def _preset_of(llm: LLM) -> str:
    """The preset that the model is, but for its sequences; "" if it is none, or another size."""
    try:
        preset = llm_preset(llm.name)
    except ModelError:
        return ""
    return llm.name if replace(llm, seq_len=preset.seq_len) == preset else ""


def _to_replace(llm: LLM) -> list[str]:
    """Comments on the words that the user replaces."""
    if _preset_of(llm) in _MODELS:
        return [f"# {llm.name}: replace HF_ASSETS, the tokenizer's folder."]
    return [
        f"# {llm.name}: replace MODEL, a folder of torchtitan/models, FLAVOR, one of the sizes in",
        "# its __init__.py, and HF_ASSETS, the tokenizer's folder. Llama 3.1 8B, for example,",
        "# has llama3 and 8B.",
    ]


def torchtitan_tables(llm: LLM, plan: Plan) -> dict[str, Table]:
    """TOML table -> its keys."""
    refuse_excluded(TORCHTITAN, plan)
    refuse(TORCHTITAN, "a hybrid model", bool(llm.pattern))
    gated = llm.delta is not None or llm.gated_attention
    refuse(TORCHTITAN, "linear or gated attention", gated)
    refuse(TORCHTITAN, "sparse attention", llm.index is not None)
    refuse(TORCHTITAN, "compressed attention", llm.compressed is not None)
    refuse(TORCHTITAN, "latent experts", llm.moe is not None and llm.moe.latent > 0)
    refuse(TORCHTITAN, f"schedule {plan.schedule}", plan.schedule not in _SCHEDULES)
    refuse(TORCHTITAN, "activations in the host's memory", plan.offload_layers > 0)
    refuse_adapters(TORCHTITAN, plan)
    asynchronous = plan.overlap_tp and plan.tp > 1
    refuse(TORCHTITAN, "overlap_tp in eager kernels", asynchronous and plan.kernels == "eager")
    unknown = plan.precision in ("fp16", "fp32", "nvfp4")
    refuse(TORCHTITAN, f"precision {plan.precision}", unknown)
    sharded, shard = plan.zero >= 2, _shard_size(plan)
    parallelism: Table = {
        "data_parallel_replicate_degree": plan.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "never" if plan.zero == 2 else "default",
        "tensor_parallel_degree": plan.tp,
        "enable_async_tensor_parallel": asynchronous,
        "pipeline_parallel_degree": plan.pp,
        "context_parallel_degree": plan.cp,
        "expert_parallel_degree": plan.ep,
    }
    local = plan.global_batch // plan.dp if plan.pp > 1 else plan.micro_batch
    if plan.pp > 1:
        parallelism["pipeline_parallel_schedule"] = _SCHEDULES[plan.schedule]
        parallelism["pipeline_parallel_microbatch_size"] = plan.micro_batch
        parallelism["module_fqns_per_model_part"] = _parts(llm, plan)
    modes = {"none": "none", "selective": "selective", "full": "full"}
    # Compiled components of an eager model: the loss alone (``cli/memory_options.py``).
    components = ["loss"] if plan.kernels == "eager" else ["model", "loss"]
    name, flavor = _MODELS.get(_preset_of(llm), ("MODEL", "FLAVOR"))
    tables: dict[str, Table] = {
        "model": {"name": name, "flavor": flavor, "hf_assets_path": "HF_ASSETS"},
        "training": {
            "local_batch_size": local,
            "global_batch_size": plan.global_batch,
            "seq_len": llm.seq_len,
        },
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": modes[plan.recompute], "selective_ac_option": "op"},
        "compile": {"enable": True, "components": components},
    }
    if plan.precision == "fp8":
        tables["model"]["converters"] = ["quantize.linear.float8"]
        tables["quantize.linear.float8"] = {
            "enable_fsdp_float8_all_gather": sharded,
            "filter_fqns": ["output"],
        }
    return tables


def _parts(llm: LLM, plan: Plan) -> list[list[str]]:
    """Modules of every chunk in model order, in the form of ``module_fqns_per_model_part``."""
    parts = [[f"layers.{i}" for i in layers] for layers in plan.chunk_layers(llm)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _toml(value: object) -> str:
    return json.dumps(value)  # equal for strings, numbers, booleans and lists


def deepspeed_config(llm: LLM, plan: Plan, node_gpus: int, steps: int | None = None) -> str:
    """The file of ``--deepspeed_config``.

    Samples and adapters are the script's (:func:`~paceline.plan.launch.fine_tuning.script_lines`).

    Raises:
        PlanError: a DeepSpeed configuration cannot express the plan.
    """
    del node_gpus, steps  # set by the script
    script_lines(DEEPSPEED, llm, plan)
    return json.dumps(deepspeed_keys(plan), indent=2)


def deepspeed_start(plan: Plan, node_gpus: int) -> list[str]:
    """The command that starts DeepSpeed, and the files that it needs on several nodes.

    ``launcher/runner.py`` passes few variables on to other nodes: it reads ``.deepspeed_env``.
    """
    nodes, ranks = -(-plan.gpus // node_gpus), min(node_gpus, plan.gpus)
    script = f"--num_gpus {ranks} your_script.py --deepspeed_config deepspeed.json"
    if nodes == 1:
        return [f"start with: {EXPANDABLE_SEGMENTS} deepspeed {script}"]
    return [
        f"start with: deepspeed --hostfile HOSTFILE --num_nodes {nodes} {script}",
        f"HOSTFILE has a line for each node: NAME slots={ranks}",
        f"the file .deepspeed_env, where you start it, has the line {EXPANDABLE_SEGMENTS}",
    ]


def deepspeed_keys(plan: Plan) -> Table:
    """The keys of the configuration."""
    refuse(DEEPSPEED, "pp > 1 in its configuration (a PipelineModule has its own)", plan.pp > 1)
    refuse(DEEPSPEED, "cp > 1 (Ulysses splits heads)", plan.cp > 1)
    refuse(DEEPSPEED, "ep > 1 in its configuration", plan.ep > 1)
    refuse(DEEPSPEED, f"{plan.precision} in its configuration", plan.quantised)
    refuse(
        DEEPSPEED,
        "selective recomputation (models of transformers repeat whole layers)",
        plan.recompute == "selective",
    )
    refuse(
        DEEPSPEED,
        "zero 0 with gradients in fp32 beside 16-bit weights (zero 1 can)",
        plan.zero == 0 and plan.grad_bytes == 4 and plan.precision != "fp32",
    )
    refuse(DEEPSPEED, "shards (its hpZ and MiCS shard otherwise)", plan.shards > 0)
    refuse(DEEPSPEED, "offload_layers in its configuration", plan.offload_layers > 0)
    refuse_excluded(DEEPSPEED, plan)
    keys: Table = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.microbatches,
        "zero_optimization": {"stage": plan.zero, "overlap_comm": plan.overlap_dp},
        "gradient_clipping": 1.0,
    }
    if plan.precision in ("bf16", "fp16"):
        keys[plan.precision] = {"enabled": True}
    if plan.grad_bytes == 4 and plan.precision != "fp32":
        keys["data_types"] = {"grad_accum_dtype": "fp32"}
    if plan.tp > 1:
        keys["tensor_parallel"] = {"autotp_size": plan.tp}
    return keys


#: Keys of several machines (``ClusterConfig`` in ``commands/config/config_args.py``).
_MEETING_POINT: Table = {
    "machine_rank": 0,
    "main_process_ip": "HOST",
    "main_process_port": 29500,
}


def accelerate_config(llm: LLM, plan: Plan, node_gpus: int, steps: int | None = None) -> str:
    """The file of ``accelerate launch --config_file``. The script sets batch sizes.

    Raises:
        PlanError: Accelerate's configuration cannot express the plan.
    """
    nodes = -(-plan.gpus // node_gpus)
    length = "" if steps is None else f", max_steps {steps}"
    rank = "" if nodes == 1 else " --machine_rank N"
    text = [
        f"# {ACCELERATE}: {EXPANDABLE_SEGMENTS} \\",
        f"# accelerate launch --config_file THIS_FILE{rank} your_script.py",
    ]
    if nodes > 1:
        text.append(
            f"# Run it on each of the {nodes} machines; N is its number, from 0. Replace HOST: the "
            "address of machine 0."
        )
    text += [
        f"# In the script: a micro batch of {count(plan.micro_batch, 'sample')} of "
        f"{llm.seq_len:,} tokens (per_device_train_batch_size), "
        f"gradient_accumulation_steps {plan.microbatches}{length}.",
        *(f"# In the script: {line}." for line in script_lines(ACCELERATE, llm, plan)),
    ]
    keys = {**accelerate_keys(plan), "num_machines": nodes, "num_processes": plan.gpus}
    keys |= _MEETING_POINT if nodes > 1 else {}
    for name, value in keys.items():
        if isinstance(value, dict):
            text += [f"{name}:", *(f"  {key}: {_toml(item)}" for key, item in value.items())]
        else:
            text.append(f"{name}: {_toml(value)}")
    return "\n".join(text)


def accelerate_keys(plan: Plan) -> Table:
    """The keys of the configuration, without the numbers of machines and processes."""
    refuse(ACCELERATE, "pp > 1", plan.pp > 1)
    refuse(ACCELERATE, "ep > 1", plan.ep > 1)
    refuse(ACCELERATE, "nvfp4", plan.precision == "nvfp4")
    refuse(ACCELERATE, "offload_layers", plan.offload_layers > 0)
    refuse(ACCELERATE, "selective recomputation", plan.recompute == "selective")
    refuse_excluded(ACCELERATE, plan)
    precision = {"fp32": "no", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}[plan.precision]
    if plan.zero == 0:
        refuse(ACCELERATE, "recomputation without FSDP", plan.recompute == "full")
        return {"distributed_type": "MULTI_GPU", "mixed_precision": precision}
    shard = _shard_size(plan)
    return {
        "distributed_type": "FSDP",
        "mixed_precision": precision,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": plan.zero == 3,
            "fsdp_activation_checkpointing": plan.recompute == "full",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": plan.dp // shard,
            "parallelism_config_dp_shard_size": shard,
            "parallelism_config_tp_size": plan.tp,
            "parallelism_config_cp_size": plan.cp,
        },
    }


def _shard_size(plan: Plan) -> int:
    """Number of replicas that share the parameters, without context-parallel ranks."""
    return (plan.shards // plan.cp or plan.dp) if plan.zero >= 2 else 1
