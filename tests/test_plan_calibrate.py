"""Calibration: recovers what made the runs, fixes what they do not say, and the real A100 runs."""

from dataclasses import replace

import numpy as np
import pytest

import requires
from paceline.errors import ModelError
from paceline.model.cluster_presets import cluster_preset
from paceline.model.cluster_yaml import load_cluster, save_cluster
from paceline.model.costs import plan_costs
from paceline.model.efficiency import Efficiency
from paceline.model.llm import LLM
from paceline.model.plan import Plan
from paceline.plan.calibrate import CONSTANTS, calibrate, cross_validate, folds
from paceline.plan.predict import predict
from paceline.plan.runs import error_table, read_runs, runs_cluster
from paceline.plan.step import step_time_s


def jobs():
    """Small models on one to four nodes: quick to evaluate."""
    found = []
    for hidden, tp, pp, dp, mb in [
        (1024, 1, 1, 8, 8),
        (2048, 2, 1, 8, 4),
        (4096, 8, 1, 4, 8),
        (2048, 1, 2, 8, 4),
        (4096, 4, 1, 8, 2),
        (2048, 8, 1, 1, 16),
        (1024, 1, 1, 32, 2),
        (4096, 2, 4, 4, 2),
        (2048, 4, 2, 2, 8),
    ]:
        llm = LLM(name="x", layers=8, hidden=hidden, heads=16, vocab=51200, seq_len=1024)
        plan = Plan(
            tp=tp,
            pp=pp,
            dp=dp,
            micro_batch=mb,
            global_batch=mb * dp * 4,
            precision="fp16",
            recompute="full",
            flash=False,
            overlap_dp=False,
            zero=0,
        )
        found.append((llm, plan))
    return found


def times(cluster):
    return [step_time_s(plan_costs(llm, plan, cluster), plan) for llm, plan in jobs()]


def test_the_efficiency_that_made_the_runs_is_found():
    requires.installed("scipy")
    cluster = cluster_preset("a100-80g")
    truth = replace(cluster.efficiency, gemm=0.70, intra=0.60, memory=0.75)
    fit = calibrate(jobs(), times(replace(cluster, efficiency=truth)), cluster)
    assert error_table(times(replace(cluster, efficiency=truth)), fit.predicted_s)["mape"] < 0.01
    assert fit.cluster.efficiency.gemm == pytest.approx(0.70, rel=0.03)
    assert fit.cluster.efficiency.intra == pytest.approx(0.60, rel=0.10)


def test_what_the_runs_cannot_tell_stays_as_it_was():
    requires.installed("scipy")
    cluster = cluster_preset("a100-80g")
    fit = calibrate(jobs(), times(cluster), cluster)
    assert {"gemm_fp8", "attention", "attention_backward"} <= set(fit.calibration.fixed)
    for name in fit.calibration.fixed:
        assert getattr(fit.cluster.efficiency, name) == getattr(cluster.efficiency, name)
    assert len(fit.calibration.constants) <= 15


def test_a_calibration_is_kept_and_says_where_it_ends(tmp_path):
    requires.installed("scipy")
    cluster = cluster_preset("a100-80g")
    fit = calibrate(jobs(), times(cluster), cluster)
    save_cluster(fit.cluster, tmp_path / "ours.yaml")
    ours = load_cluster(tmp_path / "ours.yaml")
    assert ours == fit.cluster
    inside = predict(*jobs()[0], ours)
    assert inside.warnings == ()
    beyond = predict(jobs()[0][0], Plan(dp=512, global_batch=4096), ours)
    said = "; ".join(beyond.warnings)
    assert "gpus 512 (calibrated: 8 to 32)" in said
    assert "recompute none (calibrated: full)" in said


def test_a_constant_at_its_bound_of_1_leaves_the_fit_determined(tmp_path):
    """Its logarithm is 0, so that no difference of the predictions shows: it stays as it was."""
    requires.installed("scipy")
    rows = ["gpus,global_batch,micro_batch,hidden,heads,layers,seq_len,tp,dp,pp,step_time_s"]
    for dp, tp, pp, step_s in (
        (16, 1, 1, 0.5214), (8, 2, 1, 0.62), (8, 1, 2, 0.6909), (4, 4, 1, 0.8338),
        (4, 2, 2, 0.7433), (4, 1, 4, 0.8049), (2, 8, 1, 1.3353), (2, 4, 2, 0.9161),
    ):  # fmt: skip
        rows.append(f"16,64,2,2048,16,24,2048,{tp},{dp},{pp},{step_s}")
    (tmp_path / "runs.csv").write_text("\n".join(rows))
    runs = read_runs(tmp_path / "runs.csv").runs
    jobs, measured = [(run.llm, run.plan) for run in runs], [run.measured_s for run in runs]
    with pytest.raises(ModelError, match="the runs determine no constant"):
        calibrate(jobs, measured, runs_cluster(runs, None))


def test_too_few_runs():
    few = jobs()[:5]
    with pytest.raises(ModelError, match="5 runs are too few to calibrate; measure at least 8"):
        calibrate(few, [1.0] * 5, cluster_preset("a100-80g"))


def test_folds_are_disjoint_and_complete():
    parts = folds(52, 5, seed=3)
    assert len(parts) == 5
    assert sorted(i for part in parts for i in part) == list(range(52))


def test_constants_are_efficiencies_within_their_bounds():
    base = Efficiency()
    for constant in CONSTANTS:
        assert constant.low < getattr(base, constant.name) <= constant.high


def test_real_a100_runs():
    """Presets within 20%; calibrated within 7% (median 4%) of runs that a fit has not seen."""
    requires.installed("scipy")
    runs = read_runs(requires.data("llm", "megatron_a100_calibration.csv"), need_times=True).runs
    cluster = runs_cluster(runs, None)
    measured = np.array([run.measured_s for run in runs])
    preset = [predict(run.llm, run.plan, cluster).step_time_s for run in runs]
    assert error_table(measured, preset)["mape"] < 0.20
    jobs = [(run.llm, run.plan) for run in runs]
    unseen = error_table(measured, cross_validate(jobs, measured, cluster, folds(len(runs), 2)))
    assert unseen["mape"] < 0.07
    assert unseen["median"] < 0.04


def test_a_calibration_on_few_gpus_holds_on_many():
    """Shared MLPerf runs on H100: fitted to 64 to 768 GPUs, predicted for 2,048 to 8,192."""
    table = read_runs(requires.data("llm", "mlperf_llm_runs.csv"), skip_errors=True)
    gpu = {line: row["gpu"] for line, row in zip(table.lines, table.rows, strict=True)}
    runs = [
        run
        for run in table.runs
        if gpu[run.line] == "h100" and run.plan.precision == "fp8" and not run.plan.adapter_rank
    ]
    cluster = cluster_preset("h100")
    few = [run for run in runs if run.plan.gpus <= 768]
    many = [run for run in runs if run.plan.gpus > 768]
    assert (len(few), len(many)) == (8, 4)
    fit = calibrate([(run.llm, run.plan) for run in few], [run.measured_s for run in few], cluster)
    assert {"partial", "inter", "attention"} <= set(fit.calibration.fixed)
    for run in many:
        predicted = predict(run.llm, run.plan, fit.cluster).step_time_s
        assert predicted == pytest.approx(run.measured_s, rel=0.08)
