"""Predictions of the rows of a table of memory peaks (``memory_peaks.csv``), in GiB.

What a row does not say is its source's own choice at the release that the row names, read in its
configuration files: never the table that is predicted.
"""

import csv
import dataclasses

from predicted_row import GIB, MEMORY, row_of

from paceline.errors import ModelError
from paceline.model.blocks import LatentAttention, MoE
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.memory_peak import stage_memory
from paceline.model.memory_rules import FRAGMENTATION, MemoryRules
from paceline.model.plan import Plan

#: moonshotai/Moonlight-16B-A3B, config.json.
MOONLIGHT = LLM(
    name="moonlight-16b-a3b", layers=27, hidden=2048, heads=16, vocab=163_840, seq_len=8192,
    ffn=11_264, gated=True, norm="rmsnorm", positions="rotary", tied=False, bias=False,
    moe=MoE(experts=64, top_k=6, ffn=1408, shared_experts=2, dense_layers=1),
    latent=LatentAttention(q_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
)  # fmt: skip

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
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    result = []
    for i, row in enumerate(rows):
        name = row.get("id") or i
        measured = float(row["measured_gib"]) if row.get("measured_gib") else None
        try:
            peak = memory_peak(row)
        except (ModelError, KeyError, ValueError) as error:
            result.append(row_of(name, None, None, measured, str(error)))
            continue
        ends = peak * MEMORY[0], peak * MEMORY[1]
        result.append(row_of(name, peak, ends, measured))
    return result


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
    llm = _llm(row)
    fields = {
        name: int(row[name] or 1) for name in ("tp", "pp", "cp", "ep", "dp", "micro_batch", "vpp")
    }
    plan = Plan(
        **fields,
        global_batch=int(row["global_batch"]),
        recompute=row["recompute"] or "none",
        precision="fp8" if row["precision"] in NARROW else row["precision"] or "bf16",
        zero=int(row["zero"] or 0),
        grad_bytes=int(row.get("grad_bytes") or 4),
        sequence_parallel=row["sequence_parallel"] == "1" and fields["tp"] > 1,
        overlap_tp=row["overlap_tp"] == "1" and fields["tp"] > 1,
        layers_per_stage=_layers(row, fields, llm),
    )
    of_source = _torchtitan if row["source"] == "torchtitan" else _megatron
    plan, rules = of_source(row, llm, plan)
    return llm, plan, rules


def _llm(row):
    seq_len = int(row["seq_len"])
    try:
        llm = MOONLIGHT if row["model"] == MOONLIGHT.name else llm_preset(row["model"])
    except ModelError:
        if not all(row.get(name) for name in SHAPE):
            raise
        shape = {name: int(row[name]) for name in (*SHAPE, "kv_heads", "ffn") if row.get(name)}
        return LLM(
            name=row["model"], seq_len=seq_len, gated=True, norm="rmsnorm", positions="rotary",
            tied=False, bias=False, **shape,
        )  # fmt: skip
    return dataclasses.replace(llm, seq_len=seq_len, max_positions=max(llm.max_positions, seq_len))


def _layers(row, fields, llm):
    """Layers of each chunk: the row's, or as torchtitan splits (``generate_split_points``)."""
    text = row.get("layers_per_chunk", "")
    if text:
        return tuple(int(n) for n in text.split())
    chunks = fields["pp"] * fields["vpp"]
    few, more = divmod(llm.layers, chunks)
    return tuple(few + (0 < i <= more) for i in range(chunks)) if more else None


def _torchtitan(row, llm, plan):
    """FSDP2; until 2025 the loss was not compiled (``train.py`` at ba246978).

    As many microbatches as chunks where the row assumes them: with fewer torchtitan warns.
    """
    if plan.pp > 1 and "assumed" in row.get("config_certainty", ""):
        plan = dataclasses.replace(plan, micro_batch=plan.global_batch // (plan.dp * plan.chunks))
    plan = dataclasses.replace(plan, zero=3)
    compiled = "compile" in row.get("note", "") and "202412" not in row.get("provenance", "")
    return plan, MemoryRules(loss="fused" if compiled else "unfused")


def _megatron(row, llm, plan):
    """Megatron-Core through Megatron-Bridge or NeMo."""
    fp8, blackwell = plan.precision == "fp8", row["gpu"] in BLACKWELL
    rules = MemoryRules()
    if plan.recompute == "selective":  # its default module
        plan = dataclasses.replace(plan, recompute_modules=("core_attn",))
    if fp8:
        # Stored in fp8 alone, or in bf16 beside the fp8 copies; Hopper transposes, too.
        copies = 1 if blackwell else 2
        gathered = "fp8 weights gathered: 0" not in row.get("note", "")
        weight = NARROW.get(row["precision"], copies + (0 if gathered else 2))
        rules = dataclasses.replace(rules, weight_bytes=weight)
    if row["source"] == "Megatron-Bridge":
        # Its fp8 recipes, and Moonlight's (recipes/moonlight, 067f987d), reduce in bf16.
        if not row.get("grad_bytes") and (fp8 or llm.moe is not None):
            plan = dataclasses.replace(plan, grad_bytes=2)
        if llm is MOONLIGHT or llm.name == MOONLIGHT.name:
            rules = dataclasses.replace(rules, optimizer_bytes=8)  # moments in bf16
    if row["task"] == "lora":
        plan = dataclasses.replace(plan, adapter_rank=16, zero=min(plan.zero, 1))
        # The least saving with which it fits: NeMo may store the activation's input in fp8, and
        # a frozen weight without its transpose.
        stored = dataclasses.replace(rules, fp8_activation=True)
        least = dataclasses.replace(stored, weight_bytes=1)
        fitting = (choice for choice in (rules, stored) if _fits(row, llm, plan, choice))
        rules = next(fitting, least)
    return plan, rules


def _fits(row, llm, plan, rules):
    capacity = CAPACITY.get(row["gpu"])
    if capacity is None:
        capacity = cluster_preset(row["gpu"]).gpu.memory_bytes
    return max(s.total_bytes for s in stage_memory(llm, plan, rules=rules)) <= capacity
