"""Engines that run the tasks of a study on this machine; ``engine_ray`` uses a Ray cluster."""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from paceline.fleet.perform import Performer
from paceline.fleet.supervisor import Supervisor
from paceline.fleet.task import Outcome, Settings, Task

#: Share of the free memory for analyses if no limit is given.
_MEMORY_SHARE = 0.8


class Engine(Protocol):
    """An engine: the driver submits tasks while there is room, and takes finished ones."""

    name: str

    def has_room(self, task: Task) -> bool:
        """Whether a task may be submitted now; true if none is under way."""

    def submit(self, task: Task) -> None:
        """Begin a task."""

    def next_finished(self) -> list[Outcome]:
        """Wait until tasks are finished; at least one must be under way.

        Raises:
            FleetError: the study cannot go on.
        """

    def close(self) -> None:
        """End running work."""


class InProcessEngine:
    """Does tasks in this process, without time limits, for buckets that only this process sees."""

    name = "here"

    def __init__(self, settings: Settings) -> None:
        self._performer = Performer(settings)
        self._tasks: list[Task] = []

    def has_room(self, task: Task) -> bool:
        """One at a time."""
        return not self._tasks

    def submit(self, task: Task) -> None:
        """Keep the task."""
        self._tasks.append(task)

    def next_finished(self) -> list[Outcome]:
        """Do the task."""
        return [self._performer.perform(self._tasks.pop())]

    def close(self) -> None:
        """Do nothing: no task is under way."""


class LocalEngine:
    """Does tasks in processes of this machine, as many at once as its memory allows."""

    name = "local"

    def __init__(self, settings: Settings, processes: int, memory_bytes: int) -> None:
        self._settings = settings
        self._processes = processes
        self._memory_bytes = memory_bytes
        self._pool = ThreadPoolExecutor(processes, "fleet")
        self._watch = threading.local()
        self._supervisors: list[Supervisor] = []
        self._under_way: dict[Future[Outcome], int] = {}
        self._finished: queue.SimpleQueue[Future[Outcome]] = queue.SimpleQueue()

    def has_room(self, task: Task) -> bool:
        """Whether a process is idle and its memory is free."""
        if not self._under_way:
            return True
        taken = sum(self._under_way.values())
        return (
            len(self._under_way) < self._processes
            and taken + task.memory_bytes <= self._memory_bytes
        )

    def submit(self, task: Task) -> None:
        """Give the task to an idle process."""
        future = self._pool.submit(self._run, task)
        self._under_way[future] = task.memory_bytes
        future.add_done_callback(self._finished.put)

    def next_finished(self) -> list[Outcome]:
        """The finished tasks by now, at least one."""
        futures = [self._finished.get()]
        while not self._finished.empty():
            futures.append(self._finished.get())
        for future in futures:
            del self._under_way[future]
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the processes."""
        for supervisor in self._supervisors:
            supervisor.close()
        self._pool.shutdown(cancel_futures=True)
        for supervisor in self._supervisors:
            supervisor.let_go()

    def _run(self, task: Task) -> Outcome:
        supervisor = getattr(self._watch, "supervisor", None)
        if supervisor is None:
            supervisor = self._watch.supervisor = Supervisor(self._settings)
            self._supervisors.append(supervisor)
        return supervisor.run(task)


def cpu_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_here() -> int:
    """The share of this machine's free memory that analyses may take, bytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            fields = dict(line.split(":", 1) for line in file)
        return int(int(fields["MemAvailable"].split()[0]) * 1024 * _MEMORY_SHARE)
    except (OSError, KeyError, ValueError):
        return 4 << 30
