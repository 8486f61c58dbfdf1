"""Predictions of the rows of one file that has the columns of a shared table (data/llm).

Every function of ``TABLES`` takes a path and gives a list of rows: ``id`` (the row's, or its number
from 0), ``predicted``, ``low``, ``high``, ``measured`` (seconds a step; GiB for memory), ``error``
(None, or why the row cannot be expressed; then the numbers but ``measured`` are None).
"""

import csv
import dataclasses
import re

from predict_memory import memory_rows
from predicted_row import row_of

from paceline.errors import ModelError
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.model.memory_peak import memory_table
from paceline.model.plan import Plan
from paceline.model.plan_check import check
from paceline.model.software import SOFTWARE, as_run_by
from paceline.plan.predict import predict
from paceline.plan.predict_runs import predict_runs
from paceline.plan.runs import read_runs, run_clusters
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


def _modules(name, row):
    """Modules that the recipe of a row recomputes; None where it is not known."""
    if name == "deepseek-v3" and _release(row) < "26":
        return _MODULES_2025.get(row["system"])
    usual, others = _MODULES.get((name, row["system"]), (None, {}))
    return others.get(row["precision"], usual)


def published_job(row):
    """Model and plan of a row; what it does not say is Megatron-Bridge's usual choice.

    Recomputation is not published: the least with which the plan fits into memory. The recipes of
    2026 for mixtures of experts recompute nothing, or norms and activations only (Megatron-Bridge
    067f987, ``perf_recipes``; GLM-5 apart), which costs next to nothing. Its LoRA has rank 32
    (``peft/lora.py``), and its NVFP4 overlaps no tensor-parallel traffic. Recipes of latent
    attention name their modules.
    """
    name = llm_preset(row["model"]).name
    llm = llm_preset(_TRAINED_AS.get(name, name))
    llm = dataclasses.replace(llm, seq_len=int(row["seq_len"]))
    cluster = cluster_preset(row["system"])
    tp, pp, cp, ep = (_degree(row[name]) for name in ("tp", "pp", "cp", "ep"))
    vpp = int(row["vp"]) if row["vp"].isdigit() and pp > 1 else 1
    precision = _precision(row["precision"])
    sharded = _degree(row["fsdp"]) > 1
    offloaded = (llm.name, row["system"], precision)
    base = Plan(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        vpp=vpp,
        dp=int(row["gpus"]) // (tp * pp * cp),
        micro_batch=int(row["micro_batch"]),
        global_batch=int(row["global_batch"]),
        zero=3 if sharded else 1,
        sequence_parallel=tp > 1,
        overlap_tp=tp > 1 and precision != "nvfp4",
        precision=precision,
        layers_per_stage=layers_per_chunk(llm, pp * vpp),
        fused_experts=_release(row) >= "26.06"
        and row["precision"] == "MXFP8"
        and llm.name in _FUSED.get(row["system"], ()),
        adapter_rank=32 if row.get("section", "").startswith("LoRA") else 0,
        offload_layers=_OFFLOADED.get(offloaded, 0) if sharded else 0,
    )
    release = _release(row)
    software = SOFTWARE.get(f"nemo-{release}")
    modules = _modules(name.removesuffix("-mtp"), row)
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


def _degree(cell):
    """A degree of parallelism; the tables leave what is not used empty, 0 or "n/a"."""
    return 1 if cell.lower() in ("", "0", "n/a") else int(cell)


def _precision(published):
    """The plan's precision of a published one; block scales (MX) cost as fp8 does."""
    name = published.split()[0].split("-")[0].upper()
    precisions = {"FP8": "fp8", "MXFP8": "fp8", "BF16": "bf16", "NVFP4": "nvfp4"}
    if name not in precisions:
        known = ", ".join(precisions)
        raise ModelError(f"precision {published} cannot be expressed; {known} can")
    return precisions[name]


def published_seconds(row):
    """Measured seconds of a step, from tokens per second and GPU."""
    tokens = float(re.split(r"[ (]", row["tokens_per_s_per_gpu"])[0])
    return int(row["global_batch"]) * int(row["seq_len"]) / int(row["gpus"]) / tokens


def published_rows(path):
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    result = []
    for i, row in enumerate(rows):
        name = row.get("id") or i
        try:
            measured = published_seconds(row)
        except (KeyError, ValueError):
            measured = None
        try:
            llm, plan, cluster = published_job(row)
            check(plan, llm)
            prediction = predict(llm, plan, cluster)
        except (ModelError, KeyError, ValueError) as error:
            result.append(row_of(name, None, None, measured, str(error)))
            continue
        seconds, ends = prediction.step_time_s, prediction.interval[:2]
        result.append(row_of(name, seconds, ends, measured))
    return result


def mlperf_rows(path):
    table = read_runs(path, skip_errors=True)
    outcome = predict_runs(table, run_clusters(table.runs, None))
    result = []
    for i, (line, row) in enumerate(zip(table.lines, table.rows, strict=True)):
        measured = float(row["step_time_s"]) if row.get("step_time_s") else None
        ends = outcome.intervals[line][:2] if line in outcome.intervals else None
        seconds, error = outcome.predicted_s.get(line), outcome.errors.get(line)
        result.append(row_of(row.get("id") or i, seconds, ends, measured, error))
    return result


TABLES = {"mlperf": mlperf_rows, "published": published_rows, "memory": memory_rows}
