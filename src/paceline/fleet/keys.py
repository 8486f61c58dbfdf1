"""The key of a result: the analysed content, the options, and the version of the code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from paceline.fleet.columns import SCHEMA

#: Packages and modules whose code decides the result of an analysis.
_ANALYSIS = (
    *("robust", "trace", "sources", "graph", "simulate", "whatif", "diagnose", "remedies"),
    *("results", "fleet/analysis", "fleet/columns", "model", "plan/expect"),
)

#: Characters of a key: 128 bits, so that no two results ever share one.
_LENGTH = 32


@dataclass(frozen=True)
class AnalysisOptions:
    """Settings that change the numbers of an analysis.

    Attributes:
        steps: numbers of the steps that are analysed; None: all.
        ignore_kinds: labels of kinds of operation that are dropped.
        keep_clocks: do not correct clock offsets between workers.
    """

    steps: tuple[int, ...] | None = None
    ignore_kinds: tuple[str, ...] = ()
    keep_clocks: bool = False


def analysis_version() -> str:
    """A digest of the analysis code, so that no other version uses this version's results."""
    return _version(Path(__file__).parents[1])


@cache
def _version(package: Path) -> str:
    digest = hashlib.sha256(str(SCHEMA).encode())
    for name in _ANALYSIS:
        module = (package / name).with_suffix(".py")
        files = [module] if module.is_file() else sorted((package / name).rglob("*.py"))
        for file in files:
            digest.update(file.relative_to(package).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def file_digest(path: Path) -> str:
    """SHA-256 of a file, or of a folder's files with their names.

    Raises:
        OSError: it cannot be read.
    """
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for file_path in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(f"{file_path.relative_to(path).as_posix()}\0".encode())
        digest.update(file_digest(file_path).encode())
    return digest.hexdigest()


def result_key(files: Mapping[str, str], options: AnalysisOptions, version: str) -> str:
    """The key of a result.

    Args:
        files: ``trace``, ``meta`` and ``hosts`` -> SHA-256 of their content, "" without one.
        options: options of the analysis.
        version: result of :func:`analysis_version`.
    """
    return _digest({"files": dict(files), "options": asdict(options), "version": version})


def stamp_key(path: str, stamp: str, options: AnalysisOptions, version: str) -> str:
    """Key of a trace that was not read: from its address and its stamp."""
    return _digest({"path": path, "stamp": stamp, "options": asdict(options), "version": version})


def _digest(values: Mapping[str, object]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
