"""Which tests run which line: measured once with coverage.py's contexts, then kept in a file.

A mutant is judged by the tests that run its statement, those near it by name and quick ones first.
A statement that runs at import is judged by the tests that run a line naming what it assigns, else
by those that run any line of its file; one that is only ever compiled, by those of the function
around it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mutation.mutants import Mutant

#: Tests of services, recorders and readers of files: slow, and not meant to judge these packages.
LEFT_OUT = re.compile(
    r"test_(monitor|record|demo|golden_monitor|layers|sources|mitigate_follow|report_html"
    r"|cli_(serve|admin|monitor|record|hostile|public))"
)

#: Tests in files named like a mutant's that are run before all others; seconds of a quick test.
NEAR_TESTS, QUICK_S = 20, 0.05

#: path -> line -> ids of the tests that run it.
Lines = dict[str, dict[int, list[str]]]


@dataclass(frozen=True)
class Tests:
    """Measured tests: their seconds, and per file and line the numbers of those that run it."""

    root: Path
    ids: list[str]
    seconds: dict[str, float]  # only of tests that passed
    lines: dict[str, dict[int, list[int]]]

    def judging(self, mutant: Mutant) -> list[str]:
        """Ids of the tests that may notice a mutant, in the order in which to run them.

        First some in files named like the module or its package, then all quick ones, as they test
        little and test that closely; then a test of each file in turn, so that a limit of time
        leaves out no file.
        """
        path = Path(mutant.path)
        names = {path.stem, path.parent.name}
        tests = sorted(self._running(mutant), key=self.seconds.__getitem__)
        files: dict[str, list[str]] = {}
        for test in tests:
            files.setdefault(test.partition("::")[0], []).append(test)
        near = [file for file in files if any(name in file for name in names)]
        nearby = [test for test in tests if test.partition("::")[0] in near]
        quick = [test for test in tests if self.seconds[test] < QUICK_S]
        turns = [test for turn in zip_longest(*files.values()) for test in turn if test]
        return list(dict.fromkeys([*nearby[:NEAR_TESTS], *quick, *turns]))

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
        return named or self._on(mutant.path, self.lines.get(mutant.path, ()))

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
    """The tests of a copy of the repository; those whose files are as in ``kept`` from there."""
    code = _digest([*copy.glob("src/**/*.py"), *_support(copy)])
    stored = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    files = stored["files"] if stored.get("code") == code else {}
    digests = {
        str(path.relative_to(copy)): _digest([path])
        for path in sorted(copy.glob("tests/test_*.py"))
        if not LEFT_OUT.search(path.name)
    }
    files = {name: file for name, file in files.items() if digests.get(name) == file["digest"]}
    missing = [name for name in digests if name not in files]
    if missing:
        seconds, lines = _measure(copy, missing, jobs)
        for name in missing:
            own = {test: time for test, time in seconds.items() if test.startswith(f"{name}::")}
            files[name] = {"digest": digests[name], "seconds": own, "lines": _only(own, lines)}
        kept.write_text(json.dumps({"code": code, "files": files}), encoding="utf-8")
    return _joined(copy, files)


def _support(copy: Path) -> list[Path]:
    """What tests share: files under ``tests`` that are no tests themselves."""
    return [path for path in copy.glob("tests/**/*.py") if not path.name.startswith("test_")]


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _only(own: dict[str, float], lines: Lines) -> dict[str, dict[int, list[int]]]:
    """path -> line -> numbers (in the order of ``own``) of the tests that run it."""
    number = {test: place for place, test in enumerate(own)}
    return {
        path: {
            line: numbers
            for line, tests in table.items()
            if (numbers := [number[test] for test in tests if test in number])
        }
        for path, table in lines.items()
    }


def _joined(copy: Path, files: dict[str, Any]) -> Tests:
    tests = Tests(copy, [], {}, {})
    for file in files.values():
        first = len(tests.ids)
        tests.ids.extend(file["seconds"])
        tests.seconds.update(file["seconds"])
        for path, table in file["lines"].items():
            lines = tests.lines.setdefault(path, {})
            for line, numbers in table.items():
                lines.setdefault(int(line), []).extend(first + number for number in numbers)
    return tests


def _measure(copy: Path, files: Sequence[str], jobs: int) -> tuple[dict[str, float], Lines]:
    data, report, settings = copy / ".coverage", copy / "tests.xml", copy / "coverage.ini"
    settings.write_text(f"[run]\nsource = src/paceline\ndata_file = {data}\n", encoding="utf-8")
    command = (
        *(sys.executable, "-m", "pytest", "-q", "-m", "not alone", "-p", "no:cacheprovider"),
        *("-n", str(jobs), "--dist", "loadfile", f"--junitxml={report}"),
        *("--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="),
        *files,
    )
    print(f"measuring which lines {len(files)} test files run", file=sys.stderr)
    environment = os.environ | {"PYTHONPATH": str(copy / "src")}
    subprocess.run(command, cwd=copy, check=False, stdout=sys.stderr, env=environment)
    return _seconds(report), _lines(data, copy)


def _seconds(report: Path) -> dict[str, float]:
    """Seconds of each test that passed."""
    return {
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": float(
            case.get("time", 0)
        )
        for case in ET.parse(report).getroot().iter("testcase")
        if not any(child.tag in ("failure", "error", "skipped") for child in case)
    }


def _lines(data: Path, copy: Path) -> Lines:
    import coverage

    measured = coverage.CoverageData(basename=str(data))
    measured.read()
    # A context is "id|run", "id|setup" or, for what runs at import, "".
    return {
        str(Path(file).relative_to(copy)): {
            line: sorted({context.rpartition("|")[0] for context in contexts} - {""})
            for line, contexts in measured.contexts_by_lineno(file).items()
        }
        for file in sorted(measured.measured_files())
    }
