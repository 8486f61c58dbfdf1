"""A Ray cluster for Paceline: calls are sent, and results return in any order.

Tested with Ray 2.60.0. Plain ``ray`` does not start if ``opentelemetry-proto`` is installed: its
agent takes that package's namespace for the API of OpenTelemetry. ``ray[default]`` installs the
API.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

from paceline.errors import FleetError
from paceline.extras import pip_install

A = TypeVar("A")
B = TypeVar("B")

#: Number of repetitions of a call after its process or node died.
RETRIES = 2

#: Running calls per processor of the cluster, enough that no processor waits for the driver.
PER_CPU = 2

#: Largest share of a node's memory for one call.
_MEMORY_SHARE = 0.9

#: Seconds to wait for nodes, and between two counts of them.
_WAIT_S, _COUNT_EVERY_S = 600, 5.0

_INSTALL = f"{pip_install('fleet')}, which brings ray[default]"


class DiedError(Exception):
    """All attempts of a call died."""


class RayCluster:
    """A connection to a cluster."""

    def __init__(self, address: str) -> None:
        """Connect, or start Ray on this machine without an address.

        Raises:
            FleetError: Ray is not installed, would not start, or cannot be reached.
        """
        self._ray = _import_ray()
        self._remote: dict[Callable[..., Any], Any] = {}
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            self._connect(address)
        self._cpus, self._counted = 0, -math.inf
        self._wait_for_cpus()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close([])

    @property
    def cpus(self) -> int:
        """Processors of all nodes, counted again from time to time, for nodes come and go."""
        if time.monotonic() - self._counted > _COUNT_EVERY_S:
            self._counted = time.monotonic()
            self._cpus = int(self._ray.cluster_resources().get("CPU", 0))
        return max(1, self._cpus)

    @property
    def node_bytes(self) -> int:
        """Largest memory for a call, over nodes with processors."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node.get("Alive")]
        sizes = [int(node.get("memory", 0)) for node in nodes if node.get("CPU")]
        return int(max(sizes, default=0) * _MEMORY_SHARE)

    def _wait_for_cpus(self) -> None:
        """Wait for processors: a new cluster may have only a head without any."""
        end = time.monotonic() + _WAIT_S
        while self._ray.cluster_resources().get("CPU", 0) < 1:
            if time.monotonic() > end:
                raise FleetError(f"no node of the Ray cluster has a processor after {_WAIT_S} s")
            time.sleep(1)

    def call(self, function: Callable[..., Any], *arguments: Any, memory: int = 0) -> Any:
        """Start a call of an importable function; returns a handle for its result.

        Args:
            function: a function of a module that all nodes have.
            arguments: its arguments; values from :meth:`put` are sent to each node once.
            memory: bytes that Ray reserves for it.
        """
        remote = self._remote.get(function)
        if remote is None:
            remote = self._ray.remote(num_cpus=1, max_retries=RETRIES)(function)
            self._remote[function] = remote
        return remote.options(memory=memory).remote(*arguments)

    def actor(self, kind: type) -> Any:
        """An actor of a class in a module that all nodes have; Ray restarts it if it dies.

        Two of its methods may run at once. A call that runs when it dies is repeated.
        """
        remote = self._ray.remote(num_cpus=1)(kind)
        return remote.options(max_restarts=-1, max_task_retries=-1, max_concurrency=2).remote()

    def done(
        self, calls: Sequence[Any], wait_s: float = 0.0, *, all_of_them: bool = False
    ) -> list[Any]:
        """The finished ones of some calls, after at most ``wait_s``."""
        n = len(calls) if all_of_them else 1
        done, _ = self._ray.wait(list(calls), num_returns=n, timeout=wait_s)
        return list(done)

    def put(self, value: Any) -> Any:
        """Keep a value on the cluster for several calls."""
        return self._ray.put(value)

    def next_done(self, calls: Iterable[Any]) -> Any:
        """Wait for one of these calls."""
        done, _ = self._ray.wait(list(calls), num_returns=1)
        return done[0]

    def result(self, call: Any) -> Any:
        """Result of a call.

        Raises:
            FleetError: the call raised an error.
            DiedError: its processes died.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.RayTaskError as error:
            raise FleetError(" ".join(str(error.cause).split())) from None
        except errors.RayError as error:
            raise DiedError(" ".join(str(error).split())[:200]) from None

    def close(self, calls: Iterable[Any]) -> None:
        """Stop these calls, and Ray if it was started here."""
        for call in calls:
            self._ray.cancel(call, force=True)
        if self._is_ours:
            self._ray.shutdown()

    def map(self, function: Callable[[A], B], items: Sequence[A]) -> Iterator[B]:
        """Results of a map over items, in order; items are sent in batches.

        Raises:
            FleetError: the function raised an error, or a node died too often.
        """
        size = max(1, len(items) // (2 * PER_CPU * self.cpus))
        batches = iter([items[i : i + size] for i in range(0, len(items), size)])
        shared, calls = self.put(function), deque[Any]()
        for batch in batches:
            calls.append(self.call(_map_batch, shared, batch))
            if len(calls) >= PER_CPU * self.cpus:
                yield from self._batch(calls.popleft())
        while calls:
            yield from self._batch(calls.popleft())

    def _batch(self, call: Any) -> list[Any]:
        try:
            results: list[Any] = self.result(call)
        except DiedError as error:
            raise FleetError(f"processes of the Ray cluster die: {error}") from None
        return results

    def _connect(self, address: str) -> None:
        try:
            self._ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level="error",
                configure_logging=False,
            )
        except Exception as error:  # Ray raises many kinds, such as timeouts and its own
            where = f"the Ray cluster {address}" if address else "Ray on this machine"
            raise FleetError(
                f"{where} does not answer: {' '.join(str(error).split())[:300]}; {_INSTALL}"
            ) from None


def _map_batch(function: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """The function that runs in a process of Ray."""
    return [function(item) for item in items]


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
    except ModuleNotFoundError:  # its parent package is missing, too
        return False
