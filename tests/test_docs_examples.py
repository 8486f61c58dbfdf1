"""Commands of the pages of docs/ that are no lesson run as they are written, too.

Each page has a folder with the files that its lines name. Lines that need a service, a running job
or another tool's files have a scene of their own (``test_docs_scenes.py``).
"""

import io
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from doc_pages import DOCS, ROOT, blocks, command_lines
from paceline.cli.main import run
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm import LLM
from paceline.model.plan import Plan
from paceline.plan.predict import predict
from paceline.sources import parquet
from paceline.synth import SlowWorker, SynthSpec, synthesize
from recordings import record_trace
from requires import is_installed
from test_docs_scenes import kinds_of

#: Pattern of a line -> the package that it needs, beyond the base install.
NEEDS = {
    r"^paceline layers \w+\.py|t5\.layers": "torch",
    r"^paceline layers timm:": "timm",
    r"\bt5\.": "transformers",
    r"^paceline calibrate\b|(mycluster|abci)\.yaml": "scipy",
}
PAGES = (
    "compare",
    "detect",
    "fleet",
    "goodput",
    "integrations",
    "mitigate",
    "networks",
    "plan",
    "predict",
    "queue",
    "record",
    "report",
    "strategies",
    "trace-format",
    "whatif",
)


def lines_of(page: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return [
        line
        for line in dict.fromkeys(command_lines(text))
        if not kinds_of(page, line)
        and all(is_installed(name) for key, name in NEEDS.items() if re.search(key, line))
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """The files that the pages name."""
    folder = tmp_path_factory.mktemp("files")
    spec = SynthSpec(dp=4, pp=2, microbatches=4, steps=42, slow_workers=(SlowWorker(3, 1, 1.5),))
    trace = synthesize(spec)
    parquet.write(trace, folder / "trace.parquet")
    for name in ("before", "after", "week1", "week2", "slow"):
        shutil.copy(folder / "trace.parquet", folder / f"{name}.parquet")
    for dp in (2, 4):
        small = SynthSpec(dp=dp, pp=2, microbatches=4, steps=5)
        parquet.write(synthesize(small), folder / f"dp{dp}.parquet")
    (folder / "traces").mkdir()
    for dp in (2, 4):
        shutil.copy(folder / f"dp{dp}.parquet", folder / "traces" / f"job-{dp}.parquet")
    record_trace(trace, folder / "runs" / "job-17")
    for name in ("train", "job-17", "job-18"):
        shutil.copy(ROOT / "examples" / "train.log", folder / f"{name}.log")
    lines = (folder / "train.log").read_text().splitlines(keepends=True)
    for name, part in (
        ("start-1", lines[: len(lines) // 2]),
        ("start-2", lines[len(lines) // 2 :]),
    ):
        (folder / f"{name}.log").write_text("".join(part))
    rng = np.random.default_rng(23)
    step_s = 2.0 * (1 + 0.005 * rng.standard_normal(6000))
    step_s[3000:] *= 1.4
    rows = "".join(f"{step},0,{s:.4f}\n" for step, s in enumerate(step_s))
    for name in ("iterations", "run"):
        (folder / f"{name}.csv").write_text(f"step,rank,duration_s\n{rows}")
    (folder / "my.log").write_text(
        "".join(f"step {step} took {s * 1e3:.1f} ms\n" for step, s in enumerate(step_s[:2000]))
    )
    (folder / "dated.log").write_text(
        "".join(
            f"2026-08-22 10:{s // 60:02d}:{s % 60:02d} step {s} took 1000.0 ms\n"
            + (f"2026-08-22 10:{s // 60:02d}:{s % 60:02d} dump ok (0.5)\n" if s == 300 else "")
            for s in range(600)
        )
    )
    (folder / "events.jsonl").write_text("")
    (folder / "hosts.csv").write_text(
        "rank,host,gpu\n" + "".join(f"{rank},node-{rank // 4},{rank % 4}\n" for rank in range(8))
    )
    assert run(["layers", "resnet50", "-o", str(folder / "net.layers.json")]) == 0
    lessons = {
        block.notes["file"]: block.text
        for page in ("tutorial", "how-to/my-queue")
        for block in blocks((DOCS / f"{page}.md").read_text(encoding="utf-8"))
        if "file" in block.notes
    }
    for name in ("job.yaml", "jobs.csv"):
        (folder / name).write_text(lessons[name])
    return folder


@pytest.fixture
def folder(files, tmp_path, monkeypatch) -> Path:
    """A copy of them, as the working folder."""
    place = tmp_path / "work"
    shutil.copytree(files, place, copy_function=shutil.copy)
    monkeypatch.chdir(place)
    return place


#: Jobs of a Slurm queue, as ``sacct -P -X`` prints them.
SACCT = """\
JobID|Submit|Start|End|State|AllocTRES
1|2026-11-01T10:00:00|2026-11-01T10:00:05|2026-11-01T12:00:05|COMPLETED|gres/gpu=256
2|2026-11-01T10:10:00|2026-11-01T12:00:06|2026-11-01T13:00:06|COMPLETED|gres/gpu=512
"""
#: Elastic jobs with a deadline, and what they reach on some GPUs.
ELASTIC = """\
job_id,submission_time,num_gpu,model,global_batch,iterations,deadline
a,0,8,qwen3-0.6b,64,2000,20000
b,60,8,qwen3-0.6b,64,500,9000
"""
MEASURED = "model,global_batch,gpus,iterations_per_s\n" + "".join(
    f"qwen3-0.6b,64,{gpus},{0.5 * gpus**0.9:.3f}\n" for gpus in (1, 2, 4, 8, 16)
)
#: A module that ``paceline layers`` reads.
MY_NET = """\
from torch import nn


def build():
    return nn.Sequential(nn.Conv3d(4, 8, 3, stride=4), nn.ReLU(), nn.Conv3d(8, 2, 3))
"""


def language_runs() -> str:
    """Measured runs of a GPT on GPUs with slower products and links than the preset's."""
    preset = cluster_preset("a100-80g")
    slow = replace(preset.efficiency, gemm=0.7, intra=0.6, memory=0.75)
    rows = ["gpus,global_batch,micro_batch,hidden,heads,layers,seq_len,tp,dp,pp,step_time_s"]
    for hidden, tp, pp, dp, mb in (
        (1024, 1, 1, 8, 8), (2048, 2, 1, 8, 4), (4096, 8, 1, 4, 8), (2048, 1, 2, 8, 4),
        (4096, 4, 1, 8, 2), (2048, 8, 1, 1, 16), (1024, 1, 1, 32, 2), (4096, 2, 4, 4, 2),
    ):  # fmt: skip
        llm = LLM(name="gpt", layers=8, hidden=hidden, heads=16, vocab=51200, seq_len=1024)
        batch = mb * dp * 4
        plan = Plan(
            tp=tp, pp=pp, dp=dp, micro_batch=mb, global_batch=batch, precision="fp16",
            recompute="full", flash=False, overlap_dp=False, zero=0,
        )  # fmt: skip
        step_s = predict(llm, plan, replace(preset, efficiency=slow)).step_time_s
        cells = [tp * pp * dp, batch, mb, hidden, 16, 8, 1024, tp, dp, pp, f"{step_s:.4f}"]
        rows.append(",".join(map(str, cells)))
    return "\n".join(rows) + "\n"


NETWORK_RUNS = "model,strategy,gpus,global_batch,step_time_s\n" + "".join(
    f"resnet50,data,{gpus},{32 * gpus},{0.115 + 0.004 * k:.3f}\n"
    for k, gpus in enumerate((4, 8, 16, 32, 64))
)


def arrange(page: str, folder: Path) -> None:
    """Give names that mean different things on different pages the page's own."""
    if page == "queue":
        (folder / "measured.csv").write_text(MEASURED)
    if page == "networks":
        (folder / "mynet.py").write_text(MY_NET)
        (folder / "net.layers.json").unlink()
        code = blocks((DOCS / "networks.md").read_text(encoding="utf-8"))
        (t5,) = (block.text for block in code if block.text.startswith("# t5.py"))
        (folder / "t5.py").write_text(t5)
    if page == "strategies":
        (folder / "runs.csv").write_text(NETWORK_RUNS)
    if page == "predict":
        if is_installed("scipy"):
            (folder / "runs.csv").write_text(language_runs())
        job = folder / "job.yaml"
        trace = folder / "trace.parquet"
        assert run(["synth", "--from-plan", str(job), "-o", str(trace), "--force"]) == 0
        (folder / "meta.yaml").write_text("dp_size: 8\npp_size: 4\ntp_size: 2\n")
    if page == "detect":  # runs/ has step times of earlier runs
        shutil.rmtree(folder / "runs")
        (folder / "runs").mkdir()
        for number in (1, 2):
            shutil.copy(folder / "run.csv", folder / "runs" / f"run-{number}.csv")
    if page == "trace-format":  # traces/ is one trace
        (folder / "traces" / "job-2.parquet").unlink()
        (folder / "trace.parquet").unlink()  # the page makes it


def test_lines_are_found():
    assert sum(len(lines_of(page)) for page in PAGES) >= 45


@pytest.mark.parametrize("page", PAGES)
def test_the_lines_of_a_page_run(page, folder, capsys, monkeypatch):
    arrange(page, folder)
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO(SACCT))
    failed = []
    for line in lines_of(page):
        if "elasticflow" in line:
            (folder / "jobs.csv").write_text(ELASTIC)
        status = run(shlex.split(line)[1:])
        said = capsys.readouterr()
        if status:
            failed.append(f"{line}: exit code {status}\n{said.err[-500:]}")
    assert failed == [], "\n".join(failed)
