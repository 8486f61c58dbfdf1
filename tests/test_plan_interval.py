"""Intervals of predicted steps: which evidence speaks, and that it holds for the shared rows."""

import csv
from dataclasses import replace

import pytest

import requires
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan
from paceline.plan.calibrate import MIN_RUNS, calibrate
from paceline.plan.interval import (
    EVIDENCE,
    GPUS,
    LEVEL,
    TOKENS_OF_A_SAMPLE,
    interval,
    kind_of,
)
from paceline.plan.predict import predict
from paceline.plan.runs import read_runs

LLAMA = llm_preset("llama3-8b")
A100S = "of dense models in 16 bits on A100s, published with vTrain"
FSDP = "of PyTorch FSDP on A100s and H100s, published by MosaicML"
OF_NVIDIA = "published by NVIDIA"
NVIDIA = f"{OF_NVIDIA} and in MLPerf Training"
OTHER_GPU = "None of them ran on this GPU, so the range is wider."
FEW = "These are few, so it is at least as wide as that of fp8 steps."
FP8, NVFP4, LORA = {"precision": "fp8"}, {"precision": "nvfp4"}, {"adapter_rank": 8}
PLAN = Plan(dp=8, tp=1, pp=1, micro_batch=1, global_batch=8)


@pytest.mark.parametrize(
    ("model", "change", "kind"),
    [
        ("llama3-8b", {}, "wide"),
        ("llama3-8b", {"precision": "fp8"}, "quantised"),
        ("llama3-8b", {"precision": "nvfp4"}, "nvfp4"),
        ("llama3-8b", {"precision": "nvfp4", "adapter_rank": 8}, "lora"),
        ("mixtral-8x7b", {"precision": "fp8"}, "moe"),
        ("gpt-oss-120b", {}, "sinks"),
        ("gpt-oss-120b", {"flash": False}, "moe"),
    ],
)
def test_the_kind_of_job_decides(model, change, kind):
    assert kind_of(llm_preset(model), replace(PLAN, **change)) == kind


def test_seconds_are_scaled_and_other_gpus_are_less_sure():
    a100 = interval(LLAMA, PLAN, cluster_preset("a100-80g"), 2.0)
    assert (a100.low_s, a100.high_s) == (2 * EVIDENCE["wide"].low, 2 * EVIDENCE["wide"].high)
    h100 = interval(LLAMA, PLAN, cluster_preset("h100"), 2.0)
    assert h100.low_s == 2 * EVIDENCE["quantised"].low


@pytest.mark.parametrize(
    ("model", "change", "gpu", "about"),
    [
        ("llama3-8b", {}, "a100-80g", f"52 measured steps {A100S}."),
        ("llama3-8b", {}, "h100", f"52 measured steps {A100S}. {OTHER_GPU}"),
        ("llama3-8b", {"zero": 3}, "h100", f"216 measured steps {FSDP}."),
        ("llama3-8b", {"zero": 3}, "b200", f"216 measured steps {FSDP}. {OTHER_GPU}"),
        ("llama3-8b", FP8, "h100", f"64 measured steps of dense models in fp8, {NVIDIA}."),
        ("llama3-8b", NVFP4, "b200", f"14 measured steps in NVFP4, {NVIDIA}. {FEW}"),
        ("llama3-8b", LORA, "h100", f"95 measured steps with LoRA, {NVIDIA}."),
        ("mixtral-8x7b", {}, "h100", f"92 measured steps of mixtures of experts, {OF_NVIDIA}."),
        ("gpt-oss-120b", {}, "h100", f"9 measured steps of GPT-OSS with fused attention. {FEW}"),
    ],
)
def test_the_basis_of_an_interval_is_told_in_sentences(model, change, gpu, about):
    plan = replace(PLAN, **change)
    said = interval(llm_preset(model), plan, cluster_preset(gpu), 1.0).about
    assert said == f"The range rests on {about}"


def test_a_calibration_has_the_interval_of_its_runs():
    """Exact runs fit exactly; where they do not cover a job, the published ones speak."""
    cluster = cluster_preset("a100-80g")
    jobs = [
        (LLAMA, replace(PLAN, micro_batch=n, global_batch=8 * n)) for n in range(1, MIN_RUNS + 1)
    ]
    measured = [predict(llm, plan, cluster).step_time_s * 1.1 for llm, plan in jobs]
    fit = calibrate(jobs, measured, cluster).cluster
    narrow = interval(*jobs[1], fit, 1.0)
    assert narrow.high_s - narrow.low_s < 0.1
    assert narrow.about == f"The range rests on the errors of the calibration's {MIN_RUNS} runs."
    beyond = interval(LLAMA, replace(PLAN, dp=64, global_batch=64), fit, 1.0)
    assert (beyond.low_s, beyond.high_s) == (EVIDENCE["wide"].low, EVIDENCE["wide"].high)


@pytest.mark.parametrize(
    ("model", "plan", "said"),
    [
        ({}, {}, None),
        ({"seq_len": 2048}, {"dp": 4, "global_batch": 4}, None),
        ({"seq_len": 131072}, {}, "more than 8,192 tokens a sample"),
        ({"seq_len": 512}, {}, "fewer than 2,048 tokens a sample"),
        ({}, {"dp": 1}, "fewer than 4 GPUs"),
        ({}, {"dp": 16384, "global_batch": 16384}, "more than 8,192 GPUs"),
        ({}, {"precision": "fp32"}, "products in fp32"),
    ],
)
def test_what_no_measured_step_has_is_said(model, plan, said):
    llm = replace(LLAMA, **{"max_positions": 1 << 20, **model})
    warnings = predict(llm, replace(PLAN, **plan), "h100").warnings
    assert [text for text in warnings if "behind the interval" in text] == (
        [f"no measured step behind the interval has {said}; the step may lie outside it"]
        if said
        else []
    )


def test_the_ranges_are_those_of_the_shared_rows():
    """vTrain's runs, NVIDIA's tables of 2025 and 2026, MLPerf's runs (data/llm)."""
    names = ("megatron_a100_calibration", "published_2025", "published_2026_part")
    rows = []
    for name in (*names, "mlperf_llm_runs"):
        with requires.data("llm", f"{name}.csv").open(encoding="utf-8-sig", newline="") as file:
            rows += csv.DictReader(file)
    for column, ends in (("seq_len", TOKENS_OF_A_SAMPLE), ("gpus", GPUS)):
        values = [int(row[column]) for row in rows]
        assert (min(values), max(values)) == ends


def test_most_shared_a100_runs_lie_within():
    """Held against the runs published with vTrain (data/llm, 52 rows)."""
    path = requires.data("llm", "megatron_a100_calibration.csv")
    cluster = cluster_preset("a100-80g-4nic")
    runs = read_runs(path, need_times=True).runs[::4]
    inside = 0
    for run in runs:
        low, high, _ = predict(run.llm, run.plan, cluster).interval
        inside += low <= run.measured_s <= high
    assert inside >= LEVEL * len(runs) - 1
