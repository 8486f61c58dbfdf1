"""Pipeline schedules: the order of forward and backward computes on each stage.

GPipe (Huang et al. 2019), 1F1B (Fan et al. 2021; Narayanan et al. 2021) and interleaved 1F1B over
virtual stages (Narayanan et al. 2021, 2.2), as Megatron-LM runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError
from paceline.graph.replica import ReplicaOps
from paceline.trace.kinds import PEER_KINDS, TRANSFERS, OpKind


@dataclass(frozen=True)
class ComputeOrder:
    """Computes of one stage in the order in which they run.

    Attributes:
        backward: [compute] False: forward, True: backward.
        chunk: [compute] model chunk on the stage.
        microbatch: [compute] microbatch.
    """

    backward: npt.NDArray[np.bool_]
    chunk: npt.NDArray[np.int64]
    microbatch: npt.NDArray[np.int64]


#: (stage, stages, microbatches, chunks per stage) -> order on that stage.
Schedule = Callable[[int, int, int, int], ComputeOrder]


def gpipe(pp: int, n_pp: int, n_microbatches: int, n_chunks: int) -> ComputeOrder:
    """All forwards, chunk by chunk, then all backwards."""
    chunk, microbatch = np.divmod(np.arange(n_chunks * n_microbatches), n_microbatches)
    return _join(chunk, microbatch, n_chunks - 1 - chunk, microbatch, warmup=len(chunk))


def one_f_one_b(pp: int, n_pp: int, n_microbatches: int, n_chunks: int) -> ComputeOrder:
    """1F1B: one forward ahead for each stage behind, then one forward and one backward in turn."""
    if n_chunks != 1:
        raise GraphError(f"1F1B has one chunk per stage, not {n_chunks}; use interleaved")
    microbatch = np.arange(n_microbatches)
    zeros = np.zeros(n_microbatches, dtype=np.int64)
    return _join(zeros, microbatch, zeros, microbatch, warmup=n_pp - pp - 1)


def interleaved(pp: int, n_pp: int, n_microbatches: int, n_chunks: int) -> ComputeOrder:
    """Interleaved 1F1B: groups of ``n_pp`` microbatches go through chunk after chunk.

    Raises:
        GraphError: the number of microbatches is no multiple of the number of stages.
    """
    if n_microbatches % n_pp:
        raise GraphError(
            f"interleaved 1F1B needs a multiple of the {n_pp} stages as microbatches, "
            f"not {n_microbatches}"
        )
    group, place = np.divmod(np.arange(n_chunks * n_microbatches), n_pp * n_chunks)
    chunk, within = np.divmod(place, n_pp)
    microbatch = group * n_pp + within
    warmup = 2 * (n_pp - pp - 1) + (n_chunks - 1) * n_pp
    if n_microbatches == n_pp:
        warmup = len(chunk)
    return _join(chunk, microbatch, n_chunks - 1 - chunk, microbatch, warmup)


SCHEDULES: dict[str, Schedule] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
}


def _join(
    forward_chunk: npt.NDArray[np.int64],
    forward_microbatch: npt.NDArray[np.int64],
    backward_chunk: npt.NDArray[np.int64],
    backward_microbatch: npt.NDArray[np.int64],
    warmup: int,
) -> ComputeOrder:
    """``warmup`` forwards, then a forward and a backward in turn, then the other backwards."""
    n = len(forward_chunk)
    warmup = min(warmup, n)
    steady = n - warmup
    place = np.arange(n)
    # Forward i of the steady phase stands before backward i: positions warmup + 2i and + 2i + 1.
    forward_at = np.where(place < warmup, place, 2 * place - warmup)
    backward_at = np.where(place < steady, warmup + 2 * place + 1, n + place)
    backward = np.zeros(2 * n, dtype=bool)
    chunk = np.empty(2 * n, dtype=np.int64)
    microbatch = np.empty(2 * n, dtype=np.int64)
    backward[backward_at] = True
    chunk[forward_at], chunk[backward_at] = forward_chunk, backward_chunk
    microbatch[forward_at], microbatch[backward_at] = forward_microbatch, backward_microbatch
    return ComputeOrder(backward, chunk, microbatch)


def replica_ops(
    schedule: Schedule,
    n_pp: int,
    n_microbatches: int,
    n_chunks: int = 1,
    *,
    overlap: bool = False,
    noops: bool | None = None,
) -> ReplicaOps:
    """The ops of one replica in one step under a schedule.

    Args:
        schedule: one of :data:`SCHEDULES`.
        n_pp: stages.
        n_microbatches: microbatches of the replica.
        n_chunks: chunks per stage (VPP).
        overlap: gradients are reduced during the backward pass.
        noops: record sends and recvs that move nothing; None: under VPP only, as Megatron does.
    """
    noops = n_chunks > 1 if noops is None else noops
    columns: list[npt.NDArray[np.int64]] = []
    for pp in range(n_pp):
        order = schedule(pp, n_pp, n_microbatches, n_chunks)
        for kind in OpKind:
            part = _ops_of_kind(kind, pp, n_pp, n_chunks, order, overlap, noops)
            size = len(part[0])
            columns.append(
                np.stack([np.full(size, kind), np.full(size, pp), np.arange(size), *part])
            )
    kind, pp_column, seq, chunk, microbatch, rank = np.concatenate(columns, axis=1)
    return ReplicaOps(kind, pp_column, seq, chunk, microbatch, rank)


def _ops_of_kind(
    kind: OpKind,
    pp: int,
    n_pp: int,
    n_chunks: int,
    order: ComputeOrder,
    overlap: bool,
    noops: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(chunk, microbatch, rank) of one kind's ops on a stage, in the order of ``seq``."""
    none = np.empty(0, dtype=np.int64)
    chunks = np.arange(n_chunks)
    if kind in (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE):
        at = np.flatnonzero(order.backward == (kind == OpKind.BACKWARD_COMPUTE))
        return order.chunk[at], order.microbatch[at], at
    if kind in TRANSFERS:
        if n_pp == 1:
            return none, none, none
        compute, at_first = TRANSFERS[kind]
        chunk = order.chunk[order.backward == (compute == OpKind.BACKWARD_COMPUTE)]
        end_stage, end_chunk = (0, 0) if at_first else (n_pp - 1, n_chunks - 1)
        idle = (chunk == end_chunk) & (pp == end_stage)
        size = len(chunk) if noops else int((~idle).sum())
        return np.full(size, -1), np.full(size, -1), np.arange(size)
    if kind == OpKind.PARAMS_ALL_GATHER:
        return chunks, np.full(n_chunks, -1), chunks
    if kind == OpKind.GRADS_REDUCE_SCATTER:
        return chunks[::-1], np.full(n_chunks, -1), n_chunks + chunks
    present = {
        OpKind.SEPARATE_GRADS_ALL_REDUCE: overlap,
        OpKind.EMBEDDING_GRADS_ALL_REDUCE: n_pp > 1 and pp in (0, n_pp - 1),
        OpKind.WEIGHT_COMPUTE: False,
    }.get(kind, kind not in PEER_KINDS)
    return (np.full(int(present), -1), np.full(int(present), -1), np.zeros(int(present), np.int64))
