"""What ``hatch_build.py`` puts into a wheel; ``make packages`` builds the real one.

auditwheel 6.8.2 gives that the same tag.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CC = shutil.which(os.environ.get("CC", "cc"))


class Interface:
    """Of hatchling's what the hook uses: it is not installed beside the tests."""

    target_name = "wheel"

    def __init__(self, root: Path) -> None:
        self.root, self.app, self.warnings = str(root), self, []

    def display_warning(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def module(monkeypatch):
    name = "hatchling.builders.hooks.plugin.interface"
    stub = types.ModuleType(name)
    stub.BuildHookInterface = Interface
    monkeypatch.setitem(sys.modules, name, stub)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(
        ROOT / "src/paceline/native", tmp_path / "src/paceline/native",
        ignore=shutil.ignore_patterns("*.so"),
    )  # fmt: skip
    return tmp_path


def build(module, tree, version="standard"):
    hook = module.NativeHook(tree)
    data = {"artifacts": [], "pure_python": True, "tag": None}
    hook.initialize(version, data)
    return hook, data


@pytest.mark.skipif(CC is None or shutil.which("make") is None, reason="no compiler or no make")
def test_plugin_and_shim_are_in_the_wheel_of_the_platform(module, tree):
    hook, data = build(module, tree)
    assert hook.warnings == []
    assert data["artifacts"] == [
        "src/paceline/native/libpaceline-nccl-shim.so",
        "src/paceline/native/libpaceline-nccl.so",
    ]
    assert not data["pure_python"]
    assert data["tag"].startswith("py3-none-")
    assert all((tree / path).is_file() for path in data["artifacts"])


def test_without_a_compiler_the_wheel_is_for_any_platform_with_one_line(module, tree, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    hook, data = build(module, tree)
    (warning,) = hook.warnings
    assert "without the NCCL plugin" in warning
    assert "\n" not in warning
    assert data == {"artifacts": [], "pure_python": True, "tag": None}


@pytest.mark.parametrize(("version", "pure"), [("editable", ""), ("standard", "1")])
def test_nothing_is_built_where_none_is_wanted(module, tree, monkeypatch, version, pure):
    monkeypatch.setenv("PACELINE_PURE", pure)
    hook, data = build(module, tree, version)
    assert hook.warnings == []
    assert data["pure_python"]
    assert not list(tree.rglob("*.so"))


def test_the_tag_is_that_of_the_newest_symbol_that_is_needed(module, tmp_path):
    (tmp_path / "a.so").write_bytes(b"\0GLIBC_2.2.5\0GLIBC_2.17\0")
    (tmp_path / "b.so").write_bytes(b"\0GLIBC_2.4\0")
    (tmp_path / "musl.so").write_bytes(b"\0")
    tag = module.platform_tag([tmp_path / "a.so", tmp_path / "b.so"])
    assert tag.startswith("manylinux_2_17_")
    assert module.platform_tag([tmp_path / "b.so"]).startswith("manylinux_2_5_")
    assert "manylinux" not in module.platform_tag([tmp_path / "musl.so"])
