"""Several ranks recorded for the same (dp, pp): tensor-parallel peers become one worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.occurrence import count_in_runs
from paceline.trace.columns import Columns, describe
from paceline.trace.kinds import LOCAL_KINDS
from paceline.trace.trace import N_KINDS


def has_peers(rank: npt.NDArray[Any], cell: npt.NDArray[np.int32]) -> bool:
    """Whether several ranks recorded the same worker within one step."""
    lane = cell // N_KINDS
    of_lane = np.empty(int(lane.max()) + 1, dtype=rank.dtype)
    of_lane[lane] = rank
    return bool((of_lane[lane] != rank).any())


def merge_peers(
    columns: Columns,
    worker: npt.NDArray[np.int32],
    cell: npt.NDArray[np.int32],
    n_workers: int,
    where: str,
) -> tuple[Columns, dict[int, str], str]:
    """One op for each group of tensor-parallel peers; steps where a peer lacks an op are left out.

    A compute op takes the longest duration, a communication op the latest start, and both the
    latest end. So the peer with the clock ahead sets all times, and the order of ops is kept.
    """
    order = np.lexsort((columns.start, columns.rank, cell))
    columns, cell, worker = columns.take(order), cell[order], worker[order]
    seq = count_in_runs((cell, columns.rank))
    begin = np.flatnonzero(seq == 0)

    expected = _usual_peers(cell[begin], n_workers)
    order = np.lexsort((seq, cell))
    columns, cell, seq, worker = columns.take(order), cell[order], seq[order], worker[order]
    first = np.ones(len(cell), dtype=bool)
    first[1:] = (np.diff(cell) != 0) | (np.diff(seq) != 0)
    begin = np.flatnonzero(first)
    size = np.diff(np.append(begin, len(cell)))
    short = size != expected[worker[begin]]
    left_out: dict[int, str] = {}
    for row in begin[short]:
        number = int(columns.step[row])
        if number not in left_out:
            left_out[number] = (
                f"not as many ranks as usual recorded an op: {describe(columns, int(row))}"
            )

    for row in _odd_programs(columns, begin, size):
        left_out.setdefault(
            int(columns.step[row]),
            "tensor-parallel peers recorded different programs: rank "
            f"{columns.rank[row]} launches or awaits elsewhere {describe(columns, row)}",
        )

    start = columns.start.astype(np.float64)
    end = start + columns.duration
    latest_start = np.maximum.reduceat(start, begin)
    latest_end = np.maximum.reduceat(end, begin)
    longest = np.maximum.reduceat(end - start, begin)
    local = np.isin(columns.kind[begin], [int(kind) for kind in LOCAL_KINDS])
    merged = columns.take(begin)
    if columns.late is not None:  # a bound only if no peer saw the latest end
        seen = (end == np.repeat(latest_end, size)) & ~columns.late.astype(bool)
        merged = replace(merged, late=~np.logical_or.reduceat(seen, begin))
    merged = replace(
        merged,
        start=np.where(local, latest_end - longest, latest_start),
        duration=np.where(local, longest, latest_end - latest_start),
        seq=seq[begin],
    )
    whole = ~np.isin(merged.step, list(left_out))
    note = (
        f"{where}: up to {int(expected.max())} ranks recorded one (dp, stage) in a step: "
        "tensor-parallel peers were merged (compute: the longest; communication: latest start, "
        "latest end)"
    )
    return merged.take(whole), left_out, note


def _odd_programs(
    columns: Columns, begin: npt.NDArray[Any], size: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """Rows with a place in the program that differs from their first peer's; by launch."""
    odd = np.zeros(len(columns), dtype=bool)
    for name in ("part", "issued", "awaited"):
        values = getattr(columns, name)
        if values is not None:
            odd |= values != np.repeat(values[begin], size)
    rows = np.flatnonzero(odd)
    return rows if columns.issued is None else rows[np.argsort(columns.issued[rows])]


def _usual_peers(cell_of_run: npt.NDArray[np.int32], n_workers: int) -> npt.NDArray[np.int64]:
    """[worker] usual number of its ranks over steps; the larger of two equally frequent numbers."""
    cells, n_ranks = np.unique(cell_of_run, return_counts=True)
    lane, first = np.unique(cells // N_KINDS, return_index=True)
    most = np.maximum.reduceat(n_ranks, first)
    votes = np.zeros((n_workers, int(most.max()) + 1), dtype=np.int64)
    np.add.at(votes, (lane % n_workers, most), 1)
    usual: npt.NDArray[np.int64] = votes.shape[1] - 1 - np.argmax(votes[:, ::-1], axis=1)
    return usual
