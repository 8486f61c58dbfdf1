"""Slow and late ranks from host times, for files with too little data for a trace."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.sources.host_times.table import COMPUTE, STEP, WAIT, HostTimes

Array = npt.NDArray[np.float64]

#: A rank stands out above this ratio to its peers, as in a call log (``detect/who_calls.py``).
STANDS_OUT = 1.1
#: A late rank arrived last in at least this share of the steps.
MOST = 0.5


@dataclass(frozen=True)
class RankTimes:
    """Times measured by a rank's host; NaN without a measurement.

    Attributes:
        rank: its number.
        group: the ranks to compare with, such as ``stage 0``; "" = all ranks.
        median_s: measure -> median over the steps, in seconds.
        factor: time of its computes over the median of its group's other ranks.
        late_s: delay after the first of its group at the gradient synchronisation, the median over
            the steps. It is the difference between the longest wait there and its own.
        last: share of the steps in which it arrived last.
        stands_out: whether it computes longer than its peers, or, if no rank does, arrives last. A
            late rank may have waited for another stage.
    """

    rank: int
    group: str
    median_s: Mapping[str, float]
    factor: float
    late_s: float
    last: float
    stands_out: bool


@dataclass(frozen=True)
class TimesReport:
    """Step times, and facts of the ranks.

    Attributes:
        format: format of the files.
        steps: number of steps.
        measures: measure -> (median, least and most over ranks and steps), in seconds.
        imbalance: measure -> median over the steps of most over least of the ranks.
        ranks: ranks by number; empty if the files name none.
        notes: inferences, and limits of the files.
    """

    format: str
    steps: int
    measures: Mapping[str, tuple[float, float, float]]
    imbalance: Mapping[str, float]
    ranks: tuple[RankTimes, ...]
    notes: tuple[str, ...]

    def to_mapping(self) -> dict[str, Any]:
        """The report as JSON values; null for unknown numbers."""
        return {
            "format": self.format,
            "steps": self.steps,
            "measures": {
                name: dict(zip(("median_s", "least_s", "most_s"), map(_known, values), strict=True))
                for name, values in self.measures.items()
            },
            "imbalance": {name: _known(value) for name, value in self.imbalance.items()},
            "ranks": [
                {
                    "rank": rank.rank,
                    "group": rank.group,
                    "median_s": {name: _known(value) for name, value in rank.median_s.items()},
                    "compute_factor": _known(rank.factor),
                    "late_s": _known(rank.late_s),
                    "last_share": _known(rank.last),
                    "stands_out": rank.stands_out,
                }
                for rank in self.ranks
            ],
            "notes": list(self.notes),
        }


def report_times(times: HostTimes) -> TimesReport:
    """The report of some files' times."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # medians of nothing are NaN
        tables = {**times.ranges, **times.seconds}
        return TimesReport(
            format=times.format,
            steps=len(times.steps),
            measures={
                name: (float(np.nanmedian(t)), float(np.nanmin(t)), float(np.nanmax(t)))
                for name, t in tables.items()
            },
            imbalance={name: _imbalance(table) for name, table in tables.items()},
            ranks=_ranks(times),
            notes=times.notes,
        )


def _imbalance(table: Array) -> float:
    """Most over least of the columns, the median over the steps; NaN with one column."""
    if table.shape[1] < 2:
        return float("nan")
    least = np.nanmin(table, axis=1)
    return float(np.nanmedian(np.where(least > 0, np.nanmax(table, axis=1) / least, np.nan)))


def _ranks(times: HostTimes) -> tuple[RankTimes, ...]:
    shape = (len(times.steps), len(times.ranks))
    none = np.full(shape, np.nan)
    factor, late, last = none.copy(), none.copy(), none.copy()
    for group in np.unique(times.groups):
        columns = np.flatnonzero(times.groups == group)
        compute = times.seconds.get(COMPUTE, none)[:, columns]
        wait = times.seconds.get(WAIT, none)[:, columns]
        if len(columns) < 2:
            continue
        for i, column in enumerate(columns):
            others = np.nanmedian(np.delete(compute, i, axis=1), axis=1)
            factor[:, column] = np.where(others > 0, compute[:, i] / others, np.nan)
        late[:, columns] = np.nanmax(wait, axis=1)[:, None] - wait
        least = np.nanmin(wait, axis=1)[:, None]
        last[:, columns] = np.where(np.isnan(wait), np.nan, wait == least)
    slow = np.nanmedian(factor, axis=0) > STANDS_OUT
    step_s = np.nanmedian(times.seconds.get(STEP, none), axis=0)
    behind = (np.nanmedian(late, axis=0) > (STANDS_OUT - 1) * step_s) & (
        np.nanmean(last, axis=0) > MOST
    )
    stands_out = slow if slow.any() else behind
    return tuple(
        RankTimes(
            rank=int(times.ranks[i]),
            group=times.group_names.get(int(times.groups[i]), ""),
            median_s={name: float(np.nanmedian(t[:, i])) for name, t in times.seconds.items()},
            factor=float(np.nanmedian(factor[:, i])),
            late_s=float(np.nanmedian(late[:, i])),
            last=float(np.nanmean(last[:, i])),
            stands_out=bool(stands_out[i]),
        )
        for i in range(len(times.ranks))
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 6)
