"""Step times and detectors in the database, with a folder of working copies."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Engine

from paceline.monitor import rank_file, step_series
from paceline.monitor.instances.log_reader import LogFile
from paceline.monitor.instances.membership import Membership
from paceline.monitor.rank_map import RankMap
from paceline.monitor.snapshot import SNAPSHOT
from paceline.monitor.step_files import StepFile, StepFiles
from paceline.monitor.step_series import ROW
from paceline.monitor.store import step_log
from paceline.monitor.store.leases import LeaseLost
from paceline.monitor.store.step_log import JobState, Place

#: Longest seconds between saves of a detector; a take-over reads later rows again.
SAVE_EVERY_S = 120.0


class SharedSteps(StepFiles):
    """Step times of all jobs, in the database.

    Args:
        folder: working copies of owned detectors; emptied at the start.
        engine: the database.
    """

    def __init__(self, folder: Path, engine: Engine) -> None:
        super().__init__(folder)
        self._engine = engine
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        #: Job -> place in the log up to which its working copy has read.
        self.places: dict[int, Place] = {}

    @contextmanager
    def of(self, job_id: int) -> Iterator[StepFile]:
        """The part of the log of a job."""
        yield LogFile(self.path(job_id), self._engine, job_id, self.places.get(job_id, (0, 0)))

    def rows(self, job_id: int) -> npt.NDArray[Any]:
        """All rows of a job's series, for any owner of its detector."""
        data = step_log.rows_of(self._engine, job_id)
        return np.frombuffer(data, ROW, len(data) // ROW.itemsize)

    def written_at(self, job_id: int, choose: Callable[[Iterable[float]], float] = max) -> float:
        """Unknown: an owner checks the log when it takes up a job."""
        return math.inf

    def remove_older(self, job_id: int, before: float) -> int:
        """Nothing: see :func:`paceline.monitor.store.step_log.trim`."""
        return 0

    def remove(self, job_id: int) -> None:
        """Remove the working copy; the database's rows were removed with the job."""
        shutil.rmtree(self.path(job_id), ignore_errors=True)

    def job_ids(self) -> list[int]:
        """None: working copies do not count."""
        return []


class SharedKeeper:
    """Keeps detectors in the database while this instance owns their jobs.

    Only the detectors' thread calls methods other than :meth:`held` and :meth:`rank_map`.
    """

    save_every_s = SAVE_EVERY_S

    def __init__(self, engine: Engine, members: Membership, steps: SharedSteps) -> None:
        self._engine, self._members, self._steps = engine, members, steps
        self._fences: dict[int, int] = {}  # places of the working copies
        self._added: dict[int, list[npt.NDArray[Any]]] = {}
        self._unsure = False  # a commit may have been done, though its answer was lost

    def take_up(self, job_id: int, folder: Path) -> None:
        """Put the saved state into the folder, unless this owner did so already.

        Raises:
            LeaseLost: this instance does not own the job.
        """
        fence = self._members.fence_of(job_id)
        if self._fences.get(job_id) == fence and folder.is_dir():
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._added.pop(job_id, None)
        state, rows = step_log.kept_of(self._engine, job_id)
        (folder / step_series.NAME).write_bytes(rows)
        if state is not None:
            for name, content in ((SNAPSHOT, state.detector), (rank_file.NAME, state.ranks)):
                if content is not None:
                    (folder / name).write_bytes(content)
        self._steps.places[job_id] = (0, 0) if state is None else state.place
        self._fences[job_id] = fence

    def forget(self, job_id: int) -> None:
        """The next :meth:`take_up` rebuilds the working copy; it may be ahead of the database."""
        self._fences.pop(job_id, None)

    def held(self, connection: Connection, job_ids: Iterable[int]) -> set[int]:
        """Those of some jobs that are ours until the transaction ends."""
        return self._members.held(connection, job_ids)

    def add_rows(self, job_id: int, rows: npt.NDArray[Any]) -> None:
        """Rows are stored at the next :meth:`flush`, or with the detector."""
        self._added.setdefault(job_id, []).append(rows.astype(ROW))

    def flush(self) -> None:
        """Store added rows, except rows of lost jobs."""
        if not self._added:
            return
        unsure, self._unsure = self._unsure, True
        with self._engine.begin() as connection:
            ours = self.held(connection, self._added)
            added = {
                job_id: np.concatenate(rows)
                for job_id, rows in self._added.items()
                if job_id in ours
            }
            if unsure:
                for job_id, last in step_log.last_parts(connection, list(added)).items():
                    added[job_id] = _behind(added[job_id], np.frombuffer(last, ROW)[-1])
            parts = {job_id: _part(rows) for job_id, rows in added.items() if len(rows)}
            if parts:
                step_log.add_rows(connection, parts)
        self._added.clear()
        self._unsure = False

    def saved(self, job_id: int, folder: Path, place: Place) -> None:
        """Store the detector of the folder.

        Raises:
            LeaseLost: another instance owns the job now.
        """
        self.flush()
        self._steps.places[job_id] = place
        files = [
            path.read_bytes() if (path := folder / name).is_file() else None
            for name in (SNAPSHOT, rank_file.NAME)
        ]
        with self._engine.begin() as connection:
            if not self.held(connection, [job_id]):
                raise LeaseLost(f"job {job_id} belongs to another instance")
            step_log.join_rows(connection, job_id)
            step_log.save_state(connection, job_id, JobState(place, *files))

    def rank_map(self, job_id: int, folder: Path) -> RankMap | None:
        """A job's rank map as last saved by its owner."""
        content = step_log.ranks_of(self._engine, job_id)
        if content is None:
            return None
        with tempfile.TemporaryDirectory(prefix="paceline-ranks-") as name:
            (Path(name) / rank_file.NAME).write_bytes(content)
            return rank_file.load_rank_map(Path(name))


def _part(rows: npt.NDArray[Any]) -> tuple[int, float, bytes]:
    return len(rows), float(rows["at"][-1]), rows.tobytes()


def _behind(rows: npt.NDArray[Any], last: Any) -> npt.NDArray[Any]:
    """Rows after the given one."""
    later = rows["start"] > last["start"]
    later |= (rows["start"] == last["start"]) & (rows["step"] > last["step"])
    return np.asarray(rows[later])
