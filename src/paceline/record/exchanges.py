"""Sends and receives among the ranks of a group, sorted into matching pairs.

In a turn of a ring, each rank sends to one neighbour and receives from the other. An op of a step
graph must join disjoint sets of ranks. So the links of a turn are coloured: two links of the same
colour share no rank. An even ring needs two colours, an odd ring three. Rank i's op of a colour is
its send, its receive, or an op without transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple


class Link(NamedTuple):
    """One transfer of a turn; ranks are indices in the group.

    Attributes:
        source: the rank that sends.
        target: the rank that receives.
    """

    source: int
    target: int


class Meeting(NamedTuple):
    """An op of a rank: its transfer, and the set of ranks that it joins.

    Attributes:
        transfer: index of the transfer; None if the rank has none of this colour (the ends of a
            line, or the third colour of an odd ring).
        group: a number that only the two ends of the transfer share: the index of the sender.
    """

    transfer: int | None
    group: int


def meetings(links: Sequence[Link], place: int, size: int) -> list[Meeting] | None:
    """The ops of one rank, in the same order on all ranks.

    Args:
        links: the transfers of this rank, in the order of its list.
        place: index of this rank in its group.
        size: number of ranks in the group.

    Returns:
        None if a rank sends to itself.
    """
    by_shift: dict[int, list[list[int]]] = {}
    for number, link in enumerate(links):
        shift = (link.target - link.source) % size
        if shift == 0:
            return None
        odd = size // gcd(size, shift) % 2
        colours = by_shift.setdefault(shift, [[], [], []] if odd else [[], []])
        colours[_colour(link.source, shift, size)].append(number)
    ops: list[Meeting] = []
    for _, colours in sorted(by_shift.items()):
        most = max(len(numbers) for numbers in colours)
        for numbers in colours:
            transfers = [*numbers, *[None] * (most - len(numbers))]
            ops += [Meeting(n, place if n is None else links[n].source) for n in transfers]
    return ops


def _colour(source: int, shift: int, size: int) -> int:
    """Colours 0 and 1 in turn along the cycle of a shift; 2 for the last link of an odd cycle."""
    step = gcd(size, shift)
    length = size // step
    turns = (source // step) * pow(shift // step, -1, length) % length
    return 2 if length % 2 and turns == length - 1 else turns % 2
