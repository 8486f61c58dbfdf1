"""Predictions of the rows of a table of memory peaks (``memory_peaks.csv``), in GiB.

What a row does not say is its source's own choice at the release that the row names, read in its
configuration files: never the table that is predicted.
"""

import dataclasses
import math
import re

from predicted_row import GIB, MEMORY
from table_rows import (
    degree,
    flag,
    layer_counts,
    number,
    predicted_rows,
    read_rows,
    whole,
    word,
)

from paceline.errors import ModelError
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.memory_peak import stage_memory
from paceline.model.memory_rules import FRAGMENTATION, MemoryRules
from paceline.model.plan import Plan
from paceline.model.precision_names import precision_of

TASKS = ("", "pretrain", "sft", "lora")
#: Names of torchtitan's and Megatron-Core's selective policies.
RECOMPUTES = {"op": "selective", "per-op": "selective", "core_attn": "selective"}
MOST_CHUNKS = 10_000

#: The shape of a row without a preset; other columns are optional.
SHAPE = ("layers", "hidden", "heads", "vocab")
#: GPUs whose fp8 products take both orders, so that no transpose of a weight is held.
BLACKWELL = ("b200", "b300", "gb200", "gb300")


#: Memory of GPUs without a preset, by their datasheets.
CAPACITY = {
    **dict.fromkeys(("mi350x", "mi355x"), 288e9),
    "mi300x": 192e9,
    "mi325x": 256e9,
    "h200-nvl": 141e9,
    "l40s": 48e9,
}

#: Precisions whose activations a plan counts as fp8 -> bytes of a weight: MXFP8 in both orders;
#: NVFP4 in bf16, and in four bits with a scale of a byte per 16 elements in both orders.
NARROW = {"mxfp8": 2.0625, "nvfp4": 2 + 2 * (0.5 + 1 / 16)}


def memory_rows(path):
    """Rows with one more entry, ``fit``: as ``paceline predict`` says it; None = no prediction."""

    def predict_one(row, _):
        peak = memory_peak(row)
        return peak, (peak * MEMORY[0], peak * MEMORY[1])

    rows = read_rows(path)
    predicted = predicted_rows(rows, lambda row: number(row, "measured_gib"), predict_one)
    for row, result in zip(rows, predicted, strict=True):
        result["fit"] = None if result["error"] else fit(*memory_job(row), _memory_bytes(row))
    return predicted


def fit(llm, plan, rules, memory_bytes):
    """Whether a job fits into a GPU's memory; None where that is not known."""
    if memory_bytes == math.inf:
        return None
    return rules.fit(needed_bytes(llm, plan, rules), memory_bytes)


def needed_bytes(llm, plan, rules):
    return max(stage.total_bytes for stage in stage_memory(llm, plan, rules=rules))


def memory_peak(row):
    """GiB of what a row measures: allocated or reserved, of the stage that it says."""
    llm, plan, rules = memory_job(row)
    stages = stage_memory(llm, plan, rules=rules)
    measure = row.get("measure", "")
    if "rank 0" in measure:
        stages = stages[:1]
    elif "rank that logs" in measure:  # NeMo logs where the loss is
        stages = stages[-1:]
    peak = max(stage.allocated_bytes for stage in stages)
    return peak * (FRAGMENTATION if "reserved" in measure else 1.0) / GIB


def memory_job(row):
    """Model, plan and rules of a row."""
    task = row.get("task", "").lower()
    if task not in TASKS:
        raise ModelError(f"task {task!r} cannot be expressed; known are {', '.join(TASKS[1:])}")
    llm = _llm(row)
    fields = {name: degree(row, name) for name in ("tp", "pp", "cp", "ep", "dp", "vpp")}
    chunks = fields["pp"] * fields["vpp"]
    if chunks > MOST_CHUNKS:
        raise ModelError(f"pp {fields['pp']} x vpp {fields['vpp']} is beyond any real plan")
    written = row.get("precision", "")
    precision = precision_of(word(row, "precision", "bf16"))
    if written.lower() in NARROW:
        precision = "fp8"
    recompute = word(row, "recompute", "none")
    tensor_parallel = fields["tp"] > 1
    plan = Plan(
        **fields,
        micro_batch=degree(row, "micro_batch"),
        global_batch=whole(row, "global_batch"),
        recompute=RECOMPUTES.get(recompute, recompute),
        precision=precision,
        zero=whole(row, "zero", 0),
        grad_bytes=whole(row, "grad_bytes", 0) or 4,
        sequence_parallel=flag(row, "sequence_parallel") and tensor_parallel,
        overlap_tp=flag(row, "overlap_tp") and tensor_parallel,
        layers_per_stage=_layers(row, chunks, llm),
    )
    of_source = _torchtitan if row.get("source", "").lower() == "torchtitan" else _megatron
    plan, rules = of_source(row, llm, plan)
    return llm, plan, rules


