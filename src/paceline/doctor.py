"""This machine, the features of Paceline that work on it, and packages for the others.

Nothing heavy is imported: packages are looked up in their metadata, GPUs in /proc and /sys.
PyTorch, which alone can say whether a GPU can be used, is asked only on request.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from paceline.extras import pip_install

SCHEMA = 1
#: Extras for those who work on Paceline itself.
_OF_DEVELOPERS = ("dev", "docs", "test-integrations")
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*)(?:;.*extra\s*==\s*[\"']([\w-]+))?")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")
_NATIVE = Path(__file__).parent / "native"


@dataclass(frozen=True)
class Package:
    """A package that Paceline, or an extra of it, requires.

    Attributes:
        name: as pip knows it.
        requirement: the versions that are taken, ``>=1.26``; empty for any.
        version: the version that is installed; empty if it is absent.
        fits: it is installed, and not older than the requirement's lower bound.
    """

    name: str
    requirement: str
    version: str
    fits: bool


@dataclass(frozen=True)
class Gpu:
    """A GPU that the kernel's driver knows; PyTorch may still be unable to use it."""

    name: str
    driver: str


@dataclass(frozen=True)
class Feature:
    """A part of Paceline.

    Attributes:
        name: its purpose.
        works: whether all it needs is here.
        missing: absent parts.
        install: how to bring that.
    """

    name: str
    works: bool
    missing: str = ""
    install: str = ""


@dataclass(frozen=True)
class Checkup:
    """The findings.

    Attributes:
        versions: of Paceline, Python and the operating system.
        machine: cores that this process may use, and bytes of memory.
        base: what Paceline needs always; empty where it was not installed by pip.
        extras: extra -> its packages.
        gpus: of this machine.
        torch: what PyTorch says; None where it was not asked.
        tools: compiler and browser -> path, empty where there is none.
        features: what works here.
    """

    versions: Mapping[str, str]
    machine: Mapping[str, int]
    base: tuple[Package, ...]
    extras: Mapping[str, tuple[Package, ...]]
    gpus: tuple[Gpu, ...]
    torch: Mapping[str, Any] | None
    tools: Mapping[str, str]
    features: tuple[Feature, ...]

    @property
    def healthy(self) -> bool:
        """Whether the base install is whole."""
        return all(package.fits for package in self.base) and python_fits()

    def to_mapping(self) -> dict[str, Any]:
        """The checkup as JSON holds it."""
        return {"schema": SCHEMA, "healthy": self.healthy, **asdict(self)}


