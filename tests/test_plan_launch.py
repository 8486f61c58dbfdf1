"""Launch files: names that the frameworks know, and values that say the plan.

The lists below were read in the frameworks' sources at the versions named; the writers' own
parsers (Megatron-LM's ``add_megatron_arguments``, torchtitan's ``JobConfig``, Accelerate's
``load_config_from_file``) took files of all kinds when the lists were made.
"""

import json
import re
import shlex
import tomllib
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product

import pytest

import requires
from paceline.errors import PlanError
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.model.packing import Packing
from paceline.model.plan import Plan
from paceline.plan.launch import torch_based
from paceline.plan.launch.exclusions import ACCELERATE, DEEPSPEED, TORCHTITAN
from paceline.plan.launch.files import (
    FRAMEWORKS,
    SPACES,
    best_launch,
    launch_notes,
    launch_text,
)
from paceline.plan.launch.megatron import BRIDGE, MEGATRON, megatron_command
from paceline.plan.launch.torch_based import accelerate_keys
from paceline.plan.search import search

LLAMA, MIXTRAL = llm_preset("llama3-8b"), llm_preset("mixtral-8x7b")
PACKED = replace(LLAMA, packing=Packing(documents={512: 30, 4096: 2}))
PADDED = replace(LLAMA, packing=Packing(padding=0.05))

#: Megatron-LM core_v0.19.0: megatron/training/arguments.py, config/*.py, core/**/*_config.py.
MEGATRON_FLAGS = {
    "cpu-offloading-num-layers",
    "num-distributed-optimizer-instances",
    "num-layers",
    "hidden-size",
    "ffn-hidden-size",
    "num-attention-heads",
    "seq-length",
    "max-position-embeddings",
    "normalization",
    "position-embedding-type",
    "group-query-attention",
    "num-query-groups",
    "swiglu",
    "disable-bias-linear",
    "untie-embeddings-and-output-weights",
    "num-experts",
    "moe-router-topk",
    "moe-ffn-hidden-size",
    "moe-grouped-gemm",
    "moe-token-dispatcher-type",
    "rotary-base",
    "hidden-dropout",
    "attention-dropout",
    "train-iters",
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "context-parallel-size",
    "expert-model-parallel-size",
    "expert-tensor-parallel-size",
    "micro-batch-size",
    "global-batch-size",
    "num-virtual-stages-per-pipeline-rank",
    "pipeline-model-parallel-layout",
    "sequence-parallel",
    "use-distributed-optimizer",
    "overlap-grad-reduce",
    "overlap-param-gather",
    "use-megatron-fsdp",
    "data-parallel-sharding-strategy",
    "ckpt-format",
    "recompute-granularity",
    "recompute-modules",
    "recompute-method",
    "recompute-num-layers",
    "bf16",
    "fp16",
    "fp8-format",
    "accumulate-allreduce-grads-in-fp32",
    "grad-reduce-in-bf16",
    "attention-backend",
    "tp-comm-overlap",
    "dataloader-inter-document-masking",
    "reset-position-ids",
    "reset-attention-mask",
    "sft",
    "tokenizer-type",
    "no-create-attention-mask-in-dataloader",
}
#: torchtitan v0.2.2: torchtitan/config/job_config.py.
TORCHTITAN_KEYS = {
    "training": {"local_batch_size", "global_batch_size", "seq_len"},
    "parallelism": {
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "fsdp_reshard_after_forward",
        "tensor_parallel_degree",
        "enable_async_tensor_parallel",
        "pipeline_parallel_degree",
        "context_parallel_degree",
        "expert_parallel_degree",
        "pipeline_parallel_schedule",
        "pipeline_parallel_microbatch_size",
        "module_fqns_per_model_part",
    },
    "activation_checkpoint": {"mode", "selective_ac_option"},
    "compile": {"enable", "components"},
    "model": {"name", "flavor", "hf_assets_path", "converters"},
    "quantize": {"linear"},
}
#: Megatron-Bridge v0.6.0: training/config.py, and Megatron-Core's DistributedDataParallelConfig.
BRIDGE_KEYS = {
    "model.cpu_offloading",
    "model.cpu_offloading_num_layers",
    "ddp.num_distributed_optimizer_instances",
    "train.micro_batch_size",
    "train.global_batch_size",
    "dataset.seq_length",
    "model.tensor_model_parallel_size",
    "model.pipeline_model_parallel_size",
    "model.virtual_pipeline_model_parallel_size",
    "model.context_parallel_size",
    "model.expert_model_parallel_size",
    "model.sequence_parallel",
    "ddp.use_distributed_optimizer",
    "ddp.overlap_grad_reduce",
    "ddp.overlap_param_gather",
    "ddp.grad_reduce_in_fp32",
    "mixed_precision",
    "ddp.use_megatron_fsdp",
    "ddp.data_parallel_sharding_strategy",
    "model.pipeline_model_parallel_layout",
    "model.recompute_granularity",
    "model.recompute_method",
    "model.recompute_num_layers",
    "model.recompute_modules",
    "dataset.enable_offline_packing",
    "dataset.offline_packing_specs",
    "++dataset.dataset_kwargs.pad_to_max_length",
    "checkpoint.pretrained_checkpoint",
    "peft.dim",
    "peft.target_modules",
}
#: DeepSpeed v0.19.5: deepspeed/runtime/constants.py, zero/config.py, tensor_parallel/config.py.
DEEPSPEED_KEYS = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization",
    "gradient_clipping",
    "bf16",
    "fp16",
    "data_types",
    "tensor_parallel",
}
#: Accelerate v1.14.0: commands/launch.py, examples/torch_native_parallelism/configs.
ACCELERATE_KEYS = {
    "distributed_type",
    "mixed_precision",
    "fsdp_config",
    "fsdp_version",
    "fsdp_auto_wrap_policy",
    "fsdp_reshard_after_forward",
    "fsdp_activation_checkpointing",
    "fsdp_state_dict_type",
    "parallelism_config",
    "parallelism_config_dp_replicate_size",
    "parallelism_config_dp_shard_size",
    "parallelism_config_tp_size",
    "parallelism_config_cp_size",
    "num_machines",
    "num_processes",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
}

