"""Walk from the end of a step back to its start, along the operations that were waited for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, StepGraph
from paceline.jit import compiled
from paceline.whatif.segments import Busy, Replay, Segments, Sort, Workers, cut_occupied

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Estimated time of the interpreted loop above which the compiled loop is used: with numba already
#: imported, and without. A segment takes about 5 us.
WARM_ABOVE_S, COLD_ABOVE_S = 0.3, 1.5
_SEGMENT_S = 5e-6


@dataclass(frozen=True)
class _Last:
    """The last launched member of a collective in each step.

    Attributes:
        op, dp: [step] the member; of equally late ones, the first.
        ready, at: [step] earliest and actual time of its launch, seconds.
        before: [step] the op for which it waited, -1 = none.
    """

    op: list[int]
    dp: list[int]
    ready: list[float]
    at: list[float]
    before: list[int]


class Walker:
    """Walks back through steps of one graph."""

    def __init__(self, graph: StepGraph, n_steps: int) -> None:
        """Prepare for about ``n_steps`` steps."""
        self.graph = graph
        self.node_of = np.empty(graph.n_ops, dtype=np.int64)
        sizes = np.diff(graph.node_ptr)
        self.node_of[graph.order] = np.repeat(np.arange(len(sizes)), sizes)
        self.wide = np.zeros(graph.n_ops, dtype=bool)  # [op] of a collective over the replicas
        grouped = graph.group >= 0
        self.wide[grouped] = graph.spans_dp[graph.group[grouped]]
        self.n_dp = np.array([len(dps) for dps in graph.variant_dps])[graph.variant]
        self.workers = Workers(graph)
        self.sort_of = np.where(self.workers.local, Sort.COMPUTE, Sort.TRANSFER)
        estimate = n_steps * _SEGMENT_S * graph.n_ops / graph.n_pp
        fast = estimate > (WARM_ABOVE_S if "numba" in sys.modules else COLD_ABOVE_S)
        arrays = (self.node_of, graph.node_ptr, graph.order, self.wide, graph.dep_ptr, graph.dep)
        self.loop: Callable[..., tuple[int, int]] = compiled(_walk_back) if fast else _walk_back
        self.arrays = arrays if fast else tuple(array.tolist() for array in arrays)
        room = 2 * len(sizes)  # a path has at most an op and a delay of each node
        self.ops, self.dps = np.empty((2, room), dtype=np.int64)
        self.late, self.start = np.empty(room, dtype=np.bool_), np.empty(room)

    def walk(self, end: Durations, replay: Replay | None, first: int) -> Iterator[Segments]:
        """The path of every step of ``end``.

        Args:
            end: ends of all ops, seconds.
            replay: the input of a simulation with launch delays; None without delays.
            first: index of the first step of ``end`` among those of ``replay``.
        """
        meetings = _Meetings(self.graph, end, replay, first)
        for step, (op, dp, total) in enumerate(_last_ends(end)):
            path = self._walk(op, dp, total, step, end, replay, first, meetings)
            yield path if replay is None else self._cut(path, end, step, replay, first + step)

    def _walk(
        self,
        op: int,
        dp: int,
        total: float,
        step: int,
        end: Durations,
        replay: Replay | None,
        first: int,
        meetings: _Meetings,
    ) -> Segments:
        """The path of a step whose last op is ``op`` of rank ``dp``, with its end at ``total``."""
        ops, dps, late, start = self.ops, self.dps, self.late, self.start
        delays = (np.empty(0), end.row_ptr)
        if replay is not None:
            delays = (replay.delays.values, replay.delays.row_ptr)
        n = 0
        while op >= 0:
            if self.wide[op]:
                last = meetings.last(int(self.node_of[op]), dp)
                at, ready = last.at[step], last.ready[step]
                ops[n], dps[n], late[n], start[n] = op, dp, False, at
                op, dp = last.op[step], last.dp[step]
                n += 1
                if at != ready:
                    ops[n], dps[n], late[n], start[n] = op, dp, True, ready
                    n += 1
                op = last.before[step]
            else:
                low, n_dp, rank = n, int(self.n_dp[op]), int(self.graph.dp_index[dp])
                columns = (step * n_dp + rank, (first + step) * n_dp + rank)
                tables = (end.values, end.row_ptr, *delays)
                n, op = self.loop(op, *columns, n, *self.arrays, *tables, ops, late, start)
                dps[low:n] = dp
        sort = np.where(late[:n], Sort.DELAY, self.sort_of[ops[:n]])
        starts = start[:n][::-1].copy()
        return Segments(
            op=ops[:n][::-1].copy(),
            dp=dps[:n][::-1].copy(),
            sort=sort[::-1],
            start_s=starts,
            end_s=np.append(starts[1:], total),
        )

    def _cut(
        self, path: Segments, end: Durations, step: int, replay: Replay, step_of_replay: int
    ) -> Segments:
        """The path, with its launch delays cut where their workers run other operations."""

        def busy(op: int, dp: int) -> Busy:
            v = int(self.graph.variant[op])
            durations = replay.durations.block(v)[:, step_of_replay]
            return self.workers.busy(op, dp, end.block(v)[:, step], durations)

        return cut_occupied(path, busy)


class _Meetings:
    """The last launched members of collectives over data-parallel ranks, in some steps."""

    def __init__(self, graph: StepGraph, end: Durations, replay: Replay | None, first: int) -> None:
        self.graph, self.end, self.replay, self.first = graph, end, replay, first
        self.cache: dict[tuple[int, int], _Last] = {}
        # (family, set, variant) -> [lane] index within the variant of a replica of the set.
        self.lanes: dict[tuple[int, int, int], Ints] = {}

    def last(self, node: int, dp: int) -> _Last:
        """The last launched members of a node's collective, in the set of a rank."""
        graph = self.graph
        family = int(graph.family[graph.group[graph.order[graph.node_ptr[node]]]])
        number = int(graph.families[family, dp])
        key = (node, number)
        if key not in self.cache:
            self.cache[key] = self._last(node, family, number)
        return self.cache[key]

    def _last(self, node: int, family: int, number: int) -> _Last:
        graph, n_steps = self.graph, self.end.n_steps
        steps = np.arange(n_steps)
        op, dp, before = np.full((3, n_steps), -1)
        ready, at = np.zeros(n_steps), np.full(n_steps, -np.inf)
        for member in graph.order[graph.node_ptr[node] : graph.node_ptr[node + 1]].tolist():
            variant = int(graph.variant[member])
            lanes = self._lanes(family, number, variant)
            if not len(lanes):
                continue
            latest, source = self._latest_of(member, lanes)
            launch = latest
            if self.replay is not None:
                delays = self.replay.delays.row(member)
                launch = latest + delays[self.first : self.first + n_steps, lanes]
            lane = launch.argmax(axis=1)
            own = launch[steps, lane]
            later = own > at
            at, ready = np.where(later, own, at), np.where(later, latest[steps, lane], ready)
            op = np.where(later, member, op)
            dp = np.where(later, graph.variant_dps[variant][lanes[lane]], dp)
            last_dep = source if isinstance(source, int) else source[steps, lane]
            before = np.where(later, last_dep, before)
        return _Last(op.tolist(), dp.tolist(), ready.tolist(), at.tolist(), before.tolist())

    def _lanes(self, family: int, number: int, variant: int) -> Ints:
        key = (family, number, variant)
        if key not in self.lanes:
            dps = self.graph.variant_dps[variant]
            self.lanes[key] = np.flatnonzero(self.graph.families[family, dps] == number)
        return self.lanes[key]

    def _latest_of(self, op: int, lanes: Ints) -> tuple[Floats, Ints | int]:
        """[step, lane] the latest end among an op's dependencies, and the dependency; -1 = none.

        Of equally late dependencies, the first counts. A single one is returned as one number.
        """
        graph = self.graph
        deps = graph.dep[graph.dep_ptr[op] : graph.dep_ptr[op + 1]].tolist()
        if not deps:
            return np.zeros((self.end.n_steps, len(lanes))), -1
        first, *others = deps
        latest: Floats = self.end.row(first)[:, lanes]
        source: Ints | int = first
        for dep in others:
            ends = self.end.row(dep)[:, lanes]
            source = np.where(ends > latest, dep, source)
            latest = np.maximum(latest, ends)
        return latest, source


