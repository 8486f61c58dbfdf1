"""``paceline calibrate`` and ``predict`` for convolutional networks."""

import csv
import json
import textwrap
from pathlib import Path

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
    assert "40 of 76 runs are abnormal" in capsys.readouterr().out
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


def test_numbers_below_one_are_refused(capsys):
    machine = ["resnet50", "--gpu", "v100-16g", "--gpus"]
    for arguments, named in (
        (["predict", *machine, "0", "--global-batch", "8"], "gpus must be"),
        (
            ["plan", *machine, "8", "--batch-per-gpu", "0"],
            "a batch per GPU has 1 sample at least, not 0",
        ),
        (["plan", *machine, "8", "--batch-per-gpu", "8", "--epochs", "-2"], "--epochs must be"),
    ):
        assert run(arguments) == 2
        assert named in capsys.readouterr().err


def test_precision_layout_and_library_change_the_step(capsys):
    whole = document(capsys, *PREDICT)
    amp = document(capsys, *PREDICT, "--precision", "fp16")
    assert amp["strategy"]["precision"] == "amp"
    assert amp["breakdown_s"]["memory"] < 0.6 * whole["breakdown_s"]["memory"]
    assert amp["memory_bytes"]["casts"] > 0
    last = document(capsys, *PREDICT, "--precision", "amp", "--channels-last")
    assert "reordering for channels first" in {row["what"] for row in amp["findings"]}
    assert amp["breakdown_s"]["layout"] == pytest.approx(amp["step_time_s"] - last["step_time_s"])
    options = ["--gradients", "packed"]
    packed = document(capsys, *PREDICT, *options)["breakdown_s"]["gradients"]
    half = document(capsys, *PREDICT, *options, "--gradient-precision", "fp16")["breakdown_s"]
    assert half["gradients"] == pytest.approx(packed / 2)
    mpi = document(capsys, *PREDICT, *options, "--library", "mpi", "--sync-batchnorm")
    assert mpi["breakdown_s"]["gradients"] > packed
    assert mpi["breakdown_s"]["norms"] > 0


def test_a_cluster_file_has_constants_of_its_own(tmp_path, capsys):
    cluster = tmp_path / "own.yaml"
    options = ["--gpus", "1", "--global-batch", "64", "--cluster", cluster]
    cluster.write_text("preset: v100-16g\n")
    host = document(capsys, "predict", "resnet50", *options)["breakdown_s"]["host"]
    cluster.write_text("preset: v100-16g\nnetworks: {compute: {kernel_s: 10.0e-6}}\n")
    twice = document(capsys, "predict", "resnet50", *options)["breakdown_s"]["host"]
    assert twice == pytest.approx(2 * host)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{compute: {kernels: 1}}", "networks.compute has product_share, "),
        ("{compute: {memory_share: 2}}", "compute.memory_share must be at most 1, not 2"),
        ("{compute: 3}", "networks.compute has product_share, "),
        ("{constants: {}}", "networks has compute, or is written by `paceline calibrate`"),
        ("[]", "networks has compute, or is written by `paceline calibrate`"),
    ],
)
def test_wrong_constants_of_a_cluster_are_named(section, message, tmp_path, capsys):
    cluster = tmp_path / "own.yaml"
    cluster.write_text(f"preset: v100-16g\nnetworks: {section}\n")
    assert run([*PREDICT[:2], *PREDICT[4:], "--cluster", str(cluster)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_search_has_the_options_of_a_prediction(capsys):
    options = ["--gpu", "a100-80g", "--gpus", "8", "--batch-per-gpu", "64", "--precision", "amp"]
    row = document(capsys, "plan", "resnet50", *options, "--channels-last", "--sync-batchnorm")
    best = row["fastest"]
    assert best["strategy"]["precision"] == "amp"
    assert best["strategy"]["channels_last"]
    assert best["breakdown_s"]["norms"] > 0


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
        ([*PREDICT, "--cluster", "x.yaml"], "name the hardware"),
        ([*PREDICT, "--method", "exact"], "no method 'exact'"),
        (["predict", "no.layers.json", *PREDICT[2:]], "no.layers.json cannot be read"),
        (["plan", "resnet50", "--gpu", "h100", "--gpus", "8"], "either a batch per GPU"),
        (["predict", "--model", "gpt3-1.3b", "--split", "2"], "--split is for networks"),
        (["predict", "--model", "gpt3-1.3b", "--precision", "amp"], "amp is for networks"),
        (["plan", "--model", "gpt3-1.3b", "--library", "mpi"], "--library is for networks"),
        ([*PREDICT, "--precision", "bf16"], "V100 SXM2 16GB has no bf16"),
        ([*PREDICT, "--precision", "fp8"], "no precision 'fp8'; choose fp32, tf32, amp"),
        ([*PREDICT, "--library", "gloo"], "no library 'gloo'; choose nccl, mpi"),
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
    job.write_text(JOB.replace("1024}", "1024, precision: fp16, channels_last: true}"))
    options += ["--precision", "amp", "--channels-last"]
    assert document(capsys, "predict", job) == document(capsys, *PREDICT, *options)
    assert document(capsys, "plan", job)["fastest"]["strategy"]["precision"] == "amp"


def test_the_job_of_the_page_runs(layers, capsys):
    page = (Path(__file__).parents[1] / "docs" / "strategies.md").read_text()
    start = page.index("    network: net.layers.json")
    job = layers.parent / "page.yaml"
    text = page[start : page.index("\n\n", start)].replace("net.layers", "resnet50.layers")
    job.write_text(textwrap.dedent(text))
    row = document(capsys, "predict", job)
    assert row["strategy"]["precision"] == "amp"
    assert row["strategy"]["sync_batchnorm"]
    assert row["breakdown_s"]["halo"] > 0


def test_a_wrong_field_of_a_job_is_named_with_its_line(layers, capsys):
    job = layers.parent / "wrong.yaml"
    job.write_text(JOB.replace("split: 4", "splits: 4"))
    assert run(["predict", str(job)]) == 2
    assert "line 4" in capsys.readouterr().err


def test_what_cannot_run_says_so_before_its_seconds(capsys):
    arguments = ["predict", "resnet50", "--gpu", "h100", "--gpus", "128", "--global-batch", "128"]
    assert run([*arguments, "--strategy", "filter"]) == 0
    lines = capsys.readouterr().out.splitlines()
    reason = "filter: at most 64 GPUs, layer conv1 has 64 filters"
    assert lines[1] == f"it CANNOT RUN: {reason}; the prediction if it could:"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "nosuch", "--gpu", "h100", "--gpus", "8"], "there is no file nosuch"),
        (["predict", "resnet5", "--gpu", "h100"], "the nearest are resnet50"),
        (
            ["plan", "resnet50", "--gpu", "h100", "--gpus", "8", "--batch-per-gpu", "0"],
            "a batch per GPU has 1 sample at least",
        ),
    ],
)
def test_what_is_no_network_or_no_batch_is_one_line(arguments, message, capsys):
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
