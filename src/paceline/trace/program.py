"""The program of each worker: its launches of operations and its waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.occurrence import occurrence
from paceline.trace.columns import Columns, describe, of_kinds
from paceline.trace.kinds import DP_KINDS, LOCAL_KINDS, PEER_KINDS, OpKind
from paceline.trace.trace import N_KINDS, Program
from paceline.trace.unit_numbers import unit_numbers

Ints = npt.NDArray[np.int64]

#: Up to this number of cells per row, a lookup table is worth its memory; otherwise rows are
#: sorted.
MAX_CELLS_PER_ROW = 16

#: Largest position and part that a trace can hold.
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class _Rows:
    """Rows with [row] the lane (step, worker), and whether it is a compute."""

    columns: Columns
    lane: npt.NDArray[Any]
    local: npt.NDArray[np.bool_]


def program_of(
    columns: Columns, cell: npt.NDArray[np.int32], place: Ints, where: str
) -> Program | None:
    """The programs in canonical order; None if the columns have none.

    Args:
        columns: the raw columns, with whole numbers.
        cell: [row] number of its (step, dp, pp, kind).
        place: [row] its index in canonical order.
        where: the name of the source, for messages.

    Raises:
        TraceError: one of ``issued`` and ``awaited`` is missing, a position occurs twice, a wait
            precedes its launch, or a program waits for a compute.
    """
    issued, awaited = columns.issued, columns.awaited
    if issued is None and awaited is None:
        if columns.part is not None:
            raise TraceError(
                f"{where} has the column part but not issued and awaited, which it needs"
            )
        inner = np.flatnonzero(of_kinds(columns.kind, PEER_KINDS))
        if len(inner):
            raise TraceError(
                f"{where} has {len(inner)} collectives within passes, the first is row {inner[0]} "
                f"({describe(columns, int(inner[0]))}); these need the columns issued and awaited, "
                "or drop them with --ignore-kinds"
            )
        return None
    if issued is None or awaited is None:
        lacking, other = ("issued", "awaited") if issued is None else ("awaited", "issued")
        raise TraceError(f"{where} has the column {other} but not {lacking}; a program needs both")
    local = of_kinds(columns.kind, LOCAL_KINDS)
    rows = _Rows(columns, cell // N_KINDS, local)
    _check_positions(rows, issued, awaited, where)
    part = columns.part if columns.part is not None else np.full(len(columns), -1, dtype=np.int64)
    if columns.part is None or (part[local] < 0).any():
        part = np.where(local, _parts(rows, issued, cell), part)
    if (part < 0).any():
        part = np.maximum(np.where(part < 0, unit_numbers(columns, rows.lane, cell), part), 0)

    def arranged(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        out = np.empty(len(place), dtype=np.int32)
        out[place] = values
        return out

    group = columns.group
    if group is not None:
        wide = of_kinds(columns.kind, DP_KINDS | PEER_KINDS)
        group = np.where(wide, group, -1)
        _check_range(rows, (group < -1) | (group > LARGEST), "a group that is no number", where)
    return Program(
        arranged(part),
        arranged(issued),
        arranged(awaited),
        None if group is None or not (group >= 0).any() else arranged(group),
    )


def _check_range(rows: _Rows, wrong: npt.NDArray[np.bool_], what: str, where: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TraceError(
            f"{where}: {int(wrong.sum())} rows have {what}, the first is row {row} "
            f"({describe(rows.columns, row)})"
        )


def _check_positions(
    rows: _Rows, issued: npt.NDArray[Any], awaited: npt.NDArray[Any], where: str
) -> None:
    columns = rows.columns
    complaints = (
        ((issued < 0) | (issued > LARGEST), "an issued that is no position (0, 1, 2, ...)"),
        ((awaited < -1) | (awaited > LARGEST), "an awaited that is no position (-1 = never)"),
        (_no_part(columns.part, len(columns)), "a part that is no number of one (-1 = count them)"),
        (rows.local & (awaited >= 0), "a compute that is awaited; only communication is"),
        ((awaited >= 0) & (awaited < issued), "a wait that comes before the launch"),
    )
    for wrong, what in complaints:
        if wrong.any():
            row = int(np.argmax(wrong))
            raise TraceError(
                f"{where}: {int(wrong.sum())} rows have {what}, the first is row {row} "
                f"({describe(columns, row)}: {_position(columns, row)})"
            )
    if _all_apart(rows.lane, issued):
        return
    order = np.lexsort((issued, rows.lane))
    twice = (np.diff(rows.lane[order]) == 0) & (np.diff(issued[order]) == 0)
    if twice.any():
        at = int(np.argmax(twice))
        one, other = int(order[at]), int(order[at + 1])
        raise TraceError(
            f"{where}: {int(twice.sum())} ops share a position of their worker's program, for "
            f"example {describe(columns, one)} and {describe(columns, other)} (issued "
            f"{issued[one]}); does the file hold several ranks of one (dp, stage)?"
        )


def check_waits(columns: Columns, where: str) -> None:
    """Check that every wait has a position that exists in some program of its stage.

    Args:
        columns: all rows of some steps.
        where: the name of the source, for messages.

    Raises:
        TraceError: a wait lies after all positions.
    """
    issued, awaited = columns.issued, columns.awaited
    if issued is None or awaited is None or not len(issued):
        return
    if not (_whole(issued) and _whole(awaited)):
        return  # other numbers are refused elsewhere
    stage, n_stages = columns.pp, int(columns.pp.max()) + 1 if _whole(columns.pp) else 0
    if not (np.issubdtype(stage.dtype, np.integer) and stage.min() >= 0 and n_stages < len(stage)):
        stages, stage = np.unique(columns.pp, return_inverse=True)
        n_stages = len(stages)
    last = np.zeros(n_stages, dtype=issued.dtype)
    np.maximum.at(last, stage, issued)
    wrong = np.flatnonzero((awaited > last[stage]) & (awaited <= LARGEST))
    if len(wrong):
        row = int(wrong[0])
        raise TraceError(
            f"{where}: {len(wrong)} rows have a wait behind the end of the program, the first is "
            f"row {row} ({describe(columns, row)}: awaited {awaited[row]}, but the last op of "
            f"stage {columns.pp[row]} has issued {last[stage[row]]}); -1 = never awaited"
        )


def _whole(values: npt.NDArray[Any]) -> bool:
    """Whether all values are whole numbers."""
    if np.issubdtype(values.dtype, np.integer):
        return True
    return bool(np.isfinite(values).all() and (values % 1 == 0).all())


def _all_apart(lane: npt.NDArray[Any], issued: npt.NDArray[Any]) -> bool:
    """Whether a lookup table shows that positions are unique per lane; False if it is too large."""
    width = int(issued.max(initial=0)) + 1
    if (int(lane.max(initial=0)) + 1) * width > MAX_CELLS_PER_ROW * len(lane):
        return False
    taken = np.zeros((int(lane.max(initial=0)) + 1) * width, dtype=bool)
    taken[lane.astype(np.int64) * width + issued] = True
    return int(np.count_nonzero(taken)) == len(lane)


def _position(columns: Columns, row: int) -> str:
    names = ("issued", "awaited", "part")
    values = {name: getattr(columns, name) for name in names}
    return ", ".join(f"{name} {v[row]}" for name, v in values.items() if v is not None)


def _no_part(part: npt.NDArray[Any] | None, n_rows: int) -> npt.NDArray[np.bool_]:
    return np.zeros(n_rows, dtype=bool) if part is None else (part < -1) | (part > LARGEST)


def late_of(columns: Columns, place: Ints, where: str) -> npt.NDArray[np.bool_] | None:
    """[row] whether the end is an upper bound, in canonical order; None if columns lack it.

    Raises:
        TraceError: a value is neither 0 nor 1.
    """
    late = columns.late
    if late is None:
        return None
    if not (late.dtype == np.bool_ or np.issubdtype(late.dtype, np.number)):
        raise TraceError(f"{where}: column late holds {late.dtype}, not 0 and 1")
    wrong = (late != 0) & (late != 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TraceError(
            f"{where}: column late has {int(wrong.sum())} values other than 0 and 1, the first is "
            f"in row {row} ({late[row]})"
        )
    out = np.empty(len(place), dtype=np.bool_)
    out[place] = late
    return out


def turns_back(
    kind: npt.NDArray[Any], pp: npt.NDArray[Any], chunk: npt.NDArray[Any], n_pp: int
) -> bool:
    """Whether chunks form a V: the last stage sends activations of chunk 1, not of chunk 0.

    ZBV and DualPipeV have such chunks: their last stage passes chunk 0 to itself. So has DualPipe,
    whose second model copy begins there. Under interleaving, the last stage sends activations of
    chunk 0 to the first.

    Args:
        kind: [op] kinds.
        pp: [op] stages.
        chunk: [op] chunks.
        n_pp: stages.
    """
    if n_pp == 1:
        return False
    chunks = chunk[(kind == OpKind.FORWARD_SEND) & (pp == n_pp - 1)]
    return bool((chunks == 1).any()) and not (chunks == 0).any()


def _parts(rows: _Rows, issued: npt.NDArray[Any], cell: npt.NDArray[np.int32]) -> Ints:
    """[row] number of an op within its pass (its kind, chunk and microbatch)."""
    columns = rows.columns
    keys = (columns.microbatch, columns.chunk, cell)
    return occurrence(keys, np.lexsort((issued, *keys)))
