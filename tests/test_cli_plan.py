"""``paceline plan`` and ``paceline optimal`` as a user runs them."""

import html
import json
import re
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from paceline.cli.main import run
from paceline.plan.launch.exclusions import SOFTWARE

Captured = pytest.CaptureFixture[str]

JOB = """\
model: {name: small, layers: 12, hidden: 768, heads: 12, vocab: 50257, seq_len: 1024}
cluster: a100-80g
gpus: 8
plan: {global_batch: 64, precision: fp16, tp: 2}
training: {tokens: 10 B}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def fails(argv: list[str], capsys: Captured) -> str:
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("paceline: ")
    assert err.count("\n") == 1
    return err


def test_the_table(job: Path, capsys: Captured) -> None:
    assert run(["plan", str(job), "--top", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    head = "small (124M parameters) on 8 GPUs (a100-80g) · global batch 64 x 1,024 tokens"
    assert f"{head} · 10 billion tokens" in " ".join(out.split())
    assert "All plans below: 8 GPUs" in out
    assert ", fp16." in next(line for line in out.splitlines() if line.startswith("All plans"))
    # With one number of GPUs the fastest plan is the cheapest: no star.
    assert any(line.startswith("   1 ") for line in out.splitlines())
    assert "faster and cheaper" not in out
    assert "Ruled out" in out
    assert "zero 2 and 3 need pp 1" in out
    assert " per GPU-hour (AWS p4de" in " ".join(out.split())


def test_options_instead_of_a_file_and_a_range_of_gpus(capsys: Captured) -> None:
    argv = ["plan", "--model", "gpt2-355m", "--gpu", "a100-80g", "--gpus", "4,8"]
    assert run([*argv, "--global-batch", "64", "--tokens", "1B", "--objective", "cost"]) == 0
    out = capsys.readouterr().out
    assert "gpt2-355m (355M parameters) on 4 to 8 GPUs" in out
    assert "ranked by least GPU-time" in out
    assert any(line.startswith("   1*") for line in out.splitlines())
    assert "* no other plan is both faster and cheaper." in out


def test_json_has_the_best_plans_and_the_front(job: Path, capsys: Captured) -> None:
    argv = ["plan", str(job), "--gpus", "4-8", "--json", "--top", "4", "--recompute", "none"]
    assert run([*argv, "--zero", "1", "--micro-batch", "2", "--max-vpp", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [plan["rank"] for plan in found["plans"]] == [1, 2, 3, 4]
    times = [plan["step_time_s"] for plan in found["plans"]]
    assert times == sorted(times)
    assert {(plan["micro_batch"], plan["zero"], plan["vpp"]) for plan in found["plans"]} == {
        (2, 1, 1)
    }
    assert found["pareto"][0]["step_time_s"] == times[0]
    assert found["tokens"] == 10e9
    assert found["fit"] <= found["legal"]
    assert sum(found["pruned"].values()) > 0


def test_adapters_by_an_option_are_those_of_a_file(
    job: Path, tmp_path: Path, capsys: Captured
) -> None:
    by_file = tmp_path / "lora.yaml"
    by_file.write_text(JOB.replace("tp: 2}", "adapter_rank: 16}"))
    told = []
    option, alias = ([str(job), name, "16"] for name in ("--adapter-rank", "--lora"))
    for argv in (option, alias, [str(by_file)], [str(job)]):
        assert run(["plan", *argv, "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out)["plans"][0])
    assert told[0] == told[1] == told[2]
    assert told[0]["memory_bytes"] < told[3]["memory_bytes"]


LLAMA = ["--model", "llama3.1-8b", "--gpu", "h100", "--gpus", "64", "--global-batch", "256"]
FEW = ["--max-pp", "1", "--micro-batch", "1", "--recompute", "none"]


def test_adapters_are_named(job: Path, tmp_path: Path, capsys: Captured) -> None:
    argv = ["plan", str(job), "--adapter-rank", "16", "--zero", "1"]
    assert run([*argv, "-o", str(tmp_path / "out")]) == 0
    job_text = "small (124M parameters) on 8 GPUs (a100-80g)"
    head = f"{job_text} · LoRA of rank 16 · global batch 64 x 1,024 tokens"
    assert head in " ".join(capsys.readouterr().out.split())
    assert head in (tmp_path / "out" / "report.html").read_text()
    assert json.loads((tmp_path / "out" / "result.json").read_text())["adapter_rank"] == 16
    degrees = ["--gpus", "8", "--global-batch", "64"]
    model = ["--model", "gpt2-355m", "--gpu", "a100-80g", "--adapter-rank", "16"]
    assert run(["predict", *model, *degrees]) == 0
    named = capsys.readouterr().out
    assert run(["predict", *model[:-2], "--lora", "16", *degrees]) == 0
    assert " zero1 · LoRA of rank 16 · 8 microbatches · " in named
    assert capsys.readouterr().out == named
    assert run(["plan", str(job), "--zero", "1"]) == 0
    assert "LoRA" not in capsys.readouterr().out


def test_a_sample_longer_than_the_models_config_is_a_warning(
    tmp_path: Path, capsys: Captured
) -> None:
    words = "a sample of 200,000 tokens is longer than llama3.1-8b allows: its config has 131,072"
    argv = ["plan", *LLAMA, *FEW, "--seq-len", "200000", "--top", "1"]
    assert run([*argv, "-o", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert words in " ".join(out.split())
    assert not re.search(r"\d\.[– ]", out), "a number ends in a dot"
    assert words in (tmp_path / "out" / "report.html").read_text()
    (warning,) = json.loads((tmp_path / "out" / "result.json").read_text())["warnings"]
    assert warning.startswith(words)
    assert run(["plan", *LLAMA, *FEW, "--seq-len", "131072", "--top", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_two_plans_within_each_others_interval_are_not_sure(capsys: Captured) -> None:
    argv = ["plan", *LLAMA, "--max-pp", "2", "--micro-batch", "1"]
    assert run([*argv, "--explain", "2", "1"]) == 0
    out = capsys.readouterr().out
    assert "Why B beats A" in out
    doubt = "and each lies within the other's interval: the difference is not sure."
    assert doubt in " ".join(out.split())
    assert run([*argv, "--explain", "1", "2", "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)["explained"]
    assert explained["sure"] is False
    assert run([*argv, "--explain", "1", "30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    best, other = found["explained"]["step_time_s"]
    assert found["explained"]["sure"] == (other > found["plans"][0]["high_s"])
    assert best < other


def test_the_launch_of_another_plan_names_the_skipped_one(tmp_path: Path, capsys: Captured) -> None:
    argv = ["plan", "--model", "llama3.2-1b", "--gpu", "h100", "--gpus", "8"]
    argv += ["--global-batch", "64", "--documents", "512x8,4096", "--max-pp", "1", "--max-tp", "1"]
    argv += ["--micro-batch", "1,2", "--zero", "1", "--top", "1", "--launch", "nemo"]
    line = (
        "skipped plan 1 (tp1 pp1 dp8 mb2 zero1 fused): Megatron-Bridge v0.6.0 cannot express packed"
    )
    assert run(argv) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("skipped") == out.count(line) == 1
    assert out.index(line) < out.index("plan 2, tp1 pp1 dp8 mb1 zero1 fused:")
    assert run([*argv, "-o", str(tmp_path / "out")]) == 0
    assert line in capsys.readouterr().err
    assert run([*argv, "--json"]) == 0
    launch = json.loads(capsys.readouterr().out)["launch"]
    assert launch["rank"] == 2
    (skipped,) = launch["skipped"]
    assert (skipped["rank"], skipped["plans"]) == (1, 1)
    assert skipped["reason"].startswith("Megatron-Bridge v0.6.0 cannot express packed documents")


def test_the_start_of_deepspeed_is_printed(capsys: Captured) -> None:
    assert run(["plan", *LLAMA, *FEW, "--max-tp", "1", "--top", "1", "--launch", "deepspeed"]) == 0
    err = capsys.readouterr().err
    assert "start with: deepspeed --hostfile HOSTFILE --num_nodes 8 --num_gpus 8 your_" in err
    assert "the file .deepspeed_env" in err
    argv = ["plan", *LLAMA, *FEW, "--max-tp", "1", "--top", "1", "--launch", "deepspeed", "--json"]
    assert run(argv) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["launch"]["notes"] == err.splitlines()


@pytest.mark.parametrize(
    ("framework", "kernels", "words"),
    [
        ("torchtitan", "compiled", "compiled (torch.compile)"),
        ("accelerate", "eager", "eager PyTorch"),
        ("deepspeed", "eager", "eager PyTorch"),
        ("megatron", "fused", "fused (Transformer Engine)"),
        ("nemo", "fused", "fused (Transformer Engine)"),
    ],
)
def test_plans_for_a_framework_run_its_kernels(
    framework: str, kernels: str, words: str, capsys: Captured
) -> None:
    argv = ["plan", "--model", "llama3-8b", "--gpu", "h100", "--gpus", "16"]
    argv += ["--global-batch", "128", "--seq-len", "4096", "--max-tp", "1", "--max-cp", "1"]
    argv += [*FEW, "--zero", "2,3"]

    def plans(*options: str) -> tuple[str, dict[int, float]]:
        assert run([*argv, *options, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        steps: dict[int, float] = {}
        for plan in found["plans"]:
            steps.setdefault(plan["zero"], plan["step_time_s"])
        return found["kernels"], steps

    chosen = plans("--launch", framework)
    assert chosen == plans("--launch", framework, "--kernels", kernels)
    assert chosen[0] == kernels
    assert chosen[1][3] / chosen[1][2] < 1.15  # 1.40 with eager kernels for zero 3 alone
    assert plans("--launch", framework, "--kernels", "auto")[0] == plans()[0] == "auto"
    assert run([*argv, "--top", "1", "--launch", framework]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Kernels: {words}; --kernels changes them." in out


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed", "torchtitan"])
def test_a_framework_that_allocates_more_says_how_much(framework: str, capsys: Captured) -> None:
    argv = ["plan", "--model", "llama3.2-1b", "--gpu", "h100", "--gpus", "8"]
    argv += ["--global-batch", "64", "--seq-len", "4096", "--max-tp", "1", *FEW]
    assert run([*argv, "--top", "1", "--launch", framework, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    memory = found["launch"]["memory_bytes"]
    before, after = memory.pop("all")
    changes = [b - a for a, b in memory.values()]
    assert sum(changes) == pytest.approx(after - before)
    assert after == found["plans"][0]["memory_bytes"]
    assert run([*argv, "--top", "1", "--launch", framework]) == 0
    out = " ".join(capsys.readouterr().out.split())
    gib = [f"{size / 2**30:.1f} GiB" for size in (after, before)]
    name = SOFTWARE[framework]
    assert f"Memory of plan 1: {gib[0]} as {name} allocates it, {gib[1]} without --launch" in out
    assert all(name in out.partition("Difference in GiB: ")[2] for name in memory)


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed", "torchtitan", "megatron", "nemo"])
def test_predict_counts_what_the_search_counts(framework: str, capsys: Captured) -> None:
    """A search with and without ``--launch``; its first plan, predicted with ``--framework``."""
    job = ["--model", "llama3.2-1b", "--gpu", "h100", "--global-batch", "64", "--seq-len", "4096"]
    argv = ["plan", *job, "--gpus", "8", "--max-tp", "1", *FEW, "--top", "1", "--json"]
    assert run([*argv, "--launch", framework]) == 0
    first = json.loads(capsys.readouterr().out)["plans"][0]
    argv = ["predict", *job, "--json"]
    for name in ("tp", "pp", "dp", "cp", "micro_batch", "zero"):
        argv += [f"--{name.replace('_', '-')}", str(first[name])]
    argv += ["--vpp", str(first["vpp"]), "--recompute", first["recompute"]]
    argv += ["--shards", str(first["shards"])] if first.get("shards") else []
    assert run([*argv, "--framework", framework]) == 0
    predicted = json.loads(capsys.readouterr().out)
    bytes_of = [stage["total_bytes"] for stage in predicted["memory"]["by_stage"]]
    assert max(bytes_of) == pytest.approx(first["memory_bytes"], rel=1e-9)
    assert predicted["step_time_s"] == pytest.approx(first["step_time_s"], rel=1e-9)
    assert run(argv) == 0
    usual = json.loads(capsys.readouterr().out)["memory"]["by_stage"]
    same = max(stage["total_bytes"] for stage in usual) == max(bytes_of)
    assert same == (framework in ("megatron", "nemo"))


def test_predict_refuses_a_plan_that_the_framework_cannot_express(capsys: Captured) -> None:
    argv = ["predict", "--model", "llama3.2-1b", "--gpu", "h100", "--pp", "4", "--dp", "2"]
    argv += ["--global-batch", "64", "--framework", "deepspeed"]
    assert run(argv) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "pp" in err


@pytest.mark.parametrize("framework", ["megatron", "nemo"])
def test_the_frameworks_of_the_default_rules_have_no_other_memory(
    framework: str, capsys: Captured
) -> None:
    argv = ["plan", "--model", "llama3.2-1b", "--gpu", "h100", "--gpus", "8", "--zero", "1"]
    argv += ["--global-batch", "64", "--max-tp", "1", *FEW, "--top", "1", "--launch", framework]
    assert run(argv) == 0
    assert "Memory of plan" not in capsys.readouterr().out


def test_kernels_of_a_job_file_hold_for_any_framework(job: Path, capsys: Captured) -> None:
    job.write_text(JOB.replace("fp16, tp: 2", "bf16, kernels: eager"))
    assert run(["plan", str(job), "--launch", "torchtitan", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kernels"] == "eager"
    compiled = tomllib.loads(found["launch"]["text"])["compile"]
    assert compiled == {"enable": True, "components": ["loss"]}


def test_the_page_names_the_kernels(job: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run(["plan", str(job), "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Kernels: eager PyTorch with zero 3, else fused (Transformer Engine)" in page


def test_the_page_has_the_launch_file(job: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    assert run(["plan", str(job), "--launch", "megatron", "-o", str(out)]) == 0
    capsys.readouterr()
    page = html.unescape((out / "report.html").read_text())
    assert f"<pre>{(out / 'megatron.sh').read_text()}</pre>" in page
    words = "It sets PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. Without it the memory may"
    assert words in page
    assert run(["plan", str(job), "-o", str(out), "--force"]) == 0
    assert 'id="launch"' not in (out / "report.html").read_text()


def test_the_folder(job: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    argv = ["plan", str(job), "--gpus", "4,8", "-o", str(out)]
    assert run(argv) == 0
    capsys.readouterr()
    plans = pq.read_table(out / "plans.parquet").to_pydict()
    result = json.loads((out / "result.json").read_text())
    assert len(plans["tp"]) == result["fit"]
    assert plans["step_time_s"][0] == result["plans"][0]["step_time_s"]
    page = (out / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert result["plans"][0]["plan"] in page
    assert "exists already" in fails(argv, capsys)
    assert run([*argv, "--force"]) == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["plan"], "name the model to train"),
        (["plan", "--model", "gpt2-355m", "--gpu", "a100", "--gpus", "8"], "--global-batch"),
        (["plan", "--model", "gpt2-355m", "--gpu", "a100", "--global-batch", "8"], "--gpus"),
        (["plan", "JOB", "--gpu", "h100"], "--gpu contradicts"),
        (["plan", "JOB", "--gpus", "1024", "--max-dp", "1"], "no combination of degrees"),
        (["plan", "JOB", "--max-days", "1e-9"], "the closest"),
        (["optimal", "--gpus", "8", "--days", "1"], "give either --gpu"),
        (["optimal", "--gpus", "8", "--days", "-1", "--gpu", "a100"], "days must be above 0"),
    ],
)
def test_errors_say_what_to_do(argv: list[str], words: str, job: Path, capsys: Captured) -> None:
    assert words in fails([str(job) if word == "JOB" else word for word in argv], capsys)


@pytest.mark.parametrize(
    "option", [["--recompute", "some"], ["--tokens", "many"], ["--tokens", "-1"], ["--gpus", "x"]]
)
def test_options_that_argparse_refuses(option: list[str], job: Path, capsys: Captured) -> None:
    assert run(["plan", str(job), *option]) == 2
    assert option[0] in capsys.readouterr().err


def test_optimal_prints_the_laws_and_the_candidates(capsys: Captured) -> None:
    argv = ["optimal", "--gpus", "3360", "--gpu", "a100-80g", "--days", "30"]
    grid = ["--grid", "12288x80,10240x60,8192x60"]
    assert run([*argv, *grid]) == 0
    out = capsys.readouterr().out
    assert "146.8 B parameters, 3,092 B tokens" in out
    assert "145.61" in out
    assert "2,912" in out
    assert "The largest that fits in practice" in " ".join(out.split())
    assert run([*argv, *grid, "--law", "vtrain", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["laws"]) == ["vtrain"]
    assert found["naive"]["hidden"] == 12288
    assert found["realistic"]["days"] <= 30
    assert len(found["candidates"]) == 3


def test_a_profile_in_place_of_the_roofline(job: Path, tmp_path: Path, capsys: Captured) -> None:
    argv = ["plan", str(job), "--profile", str(tmp_path / "missing.json")]
    assert "missing.json" in fails(argv, capsys)


def test_optimal_refuses_a_wrong_grid(capsys: Captured) -> None:
    argv = ["optimal", "--gpus", "8", "--gpu", "a100-80g", "--days", "1", "--grid", "12288"]
    assert run(argv) == 2
    assert "12288x80" in capsys.readouterr().err


def test_a_launch_file_and_the_reasons(job: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    argv = [
        "plan",
        str(job),
        "--precision",
        "bf16",
        "--launch",
        "torchtitan",
        "--explain",
        "1",
        "2",
    ]
    assert run([*argv, "-o", str(out)]) == 0
    assert "Why A beats B" in capsys.readouterr().out
    tables = tomllib.loads((out / "torchtitan.toml").read_text())
    found = json.loads((out / "result.json").read_text())
    assert all(plan["zero"] in (0, 2, 3) for plan in found["plans"])
    assert tables["parallelism"]["tensor_parallel_degree"] == found["plans"][0]["tp"]
    assert run([*argv, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["launch"]["rank"] == 1
    assert tomllib.loads(printed["launch"]["text"]) == tables
    assert printed["explained"]["plans"] == [plan["plan"] for plan in printed["plans"][:2]]
    assert run([*argv]) == 0
    assert printed["launch"]["text"] in capsys.readouterr().out
    assert run(["plan", str(job), "--explain", "1", "999999"]) == 2
    assert "no plan of rank 999999" in capsys.readouterr().err
