"""Megatron-LM's transfers between stages, as far as spans show or imply them.

Only the four single calls have spans. The fused calls of 1F1B's steady state
(``send_forward_recv_backward``, ``send_backward_recv_forward``) have none. A worker's calls lie
between its computes. So a gap between two computes that has no span is a fused call. Both transfers
of a fused call begin with it, and it returns when both are over. So the return on either side is an
upper bound of a transfer's end; the earlier return counts.

At the ends of the pipeline the single calls do nothing, but they have spans.

Source: Megatron-LM core 0.20.0 (commit d98e8a6), ``core/pipeline_parallel/schedules.py``
(``forward_backward_pipelining_without_interleaving``) and ``p2p_communication.py`` beside it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from paceline.errors import TraceError
from paceline.sources.fused import Sides, ends_of, positions
from paceline.sources.otlp.environment import GROUPS
from paceline.sources.otlp.names import SYNC_START
from paceline.trace import Job, OpKind
from paceline.trace.kinds import LOCAL_KINDS, P2P_KINDS


class Row(NamedTuple):
    """An operation of a rank in a step; ``kind`` may be SYNC_START, ``microbatch`` -1 (unknown)."""

    rank: int
    step: int
    kind: int
    microbatch: int
    start_s: float
    end_s: float
    rebuilt: bool = False
    issued: int = -1
    awaited: int = -1


#: Precision of a time since 1970 as a double.
ROUNDING_S = 1e-6

#: Compute -> its recv and its send, and the direction of the data: to the next stage or back.
_AROUND = {
    OpKind.FORWARD_COMPUTE: (OpKind.FORWARD_RECV, OpKind.FORWARD_SEND, 1),
    OpKind.BACKWARD_COMPUTE: (OpKind.BACKWARD_RECV, OpKind.BACKWARD_SEND, -1),
}


def complete(rows: Iterable[Row], job: Job, where: str) -> tuple[list[Row], int]:
    """The rows without no-ops, with the fused transfers and whole synchronisations.

    Args:
        rows: spans within steps; those of a rank are contiguous.
        job: degrees of parallelism.
        where: the name of the source, for messages.

    Returns:
        the rows, and the number of rows without a span.

    Raises:
        TraceError: there are several stages, but no span of a transfer. Or an interleaved schedule,
            whose calls return before the data is there, lacks some of its spans.
    """
    result: list[Row] = []
    for rank, of_rank in groupby(rows, key=lambda row: row.rank):
        steps: dict[int, list[Row]] = defaultdict(list)
        for row in of_rank:
            steps[row.step].append(row)
        stage = rank // (job.ranks // job.pp_size)
        for own in steps.values():
            own.sort(key=lambda row: row.start_s)
            own = _synchronised([row for row in own if not _is_noop(row, stage, job)])
            if job.pp_size > 1 and job.vpp_size == 1:
                own += _fused(own, stage, job.pp_size)
            result += own
    if job.pp_size > 1:
        _check_spans(result, job, where)
    n_rebuilt = sum(row.rebuilt for row in result)
    if n_rebuilt:
        _check_computes(result, job, where)
        result = _in_programs(result)
    _end_together(result, job)
    return result, n_rebuilt


def _is_noop(row: Row, stage: int, job: Job) -> bool:
    """Whether the call had no peer; with several chunks, the last stage sends to the first."""
    if job.pp_size > 1 and job.vpp_size > 1:
        return False
    first = row.kind in (OpKind.FORWARD_RECV, OpKind.BACKWARD_SEND) and stage == 0
    last = row.kind in (OpKind.FORWARD_SEND, OpKind.BACKWARD_RECV) and stage == job.pp_size - 1
    return first or last


def _synchronised(rows: Sequence[Row]) -> list[Row]:
    """The rows with one operation for each synchronisation: from its launch to its end.

    If launches and ends differ in number (hooks launched buckets), only the wait for the end is
    known.
    """
    starts = [row for row in rows if row.kind == SYNC_START]
    ends = [row for row in rows if row.kind == OpKind.GRADS_REDUCE_SCATTER]
    others = [row for row in rows if row.kind not in (SYNC_START, OpKind.GRADS_REDUCE_SCATTER)]
    if len(starts) != len(ends):
        return others + ends
    joined = zip(starts, ends, strict=True)
    return others + [end._replace(start_s=min(start.start_s, end.start_s)) for start, end in joined]


def _fused(rows: Sequence[Row], stage: int, pp_size: int) -> list[Row]:
    """The transfers of a worker's step that have no span."""
    computes = sorted((row for row in rows if row.kind in _AROUND), key=lambda row: row.start_s)
    has = {kind: _served(rows, computes, kind) for kind in P2P_KINDS}
    rebuilt = []
    for i, (before, after) in enumerate(pairwise(computes)):
        _, send, to = _AROUND[OpKind(before.kind)]
        recv, _, way = _AROUND[OpKind(after.kind)]
        low, high = before.end_s, max(before.end_s, after.start_s)
        for kind, served, peer in ((send, i, stage + to), (recv, i + 1, stage - way)):
            if 0 <= peer < pp_size and not has[kind][served]:
                rebuilt.append(Row(before.rank, before.step, kind, -1, low, high, rebuilt=True))
    return rebuilt


