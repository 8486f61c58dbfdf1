"""Rebuilds a detector from a job's step files: the first batch and start to read.

Only the job's files and its series (one row per step) are known. The files are bounded
(:data:`~paceline.monitor.step_files.SEGMENTS`) and read one segment at a time. For a job with few
ranks they have millions of steps. A detector forgets old steps, so only the last ones are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paceline.detect.detector import THRESHOLD
from paceline.detect.limits import ANCHOR_STEPS, WARM_UP
from paceline.monitor.step_files import Batch, StepFile
from paceline.monitor.step_series import last_row, read_rows, row_from
from paceline.monitor.step_stream import Stream

#: Number of last steps to read, and the limit if these begin in a fail-slow. A detector takes about
#: 0.2 ms per step for up to 64 ranks, 0.9 ms for 1,024.
STEPS, MAX_STEPS = 20_000, 100_000
#: Largest distance in steps between an onset or relief in the replay and the same stored event.
#: Another version, or another first step, may detect it slightly earlier or later.
SAME_STEPS = 64
#: Concurrent batches may be stored in another order than they arrived.
_MARGIN_S = 60.0


def replay(file: StepFile, stream: Stream, passed: Callable[[], None]) -> Iterator[Batch]:
    """The batches for a new stream, which gets their number of the start.

    Args:
        file: step file of the job.
        stream: takes each batch before the next is read.
        passed: called once, when the stream has seen all rows of the series.
    """
    since, last = replay_since(file.folder), last_row(file.folder)
    known_at = math.inf if last is None else float(last["at"])
    is_first, is_passed = True, False
    for batch in file.read(since=since - _MARGIN_S):
        if batch.at < since:
            continue
        if is_first:
            stream.start, is_first = _start_at(file.folder, batch.at), False
        if batch.at > known_at and not is_passed:
            is_passed = True
            passed()
        yield batch
    if not is_passed:
        passed()


def replay_since(folder: Path) -> float:
    """Arrival of the first batch to read, seconds since 1970; 0 = all.

    A detector takes the level of its first steps as healthy. So these must not lie in a fail-slow
    that the series shows.
    """
    rows = read_rows(folder)
    first, least = len(rows) - STEPS, len(rows) - MAX_STEPS
    while first > max(0, least) and _is_slow(rows[first : first + ANCHOR_STEPS]):
        first -= ANCHOR_STEPS
    return float(rows["at"][max(0, first, least)]) if max(first, least) > 0 else 0.0


def _is_slow(rows: Any) -> bool:
    """Whether most of the first steps lie above the healthy level."""
    ratio = rows["median_s"] / rows["healthy_s"]
    for few in (ratio[:WARM_UP], ratio):
        usable = few[np.isfinite(few)]
        if len(usable) and np.median(usable) > 1 + THRESHOLD / 2:
            return True
    return False


def _start_at(folder: Path, at: float) -> int:
    """Number of restarts of the job before a batch's arrival, from the series."""
    row = row_from(folder, at)
    return 0 if row is None else int(row["start"])
