"""One mutant against its tests, in a fork of a process that has the heavy imports done.

A child's limit is CPU time, so that a machine busy with other work kills no mutant.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mutation.covering import Tests
from mutation.mutants import Mutant

#: CPU time of a group of tests: this much, and this many times what they took when measured.
LEAST_CPU_S, SLOWER = 30, 5
#: Wall time, as a multiple of the CPU time: for mutants that wait for ever.
WAITING = 10
#: Memory of a child; a mutant that asks for more is out of bounds, not slow.
MEMORY_BYTES = 12 << 30
#: The first group is small, as most mutants die at once and importing test files costs most.
FIRST_TESTS, FIRST_FILES, FIRST_S = 12, 3, 10.0

KILLED, SURVIVED, TIMEOUT, UNTESTED = "killed", "survived", "timeout", "untested"


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: how many tests ran at most, and the last lines of a failure."""

    mutant: Mutant
    verdict: str
    tests: int
    seconds: float
    output: str


def load_ahead() -> None:
    """Import what the tests need, but nothing of Paceline: children import the mutant."""
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pytest  # noqa: F401
    import yaml  # noqa: F401


def tried(mutant: Mutant, copy: Path, tests: Tests, budget_s: float) -> Outcome:
    """A mutant's outcome; the copy is afterwards as it was before."""
    start = time.monotonic()
    path = copy / mutant.path
    source, stat = path.read_text(encoding="utf-8"), path.stat()
    count, verdict, output = 0, UNTESTED, ""
    with tempfile.TemporaryDirectory() as cache:
        own_cache = cache if "compiled(" in source else None
        try:
            path.write_text(mutant.applied(source), encoding="utf-8")
            for group in groups(tests.judging(mutant), tests.seconds, budget_s):
                _forget(path)
                cpu_s = LEAST_CPU_S + SLOWER * sum(tests.seconds[test] for test in group)
                work = partial(_pytest, copy, group)
                verdict, output = _in_child(work, cpu_s, own_cache)
                count += len(group)
                if verdict != SURVIVED:
                    break
        finally:
            path.write_text(source, encoding="utf-8")
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # so numba's cache stays good
            _forget(path)
    return Outcome(mutant, verdict, count, time.monotonic() - start, output)


def groups(tests: Sequence[str], seconds: dict[str, float], budget_s: float) -> Iterator[list[str]]:
    """The tests in one small group and one of all others, within ``budget_s`` measured seconds."""
    first: list[str] = []
    second: list[str] = []
    files: set[str] = set()
    total_s = 0.0
    for test in tests:
        if first and total_s + seconds[test] > budget_s:
            continue
        file = test.partition("::")[0]
        room = len(first) < FIRST_TESTS and (file in files or len(files) < FIRST_FILES)
        if room and (not first or total_s + seconds[test] < FIRST_S):
            first.append(test)
            files.add(file)
        else:
            second.append(test)
        total_s += seconds[test]
    yield from (group for group in (first, second) if group)


def _forget(path: Path) -> None:
    """Remove compiled files: Python tells them by whole seconds and size, as mutants are alike."""
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def _pytest(copy: Path, tests: Sequence[str]) -> int:
    import pytest

    os.chdir(copy)
    sys.path.insert(0, str(copy / "src"))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # half a second, and none is used
    return int(pytest.main(["-x", "-q", "--tb=short", "-p", "no:cacheprovider", *tests]))


def _in_child(work: Callable[[], int], cpu_s: float, cache: str | None) -> tuple[str, str]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _as_child(work, cpu_s, cache, output.fileno())
        status = _ended(child, WAITING * cpu_s)
        output.seek(0)
        text = output.read().decode(errors="replace")[-600:]
    if status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return TIMEOUT, text
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return SURVIVED, text
    return KILLED, text


def _as_child(work: Callable[[], int], cpu_s: float, cache: str | None, output: int) -> None:
    """Run ``work`` and leave, whatever happens."""
    code = 3
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 10))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        if cache:
            os.environ["NUMBA_CACHE_DIR"] = cache
        code = work()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _ended(child: int, limit_s: float) -> int | None:
    """The status of a child that ended by itself; its whole group is gone afterwards."""
    end = time.monotonic() + limit_s
    status = None
    while time.monotonic() < end:
        pid, code = os.waitpid(child, os.WNOHANG)
        if pid:
            status = code
            break
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    return status
