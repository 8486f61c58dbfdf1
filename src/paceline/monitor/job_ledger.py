"""The ledger of a job's wall time, from the monitor's step times.

A step takes the median of its ranks. The steps of one rank follow each other and add up to the wall
time. The slowest ranks of two steps may overlap, so their times may add up to more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Engine

from paceline.ledger.categories import CATEGORIES, label
from paceline.ledger.ledger import Ledger, ledger_of
from paceline.ledger.words import TOLD_BY, Reasons
from paceline.monitor.step_files import StepFiles
from paceline.monitor.store import jobs, sessions
from paceline.monitor.store.events import level_events
from paceline.sources.run_logs.timeline import Start, Steps, Timeline

#: If steps take longer than the time between their arrivals, by more than this share, they were
#: sent later. Then arrival times are no clock.
_MOST_OVERLAP = 0.05

#: Meanings of rows on the pages: the monitor has no log.
MEANINGS = {
    **CATEGORIES,
    "fail_slow": "what the levels of fail-slows cost these steps, with waits for data; an event "
    "has its slowest rank's loss",
    "other": "other pauses",
    "unknown": "time between steps of which the monitor knows nothing",
}

_NOT_IN_STEPS = "step times do not tell; paceline goodput reads it from the job's log"
_WORDS = Reasons(
    not_recorded=dict.fromkeys(TOLD_BY, _NOT_IN_STEPS),
    no_clock="step times came too late to tell",
    no_analysis="no session is analysed; push a trace, or record operations",
    late="the step times begin at step {:,}",
    no_end="the monitor learns of the last start's end only",
)

_SENT_LATE = "steps were sent after the event: time between them, and restarts, are not known"
_MISSING = "{:,} steps between the first and the last are missing: their time is in unknown"


def stored_ledger(engine: Engine, files: StepFiles, job_id: int) -> Ledger | None:
    """The ledger of a job in the store; None without step times."""
    row = jobs.by_id(engine, job_id)
    if row is None:
        return None
    session = sessions.latest_done(engine, job_id)
    return job_ledger(
        files.rows(job_id),
        level_events(engine, job_id),
        gpus=row["gpus"],
        slowdown=None if session is None else healthy_slowdown(session, row["healthy_s"]),
        has_ended=row["status"] == "ended",
    )


def unknown_rows(ledger: Ledger | None) -> dict[str, list[str]]:
    """Reason -> the unknown rows with it, in words."""
    rows: dict[str, list[str]] = {}
    for name, reason in (ledger.reasons if ledger is not None else {}).items():
        rows.setdefault(reason, []).append(label(name))
    return rows


def healthy_slowdown(session: Mapping[str, Any], healthy_s: float | None) -> float | None:
    """S of the steps at the detector's healthy level, at least 1; None if no session has one.

    A session during a fail-slow includes it in S, but the ledger counts it separately. So the
    healthy step is compared with the session's ideal step.
    """
    slowdown = session["slowdown"]
    if slowdown is None:
        return None
    highest = max(float(slowdown), 1.0)
    if healthy_s is None or not session["step_s"]:
        return highest
    ideal_s = session["step_s"] / slowdown
    return float(min(max(healthy_s / ideal_s, 1.0), highest))


def job_ledger(
    rows: npt.NDArray[Any],
    events: Sequence[Mapping[str, Any]],
    *,
    gpus: int | None = None,
    slowdown: float | None = None,
    has_ended: bool = False,
) -> Ledger | None:
    """The ledger of a job from its first step to its latest.

    Args:
        rows: [step] rows of its series, ``step_series.ROW`` each.
        events: events of its detector, in order, with kind, start, since_step, factor and ranks.
        gpus: GPUs of the job, for GPU-hours.
        slowdown: S of its healthy steps, at least 1; None leaves stragglers unknown.
        has_ended: whether the job ended by itself.

    Returns:
        None before the first step.
    """
    timed = rows[np.isfinite(rows["median_s"]) & (rows["median_s"] > 0)] if len(rows) else rows
    if not len(timed):
        return None
    timeline = _timeline(timed, has_ended=has_ended)
    numbers = {int(number): place for place, number in enumerate(np.unique(timed["start"]))}
    placed = [
        {**event, "start": numbers[start]}
        for event in events
        if (start := event["start"] or 0) in numbers and _has_level(event)
    ]
    return ledger_of(timeline, events=placed, slowdown=slowdown, gpus=gpus, words=_WORDS)


def _has_level(event: Mapping[str, Any]) -> bool:
    """Whether an event has a level; an event ended by a restart has no known factor."""
    return event["factor"] is not None or event["kind"] in ("relief", "faster")


def _timeline(rows: npt.NDArray[Any], *, has_ended: bool) -> Timeline:
    numbers = np.unique(rows["start"])
    parts = [rows[rows["start"] == number] for number in numbers]
    timed = [_as_they_came(part) for part in parts]
    has_clock = all(map(_has_clock, parts)) and all(
        before.end_s[-1] <= after.begin_s[0] for before, after in pairwise(timed)
    )
    if not has_clock:
        timed = _back_to_back(parts)
    starts = [
        Start(float(steps.begin_s[0]), float(steps.end_s[-1]), steps, has_ended=has_ended)
        for steps in timed
    ]
    starts[:-1] = [replace(start, has_ended=False) for start in starts[:-1]]
    missing = sum(int(part["step"][-1] - part["step"][0]) + 1 - len(part) for part in parts)
    notes = [] if has_clock else [_SENT_LATE]
    notes += [_MISSING.format(missing)] if missing and has_clock else []
    return Timeline("step times", tuple(starts), frozenset(), has_clock, tuple(notes))


def _has_clock(rows: npt.NDArray[Any]) -> bool:
    """Whether steps arrived as they ended."""
    between_s = float(rows["at"][-1] - rows["at"][0])
    # Steps that arrived with the first may have run at any earlier time.
    behind = rows["at"] > rows["at"][0]
    return float(rows["median_s"][behind].sum()) <= between_s * (1 + _MOST_OVERLAP)


def _as_they_came(rows: npt.NDArray[Any]) -> Steps:
    """Latest possible ends of steps: before their arrival, and before the next step's begin."""
    until = np.cumsum(rows["median_s"], dtype=np.float64)
    slack = np.minimum.accumulate((rows["at"] - until)[::-1])[::-1]
    return _steps(rows, until + slack)


def _back_to_back(parts: Sequence[npt.NDArray[Any]]) -> list[Steps]:
    timed, begin_s = [], 0.0
    for rows in parts:
        timed.append(_steps(rows, begin_s + np.cumsum(rows["median_s"], dtype=np.float64)))
        begin_s = float(timed[-1].end_s[-1])
    return timed


def _steps(rows: npt.NDArray[Any], end_s: npt.NDArray[np.float64]) -> Steps:
    ones = np.ones(len(rows), dtype=np.int64)
    spent_s = rows["median_s"]
    return Steps(rows["step"].astype(np.int64), ones, end_s - spent_s, end_s, spent_s)
