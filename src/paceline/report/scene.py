"""One drawn scenario: its events, the links between them, critical path and counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.report import events
from paceline.report.events import Events
from paceline.simulate import Timeline
from paceline.trace import OpKind
from paceline.trace.kinds import LOCAL_KINDS
from paceline.whatif.critical_path import CriticalPath, path_of
from paceline.whatif.segments import Replay

Ints = npt.NDArray[np.int64]

#: Most arrows out of one collective, to the drawn members that waited longest.
MAX_ARROWS = 8


@dataclass(frozen=True)
class Links:
    """Links between the events of a simulated timeline.

    Attributes:
        begin_s: [event] begin of its transfer: all its peers are launched then. -inf without peers.
        critical: [event] whether it is on the critical path.
        source: [arrow] event at its start: a send, the member of a collective that is launched
            last, or an op that a program waited for.
        target: [arrow] event at its end: the recv, a member that waited, or the compute after a
            wait.
    """

    begin_s: npt.NDArray[np.float64]
    critical: npt.NDArray[np.bool_]
    source: Ints
    target: Ints

    def without_arrows(self) -> Links:
        """The same events without links."""
        nothing = np.empty(0, dtype=np.int64)
        return Links(np.full(len(self.begin_s), -np.inf), self.critical, nothing, nothing)


@dataclass(frozen=True)
class Counter:
    """A counter over time.

    Attributes:
        name, unit: its name and unit.
        step: [sample] step number.
        at_s: [sample] seconds since the step's start.
        value: [sample].
    """

    name: str
    unit: str
    step: Ints
    at_s: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scene:
    """One drawn scenario.

    Attributes:
        events: the operations.
        name: name of the scene; empty if there is only one.
        links: links between the events; None for rows of a trace, which are drawn unchanged.
        path: the critical path of the drawn steps; it may pass replicas that are not drawn.
        counters: numbers over time.
    """

    events: Events
    name: str = ""
    links: Links | None = None
    path: CriticalPath | None = None
    counters: tuple[Counter, ...] = ()


def scene_of(
    timeline: Timeline,
    steps: Ints,
    replicas: Sequence[int] | None = None,
    *,
    name: str = "",
    replay: Replay | None = None,
    counters: tuple[Counter, ...] = (),
) -> Scene:
    """The scene of a simulated timeline.

    Args:
        timeline: start and end of every op of these steps.
        steps: [step] their numbers.
        replicas: data-parallel ranks to draw; None draws all.
        name: name of the scenario.
        replay: the input of the simulation, if launch delays were replayed.
        counters: numbers over time.
    """
    scene_events = events.from_timeline(timeline, steps, replicas)
    path = path_of(timeline.graph, steps, [(0, timeline.end)], replay)
    places = _Places(timeline, replicas)
    return Scene(scene_events, name, _links(timeline, places, path), path, counters)


class _Places:
    """Indices of the events of :func:`paceline.report.events.from_timeline`."""

    def __init__(self, timeline: Timeline, replicas: Sequence[int] | None) -> None:
        graph = timeline.graph
        drawn_dps = np.arange(graph.n_dp) if replicas is None else np.unique(np.asarray(replicas))
        self.graph, self.n_steps = graph, timeline.end.n_steps
        self.dps = [np.intersect1d(dps, drawn_dps) for dps in graph.variant_dps]
        self.n_ops = np.diff(graph.variant_ptr)
        self.n_dp = np.array([len(dps) for dps in self.dps])
        sizes = self.n_ops * self.n_dp * self.n_steps
        self.first = np.cumsum(sizes) - sizes
        self.n_events = int(sizes.sum())
        self.rank = np.full(graph.n_dp, -1)  # [dp] index among the drawn ranks of its variant
        for dps in self.dps:
            self.rank[dps] = np.arange(len(dps))

    def of(self, step: Ints, dp: Ints, op: Ints) -> Ints:
        """Events of ops in steps (by index); -1 if their replica is not drawn."""
        v = self.graph.variant[op]
        row = step * self.n_dp[v] + self.rank[dp]
        place = self.first[v] + row * self.n_ops[v] + op - self.graph.variant_ptr[v]
        return np.where(self.rank[dp] >= 0, place, -1)


def _links(timeline: Timeline, places: _Places, path: CriticalPath) -> Links:
    begin = np.full(places.n_events, -np.inf)
    critical = np.zeros(places.n_events, dtype=bool)
    on_path = places.of(path.step_index, path.dp, path.op)
    critical[on_path[on_path >= 0]] = True
    arrows = [
        *_pair_arrows(timeline, places, begin),
        *_wide_arrows(timeline, places, begin),
        *_wait_arrows(timeline, places),
    ]
    source, target = (
        np.concatenate([np.empty(0, dtype=np.int64), *column])
        for column in (zip(*arrows, strict=True) if arrows else ((), ()))
    )
    return Links(begin, critical, source, target)


def _pair_arrows(
    timeline: Timeline, places: _Places, begin: npt.NDArray[np.float64]
) -> list[tuple[Ints, Ints]]:
    """Arrows from send to recv; in an all-reduce of two, from the member that is launched last."""
    graph, arrows = timeline.graph, []
    for v, dps in enumerate(places.dps):
        pairs = graph.variant_pairs(v)
        if not len(dps) or not len(pairs):
            continue
        kind = graph.kind[graph.variant_ops(v)]
        receives = np.isin(kind[pairs[:, 0]], (OpKind.FORWARD_RECV, OpKind.BACKWARD_RECV))
        pairs = np.where(receives[:, None], pairs[:, ::-1], pairs)
        start = timeline.start.block(v)[:, :, graph.dp_index[dps]]
        first, second = start[pairs[:, 0]], start[pairs[:, 1]]  # [pair, step, dp]
        shape = first.shape
        from_event, to_event = (
            places.of(
                np.broadcast_to(np.arange(shape[1])[:, None], shape).ravel(),
                np.broadcast_to(dps, shape).ravel(),
                np.broadcast_to(side[:, None, None] + graph.variant_ptr[v], shape).ravel(),
            )
            for side in pairs.T
        )
        begin[from_event] = begin[to_event] = np.maximum(first, second).ravel()
        equals = kind[pairs[:, 0]] == OpKind.EMBEDDING_GRADS_ALL_REDUCE
        back = (equals[:, None, None] & (second > first)).ravel()
        arrows.append((np.where(back, to_event, from_event), np.where(back, from_event, to_event)))
    return arrows


def _wait_arrows(timeline: Timeline, places: _Places) -> list[tuple[Ints, Ints]]:
    """Arrows from communication to computes whose programs waited for it."""
    graph, arrows = timeline.graph, []
    if not graph.programmed:
        return []
    local = np.isin(graph.kind, [int(kind) for kind in LOCAL_KINDS])
    after = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    awaited = np.flatnonzero(local[after] & ~local[graph.dep])
    for before, behind in zip(graph.dep[awaited].tolist(), after[awaited].tolist(), strict=True):
        dps = places.dps[int(graph.variant[before])]
        index = graph.dp_index[dps]
        end, start = timeline.end.row(before)[:, index], timeline.start.row(behind)[:, index]
        step, rank = np.nonzero(end >= start)
        arrows.append(
            tuple(places.of(step, dps[rank], np.full(len(step), op)) for op in (before, behind))
        )
    return [(source, target) for source, target in arrows]


def _wide_arrows(
    timeline: Timeline, places: _Places, begin: npt.NDArray[np.float64]
) -> list[tuple[Ints, Ints]]:
    """Arrows through the collectives that span the data-parallel ranks."""
    graph, arrows = timeline.graph, []
    for members in graph.dp_groups:
        variants = graph.variant[members]
        op = np.concatenate(
            [np.full(len(graph.variant_dps[v]), m) for m, v in zip(members, variants, strict=True)]
        )
        dp = np.concatenate([graph.variant_dps[v] for v in variants])
        start = np.concatenate([timeline.start.row(m) for m in members.tolist()], axis=1)
        sets = graph.sets_of(int(members[0]))[dp]
        for number in np.unique(sets).tolist():
            met = np.flatnonzero(sets == number)
            arrows += _meeting_arrows(places, begin, op[met], dp[met], start[:, met])
    return arrows


def _meeting_arrows(
    places: _Places,
    begin: npt.NDArray[np.float64],
    op: Ints,
    dp: Ints,
    start: npt.NDArray[np.float64],
) -> list[tuple[Ints, Ints]]:
    """Arrows within one collective, from the last launched member to the others.

    Args:
        places: indices of events.
        begin: [event] starts of transfers, to be filled in.
        op: [member].
        dp: [member].
        start: [step, member] launches, seconds.
    """
    arrows = []
    drawn_members = np.flatnonzero(places.rank[dp] >= 0)
    for step in range(places.n_steps):
        last = int(start[step].argmax())
        event = places.of(np.full(len(drawn_members), step), dp[drawn_members], op[drawn_members])
        begin[event] = start[step, last]
        if places.rank[dp[last]] < 0:
            continue  # the last launched member is not drawn
        longest = np.argsort(start[step, drawn_members], kind="stable")
        longest = longest[drawn_members[longest] != last][:MAX_ARROWS]
        source = event[drawn_members == last]
        arrows.append((np.repeat(source, len(longest)), event[longest]))
    return arrows
