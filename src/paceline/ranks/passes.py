"""Time of forwards, backwards and gradients of weights, by ranges of the host.

Schedules such as DualPipe run them at once, so that communication of one direction hides behind
computes of the other. An event of the device belongs to the innermost range that launched it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.ranks.intervals import Intervals, at_once_s, union
from paceline.sources.kineto.device import RankFile, Work

#: The directions, as named by ranges.
WAYS = {"F": "forward", "B": "backward", "W": "weight"}

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PassWork:
    """The device's time for one direction, or for the ranges of one name; seconds.

    Attributes:
        name: ``forward``, ``backward``, ``weight``, or the name of the ranges.
        ranges: number of ranges that launched it.
        compute_s: at least one of its kernels computed.
        communication_s: at least one of its kernels communicated.
        communication_exposed_s: the part in which nothing of the device computed.
        communication_beside_s: the part in which a kernel of another direction computed.
    """

    name: str
    ranges: int
    compute_s: float
    communication_s: float
    communication_exposed_s: float
    communication_beside_s: float

    @property
    def communication_hidden_s(self) -> float:
        """The part of the communication during computing."""
        return self.communication_s - self.communication_exposed_s


@dataclass(frozen=True)
class Passes:
    """The work of all directions.

    Attributes:
        ways: forward, backward and weight, if they have ranges.
        ranges: the same by the name of the ranges, by their first one.
        any_s: time in which work of at least one direction ran.
        at_once_s: time in which work of two directions or more ran.
        elsewhere_s: time of the device's work that no such range launched.
    """

    ways: tuple[PassWork, ...]
    ranges: tuple[PassWork, ...]
    any_s: float
    at_once_s: float
    elsewhere_s: float

    @property
    def at_once_share(self) -> float:
        """Share of the time of any direction in which two or more ran."""
        return self.at_once_s / self.any_s if self.any_s > 0 else 0.0

    def to_mapping(self) -> dict[str, Any]:
        """The work as JSON values."""
        tables = {
            name: [
                asdict(work) | {"communication_hidden_s": work.communication_hidden_s}
                for work in table
            ]
            for name, table in (("ways", self.ways), ("ranges", self.ranges))
        }
        times = {
            "any_s": self.any_s,
            "at_once_s": self.at_once_s,
            "at_once_share": self.at_once_share,
            "elsewhere_s": self.elsewhere_s,
        }
        return tables | times


def passes_of(file: RankFile, events: Mask) -> Passes | None:
    """The work of each direction; None without ranges of directions, or without launches.

    Args:
        file: one rank's file.
        events: [event] whether it counts.
    """
    if not file.passes or np.isnan(file.launch_s[events]).all():
        return None
    within = _innermost(file)
    way_of_range = np.array([item.way for item in file.passes] + [""])
    way = way_of_range[within]  # -1: none
    table = _Device(file, events, way)
    masks = {key: events & (way == key) for key in WAYS}
    there = [key for key in WAYS if (way_of_range == key).any()]
    names = list(dict.fromkeys(item.name for item in file.passes))
    name_of_range = np.array([names.index(item.name) for item in file.passes] + [-1])
    name = name_of_range[within]
    each = [union(file.start_s[mask], file.end_s[mask]) for mask in masks.values()]
    elsewhere = events & (within < 0)
    return Passes(
        ways=tuple(
            table.work(WAYS[key], int((way_of_range == key).sum()), masks[key], key)
            for key in there
        ),
        ranges=tuple(
            table.work(
                label,
                int((name_of_range == number).sum()),
                events & (name == number),
                label[-2],
            )
            for number, label in enumerate(names)
        ),
        any_s=at_once_s(each, 1),
        at_once_s=at_once_s(each, 2),
        elsewhere_s=union(file.start_s[elsewhere], file.end_s[elsewhere]).length_s,
    )


def _innermost(file: RankFile) -> npt.NDArray[np.int64]:
    """[event] the innermost range that launched it; -1 = none."""
    order = np.argsort(file.launch_s, kind="stable")  # nan: last
    sorted_s = file.launch_s[order]
    within = np.full(len(order), -1, dtype=np.int64)
    for number, item in enumerate(file.passes):  # by start, so that inner ranges come later
        low, high = np.searchsorted(sorted_s, [item.start_s, item.end_s])
        within[order[low:high]] = number
    return within


class _Device:
    """A device's events, to be divided by purpose."""

    def __init__(self, file: RankFile, events: Mask, way: npt.NDArray[np.str_]) -> None:
        self.file = file
        computes = events & (file.work == Work.COMPUTE)
        self.computes = self._union(computes)
        self.beside = {key: self._union(computes & (way != key) & (way != "")) for key in WAYS}

    def _union(self, mask: Mask) -> Intervals:
        return union(self.file.start_s[mask], self.file.end_s[mask])

    def work(self, name: str, ranges: int, mask: Mask, way: str) -> PassWork:
        """Times of the events of a mask, all of one direction."""
        work: Sequence[int] = (Work.COMPUTE, Work.COMMUNICATION)
        compute, communication = (self._union(mask & (self.file.work == one)) for one in work)
        hidden_s = at_once_s((communication, self.computes), 2)
        return PassWork(
            name=name,
            ranges=ranges,
            compute_s=compute.length_s,
            communication_s=communication.length_s,
            communication_exposed_s=communication.length_s - hidden_s,
            communication_beside_s=at_once_s((communication, self.beside[way]), 2),
        )
