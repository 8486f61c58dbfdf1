"""Slow ranks from a log of collective calls; without durations, by the order of arrivals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.detect.steps_of_calls import StepTimes
from paceline.detect.who import Suspect, Transfers, Work, find_suspects, number, waited_for
from paceline.detect.who_late import who_is_late
from paceline.errors import DetectError
from paceline.occurrence import occurrence
from paceline.trace.calls import CallLog

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Steps of a window: enough for a median, but few enough for a constant state of the job.
WINDOW_STEPS = 50


def who_from_calls(
    log: CallLog, steps: StepTimes, first: int | None = None, end: int | None = None
) -> tuple[Suspect, ...]:
    """The slow ranks in a window of a call log, the costliest first; may be empty.

    Calls of a communicator are matched by operation, size, and their number in the step; different
    groups need different names. Sends and recvs are evaluated only in communicators of two.

    Args:
        log: calls.
        steps: the steps found in it.
        first: first step of the window, of which at most 50 whole steps are used; None: the last
            50.
        end: the step after it; None: the end of the log.

    Raises:
        DetectError: the log has no whole step in the window.
    """
    chosen = steps_inside(steps, first, end)
    if not len(chosen):
        high = int(steps.step.max()) + 1 if end is None else end
        low = high - WINDOW_STEPS if first is None else first
        what = "steps" if steps.is_whole is None else "wholly recorded steps"
        last = min(high, low + WINDOW_STEPS) - 1
        raise DetectError(f"the call log has no {what} from {low} to {last}")
    step_s = float(np.median(steps.duration_s[np.isin(steps.step, chosen)]))
    step = _steps_of_calls(log, steps)
    step = np.where(np.isin(step, chosen), step, -1)
    if log.duration_s is None:
        return who_is_late(log, step, step_s)
    window = _window(log, step)
    transfers, late = _transfers(window)
    n_steps = len(chosen)
    return find_suspects(transfers, _work(window, late, n_steps), step_s, n_steps)


def steps_inside(steps: StepTimes, first: int | None, end: int | None) -> Ints:
    """The whole steps of a window, as in :func:`who_from_calls`; may be empty."""
    whole = steps.whole_steps
    whole = whole if end is None else whole[whole < end]
    return whole[-WINDOW_STEPS:] if first is None else whole[whole >= first][:WINDOW_STEPS]


def is_comparable(log: CallLog) -> bool:
    """Whether a log can show slow ranks, which takes several ranks."""
    return len(np.unique(log.rank)) > 1


@dataclass(frozen=True, eq=False)
class _Window:
    """Calls of some steps.

    Attributes:
        rank, group, op, size, seconds: [call] as in the log, where group is the communicator.
        idle_s: [call] seconds between the rank's last event and the call.
        nth: [call] its number among its rank's similar calls in the step.
        step: [call] step number.
        kind: [call] the operation, where recvs count as their sends.
        flow: [call] 0 for a collective. For a send or recv the sender's place in the pair, from 1;
            -1 if the communicator has more than two members.
        upper: [call] whether the rank is the upper of a pair that sends and receives.
        members: [group] its ranks, ascending.
        names: [group] its name.
    """

    rank: Ints
    group: Ints
    op: Ints
    size: Ints
    seconds: Floats
    idle_s: Floats
    nth: Ints
    step: Ints
    kind: Ints
    flow: Ints
    upper: Ints
    members: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]


def _window(log: CallLog, step: Ints) -> _Window:
    """Calls with a step; -1 means none."""
    assert log.duration_s is not None
    rows = np.flatnonzero(step >= 0)
    rank, group, op, size = (c[rows] for c in (log.rank, log.communicator, log.op, log.size))
    pairs = np.unique(np.stack([group, rank]), axis=1)
    members = tuple(
        tuple(pairs[1, pairs[0] == index].tolist()) for index in range(len(log.communicators))
    )
    kind, flow, upper = _flows(log.ops, op, rank, group, members)
    alike = number(rank, step[rows], group, kind, size, flow)
    return _Window(
        rank=rank,
        group=group,
        op=op,
        size=size,
        seconds=log.duration_s[rows],
        idle_s=_idle_s(log)[rows],
        nth=occurrence((alike,), np.argsort(alike, kind="stable")),
        step=step[rows],
        kind=kind,
        flow=flow,
        upper=upper,
        members=members,
        names=log.communicators,
    )


def _steps_of_calls(log: CallLog, steps: StepTimes) -> Ints:
    """[call] its step; -1 without one."""
    step = np.full(len(log), -1)
    for rank, rows in log.of_ranks():
        mine = np.flatnonzero(steps.rank == rank)
        if not len(mine):
            continue
        start_s = steps.start_s[mine]
        at = np.searchsorted(start_s, log.time_s[rows], side="right") - 1
        ends = start_s + steps.duration_s[mine]
        inside = (at >= 0) & (log.time_s[rows] < ends[at])
        step[rows[inside]] = steps.step[mine][at[inside]]
    return step


def _idle_s(log: CallLog) -> Floats:
    """[call] seconds from the last begin or end of a call of the rank to the call's begin.

    In this time a rank does not wait for others, as such a wait ends with a call.
    """
    assert log.duration_s is not None
    idle_s = np.zeros(len(log))
    for _, rows in log.of_ranks():
        start_s = log.time_s[rows]
        end_s = np.sort(start_s + log.duration_s[rows])
        at = np.searchsorted(end_s, start_s, side="right")
        last_end = np.where(at > 0, end_s[at - 1], -np.inf)
        last = np.maximum(last_end, np.append(-np.inf, start_s[:-1]))
        idle_s[rows] = np.where(np.isfinite(last), start_s - last, 0.0)
    return idle_s


def _flows(
    ops: tuple[str, ...], op: Ints, rank: Ints, group: Ints, members: tuple[tuple[int, ...], ...]
) -> tuple[Ints, Ints, Ints]:
    """``kind``, ``flow`` and ``upper`` of a window."""
    names = [name.lower() for name in ops]
    sends = np.array(["send" in name and "recv" not in name for name in names])
    recvs = np.array(["recv" in name and "send" not in name for name in names])
    either = (sends | recvs)[op]
    pair = np.array([len(ranks) == 2 for ranks in members])[group]
    upper = either & pair & (rank == np.array([max(ranks, default=-1) for ranks in members])[group])
    sender = np.where(upper == sends[op], 2, 1)
    flow = np.where(either, np.where(pair, sender, -1), 0)
    kind = np.where(recvs[op], int(np.argmax(sends)) if sends.any() else op, op)
    return kind, flow, upper.astype(np.int64)


def _transfers(w: _Window) -> tuple[Transfers, dict[int, float]]:
    """Calls that all members made, and rank -> share of them in which others wait for it."""
    call = number(w.group, w.step, w.kind, w.size, w.flow, w.nth)
    members = np.array([len(ranks) for ranks in w.members])[w.group]
    complete = (np.bincount(call)[call] == members) & (members > 1) & (w.flow >= 0)
    rows = np.flatnonzero(complete)
    rows = rows[np.argsort(call[rows], kind="stable")]
    first = np.flatnonzero(np.diff(call[rows], prepend=-1))
    least_s = np.minimum.reduceat(w.seconds[rows], first) if len(first) else np.zeros(0)
    heads = rows[first]
    transfers = Transfers(w.group[heads], w.kind[heads], w.size[heads], least_s, w.names, w.members)
    if not len(rows):
        return transfers, {}
    waited_s = w.seconds[rows] - np.repeat(least_s, np.diff(np.append(first, len(rows))))
    return transfers, waited_for(call[rows], w.rank[rows], w.group[rows], waited_s)


def _work(w: _Window, late: dict[int, float], n_steps: int) -> Work:
    """Time of each rank between its calls.

    Other calls begin and end while a rank computes, so the time before a call is at most the
    compute that leads to it. At some place of the step it is all of that compute, and that value
    counts.
    """
    active = w.flow != 0
    # A recv is posted early, so the time before it is not the compute that leads to it.
    leads = ~active | ((w.flow == 2) == (w.upper == 1))
    label = number(w.op, w.size, w.upper)
    ranks, index = np.unique(w.rank, return_inverse=True)
    n_labels = int(label.max(initial=0)) + 1
    calls = np.zeros((len(ranks), n_labels))
    np.add.at(calls, (index, label), 1 / n_steps)
    longest = np.zeros((len(ranks), n_labels))
    place = number(index[leads], label[leads], w.nth[leads], w.group[leads])
    order = np.lexsort((w.idle_s[leads], place))
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    middle = first + (np.diff(np.append(first, len(order))) - 1) // 2
    rows = np.flatnonzero(leads)[order[middle]]
    np.maximum.at(longest, (index[rows], label[rows]), w.idle_s[rows])
    calls = np.rint(calls)
    _, pattern = np.unique(calls, axis=0, return_inverse=True)
    seconds = (longest * calls).sum(axis=1)
    waits = np.array([late.get(rank, 0.0) for rank in ranks.tolist()])
    return Work(ranks, pattern.reshape(-1), seconds, waits)
