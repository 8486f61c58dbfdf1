"""A policy's view: the jobs that have arrived and have not ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from paceline.errors import QueueError
from paceline.scheduling.jobs import Array, Ints, JobList, Speeds


class Policy(Protocol):
    """A function that gives GPUs to the jobs of a queue.

    It returns [job of the queue] GPUs, 0 to wait. It may ask for a call at another time
    (``queue.wake``), and refuse a job for good (``queue.refuse``). A policy with a method
    ``prepare(queue)`` serves jobs that do not ask for a number of GPUs.
    """

    def __call__(self, queue: Queue, free: int, now: float) -> Ints:
        """The GPUs of every job; ``free`` are those that no job holds, ``now`` is in seconds."""


@dataclass
class Queue:
    """Jobs in the order of their arrival; arrays that begin with ``all_`` are of all jobs.

    Attributes:
        jobs, speeds: all jobs, and their speeds.
        total, node_gpus: GPUs of the cluster, and of one of its nodes.
        active: the jobs of the queue: its first ``n`` entries.
        rate: [all jobs] present units of work a second.
        pause: [all jobs] remaining seconds of a job's standstill.
        slowness: [all jobs] factor by which its slowest node slows it.
        refused: job -> why it never ran.
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
        """[job of the queue] its place among all jobs."""
        return self.active[: self.n]

    @property
    def asked(self) -> Ints:
        """[job of the queue] GPUs that it asks for."""
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
        """[job of the queue] seconds that it would still run on the GPUs that it asks for."""
        rows = self.rows
        remaining: Array = self.all_remaining[rows] / self.speeds.asked_rate[rows]
        return remaining

    @property
    def attained_gpu_s(self) -> Array:
        """[job of the queue] GPU-seconds that it has had."""
        attained: Array = self.all_attained[self.rows]
        return attained

    @property
    def arrived(self) -> list[int]:
        """Jobs that came since the policy's last call, as places among all jobs."""
        return self._fresh

    def wake(self, time_s: float) -> None:
        """Ask for another call at a time."""
        self.wake_s = min(self.wake_s, time_s)

    def refuse(self, row: int, reason: str) -> None:
        """Let a job (its place among all jobs) never run."""
        if self.all_attained[row] > 0:
            raise QueueError(f"job {self.jobs.job_id[row]} has run and cannot be refused")
        self.refused[row] = reason
        self._leaving.add(row)

    # The policy's answer to the replay.

    def arrive(self, row: int) -> None:
        """A job comes; one that no number of GPUs could run is refused."""
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
        """Take refused jobs out; returns their number, and sets ``kept`` if there are any."""
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
