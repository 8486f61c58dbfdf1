"""The kernel: a step graph and durations in, step times or a timeline out.

A *lane* is one replica in one step with one choice of durations. The walk goes over the ops once
and treats all lanes of a block as array rows. Lanes with equal durations need only one simulation
(see :mod:`paceline.whatif.layout`). Lanes that share a *set* meet in the collectives that span the
data-parallel ranks.

The rules are those of the what-if paper (3.2). An op is launched when its last dependency has ended
(plus its launch delay, if delays are replayed). A compute op ends a duration later. The members of
a transfer wait until all of them are launched; then each ends its own transfer time later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from paceline.errors import SimulationError
from paceline.graph.graph import Durations, Rows, StepGraph
from paceline.graph.lanes import Block, Lanes, all_lanes, lane_blocks
from paceline.jit import compiled

__all__ = [
    "Lanes",
    "Progress",
    "Rules",
    "Timeline",
    "all_lanes",
    "ends",
    "step_times",
    "timeline",
]

Progress = Callable[[int, int], None]
T = TypeVar("T")

#: Interpreted, an op costs about 8 us, plus 1.5 us for each rule in the block and 4 ns for each
#: lane. The compiled walk takes 0.4 s to load (once loaded, far less). Above this estimate,
#: compiling is faster. Measured by benchmarks/kernel.py.
COLD_ABOVE_S = 0.5
WARM_ABOVE_S = 0.02
_OP_S, _RULE_OP_S, _LANE_OP_S = 8e-6, 1.5e-6, 4e-9

_INTERPRETED_BYTES = 64 << 20  # rows of one interpreted block: as many lanes as memory allows
_COMPILED_BYTES = 2 << 20  # rows of one compiled block: inside the cache of a core
_ENDS_BYTES = 8 << 20  # rows of all ops: what the allocator hands out again instead of fresh pages


@dataclass(frozen=True)
class Rules:
    """The duration that each op takes.

    Attributes:
        keep: [rule, op] True: its own duration; False: ``base``.
        base: [op] seconds where not kept (the ideal duration).
        keep_delay: [rule, op] whether its launch delay is replayed; None: no delays at all.
    """

    keep: npt.NDArray[np.bool_]
    base: npt.NDArray[np.float64]
    keep_delay: npt.NDArray[np.bool_] | None = None

    @classmethod
    def own(cls, graph: StepGraph, keep_delay: npt.NDArray[np.bool_] | bool = False) -> Rules:
        """Every op keeps its own duration.

        Args:
            graph: the ops.
            keep_delay: whether launch delays are replayed; or [rule, op] which are, rule by rule.
        """
        n_rules = 1 if isinstance(keep_delay, bool) else len(keep_delay)
        every = np.ones((n_rules, graph.n_ops), dtype=bool)
        if isinstance(keep_delay, bool):
            return cls(every, np.zeros(graph.n_ops), every if keep_delay else None)
        return cls(every, np.zeros(graph.n_ops), keep_delay)

    @classmethod
    def common(cls, graph: StepGraph, seconds: npt.NDArray[np.float64]) -> Rules:
        """No op keeps its own duration: all lanes take ``seconds`` [op]."""
        return cls(np.zeros((1, graph.n_ops), dtype=bool), seconds)


@dataclass(frozen=True)
class Timeline:
    """Start and end of every op.

    Attributes:
        graph: the ops.
        start: launches, seconds since the step's start; one block [op, step, dp] per variant.
        end: ends, in the same layout.
    """

    graph: StepGraph
    start: Durations
    end: Durations

    def step_times(self) -> npt.NDArray[np.float64]:
        """[step] the latest end, seconds."""
        last: npt.NDArray[np.float64] = np.max(
            [block.max(axis=(0, 2)) for block in self.end.blocks], axis=0
        )
        return last


def step_times(
    durations: Rows,
    rules: Rules,
    lanes: Lanes,
    delays: Rows | None = None,
    progress: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """[set] the step time of each set of lanes, seconds.

    Args:
        durations: own durations of all ops.
        rules: which ops keep them.
        lanes: the lanes to simulate.
        delays: launch delays, in the layout of ``durations``; needed with ``rules.keep_delay``.
        progress: called with (lanes done, lanes in all) now and then.
    """
    _check(durations, rules, lanes, delays)
    walk = _prepare(durations, rules, delays, durations.graph.slots)
    fast = _worth_compiling(durations.graph.n_ops, len(lanes), len(rules.keep))
    result = np.zeros(lanes.n_sets)
    blocks = list(lane_blocks(lanes, walk.block_lanes(fast)))
    done = 0

    def one(block: Block) -> Block:
        result[block.first_set : block.first_set + block.n_sets] = walk.run(block, fast)
        return block

    for block in _map(one, blocks, fast):
        done += len(block.column)
        if progress is not None:
            progress(done, len(lanes))
    return result


def timeline(
    durations: Durations,
    rules: Rules | None = None,
    delays: Durations | None = None,
    rule_of_dp: npt.NDArray[np.int64] | None = None,
) -> Timeline:
    """Start and end of every op in every step and replica.

    Args:
        durations: own durations of all ops.
        rules: which ops keep them; None: all, and all delays if ``delays`` is given.
        delays: launch delays.
        rule_of_dp: [dp] the row of ``rules`` that each replica follows; None: the first.
    """
    graph, n_steps = durations.graph, durations.n_steps
    rules = rules or Rules.own(graph, delays is not None)
    end = Durations.empty(graph, n_steps)
    for first, part in ends(durations, rules, delays, rule_of_dp):
        for v in range(graph.n_variants):
            end.block(v)[:, first : first + part.n_steps] = part.block(v)
    start = Durations.empty(graph, n_steps)
    for v in range(graph.n_variants):
        for ops, latest in graph.latest_dependency_ends(v, end.block(v)):
            start.block(v)[ops] = latest
        if delays is not None and rules.keep_delay is not None:
            ops, dps = graph.variant_ops(v), graph.variant_dps[v]
            rule = np.zeros(len(dps), dtype=np.int64) if rule_of_dp is None else rule_of_dp[dps]
            kept = rules.keep_delay[rule, ops].T
            start.block(v)[:] += np.where(kept[:, None, :], delays.block(v), 0.0)
    return Timeline(graph, start, end)


def ends(
    durations: Durations,
    rules: Rules | None = None,
    delays: Durations | None = None,
    rule_of_dp: npt.NDArray[np.int64] | None = None,
) -> Iterator[tuple[int, Durations]]:
    """Ends of every op, some steps at a time; arguments as for :func:`timeline`.

    Yields:
        the index of the first step, and the ends of it and the next steps, seconds.
    """
    graph = durations.graph
    rules = rules or Rules.own(graph, delays is not None)
    lanes = all_lanes(graph, durations.n_steps, rule_of_dp)
    _check(durations, rules, lanes, delays)
    walk = _prepare(durations, rules, delays, (np.arange(graph.n_ops), graph.n_ops))
    fast = _worth_compiling(graph.n_ops, len(lanes), len(rules.keep))
    rows_bytes = _ENDS_BYTES if fast else _INTERPRETED_BYTES
    blocks = lane_blocks(lanes, rows_bytes // (8 * graph.n_ops))

    def one(block: Block) -> tuple[int, Durations]:
        rows = np.empty((graph.n_ops, len(block.column)))
        walk.run(block, fast, rows)
        return block.first_set, _by_step(graph, block, rows)

    while few := list(islice(blocks, _cores())):
        yield from _map(one, few, fast)


def _by_step(graph: StepGraph, block: Block, rows: npt.NDArray[np.float64]) -> Durations:
    """Rows [op, lane] of a block as durations [op, step, dp] of its steps."""
    if len(block.segment_end) == 1 and block.segment_column[0] >= 0:
        return Durations(graph, block.n_sets, rows.ravel())
    end = Durations.empty(graph, block.n_sets)
    low = 0
    for v, dps in enumerate(graph.variant_dps):
        flat = end.block(v).reshape(len(end.block(v)), -1)
        before = block.first_set * len(dps)
        for segment in range(block.segment_ptr[v], block.segment_ptr[v + 1]):
            high = int(block.segment_end[segment])
            first = int(block.segment_column[segment]) - before
            if block.segment_column[segment] >= 0:  # a slice copies ten times as fast
                flat[:, first : first + high - low] = rows[graph.variant_ops(v), low:high]
            else:
                flat[:, block.column[low:high] - before] = rows[graph.variant_ops(v), low:high]
            low = high
    return end


def _check(durations: Rows, rules: Rules, lanes: Lanes, delays: Rows | None) -> None:
    n_ops = durations.graph.n_ops
    if rules.keep.ndim != 2 or rules.keep.shape[1] != n_ops or rules.base.shape != (n_ops,):
        raise SimulationError(
            f"rules for {rules.keep.shape} and {rules.base.shape} ops do not fit {n_ops} ops"
        )
    if rules.keep_delay is not None:
        if delays is None or delays.values.shape != durations.values.shape:
            raise SimulationError(
                "delays are to be replayed, but none of the durations' shape given"
            )
        if rules.keep_delay.shape != rules.keep.shape:
            raise SimulationError(
                f"keep_delay is {rules.keep_delay.shape}, keep {rules.keep.shape}"
            )
    if len(lanes) and (np.diff(lanes.set) < 0).any():
        raise SimulationError("lanes must come set by set")


def _worth_compiling(n_ops: int, n_lanes: int, n_rules: int) -> bool:
    loaded = _compiled_walk.cache_info().currsize > 0
    least = WARM_ABOVE_S if loaded else COLD_ABOVE_S
    return n_ops * (_OP_S + n_rules * _RULE_OP_S + n_lanes * _LANE_OP_S) > least


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _map(one: Callable[[Block], T], blocks: list[Block], fast: bool) -> Iterator[T]:
    """Blocks in order, on all cores where the walk is compiled (it then runs without the GIL)."""
    workers = min(_cores(), len(blocks))
    if not fast or workers < 2:
        yield from map(one, blocks)
        return
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield from pool.map(one, blocks)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@dataclass(frozen=True)
class _Prepared:
    """The graph in the order of the walk, and the durations it reads."""

    arrays: tuple[npt.NDArray[Any], ...]
    n_rows: int
    n_variants: int

    @cached_property
    def lists(self) -> tuple[Any, ...]:
        """The arrays for the interpreter, which indexes lists several times faster."""
        *per_op, values, base, keep, delays, keep_delay = self.arrays
        return (
            *(array.tolist() for array in per_op),
            values,
            base.tolist(),
            keep,
            delays,
            keep_delay,
        )

    def block_lanes(self, fast: bool) -> int:
        rows_bytes = _COMPILED_BYTES if fast else _INTERPRETED_BYTES
        return max(64, rows_bytes // (8 * max(1, self.n_rows)))

    def run(
        self, block: Block, fast: bool, rows: npt.NDArray[np.float64] | None = None
    ) -> npt.NDArray[np.float64]:
        """[set] step times of a block; ``rows`` receives the ends of the ops' rows."""
        n_lanes = len(block.column)
        if rows is None:
            rows = np.empty((self.n_rows, n_lanes))
        missing = self.n_variants + 1 - len(block.variant_ptr)
        last = np.full(n_lanes, -np.inf)
        meeting = np.empty(max(block.n_sets, int(block.meets.max(initial=-1)) + 1))
        bounds = (
            np.pad(block.variant_ptr, (0, missing), mode="edge"),
            np.pad(block.segment_ptr, (0, missing), mode="edge"),
            block.segment_rule,
            block.segment_end,
            block.segment_column,
        )
        walk: Callable[..., None] = _shared_walk() if fast else _walk
        walk(
            *(self.arrays if fast else self.lists),
            *(bounds if fast else (array.tolist() for array in bounds)),
            block.column,
            block.meets,
            rows,
            last,
            meeting,
        )
        result = np.full(block.n_sets, -np.inf)
        np.maximum.at(result, block.set, last)
        return result