def examine(paceline_version: str, *, ask_torch: bool = False) -> Checkup:
    """Look at this machine and this Python.

    Args:
        paceline_version: of the package that asks.
        ask_torch: import PyTorch and ask it for GPUs, which takes seconds.
    """
    base, extras = packages()
    gpus = find_gpus()
    torch = torch_says() if ask_torch else None
    tools = {
        "compiler": _first(os.environ.get("CC"), "cc", "gcc", "clang"),
        "browser": _first(os.environ.get("PACELINE_BROWSER"), *_BROWSERS),
    }
    versions = {
        "paceline": paceline_version,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    machine = {"cores": _cores(), "memory_bytes": _memory_bytes()}
    features = tuple(_features(base, extras, gpus, torch, tools["compiler"]))
    return Checkup(versions, machine, base, extras, gpus, torch, tools, features)


def python_fits() -> bool:
    """Whether this Python is one that Paceline is tested on."""
    return (3, 11) <= sys.version_info[:2] <= (3, 13)


def packages() -> tuple[tuple[Package, ...], dict[str, tuple[Package, ...]]]:
    """Requirements in Paceline's metadata: always, and by extra."""
    try:
        lines = requires("paceline") or []
    except PackageNotFoundError:
        return (), {}
    base, extras = list[Package](), dict[str, list[Package]]()
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is None or match[1] == "paceline":  # an extra that takes in another one
            continue
        package = _package(match[1], match[2].strip())
        if match[3] is None:
            base.append(package)
        elif match[3] not in _OF_DEVELOPERS:
            extras.setdefault(match[3], []).append(package)
    return tuple(base), {name: tuple(found) for name, found in sorted(extras.items())}


def _package(name: str, requirement: str) -> Package:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Package(name, requirement, "", False)
    least = re.search(r">=\s*([\d.]+)", requirement)
    return Package(
        name, requirement, installed, not least or numbers(installed) >= numbers(least[1])
    )


def numbers(text: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` as (2, 13): its release without trailing zeros, for comparisons."""
    release = re.match(r"\d+(?:\.\d+)*", text)
    parts = [int(part) for part in release[0].split(".")] if release else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def find_gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """GPUs of NVIDIA's driver (/proc) and of AMD's (/sys), below ``root``."""
    # "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  555.42.06  Release Build ..."
    release = re.search(r"\s(\d{3,}\.[\d.]+)\s", _read(root / "proc/driver/nvidia/version"))
    gpus = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        model = re.search(r"^Model:\s*(.+)$", _read(path), re.M)
        name = model[1].strip() if model else "NVIDIA GPU"
        gpus.append(Gpu(name, f"nvidia {release[1]}" if release else "nvidia"))
    amd = _read(root / "sys/module/amdgpu/version").strip()
    for path in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        properties = dict(re.findall(r"^(\w+) (\d+)$", _read(path), re.M))
        if int(properties.get("simd_count", 0)):  # a CPU has none
            target = int(properties.get("gfx_target_version", 0))
            name = f"AMD GPU gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}"
            gpus.append(Gpu(name, f"amdgpu {amd}".strip()))
    return tuple(gpus)


def torch_says() -> dict[str, Any]:
    """Version, CUDA and GPUs of PyTorch, by importing it."""
    try:
        import torch
    except (ImportError, OSError) as error:  # absent, or a library of it cannot be loaded
        return {"version": "", "problem": str(error), "cuda": None, "gpus": []}
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"version": torch.__version__, "problem": "", "cuda": torch.version.cuda, "gpus": gpus}


def _features(
    base: Iterable[Package],
    extras: Mapping[str, tuple[Package, ...]],
    gpus: tuple[Gpu, ...],
    torch: Mapping[str, Any] | None,
    compiler: str,
) -> Iterable[Feature]:
    lacking = [package.name for package in base if not package.fits]
    name = "analyze, diagnose, compare, detect, predict, plan, queue, record"
    yield Feature(
        name, not lacking, ", ".join(lacking), f"pip install {' '.join(lacking)}" * bool(lacking)
    )
    for extra, name in (
        ("plot", "figures (--plot, paceline.plot)"),
        ("calibrate", "calibrate"),
        ("monitor", "monitor (serve, alerts, admin), plan --serve"),
        ("profile", "profile, validate --run, demo --live, layers of PyTorch modules"),
        ("onnx", "layers of ONNX files"),
        ("otlp", "OpenTelemetry's protobuf"),
        ("fleet", "fleet in buckets, on a Ray cluster"),
    ):
        if extra in extras:
            yield _of_extra(name, extra, extras[extra])
    yield _gpu_feature(gpus, torch, _fit(extras.get("profile", ())))
    yield _plugin_feature(compiler)
    hook = Path(sysconfig.get_path("purelib")) / "paceline_record.pth"
    yield Feature(
        "recording without a line of code (PACELINE_RECORD)",
        hook.is_file(),
        "" if hook.is_file() else f"{hook}, which an editable install lacks",
        "" if hook.is_file() else pip_install(),
    )


def _fit(found: Iterable[Package]) -> bool:
    return all(package.fits for package in found)


def _of_extra(name: str, extra: str, found: tuple[Package, ...]) -> Feature:
    absent = [
        f"{p.name} (here {p.version}, needed {p.requirement})" if p.version else p.name
        for p in found
        if not p.fits
    ]
    install = pip_install(extra) if absent else ""
    return Feature(name, not absent, ", ".join(absent), install)


def _gpu_feature(
    gpus: tuple[Gpu, ...], torch: Mapping[str, Any] | None, has_torch: bool
) -> Feature:
    name = "operator times of this machine's GPU (profile)"
    if not gpus:
        return Feature(name, False, "a GPU", "run it on a machine with a GPU")
    if not has_torch:
        return Feature(name, False, "PyTorch", pip_install("profile"))
    if torch is not None and not torch["gpus"]:
        why = torch["problem"] or "PyTorch sees no GPU"
        return Feature(
            name, False, why, "install the build of PyTorch for this driver: pytorch.org"
        )
    return Feature(name, True)


def _plugin_feature(compiler: str) -> Feature:
    name = "call logs of NCCL (the profiler plugin)"
    if any(_NATIVE.glob("*.so")):
        return Feature(name, True)
    if not compiler:
        return Feature(
            name, False, "a C compiler", "install gcc or clang, then `paceline nccl path`"
        )
    return Feature(name, False, "the plugin is not built", "`paceline nccl path` says how")


def _first(*names: str | None) -> str:
    """The path of the first program that is there; empty for none."""
    return next((path for name in names if name and (path := shutil.which(name))), "")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
