"""Multiway number partitioning: distribute items so that the largest bin cost is minimal.

There are three heuristics:

- descending greedy (Graham 1969; the what-if paper uses it in 5.3);
- balanced largest differencing (Karmarkar and Karp 1982). It starts from groups with one item per
  bin (Michiels, Korst and Aarts 2003);
- a local search that moves and swaps items between the most expensive bin and the cheapest ones.

Items come in descending order of cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.jit import compiled

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Up to this many inner steps, the loop is interpreted (some us a step): compiling takes a second.
COMPILE_ABOVE = 30_000

#: Number of cheapest bins that local search compares with the most expensive one.
PARTNERS = 4

#: Most exchanges per group.
ROUNDS = 64


def _fast(loop: Callable[..., Any], work: int) -> Callable[..., Any]:
    return compiled(loop) if work > COMPILE_ABOVE else loop


def greedy(cost: Array, share: Array) -> Ints:
    """[item] bin: each item goes to the bin with the lowest cost per share so far.

    Args:
        cost: [item] descending.
        share: [bin] intended share of a bin, in any unit.
    """
    bin_of_item = np.empty(len(cost), dtype=np.int64)
    heap = np.arange(len(share))
    _fast(_greedy, len(cost))(cost, 1 / share, np.zeros(len(share)), heap, bin_of_item)
    return bin_of_item


def _greedy(cost: Any, weight: Any, load: Any, heap: Any, bin_of_item: Any) -> None:
    n = len(heap)
    for item in range(len(cost)):
        top = heap[0]
        bin_of_item[item] = top
        load[top] += cost[item] * weight[top]
        value, at = load[top], 0
        while True:  # sift down
            child = 2 * at + 1
            if child >= n:
                break
            if child + 1 < n and load[heap[child + 1]] < load[heap[child]]:
                child += 1
            if load[heap[child]] >= value:
                break
            heap[at] = heap[child]
            at = child
        heap[at] = top


def differencing(cost: Array, n_bins: int) -> Ints:
    """[item] bin, by balanced largest differencing; all bins get about the same number of items.

    Args:
        cost: [item] descending.
        n_bins: number of bins.
    """
    n_tuples = max(1, -(-len(cost) // n_bins))
    padded = np.full((n_tuples, n_bins), -1, dtype=np.int64)
    padded.ravel()[: len(cost)] = np.arange(len(cost))
    sums = np.zeros((n_tuples, n_bins))
    sums.ravel()[: len(cost)] = cost
    # A bin of a tuple is a chain of items, from head to tail; -1: no item, or no follower.
    head, tail = padded, padded.copy()
    following = np.full(len(cost) + 1, -1, dtype=np.int64)
    heap = [(float(row[-1] - row[0]), i) for i, row in enumerate(sums)]
    heapq.heapify(heap)
    while len(heap) > 1:
        a, b = heapq.heappop(heap)[1], heap[0][1]
        total = sums[a] + sums[b, ::-1]  # the most expensive of one with the cheapest of the other
        other_head, other_tail = head[b, ::-1], tail[b, ::-1]
        following[tail[a]] = other_head
        following[-1] = -1
        order = np.argsort(-total)
        head[b] = np.where(head[a] >= 0, head[a], other_head)[order]
        tail[b] = np.where(other_tail >= 0, other_tail, tail[a])[order]
        sums[b] = total[order]
        heapq.heapreplace(heap, (float(sums[b, -1] - sums[b, 0]), b))
    bin_of_item = np.empty(len(cost) + 1, dtype=np.int64)
    items, bins = head[heap[0][1]].copy(), np.arange(n_bins)
    while (items >= 0).any():
        bin_of_item[items] = bins
        items = following[items]
    return bin_of_item[:-1]


@dataclass(frozen=True)
class Groups:
    """Several independent problems for one call: the items and bins of each group.

    Attributes:
        cost: [item] descending within each group.
        size: [item] size of the item.
        item_ptr: [group + 1] where the items of a group start.
        room: [bin] capacity of the bin.
        bin_ptr: [group + 1] where the bins of a group start.
    """

    cost: Array
    size: Ints
    item_ptr: Ints
    room: Ints
    bin_ptr: Ints

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """The attributes, in the order in which the loops take them."""
        return self.cost, self.size, self.item_ptr, self.room, self.bin_ptr


def pack(groups: Groups) -> Ints:
    """[item] bin, or -1 without room: greedy within each group, with bin capacities."""
    bin_of_item = np.full(len(groups.cost), -1, dtype=np.int64)
    most = int(np.diff(groups.bin_ptr).max(initial=0))
    loop = _fast(_pack, len(bin_of_item))
    loop(*groups.arrays(), bin_of_item, np.empty((2, most), dtype=np.int64))
    return bin_of_item


def _pack(
    cost: Any, size: Any, item_ptr: Any, room: Any, bin_ptr: Any, bin_of_item: Any, scratch: Any
) -> None:
    for group in range(len(item_ptr) - 1):
        first = bin_ptr[group]
        n = bin_ptr[group + 1] - first
        load, free = np.zeros(n), room[first : first + n].copy()
        heap, place = scratch[0], scratch[1]  # bins by load; position of a bin in the heap
        for bin_ in range(n):
            heap[bin_] = bin_
            place[bin_] = bin_
        for item in range(item_ptr[group], item_ptr[group + 1]):
            best = heap[0]
            if free[best] < size[item]:  # rare: look at all bins
                best = -1
                for bin_ in range(n):
                    if free[bin_] >= size[item] and (best < 0 or load[bin_] < load[best]):
                        best = bin_
                if best < 0:
                    continue
            bin_of_item[item] = first + best
            load[best] += cost[item]
            free[best] -= size[item]
            value, at = load[best], place[best]
            while True:  # sift down
                child = 2 * at + 1
                if child >= n:
                    break
                if child + 1 < n and load[heap[child + 1]] < load[heap[child]]:
                    child += 1
                if load[heap[child]] >= value:
                    break
                heap[at] = heap[child]
                place[heap[at]] = at
                at = child
            heap[at] = best
            place[best] = at


def improve(groups: Groups, bin_of_item: Ints, rounds: int = ROUNDS) -> Ints:
    """[item] bin, after moves and swaps that lower the cost of a group's most expensive bin.

    Args:
        groups: items and bins.
        bin_of_item: [item] bin to start from; -1: the item is in none.
        rounds: most exchanges per group.
    """
    better = bin_of_item.copy()
    most = int(
        np.bincount(bin_of_item[bin_of_item >= 0], minlength=len(groups.room)).max(initial=0)
    )
    bins = int(np.diff(groups.bin_ptr).max(initial=0))
    members = np.empty((bins, 2 * most + 2), dtype=np.int64)
    mean = len(bin_of_item) // max(1, len(groups.room)) + 1
    loop = _fast(_improve, len(bin_of_item) + len(groups.item_ptr) * rounds * mean * mean // 10)
    loop(*groups.arrays(), better, rounds, PARTNERS, members)
    return better


def _improve(
    cost: Any,
    size: Any,
    item_ptr: Any,
    room: Any,
    bin_ptr: Any,
    bin_of_item: Any,
    rounds: int,
    partners: int,
    members: Any,
) -> None:
    slots = members.shape[1]
    for group in range(len(item_ptr) - 1):
        first, n = bin_ptr[group], bin_ptr[group + 1] - bin_ptr[group]
        load, free = np.zeros(n), room[first : first + n].copy()
        count = np.zeros(n, dtype=np.int64)
        for item in range(item_ptr[group], item_ptr[group + 1]):
            place = bin_of_item[item] - first
            if place < 0:
                continue
            load[place] += cost[item]
            free[place] -= size[item]
            members[place, count[place]] = item
            count[place] += 1
        for _round in range(rounds):
            top = np.argmax(load)
            tried = np.zeros(n, dtype=np.bool_)
            tried[top] = True
            done = False
            for _ in range(min(partners, n - 1)):
                low = -1
                for place in range(n):
                    if not tried[place] and (low < 0 or load[place] < load[low]):
                        low = place
                tried[low] = True
                # The best exchange minimises the larger cost of the two bins.
                best, give, take = load[top] * (1 - 1e-9), -1, -1
                for i in range(count[top]):
                    item = members[top, i]
                    if count[low] < slots and free[low] >= size[item]:
                        dearer = max(load[top] - cost[item], load[low] + cost[item])
                        if dearer < best:
                            best, give, take = dearer, i, -1
                    for j in range(count[low]):
                        partner = members[low, j]
                        change = cost[item] - cost[partner]
                        grows = size[item] - size[partner]
                        if change > 0 and free[low] >= grows and free[top] >= -grows:
                            dearer = max(load[top] - change, load[low] + change)
                            if dearer < best:
                                best, give, take = dearer, i, j
                if give < 0:
                    continue
                item = members[top, give]
                bin_of_item[item] = first + low
                load[top] -= cost[item]
                load[low] += cost[item]
                free[top] += size[item]
                free[low] -= size[item]
                if take >= 0:
                    partner = members[low, take]
                    bin_of_item[partner] = first + top
                    load[top] += cost[partner]
                    load[low] -= cost[partner]
                    free[top] -= size[partner]
                    free[low] += size[partner]
                    members[top, give], members[low, take] = partner, item
                else:
                    members[low, count[low]] = item
                    count[low] += 1
                    count[top] -= 1
                    members[top, give] = members[top, count[top]]
                done = True
                break
            if not done:
                break
