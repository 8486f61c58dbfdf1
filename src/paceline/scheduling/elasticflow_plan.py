"""The loops of ElasticFlow: plan by deadline, follow a plan, spread the rest.

``facts`` of jobs are (remaining work, remaining seconds of pause, present level or -1, whether
started, deadline, [job, level] units of work per second). A level is an index into ``counts``, the
numbers of GPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.scheduling.jobs import Array, Ints

#: Tolerance in seconds for comparisons with a deadline.
_ROUNDING_S = 1e-6


def fill(
    order: Ints,
    facts: tuple[Any, ...],
    share: Ints,
    counts: Ints,
    total: int,
    rescale_s: float,
    slot_s: float,
    times: Array,
    reserved: Ints,
    segments: int,
) -> int:
    """Progressive filling: reserve for each job the smallest share that meets its deadline.

    Args:
        order: jobs to plan, by deadline.
        facts: facts of all jobs.
        share: [job] least level to plan with, or -1; the level that was chosen is written here.
        counts: [level] GPUs.
        total: GPUs of the cluster.
        rescale_s: seconds that a change of level costs a job that has started.
        slot_s: GPUs are freed only at multiples of it from ``times[0]``; 0 = at once.
        times: [segment + 1] begins of segments; split where a job ends.
        reserved: [job, segment] level or -1; levels of jobs not in ``order`` stay.
        segments: number of segments in use.

    Returns:
        Number of segments in use; -1 if a job cannot meet its deadline.
    """
    remaining, pause, level_now, started, deadline, rates = facts
    room = reserved.shape[1]
    used = np.zeros(room, dtype=np.int64)
    for j in range(len(reserved)):
        for s in range(segments):
            if reserved[j, s] >= 0:
                used[s] += counts[reserved[j, s]]
    trial = np.full(room, -1, dtype=np.int64)
    for j in order:
        finish = np.inf
        last = 0
        for limit in range(max(0, share[j]), len(counts)):
            if rates[j, limit] <= 0:
                continue
            left, stop, at, begun = remaining[j], pause[j], level_now[j], started[j]
            for s in range(segments):
                if times[s] >= deadline[j]:
                    break
                level = limit
                while level >= 0:
                    if rates[j, level] > 0 and used[s] + counts[level] <= total:
                        break
                    level -= 1
                if level != at:
                    stop = rescale_s if begun and level >= 0 else 0.0
                    at = level
                trial[s] = level
                if level < 0:
                    continue
                begun = True
                length = times[s + 1] - times[s]
                need = stop + left / rates[j, level]
                if need <= length:
                    finish = times[s] + need
                    last = s
                    break
                left -= max(0.0, length - stop) * rates[j, level]
                stop = max(0.0, stop - length)
            if finish <= deadline[j] + _ROUNDING_S:
                share[j] = limit
                break
            finish = np.inf
        if finish == np.inf:
            return -1
        until = finish
        if slot_s > 0:
            until = times[0] + np.ceil((finish - times[0]) / slot_s - 1e-9) * slot_s
        while last + 1 < segments and times[last + 1] < until:
            last += 1
            trial[last] = trial[last - 1]
        if until < times[last + 1]:
            for s in range(segments, last, -1):
                times[s + 1] = times[s]
                used[s] = used[s - 1]
                reserved[:, s] = reserved[:, s - 1]
            times[last + 1] = until
            segments += 1
        for s in range(last + 1):
            reserved[j, s] = trial[s]
            if trial[s] >= 0:
                used[s] += counts[trial[s]]
    return segments


def follow(
    facts: tuple[Any, ...], times: Array, reserved: Ints, delay_s: float, rescale_s: float
) -> Array:
    """[job] its planned end if it starts ``delay_s`` late; clears unneeded reservations.

    The delay includes the cost of the job's first change of level.
    """
    remaining, pause, level_now, started, _, rates = facts
    ends = np.full(len(reserved), np.inf)
    for j in range(len(reserved)):
        left, stop, at, begun = remaining[j], pause[j], level_now[j], started[j]
        if delay_s > 0:
            stop = delay_s
            at = reserved[j, 0]
        for s in range(reserved.shape[1]):
            if ends[j] < np.inf:
                if times[s] >= ends[j]:
                    reserved[j, s] = -1
                continue
            level = reserved[j, s]
            if level != at:
                stop = rescale_s if begun and level >= 0 else 0.0
                at = level
            if level < 0:
                continue
            begun = True
            length = times[s + 1] - times[s]
            need = stop + left / rates[j, level]
            if need <= length:
                ends[j] = times[s] + need
                continue
            left -= max(0.0, length - stop) * rates[j, level]
            stop = max(0.0, stop - length)
    return ends


def spread(
    facts: tuple[Any, ...],
    base: Ints,
    growing: Any,
    safe: Any,
    counts: Ints,
    total: int,
    rescale_s: float,
    most_saved: bool,
    by_arrival: bool,
) -> Ints:
    """[job] level: reserved and free GPUs by marginal return.

    Jobs without GPUs come before jobs that would get more. A change must repay its cost.

    Args:
        facts: facts of the jobs of the queue.
        base: [job] level that is reserved now, or -1.
        growing: [job] whether it may have GPUs at all.
        safe: [job] whether it meets its deadline if it changes its level now and once more soon.
        counts: [level] GPUs.
        total: GPUs of the cluster.
        rescale_s: seconds that a change costs.
        most_saved: saved GPU-time decides; otherwise added GPU-time.
        by_arrival: jobs without GPUs are served by arrival; otherwise the shortest first.
    """
    remaining, _, level_now, started, _, rates = facts
    level = base.copy()
    free = total
    for k in range(len(level)):
        if level[k] >= 0:
            free -= counts[level[k]]
    fastest = np.zeros(len(level))
    for k in range(len(level)):
        fastest[k] = rates[k].max()
    while free > 0:
        pick, pick_up, best = -1, -1, -np.inf
        waits = False
        for k in range(len(level)):
            if not growing[k] or (waits and level[k] >= 0):
                continue
            up = -1
            for nxt in range(level[k] + 1, len(counts)):
                if rates[k, nxt] <= 0:
                    continue
                now = level_now[k]
                if nxt != now and rescale_s > 0:
                    if not safe[k]:
                        continue
                    than = max(base[k], now)
                    if started[k] and than >= 0 and nxt > than:
                        gain = remaining[k] / rates[k, than] - remaining[k] / rates[k, nxt]
                        if gain <= rescale_s:
                            continue
                up = nxt
                break
            if up < 0:
                continue
            have = counts[level[k]] if level[k] >= 0 else 0
            if counts[up] - have > free:
                continue
            if level[k] < 0:
                value = -float(k) if by_arrival else -remaining[k] / fastest[k]
                if not waits:
                    waits, best = True, -np.inf
            else:
                added = counts[up] * remaining[k] / rates[k, up]
                added -= have * remaining[k] / rates[k, level[k]]
                value = added / (counts[up] - have)
                if most_saved:
                    value = -value
            if value > best:
                pick, pick_up, best = k, up, value
        if pick < 0:
            break
        have = counts[level[pick]] if level[pick] >= 0 else 0
        free -= counts[pick_up] - have
        level[pick] = pick_up
    return level