def _llm(row):
    seq_len, name = whole(row, "seq_len"), row.get("model", "")
    try:
        llm = llm_preset(name)
    except ModelError:
        if not all(number(row, field) for field in SHAPE):
            raise
        sizes = {field: whole(row, field, 0) for field in (*SHAPE, "kv_heads", "ffn")}
        return LLM(
            name=name, seq_len=seq_len, gated=True, norm="rmsnorm", positions="rotary",
            tied=False, bias=False, **sizes,
        )  # fmt: skip
    return dataclasses.replace(llm, seq_len=seq_len, max_positions=max(llm.max_positions, seq_len))


def _layers(row, chunks, llm):
    """Layers of each chunk: the row's, or as torchtitan splits (``generate_split_points``)."""
    counts = layer_counts(row)
    if counts is not None:
        return counts
    few, more = divmod(llm.layers, chunks)
    return tuple(few + (0 < i <= more) for i in range(chunks)) if more else None


def _torchtitan(row, llm, plan):
    """FSDP2 with expandable segments (``run_train.sh`` at 0168bd5).

    Until 2025 the loss was not compiled (``train.py`` at ba246978).
    As many microbatches as chunks where the row assumes them: with fewer torchtitan warns.
    """
    if plan.pp > 1 and "assumed" in row.get("config_certainty", ""):
        samples = max(1, plan.global_batch // (plan.dp * plan.chunks))
        plan = dataclasses.replace(plan, micro_batch=samples)
    plan = dataclasses.replace(plan, zero=3)
    compiled = "compile" in row.get("note", "") and "202412" not in row.get("provenance", "")
    loss = "fused" if compiled else "unfused"
    return plan, MemoryRules(loss=loss, expandable_segments=True)


def _megatron(row, llm, plan):
    """Megatron-Core through Megatron-Bridge or NeMo."""
    fp8, blackwell = plan.precision == "fp8", _gpu(row) in BLACKWELL
    rules = MemoryRules()
    if plan.recompute == "selective":  # its default module
        plan = dataclasses.replace(plan, recompute_modules=("core_attn",))
    if fp8:
        # Stored in fp8 alone, or in bf16 beside the fp8 copies; Hopper transposes, too.
        copies = 1 if blackwell else 2
        gathered = "fp8 weights gathered: 0" not in row.get("note", "")
        weight = NARROW.get(row["precision"].lower(), copies + (0 if gathered else 2))
        rules = dataclasses.replace(rules, weight_bytes=weight)
    if row.get("source") == "Megatron-Bridge":
        # Its fp8 recipes, and Moonlight's (recipes/moonlight, 067f987d), reduce in bf16.
        if not whole(row, "grad_bytes", 0) and (fp8 or llm.moe is not None):
            plan = dataclasses.replace(plan, grad_bytes=2)
        if llm.name.startswith("moonlight"):
            rules = dataclasses.replace(rules, optimizer_bytes=8)  # moments in bf16
    if row.get("task", "").lower() == "lora":
        plan = dataclasses.replace(plan, adapter_rank=16, zero=min(plan.zero, 1))
        # The least saving with which it fits: NeMo may store the activation's input in fp8, and
        # a frozen weight without its transpose.
        stored = dataclasses.replace(rules, fp8_activation=True)
        least = dataclasses.replace(stored, weight_bytes=1)
        fitting = (choice for choice in (rules, stored) if _fits(row, llm, plan, choice))
        rules = next(fitting, least)
    return plan, rules


def _gpu(row):
    """The preset's name of a row's GPU; the row's own where there is no preset."""
    name = row.get("gpu", "")
    try:
        return cluster_preset(name).name
    except ModelError:
        return name.lower()


def _capacity(gpu):
    """Bytes of a GPU by its preset, or by its name's end ("h100-96g"); else no limit."""
    try:
        return cluster_preset(gpu).gpu.memory_bytes
    except ModelError:
        size = re.search(r"(\d+) ?gi?b?$", gpu)
        return float(size[1]) * GIB if size else math.inf


def _memory_bytes(row):
    return CAPACITY.get(_gpu(row), _capacity(_gpu(row)))


def _fits(row, llm, plan, rules):
    return needed_bytes(llm, plan, rules) <= _memory_bytes(row)
