"""The same job with another graph: other schedules, other places of collectives.

Durations go over to the new ops by kind, stage and microbatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, Measured, ReplicaOps, StepGraph, build_graph
from paceline.graph.schedules import SCHEDULES, replica_ops
from paceline.trace import OpKind
from paceline.trace.kinds import P2P_KINDS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COMPUTES = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)
PER_CHUNK = (OpKind.PARAMS_ALL_GATHER, OpKind.GRADS_REDUCE_SCATTER)


@dataclass(frozen=True)
class Source:
    """Where the durations of a replica's new ops come from.

    Attributes:
        op: [new op] the old op whose duration it takes, counted from its variant's first; -1: none.
        scale: [new op] times this.
        seconds: [new op] plus this.
    """

    op: Ints
    scale: Array
    seconds: Array


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
    """The schedule that all stages of a job with one chunk per stage follow; None: another."""
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


def rebuilt(
    measured: Measured, variants: Sequence[ReplicaOps], sources: Sequence[Source], n_chunks: int
) -> Durations:
    """The durations on the graph of new ``variants`` of the replicas."""
    old = measured.durations
    job = replace(measured.job, vpp_size=n_chunks)
    graph = build_graph(variants, old.graph.replica_variant, job)
    new = Durations.empty(graph, old.n_steps)
    for v, source in enumerate(sources):
        block = new.block(v)
        taken = np.flatnonzero(source.op >= 0)
        block[taken] = old.block(v)[source.op[taken]]
        if (source.scale != 1).any():
            block *= source.scale[:, None, None]
        if source.seconds.any():
            block += source.seconds[:, None, None]
    return new


def with_schedule(measured: Measured, name: str, n_chunks: int) -> Durations:
    """The job under another schedule; it has one chunk per stage now.

    A chunk computes for 1 / ``n_chunks`` of its stage; gathers and scatters alike. Sends and recvs
    take the median of their kind over all links, and what else there is stays.

    Raises:
        GraphError: the schedule does not allow so many microbatches.
    """
    graph = measured.graph
    transfer_s = _median_transfers(measured)
    variants, sources = [], []
    for v in range(graph.n_variants):
        old, n = ops_of(graph, v), n_microbatches(graph, v)
        new = replica_ops(SCHEDULES[name], graph.n_pp, n, n_chunks, noops=False)
        new = _only_present(new, old)
        variants.append(new)
        sources.append(_source(new, old, transfer_s, n_chunks))
    return rebuilt(measured, variants, sources, n_chunks)


def _median_transfers(measured: Measured) -> dict[OpKind, float]:
    graph = measured.graph
    found = {}
    for kind in P2P_KINDS:
        rows = [
            measured.durations.block(v)[
                (graph.kind[graph.variant_ops(v)] == kind) & ~graph.noop[graph.variant_ops(v)]
            ].ravel()
            for v in range(graph.n_variants)
        ]
        values = np.concatenate(rows)
        found[kind] = float(np.median(values)) if len(values) else 0.0
    return found


def _only_present(new: ReplicaOps, old: ReplicaOps) -> ReplicaOps:
    """Leave out what the job's stages do not have, a collection or a gather, say."""
    size = len(OpKind)
    present = np.bincount(old.pp * size + old.kind, minlength=size * (int(old.pp.max()) + 1)) > 0
    p2p = np.isin(new.kind, [int(kind) for kind in P2P_KINDS])
    return _select(new, present[new.pp * size + new.kind] | p2p)


def _select(ops: ReplicaOps, kept: npt.NDArray[np.bool_]) -> ReplicaOps:
    return ReplicaOps(
        ops.kind[kept], ops.pp[kept], ops.seq[kept], ops.chunk[kept], ops.microbatch[kept],
        ops.rank[kept],
    )  # fmt: skip


def _source(
    new: ReplicaOps, old: ReplicaOps, transfer_s: dict[OpKind, float], n_chunks: int
) -> Source:
    """Where the durations of the new ops come from, kind by kind and stage by stage."""
    source = Source(np.full(len(new.kind), -1), np.ones(len(new.kind)), np.zeros(len(new.kind)))
    for kind in OpKind:
        if kind in P2P_KINDS:
            source.seconds[new.kind == kind] = transfer_s[kind]
            continue
        for stage in range(int(new.pp.max()) + 1):
            to = np.flatnonzero((new.kind == kind) & (new.pp == stage))
            of = np.flatnonzero((old.kind == kind) & (old.pp == stage))
            if kind in COMPUTES:  # in the order of microbatches, of which there are as many
                of = of[np.argsort(old.microbatch[of], kind="stable")]
                source.op[to] = of[new.microbatch[to]]
                source.scale[to] = 1 / n_chunks
            elif kind in PER_CHUNK:
                source.op[to] = of[0] if len(to) else -1
                source.scale[to] = len(of) / max(len(to), 1)
            else:
                source.op[to] = of[: len(to)]
    return source


def with_overlap(measured: Measured) -> Durations:
    """The job with gradients reduced as soon as the last backward of their chunk has ended.

    A graph with an (instant) all-reduce of separate gradients is one whose scatters do not wait for
    the end of all computes.
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
        op = np.where(order < len(ops.kind), order, -1)
        sources.append(Source(op, np.ones(len(op)), np.zeros(len(op))))
    return rebuilt(measured, variants, sources, measured.job.vpp_size)


def overlap_buckets(durations: Durations, n_buckets: int) -> None:
    """Cut scatters to what of them sticks out behind their chunk's last backward, in place.

    With n equal buckets, ready evenly over a backward of b seconds, a scatter of r seconds ends
    max(r / n, r - b (1 - 1 / n)) after it: the buckets are reduced one after the other.
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
