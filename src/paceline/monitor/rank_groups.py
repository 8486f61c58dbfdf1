"""Reduced rank maps: some ranks, groups of ranks, fewer bins; and hosts of ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.monitor.rank_map import Ratios

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Rows:
    """Ratios by groups of ranks.

    Attributes:
        names: [row] host names; empty if ranks are grouped by number.
        ranks: [row] the ranks of the group, ascending.
        bins: [bin] as in :class:`Ratios`.
        values: [row, bin] largest ratio of the group's ranks; nan without step times.
        slowest: [row, bin] the rank with this ratio; -1 without step times.
    """

    names: tuple[str, ...]
    ranks: tuple[npt.NDArray[np.int32], ...]
    bins: npt.NDArray[Any]
    values: npt.NDArray[np.float32]
    slowest: npt.NDArray[np.int32]

    @property
    def is_grouped(self) -> bool:
        """Whether a row covers several ranks."""
        return any(len(ranks) > 1 for ranks in self.ranks)


def hosts_of(meta: object) -> dict[int, tuple[str, str]]:
    """Rank -> (host, gpu), from a trace's meta."""
    hosts: dict[int, tuple[str, str]] = {}
    pushed = meta.get("hosts") if isinstance(meta, Mapping) else None
    for rank, place in pushed.items() if isinstance(pushed, Mapping) else ():
        if str(rank).isdecimal() and isinstance(place, list | tuple) and len(place) == 2:
            hosts[int(rank)] = (str(place[0])[:100], str(place[1])[:100])
    return hosts


def some_ranks(ratios: Ratios, ranges: Ranges) -> Ratios:
    """The ratios of the ranks in any of the ranges, both ends included."""
    wanted = np.zeros(len(ratios.ranks), dtype=np.bool_)
    for first, last in ranges:
        wanted |= (ratios.ranks >= first) & (ratios.ranks <= last)
    return Ratios(ratios.ranks[wanted], ratios.bins, ratios.values[:, wanted])


def fewer_bins(ratios: Ratios, most: int) -> Ratios:
    """Neighbouring bins merged to at most ``most``; means are weighted by steps."""
    n = len(ratios.bins)
    if n <= most:
        return ratios
    per = math.ceil(n / most)
    begins = np.arange(0, n, per)
    ends = np.append(begins[1:], n) - 1
    bins = ratios.bins[ends].copy()
    for name in ("first", "start"):
        bins[name] = ratios.bins[name][begins]
    bins["steps"] = np.add.reduceat(ratios.bins["steps"], begins)
    told = ~np.isnan(ratios.values)
    weights = np.where(told, ratios.bins["steps"][:, None].astype(np.float32), np.float32(0))
    sums = np.add.reduceat(np.where(told, ratios.values, 0) * weights, begins, axis=0)
    weights = np.add.reduceat(weights, begins, axis=0)
    values = np.full(sums.shape, np.nan, dtype=np.float32)
    np.divide(sums, weights, out=values, where=weights > 0)
    return Ratios(ratios.ranks, bins, values)


def by_number(ratios: Ratios, most: int) -> Rows:
    """Neighbouring ranks in groups of 1, 2, 4, 8, ..., at most ``most`` groups."""
    size = 1
    while len(np.unique(ratios.ranks // size)) > most:
        size *= 2
    return _rows(ratios, (ratios.ranks // size).tolist(), ())


def by_host(ratios: Ratios, hosts: Mapping[int, tuple[str, str]], most: int) -> Rows | None:
    """Groups of ranks by host; None unless all hosts are known and at most ``most``."""
    names = [hosts.get(rank, ("", ""))[0] for rank in ratios.ranks.tolist()]
    in_order = tuple(dict.fromkeys(names))
    if not names or "" in names or len(in_order) > most:
        return None
    place = {name: number for number, name in enumerate(in_order)}
    return _rows(ratios, [place[name] for name in names], in_order)


def _rows(ratios: Ratios, groups: list[int], names: tuple[str, ...]) -> Rows:
    """Rows in the order of the groups' numbers."""
    number = np.array(groups, dtype=np.int64)
    order = np.argsort(number, kind="stable")
    begins = np.flatnonzero(np.diff(number[order], prepend=-1))
    members = tuple(np.split(ratios.ranks[order], begins[1:])) if len(begins) else ()
    columns = ratios.values[:, order]
    low = np.where(np.isnan(columns), -np.inf, columns)
    shape = (len(begins), len(ratios.bins))
    values, slowest = np.full(shape, np.nan, np.float32), np.full(shape, -1, np.int32)
    for row, (begin, ranks) in enumerate(zip(begins, members, strict=True)):
        part = low[:, begin : begin + len(ranks)]
        at = part.argmax(axis=1)
        largest = part[np.arange(len(part)), at]
        told = np.isfinite(largest)
        values[row, told], slowest[row, told] = largest[told], ranks[at][told]
    return Rows(names, members, ratios.bins, values, slowest)
