"""Commands of the pages of docs/ that are no lesson run as they are written, too.

Each page has a folder with the files that its lines name. Lines that need a cluster, a service,
another tool's files or minutes are left to the tests named beside them.
"""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from doc_pages import DOCS, ROOT, blocks, command_lines
from paceline.cli.main import run
from paceline.sources import parquet
from paceline.synth import SlowWorker, SynthSpec, synthesize
from recordings import record_trace

#: Lines of these words need more than files, and the test that runs the like of them.
ELSEWHERE = {
    r"^paceline (serve|push|admin|alerts|work)\b": "test_docs_lessons.py, test_cli_monitor.py",
    r"--monitor\b|--engine ray|s3://|postgresql:": "a cluster",
    r"/nfs/|/shared/|/srv/|/etc/|/var/|/root/": "the reader's own folders",
    r"^paceline (nccl|otlp|profile|watch|demo)\b|-nccl|--running|--now\b": "a running job",
    r"^paceline (ranks|telemetry)\b|--telemetry|ras-1": "tests/real/",
    r"^paceline layers (timm:|\w+\.py)|t5\.layers|v100\.profile": "packages that may lack",
    r"^paceline import\b|runs/job-18|--format ndtimeline": "test_sources_*.py",
    r" -(?: |$)|\[more logs\]|\[--json\]|mitigate --follow$": "standard input: test_cli_detect.py",
    r"--serve$|--run\b|--ring|--both-ways": "test_detect_validate.py",
    r"^paceline (optimal|calibrate)\b": "seconds: test_cli_plan.py, test_plan_calibrate.py",
    r"elasticflow|queue --study": "minutes: test_cli_queue.py",
    r"^paceline predict .*--(runs|profile)\b": "test_cli_predict.py",
    r"--simulate|--follow|scenario\.yaml": "test_cli_mitigate.py",
    r"^paceline hosts\b": "test_hosts.py",
    r"--totals|--manifest|study/ --report": "test_fleet_manifest.py, test_fleet_study.py",
    r"traces/ --steps|rank-\*": "test_sources_dataset.py",
    r"--collectives (nccl\.parquet|window)|window\.parquet|meta\.yaml": "test_cli_detect.py",
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
        if not any(re.search(pattern, line) for pattern in ELSEWHERE)
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


def arrange(page: str, folder: Path) -> None:
    """Give names that mean different things on different pages the page's own."""
    if page == "detect":  # runs/ has step times of earlier runs
        shutil.rmtree(folder / "runs")
        (folder / "runs").mkdir()
        for number in (1, 2):
            shutil.copy(folder / "run.csv", folder / "runs" / f"run-{number}.csv")
    if page == "trace-format":  # traces/ is one trace
        (folder / "traces" / "job-2.parquet").unlink()
        (folder / "trace.parquet").unlink()  # the page makes it


def test_lines_are_found():
    assert sum(len(lines_of(page)) for page in PAGES) >= 30


@pytest.mark.parametrize("page", PAGES)
def test_the_lines_of_a_page_run(page, folder, capsys):
    arrange(page, folder)
    failed = []
    for line in lines_of(page):
        status = run(shlex.split(line)[1:])
        said = capsys.readouterr()
        if status:
            failed.append(f"{line}: exit code {status}\n{said.err[-500:]}")
    assert failed == [], "\n".join(failed)
