"""Puts the NCCL plugin and its shim into the wheel, where a C compiler is at hand (docs/nccl.md).

Such a wheel is of the platform; without a compiler, or with PACELINE_PURE=1, it is for any. The
flags are the Makefile's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "src/paceline/native"


class NativeHook(BuildHookInterface):
    """Runs ``make native``; hatchling calls it for each build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and name the platform; an editable install is left as it is."""
        if version == "editable" or self.target_name != "wheel" or os.environ.get("PACELINE_PURE"):
            return
        why = self._build()
        if why:
            self.app.display_warning(f"the wheel is without the NCCL plugin: {why}")
            return
        libraries = sorted(Path(self.root, NATIVE).glob("*.so"))
        build_data["artifacts"] += [f"{NATIVE}/{library.name}" for library in libraries]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(libraries)}"

    def _build(self) -> str:
        """Why it could not be built; "" where it was."""
        if sys.platform != "linux":
            return "NCCL runs on Linux only"
        make, compiler = shutil.which("make"), shutil.which(os.environ.get("CC", "cc"))
        if make is None or compiler is None:
            return f"no {'make' if make is None else 'C compiler'} on this machine"
        done = subprocess.run(
            [make, "-C", self.root, "native", f"CC={compiler}"], capture_output=True, text=True
        )
        lines = done.stderr.strip().splitlines() or ["make native failed"]
        return lines[-1] if done.returncode else ""


def platform_tag(libraries: list[Path]) -> str:
    """The oldest glibc with which the libraries run, as PEP 600 names it; other libcs by name.

    They need nothing but libc, so the versions of its symbols say it all.
    """
    needed = {
        tuple(map(int, found))
        for library in libraries
        for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
    }
    own = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if not needed:
        return own
    major, minor = max(needed)
    return f"manylinux_{major}_{max(minor, 5)}_{own.removeprefix('linux_')}"