def _last_ends(end: Durations) -> list[tuple[int, int, float]]:
    """[step] (op, dp, seconds) of the last end; of equal ones, the first op and rank."""
    best: list[tuple[int, int, float]] = [(-1, -1, -np.inf)] * end.n_steps
    for v, dps in enumerate(end.graph.variant_dps):
        block = end.block(v)
        latest = block.max(axis=2)  # [op, step]
        for step, op in enumerate(latest.argmax(axis=0).tolist()):
            if latest[op, step] > best[step][2]:
                rank = int(dps[block[op, step].argmax()])
                first = int(end.graph.variant_ptr[v])
                best[step] = (first + op, rank, float(latest[op, step]))
    return best


def _walk_back(
    op: Any,
    column: Any,
    delay_column: Any,
    n: Any,
    node_of: Any,
    node_ptr: Any,
    order: Any,
    wide: Any,
    dep_ptr: Any,
    dep: Any,
    end: Any,
    end_ptr: Any,
    delays: Any,
    delay_ptr: Any,
    out_op: Any,
    out_late: Any,
    out_start: Any,
) -> tuple[int, int]:
    """Write segments from the n-th on, backwards, until replicas meet or the step begins.

    The op that ends last began when the last of its peers was launched. That peer was launched a
    delay after the end of its last dependency, and so on. Of equally late peers, the op itself
    counts, or else the first.

    Returns:
        the number of segments, and the op where it stopped (-1 = the step's start).
    """
    while op >= 0 and not wide[op]:
        node = node_of[op]
        meeting = -np.inf
        peer, ready, before = op, 0.0, -1
        for place in range(node_ptr[node], node_ptr[node + 1]):
            member = order[place]
            latest, source = 0.0, -1
            for edge in range(dep_ptr[member], dep_ptr[member + 1]):
                at = end[end_ptr[dep[edge]] + column]
                if source < 0 or at > latest:
                    latest, source = at, dep[edge]
            launch = latest
            if len(delays) > 0:
                launch = latest + delays[delay_ptr[member] + delay_column]
            if launch > meeting or (launch == meeting and member == op):
                meeting, ready, peer, before = launch, latest, member, source
        out_op[n], out_late[n], out_start[n] = op, False, meeting
        n += 1
        if meeting != ready:
            out_op[n], out_late[n], out_start[n] = peer, True, ready
            n += 1
        op = before
    return n, op
