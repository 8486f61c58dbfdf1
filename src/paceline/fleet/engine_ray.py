"""Tasks on a Ray cluster: batches of small traces, each in a watched process of its node.

Ray places the batches by their memory, and repeats a batch if its node or process died.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from paceline.errors import PacelineError
from paceline.fleet.keys import analysis_version
from paceline.fleet.ray_cluster import PER_CPU, RETRIES, DiedError, RayCluster
from paceline.fleet.supervisor import Supervisor
from paceline.fleet.task import Outcome, Settings, Task

#: Size that closes a batch; larger traces form their own batches.
_BATCH_BYTES = 4 << 20
_BATCH_TASKS = 16

#: One supervisor in each process of Ray; its child process does the analyses.
_supervisors: dict[str, Supervisor] = {}


def do_batch(settings_json: str, tasks: list[Task]) -> list[Outcome]:
    """The function that runs in a process of Ray.

    Raises:
        RuntimeError: the node has a different version of Paceline, or the study cannot be written.
    """
    settings = Settings.from_json(settings_json)
    here = analysis_version()
    if here != settings.version:
        raise RuntimeError(
            f"the node {os.uname().nodename} has another version of Paceline ({here}, the driver "
            f"{settings.version}); install the same on both"
        )
    supervisor = _supervisors.get(settings_json)
    if supervisor is None:
        supervisor = _supervisors[settings_json] = Supervisor(settings)
    try:
        return [supervisor.run(task) for task in tasks]
    except PacelineError as error:
        raise RuntimeError(str(error)) from None


class RayEngine:
    """Does tasks on a Ray cluster."""

    name = "ray"

    def __init__(
        self, settings: Settings, cluster: RayCluster, memory_bytes: int | None, n_tasks: int
    ) -> None:
        """Prepare the engine.

        Args:
            settings: settings of the study.
            cluster: the cluster that runs it.
            memory_bytes: memory for one trace; None: all of the largest node.
            n_tasks: number of expected tasks; few tasks get small batches.
        """
        self._cluster = cluster
        node_bytes = cluster.node_bytes
        self._limit = min(memory_bytes or node_bytes, node_bytes)
        self._settings = replace(settings, memory_bytes=self._limit).to_json()
        self._n_tasks = n_tasks
        self._batch: list[Task] = []
        self._under_way: dict[Any, list[Task]] = {}

    def has_room(self, task: Task) -> bool:
        """Whether the cluster would soon be idle."""
        return len(self._under_way) < PER_CPU * self._cluster.cpus

    def submit(self, task: Task) -> None:
        """Add a task to the batch, which starts once it is large enough."""
        self._batch.append(task)
        size = sum(waiting.size for waiting in self._batch)
        fair = self._n_tasks // (2 * PER_CPU * self._cluster.cpus)
        if size >= _BATCH_BYTES or len(self._batch) >= min(_BATCH_TASKS, max(1, fair)):
            self._begin()

    def next_finished(self) -> list[Outcome]:
        """The outcomes of the next batch; none if its tasks are repeated singly."""
        self._begin()
        return self._outcomes(self._cluster.next_done(self._under_way))

    def close(self) -> None:
        """Stop running work."""
        self._cluster.close(self._under_way)

    def _begin(self) -> None:
        if self._batch:
            self._start(self._batch)
            self._batch = []

    def _start(self, tasks: list[Task]) -> None:
        need = min(max(task.memory_bytes for task in tasks), self._limit)
        call = self._cluster.call(do_batch, self._settings, tasks, memory=need)
        self._under_way[call] = tasks

    def _outcomes(self, call: Any) -> list[Outcome]:
        tasks = self._under_way.pop(call)
        try:
            outcomes: list[Outcome] = self._cluster.result(call)
        except DiedError as error:
            if len(tasks) > 1:
                for task in tasks:
                    self._start([task])
                return []
            text = f"its process on Ray was killed {1 + RETRIES} times: {error}"
            return [Outcome(tasks[0].name, rule="killed", error=text)]
        return outcomes
