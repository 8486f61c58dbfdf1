"""Ranks whose waits for data rise where a job becomes slow, by the recorded waits of all steps.

A trace has some steps only, and other causes in these may hide a loader: of two ranks that are late
the later one counts. The waits of all steps show the rise at the onset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from paceline.detect.job import JobEvent
from paceline.detect.who import Suspect, alike_groups, name_ranks
from paceline.detect.who_works import levels_around
from paceline.units import seconds

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

#: Least part of the job's rise that a suspect's wait rises by.
_PART = 0.5


def with_data_suspects(
    events: Sequence[JobEvent],
    steps: Sequence[int],
    ranks: Sequence[int],
    duration_s: Array,
    data_wait_s: Array,
) -> list[JobEvent]:
    """Onsets with the ranks whose wait for data has risen by most of the rise of the step time.

    Suspects that an event has stay. Ranks among them are not named twice.

    Args:
        events: events of the job, in the order of their steps.
        steps: [step] numbers.
        ranks: [rank] numbers.
        duration_s: [step, rank] step times.
        data_wait_s: [step, rank] the part in which the rank waited for its data; nan = unknown.
    """
    named = []
    for place, event in enumerate(events):
        if event.kind == "onset":
            before, after = levels_around(event, events[place + 1 :], steps, duration_s)
            suspect = _suspect(duration_s, data_wait_s, ranks, before, after)
            others = event.suspects or ()
            named_already = {rank for other in others for rank in other.ranks}
            if suspect and named_already.isdisjoint(suspect.ranks):
                both = sorted((suspect, *others), key=lambda one: -one.share)
                event = replace(event, suspects=tuple(both))
        named.append(event)
    return named


def _suspect(
    duration_s: Array, data_wait_s: Array, ranks: Sequence[int], before: Rows, after: Rows
) -> Suspect | None:
    """The ranks with the longest waits, if these have risen by most of the job's rise."""
    known = np.isfinite(data_wait_s)
    measured = np.flatnonzero(known[before].any(axis=0) & known[after].any(axis=0))
    if not len(measured):
        return None
    old, new = np.ix_(before, measured), np.ix_(after, measured)
    job_s = float(np.median(np.nanmedian(duration_s[new], axis=0)))
    rise_s = job_s - float(np.median(np.nanmedian(duration_s[old], axis=0)))
    if not rise_s > 0:
        return None
    waited_s, waits_s = (np.nanmedian(data_wait_s[rows], axis=0) for rows in (old, new))
    rises_s = waits_s - waited_s
    groups = alike_groups(np.flatnonzero(rises_s >= _PART * rise_s), 1 + rises_s / rise_s)
    if not groups:
        return None
    longest = groups[0]
    members = tuple(int(ranks[at]) for at in measured[longest])
    share = float(min(rises_s[longest].max() / job_s, 0.99))
    wait_s, usual_s = (float(np.median(values[longest])) for values in (waits_s, waited_s))
    return Suspect(
        "data-loading",
        members,
        name_ranks(members),
        factor=1 / (1 - share),
        share=share,
        text=(
            f"in all {len(after):,} slow steps {'they wait' if len(members) > 1 else 'it waits'} "
            f"{seconds(wait_s)} a step for data, {seconds(usual_s)} before; the job's step rose by "
            f"{seconds(rise_s)}"
        ),
    )
