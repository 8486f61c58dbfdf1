"""Tasks on a Ray cluster: batches of small traces, each in a watched process of its node.

Ray places the batches by their memory and starts those anew whose node or process died. Held
against Ray 2.60.0; plain ``ray`` does not start beside ``opentelemetry-proto``, ``ray[default]``
does.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from paceline.errors import FleetError, PacelineError
from paceline.fleet.keys import analysis_version
from paceline.fleet.supervisor import RETRIES, Supervisor
from paceline.fleet.task import Outcome, Settings, Task

#: Batches under way per processor of the cluster: enough that none waits for the driver.
_PER_CPU = 2

#: A batch ends with the task that makes it this large; larger traces are batches of their own.
_BATCH_BYTES = 4 << 20
_BATCH_TASKS = 16

#: Of a node's memory, what one analysis may take.
_MEMORY_SHARE = 0.9

_INSTALL = "pip install 'paceline[fleet]', which brings ray[default]"

#: One in each process of Ray: its own child does the analyses.
_supervisors: dict[str, Supervisor] = {}


def do_batch(settings_json: str, tasks: list[Task]) -> list[Outcome]:
    """What runs in a process of Ray.

    Raises:
        RuntimeError: the node has another version of Paceline, or the study cannot be written.
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
        self, settings: Settings, address: str, memory_bytes: int | None, n_tasks: int
    ) -> None:
        """Connect to the cluster, or start Ray here where no address is given.

        Args:
            settings: of the study.
            address: of the cluster; ``auto`` for the one of this machine.
            memory_bytes: for one trace; None: what the largest node has.
            n_tasks: that will come: few ones make small batches.

        Raises:
            FleetError: Ray is not installed, would not start, or cannot be reached.
        """
        self._ray = _import_ray()
        self._started = not self._ray.is_initialized()
        if self._started:
            self._connect(address)
        node_bytes = self._node_memory()
        limit = min(memory_bytes or node_bytes, node_bytes)
        self._node_bytes = limit
        self._settings = Settings(
            **{**vars(settings), "memory_bytes": limit, "options": settings.options}
        ).to_json()
        self._do = self._ray.remote(num_cpus=1, max_retries=RETRIES)(do_batch)
        cpus = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._most = _PER_CPU * cpus
        self._batch_tasks = min(_BATCH_TASKS, max(1, n_tasks // (2 * _PER_CPU * cpus)))
        self._batch: list[Task] = []
        self._under_way: dict[Any, list[Task]] = {}
        self._again: list[Task] = []

    def has_room(self, task: Task) -> bool:
        """Whether the cluster would soon be idle."""
        return len(self._under_way) < self._most

    def submit(self, task: Task) -> None:
        """Put it into the batch, which begins once it is large enough."""
        self._batch.append(task)
        size = sum(waiting.size for waiting in self._batch)
        if size >= _BATCH_BYTES or len(self._batch) >= self._batch_tasks:
            self._begin()

    def next_finished(self) -> list[Outcome]:
        """The next batch that is finished."""
        self._begin()
        done, _ = self._ray.wait(list(self._under_way), num_returns=1)
        return [outcome for reference in done for outcome in self._outcomes(reference)]

    def close(self) -> None:
        """Stop what is under way, and Ray where it was started here."""
        for reference in self._under_way:
            self._ray.cancel(reference, force=True)
        if self._started:
            self._ray.shutdown()

    def _connect(self, address: str) -> None:
        try:
            self._ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level="error",
                configure_logging=False,
            )
        except Exception as error:  # Ray raises many kinds, timeouts and its own among them
            where = f"the Ray cluster {address}" if address else "Ray on this machine"
            raise FleetError(
                f"{where} does not answer: {' '.join(str(error).split())[:300]}; {_INSTALL}"
            ) from None

    def _node_memory(self) -> int:
        """What the node with the most memory gives to one task, bytes."""
        nodes = [node for node in self._ray.nodes() if node.get("Alive")]
        sizes = [int(node["Resources"].get("memory", 0)) for node in nodes]
        return int(max(sizes, default=0) * _MEMORY_SHARE)

    def _begin(self) -> None:
        if self._batch:
            self._start(self._batch)
            self._batch = []

    def _start(self, tasks: list[Task]) -> None:
        need = min(max(task.memory_bytes for task in tasks), self._node_bytes)
        reference = self._do.options(memory=need).remote(self._settings, tasks)
        self._under_way[reference] = tasks

    def _outcomes(self, reference: Any) -> list[Outcome]:
        """The outcomes of a batch; where its process died too often, each task goes alone."""
        tasks = self._under_way.pop(reference)
        errors = self._ray.exceptions
        try:
            outcomes: list[Outcome] = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise FleetError(" ".join(str(error.cause).split())) from None
        except errors.RayError as error:
            if len(tasks) > 1:
                for task in tasks:
                    self._start([task])
                return []
            reason = " ".join(str(error).split())[:200]
            text = f"its process on Ray was killed {1 + RETRIES} times: {reason}"
            return [Outcome(tasks[0].name, rule="killed", error=text)]
        return outcomes


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise FleetError(f"the engine ray needs Ray ({error}): {_INSTALL}") from None
    if is_installed("opentelemetry.proto") and not is_installed("opentelemetry.metrics"):
        raise FleetError(
            "Ray would not start: its agent takes the namespace of opentelemetry-proto for the API "
            f"of OpenTelemetry and lacks opentelemetry.metrics; {_INSTALL}"
        )
    return ray


def is_installed(module: str) -> bool:
    """Whether a module could be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package around it
        return False
