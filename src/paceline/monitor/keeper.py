"""The owner of a job's detector, and its place: here, where one process has the store."""

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
    """Where detectors are kept beside the folder of their job."""

    #: After this time a detector is saved, whatever it has seen since.
    save_every_s: float

    def take_up(self, job_id: int, folder: Path) -> None:
        """Make the folder hold what the detector goes on from."""

    def forget(self, job_id: int) -> None:
        """Work on the folder failed: it may hold what was not kept."""

    def held(self, connection: Connection, job_ids: Iterable[int]) -> set[int]:
        """Those of some jobs that are ours until the transaction ends."""

    def add_rows(self, job_id: int, rows: npt.NDArray[Any]) -> None:
        """Rows were added to a job's series."""

    def flush(self) -> None:
        """Store what was added."""

    def saved(self, job_id: int, folder: Path, place: tuple[int, int]) -> None:
        """The folder holds a detector that has seen all up to a place of the log."""

    def rank_map(self, job_id: int, folder: Path) -> RankMap | None:
        """A job's rank map as saved last; None where there is none."""


class OneProcess:
    """All jobs are ours, and the folder is all that there is."""

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
