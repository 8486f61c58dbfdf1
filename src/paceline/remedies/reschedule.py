"""The job under another pipeline schedule, with its faults kept.

Every new op takes the duration and launch delay of the old op with the same work, in the same step
and replica. A compute takes those of its stage's compute for the same microbatch. A transfer takes
those of a transfer on the same link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, Measured, ReplicaOps, StepGraph
from paceline.graph.schedules import SCHEDULES, replica_ops
from paceline.remedies.regraph import (
    COMPUTES,
    Regraphed,
    Source,
    Usual,
    n_microbatches,
    ops_of,
    rebuild,
)
from paceline.remedies.variation import Variation, spread_over_chunks
from paceline.trace import OpKind
from paceline.trace.kinds import TRANSFERS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
K = OpKind

#: Collectives of a chunk's parameters: with more chunks there are more and smaller ones.
PER_CHUNK = (K.PARAMS_ALL_GATHER, K.GRADS_REDUCE_SCATTER)

LINK_KINDS = tuple(TRANSFERS)

#: Numbers of messages and of replicas that are sampled for the usual time between two stages.
MAX_MESSAGES, MAX_LINKS = 16, 32

#: Kind of transfer -> the kind in the other direction between the same two stages.
OPPOSITE = {
    K.FORWARD_SEND: K.BACKWARD_SEND,
    K.FORWARD_RECV: K.BACKWARD_RECV,
    K.BACKWARD_SEND: K.FORWARD_SEND,
    K.BACKWARD_RECV: K.FORWARD_RECV,
}


def with_schedule(
    measured: Measured,
    name: str,
    share: Array,
    delays: Durations | None = None,
    variation: Variation | None = None,
) -> Regraphed:
    """The job, with one chunk per stage at present, under another schedule.

    Args:
        measured: graph and durations of the trace.
        name: the schedule, a key of ``SCHEDULES``.
        share: [kind, stage, chunk] share of a stage's computes in each chunk.
        delays: launch delays of the trace's ops; None: without.
        variation: variation of the computes, so that chunks vary independently; None: they vary
            with their stage.

    Raises:
        GraphError: the schedule does not allow this number of microbatches.
    """
    graph, n_chunks = measured.graph, share.shape[2]
    variants, sources = [], []
    for v in range(graph.n_variants):
        old, n = ops_of(graph, v), n_microbatches(graph, v)
        new = _join(replica_ops(SCHEDULES[name], graph.n_pp, n, n_chunks, noops=False), old)
        variants.append(new)
        noop = graph.noop[graph.variant_ops(v)]
        sources.append(_Sources(new, old, noop, share).source())
    usual = _usual(measured, delays) if n_chunks > 1 and graph.n_pp > 2 else None
    regraphed = rebuild(measured, variants, sources, n_chunks, delays, usual)
    if variation is not None:
        spread_over_chunks(regraphed.durations, variation, share)
    return regraphed


def _join(scheduled: ReplicaOps, old: ReplicaOps) -> ReplicaOps:
    """The new job's ops: computes, transfers and chunk collectives are new, the rest is kept."""
    rescheduled = [int(kind) for kind in (*COMPUTES, *LINK_KINDS)]
    rescheduled += [int(kind) for kind in PER_CHUNK] if _one_per_stage(old) else []
    size = len(OpKind)
    stages = int(old.pp.max()) + 1
    present = np.bincount(old.pp * size + old.kind, minlength=size * stages) > 0
    present |= np.isin(np.arange(size * stages) % size, [int(kind) for kind in LINK_KINDS])
    from_schedule = (
        np.isin(scheduled.kind, rescheduled) & present[scheduled.pp * size + scheduled.kind]
    )
    from_job = ~np.isin(old.kind, rescheduled)
    columns = [
        np.concatenate([getattr(scheduled, name)[from_schedule], getattr(old, name)[from_job]])
        for name in ("kind", "pp", "seq", "chunk", "microbatch", "rank")
    ]
    order = np.lexsort((columns[2], columns[0], columns[1]))
    return ReplicaOps(*(column[order] for column in columns))


def _one_per_stage(ops: ReplicaOps) -> bool:
    """Whether every stage has at most one gather and one scatter. Several ones stay unchanged."""
    counts = [np.bincount(ops.pp[ops.kind == kind], minlength=1).max() for kind in PER_CHUNK]
    return bool(max(counts) <= 1)


