"""``paceline predict``, ``calibrate``, ``analyze --expect`` and ``synth --from-plan``."""

import csv
import gzip
import json

import pytest

import requires
from paceline.cli.main import run

FLAGS = ["predict", "--model", "gpt3-13b", "--gpu", "a100-80g", "--gpus", "64", "--tp", "4"]
FLAGS += ["--pp", "4", "--micro-batch", "1", "--global-batch", "64"]
JOB = """\
model: megatron-18.4b
cluster: a100-80g
gpus: 64
plan: {tp: 8, pp: 2, micro_batch: 2, global_batch: 64, sequence_parallel: true}
training: {tokens: 300e9}
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def said(capsys, *args):
    code = run([str(arg) for arg in args])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_a_screen_with_all_that_matters(capsys):
    code, out, err = said(capsys, *FLAGS, "--tokens", "300B")
    assert (code, err) == (0, "")
    for word in ("gpt3-13b", "tp4 pp4 dp4", "MFU", "pipeline bubble", "memory: fits", "days", "$"):
        assert word in out


def test_the_reserve_is_said_and_a_share_of_the_memory(capsys):
    code, out, _ = said(capsys, *FLAGS, "--reserve", "50%", "--loss", "fused")
    assert (code, "beside a reserve of 50%" in out) == (0, True)
    _, default, _ = said(capsys, *FLAGS, "--json")
    memory = json.loads(default)["memory"]
    assert memory["reserve_bytes"] == pytest.approx(0.08 * memory["capacity_bytes"])
    assert memory["by_stage"][0]["moment"] in ("loss", "backward of a layer")
    code, _, err = said(capsys, *FLAGS, "--reserve", "all")
    assert (code, "no percentage" in err) == (2, True)


def test_json_of_a_job_file(capsys, job):
    code, out, _ = said(capsys, "predict", job, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["plan"]["dp"] == 4
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_time_s"])
    assert len(found["memory"]["by_stage"]) == 2
    assert found["training"]["days"] > 0


def test_options_change_the_plan_of_a_file(capsys, job):
    _, out, _ = said(capsys, "predict", job, "--json", "--pp", "4", "--recompute", "full")
    plan = json.loads(out)["plan"]
    assert (plan["pp"], plan["dp"], plan["recompute"]) == (4, 2, "full")


def test_the_timeline_shows_the_schedule(capsys, job, tmp_path):
    path = tmp_path / "step.json.gz"
    assert run(["predict", str(job), "--timeline", str(path)]) == 0
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    computes = [e for e in events if e["ph"] == "X" and e["cat"].endswith("-compute")]
    first_stage = sorted((e for e in computes if e["pid"] == 1), key=lambda e: e["ts"])
    assert " ".join(e["name"] for e in first_stage) == (
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"
    )
    code, _, err = said(capsys, "predict", job, "--timeline", path)
    assert code == 2
    assert "exists" in err


def test_the_timeline_shows_split_backwards(capsys, job, tmp_path):
    path = tmp_path / "step.json.gz"
    assert run(["predict", str(job), "--schedule", "zb-h1", "--timeline", str(path)]) == 0
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    computes = [e for e in events if e["ph"] == "X" and e["cat"].endswith("-compute")]
    last_stage = sorted((e for e in computes if e["pid"] == 2), key=lambda e: e["ts"])
    names = " ".join(e["name"] for e in last_stage)
    assert names.startswith("F0 B0 F1 B1 W0 F2 B2 W1")
    assert names.endswith("F7 B7 W6 W7")


def test_runs_with_their_errors(capsys, tmp_path):
    runs, out = tmp_path / "runs.csv", tmp_path / "predicted.csv"
    runs.write_text(
        "gpus,global_batch,micro_batch,hidden,heads,layers,seq_len,tp,dp,pp,step_time_s,who\n"
        "64,512,8,3072,32,30,2048,1,64,1,3.5665,a\n64,512,8,3072,32,30,2048,2,32,1,3.9752,b\n"
    )
    code, text, _ = said(capsys, "predict", "--runs", runs, "-o", out)
    assert code == 0
    assert "2 measured runs: mean error" in text
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["who"] for row in rows] == ["a", "b"]
    assert all(2 < float(row["predicted_step_time_s"]) < 6 for row in rows)
    _, text, _ = said(capsys, "predict", "--runs", runs, "--json")
    assert json.loads(text)["errors"]["n"] == 2


HEAD = "gpus,global_batch,micro_batch,hidden,heads,layers,seq_len,tp,dp,pp"


def slow_runs(capsys, path, gpu, factor):
    """Rows of a machine that is as many times slower than the preset ``gpu`` says."""
    shapes = [(1024, 1, 8, 8), (2048, 2, 4, 4), (4096, 8, 1, 8), (2048, 1, 8, 4)]
    rows = [
        f"8,{mb * 32},{mb},{h},16,8,1024,{tp},{dp},1"
        for h, tp, dp, most in shapes
        for mb in (most, most // 2)
    ]
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    _, out, _ = said(capsys, "predict", "--runs", path, "--gpu", gpu, "--json")
    times = [factor * row["predicted_step_time_s"] for row in json.loads(out)["runs"]]
    return [f"{row},{seconds}" for row, seconds in zip(rows, times, strict=True)]


def test_calibrating_writes_a_cluster_for_each_gpu(capsys, tmp_path):
    requires.installed("scipy")
    runs, folder = tmp_path / "runs.csv", tmp_path / "clusters"
    # Two spellings of one GPU, another one, and too few runs of a third.
    slow = [f"{row},A100_80g" for row in slow_runs(capsys, runs, "a100-80g", 1.2)]
    slow[0] = slow[0].replace("A100_80g", "a100-80g")
    fast = [f"{row},h100" for row in slow_runs(capsys, runs, "h100", 0.9)]
    few = [f"{row},v100-32g" for row in slow_runs(capsys, runs, "v100-32g", 1.0)[:2]]
    runs.write_text("\n".join([f"{HEAD},step_time_s,gpu", *slow, *fast, *few]) + "\n")
    code, _, problem = said(capsys, "calibrate", runs, "-o", tmp_path / "one.yaml")
    assert code == 2
    assert "name a folder" in problem
    code, out, notes = said(capsys, "calibrate", runs, "-o", folder, "--folds", "2", "--json")
    assert code == 0
    assert "v100-32g has 2 runs, fewer than 8; no file" in notes
    found = json.loads(out)
    assert [cluster["runs"] for cluster in found["clusters"]] == [8, 8]
    assert found["too_few_runs"] == {"v100-32g": 2}
    assert sorted(path.name for path in folder.iterdir()) == ["a100-80g.yaml", "h100.yaml"]
    _, out, _ = said(capsys, "predict", "--runs", runs, "--cluster", folder, "--json")
    assert json.loads(out)["errors"]["mape"] < 0.05
    _, out, _ = said(capsys, "predict", "--runs", runs, "--json")
    assert json.loads(out)["errors"]["mape"] > 0.1
    code, *_ = said(capsys, "calibrate", runs, "-o", folder)
    assert code == 2  # nothing is overwritten


def test_calibrating_writes_a_cluster_that_predict_reads(capsys, tmp_path):
    requires.installed("scipy")
    runs, ours = tmp_path / "runs.csv", tmp_path / "ours.yaml"
    rows = slow_runs(capsys, runs, "a100-80g", 1.2)
    runs.write_text("\n".join([f"{HEAD},step_time_s", *rows]) + "\n")
    code, out, _ = said(capsys, "calibrate", runs, "--cluster", "a100-80g", "-o", ours, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["runs"] == 8
    assert found["constants"]["gemm"] < 0.75
    assert found["error"]["mape"] < 0.05
    code, out, _ = said(capsys, "predict", *FLAGS[1:3], *FLAGS[5:], "--cluster", ours)
    assert code == 0
    assert "outside what the cluster was calibrated with" in " ".join(out.split())


def test_expecting_a_synthesised_job(capsys, job, tmp_path):
    trace = tmp_path / "trace.parquet"
    slow = ("--slow-worker", "1,0,1.5", "--noise", "0", "--steps", "2")
    code, *_ = said(capsys, "synth", "--from-plan", job, "--scale", "1.15", *slow, "-o", trace)
    assert code == 0
    _, out, _ = said(capsys, "analyze", trace, "--expect", job, "--no-diagnose", "--json")
    expected = json.loads(out)["expected"]
    assert expected["compute_ratio"] == pytest.approx(1.15, rel=1e-3)
    assert expected["straggler_ratio"] > 1.1
    _, out, _ = said(capsys, "analyze", trace, "--expect", job, "--no-diagnose")
    assert "hardware and software" in " ".join(out.split())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["predict"], "name the model to train"),
        (["predict", "--model", "gpt3-175c", "--gpu", "h100", "--tp", "1"], "gpt3-175b"),
        (["predict", "--model", "gpt3-13b", "--gpu", "h1000", "--tp", "1"], "h100"),
        (["predict", "--model", "gpt3-13b", "--gpu", "h100"], "there is no plan"),
        ([*FLAGS, "--dp", "3"], "= 48 GPUs, not 64"),
        ([*FLAGS[:-1], "63"], "global_batch 63 not divisible by dp 4 x micro_batch 1"),
        ([*FLAGS, "--runs", "x.csv"], "leave out the job and its plan"),
        ([*FLAGS, "-o", "x.csv"], "-o is for --runs"),
        (["predict", "--runs", "none.csv"], "none.csv cannot be read: No such file"),
        (["predict", "none.yaml"], "none.yaml"),
        (["synth", "--scale", "2", "-o", "x.parquet"], "--scale is for --from-plan"),
        ([*FLAGS, "--profile", "none.json"], "none.json"),
        ([*FLAGS, "--schedule", "zbv", "--vpp", "4"], "zbv has vpp 2, not 4"),
        ([*FLAGS, "--schedule", "dualpipev", "--dp", "16", "--pp", "1"], "vpp 2 needs pp > 1"),
        ([*FLAGS, "--overlap-factor", "0.5"], "overlap_factor is for dualpipev and dualpipe; 1f1b"),
        ([*FLAGS, "--schedule", "dualpipe", "--overlap-factor", "1.5"], "from 0 to 1, not 1.5"),
        ([*FLAGS, "--schedule", "dualpipe", "--overlap-factor", "nan"], "from 0 to 1, not nan"),
        (["predict", "resnet50", "--gpu", "h100", "--overlap-factor", "0"], "not for networks"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(capsys, args, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = said(capsys, *args)
    assert code == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_the_overlap_factor_shows_where_pairs_overlap(capsys):
    flags = ["predict", "--model", "mixtral-8x7b", "--gpu", "h100", "--gpus", "64", "--ep", "8"]
    flags += ["--pp", "4", "--global-batch", "512", "--json", "--schedule"]

    def predicted(*more):
        code, out, err = said(capsys, *flags, *more)
        assert code == 0, err
        return json.loads(out)

    usual, full, part, none = (
        predicted("dualpipe", *more)
        for more in ((), *(("--overlap-factor", share) for share in ("1", "0.5", "0")))
    )
    assert usual == full
    assert [found["plan"]["overlap_factor"] for found in (full, part, none)] == [1.0, 0.5, 0.0]
    assert full["step_time_s"] < part["step_time_s"] < none["step_time_s"]
    assert full["breakdown_s"]["ep"] < part["breakdown_s"]["ep"] < none["breakdown_s"]["ep"]
    assert sum(part["breakdown_s"].values()) == pytest.approx(part["step_time_s"])
    assert "overlap_factor" not in predicted("1f1b")["plan"]


def test_a_wrong_field_is_named_with_its_line(capsys, job):
    job.write_text(JOB.replace("micro_batch", "micro_bach"))
    code, _, err = said(capsys, "predict", job)
    assert code == 2
    assert "job.yaml, line 4: plan.micro_bach" in err
    assert "micro_batch" in err


def test_one_measured_run_has_no_r2(capsys, tmp_path):
    runs = tmp_path / "runs.csv"
    head = (
        "gpus,global_batch,micro_batch,hidden,heads,layers,seq_len,tp,dp,pp,step_time_s,model,vpp"
    )
    runs.write_text(f"{head}\n64,512,8,3072,32,30,2048,1,64,1,3.5665,ours,n/a\n")
    code, out, _ = said(capsys, "predict", "--runs", runs, "--json")
    assert code == 0
    assert json.loads(out)["errors"]["r2"] is None
    code, out, _ = said(capsys, "predict", "--runs", runs, "-o", tmp_path / "out.csv")
    assert code == 0
    assert "R²" not in out


def test_rows_that_cannot_be_expressed_leave_the_others(capsys, tmp_path):
    runs = tmp_path / "runs.csv"
    head = "gpus,global_batch,micro_batch,tp,dp,pp,gpu,model,precision,zero,recompute,task"
    good = "8,128,1,1,8,1,h100,llama3-8b,bf16,3,none,"
    rows = [good.replace("bf16", "fp4"), good, good + "dpo", good + "dpo"]
    runs.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    code, out, err = said(capsys, "predict", "--runs", runs)
    assert code == 0
    assert len(out.splitlines()) == 5
    assert "3 rows were not predicted:" in err
    assert "line 4 and 1 more: task 'dpo' cannot be expressed" in err
    code, out, _ = said(capsys, "predict", "--runs", runs, "--json")
    result = json.loads(out)
    assert [row["line"] for row in result["runs"]] == [3]
    assert [row["line"] for row in result["not_predicted"]] == [2, 4, 5]
    runs.write_text("\n".join([head, rows[0]]) + "\n", encoding="utf-8")
    code, _, err = said(capsys, "predict", "--runs", runs)
    assert code == 2
    assert "no row can be predicted; line 2: precision 'fp4' cannot be expressed" in err