PLANS = [
    Plan(dp=8, global_batch=64, zero=0),
    Plan(dp=8, global_batch=64, zero=3, recompute="full", micro_batch=2),
    Plan(dp=8, global_batch=64, zero=2, recompute="selective", grad_bytes=2),
    Plan(tp=2, pp=4, dp=2, vpp=2, cp=2, global_batch=32, sequence_parallel=True, overlap_tp=True),
    Plan(pp=4, dp=2, global_batch=32, layers_per_stage=(7, 9, 9, 7), precision="fp8"),
    Plan(tp=2, dp=8, global_batch=32, zero=3, precision="fp8", recompute="selective"),
    Plan(tp=2, dp=8, global_batch=32, zero=3, sequence_parallel=True),
    Plan(dp=8, cp=2, global_batch=32, zero=3),
    Plan(tp=2, dp=8, global_batch=32, precision="fp16", flash=False, recompute="selective"),
    Plan(dp=8, cp=2, global_batch=32, zero=0),
    Plan(dp=8, global_batch=32, zero=3, shards=4),
    Plan(dp=8, global_batch=32, zero=3, offload_layers=16),
    Plan(tp=2, dp=8, cp=2, global_batch=32, zero=3, shards=4),
]


def test_the_versions_that_the_names_were_read_at():
    assert MEGATRON == "Megatron-LM core_v0.19.0"
    assert BRIDGE == "Megatron-Bridge v0.6.0"
    assert TORCHTITAN == "torchtitan v0.2.2"
    assert DEEPSPEED == "DeepSpeed v0.19.5"
    assert ACCELERATE == "Hugging Face Accelerate v1.14.0"


def texts(framework):
    """Texts of all plans that the framework can express, at least three."""
    found = []
    for llm in (LLAMA, MIXTRAL, PACKED, PADDED):
        for plan in [*PLANS, *([replace(PLANS[5], ep=8)] if llm is MIXTRAL else [])]:
            with suppress(PlanError):
                found.append((plan, launch_text(framework, llm, plan)))
    assert len(found) >= 3
    return found


def test_megatron_flags():
    seen = set()
    for plan, text in texts("megatron"):
        words = shlex.split(text.replace("\\\n", " "), comments=True)
        flags = [word[2:] for word in words[words.index("pretrain_gpt.py") :] if word[:2] == "--"]
        assert len(flags) == len(set(flags))
        seen |= set(flags)
        assert words[words.index("--tensor-model-parallel-size") + 1] == str(plan.tp)
        assert words[words.index("--global-batch-size") + 1] == str(plan.global_batch)
        if plan.layers_per_stage:
            layout = words[words.index("--pipeline-model-parallel-layout") + 1]
            assert layout == "Et*7|t*9|t*9|t*7L"
        assert ("--use-megatron-fsdp" in words) == (plan.zero >= 2)
    assert seen == MEGATRON_FLAGS


