"""The ops of a replica under a schedule that splits the backward, as programs of its stages.

Chunk 0 goes down the stages and chunk 1 comes back up, so neighbours follow from the chunk
(``graph.program``). A receive is posted after the previous compute of its chunk and direction. The
program waits for it in front of its own compute. Gradients of a chunk are reduced behind its last
W.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from paceline.graph.replica import ReplicaOps
from paceline.graph.zero_bubble import SPLIT_CHUNKS, SPLIT_SCHEDULES, B, F, SplitOrder, W
from paceline.trace.kinds import OpKind

K = OpKind
Ints = npt.NDArray[np.int64]

#: Order within the slot of a compute: waits in front of it, itself, then its messages.
_WAIT, _COMPUTE, _SEND, _RECV, _SCATTER, _SLOT = 3, 4, 5, 6, 7, 8
#: Order in front of all computes: gathers, then receives.
_GATHER, _FIRST_RECV = -6, -4


@dataclass
class _Launches:
    """Launches of one stage: (kind, chunk, microbatch, time of launch, time of the wait or -1)."""

    rows: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(
        self,
        kind: OpKind | Ints,
        chunk: int | Ints,
        launch: Ints | int,
        wait: Ints | int | None = None,
        microbatch: Ints | int = -1,
    ) -> None:
        """Add some ops; times count in slots."""
        never = np.iinfo(np.int64).min
        fields = (kind, chunk, microbatch, launch, never if wait is None else wait)
        self.rows.append(np.stack(np.broadcast_arrays(*map(np.atleast_1d, fields))).astype(int))


def split_replica_ops(
    name: str, n_pp: int, n_microbatches: int, *, overlap: bool = False
) -> ReplicaOps:
    """The ops of one replica in one step.

    Args:
        name: one of :data:`paceline.graph.zero_bubble.SPLIT_SCHEDULES`.
        n_pp: stages.
        n_microbatches: microbatches of the replica.
        overlap: gradients are reduced during the backward pass.

    Raises:
        GraphError: the schedule cannot run these numbers.
    """
    tables = []
    for pp in range(n_pp):
        order = SPLIT_SCHEDULES[name](pp, n_pp, n_microbatches)
        launches = _Launches()
        _computes(launches, order, arriving(name, pp, n_pp), leaving(name, pp, n_pp))
        ends_model = SPLIT_CHUNKS[name] == 1 and n_pp > 1 and pp in (0, n_pp - 1)
        _collectives(launches, order, SPLIT_CHUNKS[name], overlap, ends_model)
        tables.append(_positioned(launches, pp))
    kind, pp_column, seq, chunk, microbatch, issued, awaited = np.concatenate(tables, axis=1)
    part = np.zeros(len(kind), dtype=np.int64)
    return ReplicaOps(kind, pp_column, seq, chunk, microbatch, issued, part, awaited)


def arriving(name: str, pp: int, n_pp: int) -> npt.NDArray[np.bool_]:
    """[forward or backward, chunk] whether a stage receives its input from another one.

    At a turn of the V, one chunk hands over to the other in memory.
    """
    inner = np.array([[pp > 0, pp < n_pp - 1], [pp < n_pp - 1, pp > 0]])
    return inner[:, : SPLIT_CHUNKS[name]]


def leaving(name: str, pp: int, n_pp: int) -> npt.NDArray[np.bool_]:
    """[forward or backward, chunk] whether a stage sends its result to another one.

    A message from a neighbour in one direction goes back to it in the other.
    """
    return arriving(name, pp, n_pp)[::-1]


def _computes(
    launches: _Launches,
    order: SplitOrder,
    arrives: npt.NDArray[np.bool_],
    leaves: npt.NDArray[np.bool_],
) -> None:
    """The computes, and the messages that they receive and send."""
    place = np.arange(len(order.kind))
    launches.add(order.kind, order.chunk, _SLOT * place + _COMPUTE, microbatch=order.microbatch)
    first = np.searchsorted(order.block, order.block)
    last = np.searchsorted(order.block, order.block, side="right") - 1
    transfers = ((F, K.FORWARD_RECV, K.FORWARD_SEND), (B, K.BACKWARD_RECV, K.BACKWARD_SEND))
    for direction, (compute, recv, send) in enumerate(transfers):
        for chunk in range(arrives.shape[1]):
            own = np.flatnonzero((order.kind == compute) & (order.chunk == chunk))
            if arrives[direction, chunk]:
                posted = np.append(_FIRST_RECV, _SLOT * last[own[:-1]] + _RECV)
                launches.add(recv, chunk, posted, _SLOT * first[own] + _WAIT)
            if leaves[direction, chunk]:
                launches.add(send, chunk, _SLOT * last[own] + _SEND)


def _collectives(
    launches: _Launches, order: SplitOrder, n_chunks: int, overlap: bool, ends_model: bool
) -> None:
    """Parameters gathered, gradients reduced, and the step's tail."""
    tail = _SLOT * len(order.kind)
    ends = []
    for chunk in range(n_chunks):
        begin = np.flatnonzero((order.kind == F) & (order.chunk == chunk))[0]
        launches.add(K.PARAMS_ALL_GATHER, chunk, _GATHER, _SLOT * begin + _WAIT)
        ends.append(int(np.flatnonzero((order.kind == W) & (order.chunk == chunk))[-1]))
    launches.add(K.GC, -1, tail)
    if overlap:
        for chunk, end in enumerate(ends):
            launches.add(K.GRADS_REDUCE_SCATTER, chunk, _SLOT * end + _SCATTER, tail + 1)
    launches.add(K.LAYERNORM_GRADS_ALL_REDUCE, -1, tail + 2)
    at = tail + 3
    reductions = [(K.EMBEDDING_GRADS_ALL_REDUCE, -1)] if ends_model else []
    if overlap:
        reductions.append((K.SEPARATE_GRADS_ALL_REDUCE, -1))
    else:
        reductions += [(K.GRADS_REDUCE_SCATTER, chunk) for chunk in reversed(range(n_chunks))]
    for kind, chunk in [*reductions, (K.OPTIMIZER_CLIP_MAIN_GRAD, -1)]:
        launches.add(kind, chunk, at, at)
        at += 1
    launches.add(K.OPTIMIZER, -1, at)


def _positioned(launches: _Launches, pp: int) -> Ints:
    """[field, op] kind, stage, seq, chunk, microbatch, position, awaited; by kind and seq."""
    rows = np.concatenate(launches.rows, axis=1)
    rows = rows[:, np.argsort(rows[3], kind="stable")]
    position = np.arange(rows.shape[1])
    awaited = np.searchsorted(rows[3], rows[4], side="right") - 1
    by_kind = np.argsort(rows[0], kind="stable")
    kind, chunk, microbatch = rows[:3, by_kind]
    seq = position - np.searchsorted(kind, kind)
    stage = np.full(len(kind), pp)
    return np.stack([kind, stage, seq, chunk, microbatch, position[by_kind], awaited[by_kind]])