def _prepare(
    durations: Rows,
    rules: Rules,
    delays: Rows | None,
    slots: tuple[npt.NDArray[np.int64], int],
) -> _Prepared:
    graph = durations.graph
    order = graph.order
    slot, n_rows = slots
    degree = np.diff(graph.dep_ptr)[order]
    dep_ptr = np.append(0, np.cumsum(degree))
    edge = np.repeat(graph.dep_ptr[order] - dep_ptr[:-1], degree) + np.arange(dep_ptr[-1])
    replay = rules.keep_delay is not None and delays is not None
    first = order[graph.node_ptr[:-1]]
    group = graph.group[first]
    wide = group >= 0
    wide[wide] = graph.spans_dp[group[wide]]
    family = np.full(len(first), -1)
    family[wide] = graph.family[group[wide]]
    arrays = (
        graph.node_ptr,
        family,
        graph.variant[order],
        slot[order],
        dep_ptr,
        slot[graph.dep[edge]],
        # A negative launch delay (clock error) may let an op end before its inputs.
        np.ones(graph.n_ops, dtype=bool) if replay else graph.tracked[order],
        durations.row_ptr[order],
        durations.values,
        rules.base[order],
        np.ascontiguousarray(rules.keep[:, order]),
        delays.values if replay and delays is not None else np.empty(0),
        np.ascontiguousarray(rules.keep_delay[:, order])
        if replay and rules.keep_delay is not None
        else np.zeros((0, 0), dtype=bool),
    )
    return _Prepared(arrays, n_rows, graph.n_variants)


