"""Calibration on measured runs, the check of runs, and their files."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import ModelError
from paceline.model.cluster_presets import cluster_preset
from paceline.networks.abci import abci
from paceline.networks.abnormal import check_runs
from paceline.networks.calibrate import (
    accuracy,
    calibrate_networks,
    left_out_in_turn,
    measured_of,
    normal_runs,
    predict_others,
)
from paceline.networks.calibration_file import load_calibration, save_calibration
from paceline.networks.compute import constants_of
from paceline.networks.factors import Measured, fit_factors
from paceline.networks.layers_json import write_layers
from paceline.networks.presets import network_preset
from paceline.networks.presets_chainer import chainer_network
from paceline.networks.runs import ADDED, checked_csv, read_network_runs
from paceline.networks.table import read_table
from paceline.networks.terms import TERMS
from paceline.plan.network_step import predict_network
from shared_data import SHARED

CNN = SHARED / "data" / "cnn"
needs_data = pytest.mark.skipif(not CNN.is_dir(), reason=f"{CNN} is not there")


@pytest.fixture(scope="module")
def table():
    return read_network_runs(CNN / "abci_v100_runs.csv")


@pytest.fixture(scope="module")
def calibration(table):
    return calibrate_networks(table.runs, abci())


@needs_data
def test_chainers_networks_are_those_of_the_table():
    def rows(network):
        return sorted(
            (layer.kind, math.prod(layer.out_shape), layer.parameter_count, layer.flops)
            for layer in network.layers
            if layer.kind != "view"
        )

    tables = read_table(CNN / "cnn_layers.csv")
    for (name, shape), network in tables.items():
        assert rows(chainer_network(name, shape)) == rows(network), (name, shape)


@needs_data
def test_datasheets_alone_reach_65_percent_of_the_normal_runs(table):
    runs = measured_of(normal_runs(table.runs), abci())
    values = [accuracy(sum(run.terms.values()), run.step_s) for run in runs]
    assert sum(values) / len(values) > 0.65


@needs_data
def test_calibrated_accuracy_on_runs_left_out(table):
    parts = left_out_in_turn(table.runs, abci())["runs"]
    assert sum(part.accuracy for part in parts) / len(parts) > 0.867


@needs_data
def test_above_64_gpus_from_those_up_to_64(table):
    runs = normal_runs(table.runs)
    few = [i for i, run in enumerate(runs) if run.strategy.gpus <= 64]
    part = predict_others("above 64 GPUs", measured_of(runs, abci()), few)
    assert part.runs == 7
    assert part.accuracy > 0.85


@needs_data
def test_abnormal_runs_are_flagged_and_normal_ones_are_not(table, calibration):
    checks = check_runs(table.runs, calibration)
    pairs = list(zip(table.runs, checks, strict=True))
    abnormal = [check.abnormal for run, check in pairs if run.status != "normal"]
    normal = [check.abnormal for run, check in pairs if run.status == "normal"]
    assert sum(abnormal) >= 0.97 * len(abnormal) == 0.97 * 41
    assert sum(normal) <= 0.05 * len(normal)
    by_line = {run.row["run"]: check for run, check in pairs}
    assert "communication 1.77 s, not" in by_line["407"].reason
    assert "no run of cosmoflow-512" in by_line["0"].reason


@needs_data
def test_status_is_not_read_when_runs_are_checked(table, calibration):
    blind = [replace(run, status="") for run in table.runs]
    assert check_runs(blind, calibration) == check_runs(table.runs, calibration)


@needs_data
def test_the_band_grows_with_gpus(table, calibration):
    run = table.runs[0]
    few, many = (
        replace(run, strategy=replace(run.strategy, gpus=gpus, global_batch=32 * gpus))
        for gpus in (64, 1024)
    )
    bands = [check.band for check in check_runs([few, many], calibration)]
    assert bands[1] > bands[0] * 1.05


@needs_data
def test_a_calibration_survives_its_file(calibration, tmp_path):
    path = tmp_path / "abci.yaml"
    save_calibration(calibration, path)
    assert load_calibration(path) == calibration


@needs_data
def test_a_calibrated_cluster_predicts_as_its_runs_were(calibration, table):
    run = next(run for run in table.runs if run.strategy.name == "data+filter")
    prediction = predict_network(
        run.network,
        run.strategy,
        calibration.cluster,
        factors=calibration.factors,
        software=calibration.software,
    )
    assert prediction.step_time_s == pytest.approx(sum(calibration.terms(run).values()))


def test_a_calibration_of_other_terms_is_to_be_made_again(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text("preset: v100-16g\nnetworks: {schema: 1, factors: {}}\n")
    with pytest.raises(ModelError, match="of schema 2, not 1: update it, or calibrate again"):
        load_calibration(path)


@needs_data
def test_checked_csv_keeps_the_columns(table):
    added = {run.line: dict.fromkeys(ADDED, "1") for run in table.runs}
    rows = list(csv.reader(checked_csv(table, added).splitlines()))
    assert rows[0] == [*table.columns, *ADDED]
    assert len(rows) == 77


def seconds(**terms):
    return {**dict.fromkeys(TERMS, 0.0), **terms}


def test_factors_explain_phases_and_stay_at_1_where_nothing_was_measured():
    runs = [
        Measured(
            strategy="data",
            terms=seconds(products=1.0, gradients=scale),
            step_s=2.0 + 3.0 * scale,
            compute_s=2.0,
            communication_s=3.0 * scale,
        )
        for scale in (0.5, 1.0, 2.0)
    ]
    factors = fit_factors(runs)
    fitted = factors.apply(runs[0].terms, "data")
    assert fitted["products"] == pytest.approx(2.0, rel=0.02)
    assert fitted["gradients"] == pytest.approx(1.5, rel=0.02)
    assert factors.shared["halo"] == 1.0


HEADER = "model,strategy,gpus,global_batch,step_time_s\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,gpus\nvgg16,4\n", "lacks the columns strategy, global_batch"),
        ("model,strategy,gpus,global_batch,step_time_ms\n", "has step_time_ms; give seconds"),
        (HEADER, "has no rows"),
        (HEADER + "vgg16,data,4,128,nan\n", "line 2: step_time_s must be a number of seconds"),
        (HEADER + "vgg16,data,four,128,1\n", "line 2: gpus must be a whole number"),
        (HEADER + "alexnet,data,4,128,1\n", "line 2: Chainer's networks are vgg16"),
        (HEADER + "vgg16,data,4,128\n", "line 2: has 4 cells, the header"),
        (HEADER + "vgg16,tensor,4,128,1\n", "line 2: no strategy 'tensor'"),
        (HEADER + "vgg16,pipeline,4,128,1\n", "line 2: runs of pipelines are not compared"),
    ],
)
def test_bad_files_of_runs_are_refused(tmp_path, text, message):
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        read_network_runs(path)


def test_no_normal_run_is_refused(tmp_path):
    path: Path = tmp_path / "runs.csv"
    rows = "vgg16,data,4,128,1,abnormal: input bound\n" * 5
    path.write_text(HEADER.strip() + ",status\n" + rows, encoding="utf-8")
    with pytest.raises(ModelError, match="0 normal runs"):
        calibrate_networks(read_network_runs(path).runs, abci())


def test_a_wrong_row_is_left_out_and_stays_in_the_file(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + "vgg16,data,4,128,1\nvgg16,data,4,2,1\n", encoding="utf-8")
    table = read_network_runs(path, skip_errors=True)
    assert [run.line for run in table.runs] == [2]
    assert "at most 2 GPUs, or a batch of at least 4" in table.errors[3]
    lines = checked_csv(table, {2: dict.fromkeys(ADDED, "1")}).splitlines()
    assert lines[1] == "vgg16,data,4,128,1,1,1,1"
    assert lines[2].startswith("vgg16,data,4,2,1,,,")
    assert "at least 4" in lines[2]


def torch_rows(*rows, header="framework,model,strategy,gpus,global_batch,precision,step_time_s\n"):
    return header + "".join(f"{row}\n" for row in rows)


def test_runs_of_torch_name_presets_and_layers_files(tmp_path):
    """DDP's buckets, NCCL; the file of layers lies beside the runs."""
    network = network_preset("resnet18", (3, 64, 64))
    write_layers(network, tmp_path / "own.layers.json")
    path = tmp_path / "runs.csv"
    rows = [f"pytorch,own.layers.json,data,{n},{n * 32},amp,0.1" for n in (1, 2, 4, 8)]
    path.write_text(torch_rows(*rows, "pytorch,resnet50,data,8,256,tf32,0.2"))
    table = read_network_runs(path)
    own, preset = table.runs[0], table.runs[-1]
    assert own.network == network
    assert own.strategy.gradients == "buckets"
    assert own.strategy.precision == "amp"
    assert own.strategy.halo_library == "nccl"
    assert preset.network.input_shape == (3, 224, 224)
    cluster = cluster_preset("v100-16g")
    assert calibrate_networks(table.runs[:4], cluster).software == constants_of(cluster.gpu)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("jax,resnet50,data,8,256,fp32,1", "no framework 'jax'; choose chainer, pytorch"),
        ("pytorch,absent.layers.json,data,8,256,fp32,1", "absent.layers.json cannot be read"),
        ("pytorch,resnet51,data,8,256,fp32,1", "resnet50"),
        ("pytorch,resnet50,data,8,256,fp8,1", "choose fp32, tf32, amp"),
    ],
)
def test_bad_rows_of_torch_are_refused(tmp_path, row, message):
    path = tmp_path / "runs.csv"
    path.write_text(torch_rows(row))
    with pytest.raises(ModelError, match=message):
        read_network_runs(path)


def test_runs_of_two_frameworks_are_not_calibrated_together(tmp_path):
    path = tmp_path / "runs.csv"
    rows = [f"pytorch,resnet50,data,{n},{n * 32},fp32,0.1" for n in (1, 2, 4, 8)]
    path.write_text(torch_rows(*rows, ",vgg16,data,8,256,,1"))
    with pytest.raises(ModelError, match="several frameworks"):
        calibrate_networks(read_network_runs(path).runs, cluster_preset("v100-16g"))


@needs_data
def test_a_run_beyond_its_limit_says_so(table, calibration):
    run = next(run for run in table.runs if run.strategy.name == "filter")
    (check,) = check_runs([run], calibration)
    assert "beyond its limit" not in check.reason
    beyond = replace(run, strategy=replace(run.strategy, gpus=256, split=256))
    (check,) = check_runs([beyond], calibration)
    assert "beyond its limit, filter: at most 64 GPUs" in check.reason
