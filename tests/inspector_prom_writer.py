"""NCCL Inspector's own writer of Prometheus' files, compiled alone for jobs that a test makes up.

The sources are those of a clone of NVIDIA/nccl (``requires.source``); ``native/inspector_prom.cc``
stands for what they need of the Inspector and of CUDA.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import requires

INSPECTOR = "plugins/profiler/inspector"
_SOURCES = ("inspector_prom.cc", "inspector_ring.cc")
_HEADERS = ("inspector.h", "inspector_prom.h", "inspector_ring.h", "json.h", "version.h")
_NCCL = ("common.h", "types.h")
_FIRST, _BEHIND = "const char* ncclFuncToString(ncclFunc_t fn) {", "struct inspectorDumpThread;"


def writer(revision: str, folder: Path) -> Callable[[str, Path], list[Path]]:
    """Writes the files of a job of ``native/inspector_prom.cc`` into a folder."""
    if shutil.which("g++") is None:
        pytest.skip("no g++: apt install g++")
    folder.mkdir()
    for name in (*_SOURCES, *_HEADERS, *(f"nccl/{name}" for name in _NCCL)):
        text = requires.source("NVIDIA/nccl", revision, f"{INSPECTOR}/{name}")
        (folder / Path(name).name).write_text(text)
    for name in ("inspector_cudawrap.h", "cuda_runtime.h"):  # nothing of CUDA is called
        (folder / name).write_text("")
    inspector = requires.source("NVIDIA/nccl", revision, f"{INSPECTOR}/inspector.cc")
    begin = inspector.index(_FIRST)
    (folder / "functions.inc").write_text(inspector[begin : inspector.index(_BEHIND, begin)])
    program = folder / "writer"
    native = Path(__file__).parent / "native" / "inspector_prom.cc"
    build = ["g++", "-std=c++17", "-w", f"-I{folder}", f'-DFUNCTIONS="{folder}/functions.inc"']
    files = [str(native), *(str(folder / name) for name in _SOURCES)]
    subprocess.run([*build, *files, "-o", str(program)], check=True)

    def write(job: str, into: Path, slurm_job: str | None = None) -> list[Path]:
        into.mkdir(exist_ok=True)
        env = {k: v for k, v in os.environ.items() if k != "SLURM_JOB_ID"}
        env |= {} if slurm_job is None else {"SLURM_JOB_ID": slurm_job}
        subprocess.run([program, into], input=job, text=True, check=True, env=env)
        return sorted(into.iterdir())

    return write
