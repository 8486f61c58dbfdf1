"""Dependencies of workers whose programs are recorded: launches and waits, for any framework.

A program launches computes and communication, and waits for communication. So two numbers of an op
determine its dependencies: the position of its launch, and the position behind which the program
waited for it. No rule of a framework or schedule is needed.

======================================  ============================================================
dependency                              reason
======================================  ============================================================
last compute launched before -> op      one stream; nothing is launched before what comes first
awaited -> all launched behind the wait  the program stood there
collective -> next of kind and family   gathers and reductions are queued each in a stream
======================================  ============================================================

Sends and recvs are no queue: one that waits for its peer does not hold up the others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError
from paceline.graph.replica import ReplicaOps
from paceline.occurrence import occurrence
from paceline.trace.kinds import LOCAL_KINDS, P2P_KINDS, OpKind
from paceline.trace.program import turns_back

K = OpKind
Ops = npt.NDArray[np.int64]


def program_edges(ops: ReplicaOps, n_pp: int) -> list[Ops]:
    """[edge, 2] (before, after) within the workers of one replica."""
    edges = []
    for stage in range(n_pp):
        here = np.flatnonzero(ops.pp == stage)
        edges += _worker_edges(ops, here[np.argsort(ops.rank[here], kind="stable")])
    return edges


def _worker_edges(ops: ReplicaOps, order: Ops) -> list[Ops]:
    """Edges among the ops of one worker, given in the order of their launches."""
    issued, kind = ops.rank[order], ops.kind[order]
    local = np.isin(kind, [int(k) for k in LOCAL_KINDS])
    place = np.arange(len(order))
    computes = np.flatnonzero(local)
    # Place among the computes of the first one that is launched behind each op.
    following = np.searchsorted(computes, place, side="right")
    before = following - local - 1
    behind = before >= 0
    edges = [np.stack([order[computes[before[behind]]], order[place[behind]]], axis=1)]

    awaited = ops.awaited[order] if ops.awaited is not None else np.full(len(order), -1)
    waits = np.flatnonzero(~local & (awaited >= 0))
    first = np.searchsorted(issued, awaited[waits], side="right")
    # All up to the next compute; later ops wait for that compute.
    next_compute = np.append(computes, len(order) - 1)[np.searchsorted(computes, first)]
    n_after = np.maximum(next_compute - first + 1, 0)
    n_after[first >= len(order)] = 0
    after = np.arange(n_after.sum()) - np.repeat(np.cumsum(n_after) - n_after - first, n_after)
    edges.append(np.stack([order[np.repeat(waits, n_after)], order[after]], axis=1))

    family = np.zeros(len(order), dtype=np.int64) if ops.family is None else ops.family[order]
    queued = ~local & ~np.isin(kind, [int(k) for k in P2P_KINDS])
    for of_kind, of_family in np.unique(np.stack([kind, family])[:, queued], axis=1).T:
        queue = order[(kind == of_kind) & (family == of_family)]
        edges.append(np.stack([queue[:-1], queue[1:]], axis=1))
    return edges


def program_pairs(ops: ReplicaOps, n_pp: int) -> list[Ops]:
    """[pair, 2] the n-th send of a stage with its neighbour's n-th recv, by launches.

    Chunks go down the stages one after another. Where the chunks lie as a V (``turns_back``), odd
    chunks come back up.

    Raises:
        GraphError: a stage receives more or fewer messages than are sent to it.
    """
    by_chunk = turns_back(ops.kind, ops.pp, ops.chunk, n_pp)

    def of(kind: OpKind, stage: int, odd: int | None = None) -> Ops:
        chosen = (ops.kind == kind) & (ops.pp == stage)
        if odd is not None:
            chosen &= ops.chunk % 2 == odd
        rows = np.flatnonzero(chosen)
        return rows[np.argsort(ops.rank[rows], kind="stable")]

    pairs = []
    for send, recv, onwards in (
        (K.FORWARD_SEND, K.FORWARD_RECV, 1),
        (K.BACKWARD_SEND, K.BACKWARD_RECV, -1),
    ):
        for stage in range(n_pp):
            for odd in (0, 1) if by_chunk else (None,):
                peer = (stage + (-onwards if odd else onwards)) % n_pp
                ends = of(send, stage, odd), of(recv, peer, odd)
                pairs.append(_matched(*ends, (send, stage), (recv, peer)))
    if n_pp > 1:
        embedding, last = K.EMBEDDING_GRADS_ALL_REDUCE, n_pp - 1
        ends = of(embedding, 0), of(embedding, last)
        pairs.append(_matched(*ends, (embedding, 0), (embedding, last)))
    return pairs


def _matched(ones: Ops, others: Ops, one: tuple[OpKind, int], other: tuple[OpKind, int]) -> Ops:
    if len(ones) != len(others):
        raise GraphError(
            f"stage {one[1]} has {len(ones)} {one[0].label} ops, stage {other[1]} has "
            f"{len(others)} {other[0].label} ops to meet them; ops are missing from the trace"
        )
    return np.stack([ones, others], axis=1)


def launch_numbers(ops: ReplicaOps) -> Ops:
    """[op] its number among its kind on its stage, by launches."""
    return occurrence((ops.kind, ops.pp), np.lexsort((ops.rank, ops.kind, ops.pp)))