# The primitives of the walk: NumPy when interpreted; ``_compiled_walk`` gives numba plain loops.


def _fill(row: Any, value: float) -> None:
    row[:] = value


def _maximum(row: Any, a: Any, b: Any) -> None:
    np.maximum(a, b, out=row)


def _add(row: Any, value: float) -> None:
    row += value


def _add_columns(row: Any, values: Any, first: int, column: Any) -> None:
    row += values[first + column]


def _add_run(row: Any, values: Any, first: int) -> None:
    row += values[first : first + len(row)]


def _meet(meeting: Any, row: Any, sets: Any) -> None:
    np.maximum.at(meeting, sets, row)


def _leave(row: Any, meeting: Any, sets: Any) -> None:
    row[:] = meeting[sets]


def _walk(
    node_ptr: Any,
    family: Any,
    variant: Any,
    slot: Any,
    dep_ptr: Any,
    dep_slot: Any,
    tracked: Any,
    row_ptr: Any,
    values: Any,
    base: Any,
    keep: Any,
    delays: Any,
    keep_delay: Any,
    lane_ptr: Any,
    segment_ptr: Any,
    segment_rule: Any,
    segment_end: Any,
    segment_column: Any,
    column: Any,
    meets: Any,
    rows: Any,
    last: Any,
    meeting: Any,
) -> None:
    """Walk the ops of all variants over one block of lanes.

    All op arrays are in topological order. ``rows`` [slot, lane] holds ends (launches, for a
    moment). ``last`` [lane] receives the latest end of the tracked ops.
    """
    replay = keep_delay.shape[0] > 0
    for node in range(len(family)):
        begin, stop = node_ptr[node], node_ptr[node + 1]
        for op in range(begin, stop):  # launches
            v = variant[op]
            a, b = lane_ptr[v], lane_ptr[v + 1]
            if a == b:
                continue
            row = rows[slot[op], a:b]
            edge, edge_end = dep_ptr[op], dep_ptr[op + 1]
            if edge == edge_end:
                _fill(row, 0.0)
            else:
                first = rows[dep_slot[edge], a:b]
                second = first if edge + 1 == edge_end else rows[dep_slot[edge + 1], a:b]
                _maximum(row, first, second)
                for e in range(edge + 2, edge_end):
                    _maximum(row, row, rows[dep_slot[e], a:b])
            if replay:
                low = a
                for segment in range(segment_ptr[v], segment_ptr[v + 1]):
                    high = segment_end[segment]
                    if keep_delay[segment_rule[segment], op]:
                        _add_columns(
                            rows[slot[op], low:high], delays, row_ptr[op], column[low:high]
                        )
                    low = high
        if family[node] >= 0:  # a collective over data-parallel ranks, and maybe over stages
            sets = meets[family[node]]
            _fill(meeting, -np.inf)
            for op in range(begin, stop):
                a, b = lane_ptr[variant[op]], lane_ptr[variant[op] + 1]
                _meet(meeting, rows[slot[op], a:b], sets[a:b])
            for op in range(begin, stop):
                a, b = lane_ptr[variant[op]], lane_ptr[variant[op] + 1]
                _leave(rows[slot[op], a:b], meeting, sets[a:b])
        elif stop - begin == 2:  # a pair within the replica
            a, b = lane_ptr[variant[begin]], lane_ptr[variant[begin] + 1]
            one, other = rows[slot[begin], a:b], rows[slot[begin + 1], a:b]
            _maximum(one, one, other)
            _maximum(other, one, one)
        for op in range(begin, stop):  # ends
            v = variant[op]
            low = lane_ptr[v]
            for segment in range(segment_ptr[v], segment_ptr[v + 1]):
                high = segment_end[segment]
                row = rows[slot[op], low:high]
                if keep[segment_rule[segment], op]:
                    if segment_column[segment] >= 0:
                        _add_run(row, values, row_ptr[op] + segment_column[segment])
                    else:
                        _add_columns(row, values, row_ptr[op], column[low:high])
                else:
                    _add(row, base[op])
                low = high
            if tracked[op]:
                a, b = lane_ptr[v], lane_ptr[v + 1]
                _maximum(last[a:b], last[a:b], rows[slot[op], a:b])


