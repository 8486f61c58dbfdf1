"""Reads the shared log of step times into the detectors of owned jobs, in order and complete."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from paceline.monitor.detectors import MAX_WAITING, Detectors
from paceline.monitor.instances.membership import shard_of
from paceline.monitor.log import log
from paceline.monitor.step_files import Batch, StepFile, decode
from paceline.monitor.store import jobs, step_log
from paceline.monitor.store.health import problem_in
from paceline.monitor.store.jobs import JobKey
from paceline.monitor.store.step_log import Logged, Place

#: Seconds between reads of the log, and most rows per read.
POLL_S, _ROWS = 0.25, 1000
_MAX_SEQ = 2**62


class LogFile(StepFile):
    """The part of the log of one job, for its detector.

    Args:
        folder: folder of the detector.
        engine: the database.
        job_id: number of the job.
        place: the place up to which the saved detector has seen the log.
    """

    def __init__(self, folder: Path, engine: Engine, job_id: int, place: Place) -> None:
        self.folder, self._engine, self._job_id, self._place = folder, engine, job_id, place
        self.damaged_bytes = 0

    def read(self, since: float = 0.0) -> Iterator[Batch]:
        """The kept batches, in order of arrival."""
        return in_order(step_log.of_job(self._engine, self._job_id, (0, 0), since))

    def read_behind(self, seen_at: float) -> Iterator[Batch]:
        """The batches that the detector may lack."""
        return in_order(step_log.of_job(self._engine, self._job_id, self._place))


def in_order(rows: Iterable[Logged]) -> Iterator[Batch]:
    """The batches of rows, with non-decreasing times."""
    at = 0.0
    for row in rows:
        at = max(at, row.at)
        yield replace(decode(row.block), at=at, place=row.place)


class LogReader:
    """Feeds the detectors of owned shards.

    Args:
        engine: the database.
        detectors: the detectors to feed.
    """

    def __init__(self, engine: Engine, detectors: Detectors) -> None:
        self._engine, self._detectors = engine, detectors
        self._lock = threading.Lock()
        self._gained: set[int] = set()
        self._from: dict[int, int] = {}  # shard -> first position to read
        self._after: Place = (0, 0)
        self._at = 0.0
        self._keys: dict[int, JobKey] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-reader", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def change(self, gained: Iterable[int], lost: Iterable[int]) -> list[JobKey]:
        """Change the shards to read; returns the known jobs of lost shards."""
        with self._lock:
            for shard in lost:
                self._from.pop(shard, None)
            gone = set(lost)
            self._gained = (self._gained - gone) | set(
                gained
            )  # a shard may be both, with a new fence
            return [key for job_id, key in self._keys.items() if shard_of(job_id) in gone]

    def _run(self) -> None:
        while not self._stop.is_set():
            is_more = False
            try:
                is_more = self.round()
            except SQLAlchemyError as error:
                log(logging.ERROR, "store", error=problem_in(error))
            except Exception as error:
                log(logging.ERROR, "failed", what="the log of step times", reason=str(error)[:500])
            if not is_more:
                self._stop.wait(POLL_S)

    def round(self) -> bool:
        """Read new rows; returns whether there are more."""
        if self._detectors.n_waiting > MAX_WAITING:
            return False
        before = step_log.horizon(self._engine)
        self._take_up(before)
        with self._lock:
            shards = dict(self._from)
        rows = step_log.between(self._engine, list(shards), self._after, before, _ROWS)
        keys = self._keys_of({row.job_id for row in rows})
        for row in rows:
            key = keys.get(row.job_id)
            if key is not None and row.place[0] >= shards[shard_of(row.job_id)]:
                self._at = max(self._at, row.at)
                batch = replace(decode(row.block), at=self._at, place=row.place)
                self._detectors.feed(key, batch)
            self._after = row.place
        if len(rows) < _ROWS:
            self._after = max(self._after, (before - 1, _MAX_SEQ))
        return len(rows) == _ROWS

    def _take_up(self, before: int) -> None:
        """Take up the jobs of new shards with earlier rows; later rows are read in rounds."""
        with self._lock:
            gained = set(self._gained)
        if not gained:
            return
        numbers = step_log.unread_jobs(self._engine, sorted(gained), before)
        keys = list(self._keys_of(numbers).values())
        with self._lock:
            self._from |= dict.fromkeys(gained & self._gained, before)
            self._gained -= gained
        self._detectors.resume(keys)

    def _keys_of(self, job_ids: Collection[int]) -> dict[int, JobKey]:
        """Rows of existing jobs, in the order of their numbers."""
        unknown = [job_id for job_id in job_ids if job_id not in self._keys]
        if unknown:
            self._keys |= jobs.keys_of(self._engine, unknown)
        return {job_id: self._keys[job_id] for job_id in sorted(job_ids) if job_id in self._keys}
