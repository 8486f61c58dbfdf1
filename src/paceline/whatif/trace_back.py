"""From the last end of a step back to its start: which operation each moment waited for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, StepGraph
from paceline.jit import compiled
from paceline.whatif.segments import Busy, Replay, Segments, Sort, Workers, cut_occupied

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Interpreted, a segment costs about 6 us and a member of a collective 1 us. Above this estimate
#: the compiled loop repays its loading, where numba is there already and where it is not.
WARM_ABOVE_S, COLD_ABOVE_S = 0.3, 1.5
_SEGMENT_S, _MEMBER_S = 6e-6, 1e-6

_NONE = np.empty(0)


class Walker:
    """Walks back through steps of one graph."""

    def __init__(self, graph: StepGraph, n_steps: int) -> None:
        """Prepares for about ``n_steps`` steps."""
        self.graph = graph
        node_of = np.empty(graph.n_ops, dtype=np.int64)
        sizes = np.diff(graph.node_ptr)
        node_of[graph.order] = np.repeat(np.arange(len(sizes)), sizes)
        group = graph.group[graph.order[graph.node_ptr[:-1]]]
        spans = (group >= 0) & graph.spans_dp[group] if len(graph.spans_dp) else group >= 0
        dps = graph.variant_dps
        n_dp = np.array([len(d) for d in dps], dtype=np.int64)
        self.n_dp = n_dp[graph.variant]
        arrays = (
            *(node_of, graph.node_ptr, graph.order, spans, graph.variant, graph.dep_ptr, graph.dep),
            *(n_dp, np.append(0, np.cumsum(n_dp)), np.concatenate(dps), graph.dp_index),
        )
        self.workers = Workers(graph)
        self.sort_of = np.where(self.workers.local, Sort.COMPUTE, Sort.TRANSFER)
        self.fast = self._worth_compiling(n_steps)
        self.loop: Callable[..., int] = compiled(_walk_back) if self.fast else _walk_back
        self.arrays = arrays if self.fast else tuple(array.tolist() for array in arrays)

    def _worth_compiling(self, n_steps: int) -> bool:
        graph = self.graph
        wide = graph.spans_dp[graph.group[graph.group >= 0]].sum() * graph.n_dp / graph.n_variants
        estimate = n_steps * (_SEGMENT_S * graph.n_ops / graph.n_pp + _MEMBER_S * wide / graph.n_pp)
        return bool(estimate > (WARM_ABOVE_S if "numba" in sys.modules else COLD_ABOVE_S))

    def walk(
        self, end: Durations, replay: Replay | None = None, first: int = 0
    ) -> Iterator[Segments]:
        """The path of every step of ``end``.

        Args:
            end: when every op ends, seconds.
            replay: the launch delays in it; None where none were replayed.
            first: index of the first step of ``end`` among those of ``replay``.
        """
        room = 2 * (len(self.graph.node_ptr) - 1)  # a path passes every node once, with its delay
        op, dp = np.empty((2, room), dtype=np.int64)
        late, start = np.empty(room, dtype=np.bool_), np.empty(room)
        out = (op, dp, late, start)
        delays = end if replay is None else replay.delays
        shift = np.append(self.n_dp, 0)  # from one step to the next in the row of an op
        for step, (last, rank, total) in enumerate(_last_ends(end)):
            n = self.loop(
                *(last, rank, *self.arrays),
                *(end.values, end.row_ptr + step * shift),
                *(delays.values if replay else _NONE, delays.row_ptr + (first + step) * shift),
                *out,
            )
            ops, starts = op[:n][::-1].copy(), start[:n][::-1].copy()
            sort = np.where(late[:n][::-1], Sort.DELAY, self.sort_of[ops])
            path = Segments(ops, dp[:n][::-1].copy(), sort, starts, np.append(starts[1:], total))
            yield path if replay is None else self._cut(path, end, step, replay, first + step)

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
    dp: Any,
    node_of: Any,
    node_ptr: Any,
    order: Any,
    spans: Any,
    variant: Any,
    dep_ptr: Any,
    dep: Any,
    n_dp: Any,
    dps_ptr: Any,
    dps: Any,
    dp_index: Any,
    end: Any,
    end_ptr: Any,
    delays: Any,
    delay_ptr: Any,
    out_op: Any,
    out_dp: Any,
    out_delay: Any,
    out_start: Any,
) -> int:
    """Fill the segments of one step, last first; returns how many.

    The op that ends last began when the last of its peers was launched; that one was launched a
    delay after the last end it depended on, and so on. Of equally late ones an op itself comes
    first, then the one with the lowest number.
    """
    n = 0
    while op >= 0:
        node = node_of[op]
        meeting = -np.inf
        peer, rank, ready, before = op, dp, 0.0, -1
        for place in range(node_ptr[node], node_ptr[node + 1]):
            member = order[place]
            v = variant[member]
            low, high = 0, n_dp[v]
            if not spans[node]:
                low = dp_index[dp]
                high = low + 1
            for lane in range(low, high):
                latest, source = 0.0, -1
                for edge in range(dep_ptr[member], dep_ptr[member + 1]):
                    at = end[end_ptr[dep[edge]] + lane]
                    if source < 0 or at > latest:
                        latest, source = at, dep[edge]
                launch = latest
                if len(delays) > 0:
                    launch = latest + delays[delay_ptr[member] + lane]
                itself = member == op and dps[dps_ptr[v] + lane] == dp
                if launch > meeting or (itself and launch == meeting):
                    meeting, ready = launch, latest
                    peer, rank, before = member, dps[dps_ptr[v] + lane], source
        out_op[n], out_dp[n], out_delay[n], out_start[n] = op, dp, False, meeting
        n += 1
        if meeting != ready:
            out_op[n], out_dp[n], out_delay[n], out_start[n] = peer, rank, True, ready
            n += 1
        op, dp = before, rank
    return n
