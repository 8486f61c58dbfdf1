"""Membership of one process among those that share a store: beats and leases."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from paceline.monitor.log import log
from paceline.monitor.store import leases
from paceline.monitor.store.health import problem_in
from paceline.monitor.store.leases import LeaseLost
from paceline.monitor.store.step_log import SHARDS

#: Seconds between beats of an instance, and seconds without a beat until others take over.
BEAT_S, LIFE_S = 2.0, 10.0
#: Work that one instance does for all: sending alerts, removing old data.
ALERTS, UPKEEP = "role-alerts", "role-upkeep"
_SHARD, _ROLE = "shard-", "role-"

Names = set[str]


def shard_of(job_id: int) -> int:
    """The shard of a job."""
    return job_id % SHARDS


def shards_in(names: Iterable[str]) -> list[int]:
    """Numbers of the shards among some leases."""
    return sorted(int(name.removeprefix(_SHARD)) for name in names if name.startswith(_SHARD))


def _lease_of(job_id: int) -> str:
    return f"{_SHARD}{shard_of(job_id):02d}"


class Membership:
    """Beats in a separate thread.

    Args:
        engine: the database.
        name: name of the instance for users; a number is added.
        kind: "serve", or "work" (owns nothing).
        changed: called with gained and lost leases.
    """

    def __init__(
        self, engine: Engine, name: str, kind: str, changed: Callable[[Names, Names], None]
    ) -> None:
        self._engine, self._name, self._kind, self._changed = engine, name, kind, changed
        self.id = f"{name}-{secrets.token_hex(6)}"
        self.serving = 1
        self._leases: Mapping[str, int] = {}
        self._ahead_s = time.time() - time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-beat", daemon=True)

    def clock(self) -> float:
        """Seconds since 1970 by the database's clock at the last beat."""
        return time.monotonic() + self._ahead_s

    def join(self) -> None:
        """Join the instances, without leases."""
        if self._kind == "serve":
            leases.declare(self._engine, [ALERTS, UPKEEP, *map(_lease_of, range(SHARDS))])
        self._beat()

    def start(self) -> None:
        """Take leases, and continue beating."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; leases stay until :meth:`leave`, or for ``LIFE_S``."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def leave(self) -> None:
        """Release all leases."""
        self._leases = {}
        leases.leave(self._engine, self.id)

    def owns(self, name: str) -> bool:
        """Whether this instance owned a lease at the last beat."""
        return name in self._leases

    @property
    def shards(self) -> list[int]:
        """Shards that this instance owned at the last beat."""
        return shards_in(self._leases)

    @property
    def n_shards(self) -> int:
        """Number of owned shards."""
        return len(self.shards)

    def fence_of(self, job_id: int) -> int:
        """The fencing number of a job's lease.

        Raises:
            LeaseLost: this instance does not own it.
        """
        fence = self._leases.get(_lease_of(job_id))
        if fence is None:
            raise LeaseLost(f"job {job_id} belongs to another instance")
        return fence

    def held(self, connection: Connection, job_ids: Iterable[int]) -> set[int]:
        """The jobs among some that this instance owns, locked until the transaction ends."""
        names = {job_id: _lease_of(job_id) for job_id in job_ids}
        ours = self._still(connection, set(names.values()))
        return {job_id for job_id, name in names.items() if name in ours}

    def check(self, name: str) -> None:
        """Check in the database that this instance owns a lease now.

        Raises:
            LeaseLost: it does not.
        """
        with self._engine.begin() as connection:
            if not self._still(connection, {name}):
                raise LeaseLost(f"{name} belongs to another instance")

    def _still(self, connection: Connection, names: Names) -> Names:
        believed = {name: self._leases[name] for name in names if name in self._leases}
        return leases.still_held(connection, self.id, believed) if believed else set()

    def _run(self) -> None:
        while True:
            try:
                self.round()
            except SQLAlchemyError as error:
                log(logging.ERROR, "no beat", instance=self.id, reason=problem_in(error))
            except Exception as error:
                log(logging.ERROR, "no beat", instance=self.id, reason=str(error)[:500])
            if self._stop.wait(BEAT_S):
                return

    def _beat(self) -> leases.Beat:
        beat = leases.beat(self._engine, self.id, self._name, self._kind, LIFE_S)
        self._ahead_s, self.serving = beat.now - time.monotonic(), max(1, beat.serving)
        return beat

    def round(self) -> None:
        """Beat, and take or release leases for a fair share."""
        beat = self._beat()
        if self._kind != "serve":
            return
        held = dict(beat.held)
        fair = math.ceil(SHARDS / self.serving)
        shards = sorted(name for name in held if name.startswith(_SHARD))
        surplus = shards[fair:]
        for name in surplus:
            del held[name]
        if len(shards) < fair:
            held |= leases.take(self._engine, self.id, _SHARD, fair - len(shards))
        held |= leases.take(self._engine, self.id, _ROLE, 2)
        before, self._leases = self._leases, held
        gained = {name for name, fence in held.items() if before.get(name) != fence}
        lost = {name for name, fence in before.items() if held.get(name) != fence}
        if gained or lost:
            fields = {"gained": sorted(gained), "lost": sorted(lost), "serving": self.serving}
            log(logging.INFO, "leases", instance=self.id, **fields)
            self._changed(gained, lost)
        if surplus:  # last, for nothing works on them now
            leases.give_back(self._engine, self.id, surplus)
        leases.forget_dead(self._engine)
