"""How much each part of a job accounts for the change of its step.

A step of one trace and a step of the other are joined. Part after part (all forward computes, all
operations of stage 2, ...) takes its durations and launch delays from the other trace. The
simulator gives the step time after each change. A part's effect depends on the parts that changed
before it. So the mean over orders is taken, the Shapley value. For sampled orders see Strumbelj &
Kononenko,
"Explaining prediction models and individual predictions with feature contributions", 2014. The
values of all parts add up to the difference of the two steps, for any orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, Measured
from paceline.simulate import Progress, Rules, all_lanes, step_times

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Least number of orders in all, so that few steps still have enough of them.
ORDERS = 64

#: Approximate numbers of durations: laid out at once, and simulated for a table in all. Each trace
#: has at least ``MIN_ORDERS`` steps, or there would be no intervals.
BLOCK_VALUES, MAX_VALUES, MIN_ORDERS = 1 << 22, 1 << 28, 8


@dataclass(frozen=True)
class Part:
    """Operations whose durations, or launch delays, change together.

    Attributes:
        name: its name.
        durations: [op] whose durations belong to it.
        delays: [op] whose launch delays belong to it.
    """

    name: str
    durations: npt.NDArray[np.bool_]
    delays: npt.NDArray[np.bool_]


def contributions(
    before: Measured, after: Measured, parts: Sequence[Part], progress: Progress | None = None
) -> Array:
    """[step, part] seconds that each part accounts for: a step of the shorter trace, in its order.

    Steps are joined in the order of time. A step of the shorter trace is joined with a mean over
    some steps of the longer one. So the rows are independent samples as far as steps are. Their
    mean is the mean over all steps of both.

    Args:
        before: a trace.
        after: another with the same operations (``same_operations``).
        parts: a partition of all durations and delays.
        progress: called with (rounds done, rounds in all).
    """
    pairs = _Pairs.of(before, after, len(parts))
    orders = pairs.orders(len(parts))
    total = np.zeros((len(pairs.weight), len(parts)))
    size = before.graph.n_ops * before.graph.n_dp
    blocks = np.array_split(np.arange(len(orders)), -(-len(orders) * size // BLOCK_VALUES))
    for done, block in enumerate(blocks):
        pair = pairs.of_order[block]
        steps = pairs.before[pair], pairs.after[pair]
        np.add.at(total, pair, _switch_changes(before, after, parts, *steps, orders[block]))
        if progress is not None:
            progress(done + 1, len(blocks))
    total *= (pairs.weight / np.bincount(pairs.of_order))[:, None]
    rows = np.zeros((int(pairs.shorter.max()) + 1, len(parts)))
    np.add.at(rows, pairs.shorter, total)
    return rows


@dataclass(frozen=True)
class _Pairs:
    """The pairs of joined steps.

    Attributes:
        before, after: [pair] indices of steps.
        shorter: [pair] the step of the shorter trace, counted without gaps.
        weight: [pair] share of a step of the shorter trace.
        of_order: [order] its pair.
    """

    before: Ints
    after: Ints
    shorter: Ints
    weight: Array
    of_order: Ints

    @classmethod
    def of(cls, trace_before: Measured, trace_after: Measured, n_parts: int) -> _Pairs:
        lengths = [trace_before.durations.n_steps, trace_after.durations.n_steps]
        size = trace_before.graph.n_ops * trace_before.graph.n_dp * (n_parts + 1)
        room = max(4 * MIN_ORDERS, MAX_VALUES // size)  # orders
        # Of very large jobs some steps, evenly spread.
        n, m = (min(length, room // 4) for length in lengths)
        edges = np.unique(np.concatenate([np.arange(n + 1) * m, np.arange(m + 1) * n]))
        before, after = edges[:-1] // m, edges[:-1] // n
        weight = np.diff(edges) / max(n, m)
        shorter = before if n <= m else after
        turns = max(1, min(-(-ORDERS // (2 * len(weight))), room // (2 * len(weight))))
        return cls(
            before * lengths[0] // n,
            after * lengths[1] // m,
            shorter,
            weight,
            np.repeat(np.arange(len(weight)), 2 * turns),
        )

    def orders(self, n_parts: int) -> Ints:
        """[order, place] the part that changes at a place; each order's reverse follows it."""
        rng = np.random.default_rng(0)
        half = [rng.permutation(n_parts) for _ in range(len(self.of_order) // 2)]
        orders: Ints = np.stack([turn for order in half for turn in (order, order[::-1])])
        return orders


def _switch_changes(
    before: Measured,
    after: Measured,
    parts: Sequence[Part],
    from_step: Ints,
    to_step: Ints,
    orders: Ints,
) -> Array:
    """[order, part] change of the step when the part changes, at its place in the order."""
    graph = before.graph
    durations, delays = (_columns(table, from_step) for table in (before.durations, before.delays))
    rules, lanes = Rules.own(graph, True), all_lanes(graph, len(orders))
    seconds = step_times(durations, rules, lanes, delays)
    change = np.zeros(orders.shape)
    for place in range(len(parts)):
        for column, part in enumerate(orders[:, place].tolist()):
            step = int(to_step[column])
            _take(durations, after.durations, parts[part].durations, column, step)
            _take(delays, after.delays, parts[part].delays, column, step)
        now = step_times(durations, rules, lanes, delays)
        change[np.arange(len(orders)), orders[:, place]] = now - seconds
        seconds = now
    return change


def _columns(table: Durations, steps: Ints) -> Durations:
    """The table with the columns of some steps, each as often as ``steps`` names it."""
    out = Durations.empty(table.graph, len(steps))
    for v in range(table.graph.n_variants):
        np.take(table.block(v), steps, axis=1, out=out.block(v))
    return out


def _take(
    into: Durations, source: Durations, ops: npt.NDArray[np.bool_], to: int, step: int
) -> None:
    """Copy the values of some ops in one step."""
    for v in range(into.graph.n_variants):
        rows = np.flatnonzero(ops[into.graph.variant_ops(v)])
        into.block(v)[rows, to] = source.block(v)[rows, step]
