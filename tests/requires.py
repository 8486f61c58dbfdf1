"""What a test needs and this machine may lack: the test is skipped with the words that bring it.

Looked up, not imported: torch alone would cost each process that collects the tests a second.
"""

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import shared_data

#: Top-level package -> the extra of Paceline that installs it.
EXTRAS = {
    "accelerate": "test-integrations",
    "axe_playwright_python": "dev",
    "deepspeed": "test-integrations",
    "fsspec": "monitor",
    "google": "otlp",
    "hypothesis": "dev",
    "joserfc": "oidc",
    "lightning": "test-integrations",
    "matplotlib": "plot",
    "msgspec": "monitor",
    "oidc_provider_mock": "dev",
    "opentelemetry.exporter": "dev",
    "opentelemetry.proto": "otlp",
    "opentelemetry.sdk": "dev",
    "playwright": "dev",
    "prometheus_client": "monitor",
    "ray": "fleet",
    "schemathesis": "dev",
    "scipy": "calibrate",
    "sqlalchemy": "monitor",
    "starlette": "monitor",
    "torch": "profile",
    "transformers": "test-integrations",
    "trl": "test-integrations",
    "uvicorn": "monitor",
}
#: What no extra installs -> the arguments of pip.
PACKAGES = {
    "composer": "mosaicml",
    "datasets": "datasets",
    "grain": "grain",
    "litdata": "litdata",
    "nvidia.dali": "nvidia-dali-cuda120",
    "pandas": "pandas",
    "streaming": "mosaicml-streaming",
    "torchdata": "torchdata",
    "webdataset": "webdataset",
    "hta": "HolisticTraceAnalysis",
    "megatron": "megatron-core",
    "mlperf_logging": "mlperf-logging",
    "pydot": "pydot",
    "moto": "'moto[server]' s3fs",
    "s3fs": "s3fs",
    "megatron.bridge": "--no-deps megatron-bridge",
    "nemo": "git+https://github.com/NVIDIA-NeMo/Lens.git",
    "torchtitan": "torchtitan triton",
    "tqdm": "tqdm",
    "triton": "triton",
}


def is_installed(name: str) -> bool:
    """Whether a module is there."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # nor is the package around it
        return False


def how_to_install(name: str) -> str:
    """The command that brings a module."""
    for known, extra in EXTRAS.items():
        if f"{name}.".startswith(f"{known}."):
            return f"pip install -e '.[{extra}]'"
    return f"pip install {PACKAGES.get(name) or PACKAGES[name.partition('.')[0]]}"


def installed(*names: str) -> None:
    """Skip the test, or the file that is being collected, where one of these modules is absent."""
    for name in names:
        how = how_to_install(name)
        if not is_installed(name):
            pytest.skip(f"{name} is not installed: {how}", allow_module_level=True)


def data(*below: str, origin: str = "") -> Path:
    """A file or folder of the real data; skips where it is absent, with whose file it is."""
    path = shared_data.DATA.joinpath(*below)
    if not path.exists():
        pytest.skip(absent(path) + f"; it is {origin}" * bool(origin), allow_module_level=True)
    return path


def source(repository: str, revision: str, path: str) -> str:
    """The text of a file of a public repository at a revision; skips where no clone is there."""
    content = _of_clone(repository, revision, path)
    if content is None:
        pytest.skip(_no_clone(repository, revision, path))
    return content.decode()


def public(repository: str, revision: str, path: str, folder: str) -> Path:
    """A file of a public repository: among the real data, else out of a clone; skips without both.

    Args:
        repository: owner/name on GitHub.
        revision: commit or tag.
        path: of the file in it.
        folder: of the real data, below ``real``, that holds the file under its own name.
    """
    name = Path(path).name
    given = shared_data.DATA / "real" / folder / name
    if given.exists():
        return given
    content = _of_clone(repository, revision, path)
    if content is None:
        pytest.skip(f"no {given}, and {_no_clone(repository, revision, path)}")
    copy = Path(tempfile.mkdtemp(prefix="paceline-")) / name
    atexit.register(shutil.rmtree, copy.parent, ignore_errors=True)
    copy.write_bytes(content)
    return copy


@cache
def _of_clone(repository: str, revision: str, path: str) -> bytes | None:
    command = ["git", "-C", str(_clone(repository)), "show", f"{revision}:{path}"]
    shown = subprocess.run(command, capture_output=True, check=False)
    return None if shown.returncode else shown.stdout


def _clone(repository: str) -> Path:
    return shared_data.CLONES / repository.replace("/", "+") / "repo"


def _no_clone(repository: str, revision: str, path: str) -> str:
    where = f"github.com/{repository} with {path} at {revision}"
    return f"no {_clone(repository)}: clone {where} there, or set PACELINE_CLONES"


def absent(path: Path) -> str:
    """The reason to skip a test on real data."""
    return f"no {path}: set PACELINE_SHARED to the folder that holds data/"


#: For tests that look at processes.
on_linux = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="looks into /proc: run it on Linux"
)
not_as_root = pytest.mark.skipif(
    os.geteuid() == 0, reason="root may write anywhere: run it as another user"
)


def full_device() -> Path:
    """A device on which every write fails for want of room."""
    path = Path("/dev/full")
    if not path.exists():
        pytest.skip(f"no {path}: run it on Linux")
    return path
