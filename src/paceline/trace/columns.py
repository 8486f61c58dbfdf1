"""Raw columns of a trace, as readers hand them over."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.trace.kinds import OpKind


@dataclass(frozen=True)
class Columns:
    """Raw columns of a trace, one entry per row, in any order and any integer or float width.

    Attributes:
        step: step number.
        dp: data-parallel rank.
        pp: pipeline stage.
        rank: global rank that recorded the row.
        kind: :class:`OpKind` codes.
        start: seconds; absolute or relative to the step's start.
        duration: seconds, >= 0.
        seq: number of the op among its kind on its worker in its step, by start.
        chunk: model chunk on the stage, -1 = not applicable.
        microbatch: microbatch, -1 = not applicable.
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

    def __len__(self) -> int:
        return len(self.step)

    def take(self, rows: npt.NDArray[Any]) -> Columns:
        """The same columns for some rows (indices or a mask)."""
        return Columns(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def describe(columns: Columns, row: int) -> str:
    """A row in words, for messages."""
    return (
        f"step {columns.step[row]}, dp {columns.dp[row]}, stage {columns.pp[row]}, "
        f"{OpKind(int(columns.kind[row])).label} {columns.seq[row]}"
    )
