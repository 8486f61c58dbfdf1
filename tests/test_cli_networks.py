"""``paceline calibrate`` and ``predict`` for convolutional networks."""

import csv
import json

import pytest

from paceline.cli.main import run
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
