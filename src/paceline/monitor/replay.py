"""A detector made anew from a job's step files: from which batch on, and as which start.

Nothing is known of the job then but its files and its series, one row per step. The files are
bounded (:data:`~paceline.monitor.step_files.SEGMENTS`) and read one segment at a time. Of a job
with few ranks they hold millions of steps; a detector forgets, so only the last ones are read.
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

#: Last steps that are read again; where those begin in a fail-slow, up to the second number.
#: A detector takes some 0.2 ms a step of up to 64 ranks, 0.9 ms of 1,024.
STEPS, MAX_STEPS = 20_000, 100_000
#: Steps between an onset or relief of the replay and the stored one that it is, at most. Another
#: version, or a beginning elsewhere, may be sure of it a little earlier or later.
SAME_STEPS = 64
#: Batches that come at the same time may be stored in another order than they came.
_MARGIN_S = 60.0


def replay(file: StepFile, stream: Stream, passed: Callable[[], None]) -> Iterator[Batch]:
    """The batches for a new stream, which gets the number of the start that they are of.

    Args:
        file: of the job.
        stream: takes each batch before the next one is asked for.
        passed: called once, when the stream has seen what the series has, before it sees more.
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
    """When the first batch came that is to be read anew, seconds since 1970; 0 = all.

    A detector takes the level of its first steps for the healthy one. So these must not lie in a
    fail-slow, as far as the series knows of it.
    """
    rows = read_rows(folder)
    first, least = len(rows) - STEPS, len(rows) - MAX_STEPS
    while first > max(0, least) and _is_slow(rows[first : first + ANCHOR_STEPS]):
        first -= ANCHOR_STEPS
    return float(rows["at"][max(0, first, least)]) if max(first, least) > 0 else 0.0


def _is_slow(rows: Any) -> bool:
    """Whether the steps at the beginning, or most of them, lie above the healthy level."""
    ratio = rows["median_s"] / rows["healthy_s"]
    for few in (ratio[:WARM_UP], ratio):
        usable = few[np.isfinite(few)]
        if len(usable) and np.median(usable) > 1 + THRESHOLD / 2:
            return True
    return False


def _start_at(folder: Path, at: float) -> int:
    """How many times the job had begun again when a batch came, as the series tells it."""
    row = row_from(folder, at)
    return 0 if row is None else int(row["start"])
