"""Intervals of predicted steps: which evidence speaks, and that it holds for the shared rows."""

from dataclasses import replace

import pytest

import requires
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan
from paceline.plan.calibrate import MIN_RUNS, calibrate
from paceline.plan.interval import EVIDENCE, LEVEL, interval, kind_of
from paceline.plan.predict import predict
from paceline.plan.runs import read_runs

LLAMA = llm_preset("llama3-8b")
PLAN = Plan(dp=8, tp=1, pp=1, micro_batch=1, global_batch=8)


@pytest.mark.parametrize(
    ("model", "change", "kind"),
    [
        ("llama3-8b", {}, "wide"),
        ("llama3-8b", {"precision": "fp8"}, "quantised"),
        ("llama3-8b", {"precision": "nvfp4"}, "nvfp4"),
        ("llama3-8b", {"precision": "nvfp4", "adapter_rank": 8}, "lora"),
        ("mixtral-8x7b", {"precision": "fp8"}, "moe"),
    ],
)
def test_the_kind_of_job_decides(model, change, kind):
    assert kind_of(llm_preset(model), replace(PLAN, **change)) == kind


def test_seconds_are_scaled_and_other_gpus_are_less_sure():
    a100 = interval(LLAMA, PLAN, cluster_preset("a100-80g"), 2.0)
    assert (a100.low_s, a100.high_s) == (2 * EVIDENCE["wide"].low, 2 * EVIDENCE["wide"].high)
    h100 = interval(LLAMA, PLAN, cluster_preset("h100"), 2.0)
    assert h100.low_s == 2 * EVIDENCE["quantised"].low
    assert "none of them on this GPU" in h100.about


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
    assert "runs of the calibration" in narrow.about
    beyond = interval(LLAMA, replace(PLAN, dp=64, global_batch=64), fit, 1.0)
    assert (beyond.low_s, beyond.high_s) == (EVIDENCE["wide"].low, EVIDENCE["wide"].high)


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