def _in_programs(rows: Sequence[Row]) -> list[Row]:
    """The rows with their places in their workers' programs: the host waits in every call."""
    result: list[Row] = []
    by_worker = sorted(rows, key=lambda row: (row.rank, row.step))
    for _, group in groupby(by_worker, key=lambda row: (row.rank, row.step)):
        own = list(group)
        issued, awaited = positions(
            np.array([row.start_s for row in own]),
            np.array([row.end_s for row in own]),
            np.array([row.kind in LOCAL_KINDS for row in own]),
        )
        places = zip(own, issued.tolist(), awaited.tolist(), strict=True)
        result += [row._replace(issued=launch, awaited=wait) for row, launch, wait in places]
    return result


def _check_computes(rows: Sequence[Row], job: Job, where: str) -> None:
    """Check that all stages compute equally often: a lost span would merge two calls."""
    per_stage = job.ranks // job.pp_size
    counts = Counter(
        (row.step, row.rank % per_stage, row.kind, row.rank // per_stage)
        for row in rows
        if row.kind in _AROUND
    )
    for (step, lane, kind, stage), n in sorted(counts.items()):
        first = counts[step, lane, kind, 0]
        if n != first:
            raise TraceError(
                f"{where}: rank {lane} has {first} {OpKind(kind).label} in step {step}, rank "
                f"{lane + stage * per_stage} has {n}; spans were lost (OTEL_BSP_MAX_QUEUE_SIZE), "
                "or the step is not whole: leave it out with --steps"
            )


def _served(rows: Sequence[Row], computes: Sequence[Row], kind: OpKind) -> list[bool]:
    """[compute] whether it has a span of this kind.

    A recv belongs to the next compute, a send to the compute before it. If there are as many spans
    as computes that need one, each compute has one.
    """
    compute, receives = next(
        (of, recv == kind) for of, (recv, send, _) in _AROUND.items() if kind in (recv, send)
    )
    own = [i for i, row in enumerate(computes) if row.kind == compute]
    spans = [row for row in rows if row.kind == kind]
    if len(spans) == len(own):
        return [True] * len(computes)
    served = [False] * len(computes)
    starts, ends = ([getattr(computes[i], name) for i in own] for name in ("start_s", "end_s"))
    for span in spans:
        if receives:
            at = bisect_left(starts, span.end_s - ROUNDING_S)
        else:
            at = bisect_right(ends, span.start_s + ROUNDING_S) - 1
        if 0 <= at < len(own):
            served[own[at]] = True
    return served


def _check_spans(rows: Sequence[Row], job: Job, where: str) -> None:
    spans = sum(row.kind in P2P_KINDS and not row.rebuilt for row in rows)
    if not spans:
        raise TraceError(
            f"{where} has no span of a transfer between its {job.pp_size} stages; run the job with "
            f"MEGATRON_OTEL_SPAN_GROUPS={GROUPS}, or see paceline times"
        )
    computes = sum(row.kind in _AROUND for row in rows)
    # Each way, a microbatch passes n_chunks chunks by n_chunks - 1 transfers, which have two sides.
    n_chunks = job.pp_size * job.vpp_size
    if job.vpp_size > 1 and spans < 2 * computes * (n_chunks - 1) // n_chunks:
        raise TraceError(
            f"{where}: the interleaved schedule's transfers have no spans ({spans} for {computes} "
            "computes), so it is unknown when stages waited, and no trace can be made. paceline "
            "times shows the times that the spans have"
        )


def _end_together(rows: list[Row], job: Job) -> None:
    """Let a rebuilt side end no later than its peer's, in place."""
    per_stage = job.ranks // job.pp_size
    rank, step, kind = (
        np.array([getattr(row, name) for row in rows], dtype=np.int64)
        for name in ("rank", "step", "kind")
    )
    start_s, end_s = (
        np.array([getattr(row, name) for row in rows], dtype=np.float64)
        for name in ("start_s", "end_s")
    )
    rebuilt = np.array([row.rebuilt for row in rows], dtype=bool)
    stage, lane = np.divmod(rank, per_stage)
    ends = ends_of(Sides(lane, stage, step, kind, start_s, end_s, rebuilt), job.pp_size)
    for i in np.flatnonzero(rebuilt).tolist():
        rows[i] = rows[i]._replace(end_s=float(ends[i]))
