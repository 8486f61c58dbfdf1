"""Ends that are only upper bounds: communication that was over before anyone waited for it.

A wait that returns at once shows that its transfer is over, but not when it ended. Such an end is
known if another member of the transfer saw it. The other ends are estimated. A collective that is
queued in a stream is estimated from the next known end of its queue. All other transfers take the
usual time of their kind. No other time is measured from a bound.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from paceline.graph.graph import Durations, StepGraph
from paceline.trace.kinds import OpKind

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Halvings of the interval that holds the common transfer time of a queue: to 1e-12 of it.
HALVINGS = 40


def settle_late_ends(graph: StepGraph, start: Durations, end: Durations, late: Durations) -> int:
    """Replace ends that are upper bounds by known or estimated ones, in place.

    Args:
        graph: the ops.
        start: recorded starts.
        end: recorded ends.
        late: 1 where the end is an upper bound, 0 elsewhere, in the layout of the ends.

    Returns:
        the number of estimated ends.
    """
    if not late.values.any():
        return 0
    estimated = 0
    usual = _Usual(graph, start, end, late)
    queued = np.zeros(graph.n_ops, dtype=bool)
    for queue in graph.queues:
        groups = [graph.dp_groups_of[int(graph.group[op])] for op in queue]
        queued[np.concatenate(groups)] = True
        estimated += _settle_queue([_Meeting(m, start, end, late) for m in groups], usual)
    for members in _meetings(graph, ~queued):
        estimated += _settle_alone(_Meeting(members, start, end, late), usual)
    return estimated


def _meetings(graph: StepGraph, wanted: Mask) -> Iterator[npt.NDArray[np.int64]]:
    """The members of each transfer."""
    for members in (*graph.pairs, *graph.dp_groups):
        if wanted[members[0]]:
            yield members


class _Meeting:
    """One transfer in every step: its launch, its end, and whether a member saw the end."""

    def __init__(
        self, members: npt.NDArray[np.int64], start: Durations, end: Durations, late: Durations
    ) -> None:
        graph = start.graph
        self.kind = OpKind(int(graph.kind[members[0]]))
        self.within = not bool(graph.spans_dp[graph.group[members[0]]])
        self.ends = [end.row(int(op)) for op in members]  # each [step, dp], views
        self.lates = [late.row(int(op)) > 0 for op in members]
        starts = np.stack([start.row(int(op)) for op in members]) if self.within else None
        if starts is not None:  # a transfer of each replica: [step, dp]
            self.launch: Array = starts.max(axis=0)
            stack, late_stack = np.stack(self.ends), np.stack(self.lates)
            self.bound: Array = stack.min(axis=0)
            self.known: Mask = np.logical_not(late_stack.all(axis=0))
        else:  # one over data-parallel ranks: [step, dp], equal among those that meet
            dps = np.concatenate([graph.variant_dps[int(graph.variant[op])] for op in members])
            launches = graph.latest_of_peers(members, [start.row(int(op)) for op in members])
            earliest = graph.latest_of_peers(members, [-row for row in self.ends])
            seen = graph.latest_of_peers(members, [np.where(late, 0.0, 1.0) for late in self.lates])
            shape = (len(launches[0]), graph.n_dp)
            self.launch, self.bound, known = (np.empty(shape) for _ in range(3))
            for table, rows in (
                (self.launch, launches),
                (self.bound, [-row for row in earliest]),
                (known, seen),
            ):
                table[:, dps] = _over(
                    [
                        np.broadcast_to(row, own.shape)
                        for row, own in zip(rows, self.ends, strict=True)
                    ]
                )
            self.known = known > 0
            self.dps = [graph.variant_dps[int(graph.variant[op])] for op in members]

    @property
    def any_late(self) -> bool:
        """Whether a member has only a bound in some step."""
        return any(bool(late.any()) for late in self.lates)

    def settle(self, end: Array) -> int:
        """Give members that have only a bound this end; returns the number of estimated ends."""
        estimated = 0
        settled = np.where(self.known, self.bound, end)
        for place, (own, late) in enumerate(zip(self.ends, self.lates, strict=True)):
            dps = slice(None) if self.within else self.dps[place]
            own[late] = settled[:, dps][late]
            estimated += int((late & ~self.known[:, dps]).sum())
        return estimated


def _over(rows: list[npt.NDArray[np.float64]] | list[Mask]) -> npt.NDArray[np.float64]:
    """Rows [step, dp] of all variants side by side."""
    joined: npt.NDArray[np.float64] = np.concatenate(rows, axis=1)
    return joined


class _Usual:
    """The usual transfer time of each kind, over transfers whose end is known.

    Without known ends it is the shortest bound: if transfers are alike, none took longer.
    """

    def __init__(self, graph: StepGraph, start: Durations, end: Durations, late: Durations) -> None:
        seen: dict[OpKind, list[Array]] = {}
        shortest: dict[OpKind, float] = {}
        for members in _meetings(graph, np.ones(graph.n_ops, dtype=bool)):
            meeting = _Meeting(members, start, end, late)
            took, kind = meeting.bound - meeting.launch, meeting.kind
            seen.setdefault(kind, []).append(took[meeting.known])
            shortest[kind] = min(shortest.get(kind, np.inf), float(took.min()))
        self.seconds = shortest | {
            kind: float(np.median(values))
            for kind, parts in seen.items()
            if len(values := np.concatenate(parts))
        }

    def of(self, kind: OpKind) -> float:
        """Seconds."""
        return max(0.0, self.seconds[kind])


def _settle_alone(meeting: _Meeting, usual: _Usual) -> int:
    if not meeting.any_late:
        return 0
    return meeting.settle(np.minimum(meeting.bound, meeting.launch + usual.of(meeting.kind)))


def _settle_queue(queue: list[_Meeting], usual: _Usual) -> int:
    """Settle the meetings of one stream, in its order: one at a time is under way."""
    if not any(meeting.any_late for meeting in queue):
        return 0
    ends = [meeting.bound.copy() for meeting in queue]
    took = usual.of(queue[0].kind)
    done: dict[tuple[float, ...], list[float]] = {}  # ranks that meet have equal times
    for cell in np.ndindex(*ends[0].shape):
        launch = [float(meeting.launch[cell]) for meeting in queue]
        bound = [float(meeting.bound[cell]) for meeting in queue]
        key = (*launch, *bound)
        if key not in done:
            known = [bool(meeting.known[cell]) for meeting in queue]
            done[key] = queue_ends(launch, bound, known, took)
        for place, seconds in enumerate(done[key]):
            ends[place][cell] = seconds
    return sum(meeting.settle(end) for meeting, end in zip(queue, ends, strict=True))


def queue_ends(
    launch: list[float], bound: list[float], known: list[bool], usual_s: float
) -> list[float]:
    """Ends of collectives that run one after the other; only some ends were seen.

    Between two known ends all take equally long, so that the last one ends when it was seen. Behind
    the last known end each takes the usual time, if the bounds allow it.

    Args:
        launch: for each, the time when its last member was there.
        bound: for each, its end or the upper bound of it.
        known: for each, whether the bound is its end.
        usual_s: usual transfer time.
    """
    ends = list(bound)
    free, low = -np.inf, 0
    while low < len(ends):
        high = next((at for at in range(low, len(ends)) if known[at]), len(ends))
        if high == low:
            free, low = ends[low], low + 1
            continue
        stop = min(high + 1, len(ends))
        longest = _common_s(launch[low:stop], bound[low:stop], free)
        took = longest if high < len(ends) else min(usual_s, longest)
        ends[low:high] = _served(launch[low:high], took, free)
        free, low = ends[high - 1], high
    return ends


def _served(launch: list[float], took: float, free: float) -> list[float]:
    """When each ends, if all take equally long and each waits for the one before."""
    ends = []
    for at in launch:
        free = max(at, free) + took
        ends.append(free)
    return ends


def _common_s(launch: list[float], bound: list[float], free: float) -> float:
    """The longest transfer time common to all with which no end exceeds its bound."""
    low, high = 0.0, max(0.0, min(b - a for a, b in zip(launch, bound, strict=True)))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        late = any(e > b for e, b in zip(_served(launch, middle, free), bound, strict=True))
        low, high = (low, middle) if late else (middle, high)
    return low
