"""Sends and recvs between the stages of some profiles: their directions and their ends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from paceline.sources.kineto.ops import RankOp
from paceline.sources.kineto.place import Places
from paceline.trace import OpKind

_PAIRS = (
    (OpKind.FORWARD_SEND, OpKind.FORWARD_RECV, 1),
    (OpKind.BACKWARD_SEND, OpKind.BACKWARD_RECV, -1),
)


def with_direction(
    ops: Sequence[RankOp], rank: int, places: Places, unplaced: Counter[str]
) -> list[RankOp]:
    """The ops of a rank; the stage of a transfer's peer distinguishes forward from backward."""
    directed = []
    for op in ops:
        kind = op.kind if op.kind is not None else _direction(op, rank, places)
        if kind is None:
            unplaced["sends and recvs of unknown direction"] += 1
        else:
            directed.append(op._replace(kind=kind))
    return directed


def _direction(op: RankOp, rank: int, places: Places) -> OpKind | None:
    _, pp = places.of_rank[rank]
    size = places.job.pp_size
    if size == 2 and places.job.vpp_size == 1:
        forward = op.sends == (pp == 0)
    else:
        # With two stages of several chunks each, both directions have the same peer.
        peer = places.of_rank.get(op.peer)
        if size == 2 or peer is None or (peer[1] - pp) % size not in (1, size - 1):
            return None
        forward = op.sends == ((peer[1] - pp) % size == 1)
    if forward:
        return OpKind.FORWARD_SEND if op.sends else OpKind.FORWARD_RECV
    return OpKind.BACKWARD_SEND if op.sends else OpKind.BACKWARD_RECV


def end_together(ops_of: Mapping[int, list[RankOp]], places: Places) -> None:
    """Let both sides of a transfer end at the earlier of their two ends, in place.

    On the host a send or recv ends with the wait for it, perhaps much later than the data came. So
    the earlier end is nearer to the truth. The sides are matched by stage and microbatch if the
    ranges have them, else by order.
    """
    for send, recv, way in _PAIRS:
        sides: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        for rank, ops in ops_of.items():
            dp, pp = places.of_rank[rank]
            mine = [(op.start_s, i) for i, op in enumerate(ops) if op.kind in (send, recv)]
            count: Counter[tuple[int, OpKind | None]] = Counter()
            for _, i in sorted(mine):
                op = ops[i]
                to = way if op.kind == send else 0  # named after the receiving side
                if op.stage >= 0:
                    key = (dp, op.step, op.stage + to, op.microbatch)
                else:
                    at = count[op.step, op.kind]
                    key = (dp, op.step, (pp + to) % places.job.pp_size, at)
                count[op.step, op.kind] += 1
                sides[key].append((rank, i))
        for pair in sides.values():
            if len(pair) == 2:
                end_s = min(ops_of[rank][i].end_s for rank, i in pair)
                for rank, i in pair:
                    op = ops_of[rank][i]
                    ops_of[rank][i] = op._replace(end_s=max(op.start_s, end_s))
