"""Measure each rank's matrix products and each link's messages, inside a process group.

All ranks call ``run_validation``: a training job between two steps, or the processes that
``paceline validate`` joins or starts. torch is imported when it runs.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from paceline.detect.passes import Link, Pass, ring_passes
from paceline.detect.verdict import Measurements, Place
from paceline.errors import DetectError

#: Defaults on CPU and GPU: milliseconds on a core or tensor cores, and sizes dominated by bandwidth
#: instead of latency.
_GEMM = {"cpu": 384, "cuda": 4096}
_MESSAGE_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}

#: Matrix products per sample, before the factor of a slow rank of ``Injected``.
_PRODUCTS = 4

#: Messages per link and round, after an uncounted one that sets up the connection.
_MESSAGES = 3


@dataclass(frozen=True)
class Effort:
    """The amount of measurement.

    Attributes:
        gemm: rows and columns of the matrices; None: 384 on a CPU, 4096 on a GPU.
        message_bytes: size of a message; None: 4 MiB on a CPU, 64 MiB on a GPU.
        rounds: repetitions of all measurements, so that a disturbance does not affect only one
            rank.
        timeout_s: time limit of the measurement (NCCL waits for its group's own timeout).
    """

    gemm: int | None = None
    message_bytes: int | None = None
    rounds: int = 5
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("gemm", "message_bytes", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DetectError(f"{name} must be 1 or more, not {value}")
        if not 0 < self.timeout_s < 1e6:
            raise DetectError(f"the timeout must be some seconds, not {self.timeout_s:g}")


@dataclass(frozen=True)
class Injected:
    """Artificial slowness, to test whether a validation finds it.

    Attributes:
        rank, factor: this rank does ``factor`` times the matrix products.
        link, delay_s: the source of this link sleeps before it sends.
    """

    rank: int | None = None
    factor: float = 1.0
    link: Link | None = None
    delay_s: float = 0.0


def run_validation(
    ranks: Sequence[int] | None = None,
    passes: Sequence[Pass] | None = None,
    *,
    group: Any = None,
    effort: Effort | None = None,
    injected: Injected | None = None,
) -> Measurements:
    """Measure; all ranks of the process group call it with the same arguments.

    Matrix products: GPUs compute all at once, as in the paper. On CPUs the ranks of a host take
    turns with one thread each, and the thread's CPU time counts. Cores shared with other work
    therefore do not look slow, but cores with a low clock do.

    Links: pass by pass, with a barrier in between. The source measures from the first byte sent to
    the acknowledgement. A round counts with its samples' median on GPUs, and their minimum on CPUs.
    The random state of the job is unchanged.

    Args:
        ranks: global numbers of the ranks whose matrix products to measure; None: the whole group.
        passes: links to measure, by global numbers; None: a ring of ``ranks``.
        group: the process group; None: all processes.
        effort: amount of measurement.
        injected: artificial slowness.

    Returns:
        The same on every rank.

    Raises:
        DetectError: a rank is outside the group, memory is short, a peer was lost, or the time is
            up. After the last two, the process group is unusable.
    """
    from torch import distributed

    group = group or distributed.group.WORLD
    members = distributed.get_process_group_ranks(group)
    ranks = members if ranks is None else ranks
    passes = ring_passes(ranks) if passes is None else passes
    strangers = {rank for links in passes for link in links for rank in link} | {*ranks}
    if strangers := strangers - {*members}:
        raise DetectError(f"rank {min(strangers)} is not one of the {len(members)} of the group")
    try:
        bench = _Bench(members, group, effort or Effort(), injected or Injected())
        return bench.measure(frozenset(ranks), passes)
    except RuntimeError as error:
        words = str(error).strip().partition("\n")[0][:200]
        raise DetectError(f"rank {distributed.get_rank()} lost its peers: {words}") from error


class _Bench:
    """Buffers, deadline and clocks of one rank."""

    def __init__(
        self, members: Sequence[int], group: Any, effort: Effort, injected: Injected
    ) -> None:
        import torch
        from torch import distributed

        self.torch, self.distributed = torch, distributed
        self.group, self.effort, self.injected = group, effort, injected
        self.me = distributed.get_rank()
        nccl = "cuda:nccl" in distributed.get_backend_config(group) and torch.cuda.is_available()
        self.device = "cuda" if nccl else "cpu"
        self.gemm = effort.gemm or _GEMM[self.device]
        self.message_bytes = effort.message_bytes or _MESSAGE_BYTES[self.device]
        self.deadline = time.monotonic() + effort.timeout_s
        problem = self._allocate()
        place = Place(socket.gethostname(), _device_name(torch, self.device))
        everyone: list[Any] = [None] * len(members)
        distributed.all_gather_object(everyone, (self.me, place, problem), group=group)
        for rank, _, problem in everyone:
            if problem:
                raise DetectError(f"rank {rank}: {problem}; ask for smaller matrices or messages")
        self.places: dict[int, Place] = {rank: place for rank, place, _ in everyone}

    def _allocate(self) -> str:
        """Create the tensors; returns an error for all ranks."""
        torch = self.torch
        random = torch.Generator(self.device).manual_seed(0)  # leave the job's generator unchanged
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        shape = (self.gemm, self.gemm)
        options = {"device": self.device, "dtype": dtype}
        try:
            self.a, self.b = (torch.randn(shape, generator=random, **options) for _ in range(2))
            self.c = torch.empty(shape, **options)
            self.message = torch.zeros(self.message_bytes, dtype=torch.uint8, device=self.device)
        except RuntimeError as error:  # out of memory
            return str(error).strip().partition("\n")[0][:200]
        self.answer = torch.zeros(1, dtype=torch.uint8, device=self.device)
        self.token = torch.zeros(1, device=self.device)
        return ""

    def measure(self, ranks: frozenset[int], passes: Sequence[Pass]) -> Measurements:
        robust = statistics.median if self.device == "cuda" else min
        gemm_s: list[float] = []
        link_s: dict[Link, list[float]] = {}
        for _ in range(self.effort.rounds):
            if samples := self._gemm_turns(ranks):
                gemm_s.append(robust(samples))
            for one_pass in passes:
                self._barrier()
                for link in one_pass:
                    if self.me in link and (samples := self._transfer(*link)):
                        link_s.setdefault(link, []).append(robust(samples))
        self._barrier()
        everyone: list[Any] = [None] * len(self.places)
        result = (self.me, gemm_s, link_s)
        self.distributed.all_gather_object(everyone, result, group=self.group)
        return Measurements(
            gemm_s={rank: rounds for rank, rounds, _ in everyone if rounds},
            link_s={link: rounds for _, _, links in everyone for link, rounds in links.items()},
            places=self.places,
            gemm=self.gemm,
            message_bytes=self.message_bytes,
            backend="nccl" if self.device == "cuda" else "gloo",
        )

    # Matrix products.

    def _gemm_turns(self, ranks: frozenset[int]) -> list[float]:
        if self.device == "cuda":
            self._barrier()
            return [self._gemm_on_gpu() for _ in range(5)] if self.me in ranks else []
        turns: dict[str, list[int]] = {}
        for rank in sorted(ranks):
            turns.setdefault(self.places[rank].host, []).append(rank)
        seconds = []
        for turn in range(max(map(len, turns.values()), default=0)):
            self._barrier()
            mine = turns.get(self.places[self.me].host, [])
            if turn < len(mine) and mine[turn] == self.me:
                seconds = [self._gemm_on_cpu() for _ in range(3)]
        return seconds

    def _products(self) -> None:
        slow = self.injected.factor if self.me == self.injected.rank else 1.0
        for _ in range(max(round(_PRODUCTS * slow), 1)):
            self.torch.mm(self.a, self.b, out=self.c)

    def _gemm_on_cpu(self) -> float:
        threads = self.torch.get_num_threads()
        self.torch.set_num_threads(1)
        try:
            self.torch.mm(self.a, self.b, out=self.c)  # warm the caches after the others' turn
            begin = time.thread_time()
            self._products()
            return (time.thread_time() - begin) / _PRODUCTS
        finally:
            self.torch.set_num_threads(threads)

    def _gemm_on_gpu(self) -> float:
        cuda = self.torch.cuda
        first, last = (cuda.Event(enable_timing=True) for _ in range(2))
        self._products()
        first.record()
        self._products()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / _PRODUCTS

    # Messages.

    def _transfer(self, source: int, destination: int) -> list[float]:
        """Seconds of each message with its acknowledgement at the source; empty elsewhere."""
        send, receive = self.distributed.isend, self.distributed.irecv
        seconds = []
        for _ in range(1 + _MESSAGES):
            begin = time.perf_counter()
            if self.me == source:
                if self.injected.link == (source, destination):
                    time.sleep(self.injected.delay_s)
                self._wait(send(self.message, destination, group=self.group))
                self._wait(receive(self.answer, destination, group=self.group))
                seconds.append(time.perf_counter() - begin)
            else:
                self._wait(receive(self.message, source, group=self.group))
                self._wait(send(self.answer, source, group=self.group))
        return seconds[1:]

    def _barrier(self) -> None:
        """Wait for all ranks."""
        self._wait(self.distributed.all_reduce(self.token, group=self.group, async_op=True))

    def _wait(self, work: Any) -> None:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise DetectError(
                f"rank {self.me}: the validation took more than {self.effort.timeout_s:g} s; give "
                "it more time, or smaller matrices and messages"
            )
        work.wait(timedelta(seconds=left_s))
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def _device_name(torch: Any, device: str) -> str:
    return str(torch.cuda.get_device_name()) if device == "cuda" else "CPU"
