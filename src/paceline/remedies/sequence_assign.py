"""Assign sequences: to the DP ranks of a step, then to the microbatches of a rank.

The what-if paper (5.3) uses greedy algorithms for both: ranks by predicted cost, microbatches by
tokens. Here ranks are balanced by differencing, and microbatches by cost under a limit of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from paceline.remedies.partition import Groups, differencing, greedy, improve, pack
from paceline.remedies.sequence_plan import (
    MICROBATCHES,
    NOTHING,
    SEQUENCES,
    SequencePlan,
    spans,
    unchanged_plan,
)
from paceline.trace.seqlens import SeqLens

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Differencing merges one tuple of bins after another. With more tuples than this (many items for
#: few bins) it is slow, and the greedy algorithm is practically perfect.
MAX_TUPLES = 4096

#: No search if the most expensive rank is within this share of the mean.
EVEN_ENOUGH = 1e-4

#: Most sequences without room that are placed one by one.
MAX_HOMELESS = 2_000


def plan_sequences(seqlens: SeqLens, cost: Array, max_tokens: int) -> SequencePlan:
    """Redistribute the sequences of every step.

    Args:
        seqlens: as traced.
        cost: [3] cost per token^2, per token, and per microbatch.
        max_tokens: most tokens per microbatch; at least the longest sequence.
    """
    origin, bounds, exchanged = [], [], []
    for step in range(len(seqlens.steps)):
        items, sizes, how = _step(seqlens, step, cost, max_tokens)
        origin.append(items)
        bounds.append(sizes)
        exchanged.append(how)
    flat = np.concatenate(bounds)
    end = np.cumsum(flat)
    ptr = np.stack([end - flat, end], axis=1).reshape(seqlens.ptr.shape)
    sequence = np.concatenate(origin)
    after = SeqLens(seqlens.steps, ptr, seqlens.lengths[sequence])
    return SequencePlan(seqlens, after, sequence, tuple(exchanged))


def _step(seqlens: SeqLens, step: int, cost: Array, max_tokens: int) -> tuple[Ints, Ints, str]:
    """Sequences of a step in their new order, sizes of the slots, and the sort of exchange."""
    ptr = seqlens.ptr[step].reshape(-1, 2)
    sizes = ptr[:, 1] - ptr[:, 0]
    items = spans(ptr[:, 0], sizes)
    exists = (sizes > 0).reshape(seqlens.ptr.shape[1:3])
    slot = _balance(seqlens.lengths[items], exists, cost, max_tokens)
    if slot is not None:
        order = _sort(slot, len(sizes))
        return items[order], np.bincount(slot, minlength=len(sizes)), SEQUENCES
    tokens = np.add.reduceat(np.append(seqlens.lengths[items], 0), (np.cumsum(sizes) - sizes))
    squares = np.add.reduceat(np.append(seqlens.lengths[items] ** 2, 0), np.cumsum(sizes) - sizes)
    microbatch_cost = np.where(sizes > 0, cost[0] * squares + cost[1] * tokens + cost[2], 0.0)
    source = plan_microbatches(microbatch_cost.reshape(exists.shape), exists).ravel()
    how = NOTHING if (source == np.arange(len(source))).all() else MICROBATCHES
    return spans(ptr[source, 0], sizes[source]), sizes[source], how


def _sort(keys: Ints, n: int) -> Ints:
    """A stable argsort; keys below 65,536 are sorted by radix, ten times as fast."""
    order: Ints = np.argsort(keys.astype(np.uint16) if n <= 1 << 16 else keys, kind="stable")
    return order


def _balance(
    lengths: Ints, exists: npt.NDArray[np.bool_], cost: Array, max_tokens: int
) -> Ints | None:
    """[sequence] flat (dp, microbatch); None if the limit of tokens leaves no room."""
    counts = exists.sum(axis=1)
    order = _sort(int(lengths.max()) - lengths, int(lengths.max()) + 1)
    tokens = lengths[order]
    price = cost[0] * tokens.astype(np.float64) ** 2 + cost[1] * tokens
    for rank in _ranks(price, counts):
        by_rank = _sort(rank, len(counts))
        groups = Groups(
            price[by_rank],
            tokens[by_rank],
            np.append(0, np.cumsum(np.bincount(rank, minlength=len(counts)))),
            np.full(int(counts.sum()), max_tokens),
            np.append(0, np.cumsum(counts)),
        )
        place = improve(groups, pack(groups))
        if _house(groups, place) and np.bincount(place, minlength=len(groups.room)).all():
            slot = np.empty(len(lengths), dtype=np.int64)
            slot[order[by_rank]] = np.flatnonzero(exists.ravel())[place]
            return slot
    return None


def _ranks(price: Array, counts: Ints) -> Iterator[Ints]:
    """Distributions of items over ranks, the best first: [item] rank.

    With many items per rank the greedy algorithm is almost perfect. With few items, differencing is
    mostly better. It gives all ranks the same number of items, which helps if microbatches are
    full. But it cannot always compensate for a few very expensive items.
    """
    n_dp, fair = len(counts), float(price.sum()) / len(counts)

    def dearest(rank: Ints) -> float:
        return float(np.bincount(rank, price, n_dp).max())

    rank = greedy(price, counts.astype(np.float64))
    if (counts != counts[0]).any() or len(price) > MAX_TUPLES * n_dp:
        yield rank
        return
    even = dearest(rank) <= (1 + EVEN_ENOUGH) * fair
    if even:
        yield rank
    differenced = differencing(price, n_dp)
    if even:
        yield differenced
    else:
        yield from sorted((rank, differenced), key=dearest)


def _house(groups: Groups, place: Ints) -> bool:
    """Put sequences without room in their rank into any microbatch with room, in place."""
    homeless = np.flatnonzero(place < 0)
    if len(homeless) > MAX_HOMELESS:
        return False
    if not len(homeless):
        return True
    housed = place >= 0
    load = np.bincount(place[housed], groups.cost[housed], len(groups.room))
    used = np.bincount(place[housed], groups.size[housed], len(groups.room))
    for item in homeless[np.argsort(-groups.size[homeless], kind="stable")]:
        room = used + groups.size[item] <= groups.room
        if not room.any():
            return False
        best = int(np.argmin(np.where(room, load, np.inf)))
        place[item] = best
        load[best] += groups.cost[item]
        used[best] += groups.size[item]
    return True


def plan_microbatches(cost: Array, exists: npt.NDArray[np.bool_]) -> Ints:
    """[dp, microbatch] flat (dp, microbatch) of the whole microbatch that should move there.

    Every replica keeps its number of microbatches. Nothing moves if that would not help.

    Args:
        cost: [dp, microbatch] of one step, in any unit.
        exists: [dp, microbatch] whether there is such a microbatch.
    """
    counts = exists.sum(axis=1)
    n_dp = len(counts)
    flat = np.flatnonzero(exists.ravel())
    order = flat[np.argsort(-cost.ravel()[flat], kind="stable")]
    price = cost.ravel()[order]
    uniform = bool((counts == counts[0]).all())
    sizes = np.ones(len(order), dtype=np.int64)
    item_ptr, bin_ptr = np.array([0, len(order)]), np.array([0, n_dp])
    groups = Groups(price, sizes, item_ptr, counts.astype(np.int64), bin_ptr)
    rank = differencing(price, n_dp) if uniform else pack(groups)
    rank = improve(groups, rank)
    source = np.arange(cost.size).reshape(cost.shape)
    before = np.where(exists, cost, 0.0).sum(axis=1) / counts
    if (np.bincount(rank, price, n_dp) / counts).max() >= before.max():
        return source
    source[exists] = order[np.argsort(rank, kind="stable")]
    return source


def exchange_microbatches(seqlens: SeqLens, cost: Array) -> SequencePlan:
    """Distribute whole microbatches of ``cost`` [step, dp, microbatch] over the ranks."""
    plan, exists = unchanged_plan(seqlens), seqlens.exists
    ptr, exchanged = seqlens.ptr.copy(), []
    for step in range(len(ptr)):
        source = plan_microbatches(cost[step], exists[step])
        changed = bool((source.ravel() != np.arange(source.size)).any())
        ptr[step] = ptr[step].reshape(-1, 2)[source]
        exchanged.append(MICROBATCHES if changed else NOTHING)
    return replace(plan, after=replace(seqlens, ptr=ptr), exchanged=tuple(exchanged))
