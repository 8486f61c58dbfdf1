"""The slow ranks of a job from each rank's own work: its step time without its wait for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paceline.detect.event import LEVEL_KINDS, SLOW_KINDS
from paceline.detect.job import JobEvent
from paceline.detect.who import Suspect, alike_groups, name_ranks

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

#: Least part of the job's rise that a suspect's own work rises by.
_PART = 0.5
#: Most steps before and after an onset that are compared.
_STEPS = 512


def with_suspects(
    events: Sequence[JobEvent],
    steps: Sequence[int],
    ranks: Sequence[int],
    duration_s: Array,
    wait_s: Array,
) -> list[JobEvent]:
    """Onsets with the ranks whose own work has risen with the job's step time.

    The costliest level of the fail-slow decides.

    Args:
        events: events of the job, in the order of their steps.
        steps: [step] numbers.
        ranks: [rank] numbers.
        duration_s: [step, rank] step times.
        wait_s: [step, rank] the part in which the rank waited for others.
    """
    named = []
    for place, event in enumerate(events):
        if event.kind == "onset":
            before, after = levels_around(event, events[place + 1 :], steps, duration_s)
            event = replace(event, suspects=_suspects(duration_s, wait_s, ranks, before, after))
        named.append(event)
    return named


def levels_around(
    onset: JobEvent, later: Sequence[JobEvent], steps: Sequence[int], duration_s: Array
) -> tuple[Rows, Rows]:
    """Rows before a fail-slow, and those of its costliest level, some hundred of each at most.

    Args:
        onset: its begin.
        later: the events behind it.
        steps: [step] numbers.
        duration_s: [step, rank] step times.
    """
    numbers = np.asarray(steps)
    before = np.flatnonzero(numbers < onset.since_step)[-_STEPS:]
    return before, _costliest(_levels(onset, later, numbers), before, duration_s)


def _levels(onset: JobEvent, later: Sequence[JobEvent], numbers: Rows) -> list[Rows]:
    """Rows of each level of a fail-slow, up to its relief."""
    begins, end = [onset.since_step], int(numbers[-1]) + 1
    for event in later:
        if event.kind not in SLOW_KINDS and event.kind in LEVEL_KINDS:
            end = max(event.since_step, begins[-1] + 1)
            break
        if event.kind in SLOW_KINDS and event.since_step > begins[-1]:
            begins.append(event.since_step)
    return [
        np.flatnonzero((numbers >= low) & (numbers < high))
        for low, high in pairwise([*begins, end])
    ]


def _costliest(levels: Sequence[Rows], before: Rows, duration_s: Array) -> Rows:
    """The rows of the level that costs most; the first level may be small."""
    if not len(before):
        return levels[0][:_STEPS]
    of_job = np.nanmedian(duration_s, axis=1)
    healthy_s = np.nanmedian(of_job[before])
    lost_s = [
        len(rows) * (np.nanmedian(of_job[rows]) - healthy_s) if len(rows) else 0.0
        for rows in levels
    ]
    return levels[int(np.nanargmax(lost_s))][:_STEPS]


def _suspects(
    duration_s: Array, wait_s: Array, ranks: Sequence[int], before: Rows, after: Rows
) -> tuple[Suspect, ...] | None:
    """Ranks of which each has risen by most of the job's rise; None without data."""
    work_s = duration_s - wait_s
    known = np.isfinite(work_s)
    if not known[before].any(axis=0).all() or not known[after].any(axis=0).all():
        return None
    job_s = float(np.median(np.nanmedian(duration_s[after], axis=0)))
    rise_s = job_s - float(np.median(np.nanmedian(duration_s[before], axis=0)))
    healthy_s = np.nanmedian(work_s[before], axis=0)
    slow_s = np.nanmedian(work_s[after], axis=0)
    rises_s = slow_s - healthy_s
    late = np.flatnonzero((rise_s > 0) & (rises_s >= _PART * rise_s))
    groups = alike_groups(late, slow_s / np.maximum(healthy_s, 1e-12))
    if len(groups) == 1 and len(late) == len(ranks) > 1:
        return ()
    suspects = []
    for group in groups:
        members = tuple(int(ranks[rank]) for rank in group)
        slow, healthy = float(np.median(slow_s[group])), float(np.median(healthy_s[group]))
        suspects.append(
            Suspect(
                kind="compute",
                ranks=members,
                place=name_ranks(members),
                factor=slow / max(healthy, 1e-12),
                share=float(min(1.0, rises_s[group].max() / job_s)),
                text=(
                    f"{slow:.4g} s of own work a step instead of {healthy:.4g} s, without the "
                    f"wait for others; the job's step rose by {rise_s:.3g} s"
                ),
            )
        )
    return tuple(sorted(suspects, key=lambda suspect: -suspect.share))
