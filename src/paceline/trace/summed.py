"""Collectives within a pass that one row sums up: three numbers for each pass and peer.

A pass of many layers communicates with its group in every layer. If the single calls are not
recorded, a row has three times. Its launch shows the compute time of the peer. Its duration is the
time inside the calls. ``transfer`` is the number of calls times the fastest call: their time
without waits. The rest of the pass belongs to no single peer, since a different peer is late in
each layer. The row cannot separate this rest from the transfers. So it is measured here, and a
warning reports it if it is large.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.occurrence import occurrence
from paceline.trace.columns import Columns, describe
from paceline.trace.kinds import PASSES, PEER_KINDS

#: Share of the passes in waits of no single peer that gives a warning; S is wrong by this share.
ROTATION = 0.05


def rotation_warnings(columns: Columns, where: str) -> list[str]:
    """A warning if waits within passes exceed what summed rows can show.

    Args:
        columns: the raw columns, with groups; start, duration and transfer have one unit.
        where: the name of the source, for messages.

    Raises:
        TraceError: a row with ``transfer`` is not a collective within a pass, or ``transfer``
            exceeds its duration.
    """
    transfer = columns.transfer
    if transfer is None or not (transfer >= 0).any():
        return []
    rows = np.flatnonzero(transfer >= 0)
    _check(columns, rows, transfer, where)
    meeting = _meetings(columns, rows)
    start, duration = columns.start[rows], columns.duration[rows]
    latest = np.full(int(meeting.max()) + 1, start.min())
    np.maximum.at(latest, meeting, start)
    # All calls of a peer that always waits are slow, so the fastest member shows the transfers.
    fastest = np.full(len(latest), transfer.max(), dtype=transfer.dtype)
    np.minimum.at(fastest, meeting, transfer[rows])
    rotation = np.maximum(start + duration - latest[meeting] - fastest[meeting], 0).sum()
    passes = np.isin(columns.kind, [int(kind) for kind in PASSES])
    share = float(rotation) / float(columns.duration[passes].sum() + duration.sum())
    if share <= ROTATION:
        return []
    return [
        f"{share:.0%} of the passes are waits within them that no single peer causes, as layer by "
        "layer another one is late; they count as transfers, so S is too low by up to as much. "
        "Record each collective for a right one: instrument_groups(each=True)"
    ]


def _check(
    columns: Columns, rows: npt.NDArray[np.int64], transfer: npt.NDArray[Any], where: str
) -> None:
    inner = np.isin(columns.kind[rows], [int(kind) for kind in PEER_KINDS])
    longer = transfer[rows] > columns.duration[rows]
    for wrong, what in (
        (~inner, "a transfer, though they are no collectives within passes"),
        (longer, "a transfer that is longer than their duration"),
    ):
        if wrong.any():
            row = int(rows[np.argmax(wrong)])
            raise TraceError(
                f"{where}: {int(wrong.sum())} rows have {what}, the first is row {row} "
                f"({describe(columns, row)})"
            )


def _meetings(columns: Columns, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """[row] a number shared by the members of a collective: the n-th of a group in a step."""
    group = columns.group[rows] if columns.group is not None else np.full(len(rows), -1)
    peer = columns.peer[rows] if columns.peer is not None else np.zeros(len(rows), dtype=np.int64)
    fields = (columns.step[rows], columns.kind[rows], columns.pp[rows], group)
    worker = columns.dp[rows].astype(np.int64), peer
    order = np.lexsort((columns.start[rows], *worker[::-1], *fields[::-1]))
    nth = occurrence((*fields, *worker), order)
    _, meeting = np.unique(np.stack([*fields, nth]), axis=1, return_inverse=True)
    numbers: npt.NDArray[np.int64] = meeting.reshape(-1)
    return numbers
