"""Times by the hosts' clocks in each step: those of each rank, or only their range over ranks."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Measures that the analysis knows: the whole step, the computing time of a rank, and its wait. A
#: rank waits in the synchronisation of gradients until the last rank arrives.
STEP, COMPUTE, WAIT = "step", "compute", "grad sync"


@dataclass(frozen=True, eq=False)
class HostTimes:
    """Seconds by measure, step and rank.

    Attributes:
        format: format of the files.
        steps: [step] numbers, ascending.
        ranks: [rank] numbers, ascending; empty if the files name none.
        groups: [rank] ranks with equal numbers do the same work and meet in ``WAIT``.
        group_names: group -> its name.
        seconds: measure -> [step, rank]; NaN where there is none.
        ranges: measure -> [step, 2] least and most over all ranks, or [step, 1] if only one number
            is known; NaN where there is none.
        notes: notes on inferred facts, and on the limits of the files.
    """

    format: str
    steps: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    group_names: Mapping[int, str]
    seconds: Mapping[str, Array]
    ranges: Mapping[str, Array]
    notes: tuple[str, ...]


class Samples:
    """Seconds by measure, step and column (a rank), as they were read; 24 bytes each."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[array[int], array[int], array[float]]] = {}

    def add(self, measure: str, step: int, column: int, seconds: float) -> None:
        """Add a sample."""
        of = self._of.get(measure)
        if of is None:
            of = self._of[measure] = array("q"), array("q"), array("d")
        of[0].append(step)
        of[1].append(column)
        of[2].append(seconds)

    def add_all(self, measure: str, step: Ints, column: Ints, seconds: Array) -> None:
        """Add samples, one a row."""
        of = self._of.setdefault(measure, (array("q"), array("q"), array("d")))
        of[0].frombytes(step.astype(np.int64).tobytes())
        of[1].frombytes(column.astype(np.int64).tobytes())
        of[2].frombytes(seconds.tobytes())

    def steps(self) -> Ints:
        """Numbers of the steps that have a sample, ascending."""
        return _union([of[0] for of in self._of.values()])

    def columns(self) -> Ints:
        """Numbers of the columns that have a sample, ascending."""
        return _union([of[1] for of in self._of.values()])

    def repeated(self, measure: str) -> int:
        """Number of a measure's samples whose step and column already have a sample."""
        of = self._of.get(measure)
        if of is None:
            return 0
        places = np.stack([np.frombuffer(values, np.int64) for values in of[:2]])
        return int(places.shape[1] - np.unique(places, axis=1).shape[1])

    def tables(self, steps: Ints, columns: Ints, *, add_up: bool = False) -> dict[str, Array]:
        """Measure -> seconds [step, column], NaN where there is none.

        Args:
            steps: all numbers of steps, ascending.
            columns: all numbers of columns, ascending.
            add_up: samples of the same step and column are added; else the last one counts.
        """
        result: dict[str, Array] = {}
        for measure, of in self._of.items():
            step, column = (np.frombuffer(values, np.int64) for values in of[:2])
            seconds = np.frombuffer(of[2])
            place = np.searchsorted(steps, step), np.searchsorted(columns, column)
            table = np.full((len(steps), len(columns)), np.nan)
            if add_up:
                table[place] = 0.0
                np.add.at(table, place, seconds)
            else:
                table[place] = seconds
            result[measure] = table
        return result


def _union(parts: Sequence[array[int]]) -> Ints:
    numbers = [np.unique(np.frombuffer(part, np.int64)) for part in parts]
    return np.unique(np.concatenate(numbers)) if numbers else np.empty(0, dtype=np.int64)
