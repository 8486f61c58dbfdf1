"""NCCL's own functions that print a status of RAS, compiled alone for jobs that a test makes up.

The source is ``src/ras/client_support.cc`` of a clone of NVIDIA/nccl (``requires.source``);
``native/ras_text.cc`` stands for what it needs of the library.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import requires

FILE = "src/ras/client_support.cc"
_HOST = "const char* ncclSocketToHost(const union ncclSocketAddress* addr, char* buf, size_t size)"
#: The last of them; behind it stand the events of the monitoring mode.
_LAST = "static bool rasCountIsOutlier(int count, bool verbose, int totalCount) {"


def writer(revision: str, folder: Path) -> Callable[[str, str], str]:
    """Prints a job of ``native/ras_text.cc`` as ``text``, ``verbose`` text, or ``json``."""
    if shutil.which("g++") is None:
        pytest.skip("no g++: apt install g++")
    source = requires.source("NVIDIA/nccl", revision, FILE)
    types = source.index("// Outlier count above")
    functions = source.index("static ncclResult_t rasClientRunInit(struct rasClient* client) {")
    end = source.index("\n}\n", source.index(_LAST)) + 3
    chosen = source[types : source.index("///////", types)] + source[functions:end]
    # Up to 2.29 it is declared in the file, later in a header.
    declared = "" if f"static {_HOST};" in chosen else f"{_HOST};\n"
    include, program = folder / "client.inc", folder / "ras"
    include.write_text(declared + chosen)
    native = Path(__file__).parent / "native" / "ras_text.cc"
    _, minor, patch = revision.removeprefix("v").partition("-")[0].split(".")
    defined = [f'-DRAS_CLIENT="{include}"', f"-DNCCL_MINOR={minor}", f"-DNCCL_PATCH={patch}"]
    build = ["g++", "-std=c++17", "-w", *defined, str(native), "-o", str(program)]
    subprocess.run(build, check=True)

    def print_job(job: str, form: str = "text") -> str:
        told = subprocess.run(
            [program, form], input=job, capture_output=True, text=True, check=True
        )
        return told.stdout

    return print_job
