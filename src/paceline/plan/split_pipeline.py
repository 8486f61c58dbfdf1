"""Pipelines with split backwards of many plans at once: the end of each chunk's last W pass.

Like ``plan.pipeline``, this solves the rules of the graph compute by compute, without a graph. A
test checks that it equals the simulation of the programs of ``graph.split_replica``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph.from_plan import split_seconds
from paceline.graph.split_replica import arriving
from paceline.graph.zero_bubble import SPLIT_CHUNKS, SPLIT_SCHEDULES, B, F, SplitOrder, W
from paceline.jit import compiled
from paceline.plan.pipeline import INTERPRETED_COMPUTES

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Turns:
    """Computes of all stages, stage by stage, and their dependencies.

    Attributes:
        orders: [stage].
        turn: [compute] an order in which dependencies come first.
        first: [compute] first compute of its block.
        last: [compute] last compute of its block.
        before: [compute] the compute before it on its stage, -1 = none.
        source: [compute] the compute of another stage that sends its input, -1 = none.
        posted: [compute] the compute after which its receive is posted, -1 = at once.
        ready: [compute] for forwards the (chunk, stage) of the needed parameters, otherwise -1.
        final: [chunk, stage] the last W pass.
    """

    orders: tuple[SplitOrder, ...]
    turn: Ints
    first: Ints
    last: Ints
    before: Ints
    source: Ints
    posted: Ints
    ready: Ints
    final: Ints


@lru_cache(maxsize=64)
def _turns(schedule: str, n_pp: int, n_microbatches: int) -> _Turns:
    orders = tuple(SPLIT_SCHEDULES[schedule](s, n_pp, n_microbatches) for s in range(n_pp))
    begins = np.append(0, np.cumsum([len(order.kind) for order in orders]))
    n, n_chunks = int(begins[-1]), SPLIT_CHUNKS[schedule]
    at = np.full((2, n_chunks, n_pp, n_microbatches), -1)  # compute of each (direction, ...)
    first, last, before, source, posted, ready = np.full((6, n), -1)
    final = np.zeros((n_chunks, n_pp), dtype=np.int64)
    for stage, (order, begin) in enumerate(zip(orders, begins, strict=False)):
        own = begin + np.arange(len(order.kind))
        first[own] = begin + np.searchsorted(order.block, order.block)
        last[own] = begin + np.searchsorted(order.block, order.block, side="right") - 1
        before[own[1:]] = own[:-1]
        for chunk in range(n_chunks):
            mine = order.chunk == chunk
            for direction, kind in enumerate((F, B)):
                computes = own[mine & (order.kind == kind)]
                at[direction, chunk, stage, order.microbatch[computes - begin]] = computes
                posted[computes[1:]] = last[computes[:-1]]
            ready[own[mine & (order.kind == F)]] = chunk * n_pp + stage
            final[chunk, stage] = own[mine & (order.kind == W)][-1]
    for stage in range(n_pp):
        arrives = arriving(schedule, stage, n_pp)
        for direction, chunk in np.argwhere(arrives).tolist():
            neighbour = stage + (1 if direction ^ chunk else -1)
            there = at[direction, chunk, stage] >= 0
            computes = at[direction, chunk, stage][there]
            source[computes] = at[direction, chunk, neighbour][there]
    turn = np.empty(n, dtype=np.int64)
    walk = compiled(_sort) if n > INTERPRETED_COMPUTES else _sort
    walk(begins, first, last, source, turn)
    return _Turns(orders, turn, first, last, before, source, posted, ready, final)


def _sort(begins: Any, first: Any, last: Any, source: Any, turn: Any) -> None:
    """Blocks in an order in which all sources come first; fills ``turn``."""
    at = begins[:-1].copy()
    ended = np.zeros(len(turn), dtype=np.bool_)
    n = 0
    while n < len(turn):
        for stage in range(len(at)):
            while at[stage] < begins[stage + 1]:
                low, high = at[stage], last[at[stage]] + 1
                waits = False
                for compute in range(low, high):
                    if source[compute] >= 0 and not ended[last[source[compute]]]:
                        waits = True
                if waits:
                    break
                for compute in range(low, high):
                    turn[n] = compute
                    ended[compute] = True
                    n += 1
                at[stage] = high


@dataclass(frozen=True)
class SplitPipelines:
    """Plans that share a schedule and the shape of their pipeline.

    Attributes:
        schedule: one of ``graph.zero_bubble.SPLIT_SCHEDULES``.
        places: [chunk, stage] index of the model's chunk.
        microbatches: [plan] of one replica in one step.
        forward_s: [plan, place] seconds of a microbatch.
        backward_s: [plan, place] seconds of both its gradients.
        weight_s: [plan, place] seconds of the gradient of the weights.
        exchange_s: [plan, place] seconds of forward and backward that exchange experts' tokens.
        p2p_s: [plan] seconds to hand a microbatch to another stage.
        ready_s: [plan, chunk, stage] earliest start of the first forward.
        overlap_factor: see :class:`paceline.model.plan.Plan`.
    """

    schedule: str
    places: Ints
    microbatches: Ints
    forward_s: Array
    backward_s: Array
    weight_s: Array
    exchange_s: tuple[Array, Array]
    p2p_s: Array
    ready_s: Array
    overlap_factor: float = 1.0

    def ends(self, fast: bool | None = None) -> Array:
        """[plan, chunk, stage] end of the last W pass, seconds since the step's start.

        Args:
            fast: use the compiled walk; None = where these pipelines alone repay loading it.
        """
        ends = np.empty((len(self.microbatches), *self.places.shape))
        for m in np.unique(self.microbatches).tolist():
            plans = np.flatnonzero(self.microbatches == m)
            ends[plans] = self._ends_of(plans, m, fast)
        return ends

    def _ends_of(self, plans: Ints, m: int, fast: bool | None) -> Array:
        turns = _turns(self.schedule, self.places.shape[1], m)
        weight = self.weight_s[plans]
        forward, inputs = self.forward_s[plans], self.backward_s[plans] - weight
        exchange = self.exchange_s[0][plans], self.exchange_s[1][plans]
        seconds = np.concatenate(
            [
                split_seconds(order, place, forward, inputs, weight, exchange, self.overlap_factor)
                for order, place in zip(turns.orders, self.places.T, strict=True)
            ],
            axis=1,
        )
        if fast is None:
            fast = seconds.size > INTERPRETED_COMPUTES
        ends = np.zeros_like(seconds)
        (compiled(_walk) if fast else _walk)(
            *(turns.turn, turns.first, turns.last, turns.before, turns.source, turns.posted),
            *(turns.ready, self.p2p_s[plans], self.ready_s[plans].reshape(len(plans), -1)),
            *(seconds, ends),
        )
        final: Array = ends[:, turns.final]
        return final


def _walk(
    turn: Any,
    first: Any,
    last: Any,
    before: Any,
    source: Any,
    posted: Any,
    ready: Any,
    p2p_s: Any,
    ready_s: Any,
    seconds: Any,
    ends: Any,
) -> None:
    """Fill ``ends`` [plan, compute]; for other names see :class:`_Turns`, :class:`SplitPipelines`.

    A block starts when all inputs of all its computes are ready.
    """
    for plan in range(len(ends)):
        for compute in turn:
            start = ends[plan, before[compute]] if before[compute] >= 0 else 0.0
            if first[compute] == compute:
                for one in range(compute, last[compute] + 1):
                    if ready[one] >= 0:
                        start = max(start, ready_s[plan, ready[one]])
                    if source[one] >= 0:
                        sent = ends[plan, last[source[one]]]
                        if posted[one] >= 0:
                            sent = max(sent, ends[plan, posted[one]])
                        start = max(start, sent + p2p_s[plan])
            ends[plan, compute] = start + seconds[plan, compute]
