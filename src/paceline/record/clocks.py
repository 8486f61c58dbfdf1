"""The host clock, and its lead over rank 0's clock, measured by ping-pong messages."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

#: Answers per exchange; the answer with the shortest round trip is used.
ROUNDS = 16

#: Default of the longest wait for another rank.
TIMEOUT_S = 60.0


class HostClock:
    """Times on the host, for work that is done when its call returns.

    ``mark`` returns a mark, cheaply; ``resolve`` turns it into nanoseconds later.

    Attributes:
        ahead_ns: lead of :meth:`now` over the host's monotonic clock.
    """

    mark = staticmethod(time.perf_counter_ns)

    def __init__(self) -> None:
        tries = []
        for _ in range(5):
            before = time.perf_counter_ns()
            wall = time.time_ns()
            after = time.perf_counter_ns()
            tries.append((after - before, wall - (before + after) // 2))
        self.ahead_ns = min(tries)[1]

    def now(self) -> int:
        """Monotonic nanoseconds, starting at the wall clock's first reading."""
        return time.perf_counter_ns() + self.ahead_ns

    def resolve(self, mark: Any) -> int | None:
        """A mark in nanoseconds of :meth:`now`; None while unknown."""
        return int(mark) + self.ahead_ns

    def after(self, work: Any, code: int) -> Any:
        """A mark of the end of ``work``, without waiting; None: only a wait shows the end."""
        return None

    def tie(self) -> None:
        """Nothing to do: marks are host times already."""

    def recycle(self, marks: list[Any]) -> None:
        """Nothing to do: marks are numbers."""


@dataclass(frozen=True)
class Offset:
    """Result of one exchange, all in nanoseconds.

    Attributes:
        at_ns: time of the exchange, on this rank's clock.
        offset_ns: lead of this clock over rank 0's.
        residual_ns: possible error of the offset: half the round trip, summed over the hops.
    """

    at_ns: int
    offset_ns: int
    residual_ns: int


class Exchange:
    """Clock exchange between the ranks of a process group; a collective call each time.

    Every rank asks the rank with its number without the lowest set bit. So the number of hops to
    rank 0 is the number of set bits. The ranks of one level ask at the same time. Ranks of one host
    share its monotonic clock, so one answer is exact for all of them.

    Args:
        distributed: ``torch.distributed``, initialised.
        clock: this rank's clock.
        host: a number for the host's clock; 0 = unknown.
        timeout_s: a rank that does not answer within this time ends the exchanges.
    """

    def __init__(
        self,
        distributed: Any,
        clock: HostClock,
        host: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._distributed, self._clock = distributed, clock
        self._host = _host() if host is None else host
        self._rank, self._world = distributed.get_rank(), distributed.get_world_size()
        # A separate group: the job's group may be NCCL, and a late rank must not harm it.
        self._group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def session(self) -> str:
        """A name for this start of the job, the same on all ranks."""
        import torch

        number = torch.tensor([self._clock.now()])
        self._distributed.broadcast(number, 0, group=self._group)
        return f"{int(number):x}"

    def run(self) -> Offset:
        """Ask another rank, then answer the ranks that ask this one."""
        offset, residual = self._ask() if self._rank else (0, 0)
        for other in asked_by(self._rank, self._world):
            self._answer(other, offset, residual)
        return Offset(self._clock.now(), offset, residual)

    def _ask(self) -> tuple[int, int]:
        import torch

        parent = self._rank & (self._rank - 1)
        question = torch.tensor([self._host])
        reply = torch.zeros(4, dtype=torch.int64)
        tries = []
        for _ in range(ROUNDS):
            before = self._clock.now()
            self._distributed.send(question, parent, group=self._group)
            self._distributed.recv(reply, parent, group=self._group)
            after = self._clock.now()
            theirs, residual, host, ahead = reply.tolist()
            if host and host == self._host:
                return self._clock.ahead_ns - ahead, residual
            tries.append((after - before, (before + after) // 2 - theirs, residual))
        trip, offset, residual = min(tries)
        return offset, residual + trip // 2

    def _answer(self, other: int, offset: int, residual: int) -> None:
        import torch

        question = torch.zeros(1, dtype=torch.int64)
        ahead = self._clock.ahead_ns - offset
        for _ in range(ROUNDS):
            self._distributed.recv(question, other, group=self._group)
            now = self._clock.now() - offset
            reply = torch.tensor([now, residual, self._host, ahead])
            self._distributed.send(reply, other, group=self._group)
            if self._host and int(question) == self._host:
                return


def _host() -> int:
    """A number for the clock that this process shares with others; 0 = unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        space = Path("/proc/self/ns/time").readlink()
    except OSError:
        return 0
    return int.from_bytes(hashlib.sha256(f"{boot}{space}".encode()).digest()[:7], "big")


def asked_by(rank: int, world: int) -> list[int]:
    """The ranks that ask ``rank``, in descending order of the ranks that depend on them."""
    bits = (rank & -rank).bit_length() - 1 if rank else max(0, (world - 1).bit_length())
    return [rank + (1 << bit) for bit in reversed(range(bits)) if rank + (1 << bit) < world]
