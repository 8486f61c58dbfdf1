"""Releases that run an operator otherwise."""

import csv
from dataclasses import replace

import pytest

import requires
from paceline.cli.main import run
from paceline.errors import ModelError
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan
from paceline.model.software import SOFTWARE, as_run_by, software_preset
from paceline.plan.predict import predict

PLAN = Plan(dp=64, ep=64, micro_batch=4, global_batch=1280, overlap_tp=False)


def test_only_attention_with_sinks_is_unfused() -> None:
    sinks, plain = llm_preset("gpt-oss-120b"), llm_preset("qwen3-30b-a3b")
    old, new = software_preset("nemo-26.04"), software_preset(" NeMo-26.06 ")
    assert sinks.sinks
    assert not plain.sinks
    assert not as_run_by(sinks, PLAN, old).flash
    assert as_run_by(sinks, PLAN, new) == PLAN
    assert as_run_by(plain, PLAN, old) == PLAN
    with pytest.raises(
        ModelError, match=r"no software preset 'nemo-29.01'; the nearest are nemo-2"
    ):
        software_preset("nemo-29.01")


def test_published_rows_of_gpt_oss_are_met_without_a_fit() -> None:
    # GB200, 64 GPUs, one plan through four releases: tokens per second and GPU, as published.
    path = requires.data("llm", "published_2026_part.csv")
    llm = replace(llm_preset("gpt-oss-120b"), seq_len=4096)
    cluster = cluster_preset("gb200")
    errors = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            release = row["container"]
            if (row["model"], row["system"]) != ("GPT OSS 120B", "DGX-GB200"):
                continue
            if row["precision"] != "BF16" or f"nemo-{release}" not in SOFTWARE:
                continue
            tokens = 1280 * 4096 / 64
            measured_s = tokens / float(row["tokens_per_s_per_gpu"].split("[")[0])
            plan = as_run_by(llm, PLAN, SOFTWARE[f"nemo-{release}"])
            fused_s = predict(llm, PLAN, cluster).step_time_s
            errors[release] = (
                predict(llm, plan, cluster).step_time_s / measured_s - 1,
                fused_s / measured_s - 1,
            )
    assert set(errors) >= {"26.02", "26.04"}
    assert all(abs(as_run) < 0.1 and fused < -0.45 for as_run, fused in errors.values())


def test_command_and_runs_take_the_release(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    options = ["--model", "gpt-oss-120b", "--gpu", "gb200", "--gpus", "64", "--dp", "64"]
    options += ["--ep", "64", "--micro-batch", "4", "--global-batch", "1280", "--json"]
    steps = []
    for software in ("nemo-26.04", "nemo-26.08"):
        assert run(["predict", *options, "--software", software]) == 0
        steps.append(float(capsys.readouterr().out.split('"step_time_s": ')[1].split(",")[0]))
    assert steps[0] > 1.5 * steps[1]
    assert run(["predict", *options, "--software", "mine"]) == 2
    assert "no software preset 'mine'" in capsys.readouterr().err
    runs = tmp_path / "runs.csv"
    head = "gpus,global_batch,micro_batch,tp,dp,pp,ep,model,gpu,precision,recompute,software\n"
    line = "64,1280,4,1,64,1,64,gpt-oss-120b,gb200,bf16,none,{}\n"
    runs.write_text(head + "".join(line.format(name) for name in ("nemo-26.04", "nemo-26.08")))
    assert run(["predict", "--runs", str(runs), "-o", str(tmp_path / "out.csv")]) == 0
    with (tmp_path / "out.csv").open() as file:
        predicted = [float(row["predicted_step_time_s"]) for row in csv.DictReader(file)]
    assert predicted[0] > 1.5 * predicted[1]


def test_context_parallelism_is_fused_in_every_release() -> None:
    """Attention that is not fused cannot be split over the context (``plan_check``)."""
    llm = llm_preset("gpt-oss-120b")
    plan = Plan(dp=8, cp=2, global_batch=8)
    assert as_run_by(llm, plan, software_preset("nemo-26.04")).flash
