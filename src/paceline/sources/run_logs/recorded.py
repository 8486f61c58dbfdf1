"""Timelines of recorded runs (the folder that :mod:`paceline.record` writes)."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import TraceError
from paceline.sources.recording.files import RankFile, read_files
from paceline.sources.run_logs.timeline import Start, Timeline, steps_of


def read_recorded(folder: Path) -> Timeline:
    """The steps of the lowest rank of each start, by its own clock.

    The recorder sees only the inside of steps, so the timeline has no pauses.

    Raises:
        TraceError: the recording is damaged, or holds no step.
    """
    by_session: dict[str, RankFile] = {}
    for file in read_files(folder):
        lowest = by_session.get(file.session)
        if len(file.times) and (lowest is None or file.rank < lowest.rank):
            by_session[file.session] = file
    if not by_session:
        raise TraceError(f"{folder} holds no step yet; is the job past its first one?")
    starts = sorted((_start(file) for file in by_session.values()), key=lambda s: s.begin_s)
    return Timeline("paceline.record", tuple(starts), frozenset())


def _start(file: RankFile) -> Start:
    times = file.times[file.times[:, 1].argsort(kind="stable")]
    rows = [
        (int(step), 1, begin_ns / 1e9, (begin_ns + length_ns) / 1e9)
        for step, begin_ns, length_ns in times.tolist()
    ]
    began_s = min(int(file.meta["started_ns"]) / 1e9, rows[0][2])
    return Start(began_s, rows[-1][3], steps_of(rows), has_begin=True)
