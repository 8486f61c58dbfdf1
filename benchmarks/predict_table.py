"""Predictions of the rows of one file that has the columns of a shared table (data/llm).

Every function of ``TABLES`` takes a path and gives a list of rows: ``id`` (the row's, or its number
from 0), ``predicted``, ``low``, ``high``, ``measured`` (seconds a step; GiB for memory), ``error``
(None, or why the row cannot be expressed; then the numbers but ``measured`` are None).
"""

import dataclasses
import re

from predict_memory import memory_rows
from table_rows import degree, number, predicted_rows, read_rows, whole

from paceline.errors import ModelError
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.model.memory_peak import memory_table
from paceline.model.plan import Plan
from paceline.model.precision_names import precision_of
from paceline.model.software import SOFTWARE, as_run_by
from paceline.plan.predict import predict
from paceline.plan.runs import NEEDED, run_clusters, run_of
from paceline.plan.space import RECOMPUTES


def even(layers, chunks):
    """Layers per chunk where they do not divide: the first and the last get fewer."""
    low, more = divmod(layers, chunks)
    if not more:
        return None
    counts = [low] * chunks
    order = [*range(1, chunks - 1), chunks - 1, 0]
    for i in range(more):
        counts[order[i]] += 1
    return tuple(counts)


def layers_per_chunk(llm, chunks):
    """Layers of each chunk; Kimi K2's recipes give the last chunk what the others leave.

    Megatron-Bridge 067f987, ``recipes/kimi/h100/kimi_k2.py`` and, of 32 chunks, ``perf_recipes``.
    """
    if llm.name != "kimi-k2" or chunks == 1:
        return even(llm.layers, chunks)
    if chunks == 32:
        return (1, *30 * (2,), 0)
    full = -(-llm.layers // chunks)
    if (chunks - 1) * full > llm.layers:
        return even(llm.layers, chunks)
    return (*(chunks - 1) * (full,), llm.layers - (chunks - 1) * full)


_MIXTURES = ("qwen3-30b-a3b", "qwen3-235b-a22b", "gpt-oss-120b", "deepseek-v3", "deepseek-v3-mtp")
#: Mixtures whose MXFP8 recipe captures whole steps as CUDA graphs and fuses the experts' kernels
#: (Megatron-Bridge 067f987, ``perf_recipes``), which came in June 2026 (pull requests 3983, 4173,
#: 4211, 4226, 4249): release 26.06.
_FUSED = {
    "DGX-GB200": _MIXTURES,
    "DGX-GB300": _MIXTURES,
    "DGX-B200": ("qwen3-235b-a22b",),
    "DGX-B300": ("qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "deepseek-v3-mtp"),
}

#: Models that these recipes train with multi-token prediction, which tables leave unsaid.
_TRAINED_AS = {
    "nemotron-3-super": "nemotron-3-super-mtp",
    "qwen3-next-80b-a3b": "qwen3-next-80b-a3b-mtp",
}

#: Layers that recipes with FSDP keep in the host's memory; they recompute nothing (Megatron-Bridge
#: 067f987, ``perf_recipes/llama``, and v0.2.0, ``scripts/performance``, whose 70B has the same).
_OFFLOADED = {
    ("llama3-70b", "DGX-GB200", "bf16"): 20,
    ("llama3-70b", "DGX-GB200", "fp8"): 40,
    ("llama3-70b", "DGX-GB300", "bf16"): 30,
    ("llama3-70b", "DGX-GB300", "fp8"): 20,
    ("llama3-70b", "DGX-B200", "fp8"): 5,
    ("llama3.1-405b", "DGX-GB200", "fp8"): 92,
    ("llama3.1-405b", "DGX-GB300", "bf16"): 40,
    ("llama3.1-405b", "DGX-GB300", "fp8"): 10,
    ("llama3.1-405b", "DGX-B300", "bf16"): 40,
}

_UP, _UP_MLP = ("mla_up_proj",), ("mla_up_proj", "mlp")
#: Modules that recipes of latent attention recompute, by model and system; the second by precision
#: where one differs (Megatron-Bridge 067f987, ``perf_recipes/deepseek`` and ``kimi``).
_MODULES = {
    ("deepseek-v3", "DGX-B200"): (
        _UP,
        {"MXFP8": _UP_MLP, "NVFP4": (*_UP, "layernorm", "moe_act")},
    ),
    ("deepseek-v3", "DGX-B300"): (_UP, {}),
    ("deepseek-v3", "DGX-GB200"): (_UP, {"FP8": ("mlp",), "NVFP4": ("mlp",)}),
    ("deepseek-v3", "DGX-GB300"): (_UP, {"BF16": ("moe_act",), "MXFP8": ()}),
    ("deepseek-v3", "DGX-H100"): (_UP_MLP, {}),
    ("kimi-k2", "DGX-B200"): (_UP, {}),
    ("kimi-k2", "DGX-GB200"): (_UP, {}),
    ("kimi-k2", "DGX-GB300"): (_UP, {}),
    ("kimi-k2", "DGX-H100"): (_UP_MLP, {}),
}
#: The same of DeepSeek-V3 until 2025 (v0.2.0, ``scripts/performance/configs/deepseek``).
_MODULES_2025 = {
    "DGX-GB300": ("moe_act",),
    "DGX-GB200": _UP,
    "DGX-B200": _UP,
    "DGX-H100": _UP_MLP,
}


def _modules(name, system, row):
    """Modules that the recipe of a row recomputes; None where it is not known."""
    if name == "deepseek-v3" and _release(row) < "26":
        return _MODULES_2025.get(system)
    usual, others = _MODULES.get((name, system), (None, {}))
    return others.get(row["precision"].split("-")[0].upper(), usual)


def published_job(row):
    """Model and plan of a row; what it does not say is Megatron-Bridge's usual choice.

    Recomputation is not published: the least with which the plan fits into memory. The recipes of
    2026 for mixtures of experts recompute nothing, or norms and activations only (Megatron-Bridge
    067f987, ``perf_recipes``; GLM-5 apart), which costs next to nothing. Its LoRA has rank 32
    (``peft/lora.py``), and its NVFP4 overlaps no tensor-parallel traffic. Recipes of latent
    attention name their modules.
    """
    name = llm_preset(row.get("model", "")).name
    llm = llm_preset(_TRAINED_AS.get(name, name))
    seq_len = whole(row, "seq_len")
    llm = dataclasses.replace(llm, seq_len=seq_len, max_positions=max(llm.max_positions, seq_len))
    cluster = cluster_preset(row.get("system", ""))
    system = f"DGX-{cluster.name.upper()}"  # as these pages spell it
    tp, pp, cp, ep = (degree(row, name) for name in ("tp", "pp", "cp", "ep"))
    vpp = degree(row, "vp") if pp > 1 else 1
    gpus, replica = whole(row, "gpus"), tp * pp * cp
    if gpus < 1 or gpus % replica:
        raise ModelError(f"{gpus} GPUs are no multiple of tp {tp} x pp {pp} x cp {cp} = {replica}")
    precision = precision_of(row.get("precision", ""))
    adapters = re.search("lora|peft", row.get("section", ""), re.IGNORECASE) is not None
    sharded = degree(row, "fsdp") > 1
    offloaded = _OFFLOADED.get((llm.name, system, precision), 0)
    base = Plan(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        vpp=vpp,
        dp=gpus // replica,
        micro_batch=whole(row, "micro_batch"),
        global_batch=whole(row, "global_batch"),
        zero=3 if sharded else 1,
        kernels="fused" if sharded else "auto",
        sequence_parallel=tp > 1,
        overlap_tp=tp > 1 and precision != "nvfp4",
        precision=precision,
        layers_per_stage=layers_per_chunk(llm, pp * vpp),
        fused_experts=_release(row) >= "26.06"
        and row["precision"].upper() == "MXFP8"
        and llm.name in _FUSED.get(system, ()),
        adapter_rank=32 if adapters else 0,
        offload_layers=offloaded if sharded and pp == 1 and not adapters else 0,
    )
    release = _release(row)
    software = SOFTWARE.get(f"nemo-{release}")
    modules = _modules(name.removesuffix("-mtp"), system, row)
    if modules:
        base = dataclasses.replace(base, recompute="selective", recompute_modules=modules)
        return llm, base, cluster
    by_module = llm.moe is not None and release >= "26"
    settled = by_module or base.offload_layers > 0
    for recompute in RECOMPUTES[:1] if settled else RECOMPUTES:
        plan = dataclasses.replace(base, recompute=recompute)
        if memory_table(llm, plan).sum(axis=0).max() <= cluster.gpu.memory_bytes:
            break
    if software is not None:
        plan = as_run_by(llm, plan, software)
    return llm, plan, cluster


def _release(row):
    """The release of NVIDIA's container, "26.04.01"; "" where the row names none."""
    found = re.search(r"\d\d\.\d\d(\.\d\d)?", row.get("container", ""))
    return found[0] if found else ""


def published_seconds(row):
    """Measured seconds of a step, from tokens per second and GPU; None where they are missing."""
    tokens = number(row, "tokens_per_s_per_gpu")
    if tokens is None:
        return None
    return whole(row, "global_batch") * whole(row, "seq_len") / whole(row, "gpus") / tokens


def published_rows(path):
    def predict_one(row, _):
        prediction = predict(*published_job(row))
        return prediction.step_time_s, prediction.interval[:2]

    return predicted_rows(read_rows(path), published_seconds, predict_one)


def mlperf_rows(path):
    rows = read_rows(path)
    missing = [name for name in NEEDED if name not in rows[0]] if rows else []
    if missing:
        raise SystemExit(f"{path} lacks the columns {', '.join(missing)}")

    def predict_one(row, _):
        run = run_of({**row, "step_time_s": ""})
        cluster = run_clusters([run], None)[0]
        prediction = predict(run.llm, run.plan, cluster)
        return prediction.step_time_s, prediction.interval[:2]

    return predicted_rows(rows, lambda row: number(row, "step_time_s"), predict_one)


TABLES = {"mlperf": mlperf_rows, "published": published_rows, "memory": memory_rows}
