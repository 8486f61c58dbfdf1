"""Sends and recvs of one fused call: the end of each.

A fused call, such as Megatron's and veScale's ``send_forward_recv_backward``, begins both of its
transfers and returns when both are over. So its end is an upper bound of each transfer's end. The
end of the peer's call is another bound; the earlier one counts.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.sources.imported import OpTable
from paceline.trace import OpKind
from paceline.trace.columns import of_kinds
from paceline.trace.kinds import LOCAL_KINDS, P2P_KINDS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_PAIRS = (
    (OpKind.FORWARD_SEND, OpKind.FORWARD_RECV, 1),
    (OpKind.BACKWARD_SEND, OpKind.BACKWARD_RECV, -1),
)


@dataclass(frozen=True, eq=False)
class Sides:
    """Sides of transfers; operations of other kinds are no side and keep their ends.

    Attributes:
        lane: [op] a number that the stages of one pipeline share: the rank within the stage.
        stage: [op] pipeline stage.
        step: [op] step number.
        kind: [op] its :class:`OpKind`.
        start_s, end_s: [op] seconds.
        is_bound: [op] whether the end is an upper bound.
    """

    lane: Ints
    stage: Ints
    step: Ints
    kind: Ints
    start_s: Array
    end_s: Array
    is_bound: Flags


def ends_of(sides: Sides, pp_size: int) -> Array:
    """[op] its end. An upper bound is lowered to the end of the transfer's other side.

    The sides of a transfer are matched by order. If a stage did not send as many as its neighbour
    received, the ends stay.
    """
    ends = sides.end_s.copy()
    for send, recv, way in _PAIRS:
        pairs = _pairs(sides, send, recv, way, pp_size)
        earlier = sides.end_s[pairs].min(axis=1)
        for own in pairs.T:
            bound = sides.is_bound[own]
            ends[own[bound]] = np.maximum(sides.start_s[own], earlier)[bound]
    return ends


def _pairs(sides: Sides, send: OpKind, recv: OpKind, way: int, pp_size: int) -> Ints:
    """[pair, receiver and sender] operations of one transfer, where as many sent as received."""
    rows = np.flatnonzero((sides.kind == send) | (sides.kind == recv))
    sends = sides.kind[rows] == send
    receiver = (sides.stage[rows] + way * sends) % pp_size
    keys = [receiver, sides.step[rows], sides.lane[rows]]
    order = np.lexsort((sides.start_s[rows], sends, *keys))
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    first = np.flatnonzero(begins)
    n_ops = np.diff(np.append(first, len(rows)))
    n_sends = np.add.reduceat(sends[order], first, dtype=np.int64) if len(first) else n_ops
    half = np.where(2 * n_sends == n_ops, n_sends, 0)
    half_of_row = np.repeat(half, n_ops)
    receives = np.flatnonzero((half_of_row > 0) & ~sends[order])
    return np.stack(
        [rows[order[receives]], rows[order[receives + half_of_row[receives]]]], axis=-1
    ).reshape(-1, 2)


def positions(start_s: Array, end_s: Array, computes: Flags) -> tuple[Ints, Ints]:
    """Positions of a worker's launches and waits, if a call returns when its operations are over.

    Args:
        start_s: [op] launches of a worker's step; those of one fused call are equal.
        end_s: [op] return of the call.
        computes: [op] whether it is a compute; nothing waits for these by position.

    Returns:
        [op] the position of its launch, and of the last launch before its call returned; -1 for
        computes.
    """
    order = np.lexsort((end_s, start_s))
    issued = np.empty(len(order), dtype=np.int64)
    issued[order] = np.arange(len(order))
    starts = start_s[order]
    # A call's end is a sum of two times. Rounding may put it just behind the next launch.
    last = np.searchsorted(starts, end_s - 2 * np.spacing(np.abs(end_s)), side="left") - 1
    together = np.searchsorted(starts, start_s, side="right") - 1
    # A call that takes no time has no part in other calls at the same moment.
    together = np.where(end_s > start_s, together, issued)
    awaited: Ints = np.where(computes, -1, np.maximum(issued, np.maximum(last, together)))
    return issued, awaited


class Halves:
    """Which operations of a table are halves of fused calls; 5 bytes an operation."""

    def __init__(self) -> None:
        self._peer, self._is_half = array("i"), array("b")

    def note(self, peer: int, *, is_half: bool, n_ops: int = 1) -> None:
        """Note the tensor-parallel rank of the table's next operations, and if they are halves."""
        self._peer.extend(array("i", [min(peer, 2**31 - 1)]) * n_ops)
        self._is_half.extend(array("b", [is_half]) * n_ops)

    def settle(self, ops: OpTable) -> int:
        """Give the halves their ends and the workers their programs; returns the number of halves.

        A table without halves stays unchanged: nothing shows that calls block their worker.
        """
        is_half = np.frombuffer(self._is_half, np.bool_)
        n_halves = int(is_half.sum())
        if not n_halves:
            return 0
        self._set_programs(ops)
        rows = np.flatnonzero(of_kinds(ops.whole("kind").astype(np.int8), P2P_KINDS))
        lane = ops.whole("dp")[rows].astype(np.int64) << 32
        lane |= np.frombuffer(self._peer, np.int32)[rows]
        stage, step, kind = (
            ops.whole(name)[rows].astype(np.int64) for name in ("pp", "step", "kind")
        )
        start_s, end_s = ops.times()
        sides = Sides(lane, stage, step, kind, start_s[rows], end_s[rows], is_half[rows])
        end_s[rows] = ends_of(sides, 1 + int(stage.max()))
        return n_halves

    @staticmethod
    def _set_programs(ops: OpTable) -> None:
        rank, step, kind = (ops.whole(name) for name in ("rank", "step", "kind"))
        start_s, end_s = ops.times()
        computes = of_kinds(kind.astype(np.int8), LOCAL_KINDS)
        issued, awaited = ops.whole("issued"), ops.whole("awaited")
        order = np.lexsort((step, rank))
        changes = (np.diff(rank[order]) != 0) | (np.diff(step[order]) != 0)
        for own in np.split(order, np.flatnonzero(changes) + 1):
            issued[own], awaited[own] = positions(start_s[own], end_s[own], computes[own])