@dataclass(frozen=True)
class _Sources:
    """Finds the old op of every new one; ops are counted from their variant's first.

    Attributes:
        new, old: the ops of a replica.
        noop: [old op] whether it is a transfer without data.
        share: [kind, stage, chunk].
    """

    new: ReplicaOps
    old: ReplicaOps
    noop: npt.NDArray[np.bool_]
    share: Array

    def source(self) -> Source:
        size = len(self.new.kind)
        nothing = np.full(size, -1)
        source = Source(nothing, np.ones(size), nothing.copy(), nothing.copy())
        for kind in OpKind:
            for stage in range(self.share.shape[1]):
                to = _ops(self.new, kind, stage)
                if not len(to):
                    continue
                if kind in COMPUTES:
                    self._computes(source, kind, stage, to)
                elif kind in LINK_KINDS:
                    self._transfers(source, kind, stage, to)
                else:
                    self._others(source, kind, stage, to)
        return source

    def _computes(self, source: Source, kind: OpKind, stage: int, to: Ints) -> None:
        """Give computes their shares of the same microbatch's compute.

        The chunk that a microbatch passes first keeps the launch delay.
        """
        by_microbatch = self._by_microbatch(kind, stage)
        chunk, microbatch = self.new.chunk[to], self.new.microbatch[to]
        source.op[to] = by_microbatch[microbatch]
        source.scale[to] = self.share[int(kind == K.BACKWARD_COMPUTE), stage, chunk]
        last = self.share.shape[2] - 1
        behind = chunk if kind == K.FORWARD_COMPUTE else last - chunk
        source.delay_op[to] = self._delays_of(by_microbatch, microbatch, behind)

    def _transfers(self, source: Source, kind: OpKind, stage: int, to: Ints) -> None:
        """Give transfers the times of transfers on the same link in the same step.

        The first chunk takes the same microbatch's transfers. Other chunks take other
        microbatches', for a flapping link delays each message independently. The last and the first
        stage have no link yet, unless there are only two stages.
        """
        compute, at_first = TRANSFERS[kind]
        computes = _ops(self.new, compute, stage)
        n_stages, n_chunks = self.share.shape[1:]
        end = (0, 0) if at_first else (n_stages - 1, n_chunks - 1)
        computes = computes[~((stage == end[0]) & (self.new.chunk[computes] == end[1]))]
        microbatch, chunk = self.new.microbatch[computes], self.new.chunk[computes]  # [transfer]
        at_end = stage == end[0]  # so all of them connect the last stage to the first
        own = self._transfers_by_microbatch(OPPOSITE[kind] if at_end else kind, stage)
        if at_end and n_stages > 2:
            source.usual[to] = LINK_KINDS.index(kind)
        else:
            source.op[to] = own[(microbatch + chunk) % len(own)]
            source.delay_op[to] = self._delays_of(own, microbatch, chunk)

    def _delays_of(self, old: Ints, microbatch: Ints, added: Ints) -> Ints:
        """[new op] old ops whose launch delays new ops take; -1: none.

        Added launches take the delays of other microbatches. They never take the delay of the
        step's first microbatch, which belongs to the step's start (data loading).

        Args:
            old: [microbatch] ops of one kind on one stage.
            microbatch: [new op].
            added: [new op] 0: the first of its microbatch, else the number of the added op.
        """
        pool = old[self.old.seq[old] > 0]
        reused = pool[(microbatch + added) % len(pool)] if len(pool) else np.full(len(added), -1)
        return np.where(added > 0, reused, old[microbatch])

    def _others(self, source: Source, kind: OpKind, stage: int, to: Ints) -> None:
        of = _ops(self.old, kind, stage)
        if len(to) == len(of):
            source.op[to] = source.delay_op[to] = of
            return
        # Collectives of chunks: one old collective became several.
        source.op[to] = source.delay_op[to] = of[0]
        source.scale[to] = 1 / len(to)
        if kind == K.PARAMS_ALL_GATHER:
            source.delay_op[to[1:]] = -1  # the first delay belongs to the step's start

    def _by_microbatch(self, kind: OpKind, stage: int) -> Ints:
        """[microbatch] the old computes of a kind on a stage."""
        of = _ops(self.old, kind, stage)
        return of[np.argsort(self.old.microbatch[of], kind="stable")]

    def _transfers_by_microbatch(self, kind: OpKind, stage: int) -> Ints:
        """[microbatch] the old transfers of a kind on a stage; empty at the model's end."""
        of = _ops(self.old, kind, stage)
        of = of[~self.noop[of]]
        computes = _ops(self.old, TRANSFERS[kind][0], stage)  # the k-th compute's is the k-th
        order = np.argsort(self.old.microbatch[computes], kind="stable")
        return of[order] if len(of) else of


def _ops(ops: ReplicaOps, kind: OpKind, stage: int) -> Ints:
    """Ops of a kind on a stage, by ``seq``."""
    matches: Ints = np.flatnonzero((ops.kind == kind) & (ops.pp == stage))
    return matches


def _usual(measured: Measured, delays: Durations | None) -> Usual:
    """[kind of ``LINK_KINDS``, step] the usual transfer: the lower median over all links."""
    graph = measured.graph

    def table(times: Durations) -> Array:
        return np.stack([_usual_of(graph, times, kind) for kind in LINK_KINDS])

    return Usual(table(measured.durations), None if delays is None else table(delays))


def _usual_of(graph: StepGraph, times: Durations, kind: OpKind) -> Array:
    links: list[Array] = []  # [step, dp] of each stage and variant
    for v in range(graph.n_variants):
        span = graph.variant_ops(v)
        mine = (graph.kind[span] == kind) & ~graph.noop[span]
        for stage in np.unique(graph.pp[span][mine]).tolist():
            ops = np.flatnonzero(mine & (graph.pp[span] == stage))
            sample = ops[:: -(-len(ops) // MAX_MESSAGES)]
            block = times.block(v)
            links.append(np.median(block[sample][..., :: -(-block.shape[2] // MAX_LINKS)], axis=0))
    by_link = np.concatenate(links, axis=1)
    middle = (by_link.shape[1] - 1) // 2
    usual: Array = np.partition(by_link, middle, axis=1)[:, middle]
    return usual


def one_chunk_shares(n_stages: int) -> Array:
    """[kind, stage, chunk] shares of one chunk per stage."""
    return np.ones((len(COMPUTES), n_stages, 1))
