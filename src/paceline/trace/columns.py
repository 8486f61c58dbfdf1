"""Raw columns of a trace, the output of readers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.trace.kinds import OpKind


@dataclass(frozen=True)
class Columns:
    """Raw columns of a trace, one entry per row, in any order and with any integer or float width.

    Attributes:
        step: step number.
        dp: data-parallel rank.
        pp: pipeline stage.
        rank: global rank that recorded the row.
        kind: :class:`OpKind` codes.
        start: seconds; absolute or relative to the step's start.
        duration: seconds, >= 0.
        seq: number of the op within its kind, worker and step, by start.
        chunk: model chunk on the stage, -1 = not applicable.
        microbatch: microbatch, -1 = not applicable.
        part: number of the op within its pass, or its unit or bucket; -1 = to be counted; None: all
            are.
        issued: position in its worker's program at which the op was launched; None: unknown.
        awaited: position of the last op launched before the program waited for this one. All ops
            launched after that wait run after the op's end. -1 = never awaited in the step.
        group: a number shared by the ranks of the stage that communicate in a collective; -1 = all
            ranks of the stage. None: every collective has all of them.
        late: whether the recorded end is an upper bound; None: no end is.
        transfer: transfer time, in the unit of ``duration``, of several collectives in one row. -1
            = the row is a single collective; None: all rows are.
        peer: number of the rank among the tensor- and context-parallel ranks of its (dp, pp); None:
            numbered by global ranks.
    """

    step: npt.NDArray[Any]
    dp: npt.NDArray[Any]
    pp: npt.NDArray[Any]
    rank: npt.NDArray[Any]
    kind: npt.NDArray[np.int8]
    start: npt.NDArray[Any]
    duration: npt.NDArray[Any]
    seq: npt.NDArray[Any]
    chunk: npt.NDArray[Any]
    microbatch: npt.NDArray[Any]
    part: npt.NDArray[Any] | None = None
    issued: npt.NDArray[Any] | None = None
    awaited: npt.NDArray[Any] | None = None
    group: npt.NDArray[Any] | None = None
    late: npt.NDArray[Any] | None = None
    transfer: npt.NDArray[Any] | None = None
    peer: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.step)

    def take(self, rows: npt.NDArray[Any]) -> Columns:
        """The columns of some rows (indices or a mask)."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        return Columns(**{k: v[rows] for k, v in columns.items() if v is not None})


def of_kinds(kind: npt.NDArray[np.int8], kinds: Iterable[OpKind]) -> npt.NDArray[np.bool_]:
    """[row] whether its kind is one of ``kinds``; needs less memory than ``np.isin``."""
    chosen = np.zeros(len(kind), dtype=bool)
    for one in kinds:
        chosen |= kind == int(one)
    return chosen


def describe(columns: Columns, row: int) -> str:
    """A row as text for messages."""
    peer = "" if columns.peer is None else f"peer {columns.peer[row]}, "
    return (
        f"step {columns.step[row]}, dp {columns.dp[row]}, stage {columns.pp[row]}, {peer}"
        f"{OpKind(int(columns.kind[row])).label} {columns.seq[row]}"
    )
