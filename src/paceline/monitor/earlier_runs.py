"""Earlier runs of the same job: changes at the same step in them count as planned.

A job names them by its label ``like``: a pattern of job names, or the value of their own label
``like``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Engine

from paceline.detect.limits import WARM_UP
from paceline.detect.slow_start import SlowStart, slow_start
from paceline.monitor.store import jobs
from paceline.monitor.store.jobs import JobKey

Array = npt.NDArray[np.float64]

#: The label.
LIKE = "like"
#: Number of latest runs used: three outvote a faulty one, more increase certainty.
MOST_RUNS = 8
#: Most steps of each run; a detector saves their information.
MOST_STEPS = 100_000


class EarlierRuns:
    """The step times of earlier runs.

    Args:
        runs: rows of the step series of each run.
    """

    def __init__(self, runs: Sequence[npt.NDArray[Any]] = ()) -> None:
        self._runs = [(rows["step"], rows["median_s"]) for rows in map(_first_start, runs)]

    def since(self, step: int) -> list[Array]:
        """[step] seconds from this step on, for each run that has it."""
        return [
            seconds[steps >= step][:MOST_STEPS].astype(np.float64)
            for steps, seconds in self._runs
            if _is_dense(steps) and step in steps
        ]


def find_earlier_runs(
    engine: Engine, job: JobKey, rows_of: Callable[[int], npt.NDArray[Any]]
) -> EarlierRuns:
    """The latest runs that a job's label names, as rows of their series."""
    row = jobs.by_id(engine, job.id)
    label = None if row is None else row["labels"].get(LIKE)
    if not isinstance(label, str) or not label:
        return EarlierRuns()
    alike = [
        row["id"]
        for row in jobs.names_and_labels(engine, job.project)
        if row["id"] < job.id
        and (fnmatch.fnmatchcase(row["name"], label) or row["labels"].get(LIKE) == label)
    ]
    return EarlierRuns([rows_of(number) for number in alike[:MOST_RUNS]])


def slow_start_of(rows: npt.NDArray[Any], earlier: EarlierRuns) -> SlowStart | None:
    """Whether a job's first steps took longer than the same steps of earlier runs.

    Args:
        rows: of its series.
        earlier: runs of the same job.
    """
    first = rows[:WARM_UP]
    # A run that continues from a checkpoint has other steps to compare.
    if len(first) < WARM_UP or first["start"].any() or int(first["step"][0]) > WARM_UP:
        return None
    if not _is_dense(first["step"]):
        return None
    return slow_start(first["median_s"], earlier.since(int(first["step"][0])))


def _first_start(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows up to the first restart, after which steps repeat."""
    return rows[rows["start"] == rows["start"][0]] if len(rows) else rows


def _is_dense(steps: npt.NDArray[Any]) -> bool:
    """Whether no step is missing, for rows are matched by order."""
    return len(steps) > 1 and bool((np.diff(steps) == 1).all())
