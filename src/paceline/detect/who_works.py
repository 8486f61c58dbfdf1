"""The slow ranks of a job from each rank's own work: its step time without its wait for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from paceline.detect.job import JobEvent
from paceline.detect.who import Suspect, name_ranks

Array = npt.NDArray[np.float64]

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

    Args:
        events: events of the job, in the order of their steps.
        steps: [step] numbers.
        ranks: [rank] numbers.
        duration_s: [step, rank] step times.
        wait_s: [step, rank] the part in which the rank waited for others.
    """
    numbers, named = np.asarray(steps), []
    for place, event in enumerate(events):
        if event.kind == "onset":
            changes = (e.since_step for e in events[place + 1 :] if e.since_step > event.since_step)
            after = (numbers >= event.since_step) & (numbers < next(changes, numbers[-1] + 1))
            before = numbers < event.since_step
            rows = np.flatnonzero(before)[-_STEPS:], np.flatnonzero(after)[:_STEPS]
            suspects = _suspects(duration_s, wait_s, ranks, *rows)
            event = replace(event, suspects=suspects)
        named.append(event)
    return named


def _suspects(
    duration_s: Array,
    wait_s: Array,
    ranks: Sequence[int],
    before: npt.NDArray[np.int64],
    after: npt.NDArray[np.int64],
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
    late = np.flatnonzero((rise_s > 0) & (rises_s >= _PART * rise_s)).tolist()
    return tuple(
        Suspect(
            kind="compute",
            ranks=(int(ranks[rank]),),
            place=name_ranks((int(ranks[rank]),)),
            factor=float(slow_s[rank] / healthy_s[rank]),
            share=float(min(1.0, rises_s[rank] / job_s)),
            text=(
                f"{slow_s[rank]:.4g} s of own work a step instead of {healthy_s[rank]:.4g} s, "
                f"without the wait for others; the job's step rose by {rise_s:.3g} s"
            ),
        )
        for rank in sorted(late, key=lambda rank: -rises_s[rank])
    )
