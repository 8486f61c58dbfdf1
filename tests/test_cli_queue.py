"""``paceline queue``: what it prints, writes and refuses."""

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import paceline
import requires
from paceline.cli.main import run
from paceline.scheduling import throughputs
from paceline.scheduling.jobs import Throughputs
from paceline.scheduling.throughputs import Tables

Captured = pytest.CaptureFixture[str]

RIGID = """\
job_id,submission_time,num_gpu,duration,deadline,user
a,0,8,3600,4000,ada
b,60,8,600,1500,ada
c,120,4,300,700,bob
d,180,32,60,900,bob
"""
ELASTIC = """\
job_id,submission_time,model,global_batch,iterations,deadline
a,0,megatron-18.4b,1024,100,40000
b,10,megatron-18.4b,1024,200,90000
"""


@pytest.fixture
def rigid(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(RIGID)
    return path


def test_policies_beside_each_other(rigid: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    args = ["queue", str(rigid), "--gpus", "16", "--compare", "fifo,srtf,edf", "-o", str(out)]
    assert run(args) == 0
    printed = capsys.readouterr().out
    assert "4 jobs on 16 GPUs" in printed
    assert "asks for 32 GPUs of a cluster of 16" in printed
    result = json.loads((out / "result.json").read_text())
    assert [replay["label"] for replay in result["replays"]] == ["fifo", "srtf", "edf"]
    fifo, srtf, _ = result["replays"]
    # FIFO: a and b start at once; c waits for b's end at 660 s and ends at 960.
    assert fifo["mean_jct_s"] == pytest.approx((3600 + 600 + 840) / 3)
    # SRTF: c takes 4 of a's GPUs at 120 s, so that a waits for 300 s.
    assert srtf["mean_jct_s"] == pytest.approx((3900 + 600 + 300) / 3)
    assert fifo["deadline_ratio"] == 0.5
    assert fifo["refused_jobs"] == {"d": "asks for 32 GPUs of a cluster of 16"}
    jobs = pq.read_table(out / "jobs.parquet").to_pylist()
    assert len(jobs) == 12
    assert {row["user"] for row in jobs} == {"ada", "bob"}
    timeline = pq.read_table(out / "timeline.parquet").to_pylist()
    assert timeline[0] == {"replay": "fifo", "time_s": 0.0, "job_id": "a", "gpus": 8}
    page = (out / "report.html").read_text()
    assert "Completion and waiting times" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    assert run(args) == 2
    assert "exists already" in capsys.readouterr().err


def test_json_and_standard_input(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(RIGID))
    assert run(["queue", "-", "--gpus", "64", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["replays"][0]["policy"] == "fifo"
    assert result["replays"][0]["makespan_s"] == 3600
    assert result["choices"]["rescale_s"] == 0


def test_plans_of_models(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(ELASTIC)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    args = ["queue", str(jobs), "--gpus", "64", "--gpu", "a100-80g", "--policy", "elasticflow"]
    assert run([*args, "--plans", "fixed,best", "--json"]) == 0
    fixed, best = json.loads(capsys.readouterr().out)["replays"]
    assert (fixed["label"], best["label"]) == ("elasticflow, fixed", "elasticflow, best")
    assert best["mean_jct_s"] <= fixed["mean_jct_s"]
    assert fixed["late"] == best["late"] == 0
    # The tables come from disk the second time.
    kept = list((tmp_path / "cache" / "paceline" / "throughputs").iterdir())
    assert len(kept) == 1
    monkeypatch.setattr(throughputs, "search", None)
    assert run([*args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replays"][0]["mean_jct_s"] == best["mean_jct_s"]


def test_best_plans_are_never_slower_than_fixed() -> None:
    from paceline.model.cluster_presets import cluster_preset
    from paceline.model.llm_presets import llm_preset
    from paceline.scheduling.throughputs import Workload, throughput_tables

    workload = Workload(name="x", llm=llm_preset("megatron-18.4b"), global_batch=64, fixed=(8, 1))
    tables = throughput_tables(
        [workload], cluster_preset("a100-80g"), [8, 16, 24], zeros=(1,), recomputes=("full",)
    )
    assert isinstance(tables, Tables)
    assert tables.degrees == {"x": (8, 1)}
    assert all(tables.best.rate("x", n) >= tables.fixed.rate("x", n) for n in (8, 16, 24))
    # 24 GPUs of (8, 1) are 3 replicas, which do not divide 64 samples.
    assert tables.fixed.counts.tolist() == [8, 16]


def test_study(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = requires.data("cluster", "itp_windows_128.csv")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "out"
    args = ["queue", "--study", "vtrain", "--windows", str(windows)]
    assert run([*args, "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "the paper 1.17 x" in printed
    assert "39.1B tp 8 pp 2" in printed
    result = json.loads((out / "result.json").read_text())
    assert result["late"] == 0
    assert len(result["windows"]) == 34
    assert run([*args, "--span-h", "100", "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert other["choices"]["span_h"] == 100
    assert other["deadline_gain_64"] != result["deadline_gain_64"]


def test_groups_by_themselves(rigid: Path, capsys: Captured) -> None:
    args = ["queue", str(rigid), "--gpus", "16", "--compare", "fifo,srtf", "--by", "user"]
    assert run([*args, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    # Each user alone: nobody waits, and bob's second job is too large.
    assert result["means"]["fifo"]["mean_wait_s"] == {"mean": 0, "interval": None}
    assert result["means"]["fifo"]["mean_jct_s"]["mean"] == pytest.approx((2100 + 300) / 2)
    assert [row["jobs"] for row in result["groups"]["bob"]] == [2, 2]
    assert run(args) == 0
    assert "2 groups by user" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpus", "0"], "at least 1 GPU"),
        (["--gpus", "16", "--policy", "magic"], "no policy 'magic'; there are fifo"),
        (["--gpus", "16", "--policy", "fifo", "--compare", "edf"], "either --policy or --compare"),
        (["--gpus", "16", "--plans", "best"], "--plans needs jobs with a model"),
        (["--gpus", "12"], "12 GPUs are no whole nodes of 8"),
        (["--gpus", "16", "--rescale-s", "-1"], "rescale_s must be at least 0"),
        (["--gpus", "16", "--windows", "w.csv"], "--windows belongs to --study"),
        (["--study", "vtrain"], "contradict each other"),
        (["--gpus", "16", "--by", "team"], "jobs have no column 'team'; user"),
        (["--gpus", "16", "--by", "user", "-o", "x"], "--by prints intervals"),
        ([], "the cluster's GPUs are missing"),
    ],
)
def test_wrong_options(rigid: Path, capsys: Captured, options: list[str], words: str) -> None:
    assert run(["queue", str(rigid), *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_wrong_input(tmp_path: Path, capsys: Captured) -> None:
    assert run(["queue", "--gpus", "8"]) == 2
    assert "the jobs are missing" in capsys.readouterr().err
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(ELASTIC)
    assert run(["queue", str(jobs), "--gpus", "64", "--policy", "elasticflow"]) == 2
    assert "name their hardware: --gpu" in capsys.readouterr().err
    windows = tmp_path / "windows.csv"
    windows.write_text("window,submission_time\nw1,0\n")
    assert run(["queue", "--study", "vtrain", "--windows", str(windows)]) == 2
    assert "every window needs 128 jobs" in capsys.readouterr().err
    assert run(["queue", str(jobs), "--gpus", "8", "--slow", "2,1"]) == 2
    assert "no share (0 to 1) and factor" in capsys.readouterr().err


def test_python() -> None:
    jobs = paceline.job_list(["a"], [0], [100.0], curve=["x"], deadline_s=[60])
    table = Throughputs.of({("x", 1): 1.0, ("x", 2): 2.0})
    done = paceline.replay_queue(jobs, gpus=2, policy="elasticflow", throughputs=table)
    assert done.jct_s.tolist() == [50]
    assert done.deadline_ratio == 1
    assert done.makespan_s == 50
    assert done.timeline.gpus.tolist() == [2]
