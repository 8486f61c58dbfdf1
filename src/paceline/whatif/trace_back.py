"""From the last end of a step back to its start: which operation each moment waited for."""

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

#: Interpreted, a segment costs about 5 us. Above this estimate the compiled loop repays its
#: loading, where numba is there already and where it is not.
WARM_ABOVE_S, COLD_ABOVE_S = 0.3, 1.5
_SEGMENT_S = 5e-6

_NONE = np.empty(0)


@dataclass(frozen=True)
class _Tables:
    """When the ops of one step end, and how long their launches were delayed.

    An op's row of data-parallel ranks (of its variant) starts at its pointer in the flat values.
    """

    end: Floats
    end_ptr: Ints
    delays: Floats  # empty where none were replayed
    delay_ptr: Ints


@dataclass(frozen=True)
class _Launch:
    """An op of a rank, when it was ready and when launched, and after which op (-1 = none)."""

    op: int
    dp: int
    ready: float
    at: float
    before: int


class Walker:
    """Walks back through steps of one graph."""

    def __init__(self, graph: StepGraph, n_steps: int) -> None:
        """Prepares for about ``n_steps`` steps."""
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

    def walk(
        self, end: Durations, replay: Replay | None = None, first: int = 0
    ) -> Iterator[Segments]:
        """The path of every step of ``end``.

        Args:
            end: when every op ends, seconds.
            replay: the launch delays in it; None where none were replayed.
            first: index of the first step of ``end`` among those of ``replay``.
        """
        shift = np.append(self.n_dp, 0)  # from one step to the next in the row of an op
        for step, (op, dp, total) in enumerate(_last_ends(end)):
            ends = (end.values, end.row_ptr + step * shift)
            delays = (_NONE, ends[1])
            if replay is not None:
                delays = (replay.delays.values, replay.delays.row_ptr + (first + step) * shift)
            path = self._walk(op, dp, total, _Tables(*ends, *delays))
            yield path if replay is None else self._cut(path, end, step, replay, first + step)

    def _walk(self, op: int, dp: int, total: float, tables: _Tables) -> Segments:
        """The path of a step that an op ends at ``total`` seconds."""
        room = 2 * (len(self.graph.node_ptr) - 1)  # a path passes every node once, with its delay
        ops, dps = np.empty((2, room), dtype=np.int64)
        late, start = np.empty(room, dtype=np.bool_), np.empty(room)
        arrays = (tables.end, tables.end_ptr, tables.delays, tables.delay_ptr, ops, late, start)
        n = 0
        while op >= 0:
            if self.wide[op]:
                last = self._last_member(op, dp, tables)
                ops[n], dps[n], late[n], start[n] = op, dp, False, last.at
                n += 1
                if last.at != last.ready:
                    ops[n], dps[n], late[n], start[n] = last.op, last.dp, True, last.ready
                    n += 1
                op, dp = last.before, last.dp
            else:
                low = n
                n, op = self.loop(op, int(self.graph.dp_index[dp]), n, *self.arrays, *arrays)
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

    def _last_member(self, op: int, dp: int, tables: _Tables) -> _Launch:
        """The last launched member of an op's collective; of equal ones itself, else the first."""
        graph, node = self.graph, self.node_of[op]
        best = _Launch(op, dp, 0.0, -np.inf, -1)
        for member in graph.order[graph.node_ptr[node] : graph.node_ptr[node + 1]].tolist():
            n_dp, dps = int(self.n_dp[member]), graph.variant_dps[graph.variant[member]]
            deps = graph.dep[graph.dep_ptr[member] : graph.dep_ptr[member + 1]]
            ends = tables.end[tables.end_ptr[deps][:, None] + np.arange(n_dp)]  # [dep, dp]
            ready = ends.max(axis=0) if len(deps) else np.zeros(n_dp)
            at = ready
            if len(tables.delays):
                low = int(tables.delay_ptr[member])
                at = ready + tables.delays[low : low + n_dp]
            lane = int(at.argmax())
            own = int(graph.dp_index[dp])
            if member == op and at[own] == at[lane]:
                lane = own
            itself = member == op and lane == own
            if at[lane] > best.at or (itself and at[lane] == best.at):
                before = int(deps[ends[:, lane].argmax()]) if len(deps) else -1
                best = _Launch(member, int(dps[lane]), float(ready[lane]), float(at[lane]), before)
        return best

    def _cut(
        self, path: Segments, end: Durations, step: int, replay: Replay, step_of_replay: int
    ) -> Segments:
        """The path with what its workers run while the next of its ops is not launched."""

        def busy(op: int, dp: int) -> Busy:
            v = int(self.graph.variant[op])
            durations = replay.durations.block(v)[:, step_of_replay]
            return self.workers.busy(op, dp, end.block(v)[:, step], durations)

        return cut_occupied(path, busy)


def _last_ends(end: Durations) -> list[tuple[int, int, float]]:
    """(op, dp, seconds) of the last end of every step; of equal ones the first op and rank."""
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
    lane: Any,
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
    """Fill segments from the n-th on, last first, up to where replicas meet or the step begins.

    The op that ends last began when the last of its peers was launched; that one was launched a
    delay after the last end it depended on, and so on. Of equally late ones an op itself comes
    first, then the one with the lowest number.

    Returns:
        how many segments there are, and the op where it stopped (-1 = the step's start).
    """
    while op >= 0 and not wide[op]:
        node = node_of[op]
        meeting = -np.inf
        peer, ready, before = op, 0.0, -1
        for place in range(node_ptr[node], node_ptr[node + 1]):
            member = order[place]
            latest, source = 0.0, -1
            for edge in range(dep_ptr[member], dep_ptr[member + 1]):
                at = end[end_ptr[dep[edge]] + lane]
                if source < 0 or at > latest:
                    latest, source = at, dep[edge]
            launch = latest
            if len(delays) > 0:
                launch = latest + delays[delay_ptr[member] + lane]
            if launch > meeting or (launch == meeting and member == op):
                meeting, ready, peer, before = launch, latest, member, source
        out_op[n], out_late[n], out_start[n] = op, False, meeting
        n += 1
        if meeting != ready:
            out_op[n], out_late[n], out_start[n] = peer, True, ready
            n += 1
        op = before
    return n, op
