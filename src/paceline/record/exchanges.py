"""Sends and receives among the ranks of a group, sorted into pairs that meet.

In a turn of a ring each rank sends to one neighbour and receives from the other. Every op of a step
graph joins disjoint sets of ranks. So the links of a turn are coloured: no two links of one colour
share a rank. A ring with an even number of ranks needs two colours, with an odd number three. Rank
i's op of a colour is then its send, its receive, or an op of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple


class Link(NamedTuple):
    """One transfer of a turn, as places in the group.

    Attributes:
        source: the rank that sends.
        target: the rank that receives.
    """

    source: int
    target: int


class Meeting(NamedTuple):
    """An op of a rank: its transfer, and the set of ranks that it joins.

    Attributes:
        transfer: index of the transfer; None where the rank has none of this colour (the ends of
            a line; the third colour of an odd ring).
        group: a number that only the two ends of the transfer have: the place of the sender.
    """

    transfer: int | None
    group: int


def meetings(links: Sequence[Link], place: int, size: int) -> list[Meeting] | None:
    """The ops of one rank, in an order that all ranks share.

    Args:
        links: the transfers of this rank, as it lists them.
        place: place of this rank in its group.
        size: ranks of the group.

    Returns:
        None where a rank sends to itself.
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
    """The colours 0 and 1 in turn along the cycle of a shift; 2 for the last of an odd cycle."""
    step = gcd(size, shift)
    length = size // step
    turns = (source // step) * pow(shift // step, -1, length) % length
    return 2 if length % 2 and turns == length - 1 else turns % 2
