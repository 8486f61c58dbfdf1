"""A job's step times for long-term storage: one row per step, in an append-only file."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

#: The name is the version, as rows have no header: another format gets another file. This is 1.
NAME = "series.rows"

ROW = np.dtype(
    [
        ("step", "<i8"),
        ("at", "<f8"),
        ("samples", "<i4"),
        ("median_s", "<f4"),
        ("max_s", "<f4"),
        ("slowest", "<i4"),
        ("start", "<i4"),
        ("healthy_s", "<f4"),
    ]
)


@dataclass(frozen=True, eq=False)
class Series:
    """Step times of a job, [row] each, in the order of the job's starts and of their steps.

    Attributes:
        step: numbers.
        at: arrival of the samples, seconds since 1970.
        samples: number of ranks with a sample.
        median_s: median of the ranks, seconds.
        max_s: step time of the slowest rank, seconds.
        slowest: the slowest rank.
        start: number of the job's start, from 0.
        healthy_s: healthy step time as known then, seconds; nan before that.
        lost: whether a later start repeated the step.
    """

    step: npt.NDArray[np.int64]
    at: npt.NDArray[np.float64]
    samples: npt.NDArray[np.int32]
    median_s: npt.NDArray[np.float32]
    max_s: npt.NDArray[np.float32]
    slowest: npt.NDArray[np.int32]
    start: npt.NDArray[np.int32]
    healthy_s: npt.NDArray[np.float32]
    lost: npt.NDArray[np.bool_]

    def to_mapping(self) -> dict[str, list[Any]]:
        """The series as JSON values."""
        healthy = [None if np.isnan(x) else round(float(x), 7) for x in self.healthy_s]
        seconds = {
            name: [round(float(x), 7) for x in getattr(self, name)]
            for name in ("median_s", "max_s")
        }
        integers = {
            name: getattr(self, name).tolist()
            for name in ("step", "at", "samples", "slowest", "start", "lost")
        }
        return {**integers, **seconds, "healthy_s": healthy}


def append_rows(folder: Path, rows: npt.NDArray[Any]) -> None:
    """Add rows, after cutting off an incomplete one. The batches can recreate all rows."""
    path = folder / NAME
    with path.open("ab") as file:
        torn = file.tell() % ROW.itemsize
        if torn:
            file.truncate(file.tell() - torn)
        file.write(rows.astype(ROW).tobytes())


def sync_rows(folder: Path) -> None:
    """Sync the rows: those that a detector's snapshot covers are not recreated."""
    with contextlib.suppress(FileNotFoundError), (folder / NAME).open("rb") as file:
        os.fsync(file.fileno())


def last_row(folder: Path) -> Any:
    """The last row; None without rows."""
    rows = read_rows(folder)
    return rows[-1].copy() if len(rows) else None


def row_from(folder: Path, at: float) -> Any:
    """The first row that arrived at that time or later, else the last; None without rows."""
    rows = read_rows(folder)
    later = np.flatnonzero(rows["at"] >= at)
    return rows[later[0] if len(later) else -1].copy() if len(rows) else None


def series_of(
    rows: npt.NDArray[Any], *, first: int | None = None, last: int | None = None, points: int = 2000
) -> Series:
    """The steps ``first`` to ``last`` of all starts, thinned to evenly spread ``points``.

    The newest step is always included. Each point shows the slowest step of its range.
    """
    lost = _lost(rows)
    if first is not None or last is not None:
        low, high = (-np.inf if first is None else first), (np.inf if last is None else last)
        asked = (rows["step"] >= low) & (rows["step"] <= high)
        rows, lost = rows[asked], lost[asked]
    if len(rows) > points > 0:
        edges = np.linspace(0, len(rows), points + 1).astype(np.int64).tolist()
        selected = [a + int(np.argmax(rows["max_s"][a:b])) for a, b in pairwise(edges)]
        selected[-1] = len(rows) - 1
        rows, lost = rows[selected], lost[selected]
    return Series(**{name: np.array(rows[name]) for name in ROW.names or ()}, lost=lost)


def _lost(rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """[row] whether a later start began at or before this step."""
    if not len(rows):
        return np.zeros(0, dtype=np.bool_)
    begins = np.flatnonzero(np.diff(rows["start"], prepend=-1))
    later = np.append(
        np.minimum.accumulate(rows["step"][begins][::-1])[::-1][1:], np.iinfo("i8").max
    )
    sizes = np.diff(np.append(begins, len(rows)))
    return np.asarray(rows["step"] >= np.repeat(later, sizes), dtype=np.bool_)


def remove_older_rows(folder: Path, before: float) -> None:
    """Drop rows before that time if they fill at least half of the file."""
    rows = read_rows(folder)
    old = int(np.searchsorted(rows["at"], before)) if len(rows) else 0
    if not old or old < len(rows) / 2:
        return
    partial = folder / f".{NAME}.partial"
    partial.write_bytes(rows[old:].tobytes())
    partial.replace(folder / NAME)


def read_rows(folder: Path) -> npt.NDArray[Any]:
    """All rows, :data:`ROW` each, mapped from the file."""
    path = folder / NAME
    try:
        n = path.stat().st_size // ROW.itemsize
    except FileNotFoundError:
        n = 0
    return np.memmap(path, ROW, "r", shape=(n,)) if n else np.zeros(0, ROW)
