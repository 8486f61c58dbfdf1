"""Compiled loops where the cache on disk is missing, full or broken, and threads that share one."""

import errno
import functools
import os
import subprocess
import sys
import threading
import time
from pickle import UnpicklingError
from types import SimpleNamespace

import numpy as np
import pytest

import paceline.simulate as simulate
from jobs import Spec, make_rows, trace_of
from paceline.graph import from_trace
from paceline.jit import compiled
from paceline.simulate import Rules, all_lanes, step_times


def fake_numba(monkeypatch, cached):
    """A numba whose functions with a cache are ``cached(function)``."""

    def njit(cache=False, **_):
        return cached if cache else lambda function: function

    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(njit=njit))


def test_no_place_for_the_cache(monkeypatch):
    def cached(_):
        raise RuntimeError("cannot cache function: no locator available")

    fake_numba(monkeypatch, cached)
    assert compiled(lambda x: x + 1)(2) == 3


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        PermissionError(errno.EACCES, "Permission denied"),
        EOFError("Ran out of input"),
        UnpicklingError("pickle data was truncated"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_cache_that_fails_at_the_first_call(monkeypatch, fault):
    def cached(_):
        def call(*_):
            raise fault

        return call

    fake_numba(monkeypatch, cached)
    plus = compiled(lambda x: x + 1)
    assert [plus(2), plus(3)] == [3, 4]


TORN = """
import sys
from pathlib import Path

import numba
import paceline.simulate as simulate
from paceline.synth import SynthSpec, synthesize
from paceline.whatif import analyze

trace = synthesize(SynthSpec(dp=2, pp=2, microbatches=2, steps=1))
plain = analyze(trace)
folder = Path(numba.njit(cache=True)(simulate._walk).stats.cache_path)
line = simulate._walk.__code__.co_firstlineno
name = f"simulate._walk-{line}.py{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags}.nbi"
folder.mkdir(parents=True, exist_ok=True)
(folder / name).write_bytes(b"\\x80\\x05\\x95")
simulate.COLD_ABOVE_S = 0
fast = analyze(trace)
assert simulate._compiled_walk.cache_info().currsize == 1
assert fast.slowdown == plain.slowdown
assert (fast.by_worker == plain.by_worker).all()
# The torn file was the one that numba looks for: there is no other.
assert [path.name for path in folder.glob("simulate._walk-*.nbi")] == [name]
"""


def test_a_torn_cache_file_gives_results_all_the_same(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", TORN],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def made(monkeypatch):
    """Counts how often the walk is compiled; that takes a while, in which others may ask."""
    calls = []

    def slowly(function):
        calls.append(function)
        time.sleep(0.05)
        return function

    monkeypatch.setattr(simulate, "compiled", slowly)
    monkeypatch.setattr(simulate, "COLD_ABOVE_S", 0)
    monkeypatch.setattr(simulate, "_COMPILED_BYTES", 1)
    monkeypatch.setattr(simulate, "_cores", lambda: 2)
    monkeypatch.setattr("numba.extending.overload", lambda *_, **__: lambda loop: loop)
    fresh = functools.cache(simulate._compiled_walk.__wrapped__)
    monkeypatch.setattr(simulate, "_compiled_walk", fresh)
    return calls


def times_of(measured):
    graph, n_steps = measured.graph, measured.durations.n_steps
    keep = np.ones((1, graph.n_ops), dtype=bool)
    rules = Rules(keep, np.zeros(graph.n_ops))
    return step_times(measured.durations, rules, all_lanes(graph, n_steps))


def test_blocks_on_two_threads_share_one_compiled_walk(made):
    """70 lanes a step: each of the 3 steps is a block of its own."""
    measured = from_trace(trace_of(make_rows(Spec(pp=1, microbatches=(1,) * 70, steps=3))))
    times_of(measured)
    assert len(made) == 1


def test_two_callers_share_one_compiled_walk(made):
    measured = from_trace(trace_of(make_rows(Spec(pp=1, microbatches=(1, 1)))))
    found = []
    threads = [threading.Thread(target=lambda: found.append(times_of(measured))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    np.testing.assert_array_equal(found[0], found[1])
