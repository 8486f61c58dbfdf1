"""Puts rows into canonical order in two passes, for tables of millions of rows.

It gives the same result as the array operations of :mod:`paceline.trace.door`, each of which needs
a pass and a temporary array; tests compare both. Rows come in parts, so that a file need not be in
memory as a whole: fresh memory costs more than the work on it. This module accepts only tables
whose ``seq_id`` numbers every cell 0, 1, 2 and whose workers have one rank each. The door sorts
other tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.jit import compiled
from paceline.trace.kinds import OpKind

#: Number of the kind of gradients of weights, for the compiled loops.
WEIGHT = int(OpKind.WEIGHT_COMPUTE)

#: For smaller tables, loading the compiled loops costs more than it saves (benchmarks/analyze.py).
PLACE_ABOVE = 2_000_000

#: Step numbers may have gaps. Up to this number of cells per row, a lookup table is worth its
#: memory.
MAX_CELLS_PER_ROW = 16

#: Number of rows cast at once, so that loops see one type per column and casts stay in the cache.
_AT_ONCE = 1 << 15

Column = npt.NDArray[Any]
Part = tuple[Column, Column, Column, Column, Column]


@dataclass(frozen=True)
class Extremes:
    """Lowest and highest number of each column of whole numbers."""

    step: tuple[int, int]
    dp: tuple[int, int]
    pp: tuple[int, int]
    rank: tuple[int, int]
    chunk: tuple[int, int]
    microbatch: tuple[int, int]


@dataclass(frozen=True)
class Parts:
    """A table in parts.

    Attributes:
        n_rows: number of rows of all parts.
        extremes: extremes of its columns.
        places: the parts as (step, dp, pp, kind, rank).
        values: the same parts as (seq, chunk, microbatch, start, duration).
    """

    n_rows: int
    extremes: Extremes
    places: Callable[[], Iterator[Part]]
    values: Callable[[], Iterator[Part]]


@dataclass(frozen=True)
class Placed:
    """The columns of a trace in canonical order; ``end`` still has durations.

    Attributes:
        steps: [step] step numbers, ascending.
        counts: [step, worker, kind] rows.
        rank: [worker] the rank that recorded it, -1 = none.
        chunk, microbatch, start, end: [row].
    """

    steps: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int32]
    rank: npt.NDArray[np.int64]
    chunk: npt.NDArray[np.int16]
    microbatch: npt.NDArray[np.int32]
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]


def place(parts: Parts, n_dp: int, n_pp: int) -> Placed | None:
    """A table in canonical order; None if this module cannot place it."""
    low, high = parts.extremes.step
    n_numbers, n_workers = high - low + 1, n_dp * n_pp
    n_cells = n_numbers * n_workers * len(OpKind)
    if low < 0 or n_cells > MAX_CELLS_PER_ROW * parts.n_rows or n_cells >= 2**31:
        return None
    cell = np.empty(parts.n_rows, dtype=np.int32)
    counts = np.zeros(n_cells, dtype=np.int32)
    rank = np.full(n_workers, -1, dtype=np.int64)
    limits = (low, n_numbers, n_dp, n_pp, len(OpKind))
    if not _each(compiled(_count), parts.places(), np.int64, cell, (*limits, counts, rank)):
        return None
    first = np.cumsum(counts, dtype=np.int64) - counts
    n = parts.n_rows
    chunk, microbatch = np.empty(n, np.int16), np.empty(n, np.int32)
    start, end = np.empty(n), np.empty(n)
    taken = np.zeros(n, dtype=np.bool_)
    columns = (first, counts, len(OpKind), taken, chunk, microbatch, start, end)
    if not _each(compiled(_fill), parts.values(), np.float64, cell, columns):
        return None
    rising: Callable[..., bool] = compiled(_rising)
    if not rising(start, counts):
        return None
    table = counts.reshape(n_numbers, n_workers, len(OpKind))
    there = table.any(axis=(1, 2))
    steps = (np.flatnonzero(there) + low).astype(np.int64)
    return Placed(steps, table[there], rank, chunk, microbatch, start, end)


def _each(
    loop: Callable[..., bool],
    parts: Iterator[Part],
    seconds: type[np.generic],
    cell: npt.NDArray[np.int32],
    tables: tuple[Any, ...],
) -> bool:
    """Run a loop over all parts after casts; returns whether it accepted all rows.

    Casts avoid that Numba compiles a loop for every type and for read-only memory.
    """
    buffers: Sequence[Column] = [
        np.empty(_AT_ONCE, dtype=np.int64 if i < 3 else seconds) for i in range(5)
    ]
    done = 0
    for part in parts:
        for low in range(0, len(part[0]), _AT_ONCE):
            rows = [column[low : low + _AT_ONCE] for column in part]
            size = len(rows[0])
            if done + size > len(cell):
                return False
            for buffer, row in zip(buffers, rows, strict=True):
                np.copyto(buffer[:size], row, casting="unsafe")
            if not loop(*(b[:size] for b in buffers), cell[done : done + size], *tables):
                return False
            done += size
    return done == len(cell)


def _count(
    step: Any,
    dp: Any,
    pp: Any,
    kind: Any,
    of_rank: Any,
    cell: Any,
    first_step: int,
    n_steps: int,
    n_dp: int,
    n_pp: int,
    n_kinds: int,
    counts: Any,
    rank: Any,
) -> bool:
    """Number the cells of some rows and count them; returns whether each worker has one rank."""
    for row in range(len(step)):
        number, d, p, k = step[row] - first_step, dp[row], pp[row], kind[row]
        inside = 0 <= number < n_steps and 0 <= d < n_dp and 0 <= p < n_pp and 0 <= k < n_kinds
        if not inside:
            return False
        worker = d * n_pp + p
        if rank[worker] == -1:
            rank[worker] = of_rank[row]
        elif rank[worker] != of_rank[row]:
            return False
        at = (number * (n_dp * n_pp) + worker) * n_kinds + k
        cell[row] = at
        counts[at] += 1
    return True


def _fill(
    seq: Any,
    chunk: Any,
    microbatch: Any,
    start: Any,
    duration: Any,
    cell: Any,
    first: Any,
    counts: Any,
    n_kinds: int,
    taken: Any,
    to_chunk: Any,
    to_microbatch: Any,
    to_start: Any,
    to_end: Any,
) -> bool:
    """Put rows into their places; returns whether these lie in their cells and are distinct."""
    for row in range(len(cell)):
        number = cell[row]
        if seq[row] < 0 or seq[row] >= counts[number]:
            return False
        if not (duration[row] >= 0.0 and abs(start[row]) + duration[row] < np.inf):
            return False
        at = first[number] + seq[row]
        if taken[at]:
            return False
        taken[at] = True
        to_chunk[at] = chunk[row]
        # Only passes keep a microbatch; the file's numbers of other ops are ignored.
        kind = number % n_kinds
        to_microbatch[at] = microbatch[row] if kind <= 1 or kind == WEIGHT else -1
        to_start[at] = start[row]
        to_end[at] = duration[row]
    return True


def _rising(start: Any, counts: Any) -> bool:
    """Whether starts do not decrease within cells."""
    row = 0
    for cell in range(len(counts)):
        for at in range(row + 1, row + counts[cell]):
            if start[at] < start[at - 1]:
                return False
        row += counts[cell]
    return True
