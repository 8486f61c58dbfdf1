"""Interface for the ownership and storage of detectors, and its form for a single process."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt
from sqlalchemy import Connection

from paceline.monitor.rank_file import load_rank_map
from paceline.monitor.rank_map import RankMap


class Keeper(Protocol):
    """Storage of detectors besides the folder of their job."""

    #: Longest seconds between saves of a detector.
    save_every_s: float

    def take_up(self, job_id: int, folder: Path) -> None:
        """Put the state from which the detector continues into the folder."""

    def forget(self, job_id: int) -> None:
        """Work on the folder failed, so it may have unsaved content."""

    def held(self, connection: Connection, job_ids: Iterable[int]) -> set[int]:
        """The owned jobs among some, locked until the transaction ends."""

    def add_rows(self, job_id: int, rows: npt.NDArray[Any]) -> None:
        """Rows were added to a job's series."""

    def flush(self) -> None:
        """Store added rows."""

    def saved(self, job_id: int, folder: Path, place: tuple[int, int]) -> None:
        """The folder has a detector that has read the log up to a place."""

    def rank_map(self, job_id: int, folder: Path) -> RankMap | None:
        """A job's rank map as last saved; None without one."""


class OneProcess:
    """One process: it owns all jobs, and the folder is the only storage."""

    save_every_s = math.inf

    def take_up(self, job_id: int, folder: Path) -> None:
        """It does."""

    def forget(self, job_id: int) -> None:
        """It holds all that there is."""

    def held(self, connection: Connection, job_ids: Iterable[int]) -> set[int]:
        """All."""
        return set(job_ids)

    def add_rows(self, job_id: int, rows: npt.NDArray[Any]) -> None:
        """They are in the folder."""

    def flush(self) -> None:
        """They are in the folder."""

    def saved(self, job_id: int, folder: Path, place: tuple[int, int]) -> None:
        """It is in the folder."""

    def rank_map(self, job_id: int, folder: Path) -> RankMap | None:
        """That of the folder."""
        return load_rank_map(folder)
