"""Sets of intervals of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


class Intervals(NamedTuple):
    """Disjoint intervals by start, [interval] seconds."""

    start_s: Times
    end_s: Times

    @property
    def length_s(self) -> float:
        """Union with another set."""
        return float((self.end_s - self.start_s).sum())

    def within(self, low_s: float, high_s: float) -> Intervals:
        """The parts within a window of time."""
        inside = (self.end_s > low_s) & (self.start_s < high_s)
        return Intervals(self.start_s[inside].clip(min=low_s), self.end_s[inside].clip(max=high_s))


def union(start_s: Times, end_s: Times) -> Intervals:
    """Union of intervals in any order, which may overlap."""
    if not len(start_s):
        return Intervals(start_s, end_s)
    order = np.argsort(start_s, kind="stable")
    start_s = start_s[order]
    until_s = np.maximum.accumulate(end_s[order])
    begins = np.flatnonzero(np.append(True, start_s[1:] > until_s[:-1]))
    return Intervals(start_s[begins], until_s[np.append(begins[1:], len(start_s)) - 1])


def at_once_s(sets: Sequence[Intervals], n: int) -> float:
    """The time that at least ``n`` of some sets of disjoint intervals cover, seconds."""
    at_s = np.concatenate([times for one in sets for times in one])
    change = np.concatenate(
        [np.repeat([1, -1], len(one.start_s)) for one in sets] or [np.zeros(0, dtype=np.int64)]
    )
    order = np.argsort(at_s, kind="stable")
    covering = np.cumsum(change[order])[:-1]
    return float(np.diff(at_s[order])[covering >= n].sum())
