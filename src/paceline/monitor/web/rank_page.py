"""A job's ranks over time on its page: a heatmap, the slowest ranks, a rank's curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.monitor.rank_groups import Rows, by_host, by_number, fewer_bins
from paceline.monitor.rank_map import Ratios
from paceline.report.page.distributions import Spec
from paceline.report.page.pack import slowdowns

#: Rows and columns of the heatmap.
_ROWS, _COLUMNS = 32, 96
#: Bounds of the colour scale's end, so that an outlier does not hide the rest.
_LEAST_TOP, _MOST_TOP = 1.1, 2.0
#: Most ranks named, and their least ratio in a column.
_NAMED, _SLOW = 5, 1.05
#: In a fail-slow, the least part of its excess that a named rank has over the median. Ranks that
#: wait for each other have less: none of them is named.
_OF_FAIL_SLOW = 0.5

Hosts = Mapping[int, tuple[str, str]]


@dataclass(frozen=True)
class SlowRank:
    """The slowest part of a rank: mean ratio in the steps ``first`` to ``last``."""

    rank: int
    ratio: float
    first: int
    last: int
    host: str


@dataclass(frozen=True)
class RankView:
    """Content of the page.

    Attributes:
        n_ranks: number of the job's ranks.
        heatmap: data of the figure.
        by_host, is_grouped: kind of its rows.
        slowest: slowest ranks, the slowest first; empty if all are alike. In a fail-slow, only
            ranks whose own times show it.
        slow_since: first step of the present fail-slow; None without one.
        rank: requested rank, or None.
        chart: chart of that rank; None without step times.
    """

    n_ranks: int
    heatmap: Spec
    by_host: bool
    is_grouped: bool
    slowest: tuple[SlowRank, ...]
    slow_since: int | None
    rank: int | None
    chart: Spec | None


def rank_view(
    ratios: Ratios,
    hosts: Hosts,
    rank: int | None,
    slow_since: int | None = None,
    factor: float | None = None,
) -> RankView | None:
    """The view of a job's rank map; None for fewer than two ranks.

    Args:
        ratios: the rank map.
        hosts: rank -> its host.
        rank: requested rank.
        slow_since: first step of the present fail-slow; None without one.
        factor: its factor.
    """
    if len(ratios.ranks) < 2 or not len(ratios.bins):
        return None
    columns = fewer_bins(ratios, _COLUMNS)
    single = len(ratios.ranks) <= _ROWS
    host_rows = None if single else by_host(columns, hosts, _ROWS)
    rows = host_rows or by_number(columns, _ROWS)
    return RankView(
        n_ranks=len(ratios.ranks),
        heatmap=_heatmap(rows, hosts),
        by_host=host_rows is not None,
        is_grouped=rows.is_grouped,
        slowest=_slowest(columns, hosts, slow_since, factor),
        slow_since=slow_since,
        rank=rank,
        chart=None if rank is None else _chart(ratios, hosts, rank),
    )


def _heatmap(rows: Rows, hosts: Hosts) -> Spec:
    bins, finite = rows.bins, rows.values[np.isfinite(rows.values)]
    return {
        "rows": len(rows.ranks),
        "cols": len(bins),
        "values": slowdowns(rows.values.astype(np.float64)),
        "top": min(max(float(finite.max(initial=0.0)), _LEAST_TOP), _MOST_TOP),
        "first": bins["first"].tolist(),
        "last": bins["last"].tolist(),
        "restarts": np.flatnonzero(_has_restart(bins)).tolist(),
        "names": [
            _row_name(rows, row, hosts.get(int(ranks[0]), ("", ""))[0])
            for row, ranks in enumerate(rows.ranks)
        ],
        "ranks": [int(ranks[0]) for ranks in rows.ranks],
        "slowest": rows.slowest.tolist() if rows.is_grouped else None,
    }


def _row_name(rows: Rows, row: int, host: str) -> str:
    ranks = rows.ranks[row]
    first, last = int(ranks[0]), int(ranks[-1])
    if rows.names:
        return f"{rows.names[row]}, {len(ranks):,} ranks from {first:,} to {last:,}"
    if len(ranks) > 1:
        return f"ranks {first:,} to {last:,}"
    return f"rank {first:,} on {host}" if host else f"rank {first:,}"


def _has_restart(bins: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """[bin] whether the job restarted in it, or just before it."""
    before = np.concatenate((bins["start"][:1], bins["last_start"][:-1]))
    return np.asarray(bins["last_start"] != before, dtype=np.bool_)


def _slowest(
    columns: Ratios, hosts: Hosts, slow_since: int | None, factor: float | None
) -> tuple[SlowRank, ...]:
    is_now = columns.bins["last"] >= (-1 if slow_since is None else slow_since)
    known = np.isfinite(columns.values) & is_now[:, None]
    values = np.where(known, columns.values, -np.inf)
    least = max(_SLOW, 1 + _OF_FAIL_SLOW * ((factor or 1.0) - 1))
    at, worst = values.argmax(axis=0), values.max(axis=0)
    slowest = []
    for place in np.argsort(-worst, kind="stable")[:_NAMED].tolist():
        if worst[place] < least:
            break
        rank, one = int(columns.ranks[place]), columns.bins[at[place]]
        host = hosts.get(rank, ("", ""))[0]
        slow = SlowRank(rank, float(worst[place]), int(one["first"]), int(one["last"]), host)
        slowest.append(slow)
    return tuple(slowest)


def _chart(ratios: Ratios, hosts: Hosts, rank: int) -> Spec | None:
    """A rank's curve, compared with the median of its host's ranks, else of all."""
    column = int(np.searchsorted(ratios.ranks, rank))
    if column == len(ratios.ranks) or ratios.ranks[column] != rank:
        return None
    host = hosts.get(rank, ("", ""))[0]
    group = [hosts.get(other, ("", ""))[0] == host for other in ratios.ranks.tolist()]
    group = group if host and sum(group) > 1 else [True] * len(group)
    own = ratios.values[:, column]
    told = np.flatnonzero(np.isfinite(own))
    median = np.nanmedian(ratios.values[told][:, group], axis=1)
    bins, own = ratios.bins[told], own[told]
    of_group = f"median of {host}'s {sum(group):,} ranks" if not all(group) else "median of all"
    breaks = np.flatnonzero(np.diff(bins["start"]) != 0) + 1
    steps = bins["first"].tolist()
    stops = [
        {"x": step, "y": _digits(value), "lines": [_words(one, value), f"{of_group}: {middle:.3f}"]}
        for step, one, value, middle in zip(steps, bins, own.tolist(), median.tolist(), strict=True)
    ]
    low, high = float(min(own.min(), median.min())), float(max(own.max(), median.max()))
    room = max(0.08 * (high - low), 0.01)
    curves = ((f"rank {rank:,}", "c-actual thin", own), (of_group, "c-ideal", median))
    return {
        "label": f"Step time of rank {rank:,} over the median; arrow keys move",
        "xLabel": "step",
        "yLabel": "over the step's median",
        "yRange": [max(0.0, low - room), high + room],
        "xRange": [min(steps), max(max(steps), min(steps) + 1)],
        "series": [
            {
                "label": label,
                "name": name,
                "points": [[x, _digits(y)] for x, y in zip(steps, values.tolist(), strict=True)],
                "breaks": breaks.tolist(),
            }
            for label, name, values in curves
        ],
        "stops": stops,
        "table": {
            "title": f"Table: rank {rank:,}, the slowest parts",
            "head": ["steps", "of its time", of_group],
            "rows": [
                [_steps(bins[i]), f"{own[i]:.3f}", f"{median[i]:.3f}"]
                for i in np.argsort(-own, kind="stable")[:20]
            ],
        },
    }


def _words(one: Any, value: float) -> str:
    return f"{_steps(one)}: {value:.3f} of the step's median"


def _steps(one: Any) -> str:
    first, last = int(one["first"]), int(one["last"])
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def _digits(value: float) -> float:
    return float(f"{value:.5g}")