def test_megatron_bridge_overrides():
    for plan, text in texts("nemo"):
        keys = dict(re.findall(r"^  ([\w.+]+)=(.*?)(?: \\)?$", text, flags=re.M))
        assert set(keys) <= BRIDGE_KEYS
        assert keys["model.pipeline_model_parallel_size"] == str(plan.pp)
        assert keys["ddp.grad_reduce_in_fp32"] == str(plan.grad_bytes == 4).lower()


def test_torchtitan_tables():
    for plan, text in texts("torchtitan"):
        tables = tomllib.loads(text)
        for name, table in tables.items():
            assert set(table) <= TORCHTITAN_KEYS[name]
        degrees = tables["parallelism"]
        gpus = [f"{name}_parallel_degree" for name in ("tensor", "pipeline", "context")]
        gpus += ["data_parallel_shard_degree", "data_parallel_replicate_degree"]
        product = 1
        for name in gpus:
            product *= degrees[name]
        assert product == plan.gpus
        local = tables["training"]["local_batch_size"]
        assert local == (plan.global_batch // plan.dp if plan.pp > 1 else plan.micro_batch)


def test_torchtitan_splits_uneven_layers():
    plan = Plan(pp=4, dp=2, zero=3, global_batch=32, layers_per_stage=(7, 9, 9, 7))
    tables = tomllib.loads(launch_text("torchtitan", LLAMA, plan))
    parts = tables["parallelism"]["module_fqns_per_model_part"]
    assert [len(part) for part in parts] == [8, 9, 9, 9]
    assert (parts[0][0], parts[-1][-2:]) == ("tok_embeddings", ["norm", "output"])


def test_torchtitan_names_the_words_that_the_user_replaces():
    """v0.2.2, ``config/job_config.py``: class Model, whose defaults are a tiny model's."""
    plan = Plan(dp=8, global_batch=64, zero=3)
    own = replace(LLAMA, name="my-llama", layers=30)
    text = launch_text("torchtitan", own, plan)
    model = tomllib.loads(text)["model"]
    assert model == {"name": "MODEL", "flavor": "FLAVOR", "hf_assets_path": "HF_ASSETS"}
    head = " ".join(line[2:] for line in text.splitlines() if line.startswith("# "))
    assert all(f"{word}, " in head for word in model.values())
    fp8 = tomllib.loads(launch_text("torchtitan", own, replace(plan, precision="fp8")))
    assert fp8["model"] == {**model, "converters": ["quantize.linear.float8"]}


@pytest.mark.parametrize(("preset", "model"), torch_based._MODELS.items())
def test_torchtitan_has_the_names_of_presets(preset, model):
    """v0.2.2, ``models/*/__init__.py``; another size under the same name is no preset."""
    plan = Plan(dp=8, global_batch=64, zero=3)
    llm = replace(llm_preset(preset), seq_len=2048)
    names = tomllib.loads(launch_text("torchtitan", llm, plan))["model"]
    assert (names["name"], names["flavor"]) == model
    other = launch_text("torchtitan", replace(llm, layers=llm.layers + 1), plan)
    assert tomllib.loads(other)["model"]["name"] == "MODEL"


def test_torchtitan_compiles_the_model_unless_its_kernels_are_eager():
    plan = Plan(tp=2, dp=4, global_batch=64, zero=3, sequence_parallel=True)
    for kernels, components in (
        *((kernels, ["model", "loss"]) for kernels in ("auto", "compiled")),
        ("eager", ["loss"]),
    ):
        tables = tomllib.loads(launch_text("torchtitan", LLAMA, replace(plan, kernels=kernels)))
        assert tables["compile"] == {"enable": True, "components": components}
    # v0.2.2, ``maybe_enable_async_tp``: it needs a compiled model.
    launch_text("torchtitan", LLAMA, replace(plan, overlap_tp=True))
    with pytest.raises(PlanError, match="overlap_tp in eager kernels"):
        launch_text("torchtitan", LLAMA, replace(plan, overlap_tp=True, kernels="eager"))


def test_deepspeed_keys_multiply_to_the_batch():
    for plan, text in texts("deepspeed"):
        keys = json.loads(text)
        assert set(keys) <= DEEPSPEED_KEYS
        steps = keys["gradient_accumulation_steps"] * keys["train_micro_batch_size_per_gpu"]
        assert steps * plan.dp == keys["train_batch_size"]
        assert keys["zero_optimization"]["stage"] == plan.zero


def test_accelerate_keys():
    for plan, text in texts("accelerate"):
        keys = dict(re.findall(r"^ *(\w+): ?(.*)$", text, flags=re.M))
        assert set(keys) <= ACCELERATE_KEYS
        assert keys["num_processes"] == str(plan.gpus)
        if plan.zero == 3:
            size = plan.shards // plan.cp or plan.dp
            assert keys["parallelism_config_dp_shard_size"] == str(size)
            assert keys["parallelism_config_dp_replicate_size"] == str(plan.dp // size)
            assert keys["fsdp_reshard_after_forward"] == "true"


def test_several_machines_of_accelerate_meet():
    """v1.14.0: --machine_rank goes before the file's, each machine gives its own."""
    plan = Plan(dp=16, zero=3, micro_batch=2, global_batch=64)
    text = launch_text("accelerate", LLAMA, plan)
    keys = dict(re.findall(r"^(\w+): ?(.+)$", text, flags=re.M))
    assert (keys["num_machines"], keys["machine_rank"]) == ("2", "0")
    assert (keys["main_process_ip"], keys["main_process_port"]) == ('"HOST"', "29500")
    assert "--machine_rank N your_script.py" in text
    assert "on each of the 2 machines; N is its number, from 0. Replace HOST:" in text
    assert "a micro batch of 2 samples of 8,192 tokens (per_device_train_batch_size)" in text
    one = launch_text("accelerate", LLAMA, replace(plan, dp=8, micro_batch=1))
    assert "a micro batch of 1 sample of 8,192 tokens" in one
    assert "HOST" not in one
    assert "machine_rank" not in one


def test_the_start_of_deepspeed():
    """v0.19.5, ``launcher/runner.py``: the arguments, and the variables that reach other nodes."""
    variable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    script = "your_script.py --deepspeed_config deepspeed.json"
    plan = Plan(dp=4, global_batch=64)
    assert launch_notes("deepspeed", LLAMA, plan) == [
        f"start with: {variable} deepspeed --num_gpus 4 {script}"
    ]
    assert launch_notes("deepspeed", LLAMA, replace(plan, dp=16)) == [
        f"start with: deepspeed --hostfile HOSTFILE --num_nodes 2 --num_gpus 8 {script}",
        "HOSTFILE has a line for each node: NAME slots=8",
        f"the file .deepspeed_env, where you start it, has the line {variable}",
    ]


@pytest.mark.filterwarnings("ignore")  # DeepSpeed's own
def test_deepspeed_itself_refuses_gradients_in_fp32_without_zero():
    """v0.19.5, ``engine.py``, ``_do_optimizer_sanity_check``: an unsupported mix of types."""
    requires.installed("deepspeed")
    import torch
    from deepspeed.runtime.engine import DeepSpeedEngine

    engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
    engine.get_data_types = lambda: (torch.bfloat16, torch.float32)
    engine.zero_optimization = engine.amp_enabled = lambda: False
    with pytest.raises(NotImplementedError, match="unsupported mix"):
        engine._do_optimizer_sanity_check(None)


def test_deepspeeds_script_repeats_whole_layers():
    plan = Plan(dp=4, global_batch=64, recompute="full")
    line = "in the script: model.activation_checkpointing_enable(), or gradient_"
    assert line in "".join(launch_notes("deepspeed", LLAMA, plan))
    assert "script: " not in "".join(
        launch_notes("deepspeed", LLAMA, replace(plan, recompute="none"))
    )


@pytest.mark.filterwarnings("ignore")  # DeepSpeed's own
def test_deepspeed_itself_takes_the_start():
    requires.installed("deepspeed")
    from deepspeed.launcher.runner import parse_args

    line = launch_notes("deepspeed", LLAMA, Plan(dp=16, global_batch=64))[0]
    args = parse_args(shlex.split(line.partition("deepspeed ")[2]))
    assert (args.hostfile, args.num_nodes, args.num_gpus) == ("HOSTFILE", 2, 8)
    assert args.user_args == ["--deepspeed_config", "deepspeed.json"]


def sharded_plans():
    """Plans of two to sixteen GPUs with all ways to share out their parameters."""
    for tp, dp, cp, zero, shards in product((1, 2), (1, 2, 4), (1, 2), (0, 2, 3), (0, 1, 2, 4)):
        ranks = dp * cp
        hybrid = zero == 3 and shards < ranks and ranks % max(1, shards) == shards % cp == 0
        if tp * ranks > 1 and (shards == 0 or hybrid):
            yield Plan(tp=tp, dp=dp, cp=cp, zero=zero, shards=shards, global_batch=8)


def test_accelerate_itself_takes_the_sizes_of_the_written_plans_alone():
    requires.installed("accelerate")
    from accelerate.parallelism_config import ParallelismConfig

    seen = set()
    for plan in sharded_plans():
        try:
            degrees = accelerate_keys(plan).get("parallelism_config")
        except PlanError:
            degrees = None
            shard = (plan.shards // plan.cp or plan.dp) if plan.zero >= 2 else 1
            try:
                taken = ParallelismConfig(plan.dp // shard, shard, plan.tp, plan.cp)
            except ValueError:
                seen.add("refused")
                continue
            # FSDP over the ranks of cp, or no mesh for it.
            assert plan.zero == 0 or not taken.dp_shard_cp_dim_names, plan
        else:
            if degrees is not None:
                sizes = ParallelismConfig(*degrees.values())
                assert sizes.total_size == plan.gpus
                assert sizes.dp_shard_cp_dim_names, plan
                seen.add("written")
    assert seen == {"refused", "written"}


def test_searches_leave_out_what_torchtitan_cannot_express():
    """v0.2.2, ``parallel_dims.py``: with cp > 1 it is FSDP, whatever data_parallel_shard_degree."""
    result = search(
        LLAMA, cluster_preset("h100"), 64, 128, micro_batches=(1,),
        **SPACES["torchtitan"] | {"max_pp": 2, "max_vpp": 1, "zeros": (0, 3)},
    )  # fmt: skip
    plans = [result.legal.plan(i) for i in range(len(result.legal))]
    assert all(plan.tp * plan.pp * plan.cp == 1 for plan in plans if plan.zero == 0)
    assert any(plan.cp > 1 for plan in plans)
    assert all(plan.sequence_parallel for plan in plans if plan.tp > 1)
    reason = "torchtitan v0.2.2 cannot express tp, pp, cp or ep > 1 without FSDP (zero 2 or 3)"
    assert result.pruned[reason] > 0
    for plan in plans:
        launch_text("torchtitan", LLAMA, plan)


def test_a_search_without_a_plan_names_the_rules_of_the_framework():
    rules = SPACES["torchtitan"]["exclusions"]
    h100 = cluster_preset("h100")
    with pytest.raises(PlanError, match=r"express zero 1; .*\. Try another zero or sequence_par"):
        search(LLAMA, h100, 8, 64, zeros=(1,), max_pp=1, exclusions=rules)
    with pytest.raises(PlanError, match="use zero 3, GPUs with more memory"):
        search(llm_preset("llama3-70b"), h100, 8, 64, zeros=(0,), exclusions=rules)


def test_better_plans_that_are_skipped_are_named():
    small = replace(llm_preset("llama3.2-1b"), packing=Packing(documents={512: 8, 4096: 1}))
    result = search(
        small, cluster_preset("h100"), 8, 64, micro_batches=(1, 2), max_tp=1, max_pp=1, max_cp=1,
        recomputes=("none",), zeros=(1,),
    )  # fmt: skip
    launch = best_launch("nemo", result)
    (skipped,) = launch.skipped
    assert (launch.place, skipped.place) == (1, 0)
    assert str(skipped) == (
        "skipped plan 1 (tp1 pp1 dp8 mb2 zero1): Megatron-Bridge v0.6.0 cannot express packed "
        "documents with micro batch 2; a packed sample is a microbatch"
    )
    assert skipped.to_mapping()["rank"] == 1
    more = skipped._replace(plans=3)
    assert str(more).startswith("skipped plan 1 (tp1 pp1 dp8 mb2 zero1) and 2 other plans: Meg")


def test_accelerate_itself_takes_the_file(tmp_path):
    requires.installed("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    path = tmp_path / "accelerate.yaml"
    path.write_text(launch_text("accelerate", LLAMA, replace(PLANS[1], dp=16)))
    config = load_config_from_file(str(path))
    assert (config.num_processes, config.num_machines) == (16, 2)
    assert (config.main_process_ip, config.main_process_port) == ("HOST", 29500)
    assert config.fsdp_config["fsdp_activation_checkpointing"] is True


@pytest.mark.parametrize(
    ("framework", "fields", "why"),
    [
        ("torchtitan", {"zero": 1}, "zero 1"),
        ("torchtitan", {"zero": 0, "cp": 4}, r"cp or ep > 1 without FSDP \(zero 2 or 3\)"),
        ("torchtitan", {"zero": 0, "pp": 2}, "without FSDP"),
        ("torchtitan", {"dp": 1, "tp": 2, "sequence_parallel": True}, "without FSDP"),
        ("torchtitan", {"zero": 3, "tp": 2}, "tp > 1 without sequence_parallel"),
        ("accelerate", {"zero": 0, "cp": 4}, "tp or cp > 1 without FSDP"),
        ("accelerate", {"zero": 3, "shards": 2, "cp": 2}, "shards of context-parallel ranks"),
        ("accelerate", {"zero": 3, "tp": 2, "sequence_parallel": True}, "sequence_parallel"),
        ("deepspeed", {"zero": 1, "tp": 2, "sequence_parallel": True}, "sequence_parallel"),
        ("deepspeed", {"pp": 2}, "pp > 1"),
        ("deepspeed", {"zero": 0}, "zero 0 with gradients in fp32"),
        ("deepspeed", {"zero": 2, "recompute": "selective"}, "selective"),
        ("accelerate", {"pp": 2, "zero": 0}, "pp > 1"),
        ("accelerate", {"zero": 3, "recompute": "selective"}, "selective"),
        ("megatron", {"pp": 2, "schedule": "gpipe"}, "gpipe"),
        ("nemo", {"precision": "fp32"}, "fp32"),
        ("torchrun", {}, "no framework"),
        ("deepspeed", {"zero": 3, "shards": 2}, "hpZ and MiCS"),
        ("megatron", {"zero": 3, "shards": 2, "cp": 2}, "shards beside cp"),
    ],
)
def test_what_a_framework_cannot_express(framework, fields, why):
    with pytest.raises(PlanError, match=why):
        launch_text(framework, LLAMA, Plan(**{"dp": 4, "global_batch": 64} | fields))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("gpus", [8, 64])
def test_a_search_for_each_framework_ends_in_a_file(framework, gpus):
    result = search(
        LLAMA, cluster_preset("h100"), gpus, 128, micro_batches=(1,),
        **{"max_pp": 4, "max_vpp": 2} | SPACES[framework],
    )  # fmt: skip
    launch = best_launch(framework, result)
    assert (launch.place, launch.skipped) == (0, ())  # nothing is tried that it cannot express
    assert launch.text == launch_text(framework, LLAMA, result.plan(0))


@pytest.mark.parametrize("framework", ["megatron", "nemo", "torchtitan", "accelerate"])
def test_launches_have_the_segments_that_fits_takes_for_granted(framework):
    text = launch_text(framework, LLAMA, Plan(dp=8, global_batch=8, zero=3))
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text


def test_the_environment_and_the_meeting_point_that_megatron_asks_for():
    """``validate_args`` of d98e8a6 stops without the variable, and Megatron's FSDP with it."""
    for fields, one in (
        ({"tp": 4}, True),
        ({"cp": 2}, True),
        ({}, False),
        ({"tp": 4, "zero": 3}, False),
    ):
        text = launch_text("megatron", LLAMA, Plan(dp=4, global_batch=64, **fields))
        assert ("CUDA_DEVICE_MAX_CONNECTIONS=1" in text) == one, fields
    assert "--rdzv" not in launch_text("megatron", LLAMA, Plan(dp=8, global_batch=64))
    for framework in ("megatron", "nemo", "torchtitan"):
        text = launch_text(framework, LLAMA, Plan(dp=16, global_batch=64, zero=3))
        assert "--rdzv-backend c10d --rdzv-endpoint HOST:29500" in text


def test_what_is_known_is_filled_in_and_the_rest_is_named():
    plan = Plan(dp=4, global_batch=64)
    text = launch_text("megatron", replace(LLAMA, rotary_base=0), plan)
    assert "--rotary-base ROTARY_BASE" in text  # a default would train another model
    assert "--train-iters TRAIN_ITERS" in text
    assert "# replace ROTARY_BASE: rope_theta of the model's config.json" in text
    assert "# replace TRAIN_ITERS: the steps to train (--tokens fills them in)" in text
    known = launch_text("megatron", LLAMA, plan, steps=1234)
    assert "--rotary-base 500000 " in known
    assert "--train-iters 1234\n" in known
    assert "replace" not in known
    assert "  train.train_iters=1234\n" in launch_text("nemo", LLAMA, plan, steps=1234)
    zero2 = replace(plan, zero=2)
    torchtitan = launch_text("torchtitan", LLAMA, zero2, steps=1234)
    assert tomllib.loads(torchtitan)["training"]["steps"] == 1234
    assert "--tokens" not in torchtitan
    assert "steps (--tokens" in launch_text("torchtitan", LLAMA, zero2)
    assert "max_steps 1234." in launch_text("accelerate", LLAMA, zero2, steps=1234)
    assert "--rotary-base 1000000 " in launch_text("megatron", MIXTRAL, plan)


def test_an_epsilon_of_norms_that_megatron_does_not_assume_is_a_flag():
    plan = Plan(dp=4, global_batch=64)
    for epsilon, flag in ((1e-6, "--norm-epsilon 1e-06 "), (1e-5, ""), (0.0, "")):
        text = launch_text("megatron", replace(LLAMA, norm_epsilon=epsilon), plan)
        assert flag in text
        assert ("--norm-epsilon" in text) == bool(flag)


def test_torchtitans_example_names_its_own_model():
    text = launch_text("torchtitan", MIXTRAL, Plan(dp=8, global_batch=64, zero=2))
    head = " ".join(line.removeprefix("# ") for line in text.splitlines() if line[:1] == "#")
    assert f"{MIXTRAL.name}: replace MODEL, a folder of torchtitan/models, FLAVOR, one" in head
    assert "Llama 3.1 8B, for example, has llama3 and 8B." in head


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b", "nemotron-4-15b", "gpt2-124m"])
def test_megatron_trains_without_dropouts_unless_the_model_has_them(name):
    """Megatron-LM's ``transformer_config.py`` has 0.1 for both; Llama's, Qwen's config.json 0."""
    llm = llm_preset(name)
    command = launch_text("megatron", llm, Plan(dp=4, global_batch=64))
    has_flags = [f"--{kind}-dropout 0.0 " in command for kind in ("hidden", "attention")]
    assert has_flags == [not llm.dropout] * 2
    assert llm.dropout == (name == "gpt2-124m")


@pytest.mark.parametrize(
    ("name", "has_bias"),
    [("glm-4.5-air", True), ("qwen3-30b-a3b", False), ("llama3-8b", False), ("gpt3-175b", False)],
)
def test_biases_of_queries_keys_and_values_alone_are_a_flag(name, has_bias):
    """Megatron-LM's ``transformer_config.py``: ``add_qkv_bias``, for Qwen2 and GLM-4.5."""
    command = launch_text("megatron", llm_preset(name), Plan(dp=4, global_batch=64))
    assert ("--add-qkv-bias" in command) == has_bias


def test_the_steps_of_a_search_reach_the_file():
    result = search(LLAMA, cluster_preset("h100"), 8, 128, tokens=1e9, micro_batches=(1,))
    steps = -(-(10**9) // (128 * LLAMA.seq_len))
    assert f"--train-iters {steps}\n" in best_launch("megatron", result).text


def test_modules_that_are_recomputed_are_written():
    """Megatron-LM d98e8a6, ``transformer_config.py``."""
    plan = Plan(global_batch=1, recompute="selective", recompute_modules=("mla_up_proj", "mlp"))
    command = megatron_command(llm_preset("kimi-k2"), plan, 8)
    assert "--recompute-granularity selective" in command
    assert "--recompute-modules mla_up_proj mlp" in command


def test_latent_attention_and_its_mixture_are_written():
    """The values of Megatron-LM's own file for Kimi K2.

    d98e8a6, examples/post_training/modelopt/conf/moonshotai/Kimi-K2-Instruct.sh.
    """
    command = megatron_command(llm_preset("kimi-k2"), Plan(global_batch=1), 8)
    for flag in (
        "--multi-latent-attention",
        "--q-lora-rank 1536",
        "--kv-lora-rank 512",
        "--qk-head-dim 128",
        "--qk-pos-emb-head-dim 64",
        "--v-head-dim 128",
        "--qk-layernorm",
        "--moe-shared-expert-intermediate-size 2048",
        f"--moe-layer-freq '[0,{','.join(60 * '1')}]'",
    ):
        assert f"  {flag} " in command or command.endswith(f"  {flag}"), flag
    assert "mtp-num-layers" not in command
    mtp = megatron_command(llm_preset("deepseek-v3-mtp"), Plan(global_batch=1), 8)
    assert "--mtp-num-layers 1" in mtp
    qwen = megatron_command(llm_preset("qwen3-30b-a3b"), Plan(global_batch=1), 8)
    assert "--kv-channels 128" in qwen
    assert "add the router's settings" in qwen
    assert "moe-layer-freq" not in qwen


def megatron_words(llm, **fields):
    text = launch_text("megatron", llm, Plan(dp=8, global_batch=64, **fields))
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    return {word: value for word, value in pairwise([*words, ""]) if word[:2] == "--"}


def test_documents_and_padding_of_megatron():
    """core_v0.19.0: ``GPTDataset`` never pads, ``SFTDataset`` does; neither has adapters."""
    packed, padded, plain = map(megatron_words, (PACKED, PADDED, LLAMA))
    assert "--dataloader-inter-document-masking" in packed
    assert "--sft" not in packed
    assert "--sft" in padded
    assert padded["--tokenizer-type"] == "SFTTokenizer"
    assert "--no-create-attention-mask-in-dataloader" in padded  # SFTDataset asserts it
    assert set(packed) - set(plain) == {"--dataloader-inter-document-masking"}
    scores = megatron_words(PACKED, flash=False)  # all scores are computed, and masked
    assert {"--reset-position-ids", "--reset-attention-mask"} <= set(scores)
    assert "--dataloader-inter-document-masking" not in scores


def bridge_keys(llm, **fields):
    text = launch_text("nemo", llm, Plan(dp=8, global_batch=64, **fields))
    keys = dict(re.findall(r"^  ([\w.+]+)=(.*?)(?: \\)?$", text, flags=re.M))
    assert set(keys) <= BRIDGE_KEYS
    return re.search(r"--mode (\w+)", text)[1], keys, text


def test_documents_padding_and_adapters_of_megatron_bridge():
    """v0.6.0: the checks of ``training/config.py`` and ``run_recipe.py``."""
    mode, keys, text = bridge_keys(PACKED, adapter_rank=16)
    assert (mode, keys["peft.dim"]) == ("lora", "16")
    assert keys["peft.target_modules"] == "'[linear_qkv,linear_proj]'"
    assert keys["dataset.enable_offline_packing"] == "true"
    assert "dataset.offline_packing_specs" not in keys  # the runner makes them
    assert "# replace PRETRAINED_CHECKPOINT: the folder of the weights to begin with" in text
    mode, keys, _ = bridge_keys(PADDED, micro_batch=2)
    assert (mode, keys["dataset.enable_offline_packing"]) == ("sft", "false")
    assert keys["dataset.offline_packing_specs"] == "null"
    assert keys["++dataset.dataset_kwargs.pad_to_max_length"] == "true"
    assert "peft.dim" not in keys
    mode, keys, text = bridge_keys(LLAMA)
    assert mode == "pretrain"
    assert not any(key.startswith(("dataset.enable", "peft", "checkpoint")) for key in keys)
    assert "PRETRAINED" not in text


def test_documents_and_adapters_of_the_others():
    plan = Plan(dp=8, global_batch=64, zero=3)
    text = launch_text("torchtitan", PACKED, plan)
    assert "a flavor with attn_type flex or varlen and attn_mask_type block_causal" in text
    assert "attn_type flex and" in launch_text("torchtitan", PACKED, replace(plan, cp=2))
    assert "attn_type" not in launch_text("torchtitan", LLAMA, plan)
    lora = replace(plan, adapter_rank=8)
    text = launch_text("accelerate", PACKED, lora)
    config = 'LoraConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])'
    assert f"# In the script: PEFT's {config}" in text
    assert "SFTConfig(packing=True, max_length=8192)" in text
    assert "padded to 8192 tokens" in launch_text("accelerate", PADDED, plan)
    assert "LoraConfig" not in launch_text("accelerate", LLAMA, plan)
    notes = launch_notes("deepspeed", PACKED, lora)
    assert [note[:17] for note in notes[1:]] == ["in the script: PE", "in the script: sa"]
    assert launch_notes("accelerate", PACKED, lora) == []  # they stand in its file


@pytest.mark.parametrize(
    ("framework", "llm", "fields", "why"),
    [
        ("megatron", LLAMA, {"adapter_rank": 8}, "LoRA"),
        ("megatron", PADDED, {"flash": False}, "padded samples with attention that is not fused"),
        ("nemo", PACKED, {"micro_batch": 2}, "packed documents with micro batch 2"),
        ("nemo", LLAMA, {"adapter_rank": 8, "zero": 3}, "LoRA adapters with zero 3"),
        ("torchtitan", LLAMA, {"adapter_rank": 8, "zero": 3}, "LoRA"),
        ("torchtitan", PADDED, {"zero": 3}, "padded samples"),
        ("accelerate", PACKED, {"cp": 2, "zero": 3}, "packed documents with cp > 1"),
        ("accelerate", LLAMA, {"tp": 2, "zero": 3, "adapter_rank": 8}, "LoRA adapters with tp > 1"),
        ("deepspeed", LLAMA, {"tp": 2, "adapter_rank": 8}, "LoRA adapters with tp > 1"),
    ],
)
def test_samples_and_adapters_that_a_framework_cannot_express(framework, llm, fields, why):
    with pytest.raises(PlanError, match=why):
        launch_text(framework, llm, Plan(**{"dp": 4, "global_batch": 64} | fields))


def test_documents_are_refused_beside_latent_attention_on_context_ranks_of_torchtitan():
    """v0.2.2, ``models/deepseek_v3/infra/parallelize.py``: cp > 1 needs attn_type sdpa."""
    llm = replace(llm_preset("deepseek-v3"), packing=Packing(documents=512))
    with pytest.raises(PlanError, match="latent attention and cp > 1"):
        launch_text("torchtitan", llm, Plan(dp=4, cp=2, global_batch=64, zero=3))
