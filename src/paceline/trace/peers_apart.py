"""Tensor- and context-parallel ranks as separate workers, if a trace has their waits.

The pipeline of one (dp, peer) is a replica. Peers communicate in collectives within their passes,
as data-parallel ranks do in theirs. So groups of replicas describe both, and one simulator serves
both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.trace.columns import Columns, describe, of_kinds
from paceline.trace.job import Job
from paceline.trace.kinds import DP_KINDS, PEER_KINDS, OpKind

Ints = npt.NDArray[np.int64]

#: Collectives with the default group of ranks that share a tensor-parallel rank: ranks that differ
#: only in data or context hold the same parameters. The clip's norm covers all ranks of a job.
_OF_ONE_TENSOR_RANK = (DP_KINDS | {OpKind.EXPERT_COMM}) - {OpKind.OPTIMIZER_CLIP_MAIN_GRAD}


#: Largest range of numbers for a lookup table.
MOST_NUMBERS = 1 << 24


@dataclass(frozen=True)
class Apart:
    """Columns with the number of each row's peer, and their job; or the reason for merging peers.

    Attributes:
        columns: the columns, with ``peer``.
        job: the job, with ``peers``.
        reason: reason why peers must be merged; empty if they are apart.
    """

    columns: Columns
    job: Job
    reason: str = ""


def peers_apart(columns: Columns, worker: npt.NDArray[np.int32], job: Job, where: str) -> Apart:
    """Make each rank of a (dp, pp) a separate worker, if possible.

    Args:
        columns: the raw columns of several ranks per (dp, pp).
        worker: [row] number of its (dp, pp).
        job: its degrees.
        where: the name of the source, for messages.

    Raises:
        TraceError: a ``peer`` outside the job's degrees.
    """
    peer, n_peers, reason = _numbered(columns, worker, job, where)
    if not reason and (columns.issued is None or not has_inner(columns)):
        reason = "no collectives within the passes are recorded, so it is not known who waited"
    if reason:
        return Apart(columns, job, reason)
    return Apart(replace(columns, peer=peer), _with_peers(job, n_peers))


def _numbered(
    columns: Columns, worker: npt.NDArray[np.int32], job: Job, where: str
) -> tuple[Ints, int, str]:
    """[row] number of its rank among its peers; number of peers; reason if peers are missing."""
    degrees = job.tp_size * job.dsp_size
    if columns.peer is not None:
        peer = columns.peer
        wrong = (peer < 0) | ((peer >= degrees) & (degrees > 1))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise TraceError(
                f"{where}: {int(wrong.sum())} rows have a peer outside 0 to {max(degrees, 1) - 1} "
                f"(tp {job.tp_size} x dsp {job.dsp_size}), the first is row {row} "
                f"({describe(columns, row)}: peer {peer[row]})"
            )
        n_peers = int(peer.max()) + 1
        there = np.zeros((job.workers, n_peers), dtype=bool)
        ends = np.flatnonzero((worker[1:] != worker[:-1]) | (peer[1:] != peer[:-1]))
        ends = np.append(ends, len(peer) - 1)  # for runs of rows of one rank
        there[worker[ends], peer[ends]] = True
        have = there.sum(axis=1)
    else:
        ranks, of_row = _distinct(columns.rank)
        key = worker.astype(np.int64) * len(ranks) + of_row
        cells = _distinct(key)  # the ranks of each worker
        of_worker = cells[0] // len(ranks)
        number = np.arange(len(of_worker)) - np.searchsorted(of_worker, of_worker)
        peer, have = number[cells[1]], np.bincount(of_worker, minlength=job.workers)
        n_peers = int(peer.max()) + 1
    expected = degrees if degrees > 1 else n_peers
    short = np.flatnonzero(have != expected)
    if not len(short):
        return peer, n_peers, ""
    dp, pp = divmod(int(short[0]), job.pp_size)
    reason = (
        f"dp {dp}, stage {pp} has {have[short[0]]} of {expected} of them"
        + (f" (and {len(short) - 1} more workers)" if len(short) > 1 else "")
        + ", so no single GPU can be named"
    )
    return peer, n_peers, reason


def _distinct(numbers: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """The distinct numbers, ascending, and [row] the index of its number; by table if possible."""
    low, span = int(numbers.min()), int(numbers.max()) - int(numbers.min()) + 1
    if span > MOST_NUMBERS:
        distinct, of_row = np.unique(numbers, return_inverse=True)
        return distinct.astype(np.int64), of_row.reshape(-1)
    present = np.zeros(span, dtype=bool)
    present[numbers - low] = True
    return np.flatnonzero(present) + low, (np.cumsum(present) - 1)[numbers - low]


def has_inner(columns: Columns) -> bool:
    """Whether collectives within passes are recorded."""
    return bool(of_kinds(columns.kind, PEER_KINDS).any())


def meets_peers(columns: Columns) -> bool:
    """Whether some of those collectives join ranks of the same (dp, stage)."""
    return bool(of_kinds(columns.kind, (OpKind.TENSOR_COMM, OpKind.CONTEXT_COMM)).any())


def with_groups(columns: Columns, job: Job) -> Columns:
    """The columns with the ``group`` of each collective: given, or the default for its kind."""
    told = np.int32 if columns.group is None else columns.group.dtype
    group = np.full(len(columns), -1, dtype=np.result_type(told, np.int32))
    if columns.group is not None:
        np.copyto(group, columns.group, where=columns.group >= 0)
    usual: tuple[tuple[Iterable[OpKind], Callable[[Ints, Ints, Ints], Ints]], ...] = (
        (_OF_ONE_TENSOR_RANK, lambda dp, context, tensor: tensor),
        ({OpKind.TENSOR_COMM}, lambda dp, context, tensor: dp * job.dsp_size + context),
        ({OpKind.CONTEXT_COMM}, lambda dp, context, tensor: dp * job.tp_size + tensor),
    )
    for kinds, group_of in usual:
        rows = np.flatnonzero(of_kinds(columns.kind, kinds) & (group < 0))
        peer = np.zeros_like(rows) if columns.peer is None else columns.peer[rows].astype(np.int64)
        context, tensor = np.divmod(peer, job.tp_size)
        group[rows] = group_of(columns.dp[rows].astype(np.int64), context, tensor)
    return replace(columns, group=group)


def _with_peers(job: Job, n_peers: int) -> Job:
    if job.tp_size * job.dsp_size == n_peers:
        return replace(job, peers=n_peers)
    return replace(job, peers=n_peers, tp_size=n_peers, world_size=0)  # the data has the degrees
