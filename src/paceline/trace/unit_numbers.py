"""Numbers for gathers and reductions without a unit or bucket in the trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.occurrence import occurrence
from paceline.trace.columns import Columns, of_kinds
from paceline.trace.kinds import OpKind

Ints = npt.NDArray[np.int64]
K = OpKind

PASSES = (K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE)
REDUCTIONS = (K.GRADS_REDUCE_SCATTER, K.SEPARATE_GRADS_ALL_REDUCE)


def unit_numbers(columns: Columns, lane: npt.NDArray[Any], cell: npt.NDArray[np.int32]) -> Ints:
    """[row] number of a gather or reduction within its kind and pass; 0 for other rows.

    So ops with the same number are alike in all microbatches and steps. The order of a backward's
    gathers is unknown, so they get numbers after those of the forwards.

    Args:
        columns: columns with programs.
        lane: [row] number of its (step, dp, pp).
        cell: [row] number of its (step, dp, pp, kind).
    """
    assert columns.issued is not None
    assert columns.awaited is not None
    kind, issued = columns.kind, columns.issued.astype(np.int64)
    numbers = np.zeros(len(columns), dtype=np.int64)
    gathers = kind == K.PARAMS_ALL_GATHER
    rows = np.flatnonzero(gathers | of_kinds(kind, REDUCTIONS))
    computes = np.flatnonzero(of_kinds(kind, PASSES))
    if not (len(rows) and len(computes)):
        return numbers
    width = int(max(issued.max(), columns.awaited.max())) + 2
    place = lane.astype(np.int64) * width + issued
    computes = computes[np.argsort(place[computes])]
    # A gather serves the first compute after its wait, a reduction the last compute before its
    # launch.
    waits = lane[rows].astype(np.int64) * width + np.maximum(columns.awaited[rows], issued[rows])
    asked = np.where(gathers[rows], waits, place[rows])
    behind = np.searchsorted(place[computes], asked, side="right")
    nearest = np.where(gathers[rows], behind, behind - 1)
    served = computes[np.clip(nearest, 0, len(computes) - 1)]
    is_served = (nearest >= 0) & (nearest < len(computes)) & (lane[served] == lane[rows])
    of_pass = [
        np.where(is_served, values[served], -1)
        for values in (kind, columns.microbatch, columns.chunk)
    ]
    keys = (*of_pass, columns.chunk[rows], cell[rows])
    numbers[rows] = occurrence(keys, np.lexsort((issued[rows], *keys)))
    backward = gathers[rows] & (of_pass[0] == K.BACKWARD_COMPUTE)
    forward = gathers[rows] & ~backward
    n_forward = np.zeros(int(lane.max()) + 1, dtype=np.int64)
    np.maximum.at(n_forward, lane[rows[forward]], numbers[rows[forward]] + 1)
    numbers[rows[backward]] += n_forward[lane[rows[backward]]]
    return numbers
