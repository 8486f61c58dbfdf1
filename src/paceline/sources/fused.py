"""Sends and recvs of one fused call: the end of each.

A fused call, such as Megatron's and veScale's ``send_forward_recv_backward``, begins both of its
transfers and returns when both are over. So its end is an upper bound of each transfer's end. The
end of the peer's call is another bound; the earlier one counts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from paceline.sources.imported import OpTable
from paceline.trace import OpKind
from paceline.trace.kinds import LOCAL_KINDS, P2P_KINDS

_PAIRS = (
    (OpKind.FORWARD_SEND, OpKind.FORWARD_RECV, 1),
    (OpKind.BACKWARD_SEND, OpKind.BACKWARD_RECV, -1),
)


class Side(NamedTuple):
    """One side of a transfer.

    Attributes:
        lane: a number that the stages of one pipeline share: the rank within the stage.
        stage: pipeline stage.
        step: step number.
        kind: a send or recv; other kinds are no side.
        start_s, end_s: seconds.
        is_bound: whether the end is an upper bound.
    """

    lane: int
    stage: int
    step: int
    kind: int
    start_s: float
    end_s: float
    is_bound: bool


def ends_of(sides: Sequence[Side], pp_size: int) -> list[float]:
    """[side] the end; a bound is lowered to that of the other side (its peer's, by order).

    If a stage sent another number than its neighbour received, the ends stay.
    """
    ends = [side.end_s for side in sides]
    peers: dict[tuple[int, int, int, int], tuple[list[int], list[int]]]
    peers = defaultdict(lambda: ([], []))
    for i in sorted(range(len(sides)), key=lambda i: sides[i].start_s):
        side = sides[i]
        for send, recv, way in _PAIRS:
            if side.kind in (send, recv):
                stage = (side.stage + way * (side.kind == send)) % pp_size
                peers[side.lane, side.step, stage, send][side.kind == send].append(i)
    for receivers, senders in peers.values():
        if len(receivers) == len(senders):
            for pair in zip(receivers, senders, strict=True):
                end_s = min(sides[i].end_s for i in pair)
                for i in pair:
                    if sides[i].is_bound:
                        ends[i] = max(sides[i].start_s, end_s)
    return ends


def positions(
    start_s: Sequence[float], end_s: Sequence[float], computes: Sequence[bool]
) -> tuple[list[int], list[int]]:
    """Positions of a worker's launches and waits, if every call returns when it is over.

    Args:
        start_s: [op] launches of a worker's step; those of one fused call are equal.
        end_s: [op] return of the call.
        computes: [op] whether it is a compute; nothing waits for these by position.

    Returns:
        [op] the position of its launch, and of the last launch before its call returned; -1 for
        computes.
    """
    order = sorted(range(len(start_s)), key=lambda i: (start_s[i], end_s[i], i))
    issued = [0] * len(order)
    for position, i in enumerate(order):
        issued[i] = position
    starts = [start_s[i] for i in order]
    awaited = []
    for i, compute in enumerate(computes):
        last = bisect_left(starts, end_s[i]) - 1
        together = bisect_right(starts, start_s[i]) - 1
        # Calls that take no time: ops launched with them at once are no part of them.
        together = together if end_s[i] > start_s[i] else issued[i]
        awaited.append(-1 if compute else max(issued[i], last, together))
    return issued, awaited


class Halves:
    """Which operations of a table are halves of fused calls; 5 bytes an operation."""

    def __init__(self) -> None:
        self._peer, self._is_half = array("i"), array("b")

    def note(self, peer: int, *, is_half: bool) -> None:
        """Note the next operation of the table: its tensor-parallel rank, and whether it is one."""
        self._peer.append(min(peer, 2**31 - 1))
        self._is_half.append(is_half)

    def settle(self, ops: OpTable) -> int:
        """Give the halves their ends and the workers their programs; returns the number of halves.

        A table without halves stays unchanged: nothing shows that calls block their worker.
        """
        n_halves = sum(self._is_half)
        if not n_halves:
            return 0
        spans = list(ops.spans())
        self._set_programs(ops, spans)
        transfers = [i for i, span in enumerate(spans) if span[4] in P2P_KINDS]
        sides = []
        for i in transfers:
            _, dp, pp, step, kind, start_s, end_s = spans[i]
            lane = dp << 32 | self._peer[i]
            sides.append(Side(lane, pp, step, kind, start_s, end_s, bool(self._is_half[i])))
        pp_size = 1 + max(side.stage for side in sides)
        for i, end_s in zip(transfers, ends_of(sides, pp_size), strict=True):
            ops.end_at(i, end_s)
        return n_halves

    @staticmethod
    def _set_programs(
        ops: OpTable, spans: Sequence[tuple[int, int, int, int, int, float, float]]
    ) -> None:
        workers: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, (rank, _, _, step, *_) in enumerate(spans):
            workers[rank, step].append(i)
        for own in workers.values():
            computes = [spans[i][4] in LOCAL_KINDS for i in own]
            places = positions([spans[i][5] for i in own], [spans[i][6] for i in own], computes)
            for i, issued, awaited in zip(own, *places, strict=True):
                ops.place_in_program(i, issued, awaited)
