"""A policy's view of the queue: jobs that have arrived and not ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from paceline.errors import QueueError
from paceline.scheduling.jobs import Array, Ints, JobList, Speeds


class Policy(Protocol):
    """A function that gives GPUs to the jobs of a queue.

    It returns [job of the queue] GPUs, 0 to wait. It may request a call at another time
    (``queue.wake``), and refuse a job permanently (``queue.refuse``). A policy with a method
    ``prepare(queue)`` serves jobs without a requested number of GPUs.
    """

    def __call__(self, queue: Queue, free: int, now: float) -> Ints:
        """The GPUs of every job; ``free`` is the number of free GPUs, ``now`` is in seconds."""


@dataclass
class Queue:
    """Jobs in the order of their arrival; arrays named ``all_...`` cover all jobs.

    Attributes:
        jobs, speeds: all jobs, and their speeds.
        total, node_gpus: GPUs of the cluster, and of one of its nodes.
        active: indices of the jobs of the queue, in its first ``n`` entries.
        rate: [all jobs] present units of work per second.
        pause: [all jobs] remaining seconds of a job's standstill.
        slowness: [all jobs] slowdown factor of its slowest node.
        refused: job -> reason why it never ran.
    """

    jobs: JobList
    speeds: Speeds
    total: int
    node_gpus: int
    now_s: float = 0.0
    wake_s: float = np.inf
    rescale_s: float = 0.0
    slot_s: float = 0.0
    n: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    kept: Ints | None = None

    def __post_init__(self) -> None:
        size = len(self.jobs)
        self.active = np.zeros(size, dtype=np.int64)
        self.all_remaining = self.jobs.work.copy()
        self.all_gpus = np.zeros(size, dtype=np.int64)
        self.all_attained = np.zeros(size)
        self.rate = np.zeros(size)
        self.pause = np.zeros(size)
        self.slowness = np.ones(size)
        self._fresh: list[int] = []
        self._leaving: set[int] = set()

    def __len__(self) -> int:
        return self.n

    @property
    def rows(self) -> Ints:
        """[job of the queue] its index among all jobs."""
        return self.active[: self.n]

    @property
    def asked(self) -> Ints:
        """[job of the queue] requested GPUs."""
        asked: Ints = self.jobs.gpus[self.rows]
        return asked

    @property
    def gpus(self) -> Ints:
        """[job of the queue] GPUs that it holds."""
        gpus: Ints = self.all_gpus[self.rows]
        return gpus

    @property
    def submitted_s(self) -> Array:
        """[job of the queue] seconds."""
        submitted: Array = self.jobs.submitted_s[self.rows]
        return submitted

    @property
    def deadline_s(self) -> Array:
        """[job of the queue] seconds, inf = none."""
        deadline: Array = self.jobs.deadline_s[self.rows]
        return deadline

    @property
    def remaining_s(self) -> Array:
        """[job of the queue] remaining seconds on the requested GPUs."""
        rows = self.rows
        remaining: Array = self.all_remaining[rows] / self.speeds.asked_rate[rows]
        return remaining

    @property
    def attained_gpu_s(self) -> Array:
        """[job of the queue] GPU-seconds so far."""
        attained: Array = self.all_attained[self.rows]
        return attained

    @property
    def arrived(self) -> list[int]:
        """Jobs that arrived since the policy's last call, as indices among all jobs."""
        return self._fresh

    def wake(self, time_s: float) -> None:
        """Request another call at a time."""
        self.wake_s = min(self.wake_s, time_s)

    def refuse(self, row: int, reason: str) -> None:
        """Refuse a job (its index among all jobs) permanently."""
        if self.all_attained[row] > 0:
            raise QueueError(f"job {self.jobs.job_id[row]} has run and cannot be refused")
        self.refused[row] = reason
        self._leaving.add(row)

    # The policy's answer to the replay.

    def arrive(self, row: int) -> None:
        """Add an arriving job; it is refused if no number of GPUs can run it."""
        asked = int(self.jobs.gpus[row])
        if not self.jobs.curve[row] and asked > self.total:
            self.refused[row] = f"asks for {asked:,} GPUs of a cluster of {self.total:,}"
        elif not self.speeds.rates[self.speeds.row[row]].any():
            self.refused[row] = f"runs on no number of GPUs up to {self.total:,}"
        elif asked > self.total:
            self.refused[row] = f"asks for {asked:,} GPUs of a cluster of {self.total:,}"
        else:
            self.active[self.n] = row
            self.n += 1
            self._fresh.append(row)

    def drop_refused(self) -> int:
        """Remove refused jobs; returns their number, and sets ``kept`` if there are any."""
        self._fresh = []
        self.kept = None
        if not self._leaving:
            return 0
        stays = np.array([int(row) not in self._leaving for row in self.rows], dtype=bool)
        self.kept = np.flatnonzero(stays)
        rows = self.rows[stays]
        dropped = self.n - len(rows)
        self.active[: len(rows)] = rows
        self.n = len(rows)
        self._leaving = set()
        return dropped
