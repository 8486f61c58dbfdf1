"""Microbatch and chunk of ops whose file lacks them, from their order within the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.errors import TraceError
from paceline.trace import Columns, OpKind
from paceline.trace.kinds import PASSES

_COMPUTES = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)
_OF_CHUNKS = (OpKind.PARAMS_ALL_GATHER, OpKind.GRADS_REDUCE_SCATTER)


def number_by_order(columns: Columns, pp_size: int, vpp_size: int, where: str) -> Columns:
    """Fill in the chunk and microbatch of computes and the chunk of collectives, where they are -1.

    All schedules except interleaved ones run microbatches in ascending order. With several chunks
    per stage the order is Megatron's: ``pp_size`` microbatches pass a chunk, then the next chunk.
    Backwards take the chunks from the last to the first. Each chunk has one collective of
    parameters and one of gradients, in the order in which the chunks need them. If their number
    differs from that of the chunks, they get no chunk.

    Args:
        columns: the ops. Their ``seq`` counts the ops of one kind on one rank in one step.
        pp_size: pipeline stages.
        vpp_size: model chunks per stage.
        where: the name of the source, for messages.

    Raises:
        TraceError: there are several chunks, but the number of computes in a step is no multiple
            of ``pp_size * vpp_size``.
    """
    chunk, microbatch = columns.chunk.copy(), columns.microbatch.copy()
    for kind in PASSES if vpp_size == 1 else _COMPUTES:
        rows = (columns.kind == kind) & (microbatch < 0)
        seq = columns.seq[rows]
        if vpp_size == 1:
            microbatch[rows] = seq
            chunk[(columns.kind == kind) & (chunk < 0)] = 0
            continue
        _check_rounds(columns, rows, kind, pp_size * vpp_size, where)
        place = seq % (pp_size * vpp_size) // pp_size
        chunk[rows] = place if kind == OpKind.FORWARD_COMPUTE else vpp_size - 1 - place
        microbatch[rows] = seq // (pp_size * vpp_size) * pp_size + seq % pp_size
    for kind in _OF_CHUNKS:
        rows = (columns.kind == kind) & (chunk < 0)
        if not rows.any():
            continue
        seq = columns.seq[rows]
        if int(seq.max()) == vpp_size - 1:
            chunk[rows] = seq if kind == OpKind.PARAMS_ALL_GATHER else vpp_size - 1 - seq
        elif vpp_size == 1:
            chunk[rows] = 0
    return replace(columns, chunk=chunk, microbatch=microbatch)


def _check_rounds(
    columns: Columns, rows: np.ndarray, kind: OpKind, n_round: int, where: str
) -> None:
    cells, counts = np.unique(
        np.stack([columns.step[rows], columns.rank[rows]]), axis=1, return_counts=True
    )
    for step, rank in cells.T[counts % n_round > 0][:1]:
        n = int(counts[counts % n_round > 0][0])
        raise TraceError(
            f"{where}: rank {rank} ran {n} {kind.label} in step {step}, no multiple of "
            f"{n_round} = pp_size x vpp_size, so chunks cannot be told by order; is vpp_size right?"
        )
