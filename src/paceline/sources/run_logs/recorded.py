"""Timelines of recorded runs (the folder that :mod:`paceline.record` writes)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.errors import TraceError
from paceline.sources.recording.files import RankFile, read_files
from paceline.sources.run_logs.timeline import (
    Array,
    Ints,
    Pause,
    Recording,
    Start,
    Timeline,
    steps_of,
)

_AT_MOST = (
    "waits for data are the longest ones of the ranks in each step; a part of them may be hidden "
    "behind the operations of others"
)


def read_recorded(folder: Path) -> Timeline:
    """The steps of the lowest rank of each start, by its own clock.

    A step's own time is the median of the ranks, as ``paceline detect`` takes it.

    The recorder sees only the inside of steps. Its only pauses are the waits for data, where it
    measured them: the longest one of the ranks. It lies between the step before and this one, and
    in this one where that time is too short.

    Raises:
        TraceError: the recording is damaged, or holds no step.
    """
    by_session: dict[str, RankFile] = {}
    waits_ns: dict[str, dict[int, int]] = {}
    times: dict[str, list[Ints]] = defaultdict(list)
    files = read_files(folder)
    for file in files:
        of_steps = waits_ns.setdefault(file.session, {})
        for step, wait_ns in file.data_ns.items():
            of_steps[step] = max(wait_ns, of_steps.get(step, 0))
        times[file.session].append(file.times)
        lowest = by_session.get(file.session)
        if len(file.times) and (lowest is None or file.rank < lowest.rank):
            by_session[file.session] = file
    if not by_session:
        raise TraceError(f"{folder} holds no step yet; is the job past its first one?")
    starts = [
        _start(file, times[session], waits_ns[session]) for session, file in by_session.items()
    ]
    measured = any(waits_ns.values())
    return Timeline(
        "paceline.record",
        tuple(sorted(starts, key=lambda start: start.begin_s)),
        frozenset({"data"} if measured else ()),
        notes=(_AT_MOST,) if measured else (),
        recordings=(Recording(folder, tuple(files)),),
    )


def _start(file: RankFile, of_ranks: Sequence[Ints], waits_ns: Mapping[int, int]) -> Start:
    times = file.times[file.times[:, 1].argsort(kind="stable")]
    rows = [
        (int(step), 1, begin_ns / 1e9, (begin_ns + length_ns) / 1e9)
        for step, begin_ns, length_ns in times.tolist()
    ]
    began_s = min(int(file.meta["started_ns"]) / 1e9, rows[0][2])
    waits = []
    previous_end_s = began_s
    for step, _, begin_s, end_s in rows:
        wait_s = waits_ns.get(step, 0) / 1e9
        if wait_s:
            # Where the loop asks for its batch before the step, the wait ends as the step begins.
            from_s = max(begin_s - wait_s, min(previous_end_s, begin_s))
            waits.append(Pause("data", from_s, min(from_s + wait_s, end_s)))
        previous_end_s = end_s
    steps = steps_of(rows)
    steps = replace(steps, spent_s=_medians_s(steps.last, of_ranks))
    return Start(began_s, rows[-1][3], steps, tuple(waits), has_begin=True)


def _medians_s(steps: Ints, of_ranks: Sequence[Ints]) -> Array:
    """[step] the median of the ranks' times, in seconds."""
    times = np.concatenate(of_ranks)
    number, length = times[:, 0], times[:, 2]
    order = np.lexsort((length, number))
    number, length = number[order], length[order]
    first, end = np.searchsorted(number, steps), np.searchsorted(number, steps, side="right")
    medians_s: Array = (length[(first + end - 1) // 2] + length[(first + end) // 2]) / 2e9
    return medians_s
