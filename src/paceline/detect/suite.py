"""Further tests of a validation: memory, copies and collectives, as in a training job.

All ranks of the process group call :func:`run_suite`. Each test is short and repeated, and measures
each rank. All members of a collective take as long as the slowest, so its results serve a host's
history rather than to name a rank.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.detect.verdict import Place
from paceline.errors import DetectError

#: Bytes of a test on CPU and GPU: beyond caches, but with a negligible run time.
_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
#: Repetitions of a test; the median counts, on CPUs the minimum.
_ROUNDS = 5
_COLLECTIVES = ("all-reduce", "reduce-scatter", "all-to-all")
#: ``run_validation`` measures messages between two ranks.
TESTS = ("gemm", "hbm", "host-to-device", "device-to-host", *_COLLECTIVES)


@dataclass(frozen=True)
class SuiteResult:
    """The measurements.

    Attributes:
        seconds: test -> [rank of the group] seconds; a GEMM's name has its shape.
        skipped: test -> reason why it was not run.
        places: [rank] place of the rank.
        took_s: wall time of all tests, seconds.
    """

    seconds: Mapping[str, Sequence[float]]
    skipped: Mapping[str, str]
    places: Sequence[Place]
    took_s: float


def gemm_shapes(
    hidden: int, ffn: int, *, tp: int = 1, tokens: int = 4096
) -> tuple[tuple[int, int, int], ...]:
    """(m, n, k) of the products of a transformer layer: attention's output, up, down.

    Args:
        hidden: hidden size of the model.
        ffn: hidden size of its MLP.
        tp: tensor-parallel degree, which divides ``ffn`` and the heads.
        tokens: tokens of a microbatch.

    Raises:
        DetectError: a number is below 1, or ``tp`` does not divide the widths.
    """
    if min(hidden, ffn, tp, tokens) < 1 or hidden % tp or ffn % tp:
        raise DetectError(f"tp {tp} must divide the hidden size {hidden} and the ffn size {ffn}")
    return (
        (tokens, hidden, hidden // tp),
        (tokens, ffn // tp, hidden),
        (tokens, hidden, ffn // tp),
    )


def run_suite(
    shapes: Sequence[tuple[int, int, int]] = (),
    *,
    tests: Sequence[str] = TESTS,
    budget_s: float = 30.0,
    group: Any = None,
) -> SuiteResult:
    """Measure; all ranks of the group call it with the same arguments.

    Args:
        shapes: (m, n, k) of matrix products, as from :func:`gemm_shapes`; empty skips them.
        tests: names from ``TESTS``.
        budget_s: no further test begins after this time, by rank 0's clock.
        group: the process group; None: all processes.

    Raises:
        DetectError: a test is unknown.
    """
    unknown = sorted(set(tests) - set(TESTS))
    if unknown:
        raise DetectError(f"there is no test {unknown[0]}; the tests are {', '.join(TESTS)}")
    bench = _Suite(group)
    begin_s = time.monotonic()
    seconds: dict[str, Sequence[float]] = {}
    skipped: dict[str, str] = {}
    for name, work in bench.works(tests, shapes):
        if bench.from_first(time.monotonic() - begin_s) > budget_s:
            skipped[name] = f"the budget of {budget_s:g} s is used up"
            continue
        rows, problem = bench.measure(work, is_alone=name not in _COLLECTIVES)
        if problem:
            skipped[name] = problem
        else:
            seconds[name] = rows
    return SuiteResult(seconds, skipped, bench.places, time.monotonic() - begin_s)


class _Suite:
    """Buffers and clocks of one rank."""

    def __init__(self, group: Any) -> None:
        import torch
        from torch import distributed

        self.torch, self.distributed = torch, distributed
        self.group = group or distributed.group.WORLD
        self.ranks = distributed.get_world_size(self.group)
        nccl = "cuda:nccl" in distributed.get_backend_config(self.group)
        self.device = "cuda" if nccl and torch.cuda.is_available() else "cpu"
        on_gpu = self.device == "cuda"
        device_name = torch.cuda.get_device_name() if on_gpu else "CPU"
        self.places: list[Place] = self._gathered(Place(socket.gethostname(), device_name))
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.options = {"device": self.device, "dtype": dtype}
        size = dtype.itemsize * self.ranks
        self.count = _BYTES[self.device] // size * self.ranks

    def works(
        self, tests: Sequence[str], shapes: Sequence[tuple[int, int, int]]
    ) -> list[tuple[str, Callable[[], Callable[[], Any]]]]:
        """(name, function that makes the buffers and returns the work) of each test."""
        works: list[tuple[str, Callable[[], Callable[[], Any]]]] = []
        for name in tests:
            if name == "gemm":
                works += [
                    (f"gemm {m}x{n}x{k}", lambda m=m, n=n, k=k: self._gemm(m, n, k))  # type: ignore[misc]
                    for m, n, k in shapes
                ]
            elif name in _COLLECTIVES:
                works.append((name, lambda name=name: self._collective(name)))  # type: ignore[misc]
            else:
                works.append((name, lambda name=name: self._copy(name)))  # type: ignore[misc]
        return works

    def _gemm(self, m: int, n: int, k: int) -> Callable[[], Any]:
        torch = self.torch
        a, b = torch.ones((m, k), **self.options), torch.ones((k, n), **self.options)
        c = torch.empty((m, n), **self.options)
        return lambda: torch.mm(a, b, out=c)

    def _copy(self, name: str) -> Callable[[], Any]:
        torch = self.torch
        if name == "hbm":
            a, b = (torch.ones(self.count, **self.options) for _ in range(2))
            return lambda: a.copy_(b)
        if self.device == "cpu":
            raise RuntimeError("there is no device beside the host")
        device = torch.ones(self.count, **self.options)
        host = torch.ones(self.count, dtype=device.dtype, pin_memory=True)
        if name == "host-to-device":
            return lambda: device.copy_(host, non_blocking=True)
        return lambda: host.copy_(device, non_blocking=True)

    def _collective(self, name: str) -> Callable[[], Any]:
        torch, distributed, group = self.torch, self.distributed, self.group
        whole = torch.zeros(self.count, **self.options)
        if name == "all-reduce":
            return lambda: distributed.all_reduce(whole, group=group)
        if name == "reduce-scatter":
            shard = torch.zeros(self.count // self.ranks, **self.options)
            # The name since torch 2.13, where the older one warns.
            older = distributed.reduce_scatter_tensor
            scatter = getattr(distributed, "reduce_scatter_single", older)
            return lambda: scatter(shard, whole, group=group)
        other = torch.zeros(self.count, **self.options)
        return lambda: distributed.all_to_all_single(other, whole, group=group)

    def measure(
        self, prepare: Callable[[], Callable[[], Any]], *, is_alone: bool
    ) -> tuple[list[float], str]:
        """([rank] seconds, error of any rank); if alone, a rank waits for no other."""
        problem, work = "", None
        try:
            work = prepare()
        except RuntimeError as error:
            problem = str(error).strip().partition("\n")[0][:200]
        problems = self._gathered(problem)
        if any(problems) or work is None:
            return [], next(text for text in problems if text)
        samples = []
        try:
            for _ in range(1 + _ROUNDS):
                self._gathered("")  # all ranks begin together
                samples.append(self._time(work, is_alone))
        except RuntimeError as error:  # a backend without this collective fails on all ranks
            problem = str(error).strip().partition("\n")[0][:200]
        problems = self._gathered(problem)
        if any(problems):
            return [], next(text for text in problems if text)
        usual = statistics.median if self.device == "cuda" else min
        return self._gathered(usual(samples[1:])), ""

    def _time(self, work: Callable[[], Any], is_alone: bool) -> float:
        if self.device == "cpu" and is_alone:
            return self._cpu_time(work)
        if self.device == "cpu":
            begin_s = time.perf_counter()
            work()
            return time.perf_counter() - begin_s
        cuda = self.torch.cuda
        first, last = (cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def _cpu_time(self, work: Callable[[], Any]) -> float:
        """CPU seconds on one thread, so that shared cores do not look slow."""
        threads = self.torch.get_num_threads()
        self.torch.set_num_threads(1)
        try:
            begin_s = time.thread_time()
            work()
            return time.thread_time() - begin_s
        finally:
            self.torch.set_num_threads(threads)

    def _gathered(self, value: Any) -> list[Any]:
        """[rank] each rank's value."""
        values: list[Any] = [None] * self.ranks
        self.distributed.all_gather_object(values, value, group=self.group)
        return values

    def from_first(self, value: float) -> float:
        """Rank 0's value, on all ranks."""
        return float(self._gathered(value)[0])
