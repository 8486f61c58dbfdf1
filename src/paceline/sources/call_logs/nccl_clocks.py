"""Comparison of the ranks' clocks by their common calls, which NCCL's numbers identify.

A collective ends on all devices at about the same time. On the hosts it begins at about the same
time, unless a host runs ahead of its GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from paceline.sources.call_logs.nccl_profiler import PluginCall

Keys = dict[tuple[str, int], float]


def clock_leads(calls: Mapping[int, Sequence[PluginCall]], *, timed: bool) -> dict[int, float]:
    """Rank -> seconds by which its clock is ahead of the median rank's; 0 if unknown.

    Args:
        calls: calls of each rank.
        timed: compare the ends of calls with device times instead of the begins of all calls.
    """
    times = {rank: _times(rows, timed) for rank, rows in calls.items()}
    leads: dict[int, float] = {}
    for first in sorted(times):
        if first in leads:
            continue
        reached = _reached(first, times)
        middle = float(np.median(list(reached.values())))
        leads |= {rank: lead - middle for rank, lead in reached.items()}
    return leads


def _times(rows: Sequence[PluginCall], timed: bool) -> dict[str, Keys]:
    """Communicator -> time of each of its calls, by operation and number."""
    of_group: dict[str, Keys] = defaultdict(dict)
    for row in rows:
        if row.seq >= 0 and row.members > 1 and (row.on_device or not timed):
            end_s = row.start_s + row.duration_s if timed else row.host_s
            of_group[row.communicator][row.op, row.seq] = end_s
    return of_group


def _reached(first: int, times: Mapping[int, Mapping[str, Keys]]) -> dict[int, float]:
    """Rank -> lead over the first rank, for ranks connected with it by common calls."""
    members: dict[str, list[int]] = defaultdict(list)
    for rank, groups in times.items():
        for group in groups:
            members[group].append(rank)
    leads = {first: 0.0}
    seen: set[str] = set()
    waiting = [first]
    while waiting:
        rank = waiting.pop()
        for group, own in times[rank].items():
            if group in seen:
                continue
            seen.add(group)
            for other in members[group]:
                common = own.keys() & times[other][group].keys()
                if other in leads or not common:
                    continue
                apart = [times[other][group][key] - own[key] for key in common]
                leads[other] = leads[rank] + float(np.median(apart))
                waiting.append(other)
    return leads
