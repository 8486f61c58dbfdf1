"""Workers as actors of a Ray cluster: each takes sessions from the store's queue.

Tested with Ray 2.60. The queue is the same as for ``paceline work`` on a machine. If an actor or
node dies, its session is taken again once the worker's lease ends.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.errors import MonitorError
from paceline.fleet.ray_cluster import RayCluster
from paceline.monitor.config import Config
from paceline.monitor.instances.worker import Worker
from paceline.monitor.log import configure, log

#: Seconds between checks of the actors, and for actors to return their sessions.
_LOOK_S, _STOP_S = 5.0, 60.0


class Actor:
    """A worker on a node of the cluster, with a scratch folder there."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def work(self, config: Config) -> None:
        """Work until :meth:`stop`.

        Raises:
            MonitorError: store or bucket cannot be used from this node.
        """
        configure(config.log_level)
        with tempfile.TemporaryDirectory(prefix="paceline-work-") as folder:
            Worker(replace(config, data=Path(folder))).run_until(self._over)

    def stop(self) -> None:
        """Return running sessions to the queue, and stop."""
        self._over.set()


def run_on_ray(config: Config, address: str, n: int, begin: Callable[[], threading.Event]) -> None:
    """Run ``n`` workers on a Ray cluster until an event is set, then stop them.

    An actor whose process or node dies is replaced, on any node.

    Args:
        config: settings of each worker; ``data`` is ignored.
        address: address of the cluster; "" = start Ray on this machine.
        n: workers.
        begin: returns the event. It is called after Ray's start, for Ray sets signal handlers, too.

    Raises:
        FleetError: Ray is not installed, or the cluster does not answer.
        MonitorError: a worker cannot use store or bucket.
    """
    with RayCluster(address) as cluster:
        over = begin()
        actors = [cluster.actor(Actor) for _ in range(n)]
        calls = [
            actor.work.remote(replace(config, instance=f"{config.instance}-{number}"))
            for number, actor in enumerate(actors)
        ]
        print(f"{n} workers on Ray", flush=True)
        try:
            while not over.wait(_LOOK_S):
                _check(cluster, calls)
        finally:
            _stop(cluster, actors, calls)


def _check(cluster: RayCluster, calls: Sequence[Any]) -> None:
    for call in cluster.done(calls):
        cluster.result(call)  # raises if a worker ended before its stop
        raise MonitorError("a worker on Ray has ended unexpectedly")


def _stop(cluster: RayCluster, actors: Sequence[Any], calls: Sequence[Any]) -> None:
    for actor in actors:
        actor.stop.remote()
    left = len(calls) - len(cluster.done(calls, _STOP_S, all_of_them=True))
    if left:
        log(logging.WARNING, "workers on Ray were cut off", n=left)