_COMPILING = Lock()


def _shared_walk() -> Callable[..., None]:
    """The compiled walk; threads that ask for it at once wait for one of them to make it."""
    with _COMPILING:
        return _compiled_walk()


@cache
def _compiled_walk() -> Callable[..., None]:
    """The same walk as machine code; each primitive becomes a loop that the compiler vectorises."""
    from numba.extending import overload

    loops: dict[Callable[..., None], Callable[..., Callable[..., None]]] = {
        _fill: _fill_loop,
        _maximum: _maximum_loop,
        _add: _add_loop,
        _add_columns: _add_columns_loop,
        _add_run: _add_run_loop,
        _meet: _meet_loop,
        _leave: _leave_loop,
    }
    for primitive, loop in loops.items():
        overload(primitive, inline="never")(loop)
    walk: Callable[..., None] = compiled(_walk)
    return walk


def _fill_loop(row: Any, value: Any) -> Callable[..., None]:
    def loop(row: Any, value: Any) -> None:
        for lane in range(len(row)):
            row[lane] = value

    return loop


def _maximum_loop(row: Any, a: Any, b: Any) -> Callable[..., None]:
    def loop(row: Any, a: Any, b: Any) -> None:
        for lane in range(len(row)):
            row[lane] = a[lane] if a[lane] > b[lane] else b[lane]

    return loop


def _add_loop(row: Any, value: Any) -> Callable[..., None]:
    def loop(row: Any, value: Any) -> None:
        for lane in range(len(row)):
            row[lane] += value

    return loop


def _add_columns_loop(row: Any, values: Any, first: Any, column: Any) -> Callable[..., None]:
    def loop(row: Any, values: Any, first: Any, column: Any) -> None:
        for lane in range(len(row)):
            row[lane] += values[first + column[lane]]

    return loop


def _add_run_loop(row: Any, values: Any, first: Any) -> Callable[..., None]:
    def loop(row: Any, values: Any, first: Any) -> None:
        for lane in range(len(row)):
            row[lane] += values[first + lane]

    return loop


def _meet_loop(meeting: Any, row: Any, sets: Any) -> Callable[..., None]:
    def loop(meeting: Any, row: Any, sets: Any) -> None:
        for lane in range(len(row)):
            if row[lane] > meeting[sets[lane]]:
                meeting[sets[lane]] = row[lane]

    return loop


def _leave_loop(row: Any, meeting: Any, sets: Any) -> Callable[..., None]:
    def loop(row: Any, meeting: Any, sets: Any) -> None:
        for lane in range(len(row)):
            row[lane] = meeting[sets[lane]]

    return loop
