"""Times that a host's clock measured in each step, per rank or only their range over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Measures with a meaning of their own: the whole step, the computing time of a rank, and its wait.
#: A rank waits in the synchronisation of gradients until the last rank arrives.
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


def tables(
    samples: Mapping[tuple[str, int, int], float], steps: Iterable[int], columns: Iterable[int]
) -> dict[str, Array]:
    """(measure, step, column) -> seconds, as a table [step, column] of each measure."""
    step_at = {step: i for i, step in enumerate(steps)}
    column_at = {column: i for i, column in enumerate(columns)}
    result: dict[str, Array] = {}
    for (measure, step, column), value in samples.items():
        table = result.setdefault(measure, np.full((len(step_at), len(column_at)), np.nan))
        table[step_at[step], column_at[column]] = value
    return result
