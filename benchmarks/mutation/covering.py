"""Which tests run which line: measured once with coverage.py's contexts, then kept in a file.

A mutant is judged by the tests that run its statement, those near it by name and quick ones first.
A statement that runs at import (a constant, a table) is judged by the tests that run a line naming
it or any line of its file; one that is only ever compiled, by those of the function around it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mutation.mutants import Mutant

#: Tests of services, recorders and readers of files: slow, and not meant to judge these packages.
LEFT_OUT = re.compile(
    r"test_(monitor|record|demo|golden_monitor|layers|sources|mitigate_follow|report_html"
    r"|cli_(serve|admin|monitor|record|hostile|public))"
)


@dataclass(frozen=True)
class Tests:
    """Measured tests: their seconds, and per file and line the numbers of those that run it."""

    root: Path
    ids: list[str]
    seconds: dict[str, float]  # only of tests that passed
    lines: dict[str, dict[int, list[int]]]

    def judging(self, mutant: Mutant) -> list[str]:
        """Ids of the tests that may notice a mutant, in the order in which to run them."""
        path = Path(mutant.path)
        names = {path.stem, path.parent.name}

        def distance(test: str) -> tuple[bool, float]:
            file = test.partition("::")[0]
            return not any(name in file for name in names), self.seconds[test]

        return sorted(self._running(mutant), key=distance)

    def _running(self, mutant: Mutant) -> set[str]:
        tree = ast.parse((self.root / mutant.path).read_text(encoding="utf-8"))
        around = list(_around(tree, mutant.line))
        for node in reversed(around):
            stop = node.lineno if isinstance(node, _BODIED) else node.end_lineno
            lines = range(node.lineno, (stop or node.lineno) + 1)
            if isinstance(node, ast.FunctionDef):  # itself run at import, or only ever compiled
                lines = range(node.lineno, (node.end_lineno or 0) + 1)
            if tests := self._on(mutant.path, lines):
                return tests
        # What runs at import counts wherever it is used.
        named = self._naming(around[0]) if isinstance(around[0], _ASSIGNED) else set()
        return named | self._on(mutant.path, self.lines.get(mutant.path, ()))

    def _on(self, path: str, lines: Iterable[int]) -> set[str]:
        table = self.lines.get(path, {})
        numbers = {number for line in lines for number in table.get(line, ())}
        return {self.ids[number] for number in numbers} & self.seconds.keys()

    def _naming(self, node: ast.Assign | ast.AnnAssign) -> set[str]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        nodes = [node for target in targets for node in ast.walk(target)]
        names = [node.id for node in nodes if isinstance(node, ast.Name)]
        word = re.compile(rf"\b({'|'.join(names) or '(?!)'})\b")
        return {
            test
            for path, lines in self._sources.items()
            for test in self._on(path, (n for n, line in enumerate(lines, 1) if word.search(line)))
        }

    @cached_property
    def _sources(self) -> dict[str, list[str]]:
        return {
            path: (self.root / path).read_text(encoding="utf-8").split("\n") for path in self.lines
        }


_ASSIGNED = (ast.Assign, ast.AnnAssign)
_BODIED = (ast.FunctionDef, ast.ClassDef, ast.If, ast.For, ast.While, ast.With, ast.Try)


def _around(tree: ast.AST, line: int) -> Iterator[ast.stmt]:
    """The statements around a line, outermost first."""
    for node in ast.iter_child_nodes(tree):
        first, last = getattr(node, "lineno", line), getattr(node, "end_lineno", line)
        if first <= line <= last:
            if isinstance(node, ast.stmt):
                yield node
            yield from _around(node, line)


def measured(copy: Path, kept: Path, jobs: int) -> Tests:
    """The tests of a copy of the repository, from ``kept`` if that is of the same files."""
    digest = _digest(copy)
    if kept.exists():
        stored = json.loads(kept.read_text(encoding="utf-8"))
        if stored["digest"] == digest:
            lines = {
                path: {int(line): tests for line, tests in table.items()}
                for path, table in stored["lines"].items()
            }
            return Tests(copy, stored["ids"], stored["seconds"], lines)
    tests = _measure(copy, jobs)
    stored = {
        "digest": digest,
        "ids": tests.ids,
        "seconds": tests.seconds,
        "lines": tests.lines,
    }
    kept.write_text(json.dumps(stored), encoding="utf-8")
    return tests


def _digest(copy: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted([*copy.glob("src/**/*.py"), *copy.glob("tests/**/*.py")]):
        digest.update(f"{path.relative_to(copy)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _measure(copy: Path, jobs: int) -> Tests:
    data, report, settings = copy / ".coverage", copy / "tests.xml", copy / "coverage.ini"
    settings.write_text(f"[run]\nsource = src/paceline\ndata_file = {data}\n", encoding="utf-8")
    files = [path for path in copy.glob("tests/test_*.py") if not LEFT_OUT.search(path.name)]
    command = (
        *(sys.executable, "-m", "pytest", "-q", "-m", "not alone", "-p", "no:cacheprovider"),
        *("-n", str(jobs), "--dist", "loadfile", f"--junitxml={report}"),
        *("--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="),
        *(str(path.relative_to(copy)) for path in sorted(files)),
    )
    print(f"measuring which of {len(files)} test files run which lines", file=sys.stderr)
    subprocess.run(command, cwd=copy, check=False, stdout=sys.stderr)
    ids, lines = _lines(data, copy)
    return Tests(copy, ids, _seconds(report), lines)


def _seconds(report: Path) -> dict[str, float]:
    """Seconds of each test that passed."""
    return {
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": float(
            case.get("time", 0)
        )
        for case in ET.parse(report).getroot().iter("testcase")
        if not any(child.tag in ("failure", "error", "skipped") for child in case)
    }


def _lines(data: Path, copy: Path) -> tuple[list[str], dict[str, dict[int, list[int]]]]:
    import coverage

    measured = coverage.CoverageData(basename=str(data))
    measured.read()
    numbers: dict[str, int] = {}
    lines: dict[str, dict[int, list[int]]] = {}
    for file in sorted(measured.measured_files()):
        table = lines.setdefault(str(Path(file).relative_to(copy)), {})
        for line, contexts in measured.contexts_by_lineno(file).items():
            # A context is "id|run", "id|setup" or, for what runs at import, "".
            tests = {context.rpartition("|")[0] for context in contexts} - {""}
            table[line] = sorted(numbers.setdefault(test, len(numbers)) for test in tests)
    return list(numbers), lines
