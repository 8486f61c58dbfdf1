"""The same job with another graph: sources of the durations and launch delays of its ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, Measured, ReplicaOps, StepGraph, build_graph
from paceline.graph.schedules import SCHEDULES
from paceline.trace import OpKind

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COMPUTES = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)


@dataclass(frozen=True)
class Source:
    """Sources of the times of a replica's new ops.

    Attributes:
        op: [new op] the old op whose duration it takes, counted from its variant's first; -1: none.
        scale: [new op] factor on that duration.
        delay_op: [new op] the old op whose launch delay it takes; -1: none.
        usual: [new op] its row of ``Usual`` if it has no old op; -1: none, it takes 0 s.
    """

    op: Ints
    scale: Array
    delay_op: Ints
    usual: Ints

    @classmethod
    def of_ops(cls, op: Ints) -> Source:
        """All times from these old ops, unchanged."""
        return cls(op, np.ones(len(op)), op, np.full(len(op), -1))


@dataclass(frozen=True)
class Usual:
    """Times for new ops that resemble no op of the job.

    Attributes:
        seconds: [row, step] durations.
        delay_s: [row, step] launch delays; None if none were given.
    """

    seconds: Array
    delay_s: Array | None


@dataclass(frozen=True)
class Regraphed:
    """The job on another graph.

    Attributes:
        durations: of its ops, seconds.
        delays: launch delays in the same layout; None where none were given.
    """

    durations: Durations
    delays: Durations | None


def ops_of(graph: StepGraph, variant: int) -> ReplicaOps:
    """The ops of a replica structure, in the order in which they run."""
    span = graph.variant_ops(variant)
    rank = np.empty(graph.n_ops, dtype=np.int64)
    rank[graph.order] = np.arange(graph.n_ops)
    return ReplicaOps(
        graph.kind[span], graph.pp[span], graph.seq[span], graph.chunk[span],
        graph.microbatch[span], rank[span],
    )  # fmt: skip


def n_microbatches(graph: StepGraph, variant: int) -> int:
    """Microbatches of the replicas of a structure with one chunk per stage."""
    span = graph.variant_ops(variant)
    first = (graph.kind[span] == OpKind.FORWARD_COMPUTE) & (graph.pp[span] == 0)
    return int(first.sum())


def schedule_of(graph: StepGraph) -> str | None:
    """The schedule of a job with one chunk per stage; None if its stages follow no known one."""
    for name in ("1f1b", "gpipe"):
        if all(_follows(graph, v, name) for v in range(graph.n_variants)):
            return name
    return None


def _follows(graph: StepGraph, variant: int, name: str) -> bool:
    ops, n = ops_of(graph, variant), n_microbatches(graph, variant)
    for stage in range(graph.n_pp):
        mine = np.flatnonzero((ops.pp == stage) & np.isin(ops.kind, COMPUTES))
        mine = mine[np.argsort(ops.rank[mine])]
        usual = SCHEDULES[name](stage, graph.n_pp, n, 1).backward
        if ((ops.kind[mine] == OpKind.BACKWARD_COMPUTE) != usual).any():
            return False
    return True


def rebuild(
    measured: Measured,
    variants: Sequence[ReplicaOps],
    sources: Sequence[Source],
    n_chunks: int,
    delays: Durations | None = None,
    usual: Usual | None = None,
) -> Regraphed:
    """The job on the graph of new ``variants`` of its replicas, with launch delays if given."""
    old = measured.durations
    job = replace(measured.job, vpp_size=n_chunks)
    graph = build_graph(variants, old.graph.replica_variant, job)
    new = Durations.empty(graph, old.n_steps)
    new_delays = None if delays is None else Durations.empty(graph, old.n_steps)
    for v, source in enumerate(sources):
        rows = np.flatnonzero(source.usual >= 0)
        _take(old.block(v), source.op, new.block(v))
        if (source.scale != 1).any():
            new.block(v)[:] *= source.scale[:, None, None]
        if usual is not None:
            new.block(v)[rows] = usual.seconds[source.usual[rows], :, None]
        if delays is not None and new_delays is not None:
            _take(delays.block(v), source.delay_op, new_delays.block(v))
            if usual is not None and usual.delay_s is not None:
                new_delays.block(v)[rows] = usual.delay_s[source.usual[rows], :, None]
    return Regraphed(new, new_delays)


def _take(old: Array, op: Ints, new: Array) -> None:
    np.take(old, np.maximum(op, 0), axis=0, out=new, mode="clip")  # "raise" would copy
    new[op < 0] = 0.0


def with_overlap(measured: Measured, delays: Durations | None = None) -> Regraphed:
    """The job with gradients reduced as soon as the last backward of their chunk has ended.

    A graph with an (instant) all-reduce of separate gradients has scatters that do not wait for the
    end of all computes.
    """
    graph = measured.graph
    variants, sources = [], []
    for v in range(graph.n_variants):
        ops = ops_of(graph, v)
        added = np.arange(graph.n_pp)
        kind = np.append(ops.kind, np.full(graph.n_pp, OpKind.SEPARATE_GRADS_ALL_REDUCE))
        pp = np.append(ops.pp, added)
        nothing = np.full(graph.n_pp, -1)
        columns = (
            kind,
            pp,
            np.append(ops.seq, 0 * added),
            np.append(ops.chunk, nothing),
            np.append(ops.microbatch, nothing),
            np.append(ops.rank, 0 * added),
        )
        order = np.lexsort((columns[2], kind, pp))
        variants.append(ReplicaOps(*(column[order] for column in columns)))
        sources.append(Source.of_ops(np.where(order < len(ops.kind), order, -1)))
    return rebuild(measured, variants, sources, measured.job.vpp_size, delays)


def overlap_buckets(durations: Durations, n_buckets: int) -> None:
    """Shorten scatters to the part that extends beyond their chunk's last backward, in place.

    Take n equal buckets, ready at even intervals in a backward of b seconds, and a scatter of r
    seconds. Buckets are reduced one after the other, so the scatter ends
    max(r / n, r - b (1 - 1 / n)) after the backward.
    """
    graph = durations.graph
    for members in graph.dp_groups:
        if graph.kind[members[0]] != OpKind.GRADS_REDUCE_SCATTER:
            continue
        lasts = [durations.row(_last_backward(graph, op)) for op in members.tolist()]
        backward = np.min([row.min(axis=1) for row in lasts], axis=0)  # [step]
        hidden = (backward * (1 - 1 / n_buckets))[:, None]
        for op in members.tolist():
            row = durations.row(op)
            np.maximum(row / n_buckets, row - hidden, out=row)


def _last_backward(graph: StepGraph, scatter: int) -> int:
    """The last backward of a scatter's chunk."""
    span = graph.variant_ops(int(graph.variant[scatter]))
    mine = (graph.kind[span] == OpKind.BACKWARD_COMPUTE) & (graph.pp[span] == graph.pp[scatter])
    if graph.chunk[scatter] >= 0:
        mine &= graph.chunk[span] == graph.chunk[scatter]
    ops = np.flatnonzero(mine)
    return int(span.start + ops[np.argmax(graph.seq[span][ops])])
