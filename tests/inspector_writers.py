"""NCCL Inspector's own writers, compiled alone for jobs that a test makes up.

The sources are those of a clone of NVIDIA/nccl (``requires.source``); ``native/inspector_prom.cc``
and ``native/inspector_json.cc`` stand for what they need of the Inspector and of CUDA.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import requires

INSPECTOR = "plugins/profiler/inspector"
_HEADERS = (
    "inspector.h",
    "inspector_prom.h",
    "inspector_json.h",
    "inspector_ring.h",
    "json.h",
    "version.h",
)
_NCCL = ("common.h", "types.h")
_TIMING = "const char* inspectorTimingSourceToString("
_FIRST, _BEHIND = "const char* ncclFuncToString(ncclFunc_t fn) {", "struct inspectorDumpThread;"


def writer(revision: str, folder: Path) -> Callable[[str, Path], list[Path]]:
    """Writes Prometheus' files of a job of ``native/inspector_prom.cc`` into a folder."""
    program = _compiled(revision, folder, "inspector_prom", ("inspector_prom", "inspector_ring"))

    def write(job: str, into: Path, slurm_job: str | None = None) -> list[Path]:
        into.mkdir(exist_ok=True)
        env = {k: v for k, v in os.environ.items() if k != "SLURM_JOB_ID"}
        env |= {} if slurm_job is None else {"SLURM_JOB_ID": slurm_job}
        subprocess.run([program, into], input=job, text=True, check=True, env=env)
        return sorted(into.iterdir())

    return write


def log_writer(revision: str, folder: Path) -> Callable[[str, Path, bool], Path]:
    """Writes the log of one process, told to ``native/inspector_json.cc``, verbose or not."""
    sources = ("inspector_json", "inspector_ring", "json")
    program = _compiled(revision, folder, "inspector_json", sources)

    def write(calls: str, path: Path, verbose: bool) -> Path:
        more = ["verbose"] * verbose
        subprocess.run([program, path, *more], input=calls, text=True, check=True)
        return path

    return write


def _compiled(revision: str, folder: Path, native: str, sources: tuple[str, ...]) -> Path:
    """The program of ``native`` and of some of the Inspector's sources."""
    if shutil.which("g++") is None:
        pytest.skip("no g++: apt install g++")
    folder.mkdir()
    files = [f"{name}.cc" for name in sources]
    for name in (*files, *_HEADERS, *(f"nccl/{name}" for name in _NCCL)):
        text = requires.source("NVIDIA/nccl", revision, f"{INSPECTOR}/{name}")
        (folder / Path(name).name).write_text(text)
    for name in ("inspector_cudawrap.h", "cuda_runtime.h"):  # nothing of CUDA is called
        (folder / name).write_text("")
    inspector = requires.source("NVIDIA/nccl", revision, f"{INSPECTOR}/inspector.cc")
    begin = inspector.index(_FIRST)
    functions = inspector[begin : inspector.index(_BEHIND, begin)]
    begin = inspector.index(_TIMING)
    functions += inspector[begin : inspector.index("\n}\n", begin) + 3]
    (folder / "functions.inc").write_text(functions)
    program = folder / "writer"
    main = str(Path(__file__).parent / "native" / f"{native}.cc")
    build = ["g++", "-std=c++17", "-w", f"-I{folder}", f'-DFUNCTIONS="{folder}/functions.inc"']
    paths = [main, *(str(folder / name) for name in files)]
    subprocess.run([*build, *paths, "-o", str(program)], check=True)
    return program
