"""Outcome of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paceline.scheduling.jobs import Array, Ints, JobList

#: Tolerance in seconds for ends after a deadline by rounding.
ROUNDING_S = 1e-3


@dataclass(frozen=True)
class Timeline:
    """Changes of jobs' GPUs, in the order of time.

    Attributes:
        time_s: [change] seconds.
        job: [change] the job's index in the list.
        gpus: [change] its GPUs from then on; the end of a job is not a change.
    """

    time_s: Array
    job: Ints
    gpus: Ints

    def __len__(self) -> int:
        return len(self.time_s)


@dataclass(frozen=True, kw_only=True)
class QueueReplay:
    """A queue under a policy.

    Attributes:
        jobs: the jobs.
        policy: its name.
        gpus: GPUs of the cluster.
        start_s: [job] time of its first run; nan = never.
        end_s: [job] time of its end; nan = refused.
        gpu_seconds: [job] GPU-seconds that it held.
        restarts: [job] number of changes of its GPUs after its start.
        refused: job -> reason why it never ran.
        timeline: all changes.
    """

    jobs: JobList
    policy: str
    gpus: int
    start_s: Array
    end_s: Array
    gpu_seconds: Array
    restarts: Ints
    refused: Mapping[int, str]
    timeline: Timeline

    @cached_property
    def jct_s(self) -> Array:
        """[job] seconds from its submission to its end; nan = refused."""
        jct: Array = self.end_s - self.jobs.submitted_s
        return jct

    @cached_property
    def wait_s(self) -> Array:
        """[job] seconds from its submission to its start; nan = refused."""
        wait: Array = self.start_s - self.jobs.submitted_s
        return wait

    @cached_property
    def met(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """[job] whether it has a deadline and met it."""
        met: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.isfinite(self.jobs.deadline_s) & (
            self.end_s <= self.jobs.deadline_s + ROUNDING_S
        )
        return met

    @property
    def deadline_ratio(self) -> float | None:
        """Share of the jobs with a deadline that met it; None = there are none."""
        with_deadline = int(np.isfinite(self.jobs.deadline_s).sum())
        return int(self.met.sum()) / with_deadline if with_deadline else None

    @property
    def late(self) -> int:
        """Jobs that ran and ended after their deadline."""
        return int((self.end_s > self.jobs.deadline_s + ROUNDING_S).sum())

    @property
    def makespan_s(self) -> float:
        """Seconds from the first submission to the last end; 0 = nothing ran."""
        ended = self.end_s[np.isfinite(self.end_s)]
        return float(ended.max() - self.jobs.submitted_s[0]) if len(ended) else 0.0

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that jobs held."""
        return float(self.gpu_seconds.sum()) / 3600

    @property
    def utilisation(self) -> float:
        """Share of the cluster's GPU-time during the makespan that jobs held."""
        capacity = self.gpus * self.makespan_s
        return float(self.gpu_seconds.sum()) / capacity if capacity else 0.0

    def gpus_over_time(self) -> tuple[Array, Ints]:
        """Times, and the number of used GPUs from each time on."""
        held = np.zeros(len(self.jobs), dtype=np.int64)
        changes: list[tuple[float, int]] = []
        columns = (self.timeline.time_s.tolist(), self.timeline.job.tolist())
        for time_s, job, gpus in zip(*columns, self.timeline.gpus.tolist(), strict=True):
            changes.append((time_s, gpus - int(held[job])))
            held[job] = gpus
        changes += [
            (float(end), -int(held[i])) for i, end in enumerate(self.end_s) if np.isfinite(end)
        ]
        changes.sort()
        times = np.array([time_s for time_s, _ in changes])
        used = np.cumsum([change for _, change in changes], dtype=np.int64)
        last = np.append(times[1:] != times[:-1], True) if len(times) else np.zeros(0, dtype=bool)
        return times[last], used[last]
