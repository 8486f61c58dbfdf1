"""``paceline calibrate`` and ``predict`` for convolutional networks."""

import csv
import json

import pytest

from paceline.cli.main import run
from paceline.networks.layers_json import write_layers
from paceline.networks.presets import network_preset
from shared_data import SHARED

RUNS = SHARED / "data" / "cnn" / "abci_v100_runs.csv"
needs_data = pytest.mark.skipif(not RUNS.is_file(), reason=f"{RUNS} is not there")


@pytest.fixture(scope="module")
def abci(tmp_path_factory):
    path = tmp_path_factory.mktemp("abci") / "abci.yaml"
    assert run(["calibrate", str(RUNS), "-o", str(path)]) == 0
    return path


@needs_data
def test_runs_are_checked_against_a_calibration(abci, tmp_path, capsys):
    output = tmp_path / "checked.csv"
    assert run(["predict", "--runs", str(RUNS), "--cluster", str(abci), "-o", str(output)]) == 0
    assert "40 of 76 runs are not as they should be" in capsys.readouterr().out
    rows = list(csv.DictReader(output.read_text().splitlines()))
    with RUNS.open() as file:
        header = file.readline().strip()
    assert output.read_text().startswith(f"{header},predicted_step_time_s,abnormal,reason\n")
    assert {row["abnormal"] for row in rows} == {"0", "1"}
    assert all(float(row["predicted_step_time_s"]) > 0 for row in rows)


@needs_data
def test_calibration_prints_what_fails_when_it_is_left_out(tmp_path, capsys):
    assert run(["calibrate", str(RUNS), "-o", str(tmp_path / "a.yaml"), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["runs"] == 35
    assert about["accuracy_left_out"]["runs"] > 0.867
    assert "network vgg16" in about["left_out"]
    assert "strategy filter" in about["left_out"]


@needs_data
def test_a_calibrated_cluster_serves_language_models_too(abci, capsys):
    options = ["--gpus", "8", "--tp", "4", "--micro-batch", "1", "--global-batch", "8"]
    model = ["--model", "gpt3-1.3b", "--precision", "fp16"]
    code = run(["predict", *model, "--cluster", str(abci), *options])
    assert code == 0, capsys.readouterr().err


@needs_data
def test_runs_of_networks_need_a_calibration(tmp_path, capsys):
    assert run(["predict", "--runs", str(RUNS)]) == 2
    assert "give --cluster" in capsys.readouterr().err
    plain = tmp_path / "plain.yaml"
    plain.write_text("preset: v100-16g\n")
    assert run(["predict", "--runs", str(RUNS), "--cluster", str(plain)]) == 2
    assert "has no calibration of networks" in capsys.readouterr().err


PREDICT = ["predict", "resnet50", "--gpu", "v100-16g", "--gpus", "64", "--global-batch", "1024"]


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "resnet50.layers.json"
    write_layers(network_preset("resnet50"), path)
    return path


def document(capsys, *arguments):
    code = run([*map(str, arguments), "--json"])
    output = capsys.readouterr()
    assert code == 0, output.err
    return json.loads(output.out)


def test_a_layers_file_is_predicted_as_the_preset(layers, capsys):
    options = ["--strategy", "data+spatial", "--split", "4"]
    from_preset = document(capsys, *PREDICT, *options)
    assert document(capsys, "predict", layers, *PREDICT[2:], *options) == from_preset
    assert sum(from_preset["breakdown_s"].values()) == pytest.approx(from_preset["step_time_s"])
    assert {"halo", "split", "products"} <= set(from_preset["breakdown_s"])


def test_lines_name_limits(capsys):
    options = ["--strategy", "filter", "--gpus", "128"]
    assert run([*PREDICT, *options]) == 0
    output = capsys.readouterr().out
    assert "number of PEs" not in output
    assert "filter: at most 64 GPUs, layer conv1 has 64 filters" in output


def test_the_papers_formulas_are_a_bound(capsys):
    options = ["--strategy", "data+filter", "--split", "4"]
    paper = document(capsys, *PREDICT, *options, "--method", "paradl")
    assert set(paper["breakdown_s"]) == {"computation", "communication"}
    assert paper["step_time_s"] < document(capsys, *PREDICT, *options)["step_time_s"]


def test_largest_batch_per_strategy(capsys):
    rows = document(capsys, "predict", "vgg16", "--gpu", "v100-16g", "--largest-batch")
    assert rows["data"]["filled_by"] == "activations"
    assert 32 < rows["data"]["samples_per_gpu"] < 512


def test_a_network_is_planned(layers, capsys):
    options = ["--gpu", "a100-80g", "--gpus", "1-1024", "--batch-per-gpu", "32"]
    options += ["--samples", "1.28M", "--epochs", "90"]
    assert run(["plan", str(layers), *options]) == 0
    output = capsys.readouterr().out
    assert output.startswith("fastest:     data on 1,024 GPUs, batch 32,768")
    assert " h, " in output
    assert " min, " in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PREDICT, "--strategy", "data+filter", "--split", "6"], "nearest that do are 4 and 8"),
        ([*PREDICT, "--strategy", "tensor"], "no strategy 'tensor'"),
        ([*PREDICT, "--global-batch", "0"], "global batch must be a whole number >= 1"),
        (PREDICT[:-2], "give --global-batch"),
        ([*PREDICT, "--cluster", "x.yaml"], "say on what"),
        ([*PREDICT, "--method", "exact"], "no method 'exact'"),
        (["predict", "no.layers.json", *PREDICT[2:]], "no.layers.json cannot be read"),
        (["plan", "resnet50", "--gpu", "h100", "--gpus", "8"], "either a batch per GPU"),
        (["predict", "--model", "gpt3-1.3b", "--split", "2"], "--split is for networks"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


JOB = """\
network: resnet50.layers.json
cluster: v100-16g
gpus: 64
strategy: {name: data+spatial, split: 4, global_batch: 1024}
"""


def test_a_job_file_takes_a_network(layers, capsys):
    job = layers.parent / "job.yaml"
    job.write_text(JOB)
    options = ["--strategy", "data+spatial", "--split", "4"]
    assert document(capsys, "predict", job) == document(capsys, *PREDICT, *options)
    changed = document(capsys, "predict", job, "--split", "2")
    assert changed["strategy"]["split"] == 2
    assert document(capsys, "plan", job)["fastest"]["strategy"]["gpus"] == 64


def test_a_wrong_field_of_a_job_is_named_with_its_line(layers, capsys):
    job = layers.parent / "wrong.yaml"
    job.write_text(JOB.replace("split: 4", "splits: 4"))
    assert run(["predict", str(job)]) == 2
    assert "line 4" in capsys.readouterr().err
